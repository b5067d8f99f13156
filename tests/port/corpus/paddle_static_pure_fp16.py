"""The other decorate of the same name, told by use_pure_fp16: fleet's defaults."""
import paddle.static as static

amp_list = static.amp.CustomOpLists(custom_black_list=['pool2d'])
optimizer = static.amp.decorate(
    optimizer,
    amp_list,
    init_loss_scaling=128.0,
    use_dynamic_loss_scaling=True,
    use_pure_fp16=True)
with static.amp.fp16_guard():
    loss = build(data)
optimizer.minimize(loss)
