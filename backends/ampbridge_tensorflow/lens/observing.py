"""Seeing what runs: functions and layers that are one op, TensorFlow's own ops, and their gradients.

While a forward pass is observed, watching replacements stand above the region's, where they see what
is handed to an op, and one stands below them, at TensorFlow's own function, which sees what runs
after the casts. They act in the thread that observes alone; of what they do the tapes keep the rest.

Out of reach are concrete functions and other graphs, and the gradients of recomputed blocks: those
run once more, when the observation is over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
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
    Replace,
    active_rules,
    defining_class,
    method_site,
    regions,
    replacement_where,
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
        msg = (
            "Ops are observed as they run, and this is a graph that is being traced.\n"
            "Hint: lens.census(loss_fn, model, x, y) outside of tf.function"
        )
        raise UnsupportedError(msg)
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
    """The watch of the eager code that runs here."""
    watch = _watches.active.get()
    return None if watch is None or watch.is_paused or not tf.executing_eagerly() else watch


# -- what stands in the place of what


_watched = partial(replacement_where, _watching)
"""A decorator: where there is a watch, a function of it, the original and the arguments runs instead."""


def _eager_op(seen_by: Callable[..., Any]) -> Replace:
    def eager_op(
        watch: Watch, original: Any, context: Any, op: str, name: str | None, *arguments: Any
    ) -> Any:
        return seen_by(watch, op, partial(original, context, op, name), arguments)

    return _watched(eager_op)


def _fallback(seen_by: Callable[..., Any]) -> Replace:
    def fallback(
        watch: Watch, run: Any, op: Any, num_outputs: int, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        def run_with(*inputs: Any) -> Any:
            return run(op, num_outputs, list(inputs), *args, **kwargs)

        return seen_by(watch, op.decode() if isinstance(op, bytes) else op, run_with, inputs)

    return _watched(fallback)


@_watched
def _record_gradient(
    watch: Watch, original: Any, op_name: str, inputs: Any, attrs: Any, outputs: Any
) -> None:
    """Tapes learn in this way of an op that went through ``_fallback``."""
    watch.record(op_name, lambda given: original(op_name, given, attrs, outputs), inputs, outputs)


def _one_op(op: str) -> Replace:
    """A function that is reported as ``op``."""
    return _watched(lambda watch, run, /, *args, **kwargs: watch.op(op, run, args, kwargs))


@_watched
def _loss_call(watch: Watch, original: Any, loss: Any, y_true: Any, y_pred: Any) -> Any:
    """The call of a Keras Loss object, which casts the inputs of its function."""
    spelling = functions.loss_spelling(loss)
    op = None if spelling is None else observed_ops.of_function(spelling)
    if op is None:
        return original(loss, y_true, y_pred)
    return watch.op(op, partial(original, loss), (y_true, y_pred), {})


@_watched
def _layer_call(watch: Watch, original: Any, layer: Any, /, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(layer, keras.Layer):
        return original(layer, *args, **kwargs)
    op = observed_ops.of_layer(layer)
    with watch.running(layer):
        if op is None:
            return original(layer, *args, **kwargs)
        return watch.op(op, partial(original, layer), args, kwargs, layer=layer)


@_watched
def _unseen(watch: Watch, original: Any, *args: Any, **kwargs: Any) -> Any:
    """What is no part of the forward pass: weights that are made, gradients that are taken in it."""
    with watch.paused():
        return original(*args, **kwargs)


def _replace_runs_eagerly(original: Any) -> Any:
    """Whether a tf.function runs as the Python that it was made of."""
    return property(lambda function: _watching() is not None or original.__get__(function))


@functools.cache
def _module_calls(owner: type) -> Interception[None]:
    """Where calls of tf.Modules of one class are seen."""
    return Interception(
        f"ampbridge_tensorflow watched calls of {owner.__qualname__}",
        lambda: [method_site(owner, "__call__", _replace_module_call)],
    )


def _replace_module_call(original: Any) -> Any:
    @functools.wraps(original, updated=())  # the original may be a tf.function
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch, bound = _watching(), original.__get__(self, type(self))
        if watch is None:
            return bound(*args, **kwargs)
        with watch.running(self):
            return bound(*args, **kwargs)

    return __call__


_ENTRIES: Mapping[_private.PrivateName, tuple[Replace, Replace]] = {
    _private.EAGER_OP: (_eager_op(Watch.own_op), _eager_op(Watch.kernel)),
    _private.EAGER_FALLBACK: (
        _fallback(Watch.own_op),
        _fallback(partial(Watch.kernel, recorded_now=False)),
    ),
}
"""Where eager ops enter, and what stands above and below the region's replacement."""

_OTHERS: Mapping[_private.PrivateName, Replace] = {
    _private.RECORD_GRADIENT: _record_gradient,
    _private.LOSS_CLASS: _loss_call,
    _private.LAYER_CALL: _layer_call,
    _private.LAYER_BUILD: _unseen,
    _private.EAGER_GRADIENT: _unseen,
    _private.RUNS_EAGERLY: _replace_runs_eagerly,
}


def _find_sites() -> Iterator[Site]:
    for name, (above, below) in _ENTRIES.items():
        entry = casting.made.get(name)
        if entry is not None:
            replacement = above(REPLACEMENTS[name](below(entry.original)))
            present = vars(entry.owner)[entry.attribute]
            yield Site(entry.owner, entry.attribute, present, replacement)
    for name, replace in _OTHERS.items():
        place = _private.find(name)
        if place is not None:
            yield Site(*place, replace(place.value))
    for spelling, site in functions.sites().standing():
        op = observed_ops.of_function(spelling)
        if op is not None:
            replacement = _one_op(op)(site.replacement)
            yield Site(site.owner, site.attribute, site.replacement, replacement)


_watches: Interception[Watch] = Interception(
    "ampbridge_tensorflow watches", lambda: list(_find_sites())
)


# -- values on the host


def to_numpy(x: Array) -> np.ndarray:
    """See ``Backend.to_numpy``."""
    with regions.paused(None):
        value = x if isinstance(x, np.ndarray) else tf.convert_to_tensor(native_variable(x)).numpy()
    return value if value.dtype == np.float64 else value.astype(np.float32)
