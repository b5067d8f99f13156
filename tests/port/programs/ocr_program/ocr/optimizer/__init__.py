import copy

import paddle

from . import optimizer


def build_lr_scheduler(lr_config, epochs, step_each_epoch):
    name = lr_config.pop("name", "Const")
    warmup = lr_config.pop("warmup_epoch", 0) * step_each_epoch
    lr = lr_config["learning_rate"]
    if name == "Cosine":
        lr = paddle.optimizer.lr.CosineAnnealingDecay(lr, T_max=epochs * step_each_epoch)
    if warmup:
        lr = paddle.optimizer.lr.LinearWarmup(lr, warmup, 0.0, lr_config["learning_rate"])
    return lr


def build_optimizer(config, epochs, step_each_epoch, model):
    config = copy.deepcopy(config)
    # step1 build lr
    lr = build_lr_scheduler(config.pop("lr"), epochs, step_each_epoch)

    # step2 build regularization
    if "regularizer" in config and config["regularizer"] is not None:
        reg = optimizer.L2Decay(config.pop("regularizer")["factor"])()
    elif "weight_decay" in config:
        reg = config.pop("weight_decay")
    else:
        reg = None

    # step3 build optimizer
    optim_name = config.pop("name")
    if "clip_norm" in config:
        clip_norm = config.pop("clip_norm")
        grad_clip = paddle.nn.ClipGradByNorm(clip_norm=clip_norm)
    elif "clip_norm_global" in config:
        clip_norm = config.pop("clip_norm_global")
        grad_clip = paddle.nn.ClipGradByGlobalNorm(clip_norm=clip_norm)
    else:
        grad_clip = None
    optim = getattr(optimizer, optim_name)(
        learning_rate=lr, weight_decay=reg, grad_clip=grad_clip, **config
    )
    return optim(model), lr
