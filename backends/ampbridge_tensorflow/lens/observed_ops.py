"""What is one op to whoever looks: TensorFlow's own ops, functions and layers under canonical names."""

from __future__ import annotations

from functools import cache
from typing import Any

import keras
import tensorflow as tf

from ampbridge.policies import op_table
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast.functions import LOOKED_INTO, family_of, owner_of
from ampbridge_tensorflow.autocast.rules import ALL_FLOATS, NEVER_CAST, uses_storage

PRODUCTS = frozenset({"matmul", "conv"})
"""The families of ops to which a bias is added."""
MOVES = frozenset({"shape"})
BIAS = "bias_add"

# Ops that the table does not have and that compute nothing, beside those that no rule touches.
_MOVES_ONLY = NEVER_CAST | {
    *("EnsureShape", "DeepCopy", "Where", "DynamicPartition", "DynamicStitch", "SpaceToBatchND"),
    *("ParallelDynamicStitch", "BatchToSpaceND", "InvertPermutation", "MatrixDiagPartV3"),
}

# Layers that are one op however many of TensorFlow's they are made of.
_FAMILIES_OF_LAYERS = frozenset({"norm", "activation", "softmax", "random"})
_OTHER_LAYERS = frozenset({"embedding"})


def is_floating(x: Any) -> bool:
    """Whether it is a tensor of floating-point numbers."""
    return isinstance(x, tf.Tensor) and x.dtype in ALL_FLOATS


def floating(structure: Any) -> list[tf.Tensor]:
    """The tensors of floating-point numbers in ``structure``."""
    return list(filter(is_floating, tf.nest.flatten(structure)))


@cache
def of_own_op(op: str) -> str | None:
    """The name under which one of TensorFlow's own ops is reported.

    None for what the table has not and that only moves, makes or converts values, and for what reads
    and writes variables.
    """
    definition = None if op in _MOVES_ONLY else _private.value(_private.OP_DEFINITION)(op)
    if definition is None or not definition.output_arg:
        return None
    known = op_table.native_names("tensorflow").get(op)
    if known:
        return known[0]
    return None if uses_storage(definition) else f"tf:{op}"


@cache
def of_function(spelling: str) -> str | None:
    """The op that a function of the table is; None if its parts have rules of their own."""
    owner = owner_of(spelling)
    return None if owner in LOOKED_INTO else owner


def of_layer(layer: keras.Layer) -> str | None:
    """The op that a layer is as a whole; None if its ops are reported one by one."""
    kind, op = _in_the_table(layer)
    whole = op is not None and (family_of(op) in _FAMILIES_OF_LAYERS or op in _OTHER_LAYERS)
    # A subclass may do more in its call.
    return op if whole and type(layer).call is kind.call else None


def of_product_in(layer: Any) -> str | None:
    """The op that a layer's product with its bias is; None for other layers."""
    _, op = _in_the_table(layer)
    return op if op is not None and family_of(op) in PRODUCTS and op not in LOOKED_INTO else None


def _in_the_table(layer: Any) -> tuple[Any, str | None]:
    """The nearest class of Keras that the table has, and the op that it is."""
    names = op_table.native_names("keras_layers")
    for base in type(layer).__mro__:
        if base.__name__ in names and getattr(keras.layers, base.__name__, None) is base:
            return base, names[base.__name__][0]
    return None, None
