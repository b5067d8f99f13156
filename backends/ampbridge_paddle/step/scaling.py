"""Unscale, clip, apply, and where the scaler's state lives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import paddle

from ampbridge.adapters.backend import FINITE, INF, NAN, worst_on_host
from ampbridge.scaling.scale_rule import ScaleState
from ampbridge_paddle._private import private
from ampbridge_paddle.autocast.dtypes import FLOAT32, FLOAT64, is_float32
from ampbridge_paddle.model.native_o2 import stepping_low
from ampbridge_paddle.step import hybrid_groups, ranks
from ampbridge_paddle.step.gradients import parameters as parameters_of
from ampbridge_paddle.step.gradients import replaced_grad
from ampbridge_paddle.step.sparse_gradients import dense_values, merged

Tensor = Any


@paddle.no_grad()
def unscale(grads: Sequence[Tensor], scale: float | None) -> tuple[list[Tensor], int]:
    """Divide by ``scale`` in place, and look for inf and NaN. Reads from the device.

    float64 gradients are divided by a float64 scale, 16-bit ones taken to float32 first. Of sparse
    gradients the rows that exist are checked and divided.
    """
    wide = (FLOAT32, FLOAT64)
    unscaled = [g if g is None or g.dtype in wide else g.astype("float32") for g in grads]
    values = [dense_values(g) for g in unscaled if g is not None]
    single, double = ([v for v in values if is_float32(v) is held] for held in (True, False))
    return unscaled, worst_on_host([_check_and_divide(g, scale) for g in (single, double) if g])


def unscale_for(
    optimizer: Any, grads: Sequence[Tensor], scale: float | None
) -> tuple[list[Tensor], int]:
    """``unscale``, with the overflow that the ranks agree on."""
    unscaled, overflow = unscale(grads, scale)
    return unscaled, ranks.agree(overflow, optimizer)


def _check_and_divide(values: list[Tensor], scale: float | None) -> int:
    """Look, then divide: Paddle's kernel that does both clobbers what it finds.

    On CPU it turns inf into NaN and sets later gradients to 0, so that afterwards nobody can tell
    what it was. The look is one fast reduction; only if that is not finite does the exact one follow.
    """
    overflow = _look(values)
    if overflow != FINITE or scale is None:
        return overflow
    _divide(values, scale)
    # What was finite may not stay so: a scale under 1 makes it larger.
    return _look(values) if scale < 1.0 else FINITE


def _divide(values: list[Tensor], scale: float) -> None:
    """Divide in place. On a GPU one kernel divides all, which takes four times as long on a CPU."""
    place = values[0].place
    if not place.is_cpu_place():
        # On the device: nothing is copied there. (paddle.to_tensor does, and leaks a list.)
        factor = private("paddle._C_ops.full")([1], scale, values[0].dtype, place)
        private("paddle._C_ops.check_finite_and_unscale_")(values, factor)
        return
    scale_in_place = private("paddle._C_ops.scale_")
    for value in values:
        scale_in_place(value, 1.0 / scale, -0.0, True)  # adding -0.0 keeps the sign of zeros


def _look(values: list[Tensor]) -> int:
    """Look at the sum of squares first. It is not finite if a value is not, or if it overflows by itself."""
    is_finite = math.isfinite(paddle.add_n(_squares(values)).item())
    return FINITE if is_finite else _classify(values)


def _squares(values: Sequence[Tensor]) -> list[Tensor]:
    return [*map(private("paddle._C_ops.squared_l2_norm"), values)]


def _classify(values: Sequence[Tensor]) -> int:
    """Look at every value, and read from the device once."""
    has_inf, has_nan = (
        paddle.stack([test(value).any() for value in values]).any()
        for test in (paddle.isinf, paddle.isnan)
    )
    inf, nan = paddle.stack([has_inf, has_nan]).tolist()
    return INF if inf else NAN if nan else FINITE


@paddle.no_grad()
def clip(grads: Sequence[Tensor], max_norm: float) -> tuple[list[Tensor], Tensor]:
    """Scale ``grads`` to a joint 2-norm of at most ``max_norm``; the norm before, float32.

    The factor is torch's, ``max_norm / (norm + 1e-6)``, at most 1. Rows that a sparse gradient
    holds several times count by their sum.

    Raises:
        UnsupportedError: in a hybrid group, whose ranks have yet to put their gradients together.
    """
    hybrid_groups.check_clipping()
    whole = [merged(g) for g in grads]
    present = [dense_values(g) for g in whole if g is not None]
    if not present:
        return list(grads), paddle.zeros([])
    total = sum(square.astype("float64").sum() for square in _squares(present))
    norm = paddle.sqrt(total)
    factor = paddle.clip(max_norm / (norm + 1e-6), max=1.0)
    for value in present:
        value.multiply_(factor.astype(value.dtype))
    return whole, norm.astype("float32")


@paddle.no_grad()
def clip_values(grads: Sequence[Tensor], limit: float) -> list[Tensor]:
    """``grads`` with each number between ``-limit`` and ``limit``, in place, as for ``clip``.

    Raises: as ``clip``.
    """
    hybrid_groups.check_clipping()
    whole = [merged(g) for g in grads]
    for grad in whole:
        if grad is not None:
            dense_values(grad).clip_(-limit, limit)
    return whole


def step(optimizer: Any, parameters: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """Step ``optimizer`` with ``grads``; ``.grad`` is set for the step alone."""
    given = {id(p): g for p, g in zip(parameters, grads, strict=True)}
    own = parameters_of(optimizer)
    with replaced_grad(own, [given.get(id(p)) for p in own]), stepping_low(optimizer, own):
        optimizer.step()


def scale_store(state: ScaleState, like: Any) -> None:
    """Keep the state on the host, where each rank decides whether to step by what all have found.

    Raises:
        UnsupportedError: for a model in an engine that steps by itself.
    """
    del state
    hybrid_groups.check_model(like)
