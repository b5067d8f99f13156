"""What a pass changes in a model, and where its random numbers come from, put back afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ampbridge.adapters.backend import Model
from ampbridge.adapters.restoring import remember_attributes
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast.regions import outside_of_regions
from ampbridge_tensorflow.model.model_layers import lasting_layers
from ampbridge_tensorflow.native_values import native_variable
from ampbridge_tensorflow.training_state import all_variables

_GENERATORS = (tf.random.Generator, keras.random.SeedGenerator)


@contextmanager
def restored(model: Model) -> Iterator[None]:
    """See ``Backend.restored``. Keras holds no training mode.

    An op that is called with a seed of its own after ``tf.random.set_seed`` counts its calls where
    nobody can read it: those of the look stay counted.
    """
    with ExitStack() as stack:
        # A generator that is not there yet is made when it is first drawn from: so it is again.
        of_keras = _private.keras_seed_generator()
        stack.callback(_private.set_keras_seed_generator, of_keras)
        own = _private.value(_private.GLOBAL_GENERATOR)
        stack.callback(tf.random.set_global_generator, own)
        for generator in (of_keras, own):
            _remember(stack, generator)
        seeds = _private.op_seeds()
        if seeds is not None:
            # Eager ops take other seeds meanwhile: kernels are kept by their seeds, and go on counting.
            stack.callback(_private.set_op_seeds, seeds)
            _private.set_op_seeds(random.Random(repr(seeds.getstate())))
        remember_attributes(stack, [part.layer for part in lasting_layers(model)], _remember)
        for each in all_variables(model):
            _remember(stack, each.tensor)
        yield


def _remember(stack: ExitStack, held: Any) -> None:
    """Put back a generator's state, or the values of a variable, when ``stack`` is closed."""
    variable = native_variable(held.state) if isinstance(held, _GENERATORS) else held
    if isinstance(variable, tf.Variable):
        stack.callback(_put_back, variable, _read(variable))


@outside_of_regions
def _read(variable: tf.Variable) -> np.ndarray:
    return np.array(variable.read_value().numpy())


@outside_of_regions
def _put_back(variable: tf.Variable, values: np.ndarray) -> None:
    present = _read(variable)
    if values.dtype.hasobject or present.tobytes() != values.tobytes():
        variable.assign(values)
