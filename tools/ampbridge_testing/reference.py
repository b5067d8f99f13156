"""Expected values, from float64 NumPy and plain Python. Nothing here knows a framework."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ampbridge.adapters.backend import FINITE, NAN
from ampbridge.scaling.scale_rule import ScalerConfig, ScaleState
from ampbridge_testing.harness import NumpyArray

LOW_DTYPES = ("float16", "bfloat16")
MOMENTUM = 0.9
LARGEST_FLOAT16 = 65504.0
NORMALIZATION_EPSILON = 1e-5

_ROUNDED = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}

# bfloat16 loses the first, float16 the second, float32 neither.
PROBE = np.array([1 + 2.0**-9, 1 + 2.0**-12])
# The same for exp: both are exact in every dtype, their exponentials are rounded apart.
EXP_PROBE = np.array([2.0**-9, 2.0**-12])


def rounded(x: npt.ArrayLike, dtype: str) -> NumpyArray:
    """``x`` rounded to nearest even in ``dtype``, as float64."""
    return np.asarray(x, np.float64).astype(_ROUNDED[dtype]).astype(np.float64)


def dtype_shown(result: npt.ArrayLike, exact: npt.ArrayLike) -> str:
    """The dtype in which ``exact`` must have been computed for ``result`` to come out.

    Tells by the values, so that it holds for simulated precision as well; "none" if no dtype does.
    """
    values = np.asarray(result, np.float64).reshape(-1)
    for dtype in _ROUNDED:
        if np.allclose(values, rounded(exact, dtype).reshape(-1), rtol=2.0**-20, atol=0.0):
            return dtype
    return "none"


class Example(NamedTuple):
    """A perceptron and a batch, all float32."""

    weights: list[NumpyArray]
    x: NumpyArray
    target: NumpyArray


def example() -> Example:
    """A small problem. All residuals have one sign: an infinite factor makes +inf, not only NaN."""
    rng = np.random.default_rng(0)
    shapes = ((6, 10), (10,), (10, 3), (3,))
    weights = [rng.normal(0.0, 0.3, shape).astype(np.float32) for shape in shapes]
    x = rng.normal(0.0, 1.0, (8, 6)).astype(np.float32)
    target = rng.normal(-8.0, 0.5, (8, 3)).astype(np.float32)
    return Example(weights, x, target)


def perceptron(
    weights: Sequence[NumpyArray],
    x: NumpyArray,
    normalization: Sequence[NumpyArray] | None = None,
) -> NumpyArray:
    """``relu(norm(x @ w1 + b1)) @ w2 + b2`` in float64, without ``norm`` if there is none."""
    w1, b1, w2, b2 = (np.asarray(w, np.float64) for w in weights)
    before = np.asarray(x, np.float64) @ w1 + b1
    if normalization is not None:
        scale, shift = (np.asarray(w, np.float64) for w in normalization)
        centred = before - before.mean(-1, keepdims=True)
        deviation = np.sqrt(np.square(centred).mean(-1, keepdims=True) + NORMALIZATION_EPSILON)
        before = centred / deviation * scale + shift
    return np.maximum(before, 0.0) @ w2 + b2


class Reference(NamedTuple):
    """Loss and gradients of the mean squared error, in float64.

    ``largest`` is the largest magnitude that a product or a sum of the backward pass has.
    """

    loss: float
    gradients: list[NumpyArray]
    largest: float


def reference(weights: Sequence[NumpyArray], x: NumpyArray, target: NumpyArray) -> Reference:
    """The closed form for ``relu(x @ w1 + b1) @ w2 + b2``."""
    w1, b1, w2, b2 = (np.asarray(w, np.float64) for w in weights)
    x, target = x.astype(np.float64), target.astype(np.float64)
    before = x @ w1 + b1
    hidden = np.maximum(before, 0.0)
    residual = hidden @ w2 + b2 - target
    of_output = 2.0 * residual / residual.size
    of_hidden = of_output @ w2.T
    of_before = of_hidden * (before > 0)
    gradients = [x.T @ of_before, of_before.sum(0), hidden.T @ of_output, of_output.sum(0)]
    largest = max(float(np.abs(a).max()) for a in (of_output, of_hidden, *gradients))
    return Reference(float(np.mean(residual**2)), gradients, largest)


EXACT = reference(*example())
"""Of the example."""


def joint_norm(arrays: Iterable[NumpyArray]) -> float:
    """The 2-norm of all elements together."""
    return float(np.sqrt(sum(float(np.sum(np.square(a, dtype=np.float64))) for a in arrays)))


def relative_error(actual: Sequence[NumpyArray], expected: Sequence[NumpyArray]) -> float:
    """The norm of the difference over the norm of what is expected, all arrays together."""
    pairs = zip(actual, expected, strict=True)
    difference = joint_norm(np.asarray(a, np.float64) - np.asarray(e, np.float64) for a, e in pairs)
    return difference / joint_norm(expected)


def momentum_steps(
    weights: Sequence[NumpyArray], gradients: Iterable[Sequence[NumpyArray]], rate: float
) -> list[NumpyArray]:
    """The weights after one step of SGD with momentum for each of ``gradients``."""
    values = [np.asarray(w, np.float64) for w in weights]
    velocity = [np.zeros_like(v) for v in values]
    for step in gradients:
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, step, strict=True)]
        values = [w - rate * v for w, v in zip(values, velocity, strict=True)]
    return values


def scale_history(
    state: ScaleState, kinds: Iterable[int], config: ScalerConfig
) -> list[ScaleState]:
    """The scaler's state after steps that were found FINITE, INF or NAN, as the rule is told in words.

    Written apart from ``ampbridge.scaling.scale_rule``, with ifs, to be compared with it.
    """
    scale, good, bad, skips, nans, skip_warnings, nan_warnings, stuck, floor = state
    history = []
    for found in kinds:
        overflow = found != FINITE
        skips = skips + 1 if overflow else 0
        nans = nans + 1 if found == NAN else 0
        if config.warn_after_skips is not None:
            skip_warnings += skips == config.warn_after_skips
            nan_warnings += nans == 8
        if config.max_consecutive_skips is not None:
            stuck += skips >= config.max_consecutive_skips
        if config.dynamic and overflow:
            if config.at_min_scale == "raise" and scale == config.min_scale:
                floor += bad + 1 >= config.backoff_interval
            bad, good = bad + 1, -config.growth_delay
            if bad == config.backoff_interval:
                scale = max(scale * config.backoff_factor, config.min_scale)
                bad = 0 if config.backoff_count == "consecutive" else bad - 1
        elif config.dynamic:
            good += 1
            if config.backoff_count != "until_growth":
                bad = 0
            if good == config.growth_interval:
                good = bad = 0
                if scale * config.growth_factor <= config.max_scale:
                    scale *= config.growth_factor
                elif config.at_max_scale == "clamp":
                    scale = config.max_scale
        scale = float(np.float32(scale))
        alarms = skip_warnings, nan_warnings, stuck, floor
        history.append(ScaleState(scale, good, bad, skips, nans, *alarms))
    return history
