"""Every private name of TensorFlow and Keras that this adapter touches, and no other module does.

Checked on TensorFlow 2.21.0 with Keras 3.15.1 and on 2.18.1 with 3.6.0: both have every name, and the
tests pass. All names are looked up before the first attribute is replaced. A missing required name is
an UnsupportedError that says what moved; without an optional one its feature alone is lost, as the
table says.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from ampbridge.errors import UnsupportedError

CHECKED = "tensorflow 2.21.0 with keras 3.15.1, or 2.18.1 with 3.6.0"


class PrivateName(NamedTuple):
    """One name, and what does not work without it."""

    module: str
    attribute: str
    without_it: str
    required: bool = True

    def __str__(self) -> str:
        return f"{self.module}.{self.attribute}"


def _required(place: str, without_it: str) -> PrivateName:
    """The name at ``place``, written as "module:attribute"."""
    module, attribute = place.split(":")
    return PrivateName(module, attribute, without_it)


def _optional(place: str, without_it: str) -> PrivateName:
    """The same; a version without it loses that one feature."""
    return _required(place, without_it)._replace(required=False)


class Location(NamedTuple):
    """Where an attribute is held, and what ``vars(owner)`` holds there, descriptors included."""

    owner: Any
    attribute: str
    value: Any


# -- where ops enter
EAGER_OP = _required(
    "tensorflow.python.pywrap_tfe:TFE_Py_FastPathExecute", "eager ops do not follow the lists"
)
GRAPH_OP = _required(
    "tensorflow.python.framework.op_def_library:_apply_op_helper",
    "ops in tf.function do not follow the lists",
)
EAGER_FALLBACK = _optional(
    "tensorflow.python.eager.execute:execute",
    "eager ops with inputs that the C function does not take (Python lists) do not follow the lists",
)
RECORD_GRADIENT = _optional(
    "tensorflow.python.eager.execute:record_gradient",
    "gradients of simulated ops in tf.function, taken outside of a region, raise",
)
OP_DEFINITION = _required(
    "tensorflow.python.framework.op_def_registry:get",
    "which inputs of an op share a dtype is unknown",
)
KERNELS = _optional(
    "tensorflow.python.framework.kernels:get_registered_kernels_for_op",
    "ops without a low-precision kernel on this device (Svd, Cholesky, ...) raise",
)
CONVERSION = _required(
    "tensorflow.python.framework.tensor_conversion_registry:convert",
    "Variable.assign(low) and every convert_to_tensor(low, dtype=float32) raise",
)
SPARSE_MATMUL = _optional(
    "tensorflow.python.ops.math_ops:sparse_matmul",
    "tf.matmul(bfloat16, float32) becomes SparseMatMul, whose result is float32",
)
GLOBAL_DISPATCHERS = _optional(
    "tensorflow.python.util.dispatch:_GLOBAL_DISPATCHERS",
    "what compares dtypes in Python (x / y, tf.one_hot, tf.math.divide_no_nan) raises on mixed inputs",
)

# -- traced code
FUNCTION_CONTEXT = _required(
    "tensorflow.python.eager.polymorphic_function.function_context:make_function_context",
    "a traced tf.function is reused under another policy",
)
EAGER_TENSOR = _optional(
    "tensorflow.python.framework.ops:EagerTensor",
    "compiled steps go through tf.function's dispatch, which takes longer",
)
CALL_FLAT = _optional(
    "tensorflow.python.eager.polymorphic_function.concrete_function:ConcreteFunction._call_flat",
    "the same",
)
WHILE_LOOP = _optional(
    "tensorflow.python.ops.while_v2:while_loop",
    "loops whose body returns another float dtype raise",
)
COND = _optional(
    "tensorflow.python.ops.cond_v2:cond_v2",
    "tf.cond raises where its branches end in different float dtypes",
)
INDEXED_CASE = _optional(
    "tensorflow.python.ops.cond_v2:indexed_case",
    "tf.switch_case raises where its branches end in different float dtypes",
)
AUTOGRAPH_LOOP = _optional(
    "tensorflow.python.autograph.operators.control_flow:_verify_single_loop_var",
    "Python loops that AutoGraph converts raise where a variable changes its float dtype",
)
AUTOGRAPH_COND = _optional(
    "tensorflow.python.autograph.operators.control_flow:verify_single_cond_var",
    "Python ifs that AutoGraph converts raise where branches end in different float dtypes",
)
TENSOR_ARRAY_STORES = tuple(
    _optional(
        f"tensorflow.python.ops.tensor_array_ops:TensorArray.{method}",
        f"TensorArray(float32).{method}(low) raises",
    )
    for method in ("write", "unstack", "scatter", "split")
)
TO_AUTOGRAPH = _optional(
    "tensorflow.python.autograph.impl.api:tf_convert",
    "a compiled step does not convert Python control flow on tensors in loss_fn",
)
AUTOGRAPH_STATUS = _optional(
    "tensorflow.python.autograph.core.ag_ctx:control_status_ctx", "the same"
)

# -- variables
VARIABLE_READS = tuple(
    _required(
        f"tensorflow.python.ops.resource_variable_ops:BaseResourceVariable.{method}",
        "variables of tf.Modules stay float32 at O2",
    )
    for method in ("_read_variable_op", "sparse_read", "gather_nd")
)
VARIABLE_TO_TENSOR = _required(
    "tensorflow.python.ops.resource_variable_ops:BaseResourceVariable._dense_var_to_tensor",
    "the same",
)

# -- gradients
EAGER_GRADIENT = _required(
    "tensorflow.python.eager.imperative_grad:imperative_grad",
    "gradients taken inside of a region cast the gradient functions' ops by the lists again",
)
GRAPH_GRADIENT = _required(
    "tensorflow.python.ops.gradients_util:_GradientsHelper",
    "the same, for tf.gradients and the backward pass of tf.function",
)
CUSTOM_GRADIENT_EAGER = _required(
    "tensorflow.python.ops.custom_gradient:_eager_mode_decorator",
    "tf.custom_gradient and tf.recompute_grad run their backward pass in another precision",
)
CUSTOM_GRADIENT_GRAPH = _required(
    "tensorflow.python.ops.custom_gradient:_graph_mode_decorator", "the same, in tf.function"
)

# -- observing
RECORD_OPERATION = _optional(
    "tensorflow.python.eager.record:record_operation_backprop_only",
    "the gradients of ops cannot be observed",
)
STOP_RECORDING = _optional(
    "tensorflow.python.eager.record:stop_recording",
    "what an observer computes would be on the tapes of what it observes",
)
RUNS_EAGERLY = _optional(
    "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function._run_functions_eagerly",
    "ops of tf.functions cannot be observed",
)
PROFILE = _optional(
    "tensorflow.tsl.profiler.protobuf.xplane_pb2:XSpace", "peak memory on CPUs is not known"
)
OF_OBSERVING = (RECORD_OPERATION, STOP_RECORDING, RUNS_EAGERLY)

# -- Keras
LAYER_CALL = _required(
    "keras.src.ops.operation:Operation.__call__",
    "Keras layers do not follow the lists as a whole; Dense ends in float32",
)
OUTPUT_SPEC = _required(
    "keras.src.ops.operation:Operation.compute_output_spec",
    "a functional model that is made inside of a region keeps that region's dtypes",
)
LAYER_BUILD = _required(
    "keras.src.layers.layer:Layer._maybe_build",
    "weights and sublayers that are made inside of a region keep low precision",
)
LAYER_INPUT = _required(
    "keras.src.dtype_policies.dtype_policy:DTypePolicy.convert_input",
    "every float32 layer casts its inputs back up to float32",
)
MODEL_INPUT = _optional(
    "keras.src.models.functional:Functional._convert_inputs_to_tensors",
    "functional models cast low inputs up, and low-precision ones cast float32 inputs down",
)
LAYER_VARIABLES = _required(
    "keras.src.backend.common.variables:AutocastScope",
    "biases stay float32 and promote the results of Dense and Conv",
)
KERAS_STATE = _optional(
    "keras.src.backend.common:global_state",
    "an interrupt between two layers leaves Keras casting variables",
)
LOSS_CLASS = _optional(
    "keras.src.losses.losses:LossFunctionWrapper.call",
    "Keras Loss objects stay float32 where a policy allows their op",
)
MAKE_TRAIN_FUNCTION = _optional(
    "keras.src.backend.tensorflow.trainer:TensorFlowTrainer.make_train_function",
    "nothing says that fit in a float16 region scales no loss",
)
FINITE_BRANCH = _optional(
    "keras.src.optimizers.loss_scale_optimizer:LossScaleOptimizer._stateful_handle_finite_grads",
    "a LossScaleOptimizer cannot follow the rule of a GradScaler",
)
OVERFLOW_BRANCH = _optional(
    "keras.src.optimizers.loss_scale_optimizer:LossScaleOptimizer._stateful_handle_non_finite_grads",
    "the same",
)
EAGER_MODE = _optional(
    "tensorflow.python.eager.context:eager_mode",
    "the first step is traced twice where the optimizer has not been built, and fails on a replica",
)
REDUCE_GRADIENTS = _optional(
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._all_reduce_sum_gradients",
    "Keras' optimizers would sum what the replicas of a strategy have averaged",
)
SNAKE_CASE = _optional(
    "keras.src.utils.naming:to_snake_case",
    "checkpoints of models whose layers have no names are not found to fit in another process",
)
SEED_GENERATOR = _optional(
    "keras.src.random.seed_generator:GLOBAL_SEED_GENERATOR",
    "what Keras draws without a seed is not given back after a look by amp.lens",
)
GLOBAL_GENERATOR = _optional(
    "tensorflow.python.ops.stateful_random_ops:global_generator",
    "what the global tf.random.Generator draws is not given back after a look by amp.lens",
)
EAGER_CONTEXT = _optional(
    "tensorflow.python.eager.context:context",
    "what ops draw by tf.random.set_seed is not given back after a look by amp.lens",
)
SLOT_INDEX = _optional(
    "keras.src.optimizers.base_optimizer:BaseOptimizer._get_variable_index",
    "neutral.optimizer('sgd', ...) has no momentum",
)
PRIVATE_NAMES = (
    *(value for value in globals().values() if isinstance(value, PrivateName)),
    *TENSOR_ARRAY_STORES,
    *VARIABLE_READS,
)


def find(name: PrivateName) -> Location | None:
    """Where ``name`` is held; None if this version has no such name and can do without.

    Raises:
        UnsupportedError: if it is required.
    """
    try:
        owner, attribute = _owner(name)
        return Location(owner, attribute, vars(owner)[attribute])
    except (ImportError, AttributeError, KeyError) as error:
        if not name.required:
            return None
        raise moved(name) from error


@cache
def _owner(name: PrivateName) -> tuple[Any, str]:
    owner: Any = import_module(name.module)
    *path, attribute = name.attribute.split(".")
    for part in path:
        owner = getattr(owner, part)
    return owner, attribute


def value(name: PrivateName) -> Any:
    """What ``name`` stands for, None where ``find`` says None."""
    location = find(name)
    return None if location is None else location.value


def check(*names: PrivateName) -> None:
    """Where something else than a region needs ``names``.

    Raises:
        UnsupportedError: if this version lacks one.
    """
    for name in names:
        if find(name) is None:
            raise moved(name)


def slot_of(optimizer: Any, slots: Any, variable: Any) -> Any:
    """The slot of ``variable`` among those that a Keras optimizer has one of for each variable."""
    check(SLOT_INDEX)
    return slots[value(SLOT_INDEX)(optimizer, variable)]


def moved(name: PrivateName) -> UnsupportedError:
    """The error for a required name that this version lacks."""
    import keras
    import tensorflow as tf

    msg = (
        f"TensorFlow {tf.__version__} with Keras {keras.__version__} has no {name}; without it "
        f"{name.without_it}.\n"
        f"Hint: use a checked version, {CHECKED}; policy='O0' needs none of it."
    )
    return UnsupportedError(msg)


def op_seeds() -> random.Random | None:
    """The generator of eager ops' seeds, which ``tf.random.set_seed`` makes; None before."""
    context = value(EAGER_CONTEXT)
    return None if context is None else getattr(context(), "_rng", None)


def set_op_seeds(seeds: random.Random) -> None:
    """Replace the generator that ``op_seeds`` returns."""
    value(EAGER_CONTEXT)()._rng = seeds


def keras_seed_generator() -> Any:
    """Keras' generator for seeds that its user does not give; None if none was needed yet."""
    key, state = value(SEED_GENERATOR), value(KERAS_STATE)
    return None if key is None or state is None else state.get_global_attribute(key)


def set_keras_seed_generator(generator: Any) -> None:
    """Replace it; after None Keras makes a new one when it needs one."""
    key, state = value(SEED_GENERATOR), value(KERAS_STATE)
    if key is not None and state is not None:
        state.set_global_attribute(key, generator)


def optimizer_parameters(optimizer: Any) -> list[Any] | None:
    """What a Keras optimizer was built for (``_trainable_variables``); None if not built, or moved."""
    if not getattr(optimizer, "built", False):
        return None
    found = getattr(optimizer, "_trainable_variables", None)
    return None if found is None else list(found)


def slot_lists(optimizer: Any) -> dict[str, Sequence[Any]]:
    """The lists of a Keras optimizer that have a slot for each of its parameters, or None, by attribute."""
    count = len(optimizer_parameters(optimizer) or ())
    return {
        attribute: value
        for attribute, value in vars(optimizer).items()
        if isinstance(value, (list, tuple)) and len(value) == count and not is_machinery(attribute)
    }


NO_MOMENTS = frozenset({"_model_variables_moving_average", "_accumulated_gradients"})
"""The lists of slots that any Keras optimizer may have: averages of weights, sums of gradients."""


def trackers(optimizer: Any) -> list[Any]:
    """See ``Backend.records``: a Keras optimizer's ``_tracker``.

    It passes over a variable whose ``id`` it has met before.
    """
    found = getattr(optimizer, "_tracker", None)
    return [] if found is None else [found]


# -- attributes of objects


def is_machinery(attribute: str) -> bool:
    """Whether Keras or TensorFlow keep records of their own there, on a layer, module or optimizer."""
    return attribute in MACHINERY or attribute.startswith("_self_")


MACHINERY = frozenset(
    {
        "_layers",
        "_functional",
        "_operations",
        "_operations_by_depth",
        "_tracker",
        "_metrics",
        "_variables",
        "_trainable_variables",
        "_non_trainable_variables",
        "_seed_generators",
    }
)


def gradients_on(
    tape: Any, targets: list[Any], sources: list[Any], gradients: list[Any]
) -> list[Any]:
    """The gradients of ``sources`` on a tf.GradientTape, from those of ``targets``.

    ``GradientTape.gradient`` would make tensors of IndexedSlices; this is what it calls (with
    ``tape._tape``).
    """
    found: list[Any] = value(EAGER_GRADIENT)(tape._tape, targets, sources, gradients)
    return found


def sublayers(layer: Any, recursive: bool = False) -> list[Any]:
    """The layers below a Keras layer, directly or not, in the order of ``Layer._layers``."""
    return list(layer._flatten_layers(include_self=False, recursive=recursive))


def set_dtype_policy(layer: Any, policy: Any) -> None:
    """Set the dtype policy of a Keras layer (``_dtype_policy``) and of no other.

    The public setter writes into the DTypePolicyMap that a layer may share with others, and quantizes.
    """
    layer._dtype_policy = policy


def is_preprocessing(layer: Any) -> bool:
    """Whether it is one of Keras' preprocessing layers, by the module of its class."""
    return any(
        c.__module__.startswith("keras.src.layers.preprocessing") for c in type(layer).__mro__
    )


def is_keras_variable(value: Any) -> bool:
    """Whether it is a Keras variable; those of layers are no ``keras.Variable`` in Keras 3.6."""
    return isinstance(value, _keras_variable())


@cache
def _keras_variable() -> type:
    import keras

    bases = keras.Variable.__mro__
    module = "keras.src.backend.common.variables"
    kind: type = next((base for base in bases if base.__module__ == module), keras.Variable)
    return kind


def is_autocast(variable: Any) -> bool:
    """Whether a Keras variable is cast to the compute dtype of the layer that reads it (``_autocast``)."""
    return bool(variable._autocast)


def set_autocast(variable: Any, autocast: bool) -> None:
    """Set what ``is_autocast`` tells."""
    variable._autocast = autocast


def buffers(layer: Any) -> list[Any]:
    """The variables that a Keras layer has made as non-trainable (``_non_trainable_variables``).

    Those of a frozen layer are not among them.
    """
    return list(layer._non_trainable_variables)


def rebuild(sequential: Any) -> None:
    """Build a Sequential model once more, if it has been, that had no InputLayer before."""
    if sequential._functional is None:
        return
    inputs, *sequential._layers = sequential._layers
    sequential._functional = None
    sequential.build(inputs.batch_shape)


def is_recomputed(function: Any) -> bool:
    """Whether a function with a custom gradient was made by ``tf.recompute_grad``."""
    return getattr(function, "__qualname__", "") == "recompute_grad.<locals>.inner"


def keras_implementation(function: Any) -> Any:
    """What ``keras.ops.name`` and its node in a functional model both call.

    It is ``_name`` beside the public function, or ``keras.src.backend.tensorflow.<area>.name``.
    """
    area, name = function.__module__.rpartition(".")[2], function.__name__
    try:
        backend = import_module(f"keras.src.backend.tensorflow.{area}")
    except ImportError:
        backend = None
    beside = import_module(function.__module__)
    return getattr(beside, f"_{name}", None) or getattr(backend, name, None)


def runs_eagerly(traced: Any) -> bool:
    """Whether ``traced``, a tf.function, would run as the Python that it was made of."""
    name = RUNS_EAGERLY.attribute.rpartition(".")[2]
    eagerly: bool = getattr(traced, name, True)
    return eagerly


def direct_call(concrete: Any) -> Callable[[list[Any]], Any] | None:
    """A call of a concrete function with its tensors alone, past the check of its signature."""
    call = value(CALL_FLAT)
    if call is None:
        return None
    # What is captured may be a function of the moment, as a replica's copy of a variable is.
    return lambda tensors: call(concrete, tensors, concrete.captured_inputs)


def with_autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` converted by AutoGraph where the calling code is; else itself."""
    convert, status = value(TO_AUTOGRAPH), value(AUTOGRAPH_STATUS)
    if convert is None or status is None:
        return function
    converted: Callable[..., Any] = convert(function, status())
    return converted
