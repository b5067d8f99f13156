"""Checks of arguments, and their messages, which are the same for every framework."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

from ampbridge.adapters.tracing import constant_result
from ampbridge.errors import ArgumentError, ArgumentTypeError, listed, slips
from ampbridge.errors.slips import meant

Name = TypeVar("Name", bound=str)


def one_of(what: str, value: object, allowed: Sequence[Name]) -> Name:
    """``value``, if it is one of the ``allowed`` names.

    Raises:
        ArgumentError: if not.
    """
    for name in allowed:
        if value == name:
            return name
    found = meant(value, allowed, slips.OPTIMIZERS)
    msg = f"Passed {what}={value!r:.80}; allowed are {listed(allowed)}.\n"
    raise ArgumentError(
        f"{msg}Hint: {'help(amp.neutral)' if found is None else f'{what}={found!r}'}"
    )


def whole(what: str, value: object, least: int, example: int) -> int:
    """``value`` as an int of at least ``least``.

    Raises:
        ArgumentError: for anything else.
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least:
        return int(value)
    msg = f"Passed {what}={value!r:.80}; allowed is a whole number from {least}.\n"
    raise ArgumentError(msg + f"Hint: {what}={example}")


def number(what: str, value: object, example: float, below: float = math.inf) -> float:
    """``value`` as a float from 0, finite and smaller than ``below``.

    Raises:
        ArgumentError: for anything else.
    """
    if isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < below:
        return float(value)
    allowed = "a finite number from 0" if below == math.inf else f"a number in [0, {below:g})"
    msg = f"Passed {what}={value!r:.80}; allowed is {allowed}.\n"
    raise ArgumentError(msg + f"Hint: {what}={example:g}")


def sizes(what: str, value: object, count: int | None, example: Sequence[int]) -> list[int]:
    """``value`` as a list of whole numbers from 1; ``count`` of them, if that is given.

    Raises:
        ArgumentError: for anything else.
    """
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        found = list(value)
        right = count is None or len(found) == count
        if right and all(isinstance(n, Integral) and int(n) > 0 for n in found):
            return [int(n) for n in found]
    many = "" if count is None else f" {count}"
    msg = f"Passed {what}={value!r:.80}; allowed are{many} whole numbers from 1.\n"
    raise ArgumentError(msg + f"Hint: {what}={example!r}")


def shape(x: Any) -> tuple[int | None, ...]:
    """The shape of a native tensor or an array; None where a graph leaves a size open."""
    return tuple(x.shape)


def same_shape(one: Sequence[int | None], other: Sequence[int | None]) -> bool:
    """Whether two shapes are equal, as far as they are known."""
    if len(one) != len(other):
        return False
    return all(a == b or a is None or b is None for a, b in zip(one, other, strict=True))


def dtype_name(dtype: Any) -> str:
    """The name of a dtype without its framework's prefix: "float32"."""
    name: str = re.findall(r"\w+", str(dtype))[-1]
    return name


@constant_result
def _is_integer(dtype: Any) -> bool:
    """Whether a native dtype is an integer one, signed or not; bool is not."""
    return dtype_name(dtype).lstrip("u").startswith("int")


def class_axis(axis: Any, dimensions: int) -> int:
    """The axis of the classes, counted from 0.

    Raises:
        ArgumentError: if logits of so many dimensions have no such axis.
    """
    is_whole = isinstance(axis, Integral) and not isinstance(axis, bool)
    if is_whole and -dimensions <= int(axis) < dimensions:
        return int(axis) % dimensions
    msg = f"Passed axis={axis!r:.80} for logits of {dimensions} dimensions"
    if not dimensions:
        raise ArgumentError(msg + ".\nHint: logits of shape (batch, classes)")
    raise ArgumentError(msg + f"; allowed is -{dimensions} to {dimensions - 1}.\nHint: axis=-1")


def check_labels(labels: Any, logits: Sequence[int | None], axis: int) -> None:
    """Check dtype and shape of labels.

    Raises:
        ArgumentTypeError: if they are not integers.
        ArgumentError: if their shape is not that of the logits without the axis of the classes.
    """
    found, expected = shape(labels), (*logits[:axis], *logits[axis + 1 :])
    is_integer = _is_integer(labels.dtype)
    if not is_integer:
        msg = f"The labels are of dtype {dtype_name(labels.dtype)}; allowed is any integer dtype.\n"
        raise ArgumentTypeError(msg + _labels_hint(found, is_integer, logits, axis))
    if not same_shape(found, expected):
        msg = (
            f"The labels have shape {found}, and the logits {tuple(logits)} have their "
            f"classes along axis {axis}; allowed is the shape {expected}.\n"
        )
        raise ArgumentError(msg + _labels_hint(found, is_integer, logits, axis))


def _labels_hint(
    labels: Sequence[int | None], is_integer: bool, logits: Sequence[int | None], axis: int
) -> str:
    """What makes class numbers of labels of that shape."""
    expected = (*logits[:axis], *logits[axis + 1 :])
    if same_shape(labels, (*expected, 1)) and logits[axis] != 1:
        return "Hint: labels[..., 0], which drops the axis of length 1"
    if same_shape(labels, logits):
        probabilities = "" if is_integer else ", if they are probabilities of the classes"
        return f"Hint: labels.argmax({axis}){probabilities}"
    if not is_integer:
        return (
            "Hint: class numbers of an integer dtype; for floating-point targets "
            "neutral.mse_loss(prediction, target)"
        )
    return "Hint: axis=, the axis of the classes; one class number for each place"


def check_range(labels: Any, classes: int | None, ignore_index: int) -> None:
    """Check that labels on the host are class numbers, or ``ignore_index``.

    Raises:
        ArgumentError: if one is not.
    """
    if classes is None or not labels.size:
        return
    if labels.min() >= 0 and labels.max() < classes:
        return
    wrong = labels[((labels < 0) | (labels >= classes)) & (labels != ignore_index)]
    if wrong.size:
        msg = (
            f"The label {int(wrong[0])} is no class of logits with {classes} classes; allowed are 0 "
            f"to {classes - 1}, and ignore_index={ignore_index} for a label that does not count.\n"
        )
        hint = "a model with as many outputs as there are classes"
        if wrong[0] < 0:
            hint = f"ignore_index={int(wrong[0])}, if it marks what does not count"
        raise ArgumentError(f"{msg}Hint: {hint}")


def check_equal_shapes(prediction: Any, target: Any) -> None:
    """Check that broadcasting does not average over pairs that nobody meant.

    Raises:
        ArgumentError: if the shapes differ.
    """
    if not same_shape(shape(prediction), shape(target)):
        msg = (
            f"The prediction has shape {shape(prediction)} and the target {shape(target)}; they must "
            "be equal.\n"
        )
        raise ArgumentError(
            msg + "Hint: neutral.mse_loss(prediction, target.reshape(prediction.shape))"
        )
