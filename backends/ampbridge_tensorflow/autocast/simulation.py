"""Simulated low precision: the numerics of Tensor Cores in float32 kernels, on any device.

Tensors are stored in low precision, and in which dtype an op runs is decided as in a native region.
But an op that would run in low precision takes its inputs up to float32, computes there, and its
result is rounded once. The derivative of a cast is a cast: so a low value has a low gradient, and
the products of the backward pass are float32's as well.

A layer's product and its bias are one op, rounded once: a fresh product remembers its unrounded
value until the first op that reads it, and the op that adds the bias asks for that value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import tensorflow as tf

from ampbridge.policies import op_table
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast.regions import in_regions, replaces
from ampbridge_tensorflow.autocast.rules import Plan, Rules, rounded

_PRODUCTS = frozenset(op.name for op in op_table.ops().values() if op.family in ("matmul", "conv"))


@cache
def is_product(namespace: str, spelling: str) -> bool:
    """Whether TensorFlow's or Keras' ``spelling`` is a matrix product or a convolution."""
    return not _PRODUCTS.isdisjoint(op_table.native_names(namespace).get(spelling, ()))


def rounded_results(op: str, plan: Plan, lows: Mapping[str, tf.DType], results: Any) -> Any:
    """The results of ``op``, a tensor or a list; those with the dtype of a simulated group are rounded."""
    of_product = is_product("tensorflow", op)
    if not isinstance(results, list):
        return rounded(results, lows[plan.results[0]], of_product)
    attributes = plan.results if len(plan.results) > 1 else plan.results * len(results)
    return [
        rounded(result, lows[attribute], of_product) if attribute in lows else result
        for result, attribute in zip(results, attributes, strict=True)
    ]


class Results(list[Any]):
    """The results of an eager op as they are handed on, and what ran: the tapes are told the latter.

    Gradients that are registered in Python look at the dtypes of an op's inputs, and refuse some.
    """

    def __init__(self, given: Any, inputs: Sequence[Any], attrs: Any, made: Sequence[Any]) -> None:
        super().__init__(given)
        self.inputs, self.attrs, self.made = inputs, attrs, made


@replaces(_private.RECORD_GRADIENT)
@in_regions
def _record_gradient(
    rules: Rules, original: Any, op_name: str, inputs: Any, attrs: Any, outputs: Any
) -> None:
    """``record_gradient``, through which tapes learn of an op, here after its result was rounded.

    The op made what was rounded; the cast behind it was made before the tape knew of the op.
    """
    made = outputs
    if isinstance(outputs, Results):
        inputs, attrs, made = outputs.inputs, outputs.attrs, outputs.made
    elif not tf.executing_eagerly():
        made = [x.op.inputs[0] if op_name != x.op.type == "Cast" else x for x in outputs]
    original(op_name, inputs, attrs, made)
    for result, output in zip(made, outputs, strict=True):
        if result is not output:
            dtypes = result.dtype.as_datatype_enum, output.dtype.as_datatype_enum
            attributes = ("SrcT", dtypes[0], "DstT", dtypes[1], "Truncate", False)
            original("Cast", [result], attributes, [output])
