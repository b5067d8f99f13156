import copy

import paddle


def build_lr(cfg, num_iters):
    cfg = copy.deepcopy(cfg)
    cfg.pop("iter_step", None)
    name = cfg.pop("name")
    if name == "CosineWarmup":
        warmup = cfg.pop("warmup_epochs", 0) * num_iters
        base = cfg["learning_rate"]
        lr = paddle.optimizer.lr.CosineAnnealingDecay(base, cfg["max_epoch"] * num_iters)
        return paddle.optimizer.lr.LinearWarmup(lr, warmup, 0.0, base)
    return getattr(paddle.optimizer.lr, name)(**cfg)


def build_optimizer(cfg, lr_scheduler, parameter_list=None):
    cfg = copy.deepcopy(cfg)
    cfg.pop("learning_rate")
    name = cfg.pop("name")
    if "weight_decay" in cfg:
        decay = cfg.pop("weight_decay")
        if isinstance(decay, dict):
            decay = getattr(paddle.regularizer, decay["name"] + "Decay")(decay["value"])
        cfg["weight_decay"] = decay
    return getattr(paddle.optimizer, name)(
        learning_rate=lr_scheduler, parameters=parameter_list, **cfg
    )
