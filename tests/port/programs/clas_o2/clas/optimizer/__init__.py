import copy

import paddle

from clas.optimizer import optimizer
from clas.utils import logger


def build_lr_scheduler(lr_config, epochs, step_each_epoch):
    name = lr_config.pop("name", "Constant")
    base = lr_config["learning_rate"]
    warmup = lr_config.get("warmup_epoch", 0) * step_each_epoch
    if name == "Cosine":
        lr = paddle.optimizer.lr.CosineAnnealingDecay(base, T_max=epochs * step_each_epoch - warmup)
    else:
        lr = paddle.optimizer.lr.StepDecay(base, step_size=30 * step_each_epoch)
    return paddle.optimizer.lr.LinearWarmup(lr, warmup, 0.0, base) if warmup else lr


def build_optimizer(config, epochs, step_each_epoch, model_list=None):
    optim_config = copy.deepcopy(config)
    # step1 build lr
    lr_sch = build_lr_scheduler(optim_config.pop("lr"), epochs, step_each_epoch)
    logger.debug("build lr ({}) success..".format(lr_sch))

    # step2 build regularization
    if "regularizer" in optim_config and optim_config["regularizer"] is not None:
        reg_config = optim_config.pop("regularizer")
        reg_name = reg_config.pop("name") + "Decay"
        reg = getattr(paddle.regularizer, reg_name)(**reg_config)
        optim_config["weight_decay"] = reg

    # step3 build optimizer
    optim_name = optim_config.pop("name")
    if "clip_norm" in optim_config:
        clip_norm = optim_config.pop("clip_norm")
        grad_clip = paddle.nn.ClipGradByNorm(clip_norm=clip_norm)
    else:
        grad_clip = None
    optim = getattr(optimizer, optim_name)(
        learning_rate=lr_sch, grad_clip=grad_clip, **optim_config
    )(model_list=model_list)
    logger.debug("build optimizer ({}) success..".format(optim))
    return optim, lr_sch
