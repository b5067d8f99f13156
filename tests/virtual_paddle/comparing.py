"""One call on the CPU, simulated, and on a device: dtype, values and gradients of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import paddle
from op_cases import CASES, Case
from shares import Share

import ampbridge as amp
from ampbridge_paddle.autocast import simulation

Region = Callable[[], AbstractContextManager[None]]


class Outcome(NamedTuple):
    dtype: str
    output: np.ndarray
    gradients: list[np.ndarray | None]


def outcome(case: Case, region: Region, device: str, low: str | None, *, seed: int = 0) -> Outcome:
    """Of ``case`` on ``device`` within ``region()``, its inputs float32 or in ``low``."""
    paddle.set_device(device)
    paddle.seed(seed)
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


class Findings(NamedTuple):
    """What the cases came to in one dtype: case -> how it differs, and the elements that are equal."""

    calls: int
    differing: Mapping[str, frozenset[str]]
    values: Mapping[str, Share]
    gradients: Mapping[str, Share]
    random: frozenset[str]
    """Cases that draw numbers, which were left out as a real device draws others."""


def findings(device: str, dtype: Any, chosen: frozenset[str] | None = None) -> Findings:
    """All cases at O1 under Paddle's lists, beside ``paddle.amp.auto_cast`` on ``device``."""
    cases = {name: case for name, case in CASES.items() if chosen is None or name in chosen}
    real = device != "virtual_gpu"
    random = frozenset(name for name, case in cases.items() if real and _draws(case))
    found = {
        name: _compared(case, device, dtype) for name, case in cases.items() if name not in random
    }
    return Findings(
        2 * len(found),
        {name: kinds for name, (kinds, _, _) in found.items()},
        {name: values for name, (_, values, _) in found.items()},
        {name: gradients for name, (_, _, gradients) in found.items()},
        random,
    )


def _draws(case: Case) -> bool:
    first, second = (outcome(case, nullcontext, "cpu", None, seed=seed) for seed in (1, 2))
    return not _same(first.output, second.output)


def _compared(case: Case, device: str, dtype: Any) -> tuple[frozenset[str], Share, Share]:
    """How the case differs, of inputs in float32 and in ``dtype``."""
    policy = amp.Policy("O1", dtype, lists="paddle", execution="simulated")
    kinds, values, gradients = set(), Share(), Share()
    for low in (None, dtype):
        ours = outcome(case, lambda: amp.autocast(policy, "paddle"), "cpu", low)
        try:
            native = lambda: paddle.amp.auto_cast(level="O1", dtype=dtype)  # noqa: E731
            theirs = outcome(case, native, device, low)
        except (AssertionError, ValueError, TypeError, RuntimeError, NotImplementedError):
            kinds.add("refused")
            continue
        if ours.dtype != theirs.dtype:
            kinds.add("dtype")
        elif not _same(ours.output, theirs.output):
            kinds.add("value")
        if not all(map(_same, ours.gradients, theirs.gradients)):
            kinds.add("gradient")
        values = values.plus(_share(ours.output, theirs.output, ours.dtype == theirs.dtype))
        for one, other in zip(ours.gradients, theirs.gradients, strict=True):
            gradients = gradients.plus(_share(one, other))
    return frozenset(kinds), values, gradients


def _share(one: np.ndarray | None, other: np.ndarray | None, comparable: bool = True) -> Share:
    """Of the elements of ``other``: which are those of ``one``."""
    if other is None:
        return Share()
    if one is None or not comparable or one.shape != other.shape:
        return Share(0, other.size)
    return Share(int(((one == other) | (np.isnan(one) & np.isnan(other))).sum()), other.size)
