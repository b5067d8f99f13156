"""The arrays of a pass, each with a key that finds the same array in another pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy.typing as npt

from ampbridge.adapters.backend import Backend
from ampbridge.adapters.observation import OpCall, Operand
from ampbridge.policies.policy import LOW_DTYPES
from ampbridge_lens.closeness import rounded

NumpyArray = npt.NDArray[Any]
Side = Literal["input", "output", "arrived", "left"]


class Key(NamedTuple):
    """Identifies an array in every pass: the n-th call of an op in a layer, and which of its arrays."""

    op: str
    layer: str
    occurrence: int
    side: Side
    place: int

    @property
    def is_gradient(self) -> bool:
        return self.side in ("arrived", "left")


class OpArray(NamedTuple):
    """One array of an op, as it was handed to the op or came from it; it may change after the call."""

    key: Key
    call: OpCall
    operand: Operand
    backend: Backend

    @property
    def is_cast_down(self) -> bool:
        """Whether it is an input that the policy casts to the low precision in which the op runs."""
        low, dtype = self.call.dtype, self.operand.dtype
        return self.key.side == "input" and low in LOW_DTYPES and dtype != low

    def on_host(self) -> NumpyArray:
        return self.backend.to_numpy(self.operand.values)

    def as_cast(self, values: NumpyArray) -> NumpyArray:
        """The values on the host; of an input, as the op casts them."""
        return rounded(values, self.call.dtype) if self.is_cast_down else values


class ArrayObserver:
    """An observer that calls ``see`` with every array of a pass, in order."""

    def __init__(self, backend: Backend, see: Callable[[OpArray], None]) -> None:
        self.calls: dict[int, tuple[OpCall, int]] = {}
        """By number: the call and its occurrence."""
        self._backend, self._see = backend, see
        self._counts: Counter[tuple[str, str]] = Counter()

    def op_ran(self, call: OpCall, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> None:
        self.calls[call.number] = call, self._counts[call.op, call.layer]
        self._counts[call.op, call.layer] += 1
        for place, each in enumerate(inputs):
            self._show(call, "input", place, each)
        for place, each in enumerate(outputs):
            self._show(call, "output", place, each)

    def gradient_arrived(self, call: OpCall, output: int, gradient: Operand) -> None:
        self._show(call, "arrived", output, gradient)

    def gradient_left(self, call: OpCall, input: int, gradient: Operand) -> None:
        self._show(call, "left", input, gradient)

    def _show(self, call: OpCall, side: Side, place: int, operand: Operand) -> None:
        key = Key(call.op, call.layer, self.calls[call.number][1], side, place)
        self._see(OpArray(key, call, operand, self._backend))
