"""A warning where Keras' own loop trains in a float16 region, and nobody scales the loss.

The region decides what the ops of ``fit`` run in. That the loss is scaled, ``compile`` sees to, and knows
of decorated models alone.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from ampbridge.adapters.calling_code import warn
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast.op_entry import Regions, Replace
from ampbridge_tensorflow.model import fitted


def scales_by_itself(optimizer: Any) -> bool:
    """Whether a Keras optimizer scales the loss, by whatever rule."""
    wraps_another = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return wraps_another or optimizer.loss_scale_factor is not None


def _replace_make_train_function(original: Any, regions: Regions) -> Any:
    """What ``fit`` and ``train_on_batch`` call before the first batch."""

    @functools.wraps(original)
    def make_train_function(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        rules, optimizer = regions.active.get(), self.optimizer
        if (
            rules is not None
            and rules.low == tf.float16
            and optimizer is not None
            and not scales_by_itself(optimizer)
            and fitted.fitted(self) is None
        ):
            warn(_unscaled(self))
        return original(self, *args, **kwargs)

    return make_train_function


def _unscaled(model: keras.Model) -> str:
    return (
        f"Keras trains a {type(model).__name__} in a float16 region, and its "
        f"{type(model.optimizer).__name__} scales no loss: gradients under 6e-8 become zero.\n"
        "Hint: amp.decorate(model, policy='O1:float16') in place of the region, before model.compile, "
        "scales the loss; or a bfloat16 policy, which needs no scale."
    )


REPLACE: Mapping[_private.PrivateName, Replace] = {
    _private.MAKE_TRAIN_FUNCTION: _replace_make_train_function,
}
