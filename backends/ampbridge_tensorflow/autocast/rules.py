"""What a policy means for TensorFlow: a rule for each op, function and layer, and casts that follow it.

TensorFlow says of each op which inputs share a dtype (the ``OpDef``), so one rule serves every op:
inputs that share a dtype are cast together, to the rule's dtype, or to the widest of theirs.
float64, integer, complex and sparse inputs are left alone, and so is every input they stand with.

Where low precision is simulated the rules are the same. An op that they run in low precision then
takes its inputs, rounded to it, up to float32, and its result is rounded once (see ``simulation``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ampbridge.policies import function_ops
from ampbridge.policies.op_table import Category, no_such_op
from ampbridge.policies.policy import POLICIES_REMEMBERED, Policy
from ampbridge_tensorflow import _private

LOW = frozenset({tf.float16, tf.bfloat16})
FLOATS = LOW | {tf.float32}
ALL_FLOATS = FLOATS | {tf.float64}

# They move, name or convert values and have no precision of their own.
NEVER_CAST = frozenset(
    {
        *("Cast", "Bitcast", "Identity", "IdentityN", "Const", "Placeholder", "NoOp", "Shape"),
        *("ShapeN", "Rank", "Size", "PartitionedCall", "StatefulPartitionedCall", "If"),
        *("StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase"),
        "Fill",  # tf.zeros(shape, dtype) makes sure of the dtype that it was told
    }
)

# Neither their results nor their gradients need arithmetic: low precision computes them exactly.
EXACT = frozenset(
    {
        *("Reshape", "Transpose", "Squeeze", "ExpandDims", "EnsureShape", "ConcatV2", "Concat"),
        *("Pack", "Unpack", "Split", "SplitV", "Slice", "StridedSlice", "Pad", "PadV2"),
        *("ReverseV2", "SpaceToDepth", "DepthToSpace", "StopGradient", "PreventGradient"),
        *("ZerosLike", "OnesLike", "Fill", "Relu", "Neg"),
    }
)

# The bias takes the dtype of what it is added to, as in torch's linear: else it would promote it.
# One op with the product whose result is their first input: the layers that add a bias by AddV2 say so.
BIAS_OPS = frozenset({"BiasAdd", "BiasAddV1"})
LAYERS_BIAS_OPS = BIAS_OPS | {"AddV2"}


class Member(NamedTuple):
    """One input of an op: its position, and whether it is a list of tensors."""

    position: int
    is_list: bool


class Group(NamedTuple):
    """Inputs that share a dtype. If ``target`` is None, they get the widest dtype that arrives.

    ``simulated``: where that is a low one, they are rounded to it and computed with in float32.
    ``adds_bias``: one of them may be a product that waits for its bias, still unrounded.
    """

    attribute: str
    members: tuple[Member, ...]
    target: tf.DType | None
    follows_first: bool = False
    simulated: bool = False
    adds_bias: bool = False


class Plan(NamedTuple):
    """How to cast the inputs of one op: the groups of them, by position.

    ``results`` has the attribute of each output's dtype, or the one of all where they are a list.
    """

    by_position: tuple[Group, ...]
    names: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Rules:
    """One policy, compiled. Its identity is part of the key under which tf.function keeps traces."""

    low: tf.DType
    ops: Mapping[str, Category]
    functions: Mapping[str, Category]
    layers: Mapping[type, Category]
    unlisted: Category
    rounded_back: frozenset[str] = frozenset()
    """Ops of one input whose float32 result is rounded to the dtype in which the input came."""
    simulated: bool = False
    bias_ops: frozenset[str] = BIAS_OPS
    python: Mapping[str, Category] = field(default_factory=dict)
    """Python functions that are ops (``ampbridge.policies.function_ops``), by name."""
    _plans: dict[str, Plan | None] = field(default_factory=dict, init=False)

    def plan(self, op: str) -> Plan | None:
        """How to cast the inputs of ``op``; None where there is nothing to do."""
        if op not in self._plans:
            self._plans[op] = self._make_plan(op)
        return self._plans[op]

    def layer(self, layer: object) -> Category | None:
        """The rule for a Keras layer, that of the nearest base class in the table."""
        return next((self.layers[c] for c in type(layer).__mro__ if c in self.layers), None)

    def dtype(self, rule: Category) -> tf.DType | None:
        """What ``rule`` casts to; None for "promote"."""
        return {"allow": self.low, "deny": tf.float32}.get(rule)

    @cached_property
    def inside(self) -> Rules:
        """The rules inside of an op that has been cast as a whole: they settle mixed dtypes alone."""
        if not self.simulated:
            return PROMOTE_ONLY
        return replace(PROMOTE_ONLY, simulated=True, bias_ops=self.bias_ops)

    @cached_property
    def in_layer(self) -> Rules:
        """The rules inside of a layer that is a product and a bias."""
        return replace(self, bias_ops=LAYERS_BIAS_OPS)

    @property
    def gradients(self) -> Rules:
        """The rules while gradients of this region are built."""
        return SIMULATED_GRADIENTS if self.simulated else GRADIENTS

    def _make_plan(self, op: str) -> Plan | None:
        definition = None if op in NEVER_CAST else _private.value(_private.OP_DEFINITION)(op)
        if definition is None:
            return None
        rule = self.ops.get(op)
        if rule is None:
            rule = "promote" if uses_storage(definition) else self.unlisted
        by_position = tuple(self._groups(definition, rule))
        if not by_position:
            return None
        names = tuple(a.name for a in definition.input_arg)
        return Plan(by_position, names, tuple(a.type_attr for a in definition.output_arg))

    def _groups(self, definition: Any, rule: Category) -> Iterator[Group]:
        """The groups of an op's inputs, by position."""
        inputs = [a for a in enumerate(definition.input_arg) if not a[1].is_ref]
        simulated = self.simulated and _computes(definition)
        for attribute in dict.fromkeys(a.type_attr for _, a in inputs if a.type_attr):
            of_it = [(i, a) for i, a in inputs if a.type_attr == attribute]
            members = tuple(Member(i, bool(a.number_attr)) for i, a in of_it)
            target = self._target(definition, attribute, rule)
            alone = len(members) == 1 and not members[0].is_list
            rounds = simulated and any(a.type_attr == attribute for a in definition.output_arg)
            if target is not None or not alone or rounds:
                first = definition.name in BIAS_OPS and target is None
                adds_bias = rounds and definition.name in self.bias_ops
                yield Group(attribute, members, target, first, rounds, adds_bias)
        fixed = [(i, a) for i, a in inputs if a.type == tf.float32.as_datatype_enum]
        if fixed:  # declared float32 by the op itself
            members = tuple(Member(i, bool(a.number_attr)) for i, a in fixed)
            yield Group("", members, tf.float32)

    def _target(self, definition: Any, attribute: str, rule: Category) -> tf.DType | None:
        """The dtype that ``rule`` gives the inputs of ``attribute``, if op and device have it."""

        def runs_in(dtype: tf.DType) -> bool:
            accepted = _accepts(definition, attribute, dtype)
            return accepted and _has_kernel(definition.name, attribute, dtype)

        if not _accepts(definition, attribute, tf.float32):
            return None
        if rule == "allow" and runs_in(self.low):
            return self.low
        lows = (self.low,) if self.low in LOW else tuple(LOW)
        return None if rule == "promote" and all(map(runs_in, lows)) else tf.float32


def _computes(definition: Any) -> bool:
    """Whether its results are rounded. Where a list is one of several outputs, they cannot be told apart."""
    outputs = definition.output_arg
    some_in_a_list = len(outputs) > 1 and any(a.number_attr for a in outputs)
    return not (definition.name in EXACT or some_in_a_list or uses_storage(definition))


def uses_storage(definition: Any) -> bool:
    """Whether it reads or writes variables or lists, whose own dtype counts."""
    handles = {tf.resource.as_datatype_enum, tf.variant.as_datatype_enum}
    return any(a.type in handles or a.is_ref for a in definition.input_arg)


def _accepts(definition: Any, attribute: str, dtype: tf.DType) -> bool:
    allowed = next(a for a in definition.attr if a.name == attribute)
    if not allowed.HasField("allowed_values"):
        return True
    return dtype.as_datatype_enum in allowed.allowed_values.list.type


@cache
def _has_kernel(op: str, attribute: str, dtype: tf.DType) -> bool:
    """False where the device runs ``op`` in float32 and has no kernel for ``dtype`` (Svd on CPU)."""
    registered = _private.value(_private.KERNELS)
    if registered is None:
        return True
    kernels = registered(op).kernel
    for device in ("GPU", "CPU") if tf.config.list_physical_devices("GPU") else ("CPU",):
        supported = [
            {t for c in k.constraint if c.name == attribute for t in c.allowed_values.list.type}
            for k in kernels
            if k.device_type == device
        ]
        if supported:
            low, full = (
                any(not types or wanted.as_datatype_enum in types for types in supported)
                for wanted in (dtype, tf.float32)
            )
            return low or not full
    return True


# -- rules of a policy


PROMOTE_ONLY = Rules(tf.float32, {}, {}, {}, "promote")

# While gradients are built: dtypes follow the forward pass, but sums are taken in float32 and rounded
# once. TensorFlow's CPU kernels add up in the dtype of their input: BiasAddGrad of 4096 bfloat16 rows
# is some 90 % too small (88 and 94 % on two CPUs), Sum of 65536 float16 rows 94 %. Rounded, since a
# gradient has the dtype of its value, and overflows as on every other backend.
SUMS = frozenset({"BiasAddGrad", "Sum"})
GRADIENTS = Rules(tf.float32, dict.fromkeys(SUMS, "deny"), {}, {}, "promote", SUMS)
# Simulated, every op computes in float32 and rounds once.
SIMULATED_GRADIENTS = replace(PROMOTE_ONLY, simulated=True)


def rules_of(policy: Policy, simulated: bool = False) -> Rules:
    """``policy`` compiled, once.

    Raises:
        PolicyError: if it lists an op that does not exist.
    """
    return _rules_of(policy, simulated, function_ops.rules_of(policy))


@lru_cache(POLICIES_REMEMBERED)
def _rules_of(policy: Policy, simulated: bool, python: function_ops.Rules) -> Rules:
    import keras

    own = policy.own_rules("tf")
    for name in own:
        if not is_defined(name):
            raise no_such_op(f"tf:{name}", f"TensorFlow {tf.__version__}", dir(tf.raw_ops))
    layers = policy.native_rules("keras_layers")
    functions = {**policy.native_rules("keras_ops"), **policy.native_rules("tensorflow_api")}
    full = policy.level == "O0" or policy.op_list.unlisted == "full"
    return Rules(
        tf.as_dtype(policy.compute_dtype),
        {**policy.native_rules("tensorflow"), **own},
        functions,
        {getattr(keras.layers, n): r for n, r in layers.items() if hasattr(keras.layers, n)},
        "deny" if full else "promote",
        simulated=simulated,
        python=dict(python),
    )


def is_defined(op: str) -> bool:
    """Whether TensorFlow, or a library that it has loaded, has an op of that name."""
    return _private.value(_private.OP_DEFINITION)(op) is not None


# -- casting values


def float_dtype(value: Any) -> tf.DType | str | None:
    """The dtype of a tensor or of what becomes one.

    None for values that take any dtype (Python numbers, and NumPy's float64, which TensorFlow
    converts to the dtype of the tensors beside them); "other" for values that are left alone.
    """
    if isinstance(value, tf.Tensor):
        return value.dtype
    dtype = getattr(value, "dtype", None)
    if dtype is None or not hasattr(value, "shape"):
        return None
    if isinstance(value, (tf.SparseTensor, tf.IndexedSlices, tf.RaggedTensor)):
        return "other"
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype == np.float64:
        return None
    try:
        return tf.as_dtype(dtype).base_dtype
    except TypeError:
        return "other"


def float_dtypes(structure: Any) -> set[Any]:
    """The floating dtypes of the values in ``structure``."""
    return set(map(float_dtype, tf.nest.flatten(structure))) & ALL_FLOATS


def cast_float(value: Any, dtype: tf.DType) -> Any:
    """``value`` in ``dtype`` if it is a float16, bfloat16 or float32 tensor, else as it is."""
    found = float_dtype(value)
    return tf.cast(value, dtype) if found in FLOATS and found != dtype else value


def cast_with_mask(value: Any, dtype: tf.DType) -> Any:
    """The same; what Keras has written on the tensor, for the layers and losses after it, is kept."""
    made = cast_float(value, dtype)
    mask, logits = getattr(value, "_keras_mask", None), getattr(value, "_keras_logits", None)
    if mask is not None:
        made._keras_mask = mask
    if logits is not None:
        made._keras_logits = cast_with_mask(logits, dtype)
    return made


_UNROUNDED = "_ampbridge_unrounded"


def rounded(result: Any, low: tf.DType, is_product: bool = False) -> Any:
    """The float32 result of an op that is simulated in ``low``; anything else as it is.

    A product remembers what it was before, for a bias, until the first op that reads it.
    """
    if float_dtype(result) != tf.float32:
        return result
    low_result = tf.cast(result, low)
    if is_product:
        setattr(low_result, _UNROUNDED, result)
    return low_result


def in_float32(value: Any, low: tf.DType) -> Any:
    """``value`` rounded to ``low``, in float32; Python numbers and all else as they are."""
    _unrounded(value)
    return cast_float(cast_float(value, low), tf.float32)


def in_float32_unrounded(value: Any, low: tf.DType) -> Any:
    """The same; but a product that nothing has read yet is returned unrounded."""
    product = _unrounded(value)
    return in_float32(value, low) if product is None else product


def _unrounded(value: Any) -> Any:
    return vars(value).pop(_UNROUNDED, None) if isinstance(value, tf.Tensor) else None


def cast_groups(groups: Sequence[Group], values: list[Any]) -> dict[str, tf.DType]:
    """Cast the inputs of an op in place.

    Returns:
        The low dtype to which each simulated group's results are rounded, by its attribute.
    """
    lows: dict[str, tf.DType] = {}
    cast: Callable[[Any, Any], Any]
    for group in groups:
        found = [(member, _found(values, member)) for member in group.members]
        dtypes = {d for _, ds in found for d in ds if d is not None}
        if not dtypes or not dtypes <= FLOATS:
            continue
        if group.follows_first and found[0][1][0] in LOW:
            target = found[0][1][0]
        elif group.target is None and len(dtypes) == 1:
            (target,) = dtypes
        else:
            target = group.target or tf.float32
        if group.simulated and target in LOW:
            lows[group.attribute] = target
            cast = in_float32_unrounded if group.adds_bias else in_float32
        elif dtypes == {target}:
            continue
        else:
            cast = cast_float
        for (position, is_list), _ in found:
            value = values[position]
            values[position] = [cast(v, target) for v in value] if is_list else cast(value, target)
    return lows


def _found(values: list[Any], member: Member) -> list[Any]:
    """The dtypes of one input. A list of tensors that TensorFlow would stack is stacked here."""
    value = values[member.position]
    if member.is_list:
        return [float_dtype(v) for v in value] if isinstance(value, (list, tuple)) else ["other"]
    if isinstance(value, (list, tuple)) and any(map(tf.is_tensor, tf.nest.flatten(value))):
        value = values[member.position] = tf.convert_to_tensor(value)
    return [float_dtype(value)]


def cast_all(structure: Any, dtype: tf.DType) -> Any:
    """``structure`` with its float16, bfloat16 and float32 values in ``dtype``."""
    return map_floats(lambda value: cast_float(value, dtype), structure)


def map_floats(cast: Callable[[Any], Any], structure: Any) -> Any:
    """``cast`` applied to the values of tuples, lists and dicts, however nested."""
    if isinstance(structure, dict):
        return {k: map_floats(cast, v) for k, v in structure.items()}
    if type(structure) in (tuple, list):
        return type(structure)(map_floats(cast, v) for v in structure)
    return cast(structure)
