"""Rounding to float16 or bfloat16 in float32 storage, forward and backward.

Paddle's CPU casts do the rounding (to nearest even; overflow becomes inf). Three things are added:

* The cast to float16 is wrong for 2**-89 <= \\|x\\| < 2**-77: it returns up to 6.1e-5 instead of 0 (a
  shift by 64 or more in phi/common/float16.h, paddlepaddle 3.3.1). Gradients of a softmax fall
  there. Multiplying by 2**-73 and back flushes them through float32's subnormals, and changes
  nothing that float16 can hold; the bias of -0.0 keeps the sign of zero.
* That cast converts number by number. Where there are many numbers, ten passes of vectorized
  arithmetic take a third of the time (``_by_arithmetic``).
* Whether this is bit exact is probed at import; elsewhere NumPy does the rounding.

float64 is not rounded here: a region leaves it alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias
from weakref import ref

import ml_dtypes
import numpy as np
import paddle
from paddle.autograd import PyLayer

from ampbridge_paddle._private import method, private

Tensor: TypeAlias = Any
Hook: TypeAlias = Callable[[Tensor], Tensor | None]

_cast = private("paddle._C_ops.cast")
_scale = private("paddle._C_ops.scale")
_scale_in_place = private("paddle._C_ops.scale_")
_abs = private("paddle._C_ops.abs")
_clip = private("paddle._C_ops.clip")
_add_in_place = private("paddle._C_ops.add_")
_subtract_in_place = private("paddle._C_ops.subtract_")
_copysign_in_place = private("paddle._C_ops.copysign_")
_assign_out = private("paddle._C_ops.assign_out_")
_version = method("Tensor", paddle.Tensor, "_inplace_version")
_register = paddle.Tensor.register_hook

_FLUSH = 2.0**73
_MANY = 8192  # numbers, from which on ten kernels are faster than four with casts
_NUMPY_DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def _by_arithmetic(x: Tensor) -> Tensor:
    """Compute the bits of a cast to float16 and back in float32 arithmetic, not differentiably.

    ``ufp`` is the power of two at or below a number, 2**-14 at least. (number + 2**13 * ufp) keeps
    the bits that float16 has, rounded to even, and subtracting that again is exact.
    """
    magnitude = _abs(x)
    # S. Rump's ufp: q = (2**23 + 1) * number, and then q - (1 - 2**-24) * q; here times 2**13.
    anchor = _clip(magnitude, 2.0**-14, 2.0**16)
    _scale_in_place(anchor, 2.0**13 * (2.0**23 + 1), -0.0, True)
    _subtract_in_place(anchor, _scale(anchor, 1 - 2.0**-24, -0.0, True))
    _add_in_place(magnitude, anchor)
    _subtract_in_place(magnitude, anchor)
    # From 2**16 on, where float16 ends, float32 overflows too.
    _scale_in_place(magnitude, 2.0**112, -0.0, True)
    _scale_in_place(magnitude, 2.0**-112, -0.0, True)
    return _copysign_in_place(magnitude, x)


def _through_float16(x: Tensor) -> Tensor:
    if math.prod(x.shape) >= _MANY:
        return _by_arithmetic(x)
    small = _scale_in_place(_scale(x, 1 / _FLUSH, -0.0, True), _FLUSH, -0.0, True)
    return _cast(_cast(small, paddle.float16), paddle.float32)


def _through_bfloat16(x: Tensor) -> Tensor:
    return _cast(_cast(x, paddle.bfloat16), paddle.float32)


def _with_numpy(dtype: str) -> Callable[[Tensor], Tensor]:
    def through(x: Tensor) -> Tensor:
        with np.errstate(over="ignore"):
            rounded = x.numpy().astype(_NUMPY_DTYPES[dtype]).astype(np.float32)
        return paddle.to_tensor(rounded, place=x.place)

    return through


# Normal, ties, the largest and the first overflow, subnormal ties, what the flush is for, -0.
_PROBE = (1 + 2**-11, 1 + 3 * 2**-11, 65519.0, 65520.0, 2.0**-25, 3 * 2.0**-26, 6e-25, 3e-24, -0.0)


def is_exact(through: Callable[[Tensor], Tensor], dtype: str) -> bool:
    """Whether ``through`` gives NumPy's bits on values where casts go wrong, few and many."""
    few = np.array([*_PROBE, *(1 + np.arange(1, 16) * 2.0**-9), np.inf, 1e-45], np.float32)
    with paddle.no_grad(), np.errstate(over="ignore"):
        for values in (few, np.resize(few, _MANY)):
            got = through(paddle.to_tensor(values, place=paddle.CPUPlace())).numpy()
            expected = values.astype(_NUMPY_DTYPES[dtype]).astype(np.float32)
            if not np.array_equal(got.view(np.uint32), expected.view(np.uint32)):
                return False
    return True


def _exact(through: Callable[[Tensor], Tensor], dtype: str) -> Callable[[Tensor], Tensor]:
    return through if is_exact(through, dtype) else _with_numpy(dtype)


_to_float16 = _exact(_through_float16, "float16")
_to_bfloat16 = _exact(_through_bfloat16, "bfloat16")


class _Round(PyLayer):
    """Rounds, and lets gradient hooks of the output replace the gradient.

    Paddle 3.3.1 calls the hooks of such an output and drops what they return.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: str) -> Tensor:
        ctx.dtype, ctx.replaced = dtype, None
        rounded = _to_float16(x) if dtype == "float16" else _to_bfloat16(x)
        # A hook of the tensor's own class would be found after this one; a reference back would be a cycle.
        rounded.register_hook = partial(_register_hook, ref(rounded), _version(rounded), ctx)
        return rounded

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        replaced, ctx.replaced = ctx.replaced, None
        return round_to(grad if replaced is None else replaced, ctx.dtype)


def _register_hook(rounded: ref[Tensor], version: int, ctx: Any, hook: Hook) -> Any:
    """Do as ``Tensor.register_hook``, and tell the backward pass of ``ctx`` what ``hook`` returns."""

    def told(gradient: Tensor) -> Tensor | None:
        found = hook(gradient)
        if found is not None:
            ctx.replaced = found
        return found

    x = rounded()
    # After a change in place the gradient of ``ctx`` is another one, and Paddle takes what is returned.
    return _register(x, told if _version(x) == version else hook)


def round_to(x: Tensor, dtype: str) -> Tensor:
    """Round float32 ``x`` to ``dtype``, and the gradient that comes back."""
    differentiated = not x.stop_gradient and paddle.is_grad_enabled()
    # The derivative of a cast to bfloat16 is the cast of the gradient.
    if differentiated and (dtype == "float16" or _to_bfloat16 is not _through_bfloat16):
        return _Round.apply(x, dtype)
    return _to_float16(x) if dtype == "float16" else _to_bfloat16(x)


@paddle.no_grad()
def round_in_place(x: Tensor, dtype: str) -> None:
    """Round ``x`` in its own memory, also for a backward pass that has saved it.

    It is no change in place to autograd, which would refuse that backward.
    """
    same_memory = paddle.empty([0], x.dtype)  # of Tensor() Paddle 3.3.1 keeps a list each time
    method("Tensor", x, "_share_buffer_to")(same_memory)
    _assign_out(_to_float16(x) if dtype == "float16" else _to_bfloat16(x), same_memory)


def round_traced(x: Tensor, dtype: str) -> Tensor:
    """``round_to`` for a value of a program that is being traced.

    The chain is symmetric, so that its derivative flushes and rounds the gradient as well.
    """
    if dtype == "bfloat16":
        return _through_bfloat16(x)
    small = _scale(_scale(x, 1 / _FLUSH, -0.0, True), _FLUSH, -0.0, True)
    rounded = _cast(_cast(small, paddle.float16), paddle.float32)
    return _scale(_scale(rounded, _FLUSH, -0.0, True), 1 / _FLUSH, -0.0, True)
