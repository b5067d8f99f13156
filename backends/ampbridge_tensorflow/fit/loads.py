"""What Keras and TensorFlow load into a decorated model, whose low variables or moments have no masters.

It is rounded to nearest at once, and a warning says so if that loses digits: the next update would round it
without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

import keras
import tensorflow as tf

from ampbridge.adapters.interception import Interception, Site
from ampbridge.adapters.low_storage import warn_of_rounded_weights
from ampbridge_tensorflow.autocast.regions import method_site, outside_of_regions
from ampbridge_tensorflow.fit import updates
from ampbridge_tensorflow.model import fitted
from ampbridge_tensorflow.model.fitted import Fitted
from ampbridge_tensorflow.native_values import native_variable, rounded_to


def _find_sites() -> Sequence[Site]:
    methods = [
        (keras.Layer, "set_weights"),  # a model's too
        (keras.Model, "load_weights"),
        (keras.optimizers.Optimizer, "set_weights"),
        (keras.optimizers.Optimizer, "load_own_variables"),
        (tf.train.Checkpoint, "read"),  # by which it restores
    ]
    return [method_site(kind, method, _replace_load) for kind, method in methods]


loading: Interception[None] = Interception("ampbridge_tensorflow loads", _find_sites)


def _replace_load(original: Any) -> Any:
    @wraps(original)
    def load(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        for found in fitted.standing():
            if found.rounds and tf.executing_eagerly():
                _round_what_is_loaded(found, self)
        return result

    return load


@outside_of_regions
def _round_what_is_loaded(found: Fitted, owner: Any) -> None:
    """Round what ``owner`` has loaded: a layer's weights, an optimizer's moments, or all of a checkpoint."""
    policy, is_layer = found.decoration.policy, isinstance(owner, keras.Layer)
    loaded = {id(native_variable(v)) for v in owner.variables} if is_layer else None
    low = fitted.low_variables(found.model) if policy.variable_dtype != "float32" else []
    weights = [v for v in low if loaded is None or id(native_variable(v)) in loaded]
    values = [tf.convert_to_tensor(v) for v in weights]
    rounded = [rounded_to(policy.dtype, value) for value in values]
    if any(tf.reduce_any(v != r) for v, r in zip(values, rounded, strict=True)):
        hint = policy.replace(masters="float32")
        warn_of_rounded_weights(policy, "written in float32", repr(hint))
        fitted.round_to_nearest(weights, policy.dtype)
    for optimizer in () if is_layer else list(found.optimizers):
        updates.serve(found, optimizer)
