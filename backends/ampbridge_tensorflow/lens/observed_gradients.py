"""Gradients as they pass an op on their way back, without another op in their way.

An identity around an op would show them too, but also change in which order TensorFlow adds up what
several ops contribute to one gradient, and with it the last bits. So the entry that a tape has made of
an op is made once more, with a backward function that tells what comes and does what the first did.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from ampbridge_tensorflow import _private
from ampbridge_tensorflow.step.gradients import recorded

Arrived = Sequence[tuple[tf.Tensor, Any]]
"""Outputs of an op, each with its gradient: a tensor or IndexedSlices."""


class Recorded(NamedTuple):
    """An op of TensorFlow's own on a tape that has seen nothing else.

    Attributes:
        inputs: those that may have a gradient.
        apart: the same as the tape knows them: each another tensor, where an op has one twice.
    """

    op: str
    inputs: Sequence[tf.Tensor]
    apart: Sequence[tf.Tensor]
    outputs: Sequence[tf.Tensor]
    tape: tf.GradientTape


def new_tape() -> tf.GradientTape:
    """A tape that records what it is told to watch; its gradients may be taken again."""
    return tf.GradientTape(persistent=True, watch_accessed_variables=False)


def recorded_on_a_tape(
    op: str, run: Callable[..., Any], arguments: Sequence[Any]
) -> tuple[Any, Recorded]:
    """The outputs of ``run(*arguments)``, and what a backward pass needs to know of it."""
    inputs: list[tf.Tensor] = []
    apart: list[tf.Tensor] = []

    def told_apart(x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return [told_apart(item) for item in x]
        may_have_a_gradient = isinstance(x, tf.Tensor) and (
            x.dtype.is_floating or x.dtype.is_complex or x.dtype == tf.resource
        )
        if not may_have_a_gradient:
            return x
        again = any(x is earlier for earlier in inputs)
        inputs.append(x)
        apart.append(tf.identity(x) if again else x)
        return apart[-1]

    given = [told_apart(x) for x in arguments]
    tape = new_tape()

    def compute() -> Any:
        tape.watch(apart)
        return run(*given)

    result = recorded(tape, compute)
    outputs = [x for x in tf.nest.flatten(result) if isinstance(x, tf.Tensor)]
    return result, Recorded(op, inputs, apart, outputs, tape)


def report_arrivals(
    recorded: Iterable[Recorded], outputs: Container[int], report: Callable[[Arrived], None]
) -> None:
    """Have each op that made one of ``outputs`` (ids) report the gradients that reach them."""

    def backward(op: Recorded, *gradients: Any) -> Sequence[Any]:
        come = [(o, g) for o, g in zip(op.outputs, gradients, strict=True) if g is not None]
        arrived = [(o, g) for o, g in come if id(o) in outputs]
        if arrived:
            report(arrived)
        return gradients_on(op.tape, come, op.apart)

    record = _private.value(_private.RECORD_OPERATION)
    for op in recorded:
        if any(id(output) in outputs for output in op.outputs):
            record(op.op, list(op.outputs), list(op.inputs), partial(backward, op))


def gradients_on(
    tape: tf.GradientTape, arrived: Arrived, sources: Sequence[tf.Tensor]
) -> Sequence[Any]:
    """The gradients of ``sources``, from those that ``arrived``; IndexedSlices stay what they are."""
    if not arrived:
        return [None] * len(sources)
    targets, gradients = map(list, zip(*arrived, strict=True))
    found: Sequence[Any] = _private.gradients_on(tape, targets, list(sources), gradients)
    return found
