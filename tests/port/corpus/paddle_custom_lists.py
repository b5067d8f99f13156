"""The issue's own example: fluid's names of ops."""
import paddle

scaler = paddle.amp.GradScaler(init_loss_scaling=1024, incr_every_n_steps=500)
for data, label in loader():
    with paddle.amp.auto_cast(
        custom_white_list={'elementwise_add', 'batch_norm'},
        custom_black_list={'reduce_sum', 'softmax_with_cross_entropy'},
    ):
        loss = loss_fn(model(data), label)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.clear_grad()
