"""What Paddle's own dispatcher decides, without a GPU.

While a static program is built, ``paddle.amp.auto_cast`` does not look at the place: the dtypes of
the program's values are the decisions of the installed binary. The program is never run. Only
bfloat16 can be asked: for float16 a CPU build has too few kernels to build the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F

Calls = Mapping[str, Callable[[], Any]]


def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(0)

    def positive(*shape: int) -> np.ndarray:
        return (np.abs(rng.standard_normal(shape)) + 0.1).astype(np.float32)

    shapes = [(4, 8), (8, 8), (8,), (2, 3, 8, 8), (2, 5, 8), (4, 3, 3, 3)]
    return [*(positive(*shape) for shape in shapes), np.array([0, 1, 2, 3])]


def calls(x: Any, w: Any, b: Any, image: Any, sequence: Any, kernel: Any, labels: Any) -> Calls:
    """Ops on float32 inputs, and on the outputs of allowed ones."""
    low = paddle.matmul(x, w)
    low_image = F.conv2d(image, kernel)
    zero, one = b[:4] * 0, b[:4] * 0 + 1
    of_low: dict[str, Callable[[Any], Any]] = {
        "relu": F.relu,
        "gelu": F.gelu,
        "silu": F.silu,
        "tanh": paddle.tanh,
        "sigmoid": F.sigmoid,
        "softmax": F.softmax,
        "log_softmax": F.log_softmax,
        "softplus": F.softplus,
        "leaky_relu": F.leaky_relu,
        "elu": F.elu,
        "hardswish": F.hardswish,
        "exp": paddle.exp,
        "log": paddle.log,
        "sqrt": paddle.sqrt,
        "rsqrt": paddle.rsqrt,
        "square": paddle.square,
        "pow": lambda t: paddle.pow(t, 2),
        "abs": paddle.abs,
        "mean": paddle.mean,
        "sum": paddle.sum,
        "max": paddle.max,
        "norm": paddle.norm,
        "cumsum": paddle.cumsum,
        "logsumexp": paddle.logsumexp,
        "t * 2": lambda t: t * 2.0,
        "t + 1": lambda t: t + 1.0,
        "1 - t": lambda t: 1.0 - t,
        "t / 3": lambda t: t / 3.0,
        "1 / t": lambda t: 1.0 / t,
        "-t": lambda t: -t,
        "t + t": lambda t: t + t,
        "t * t": lambda t: t * t,
        "t / t": lambda t: t / t,
        "t + float32": lambda t: t + x,
        "t * float32": lambda t: t * x,
        "t ** 2": lambda t: t**2,
        "reshape": lambda t: t.reshape([8, 4]),
        "transpose": lambda t: t.transpose([1, 0]),
        "t[0]": lambda t: t[0],
        "concat": lambda t: paddle.concat([t, t]),
        "split": lambda t: paddle.split(t, 2)[0],
        "stack": lambda t: paddle.stack([t, t]),
        "dropout": lambda t: F.dropout(t, 0.5),
        "clip": lambda t: paddle.clip(t, 0, 1),
        "where": lambda t: paddle.where(t > 0, t, t),
        "layer_norm": lambda t: F.layer_norm(t, 8, b, b),
        "matmul of low": lambda t: paddle.matmul(t, w),
        "maximum": lambda t: paddle.maximum(t, t),
        "unsqueeze": lambda t: t.unsqueeze(0),
        "expand": lambda t: t.unsqueeze(0).expand([2, 4, 8]),
        "tile": lambda t: paddle.tile(t, [2, 1]),
        "gather": lambda t: paddle.gather(t, labels),
        "cross_entropy": lambda t: F.cross_entropy(t, labels),
        "l1_loss": lambda t: F.l1_loss(t, t * 0.3),
        "smooth_l1_loss": lambda t: F.smooth_l1_loss(t, t * 0.3),
        "bce_with_logits": lambda t: F.binary_cross_entropy_with_logits(t, F.sigmoid(x)),
        "kl_div": lambda t: F.kl_div(t, t * 0.3),
        "cosine_similarity": lambda t: F.cosine_similarity(t, t),
        "normalize": F.normalize,
        "prelu": lambda t: F.prelu(t, b[:1]),
        "astype float32": lambda t: t.astype("float32"),
    }
    of_image: dict[str, Callable[[], Any]] = {
        "max_pool2d": lambda: F.max_pool2d(low_image, 2),
        "avg_pool2d": lambda: F.avg_pool2d(low_image, 2),
        "adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(low_image, 1),
        "interpolate": lambda: F.interpolate(low_image, scale_factor=2, mode="bilinear"),
        "pad": lambda: F.pad(low_image, [1, 1, 1, 1]),
        "flatten": lambda: low_image.flatten(1),
        "batch_norm": lambda: F.batch_norm(low_image, zero, one, b[:4], b[:4], training=False),
        "group_norm": lambda: F.group_norm(low_image, 2),
        "instance_norm": lambda: F.instance_norm(low_image, weight=b[:4], bias=b[:4]),
        "conv2d_transpose": lambda: F.conv2d_transpose(low_image, kernel),
    }
    return {
        "matmul": lambda: low,
        "x @ w": lambda: x @ w,
        "mm": lambda: paddle.mm(x, w),
        "bmm": lambda: paddle.bmm(sequence, sequence.transpose([0, 2, 1])),
        "einsum": lambda: paddle.einsum("ij,jk->ik", x, w),
        "linear": lambda: F.linear(x, w),
        "conv2d": lambda: low_image,
        "conv2d with bias": lambda: F.conv2d(image, kernel, b[:4]),
        "conv3d": lambda: F.conv3d(image.unsqueeze(2), kernel.unsqueeze(2)),
        "depthwise_conv2d": lambda: F.conv2d(image, kernel[:3, :1], groups=3),
        "embedding": lambda: F.embedding(labels, w),
        # Its function refuses bfloat16 while a program is built.
        "hsigmoid_loss": lambda: paddle._C_ops.hsigmoid_loss(
            low, labels.reshape([4, 1]), low, None, None, None, 5, False
        )[0],
        **{name: (lambda run=run: run(low)) for name, run in of_low.items()},
        **of_image,
    }


def native_decisions(region: Callable[[], AbstractContextManager[None]]) -> dict[str, str]:
    """The dtype of each call's result in a program built inside of ``region()``."""
    program, startup = paddle.static.Program(), paddle.static.Program()
    paddle.enable_static()
    try:
        with paddle.static.program_guard(program, startup):
            inputs = [
                paddle.static.data(f"input_{i}", list(a.shape), str(a.dtype))
                for i, a in enumerate(arrays())
            ]
            with region():
                return {name: _decision(call) for name, call in calls(*inputs).items()}
    finally:
        paddle.disable_static()


def _decision(call: Callable[[], Any]) -> str:
    try:
        return str(call().dtype).rpartition(".")[2].lower()
    except (RuntimeError, TypeError) as error:
        # No such kernel in a CPU build: the message names the dtype that had been decided.
        if "dtype: bfloat16" in str(error):
            return "bfloat16"
        raise
