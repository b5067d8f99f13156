"""Parameters, and gradients with respect to them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import keras
import numpy as np
import tensorflow as tf

from ampbridge.adapters.arguments import check_dependence, check_that_some_train
from ampbridge.adapters.backend import Array, LossFn, Model, Optimizer, Program, Scalar, StepOutput
from ampbridge.adapters.interrupts import uninterrupted
from ampbridge.adapters.nested import map_leaves
from ampbridge.adapters.scoped import Scoped
from ampbridge.checkpoints.remembering import Remembered
from ampbridge.errors import ArgumentTypeError, CallOrderError, UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast.casting import differentiation, explained, region
from ampbridge_tensorflow.autocast.regions import outside_of_regions
from ampbridge_tensorflow.model.fitted import low_variables
from ampbridge_tensorflow.model.model_layers import layers
from ampbridge_tensorflow.native_values import made_under, native_variable, on_values, rounded_to
from ampbridge_tensorflow.step import ranks

T = TypeVar("T")


def cast(x: Array, dtype: str) -> Array:
    """``x`` in ``dtype``; float64 and what is not floating point as it is. Differentiable."""
    x = tf.convert_to_tensor(x)
    wanted = tf.as_dtype(dtype)
    keeps = not x.dtype.is_floating or x.dtype == tf.float64 or x.dtype == wanted
    return x if keeps else tf.cast(x, wanted)


def parameters(owner: Model | Optimizer) -> list[Array]:
    """A model's trainable variables, or those that a Keras optimizer was built for, without frozen ones.

    Raises:
        CallOrderError: for an optimizer that has not been built.
    """
    if isinstance(owner, keras.optimizers.Optimizer):
        found = _private.optimizer_parameters(owner)
        if found is not None:
            return [variable for variable in found if variable.trainable]
        msg = (
            f"{type(owner).__name__} has not been built, so its parameters are not known.\n"
            "Hint: optimizer.build(model.trainable_variables)"
        )
        raise CallOrderError(msg)
    return list(owner.trainable_variables)


def checked_optimizer(optimizer: Optimizer) -> Any:
    """``optimizer``, if it neither scales nor accumulates by itself.

    Raises:
        ArgumentTypeError: if it is a LossScaleOptimizer.
        UnsupportedError: for ``loss_scale_factor`` and ``gradient_accumulation_steps``.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        msg = (
            "A LossScaleOptimizer divides gradients by a scale of its own; GradScaler has done so.\n"
            "Hint: optimizer = optimizer.inner_optimizer"
        )
        raise ArgumentTypeError(msg)
    kind, factor = type(optimizer).__name__, optimizer.loss_scale_factor
    if factor is not None:
        msg = (
            f"{kind}(loss_scale_factor={factor}) divides gradients by a scale of its own; a GradScaler "
            "has done so.\n"
            f"Hint: optimizer.loss_scale_factor = None; and "
            f"scaler=amp.GradScaler({factor}, dynamic=False)"
        )
        raise UnsupportedError(msg)
    micro_batches = optimizer.gradient_accumulation_steps
    if micro_batches:
        msg = (
            f"{kind}(gradient_accumulation_steps={micro_batches}) holds gradients back, and does not say "
            "which call moves the weights.\n"
            f"Hint: amp.train_step(..., accumulate={micro_batches}), and an optimizer without it."
        )
        raise UnsupportedError(msg)
    return optimizer


@outside_of_regions
def built_optimizer(optimizer: Optimizer, parameters: Sequence[Array]) -> Any:
    """A checked Keras optimizer with its slots, made for ``parameters`` if it has none.

    The trace that it is met in first does not see them made.
    """
    optimizer = checked_optimizer(optimizer)
    if not optimizer.built:
        remembered = _built_here.get()
        if remembered is not None:
            remembered.append(Remembered(optimizer, *_private.trackers(optimizer)))
        strategy = made_under(parameters[0]) if parameters else None
        with ranks.variables_made_under(strategy):
            optimizer.build(list(parameters))
    return optimizer


_built_here: Scoped[list[Remembered] | None] = Scoped("ampbridge_tensorflow builds", None)


@contextmanager
def unbuilt_if_it_fails(forget: Callable[[], None]) -> Iterator[None]:
    """A block after which, if it raises, optimizers that were built in it are not built.

    ``forget`` drops what was made for the variables that are gone then.
    """
    remembered: list[Remembered] = []
    try:
        with _built_here.during(remembered):
            yield
    except BaseException:
        if remembered:
            forget()
        for each in remembered:
            each.put_back()
        raise


class StepOfModel:
    """``program``, a step of ``model``: each eager run leaves optimizers unbuilt if it fails.

    A graph's runs are seen from outside of it.
    """

    def __init__(self, program: Program, model: Model) -> None:
        self._program = program
        parts = [part.layer for part in layers(model)]
        self._parts = [weakref.ref(part) for part in parts if isinstance(part, keras.Layer)]
        sequential = [part for part in parts if isinstance(part, keras.Sequential)]
        self._layers = [(weakref.ref(part), part.layers) for part in sequential]

    def trained(self) -> tuple[bool, ...]:
        """Of each layer, whether it is trained now: a trace trains those that were."""
        present = [reference() for reference in self._parts]
        return tuple([part.trainable for part in present if part is not None])

    def check_layers(self) -> None:
        """Refuse a Sequential model to which layers were added, or from which some were taken.

        Raises:
            UnsupportedError: if somebody has. A trace has the layers of before.
        """
        for reference, before in self._layers:
            part = reference()
            if part is not None and part.layers != before:
                msg = (
                    f"{part.name!r} had other layers when the step was made.\n"
                    "Hint: step = amp.train_step(loss_fn, model, optimizer), with a new optimizer where "
                    "layers were added."
                )
                raise UnsupportedError(msg)

    def __call__(self, *arguments: Any) -> StepOutput:
        if tf.inside_function():
            return self._program(*arguments)
        self.check_layers()
        # Eager runs leave nothing that was made for an optimizer's variables.
        with unbuilt_if_it_fails(lambda: None):
            return self._program(*arguments)


def gradients(
    loss_fn: LossFn,
    model: Model,
    batch: Sequence[Any],
    policy: Policy,
    factor: Scalar,
    total: Sequence[Array] | None,
    optimizer: Optimizer | None = None,
) -> tuple[Array, Any, list[Array]]:
    """Run ``loss_fn`` under ``policy`` and differentiate ``factor * loss``; see ``Backend``.

    An optimizer that has not been built yet is built for the model's variables, which a Keras model
    may make in its first call; last, so that a step that fails leaves it as it was.
    """
    batch = map_leaves(native_array, batch)

    def forward() -> tuple[Array, Array, Any]:
        with region(policy), _CastVariablesAsBefore():
            loss, aux = loss_fn(model, *batch)
        loss = cast(loss, "float32")
        scaled = loss if factor is None else loss * tf.cast(factor, loss.dtype)
        return scaled, loss, aux

    with differentiation(policy), explained(policy):
        tape = tf.GradientTape()
        scaled, loss, aux = recorded(tape, forward)
        trained = parameters(model if optimizer is None or not optimizer.built else optimizer)
        check_that_some_train(trained, "layer.trainable = True")
        grads = tape.gradient(scaled, [native_variable(p) for p in trained])
    check_dependence(grads)
    if optimizer is not None and not optimizer.built:
        ranks.check_scope(checked_optimizer(optimizer), trained)
        built_optimizer(optimizer, trained)
        _built_for[optimizer] = weakref.ref(model)
    elif optimizer is not None:
        _check_that_it_trains_all(optimizer, model)
    # A gradient of a low parameter has its precision, also where TensorFlow has added up its parts.
    low = {id(variable) for variable in low_variables(model)}
    rounded = partial(rounded_to, policy.dtype)
    grads = [
        on_values(g, rounded) if id(p) in low else g for p, g in zip(trained, grads, strict=True)
    ]
    if total is not None:
        grads = add(total, grads)
    detached = map_leaves(lambda x: tf.stop_gradient(x) if isinstance(x, tf.Tensor) else x, aux)
    return tf.stop_gradient(loss), detached, grads


def recorded(tape: tf.GradientTape, compute: Callable[[], T]) -> T:
    """Run ``compute`` on ``tape``, which leaves TensorFlow's stack in any case.

    ``with tape:`` leaves it there if Ctrl-C comes just when its ``__exit__`` begins. It would record all
    that the thread computes from then on, and keep it.
    """
    try:
        with uninterrupted():
            tape.__enter__()
        result = compute()
        with uninterrupted():
            tape.__exit__(None, None, None)
        return result
    except BaseException:
        with uninterrupted():
            tape.__exit__(None, None, None)  # nothing, if it has been done
        raise


_built_for: WeakKeyDictionary[Any, weakref.ref[Any]] = WeakKeyDictionary()
"""The models for all of whose variables optimizers were built here."""


def _check_that_it_trains_all(optimizer: Optimizer, model: Model) -> None:
    """Refuse an optimizer that was built for all variables of ``model`` and lacks some now.

    One that somebody has built for some of them trains those.
    """
    reference = _built_for.get(optimizer)
    is_built_for_it = reference is not None and reference() is model
    if not is_built_for_it and getattr(model, "optimizer", None) is not optimizer:
        return
    known = set(map(id, parameters(optimizer)))
    new = [variable for variable in parameters(model) if id(variable) not in known]
    if new:
        kind = type(optimizer).__name__
        msg = (
            f"{kind} was built before {len(new)} of the model's variables were added or unfrozen: "
            f"{getattr(new[0], 'path', new[0].name)!r} is the first.\n"
            f"Hint: step = amp.train_step(loss_fn, model, keras.optimizers.{kind}(...))"
        )
        raise UnsupportedError(msg)


class _CastVariablesAsBefore:
    """A block that leaves no scope of Keras' open, in which variables are cast, if it is cut short.

    Keras' own ``__exit__`` sees to it, unless Ctrl-C comes just when it begins.
    """

    def __enter__(self) -> None:
        self._state = _private.value(_private.KERAS_STATE)
        if self._state is not None:
            self._scope = self._state.get_global_attribute("autocast_scope")

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        if kind is not None and self._state is not None:
            self._state.set_global_attribute("autocast_scope", self._scope)


def native_array(item: Any) -> Any:
    """A NumPy array as a tensor, one of float64 in Keras' floatx; anything else as it is.

    So does ``Model.fit``. A tensor in place of an array also keeps a traced step from being traced
    anew for each value.
    """
    if not isinstance(item, (np.ndarray, np.generic)):
        return item
    dtype = keras.config.floatx() if item.dtype == np.float64 else None
    return tf.convert_to_tensor(item, dtype=dtype)


def add(total: Sequence[Array], grads: Sequence[Array]) -> list[Array]:
    """See ``Backend.add``."""
    return [_sum(earlier, new) for earlier, new in zip(total, grads, strict=True)]


def _sum(total: Array | None, new: Array | None) -> Array | None:
    """Both gradients; sparse ones become dense, so that a sum keeps its shape from step to step."""
    if total is None or new is None:
        return new if total is None else total
    return tf.convert_to_tensor(total) + tf.convert_to_tensor(new)
