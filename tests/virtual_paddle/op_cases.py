"""A call of each canonical op that Paddle has: what is compared on the CPU and on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import paddle
import paddle.nn.functional as F
from test_ops import CASES as COMMON


class Case(NamedTuple):
    """``run(*inputs)``, differentiated by ``inputs``.

    With a ``layer``, which is made before the region opens, ``run(layer(), *inputs)``.
    """

    run: Callable[..., Any]
    inputs: Sequence[np.ndarray]
    layer: Callable[[], Any] | None = None


def within(low: float, high: float, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


MATRIX, OTHER = within(-2, 2, 6, 8), within(-2, 2, 6, 8, seed=1)
POSITIVE, UNIT = within(0.1, 2, 6, 8), within(-0.9, 0.9, 6, 8)
PROBABILITIES = within(0.05, 0.95, 6, 8)
SQUARE, VECTOR, BATCH = within(-2, 2, 8, 8), within(-2, 2, 8), within(-2, 2, 2, 6, 8)
SERIES, IMAGE, VOLUME = (
    within(-2, 2, 2, 4, 8),
    within(-2, 2, 2, 4, 8, 8),
    within(-2, 2, 1, 4, 4, 4, 4),
)
TRIPLE = [within(-2, 2, 6, 8, seed=seed) for seed in range(3)]


def unary(run: Callable[..., Any], x: np.ndarray = MATRIX) -> Case:
    return Case(run, [x])


def binary(run: Callable[..., Any], x: np.ndarray = MATRIX, y: np.ndarray = OTHER) -> Case:
    return Case(run, [x, y])


def labels() -> paddle.Tensor:
    return paddle.to_tensor([0, 1, 2, 3, 4, 5])


def signs() -> paddle.Tensor:
    return paddle.to_tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])


def rows() -> paddle.Tensor:
    return paddle.to_tensor([4, 0, 2])


def columns() -> paddle.Tensor:
    return paddle.to_tensor([[4], [0], [2], [1], [3], [5]])


def resized(mode: str, x: np.ndarray, *size: int) -> Case:
    return unary(lambda t: F.interpolate(t, size, mode=mode, data_format=_layout(x)), x)


def _layout(x: np.ndarray) -> str:
    return {3: "NCW", 4: "NCHW", 5: "NCDHW"}[x.ndim]


def layer(kind: Callable[..., Any], sizes: Sequence[int], x: np.ndarray) -> Case:
    """The first of its results; with the same weights each time."""

    def made() -> Any:
        weights, found = np.random.default_rng(0), kind(*sizes)
        for parameter in found.parameters():
            parameter.set_value(weights.uniform(-0.5, 0.5, parameter.shape).astype(np.float32))
        return found

    return Case(lambda found, x: found(x), [x], made)


FUNCTIONS: dict[str, Case] = {
    # products
    "vecdot": binary(paddle.vecdot),
    "tensordot": binary(lambda x, y: paddle.tensordot(x, y, [[0], [0]])),
    "outer": binary(paddle.outer, VECTOR, VECTOR[::-1]),
    "inner": binary(paddle.inner),
    "baddbmm": Case(paddle.baddbmm, [within(-1, 1, 2, 6, 6), BATCH, within(-1, 1, 2, 8, 6)]),
    "bilinear": Case(F.bilinear, [MATRIX, OTHER, within(-1, 1, 3, 8, 8)]),
    "kron": binary(paddle.kron, within(-1, 1, 2, 3), within(-1, 1, 3, 2)),
    "cdist": binary(paddle.cdist),
    "conv2d with bias": Case(F.conv2d, [IMAGE, within(-1, 1, 4, 4, 3, 3), within(-1, 1, 4)]),
    "Conv2D": layer(paddle.nn.Conv2D, (4, 4, 3), IMAGE),
    "linear without bias": binary(F.linear, MATRIX, SQUARE),
    "conv_transpose1d": binary(F.conv1d_transpose, SERIES, within(-1, 1, 4, 3, 3)),
    "conv_transpose3d": binary(F.conv3d_transpose, VOLUME, within(-1, 1, 4, 2, 2, 2, 2)),
    "im2col": unary(lambda x: F.unfold(x, 3), IMAGE),
    "col2im": unary(lambda x: F.fold(x, [3, 3], 2), within(-1, 1, 2, 16, 4)),
    "lstm": layer(paddle.nn.LSTM, (8, 4), BATCH),
    "gru": layer(paddle.nn.GRU, (8, 4), BATCH),
    "rnn": layer(paddle.nn.SimpleRNN, (8, 4), BATCH),
    "lstm_cell": layer(paddle.nn.LSTMCell, (8, 4), MATRIX),
    "gru_cell": layer(paddle.nn.GRUCell, (8, 4), MATRIX),
    "rnn_cell": layer(paddle.nn.SimpleRNNCell, (8, 4), MATRIX),
    # normalizations
    # A GPU takes statistics in float32 alone.
    "batch_norm": unary(
        lambda x: F.batch_norm(x, paddle.zeros([4]), paddle.ones([4]), training=False), IMAGE
    ),
    "layer_norm without weights": unary(lambda x: F.layer_norm(x, 8)),
    "instance_norm": unary(F.instance_norm, IMAGE),
    "local_response_norm": unary(lambda x: F.local_response_norm(x, 3), IMAGE),
    "renorm": unary(lambda x: paddle.renorm(x, 2.0, 0, 1.0)),
    # activations
    "relu6": unary(F.relu6),
    "leaky_relu": unary(F.leaky_relu),
    "elu": unary(F.elu),
    "selu": unary(F.selu),
    "celu": unary(F.celu),
    "gelu_tanh": unary(lambda x: F.gelu(x, approximate=True)),
    "mish": unary(F.mish),
    "log_sigmoid": unary(F.log_sigmoid),
    "hard_sigmoid": unary(F.hardsigmoid),
    "hard_swish": unary(F.hardswish),
    "hard_tanh": unary(F.hardtanh),
    "tanh_shrink": unary(F.tanhshrink),
    "soft_shrink": unary(F.softshrink),
    "hard_shrink": unary(F.hardshrink),
    "softsign": unary(F.softsign),
    "threshold": unary(F.thresholded_relu),
    "maxout": unary(lambda x: F.maxout(x, 2), IMAGE),
    "swiglu": unary(F.swiglu),
    # losses
    "cross_entropy, mean": unary(lambda x: F.cross_entropy(x, labels())),
    "nll_loss": unary(lambda x: F.nll_loss(x, labels())),
    "binary_cross_entropy": unary(
        lambda x: F.binary_cross_entropy(x, paddle.to_tensor(PROBABILITIES)), PROBABILITIES
    ),
    "binary_cross_entropy_with_logits": unary(
        lambda x: F.binary_cross_entropy_with_logits(x, paddle.to_tensor(PROBABILITIES))
    ),
    "hinge_embedding_loss": unary(lambda x: F.hinge_embedding_loss(x, signs()), within(-2, 2, 6)),
    "margin_ranking_loss": binary(
        lambda x, y: F.margin_ranking_loss(x, y, signs()),
        within(-2, 2, 6),
        within(-2, 2, 6, seed=1),
    ),
    "cosine_embedding_loss": binary(lambda x, y: F.cosine_embedding_loss(x, y, signs())),
    "pairwise_distance": binary(F.pairwise_distance),
    "triplet_margin_loss": Case(F.triplet_margin_loss, TRIPLE),
    "poisson_nll_loss": binary(F.poisson_nll_loss, MATRIX, POSITIVE),
    "gaussian_nll_loss": Case(F.gaussian_nll_loss, [MATRIX, OTHER, POSITIVE]),
    "soft_margin_loss": unary(lambda x: F.soft_margin_loss(x, signs()), within(-2, 2, 6)),
    "multi_margin_loss": unary(lambda x: F.multi_margin_loss(x, labels())),
    "multilabel_soft_margin_loss": unary(
        lambda x: F.multi_label_soft_margin_loss(x, paddle.to_tensor((OTHER > 0).astype("float32")))
    ),
    "log_loss": unary(
        lambda x: F.log_loss(x, paddle.to_tensor((OTHER[:, :1] > 0).astype("float32"))),
        PROBABILITIES[:, :1],
    ),
    "sigmoid_focal_loss": unary(
        lambda x: F.sigmoid_focal_loss(x, paddle.to_tensor((OTHER > 0).astype("float32")))
    ),
    # reductions
    "mean of all": unary(paddle.mean),
    "sum of all": unary(paddle.sum),
    "amax, amin": unary(lambda x: paddle.amax(x, axis=1) + paddle.amin(x, axis=1)),
    "amin": unary(lambda x: paddle.min(x, axis=1)),
    "median": unary(lambda x: paddle.median(x, axis=1)),
    "quantile": unary(lambda x: paddle.quantile(x, 0.3, axis=1)),
    "nansum": unary(paddle.nansum),
    "nanmean": unary(paddle.nanmean),
    "vector_norm": unary(lambda x: paddle.linalg.vector_norm(x, 3.0)),
    "matrix_norm": unary(lambda x: paddle.linalg.matrix_norm(x)),
    "dist": binary(paddle.dist),
    "trace": unary(paddle.trace, SQUARE),
    "cumprod": unary(lambda x: paddle.cumprod(x, 1)),
    "cummax": unary(lambda x: paddle.cummax(x, 1)[0]),
    "logcumsumexp": unary(lambda x: paddle.logcumsumexp(x, 1)),
    # element by element
    "expm1": unary(paddle.expm1),
    "log2": unary(paddle.log2, POSITIVE),
    "log10": unary(paddle.log10, POSITIVE),
    "x ** y": binary(lambda x, y: x**y, POSITIVE),
    "sin": unary(paddle.sin),
    "cos": unary(paddle.cos),
    "tan": unary(paddle.tan, UNIT),
    "asin": unary(paddle.asin, UNIT),
    "atan": unary(paddle.atan),
    "sinh": unary(paddle.sinh),
    "cosh": unary(paddle.cosh),
    "asinh": unary(paddle.asinh),
    "acosh": unary(paddle.acosh, POSITIVE + 1),
    "atanh": unary(paddle.atanh, UNIT),
    "erf": unary(paddle.erf),
    "erfinv": unary(paddle.erfinv, UNIT),
    "lgamma": unary(paddle.lgamma, POSITIVE),
    "digamma": unary(paddle.digamma, POSITIVE),
    "hypot": binary(paddle.hypot),
    "logit": unary(paddle.logit, PROBABILITIES),
    "neg": unary(paddle.neg),
    "sign": unary(paddle.sign),
    "floor": unary(paddle.floor),
    "ceil": unary(paddle.ceil),
    "round": unary(paddle.round),
    "trunc": unary(paddle.trunc),
    "clamp": unary(lambda x: paddle.clip(x, -1.0, 1.0)),
    "nan_to_num": unary(paddle.nan_to_num),
    "x + 1": unary(lambda x: x + 1.0),
    "x * 0.3": unary(lambda x: x * 0.3),
    "1 - x": unary(lambda x: 1.0 - x),
    "x / 3": unary(lambda x: x / 3.0),
    "1 / x": unary(lambda x: 1.0 / x, POSITIVE),
    "remainder": binary(paddle.remainder, MATRIX, POSITIVE),
    "minimum": binary(paddle.minimum),
    "add_n": binary(lambda x, y: paddle.add_n([x, y])),
    "lerp": Case(paddle.lerp, TRIPLE),
    "cross": binary(paddle.cross, within(-2, 2, 4, 3), within(-2, 2, 4, 3, seed=1)),
    "isfinite": unary(lambda x: paddle.isfinite(x).astype("float32")),
    "less": binary(lambda x, y: paddle.less_than(x, y).astype("float32")),
    "logical_and": binary(lambda x, y: paddle.logical_and(x > 0, y > 0).astype("float32")),
    # pooling, resizing
    "max_pool1d": unary(lambda x: F.max_pool1d(x, 2), SERIES),
    "max_pool3d": unary(lambda x: F.max_pool3d(x, 2), VOLUME),
    "avg_pool1d": unary(lambda x: F.avg_pool1d(x, 2), SERIES),
    "avg_pool3d": unary(lambda x: F.avg_pool3d(x, 2), VOLUME),
    "adaptive_avg_pool2d": unary(lambda x: F.adaptive_avg_pool2d(x, 3), IMAGE),
    "adaptive_avg_pool3d": unary(lambda x: F.adaptive_avg_pool3d(x, 3), VOLUME),
    "adaptive_max_pool2d": unary(lambda x: F.adaptive_max_pool2d(x, 3), IMAGE),
    "adaptive_max_pool3d": unary(lambda x: F.adaptive_max_pool3d(x, 3), VOLUME),
    "lp_pool2d": unary(lambda x: F.lp_pool2d(x, 2.0, 2), np.abs(IMAGE) + 0.1),
    "interpolate_nearest": resized("nearest", IMAGE, 11, 11),
    "interpolate_linear": resized("linear", SERIES, 11),
    "interpolate_bicubic": resized("bicubic", IMAGE, 11, 11),
    "interpolate_trilinear": resized("trilinear", VOLUME, 5, 5, 5),
    "grid_sample": binary(F.grid_sample, IMAGE, within(-0.9, 0.9, 2, 5, 5, 2)),
    "affine_grid": unary(lambda x: F.affine_grid(x, [2, 1, 4, 4]), within(-1, 1, 2, 2, 3)),
    "pixel_shuffle": unary(lambda x: F.pixel_shuffle(x, 2), IMAGE),
    "pixel_unshuffle": unary(lambda x: F.pixel_unshuffle(x, 2), IMAGE),
    # indices
    "gather": unary(lambda x: paddle.gather(x, rows())),
    "gather_nd": unary(lambda x: paddle.gather_nd(x, rows().unsqueeze(1))),
    "index_select": unary(lambda x: paddle.index_select(x, rows())),
    "take_along_axis": unary(lambda x: paddle.take_along_axis(x, columns(), 1)),
    "scatter": binary(lambda x, y: paddle.scatter(x, rows(), y), MATRIX, OTHER[:3]),
    "scatter_add": binary(
        lambda x, y: paddle.scatter_nd_add(x, rows().unsqueeze(1), y), MATRIX, OTHER[:3]
    ),
    "index_put": binary(lambda x, y: paddle.index_put(x, (rows(),), y), MATRIX, OTHER[:3]),
    "index_add": binary(lambda x, y: paddle.index_add(x, rows(), 0, y), MATRIX, OTHER[:3]),
    "masked_fill": unary(lambda x: paddle.masked_fill(x, x > 0, 0.3)),
    "masked_select": unary(lambda x: paddle.masked_select(x, x > 0)),
    "topk": unary(lambda x: paddle.topk(x, 3)[0]),
    "sort": unary(paddle.sort),
    "segment_sum": unary(
        lambda x: paddle.geometric.segment_sum(x, paddle.to_tensor([0, 0, 1, 1, 1, 2]))
    ),
    "segment_max": unary(
        lambda x: paddle.geometric.segment_max(x, paddle.to_tensor([0, 0, 1, 1, 1, 2]))
    ),
    # shapes
    "flatten": unary(paddle.flatten, BATCH),
    "squeeze": unary(paddle.squeeze, MATRIX[:1]),
    "unsqueeze": unary(lambda x: paddle.unsqueeze(x, 0)),
    "stack": binary(lambda x, y: paddle.stack([x, y])),
    "split": unary(lambda x: paddle.split(x, 2)[1]),
    "unbind": unary(lambda x: paddle.unbind(x)[1]),
    "flip": unary(lambda x: paddle.flip(x, 0)),
    "roll": unary(lambda x: paddle.roll(x, 1, 0)),
    "tile": unary(lambda x: paddle.tile(x, [2, 1])),
    "broadcast_to": unary(lambda x: paddle.broadcast_to(x, [2, 6, 8])),
    "pad": unary(lambda x: F.pad(x, [1, 1, 1, 1]), IMAGE),
    "reflection_pad": unary(lambda x: F.pad(x, [1, 1, 1, 1], mode="reflect"), IMAGE),
    "replication_pad": unary(lambda x: F.pad(x, [1, 1, 1, 1], mode="replicate"), IMAGE),
    "slice": unary(lambda x: x[1:4, ::2]),
    "tril": unary(paddle.tril, SQUARE),
    "triu": unary(paddle.triu, SQUARE),
    "diag": unary(paddle.diag, VECTOR),
    "identity": unary(paddle.assign),
    "dropout": unary(lambda x: F.dropout(x, 0.5)),
    # gradients that come from several ops
    "used twice": binary(lambda x, w: _twice(paddle.matmul(x, w)), MATRIX, SQUARE),
    "used three times": binary(lambda x, w: _three_times(paddle.matmul(x, w)), MATRIX, SQUARE),
}


def _twice(x: paddle.Tensor) -> paddle.Tensor:
    return F.gelu(x) + paddle.tanh(x)


def _three_times(x: paddle.Tensor) -> paddle.Tensor:
    return F.gelu(x) + paddle.tanh(x) * F.sigmoid(x)


CASES: dict[str, Case] = {
    **{name: Case(case.run, case.inputs) for name, case in COMMON.items()},
    **FUNCTIONS,
}
