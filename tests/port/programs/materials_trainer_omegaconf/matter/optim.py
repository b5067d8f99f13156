from paddle import nn, optimizer


def build_optimizer(cfg, model):
    params = dict(cfg["__init_params__"])
    clip = None
    clip_norm = params.pop("clip_norm", None)
    clip_norm_global = params.pop("clip_norm_global", None)
    if clip_norm is not None:
        clip = nn.ClipGradByNorm(clip_norm=clip_norm)
    elif clip_norm_global is not None:
        clip = nn.ClipGradByGlobalNorm(clip_norm=clip_norm_global)
    cls = getattr(optimizer, cfg["__class_name__"])
    return cls(learning_rate=cfg["lr"], parameters=model.parameters(), grad_clip=clip, **params)
