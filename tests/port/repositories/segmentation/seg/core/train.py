import paddle

from seg.core.val import evaluate


def train(
    model,
    train_dataset,
    optimizer=None,
    iters=10000,
    batch_size=2,
    losses=None,
    precision="fp32",
    amp_level="O1",
):
    model.train()
    if precision == "fp16":
        scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
        if amp_level == "O2":
            model, optimizer = paddle.amp.decorate(
                models=model, optimizers=optimizer, level="O2", save_dtype="float32"
            )
    loader = paddle.io.DataLoader(train_dataset, batch_size=batch_size)
    iter = 0
    while iter < iters:
        for data in loader:
            iter += 1
            if iter > iters:
                break
            if precision == "fp16":
                with paddle.amp.auto_cast(
                    level=amp_level,
                    enable=True,
                    custom_white_list={"elementwise_add", "batch_norm", "sync_batch_norm"},
                    custom_black_list={"bilinear_interp_v2"},
                ):
                    logits_list = model(data["img"])
                    loss = losses(logits_list, data["label"])
                scaled = scaler.scale(loss)
                scaled.backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                logits_list = model(data["img"])
                loss = losses(logits_list, data["label"])
                loss.backward()
                optimizer.step()
            lr_sche = optimizer._learning_rate
            lr_sche.step()
            model.clear_gradients()
            if iter % 1000 == 0:
                evaluate(model, loader, precision=precision, amp_level=amp_level)
