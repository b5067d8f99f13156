"""What an adapter reports of a forward and a backward pass, op by op: the eyes of ``ampbridge_lens``.

An op is reported once, however many kernels it is made of, with what was handed to it (before any
cast of the region's) and what it returned. Its gradients are reported as they arrive at its outputs
and as they leave from its inputs, so that whoever sees a finite gradient arrive and an infinite one
leave knows which op made it.

    forward     op_ran(call 0) ... op_ran(call n)
    backward    gradient_arrived(call n, 0), gradient_left(call n, 0), gradient_left(call n, 1), ...

Ops that only move, make or convert values are not reported, unless the op table has a rule for them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class Kernel(NamedTuple):
    """What reached the framework below the casts: its own name, and the dtype of its first
    floating-point input."""

    name: str
    dtype: str


class OpCall(NamedTuple):
    """One call of an op.

    Attributes:
        number: its place in the forward pass, from 0; what tells two calls apart.
        op: the canonical name or, where the op table has none, the framework's own with its prefix:
            ``"softmax"``, ``"torch:cdist"``.
        layer: the dotted name of the innermost layer that called it; empty for the model itself and
            for what ran outside of it.
        dtype: in which it computed, "float16", "bfloat16", "float32" or "float64"; where low precision
            is simulated, the one that is simulated.
        kernels: what it was made of. Under simulation they show the storage's dtype.
        seconds: how long it took on a device that computes while the caller waits; else None.
    """

    number: int
    op: str
    layer: str
    dtype: str
    kernels: tuple[Kernel, ...]
    seconds: float | None


class Operand(NamedTuple):
    """A floating-point array that was seen, native, without its history.

    ``dtype`` is the one that it is in, or is meant to be in where low precision is simulated.
    """

    values: Any
    dtype: str


class Observer(Protocol):
    """Who is told. It must not change what it is shown, and keeps no array beyond the call."""

    @abstractmethod
    def op_ran(self, call: OpCall, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> None:
        """An op has run. ``inputs`` and ``outputs`` are its floating-point arrays, in its own order."""

    @abstractmethod
    def gradient_arrived(self, call: OpCall, output: int, gradient: Operand) -> None:
        """The whole gradient of ``outputs[output]``, as the op's backward pass begins with it."""

    @abstractmethod
    def gradient_left(self, call: OpCall, input: int, gradient: Operand) -> None:
        """What this op alone adds to the gradient of ``inputs[input]``, cast to that one's dtype."""
