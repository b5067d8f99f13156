"""Where ops enter TensorFlow, with their inputs cast by the active rules.

Every eager op goes through one C function, every graph op through one Python function; raw
``tf.*``, ``keras.ops`` and built models all end there. The others here stand before those two and
would refuse mixed dtypes, or turn one op into another, before the rules are asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import tensorflow as tf

from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast.regions import active_rules, in_regions, regions, replaces
from ampbridge_tensorflow.autocast.rules import (
    FLOATS,
    LOW,
    Rules,
    cast_all,
    cast_float,
    cast_groups,
    float_dtype,
    float_dtypes,
)
from ampbridge_tensorflow.autocast.simulation import Results, rounded_results
from ampbridge_tensorflow.model import fitted


@replaces(_private.EAGER_OP)
@in_regions
def _eager_op(
    rules: Rules, original: Any, context: Any, op: str, name: str | None, *arguments: Any
) -> Any:
    """``TFE_Py_FastPathExecute``: the inputs come first, in the op's own order."""
    plan = rules.plan(op)
    if fitted.some_variables_are_low():
        arguments = tuple(map(fitted.low_value, arguments))
    if plan is None:
        return original(context, op, name, *arguments)
    values = list(arguments)
    lows = cast_groups(plan.by_position, values)
    result = original(context, op, name, *values)
    if lows:
        return rounded_results(op, plan, lows, result)
    if op in rules.rounded_back:
        return cast_float(result, arguments[0].dtype)
    return result


@replaces(_private.GRAPH_OP)
@in_regions
def _graph_op(
    rules: Rules, original: Any, /, op_type_name: str, name: str | None = None, **keywords: Any
) -> Any:
    """``_apply_op_helper``: inputs and attributes by name."""
    plan = rules.plan(op_type_name)
    if fitted.some_variables_are_low():
        keywords = {key: fitted.low_value(value) for key, value in keywords.items()}
    if plan is None:
        return original(op_type_name, name, **keywords)
    # Behind a name that is a keyword of Python there is an underscore.
    keys = [each if each in keywords else f"{each}_" for each in plan.names]
    given = [keywords[key] for key in keys]
    values = list(given)
    lows = cast_groups(plan.by_position, values)
    keywords.update(zip(keys, values, strict=True))
    result = original(op_type_name, name, **keywords)
    if lows:
        *rest, outputs = result
        return (*rest, rounded_results(op_type_name, plan, lows, list(outputs)))
    if op_type_name in rules.rounded_back:
        *rest, outputs = result
        return (*rest, [cast_float(output, given[0].dtype) for output in outputs])
    return result


@replaces(_private.EAGER_FALLBACK)
@in_regions
def _eager_fallback(
    rules: Rules,
    original: Any,
    op: Any,
    num_outputs: int,
    inputs: Any,
    attrs: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """``execute``, for inputs that the C function does not take.

    They come flat and converted, with attributes that already name their dtypes.
    """
    op_name = op.decode() if isinstance(op, bytes) else op
    plan = rules.plan(op_name) if attrs else None
    if plan is None:
        return original(op, num_outputs, inputs, attrs, *args, **kwargs)
    attributes = dict(zip(attrs[::2], attrs[1::2], strict=True))
    values = _by_argument(op_name, inputs, attributes)
    lows = cast_groups(plan.by_position, values)
    for group in plan.by_position:
        first = next(iter(_as_list(values[group.members[0].position])), None)
        if group.attribute in attributes and isinstance(first, tf.Tensor):
            attributes[group.attribute] = first.dtype.as_datatype_enum
    inputs = [v for value in values for v in _as_list(value)]
    attrs = tuple(item for pair in attributes.items() for item in pair)
    results = original(op, num_outputs, inputs, attrs, *args, **kwargs)
    given = rounded_results(op_name, plan, lows, results) if lows else results
    return Results(given, inputs, attrs, results)


def _by_argument(op: str, inputs: Iterable[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """The flat inputs, one for each of the op's arguments; a list argument gets a list."""
    remaining = iter(inputs)
    values: list[Any] = []
    for argument in _private.value(_private.OP_DEFINITION)(op).input_arg:
        if argument.number_attr:
            values.append(list(islice(remaining, attributes[argument.number_attr])))
        elif argument.type_list_attr:
            values.append(list(islice(remaining, len(attributes[argument.type_list_attr]))))
        else:
            values.append(next(remaining))
    return values


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@replaces(_private.CONVERSION)
@in_regions
def _convert(
    rules: Rules, original: Any, value: Any, dtype: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """``convert_to_tensor(value, dtype)``: between float dtypes it casts instead of raising."""
    if dtype is not None:
        wanted, found = tf.as_dtype(dtype), float_dtype(value)
        if wanted in FLOATS and found in FLOATS and found != wanted:
            return tf.cast(original(value, None, *args, **kwargs), wanted)
    return original(value, dtype, *args, **kwargs)


@replaces(_private.SPARSE_MATMUL)
@in_regions
def _sparse_matmul(
    rules: Rules,
    original: Any,
    a: Any,
    b: Any,
    *,
    a_is_sparse: bool,
    b_is_sparse: bool,
    **keywords: Any,
) -> Any:
    """``tf.matmul(bfloat16, float32)``, which TensorFlow hands to SparseMatMul: a MatMul here."""
    if a_is_sparse or b_is_sparse:
        return original(a, b, a_is_sparse=a_is_sparse, b_is_sparse=b_is_sparse, **keywords)
    dtypes = {float_dtype(a), float_dtype(b)} - {None}
    if len(dtypes) > 1 and dtypes <= FLOATS:
        a, b = cast_float(a, tf.float32), cast_float(b, tf.float32)
    return tf.raw_ops.MatMul(a=a, b=b, **keywords)


@replaces(_private.GLOBAL_DISPATCHERS)
def _global_dispatchers(original: list[Any]) -> Any:
    """The dispatchers that TensorFlow asks when a function has raised; ours is the last one."""

    class Promoter(tf.__internal__.dispatch.GlobalOpDispatcher):
        """Retries in float32 what a comparison of dtypes in Python has refused."""

        def handle(self, op: Any, args: Any, kwargs: Any) -> Any:
            if active_rules() is None:
                return self.NOT_SUPPORTED
            dtypes = float_dtypes((args, kwargs))
            if LOW.isdisjoint(dtypes):  # nothing left to settle: the error stands
                return self.NOT_SUPPORTED
            with regions.paused(None):  # a cast that raises is not to be retried by another one
                args, kwargs = cast_all((args, kwargs), tf.float32)
            return op(*args, **kwargs)

    class Dispatchers:
        """The original list, to which others may still append, and the promoter after it."""

        def __iter__(self) -> Iterator[Any]:
            return iter([*original, promoter])

        def append(self, dispatcher: Any) -> None:
            original.append(dispatcher)

    promoter = Promoter()
    return Dispatchers()


# -- variables of no Keras layer, which Keras would not cast by a dtype policy


@replaces(*_private.VARIABLE_READS)
@in_regions
def _read(rules: Rules, original: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
    """Methods that read a variable: the value of a decorated model's variable is cast each time.

    What is stored, assigned and updated is float32.
    """
    value = original(variable, *args, **kwargs)
    decoration = fitted.read_low_by(variable)
    return value if decoration is None else cast_float(value, decoration.rules.low)


@replaces(_private.VARIABLE_TO_TENSOR)
@in_regions
def _to_tensor(
    rules: Rules, original: Any, variable: Any, dtype: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """A variable as a tensor, perhaps of a stated dtype."""
    value = original(variable, dtype, *args, **kwargs)
    return value if dtype is None else cast_float(value, tf.as_dtype(dtype))
