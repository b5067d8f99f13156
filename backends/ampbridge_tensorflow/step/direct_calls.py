"""Calls of a traced step past ``tf.function``'s own dispatch, which takes longer than a small step.

``tf.function`` chooses a trace and this remembers which: by the shapes and dtypes of the arguments, by
Python values among them, and by TensorFlow's own key for all else that a trace depends on. What is
not known goes through ``tf.function``, which traces where it has to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from ampbridge_tensorflow import _private

MOST = 64
"""How many calls are remembered at a time. Data of ever-new shapes make no more of them."""

_CONTEXT = _private.FUNCTION_CONTEXT._replace(required=False)
_PLAIN = (bool, int, float, str, type(None))
_EAGER_TENSOR = _private.value(_private.EAGER_TENSOR)
_HANDLES = (tf.resource, tf.variant)


class DirectCalls:
    """Which trace of a step runs for which arguments."""

    def __init__(self) -> None:
        self._known: dict[Hashable | None, tuple[Any, Callable[[list[Any]], Any]]] = {}
        """The tf.function that chose a trace, and the call of that trace."""
        self._context = _private.find(_CONTEXT)

    def clear(self) -> None:
        self._known.clear()

    def key(self, kind: Hashable, arguments: Any, tensors: list[Any]) -> Hashable | None:
        """What the choice of a trace of this ``kind`` of step depends on.

        The tensors in ``arguments`` go to ``tensors``.

        None where that is for ``tf.function`` to say: other arguments than tensors and plain values in
        plain containers.
        """
        described = _described(arguments, tensors)
        if described is None or self._context is None:
            return None
        around = getattr(self._context.owner, self._context.attribute)()
        return kind, described, around

    def find(self, key: Hashable | None) -> Callable[[list[Any]], Any] | None:
        """The call for ``key``, of its tensors; None the first time, and where functions run eagerly."""
        traced, call = self._known.get(key, (None, None))
        return None if call is None or _private.runs_eagerly(traced) else call

    def note(self, key: Hashable | None, traced: Any, arguments: Sequence[Any]) -> None:
        """Remember the trace that ``traced``, a ``tf.function``, has run for ``arguments``."""
        if key is None or len(self._known) == MOST or _private.runs_eagerly(traced):
            return
        if any(isinstance(each, tf.Tensor) and each.dtype in _HANDLES for each in arguments):
            return  # what a handle is of counts, too
        call = _private.direct_call(traced.get_concrete_function(*arguments))
        if call is not None:
            self._known[key] = traced, call


def _described(value: Any, tensors: list[Any]) -> Hashable | None:
    """Types, shapes and plain values of ``value``; None if anything else is in it."""
    kind = type(value)
    if kind is _EAGER_TENSOR:
        tensors.append(value)
        return value.dtype, value.shape
    if kind in _PLAIN:
        return kind, value
    if kind is tuple or kind is list:
        parts = [_described(item, tensors) for item in value]
        return None if None in parts else (kind, *parts)
    if kind is dict:
        values = _described(tuple(value.values()), tensors)
        return values and (dict, *value, values)
    return None
