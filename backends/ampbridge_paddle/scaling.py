"""Unscale, clip, apply, and where the scaler's state lives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import paddle

from ampbridge.backend import FINITE, INF, NAN
from ampbridge.errors import UnsupportedError
from ampbridge.scale_rule import HostStore, ScaleState
from ampbridge_paddle._private import private
from ampbridge_paddle.gradients import parameters as parameters_of
from ampbridge_paddle.gradients import replaced_grad
from ampbridge_paddle.native_o2 import gradient_for
from ampbridge_paddle.sparse_gradients import dense_values, merged

Tensor = Any


@paddle.no_grad()
def unscale(grads: Sequence[Tensor], scale: float | None) -> tuple[list[Tensor], int]:
    """Divide by ``scale`` in place, and look for inf and NaN. Reads from the device.

    float64 gradients are divided by a float64 scale, 16-bit ones taken to float32 first. Of sparse
    gradients the rows that exist are checked and divided.
    """
    unscaled = [_at_least_float32(g) for g in grads]
    values = [dense_values(g) for g in unscaled if g is not None]
    found = FINITE
    for dtype in {v.dtype for v in values}:
        group = [v for v in values if v.dtype == dtype]
        found = _worse(found, _check_and_divide(group, scale, dtype))
    return unscaled, found


def _at_least_float32(grad: Tensor | None) -> Tensor | None:
    if grad is None or grad.dtype in (paddle.float32, paddle.float64):
        return grad
    return grad.astype("float32")


def _worse(one: int, other: int) -> int:
    """INF before NAN before FINITE."""
    return INF if INF in (one, other) else max(one, other)


def _check_and_divide(values: list[Tensor], scale: float | None, dtype: Any) -> int:
    """Paddle's fused kernel, with a look at the gradients before it clobbers them.

    On CPU the kernel turns inf into NaN and sets later gradients to 0, so that afterwards nobody
    can tell what it was. The look is one fast reduction; only if that is not finite does the
    exact one follow.
    """
    found = _look(values)
    if found != FINITE or scale is None:
        return found
    factor = paddle.to_tensor([scale], dtype=dtype, place=values[0].place)
    private("paddle._C_ops.check_finite_and_unscale_")(values, factor)
    # It looks at what it divides, not at the result, which a scale under 1 makes larger.
    return _look(values) if scale < 1.0 else FINITE


def _look(values: list[Tensor]) -> int:
    return FINITE if math.isfinite(_sum_of_squares(values)) else _classify(values)


def _sum_of_squares(values: Sequence[Tensor]) -> float:
    """Not finite if any value is not; may also overflow by itself."""
    return float(_squares(values).numpy().sum())


def _squares(values: Sequence[Tensor]) -> Tensor:
    """The squared 2-norm of each, as one tensor."""
    squared_norm = private("paddle._C_ops.squared_l2_norm")
    return paddle.concat([squared_norm(value).reshape([1]) for value in values])


def _classify(values: Sequence[Tensor]) -> int:
    if any(bool(paddle.isinf(v).any().item()) for v in values):
        return INF
    return NAN if any(bool(paddle.isnan(v).any().item()) for v in values) else FINITE


@paddle.no_grad()
def clip(grads: Sequence[Tensor], max_norm: float) -> tuple[list[Tensor], Tensor]:
    """Scale ``grads`` to a joint 2-norm of at most ``max_norm``; the norm before, float32.

    The factor is torch's, ``max_norm / (norm + 1e-6)``, at most 1. Rows that a sparse gradient
    holds several times count by their sum.
    """
    whole = [merged(g) for g in grads]
    present = [dense_values(g) for g in whole if g is not None]
    if not present:
        return list(grads), paddle.zeros([])
    total = sum(_squares([v]).astype("float64").sum() for v in present)
    norm = paddle.sqrt(total)
    factor = paddle.clip(max_norm / (norm + 1e-6), max=1.0)
    for value in present:
        value.multiply_(factor.astype(value.dtype))
    return whole, norm.astype("float32")


def apply(
    optimizer: Any, parameters: Sequence[Tensor], grads: Sequence[Tensor], found: int | None
) -> bool:
    """Step ``optimizer`` on ``grads`` unless ``found`` says otherwise; whether it was stepped.

    A skipped step does not reach the optimizer, so nothing of it can change. ``.grad`` is set for
    the step alone.
    """
    if found is not None and int(found) != FINITE:
        return False
    pairs = zip(parameters, grads, strict=True)
    given = {id(p): gradient_for(optimizer, p, g) for p, g in pairs}
    own = parameters_of(optimizer)
    with replaced_grad(own, [given.get(id(p)) for p in own]):
        optimizer.step()
    return True


def scale_store(state: ScaleState) -> HostStore:
    """On the host: whether to step is decided there, on each rank.

    Raises:
        UnsupportedError: where ranks have gradients of their own, by which they would decide apart.
    """
    _check_that_ranks_decide_alike()
    return HostStore(state)


def _check_that_ranks_decide_alike() -> None:
    """Data parallel ranks have the same gradients; fleet's others have each its own part of them."""
    try:
        groups = paddle.distributed.fleet.get_hybrid_communicate_group()
    except (AttributeError, AssertionError):  # fleet.init() has not been called
        return
    modes = paddle.distributed.ParallelMode
    names = {value: name for name, value in vars(modes).items() if isinstance(value, int)}
    mode = names.get(groups.get_parallel_mode(), "DATA_PARALLEL")  # None on a single rank
    if mode != "DATA_PARALLEL":
        msg = (
            f"fleet was initialized for {mode}, whose ranks hold different gradients; ampbridge has "
            "them not agree yet on whether to skip a step.\n"
            "Hint: paddle.DataParallel(model), or fleet.distributed_scaler of Paddle's own scaler."
        )
        raise UnsupportedError(msg)
