"""Optimizers, with clipping put into their step."""

import copy
import itertools
from enum import Enum

import torch


class GradientClipType(Enum):
    VALUE = "value"
    NORM = "norm"


def _create_gradient_clipper(cfg):
    """A closure that clips by value or by norm, according to the provided config."""
    cfg = copy.deepcopy(cfg)

    def clip_grad_norm(p):
        torch.nn.utils.clip_grad_norm_(p, cfg.CLIP_VALUE, cfg.NORM_TYPE)

    def clip_grad_value(p):
        torch.nn.utils.clip_grad_value_(p, cfg.CLIP_VALUE)

    _GRADIENT_CLIP_TYPE_TO_CLIPPER = {
        GradientClipType.VALUE: clip_grad_value,
        GradientClipType.NORM: clip_grad_norm,
    }
    return _GRADIENT_CLIP_TYPE_TO_CLIPPER[GradientClipType(cfg.CLIP_TYPE)]


def _generate_optimizer_class_with_gradient_clipping(optimizer, *, per_param_clipper=None, global_clipper=None):
    """A new type that inherits from the optimizer's and clips in its step."""
    assert per_param_clipper is None or global_clipper is None, "Not allowed to use both"

    def optimizer_wgc_step(self, closure=None):
        if per_param_clipper is not None:
            for group in self.param_groups:
                for p in group["params"]:
                    per_param_clipper(p)
        else:
            all_params = itertools.chain(*[g["params"] for g in self.param_groups])
            global_clipper(all_params)
        super(type(self), self).step(closure)

    return type(optimizer.__name__ + "WithGradientClip", (optimizer,), {"step": optimizer_wgc_step})


def maybe_add_gradient_clipping(cfg, optimizer):
    if not cfg.SOLVER.CLIP_GRADIENTS.ENABLED:
        return optimizer
    grad_clipper = _create_gradient_clipper(cfg.SOLVER.CLIP_GRADIENTS)
    cls = _generate_optimizer_class_with_gradient_clipping(type(optimizer), per_param_clipper=grad_clipper)
    optimizer.__class__ = cls
    return optimizer


def build_optimizer(cfg, model):
    """Build an optimizer from config."""
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer_type = cfg.SOLVER.OPTIMIZER
    if optimizer_type == "SGD":
        optimizer = torch.optim.SGD(
            params, cfg.SOLVER.BASE_LR, momentum=cfg.SOLVER.MOMENTUM, weight_decay=cfg.SOLVER.WEIGHT_DECAY)
    elif optimizer_type == "ADAMW":
        optimizer = torch.optim.AdamW(params, cfg.SOLVER.BASE_LR, weight_decay=cfg.SOLVER.WEIGHT_DECAY)
    else:
        raise NotImplementedError(f"no optimizer type {optimizer_type}")
    return maybe_add_gradient_clipping(cfg, optimizer)


def build_lr_scheduler(cfg, optimizer):
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, list(cfg.SOLVER.STEPS), cfg.SOLVER.GAMMA)
