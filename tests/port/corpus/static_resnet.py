"""A static graph: the optimizer is decorated by the configuration's options."""

import paddle
from paddle.static import amp


def build_program(config, is_train=True):
    image = paddle.static.data("image", [None, 3, 224, 224])
    label = paddle.static.data("label", [None, 1], "int64")
    out = create_model(config["Architecture"])(image)
    loss = paddle.mean(paddle.nn.functional.cross_entropy(out, label))
    if not is_train:
        return loss
    optimizer = build_optimizer(config["Optimizer"])
    optimizer = mixed_precision_optimizer(config, optimizer)
    optimizer.minimize(loss)
    return loss


def mixed_precision_optimizer(config, optimizer):
    if "AMP" in config:
        amp_cfg = config.AMP if config.AMP else dict()
        scale_loss = amp_cfg.get("scale_loss", 1.0)
        use_dynamic_loss_scaling = amp_cfg.get("use_dynamic_loss_scaling", False)
        use_pure_fp16 = amp_cfg.get("use_pure_fp16", False)
        optimizer = amp.decorate(
            optimizer,
            init_loss_scaling=scale_loss,
            use_dynamic_loss_scaling=use_dynamic_loss_scaling,
            use_pure_fp16=use_pure_fp16,
            use_fp16_guard=True,
        )
    return optimizer
