"""The ops of neural networks that NumPy lacks, under their canonical names.

Each is one op to the region: its inputs are rounded by the rule of its name, what is inside runs in
float32 (``scaled_dot_product_attention``'s softmax too), and the result is rounded once. Gradients
likewise. Where autograd's own derivative is slow or falls to float64, the op is a primitive with
its derivative beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

from ampbridge.errors import ArgumentError
from ampbridge.neutral.checks import check_labels, check_range
from ampbridge_numpy._private import look_up
from ampbridge_numpy.autocast.casting import Function, op, parts_of

__all__ = [
    "avg_pool2d",
    "batch_norm",
    "conv2d",
    "cross_entropy",
    "dropout",
    "embedding",
    "flatten",
    "gelu",
    "layer_norm",
    "linear",
    "log_softmax",
    "max_pool2d",
    "mse_loss",
    "multi_head_attention",
    "relu",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "softmax",
    "tanh",
]

_unbroadcast_f = look_up("unbroadcast_f")

Array: TypeAlias = Any
"""A NumPy array, or one that is being traced for its gradient."""


def _with_vjps(*vjps: Callable[..., Any] | None) -> Callable[[Function], Function]:
    """Make a function a primitive of autograd, with a derivative for each argument, as of ``defvjp``."""

    def decorate(function: Function) -> Function:
        made: Function = primitive(function)
        defvjp(made, *vjps)
        return made

    return decorate


# -- matrix products


@op("linear")
def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """``x @ weight + bias``; ``x`` is (..., in), ``weight`` (in, out), ``bias`` (out,)."""
    return _linear(x, weight, bias)


@_with_vjps(
    lambda ans, x, weight, bias: (
        lambda g: anp.reshape(anp.matmul(_rows(g), anp.swapaxes(weight, 0, 1)), x.shape)
    ),
    lambda ans, x, weight, bias: lambda g: anp.matmul(anp.swapaxes(_rows(x), 0, 1), _rows(g)),
    lambda ans, x, weight, bias: _unbroadcast_f(bias, _rows),
)
def _linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> Array:
    product = np.matmul(x.reshape(-1, x.shape[-1]), weight)
    if bias is not None:
        product = product + bias
    return product.reshape(*x.shape[:-1], weight.shape[1])


def _rows(x: Array) -> Array:
    return anp.reshape(x, (-1, x.shape[-1]))


@op("conv2d")
def conv2d(
    x: Array, weight: Array, bias: Array | None = None, *, stride: int = 1, padding: int = 0
) -> Array:
    """Cross-correlate ``x`` (batch, in, height, width) with ``weight`` (out, in, rows, columns)."""
    if padding:
        edges = (padding, padding)
        x = anp.pad(x, ((0, 0), (0, 0), edges, edges), mode="constant")
    result = _conv2d(x, weight, stride)
    return result if bias is None else result + anp.reshape(bias, (-1, 1, 1))


def _windows(x: np.ndarray, size: tuple[int, int], stride: int) -> np.ndarray:
    """A view of ``x`` (n, c, h, w) as (n, c, rows, columns, *size): what each output looks at."""
    views = np.lib.stride_tricks.sliding_window_view(x, size, axis=(2, 3))
    return views[:, :, ::stride, ::stride]


def _sum_windows(windows: np.ndarray, shape: tuple[int, ...], stride: int) -> np.ndarray:
    """The transpose of ``_windows``: each element is the sum of its copies."""
    result = np.zeros(shape, windows.dtype)
    rows, columns, height, width = windows.shape[2:]
    for i in range(height):
        for j in range(width):
            target = result[:, :, i : i + stride * rows : stride, j : j + stride * columns : stride]
            target += windows[..., i, j]
    return result


@_with_vjps(
    lambda ans, x, weight, stride: lambda g: _conv2d_to_x(g, x, weight, stride),
    lambda ans, x, weight, stride: lambda g: _conv2d_to_weight(g, x, weight, stride),
)
def _conv2d(x: np.ndarray, weight: np.ndarray, stride: int) -> Array:
    """One matrix product over all windows (im2col)."""
    windows = _windows(x, weight.shape[2:], stride)
    return np.moveaxis(np.tensordot(windows, weight, axes=((1, 4, 5), (1, 2, 3))), -1, 1)


@primitive
def _conv2d_to_x(g: np.ndarray, x: np.ndarray, weight: np.ndarray, stride: int) -> Array:
    windows = np.moveaxis(np.tensordot(g, weight, axes=(1, 0)), 3, 1)
    return _sum_windows(windows, x.shape, stride)


@primitive
def _conv2d_to_weight(g: np.ndarray, x: np.ndarray, weight: np.ndarray, stride: int) -> Array:
    return np.tensordot(g, _windows(x, weight.shape[2:], stride), axes=((0, 2, 3), (0, 2, 3)))


@op("scaled_dot_product_attention")
def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: np.ndarray | None = None,
    *,
    is_causal: bool = False,
) -> Array:
    """``softmax(query @ key.T / sqrt(width)) @ value`` over (..., tokens, width).

    Args:
        mask: boolean, True where a query may look at a key; broadcast to (..., queries, keys).
        is_causal: a query may look at the keys up to its own place.
    """
    scores = anp.matmul(query, anp.swapaxes(key, -1, -2)) * (query.shape[-1] ** -0.5)
    if is_causal:
        causal = np.tri(*scores.shape[-2:], dtype=np.bool_)
        mask = causal if mask is None else causal & mask
    if mask is not None:
        scores = scores + np.where(mask, np.float32(0), np.float32(-np.inf))
    return anp.matmul(_softmax(scores, -1), value)


def multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    projections: Sequence[Callable[[Array], Array]],
    heads: int,
    mask: np.ndarray | None = None,
    *,
    is_causal: bool = False,
) -> Array:
    """Attention in several subspaces over (batch, tokens, width).

    Its parts (``linear``, ``scaled_dot_product_attention``) follow their own rules.

    Args:
        projections: the linear maps of query, key, value and output, such as ``nn.Linear`` layers.
    """

    def split(x: Array) -> Array:
        """(batch, tokens, width) -> (batch, heads, tokens, width / heads)."""
        batch, tokens, width = x.shape
        return anp.swapaxes(anp.reshape(x, (batch, tokens, heads, width // heads)), 1, 2)

    with parts_of("multi_head_attention"):
        to_heads = zip((query, key, value), projections[:3], strict=True)
        q, k, v = (split(projection(x)) for x, projection in to_heads)
        attended = scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)
        merged = anp.reshape(anp.swapaxes(attended, 1, 2), query.shape)
        return projections[3](merged)


# -- lookups, shapes and pooling


@op("embedding", moves_only=True)
def embedding(indices: np.ndarray, weight: Array) -> Array:
    """The rows of ``weight`` (count, width) at ``indices`` (integers of any shape)."""
    return _looked_up(weight, indices)


@_with_vjps(lambda ans, weight, indices: lambda g: _add_rows(g, indices, weight.shape))
def _looked_up(weight: np.ndarray, indices: np.ndarray) -> Array:
    return weight[indices]


@primitive
def _add_rows(g: np.ndarray, indices: np.ndarray, shape: tuple[int, ...]) -> Array:
    total = np.zeros(shape, np.result_type(g.dtype, np.float32))
    np.add.at(total, indices, g)
    return total.astype(g.dtype)


@op("flatten", moves_only=True)
def flatten(x: Array) -> Array:
    """(batch, ...) -> (batch, everything else)."""
    return anp.reshape(x, (x.shape[0], -1))


@op("max_pool2d")
def max_pool2d(x: Array, size: int, stride: int | None = None) -> Array:
    """The largest of each ``size`` x ``size`` window of ``x`` (batch, channels, height, width)."""
    return _max_pool2d(x, size, stride or size)


@_with_vjps(lambda ans, x, size, stride: lambda g: _max_pool2d_to_x(g, x, size, stride))
def _max_pool2d(x: np.ndarray, size: int, stride: int) -> Array:
    return _windows(x, (size, size), stride).max(axis=(4, 5))


@primitive
def _max_pool2d_to_x(g: np.ndarray, x: np.ndarray, size: int, stride: int) -> Array:
    windows = _windows(x, (size, size), stride)
    first = windows.reshape(*windows.shape[:4], -1).argmax(axis=-1)  # of equals, as torch does
    spread = (np.arange(size * size) == first[..., None]) * g[..., None]
    return _sum_windows(spread.reshape(windows.shape), x.shape, stride)


@op("avg_pool2d")
def avg_pool2d(x: Array, size: int, stride: int | None = None) -> Array:
    """The mean of each ``size`` x ``size`` window of ``x`` (batch, channels, height, width)."""
    return _avg_pool2d(x, size, stride or size)


@_with_vjps(lambda ans, x, size, stride: lambda g: _avg_pool2d_to_x(g, x, size, stride))
def _avg_pool2d(x: np.ndarray, size: int, stride: int) -> Array:
    return _windows(x, (size, size), stride).mean(axis=(4, 5))


@primitive
def _avg_pool2d_to_x(g: np.ndarray, x: np.ndarray, size: int, stride: int) -> Array:
    each = (g / size**2)[..., None, None]
    return _sum_windows(np.broadcast_to(each, (*g.shape, size, size)), x.shape, stride)


# -- normalization


@op("layer_norm", decided_by=1)
def layer_norm(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    """``x`` (..., *weight.shape) with mean 0 and variance 1 over the last axes, then scaled."""
    axes = tuple(range(-weight.ndim, 0))
    return _normalized(x, axes, eps) * weight + bias


@op("batch_norm", decided_by=1)
def batch_norm(
    x: Array,
    weight: Array,
    bias: Array,
    mean: np.ndarray | None = None,
    var: np.ndarray | None = None,
    *,
    eps: float = 1e-5,
) -> Array:
    """``x`` (batch, channels, ...) with mean 0 and variance 1 per channel, then scaled.

    By ``mean`` and ``var`` (channels,) where they are given, else by the batch's own.
    """
    shape = (-1,) + (1,) * (x.ndim - 2)
    if mean is None or var is None:
        normal = _normalized(x, (0, *range(2, x.ndim)), eps)
    else:
        normal = (x - mean.reshape(shape)) / np.sqrt(var + eps).reshape(shape)
    return normal * anp.reshape(weight, shape) + anp.reshape(bias, shape)


@_with_vjps(lambda ans, x, axes, eps: lambda g: _normalized_to_x(g, ans, x, axes, eps))
def _normalized(x: np.ndarray, axes: tuple[int, ...], eps: float) -> Array:
    centred = x - x.mean(axis=axes, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + eps)


@primitive
def _normalized_to_x(
    g: np.ndarray, normal: np.ndarray, x: np.ndarray, axes: tuple[int, ...], eps: float
) -> Array:
    """Subtract from ``g`` its mean and its part along ``normal``; divide by the standard deviation."""
    along = (g * normal).mean(axis=axes, keepdims=True)
    deviation = np.sqrt(x.var(axis=axes, keepdims=True) + eps)
    return (g - g.mean(axis=axes, keepdims=True) - normal * along) / deviation


# -- activations


@op("relu", moves_only=True)
def relu(x: Array) -> Array:
    """``max(x, 0)``; its derivative at 0 is 0."""
    return _relu(x)


@primitive
def _where_positive(y: np.ndarray, x: np.ndarray) -> Array:
    """``y`` where ``x`` is positive or NaN, else 0: also where ``y`` is inf.

    By their bits, which for 16 bits is ten times as fast as NumPy's ``where``, ``maximum`` and
    ``isnan``: the bits of a negative NaN are beyond those of -inf.
    """
    unsigned = f"u{x.itemsize}"
    kept = x.view(f"i{x.itemsize}") > 0
    kept |= x.view(unsigned) > np.array(-np.inf, x.dtype).view(unsigned)
    bits: np.ndarray = y.view(f"u{y.itemsize}") * kept
    return bits.view(y.dtype)


defvjp(_where_positive, lambda ans, y, x: lambda g: _where_positive(g, x), None)


@_with_vjps(lambda ans, x: lambda g: _where_positive(g, ans))
def _relu(x: np.ndarray) -> Array:
    return _where_positive(x, x)


@op("sigmoid")
def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))``."""
    return _sigmoid(x)


@_with_vjps(lambda ans, x: lambda g: g * ans * (1 - ans))
def _sigmoid(x: np.ndarray) -> Array:
    return 0.5 * (np.tanh(0.5 * x) + 1)  # exp(-x) would overflow


@op("silu")
def silu(x: Array) -> Array:
    """``x * sigmoid(x)``."""
    return x * _sigmoid(x)


@op("tanh")
def tanh(x: Array) -> Array:
    """The hyperbolic tangent."""
    return anp.tanh(x)


@op("dropout")
def dropout(x: Array, p: float, rng: np.random.Generator) -> Array:
    """``x`` with each element zero by probability ``p``, the others divided by ``1 - p``."""
    kept = rng.random(x.shape, np.float32) >= p
    return x * (kept / np.float32(1 - p))


# erf(x) = x * P(x^2) / Q(x^2) on [-4, 4], highest power first: Eigen's float32 erf (also XLA's).
_ERF_P = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF_Q = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
    -1.42647390514189e-02,
)  # fmt: skip


_erf = np.frompyfunc(math.erf, 1, 1)


@_with_vjps(lambda ans, x: lambda g: g * anp.exp(-0.5 * x * x) * (2 * np.pi) ** -0.5)
def _normal_distribution(x: np.ndarray) -> Array:
    """``(1 + erf(x / sqrt(2))) / 2``, to the accuracy of its dtype; NumPy has no erf."""
    if x.dtype == np.float64:  # a reference, for which a call an element will do
        return 0.5 + 0.5 * np.asarray(_erf(x * 0.5**0.5), np.float64)
    t = np.clip(x * 0.5**0.5, -4, 4)
    square = t * t
    return 0.5 + 0.5 * t * _polynomial(_ERF_P, square) / _polynomial(_ERF_Q, square)


def _polynomial(coefficients: tuple[float, ...], x: np.ndarray) -> np.ndarray:
    result = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


@op("gelu")
def gelu(x: Array) -> Array:
    """``x`` times the normal distribution function of ``x``."""
    return _gelu(x)


@_with_vjps(
    lambda ans, x: (
        lambda g: g * (_normal_distribution(x) + x * anp.exp(-0.5 * x * x) * (2 * np.pi) ** -0.5)
    )
)
def _gelu(x: np.ndarray) -> Array:
    return x * _normal_distribution(x)


# -- softmax and losses


@op("softmax")
def softmax(x: Array, axis: int = -1) -> Array:
    """``exp(x) / sum(exp(x))`` along ``axis``."""
    return _softmax(x, axis)


@_with_vjps(lambda ans, x, axis: lambda g: ans * (g - anp.sum(g * ans, axis=axis, keepdims=True)))
def _softmax(x: np.ndarray, axis: int) -> Array:
    exponentials = np.exp(x - x.max(axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


@op("log_softmax")
def log_softmax(x: Array, axis: int = -1) -> Array:
    """``log(softmax(x))`` along ``axis``."""
    return _log_softmax(x, axis)


@_with_vjps(lambda ans, x, axis: lambda g: g - anp.exp(ans) * anp.sum(g, axis=axis, keepdims=True))
def _log_softmax(x: np.ndarray, axis: int) -> Array:
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


@op("cross_entropy")
def cross_entropy(logits: Array, labels: np.ndarray, ignore_index: int = -100) -> Array:
    """The mean of ``-log_softmax(logits)`` at the labels; the classes are the last axis.

    Labels of ``ignore_index`` do not count. If none counts, the mean is NaN.

    Raises: as ``ampbridge.neutral.cross_entropy``.
    """
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iu" or labels.shape != logits.shape[:-1]:
        check_labels(labels, logits.shape, logits.ndim - 1)
    labels = labels.ravel()
    counted = np.flatnonzero(labels >= 0)  # NumPy itself refuses those that are too large
    if counted.size < labels.size:
        check_range(labels, logits.shape[-1], ignore_index)
    if ignore_index >= 0:
        counted = counted[labels[counted] != ignore_index]
    return _cross_entropy(logits, labels, counted)


@_with_vjps(
    lambda ans, logits, labels, counted: (
        lambda g: _cross_entropy_to_logits(g, logits, labels, counted)
    )
)
def _cross_entropy(logits: np.ndarray, labels: np.ndarray, counted: np.ndarray) -> Array:
    """The mean over the rows ``counted``."""
    if not counted.size:
        return np.array(np.nan, logits.dtype)[()]
    rows = logits.reshape(-1, logits.shape[-1])
    return -_log_softmax(rows, -1)[counted, labels[counted]].mean()


def _cross_entropy_to_logits(
    g: Array, logits: Array, labels: np.ndarray, counted: np.ndarray
) -> Array:
    """The gradient of the logits; it is zero in the rows that are not counted."""
    one_hot = labels[:, None] == np.arange(logits.shape[-1])
    counts = np.zeros((len(labels), 1), logits.dtype)
    counts[counted] = 1
    rows = (_softmax(_rows(logits), -1) - one_hot) * (counts * (g / max(counted.size, 1)))
    return anp.reshape(rows, logits.shape)


@op("mse_loss")
def mse_loss(prediction: Array, target: Array) -> Array:
    """The mean of ``(prediction - target) ** 2``; the two are of one shape.

    Raises:
        ArgumentError: if they are not: broadcasting would average over pairs that nobody meant.
    """
    if np.shape(prediction) != np.shape(target):
        raise ArgumentError(
            f"mse_loss got shapes {np.shape(prediction)} and {np.shape(target)}; they must be equal.\n"
            "Hint: nn.mse_loss(prediction.reshape(target.shape), target)"
        )
    return anp.sum(anp.square(prediction - target)) / prediction.size
