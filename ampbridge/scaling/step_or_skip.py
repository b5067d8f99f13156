"""The decision to skip a step whose gradients overflowed, for every backend and for every loop."""

from __future__ import annotations

from collections.abc import Sequence

from ampbridge.adapters.backend import FINITE, Array, Backend, Optimizer, RaisedAfterStep, Scalar


def step_or_skip(
    backend: Backend,
    optimizer: Optimizer,
    parameters: Sequence[Array],
    grads: Sequence[Array],
    overflow: Scalar | None,
) -> tuple[Scalar, Exception | None]:
    """Step ``optimizer`` with the gradients of ``parameters``, unless ``overflow`` is INF or NAN.

    A skipped step changes no parameter, no slot and no counter of the optimizer. What is still on a
    device is not read here: there the backend decides.

    Args:
        overflow: None for gradients that nobody checked.

    Returns:
        Whether the optimizer was stepped, as a native scalar; and what was raised after the update.
    """
    try:
        if overflow is None or isinstance(overflow, int):
            applied: Scalar = overflow is None or overflow == FINITE
            if applied:
                backend.step(optimizer, parameters, grads)
        else:
            applied = backend.step_unless(optimizer, parameters, grads, overflow)
    except RaisedAfterStep as after:
        return overflow is None or overflow == FINITE, after.error
    return applied, None
