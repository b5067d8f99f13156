"""Unscale, clip, step: what happens to gradients before they change parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ampbridge.adapters.backend import FINITE, INF, NAN, Array, Optimizer, Scalar
from ampbridge.adapters.interrupts import LAST_OF_SEVERAL
from ampbridge_numpy.autocast.casting import outside_of_regions
from ampbridge_numpy.step.gradients import parameters as parameters_of


def unscale(grads: Sequence[Array], scale: Scalar) -> tuple[list[Array], int]:
    """See ``Backend.unscale``. New arrays: two gradients may be one array (those of ``a + b``)."""
    if scale is None:
        unscaled = list(grads)
    else:
        inverse = np.float32(1.0 / float(scale))
        unscaled = [g if g is None else _wide(g) * inverse for g in grads]
    not_finite = [g for g in unscaled if g is not None and not np.isfinite(g).all()]
    if not not_finite:
        return unscaled, FINITE
    return unscaled, INF if any(np.isinf(g).any() for g in not_finite) else NAN


def _wide(grad: Array) -> Array:
    return grad if grad.dtype == np.float64 else grad.astype(np.float32, copy=False)


def clip(grads: Sequence[Array], max_norm: float) -> tuple[list[Array], float]:
    """See ``Backend.clip``. The factor is torch's, ``max_norm / (norm + 1e-6)``, at most 1."""
    squares = (np.square(g, dtype=np.float64).sum() for g in grads if g is not None)
    norm = float(np.sqrt(sum(squares)))
    if norm <= max_norm:
        return list(grads), norm
    factor = np.float32(max_norm / (norm + 1e-6))
    # Gradients that overflowed: the step will be skipped.
    with np.errstate(invalid="ignore"), LAST_OF_SEVERAL:
        return [g if g is None else g * factor for g in grads], norm


def clip_values(grads: Sequence[Array], limit: float) -> list[Array]:
    """See ``Backend.clip_values``."""
    return [g if g is None else g.clip(-limit, limit) for g in grads]


def step(optimizer: Optimizer, parameters: Sequence[Array], grads: Sequence[Array]) -> None:
    """See ``Backend.step``. A gradient goes to the parameter it was taken for, in any order."""
    by_parameter = {id(p): g for p, g in zip(parameters, grads, strict=True)}
    with outside_of_regions():
        optimizer.step([by_parameter.get(id(p)) for p in parameters_of(optimizer)])
