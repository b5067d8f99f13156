"""Optimizers by their names."""

import paddle
from paddle import nn

optim_classes = dict(
    adadelta=paddle.optimizer.Adadelta,
    adam=paddle.optimizer.Adam,
    adamw=paddle.optimizer.AdamW,
    lamb=paddle.optimizer.Lamb,
    momentum=paddle.optimizer.Momentum,
    sgd=paddle.optimizer.SGD, )


def build_optimizers(
        model: nn.Layer,
        optim="adadelta",
        max_grad_norm=None,
        learning_rate=0.01,
        weight_decay=None,
        epsilon=1.0e-6, ) -> paddle.optimizer.Optimizer:
    optim_class = optim_classes.get(optim)
    if optim_class is None:
        raise ValueError(f"must be one of {list(optim_classes)}: {optim}")
    grad_clip = None
    if max_grad_norm:
        grad_clip = paddle.nn.ClipGradByGlobalNorm(max_grad_norm)
    optim_dict = {}
    optim_dict["parameters"] = model.parameters()
    optim_dict["learning_rate"] = learning_rate
    optim_dict["grad_clip"] = grad_clip
    optim_dict["weight_decay"] = weight_decay
    if optim not in {"momentum", "sgd"}:
        optim_dict["epsilon"] = epsilon
    return optim_class(**optim_dict)
