"""Losses that take any integer labels, and say which axis holds the classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampbridge.adapters.arguments import check_belongs
from ampbridge.adapters.backend import Array
from ampbridge.adapters.tracing import called_as_it_is
from ampbridge.neutral import checks
from ampbridge.neutral.native import native_of


@called_as_it_is
def cross_entropy(logits: Array, labels: Any, *, axis: int = -1, ignore_index: int = -100) -> Array:
    """The mean of ``-log_softmax(logits)`` at the labels: a native scalar, differentiable.

    Args:
        logits: native, of any shape.
        labels: class numbers of any integer dtype (int32, int64, uint8, ...), native or NumPy's, in the
            shape of ``logits`` without ``axis``.
        axis: the axis of the classes; the last one by default. (For images it is 1 where channels come
            first.)
        ignore_index: labels of this value do not count in the mean. If none counts, the loss is NaN.

    In an autocast region the policy's rule for ``cross_entropy`` applies. Labels are compared with the
    number of classes where their values are on the host; a GPU or a compiled step does not wait for
    that.

    Raises:
        ArgumentTypeError: for labels that are not integers, or of another framework.
        ArgumentError: for labels of another shape or out of range, and for an axis that is none.
    """
    native = native_of(logits)
    check_belongs("labels", labels, "logits", logits)
    given, labels = labels, native.tensor(labels, logits)
    shape = checks.shape(logits)
    axis = checks.class_axis(axis, len(shape))
    checks.check_labels(labels, shape, axis)
    values = given if isinstance(given, np.ndarray) else native.at_hand(labels)
    if values is not None:
        checks.check_range(values, shape[axis], ignore_index)
    return native.cross_entropy(logits, labels, axis, ignore_index)


@called_as_it_is
def mse_loss(prediction: Array, target: Any) -> Array:
    """The mean of ``(prediction - target) ** 2``: a native scalar, differentiable.

    Args:
        prediction: native.
        target: native or NumPy's, of the same shape.

    Raises:
        ArgumentError: if the shapes differ. Nothing is broadcast.
        ArgumentTypeError: for a target of another framework.
    """
    native = native_of(prediction)
    check_belongs("target", target, "prediction", prediction)
    target = native.tensor(target, prediction)
    checks.check_equal_shapes(prediction, target)
    return native.mse_loss(prediction, target)
