"""What happens around a call of a decorated model, of its parts, and of a layer that it keeps in float32.

``model(x)`` is looked up on the model's class, so that is where it is replaced, as long as a model of
that class is decorated. Everything else of the class goes on as before.

A part that is called from outside of the model is called as the model is: a ``train_step`` of the user's
own may call ``self.encoder`` and ``self.decoder``, and never the model that they are parts of.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from contextvars import Context
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from ampbridge.adapters import kept_calls
from ampbridge.adapters.interception import Interception
from ampbridge.adapters.nested import map_leaves
from ampbridge.adapters.outputs import warn_of_low_values_inside
from ampbridge.adapters.tracing import called_as_it_is
from ampbridge_tensorflow.autocast import casting
from ampbridge_tensorflow.autocast.keras_layers import FLOAT32
from ampbridge_tensorflow.autocast.regions import active_rules, defining_class, method_site
from ampbridge_tensorflow.autocast.rules import LOW, cast_with_mask
from ampbridge_tensorflow.model import fitted
from ampbridge_tensorflow.native_values import is_symbolic


class PreparedCall(NamedTuple):
    """The region in which a call runs, its inputs, and the dtype of what it returns.

    ``inputs`` is a context in which layers know what the model was given.
    """

    region: AbstractContextManager[None]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output_dtype: str | None
    inputs: AbstractContextManager[None] = nullcontext()


def calls_of(kind: type) -> Interception[None] | None:
    """What replaces ``__call__`` on the class from which ``kind`` has it; None if it has none."""
    owner = defining_class(kind, "__call__")
    return None if owner is None else _calls(owner)


@functools.cache
def _calls(owner: type) -> Interception[None]:
    return Interception(
        f"ampbridge_tensorflow calls of {owner.__qualname__}",
        lambda: [method_site(owner, "__call__", lambda original: _replace_call(original, owner))],
    )


def _replace_call(original: Any, owner: type) -> Any:
    """``__call__``; AutoGraph converts it as it would have converted the original."""

    @functools.wraps(original, updated=())  # the original may be a tf.function
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _prepared(self, owner, args, kwargs)
        if call is None:
            return original.__get__(self, type(self))(*args, **kwargs)
        with call.region, call.inputs:
            outputs = original.__get__(self, type(self))(*call.args, **call.kwargs)
        outputs = _in_dtype(outputs, call.output_dtype)
        if call.output_dtype is not None:
            warn_of_low_values_inside(outputs, call.output_dtype, _dtype_name)
        return outputs

    return __call__


def _dtype_name(value: Any) -> str | None:
    """The name of a tensor's dtype; None for anything else."""
    return value.dtype.name if isinstance(value, tf.Tensor) else None


@called_as_it_is
def _prepared(
    model: Any, owner: type, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PreparedCall | None:
    """The call as the decoration wants it; None if it is left alone."""
    active = active_rules()
    found, kept = fitted.fitted(model), fitted.kept_by(model) is not None
    if found is None and active is None:
        found = fitted.part_of(model)
    if kept:
        kept_calls.note(model)
    elif found is None:
        return None
    if defining_class(type(model), "__call__") is not owner or is_symbolic((args, kwargs)):
        return None
    casts_here = active is not None and active.low in LOW
    if found is None or not (found.decoration.standalone or casts_here):
        return _in_float32(args, kwargs, None) if kept and casts_here else None
    policy = found.decoration.policy
    if kept:
        return _in_float32(args, kwargs, policy.output_dtype)
    region = casting.region(policy) if found.decoration.standalone else nullcontext()
    if policy.level != "O2":
        return PreparedCall(region, args, kwargs, policy.output_dtype)
    args, kwargs = map_leaves(_as_keras_converts, (args, kwargs))
    inputs = fitted.inputs_known((args, kwargs))
    return PreparedCall(region, args, kwargs, policy.output_dtype, inputs)


def _in_float32(args: Any, kwargs: Any, output_dtype: str | None) -> PreparedCall:
    args, kwargs = _in_dtype((args, kwargs), "float32")
    return PreparedCall(casting.region(FLOAT32), args, kwargs, output_dtype)


@called_as_it_is
def _in_dtype(structure: Any, dtype: str | None) -> Any:
    """The floating values in containers, float64 tensors apart, in ``dtype``."""
    if dtype is None:
        return structure
    wanted = tf.as_dtype(dtype)
    return map_leaves(lambda leaf: cast_with_mask(_as_keras_converts(leaf), wanted), structure)


def _as_keras_converts(value: Any) -> Any:
    """An array of floats as a tensor; all else as it is."""
    is_array = isinstance(value, np.ndarray) and value.dtype in (np.float32, np.float64)
    return tf.convert_to_tensor(value, keras.config.floatx()) if is_array else value


# -- from decorate to undecorate


def install(
    model: Any, found: fitted.Fitted, others: Iterable[Interception[Any]]
) -> Callable[[], None]:
    """Hook the calls of ``model``, of its parts and its kept layers; returns what takes that back.

    If it is standalone now, with ``others``; else each region does as it opens.
    """
    parts = (reference() for reference in found.parts.values())
    kinds = {type(model), *map(type, found.kept), *map(type, parts)} - {type(None)}
    calls = frozenset(c for c in map(calls_of, kinds) if c is not None)
    # They are installed as long as a region of each is open, in a context that nothing runs in.
    context, hooks = Context(), ExitStack()
    if found.decoration.standalone:
        for each in (*calls, *others):
            context.run(hooks.enter_context, each.region(None))
    key = found.trace_key(calls)
    fitted.register(key, found)

    def collected() -> None:
        """The model is gone. Its regions are dropped: to close them might wait for a lock."""
        fitted.forget(key)
        hooks.pop_all()

    watch = weakref.finalize(model, collected)

    def remove() -> None:
        watch.detach()
        fitted.forget(key)
        context.run(hooks.close)

    return remove
