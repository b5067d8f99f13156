import copy

from paddle.optimizer.lr import LRScheduler

from fleetgpt.utils.log import logger

from .grad_clip import *
from .lr_scheduler import *
from .optimizer import *


def build_lr_scheduler(lr_config):
    if "name" in lr_config:
        lr_name = lr_config.pop("name")
        lr = eval(lr_name)(**lr_config)
        if isinstance(lr, LRScheduler):
            return lr
        return lr()
    lr = lr_config.learning_rate
    logger.debug("build lr ({}) success..".format(lr))
    return lr


def build_grad_clip(grad_clip_config):
    if grad_clip_config is not None:
        grad_clip_name = grad_clip_config.pop("name", "ClipGradByGlobalNorm")
        grad_clip = eval(grad_clip_name)(**grad_clip_config)
        return grad_clip
    return None


def build_optimizer(config, model, lr_scheduler=None):
    config = copy.deepcopy(config)
    if lr_scheduler is not None:
        config.pop("lr")

    grad_clip_config = config.pop("grad_clip", None)
    grad_clip = build_grad_clip(grad_clip_config)

    optim_name = config.pop("name")
    optim = eval(optim_name)(
        learning_rate=lr_scheduler, parameters=model.parameters(), grad_clip=grad_clip, **config
    )

    logger.debug("build optimizer ({}) success..".format(optim))
    return optim
