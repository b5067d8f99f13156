"""Runs a script with what fleet's model-parallel layers lack on CPUs.

    python -m paddle.distributed.launch gloo_model_parallel.py script.py ...

Paddle 3.3 refuses ``c_identity`` on CPUs, and gloo's groups refuse an all-reduce on the calculation
stream: the two operators that surround a pair of model-parallel layers (Megatron's f and g). Here they
are made of gloo's own all-reduce. The layers, the groups and the optimizers are Paddle's.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import paddle
from paddle.autograd import PyLayer
from paddle.distributed.fleet.layers.mpu import mp_ops


class Identity(PyLayer):
    """Whose gradient is the sum over the group."""

    @staticmethod
    def forward(ctx: Any, x: paddle.Tensor, group: Any) -> paddle.Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: paddle.Tensor) -> paddle.Tensor:
        paddle.distributed.all_reduce(grad, group=ctx.group)
        return grad


class Sum(PyLayer):
    """Over the group; the gradient is passed on."""

    @staticmethod
    def forward(ctx: Any, x: paddle.Tensor, group: Any) -> paddle.Tensor:
        total = x.clone()
        paddle.distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: paddle.Tensor) -> paddle.Tensor:
        return grad.clone()


if __name__ == "__main__":
    mp_ops._c_identity = lambda x, group=None, **_: Identity.apply(x, group)
    mp_ops._mp_allreduce = lambda x, group=None, **_: Sum.apply(x, group)
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
