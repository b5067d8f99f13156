"""One call on the CPU, simulated, and on the device: dtype, values and gradients of each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import paddle
from op_cases import Case

from ampbridge_paddle import simulation

Region = Callable[[], AbstractContextManager[None]]


class Outcome(NamedTuple):
    dtype: str
    output: np.ndarray
    gradients: list[np.ndarray | None]


def outcome(case: Case, region: Region, device: str, low: str | None) -> Outcome:
    """Of ``case`` on ``device`` within ``region()``, its inputs float32 or in ``low``."""
    paddle.set_device(device)
    paddle.seed(0)
    layers = () if case.layer is None else (case.layer(),)
    inputs = [paddle.to_tensor(np.ascontiguousarray(x), stop_gradient=False) for x in case.inputs]
    with region():
        given = inputs if low is None else [x.astype(low) for x in inputs]
        output = case.run(*layers, *given)
        output = output[0] if isinstance(output, (tuple, list)) else output
        dtype = simulation.low_dtype(output) or str(output.dtype).removeprefix("paddle.")
        wide = output.astype("float32")
    wanted = [*inputs, *(parameter for layer in layers for parameter in layer.parameters())]
    gradients = [None] * len(wanted)
    if not wide.stop_gradient:
        # Of each element another one, which 16 bits hold.
        weights = (np.arange(wide.size) % 7 + 1).reshape(wide.shape).astype(np.float32) / 4
        found = paddle.grad([wide], wanted, [paddle.to_tensor(weights)], allow_unused=True)
        gradients = [None if g is None else g.numpy() for g in found]
    return Outcome(dtype, wide.numpy(), gradients)


def difference(simulated: Outcome, native: Outcome) -> str | None:
    """What differs, the first of dtype, values, gradients; None if nothing does, to the bit."""
    if simulated.dtype != native.dtype:
        return f"{simulated.dtype}, natively {native.dtype}"
    if not _same(simulated.output, native.output):
        return "values"
    pairs = zip(simulated.gradients, native.gradients, strict=True)
    return None if all(_same(ours, theirs) for ours, theirs in pairs) else "gradients"


def _same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other, equal_nan=True)
