"""Variables of no Keras layer, read in low precision inside of regions.

Keras casts the variables of its layers itself, by their dtype policies. A tf.Variable of a decorated
model is cast here, each time that its value is read; what is stored, assigned and updated is float32.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast.op_entry import Regions, Replace
from ampbridge_tensorflow.autocast.rules import cast_float
from ampbridge_tensorflow.model.fitted import read_low_by


def replace_read(original: Any, regions: Regions) -> Any:
    """The methods of a variable through which its value, or part of it, is read."""

    @functools.wraps(original)
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        value = original(self, *args, **kwargs)
        if regions.active.get() is None:
            return value
        decoration = read_low_by(self)
        return value if decoration is None else cast_float(value, decoration.rules.low)

    return read


def replace_conversion(original: Any, regions: Regions) -> Any:
    """A variable as a tensor, perhaps of a stated dtype."""

    @functools.wraps(original)
    def to_tensor(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        value = original(self, dtype, *args, **kwargs)
        stated = dtype is not None and regions.active.get() is not None
        return cast_float(value, tf.as_dtype(dtype)) if stated else value

    return to_tensor


REPLACE: Mapping[_private.PrivateName, Replace] = {
    _private.VARIABLE_READ: replace_read,
    _private.VARIABLE_GATHER: replace_read,
    _private.VARIABLE_GATHER_ND: replace_read,
    _private.VARIABLE_TO_TENSOR: replace_conversion,
}
