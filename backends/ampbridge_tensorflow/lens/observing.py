"""Seeing what runs: functions and layers that are one op, TensorFlow's own ops, and their gradients.

While a forward pass is observed, watching replacements stand above the region's, where they see what
is handed to an op, and one stands below them, at TensorFlow's own function, which sees what runs
after the casts. They act in the thread that observes alone; of what they do the tapes keep the rest.

Out of reach are concrete functions and other graphs, and the gradients of recomputed blocks: those
run once more, when the observation is over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ampbridge.adapters.backend import Array, Model
from ampbridge.adapters.interception import Interception, Site
from ampbridge.adapters.observation import Observer
from ampbridge.errors import UnsupportedError
from ampbridge.policies import function_ops
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast import casting, functions
from ampbridge_tensorflow.autocast.regions import (
    REPLACEMENTS,
    active_rules,
    defining_class,
    method_site,
    regions,
)
from ampbridge_tensorflow.lens import observed_ops
from ampbridge_tensorflow.lens.watching import Watch
from ampbridge_tensorflow.model.model_layers import layers
from ampbridge_tensorflow.native_values import native_variable


@contextmanager
def observe(model: Model, observer: Observer, *, gradients: bool) -> Iterator[None]:
    """See ``Backend.observe``.

    Raises:
        UnsupportedError: while a graph is traced, and if this TensorFlow lacks a private name.
    """
    if not tf.executing_eagerly():
        msg = "Ops are observed as they run, and this is a graph that is being traced.\n"
        raise UnsupportedError(
            msg + "Hint: lens.census(loss_fn, model, x, y) outside of tf.function"
        )
    _private.check(*_private.OF_OBSERVING)
    watch = Watch(model, observer, gradients)
    modules = [part.layer for part in layers(model) if not isinstance(part.layer, keras.Layer)]
    with ExitStack() as stack:
        # The region's replacements are what ours stand on, also where no region is open.
        stack.enter_context(regions.region(active_rules()))
        for owner in {defining_class(type(module), "__call__") for module in modules} - {None}:
            stack.enter_context(_module_calls(owner).region(None))
        stack.enter_context(_watches.region(watch))
        stack.enter_context(function_ops.watched(_function_op))
        try:
            yield
        finally:
            watch.report_pending()


def _function_op(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    watch = _watching()
    return function(*args, **kwargs) if watch is None else watch.op(name, function, args, kwargs)


def _watching() -> Watch | None:
    """Who watches the eager code that runs here."""
    watch = _watches.active.get()
    return None if watch is None or watch.is_paused or not tf.executing_eagerly() else watch


# -- what stands in the place of what


def _find_sites() -> Sequence[Site]:
    return [*_entry_sites(), *_private_sites(), *_function_sites()]


def _entry_sites() -> Iterator[Site]:
    """Where eager ops enter: as a region has it, with one watcher above and one below."""
    for name, (above, below) in _ENTRIES.items():
        entry = casting.made.get(name)
        if entry is not None:
            cast = REPLACEMENTS[name](below(entry.original))
            yield Site(
                entry.owner, entry.attribute, vars(entry.owner)[entry.attribute], above(cast)
            )


def _private_sites() -> Iterator[Site]:
    for name, replace in _REPLACE.items():
        place = _private.find(name)
        if place is not None:
            yield Site(*place, replace(place.value))


def _function_sites() -> Iterator[Site]:
    """One for each function that the region has replaced and that is an op of its own."""
    for spelling, site in functions.sites().standing():
        op = observed_ops.of_function(spelling)
        if op is not None:
            watched = _replace_function(op, site.replacement)
            yield Site(site.owner, site.attribute, site.replacement, watched)


_watches: Interception[Watch] = Interception("ampbridge_tensorflow watches", _find_sites)


def _replace_eager_op(original: Any) -> Any:
    def eager_op(context: Any, op: str, name: str | None, *arguments: Any) -> Any:
        watch = _watching()
        if watch is None:
            return original(context, op, name, *arguments)
        return watch.own_op(op, partial(original, context, op, name), arguments)

    return eager_op


def _replace_eager_kernel(original: Any) -> Any:
    def eager_kernel(context: Any, op: str, name: str | None, *arguments: Any) -> Any:
        watch = _watching()
        if watch is None:
            return original(context, op, name, *arguments)
        return watch.kernel(op, partial(original, context, op, name), arguments)

    return eager_kernel


def _replace_fallback(original: Any) -> Any:
    return _fallback(original, Watch.own_op)


def _replace_fallback_kernel(original: Any) -> Any:
    return _fallback(original, Watch.unrecorded_kernel)


def _fallback(original: Any, seen_by: Callable[..., Any]) -> Any:
    def fallback(
        op: Any, num_outputs: int, inputs: Any, attrs: Any, ctx: Any, name: str | None = None
    ) -> Any:
        watch = _watching()
        if watch is None:
            return original(op, num_outputs, inputs, attrs, ctx, name)

        def run(*inputs: Any) -> Any:
            return original(op, num_outputs, list(inputs), attrs, ctx, name)

        return seen_by(watch, op.decode() if isinstance(op, bytes) else op, run, inputs)

    return fallback


def _replace_record_gradient(original: Any) -> Any:
    """By which tapes learn of an op that has come the way of ``_fallback``."""

    @functools.wraps(original)
    def record_gradient(op_name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        watch = _watching()
        if watch is None:
            original(op_name, inputs, attrs, outputs)
        else:
            watch.record(
                op_name, lambda given: original(op_name, given, attrs, outputs), inputs, outputs
            )

    return record_gradient


def _replace_function(op: str, original: Any) -> Any:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        watch = _watching()
        if watch is None:
            return original(*args, **kwargs)
        return watch.op(op, original, args, kwargs)

    return function


def _replace_loss_call(original: Any) -> Any:
    """The call of a Keras Loss object, which casts the inputs of its function."""

    @functools.wraps(original)
    def call(self: Any, y_true: Any, y_pred: Any) -> Any:
        watch, spelling = _watching(), functions.loss_spelling(self)
        op = None if spelling is None else observed_ops.of_function(spelling)
        if watch is None or op is None:
            return original(self, y_true, y_pred)
        return watch.op(op, partial(original, self), (y_true, y_pred), {})

    return call


def _replace_layer_call(original: Any) -> Any:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch = _watching()
        if watch is None or not isinstance(self, keras.Layer):
            return original(self, *args, **kwargs)
        op = observed_ops.of_layer(self)
        with watch.running(self):
            if op is None:
                return original(self, *args, **kwargs)
            return watch.op(op, partial(original, self), args, kwargs, layer=self)

    return call


@functools.cache
def _module_calls(owner: type) -> Interception[None]:
    """Where calls of tf.Modules of one class are seen."""

    return Interception(
        f"ampbridge_tensorflow watched calls of {owner.__qualname__}",
        lambda: [method_site(owner, "__call__", _replace_module_call)],
    )


def _replace_module_call(original: Any) -> Any:
    @functools.wraps(original, updated=())
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch, bound = _watching(), original.__get__(self, type(self))
        if watch is None:
            return bound(*args, **kwargs)
        with watch.running(self):
            return bound(*args, **kwargs)

    return __call__


def _replace_unseen(original: Any) -> Any:
    """What is no part of the forward pass: weights that are made, gradients that are taken in it."""

    @functools.wraps(original)
    def unseen(*args: Any, **kwargs: Any) -> Any:
        watch = _watching()
        if watch is None:
            return original(*args, **kwargs)
        with watch.paused():
            return original(*args, **kwargs)

    return unseen


def _replace_runs_eagerly(original: Any) -> Any:
    """Whether a tf.function runs as the Python that it was made of."""
    return property(lambda function: _watching() is not None or original.__get__(function))


_ENTRIES: Mapping[_private.PrivateName, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    _private.EAGER_OP: (_replace_eager_op, _replace_eager_kernel),
    _private.EAGER_FALLBACK: (_replace_fallback, _replace_fallback_kernel),
}

_REPLACE: Mapping[_private.PrivateName, Callable[[Any], Any]] = {
    _private.RECORD_GRADIENT: _replace_record_gradient,
    _private.LOSS_CLASS: _replace_loss_call,
    _private.LAYER_CALL: _replace_layer_call,
    _private.LAYER_BUILD: _replace_unseen,
    _private.EAGER_GRADIENT: _replace_unseen,
    _private.RUNS_EAGERLY: _replace_runs_eagerly,
}


# -- values on the host


def to_numpy(x: Array) -> np.ndarray:
    """See ``Backend.to_numpy``."""
    if _private.is_keras_variable(x):
        x = native_variable(x)
    with regions.paused(None):
        value = x if isinstance(x, np.ndarray) else tf.convert_to_tensor(x).numpy()
    return value if value.dtype == np.float64 else value.astype(np.float32)
