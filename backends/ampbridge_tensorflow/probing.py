"""What this TensorFlow can do on this machine, and what becomes of a policy here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal

import tensorflow as tf
from keras import layers

from ampbridge.adapters.roles.probing import (
    Device,
    Explanation,
    FeatureTreatment,
    OpTreatment,
    Probe,
    Product,
)
from ampbridge.policies import hardware, op_table
from ampbridge.policies.hardware import PROBED_DTYPES, bfloat16_instructions, cpu_model, verdict
from ampbridge.policies.op_table import Category
from ampbridge.policies.policy import Policy
from ampbridge.reports.explain import INPUTS_DTYPE, PARTS_DTYPE, dtype_of, sharing, unless_refused
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast import casting, execution
from ampbridge_tensorflow.autocast.functions import (
    LOOKED_INTO,
    names_of,
    owner_of,
    spelling_namespace,
)
from ampbridge_tensorflow.autocast.regions import outside_of_regions
from ampbridge_tensorflow.autocast.rules import Rules
from ampbridge_tensorflow.model import decorating

# -- devices


def devices() -> list[Device]:
    """The devices that TensorFlow places ops on: TPUs, GPUs, and the CPU."""
    found = {kind: tf.config.list_logical_devices(kind) for kind in ("TPU", "GPU", "CPU")}
    return [_device(kind, d.name) for kind, logical in found.items() for d in logical]


def _device(kind: str, full_name: str) -> Device:
    index = full_name.rpartition(":")[2]
    if kind == "CPU":
        return Device("cpu", "cpu", cpu_model(), bfloat16_instructions=bfloat16_instructions())
    details: Mapping[str, Any] = {}
    if kind == "GPU":
        physical = tf.config.get_visible_devices("GPU")
        details = tf.config.experimental.get_device_details(
            physical[min(int(index), len(physical) - 1)]
        )
    return Device(
        f"{kind.lower()}:{index}",
        kind.lower(),
        details.get("device_name", kind),
        details.get("compute_capability"),
    )


@outside_of_regions
def probe(device: Device) -> Probe:
    """See ``Backend.probe``."""
    with tf.device(device.name):
        answers = {dtype: _failure(dtype) for dtype in PROBED_DTYPES}
    settings = {"XLA": _xla(device.name)}
    if device.kind == "cpu":
        settings |= hardware.asked_setting()
    on = device.kind == "gpu" and tf.config.experimental.tensor_float_32_execution_enabled()
    settings["float32 products"] = "TF32" if on else "float32"
    failures = {dtype: failure for dtype, failure in answers.items() if failure is not None}
    return Probe(failures, settings)


def _failure(dtype: str) -> str | None:
    """Why there is no product of two matrices of ones in ``dtype``, with its gradient; or None."""
    try:
        x = tf.ones((16, 16), dtype)
        with tf.GradientTape() as tape:
            tape.watch(x)
            product = tf.matmul(x, x)
        gradient = tape.gradient(product, x)
        right = tf.reduce_all(product == 16) and tf.reduce_all(gradient == 32)
    except tf.errors.OpError as error:
        return str(error.message).partition("\n")[0]
    return verdict(dtype, bool(right), {product.dtype.name, gradient.dtype.name})


@cache  # TensorFlow warns of functions that are traced again and again
def _xla(device: str) -> str:
    """Whether XLA compiles a product there."""
    try:
        with tf.device(device):
            x = tf.ones((16, 16))
            tf.function(lambda: tf.matmul(x, x), jit_compile=True)()
    except tf.errors.OpError as error:
        return f"fails: {error.message.partition(chr(10))[0]}"
    return "compiles"


# -- models


def products(model: Any) -> list[Product]:
    """The products of dense, convolution and recurrent layers that have been built."""
    return [
        Product(layer.name, layer.kind, *sizes)
        for layer in decorating.layers(model)
        if getattr(layer.layer, "built", False)
        for sizes in _sizes(layer.layer)
    ]


def _sizes(layer: Any) -> Iterator[tuple[int, int, int]]:
    """Inputs, outputs and window of each product."""
    if isinstance(layer, layers.Dense):
        yield *layer.kernel.shape, 1
    elif isinstance(layer, layers.EinsumDense):
        terms, _, _ = layer.equation.replace(" ", "").partition("->")
        x, _, kernel = terms.partition(",")
        sides = dict(zip(kernel, layer.kernel.shape, strict=True))
        yield (
            math.prod(n for letter, n in sides.items() if letter in x),
            math.prod(n for letter, n in sides.items() if letter not in x),
            1,
        )
    elif isinstance(layer, (layers.Conv1D, layers.Conv2D, layers.Conv3D)):
        *window, inputs, outputs = layer.kernel.shape
        yield inputs, outputs // layer.groups, math.prod(window)
    elif isinstance(
        layer, (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose)
    ):
        *window, outputs, inputs = layer.kernel.shape
        yield inputs, outputs, math.prod(window)
    elif isinstance(layer, (layers.LSTMCell, layers.GRUCell, layers.SimpleRNNCell)):
        yield *layer.kernel.shape, 1
        yield *layer.recurrent_kernel.shape, 1


# -- policies


def explain(policy: Policy) -> Explanation:
    """See ``Backend.explain``."""
    execution.check(policy)
    rules = casting.rules_for(policy)
    ops = {op.name: _treatment(op, policy, rules) for op in op_table.ops().values()}
    own = {
        f"tf:{name}": OpTreatment("native", "deny", "float32")
        if policy.level == "O0"
        else _op_treatment(f"tf:{name}", name, policy, rules)
        for name in policy.own_rules("tf")
    }
    return Explanation(devices()[0].name, {**ops, **own}, _features(policy, rules))


def _treatment(op: op_table.Op, policy: Policy, rules: Rules) -> OpTreatment:
    """The treatment of the first that ``op`` is here: its own op, a function, another's op, a layer."""
    raw, functions, kinds = names_of(op)
    if policy.level == "O0" and (raw or functions or kinds):
        return OpTreatment("native", "deny", "float32")
    own = [name for name in raw if op_table.native_names("tensorflow")[name][0] == op.name]
    own_functions = [spelling for spelling in functions if owner_of(spelling) == op.name]
    if own_functions and not own:
        spelling = own_functions[0]
        return _whole_treatment(op, spelling, rules.functions[spelling], policy, rules)
    if raw:
        return _op_treatment(op.name, (own or raw)[0], policy, rules)
    categories = [rules.layers[kind] for kind in kinds if kind in rules.layers]
    if categories:
        return _whole_treatment(op, None, categories[0], policy, rules)
    if functions:
        return _whole_treatment(op, functions[0], rules.functions[functions[0]], policy, rules)
    why = "TensorFlow and Keras have no such op, or it is never cast"
    return OpTreatment("absent", None, "", why)


def _by(rules: Rules, category: Category) -> Literal["ampbridge", "simulated"]:
    return "simulated" if rules.simulated and category != "deny" else "ampbridge"


def _whole_treatment(
    op: op_table.Op, spelling: str | None, category: Category, policy: Policy, rules: Rules
) -> OpTreatment:
    """A function of that spelling, or a layer, that is run as one op."""
    by = _by(rules, category)
    if op.name in LOOKED_INTO and category != "deny":
        return OpTreatment(by, category, PARTS_DTYPE, "its parts have rules of their own")
    why = ""
    if spelling is not None:
        why = sharing(policy, op.name, category, spelling_namespace(spelling), spelling)
    return OpTreatment(by, category, dtype_of(category, policy), why)


def _op_treatment(op: str, name: str, policy: Policy, rules: Rules) -> OpTreatment:
    """An op of TensorFlow's own, cast where it enters."""
    category, plan = rules.ops[name], rules.plan(name)
    why = sharing(policy, op, category, "tensorflow", name)
    if plan is None:
        return OpTreatment("native", category, INPUTS_DTYPE, why)
    by_attribute = {group.attribute: group.target for group in plan.by_position}
    attributes = [a.name for a in _private.value(_private.OP_DEFINITION)(name).attr]
    target = by_attribute.get("T" if "T" in attributes else plan.by_position[0].attribute)
    if category != "deny" and target == tf.float32:
        why = f"{name} has no {policy.dtype} kernel"
    return OpTreatment(_by(rules, category), category, target.name if target else INPUTS_DTYPE, why)


def _features(policy: Policy, rules: Rules) -> dict[str, FeatureTreatment]:
    plain = Policy("O1", policy.dtype if policy.level != "O0" else "float16")
    if rules.simulated:
        casts = FeatureTreatment("simulated", "inputs rounded, computed in float32, rounded once")
    else:
        casts = FeatureTreatment("ampbridge", "inputs cast where ops enter TensorFlow")
    return {
        "O1": casts,
        "O2": FeatureTreatment("ampbridge", f"Keras' dtype policies; ops as at O1: {casts.by}"),
        **FEATURES,
        "lists='native'": unless_refused(
            lambda: execution.check(plain.replace(lists="native")),
            FeatureTreatment("native", ""),
        ),
        "execution='native'": unless_refused(
            lambda: execution.of(plain.replace(execution="native")),
            FeatureTreatment("native", f"TensorFlow's {plain.dtype} kernels"),
        ),
        "execution='simulated'": unless_refused(
            lambda: execution.of(plain.replace(execution="simulated")),
            FeatureTreatment("simulated", "float32 kernels, inputs and results rounded"),
        ),
        "recomputation": FeatureTreatment(
            "ampbridge", "tf.recompute_grad runs again under the same rules"
        ),
    }


FEATURES: Mapping[str, FeatureTreatment] = {
    "keep": FeatureTreatment("ampbridge", "a float32 region around each call of the layer"),
    "output_dtype": FeatureTreatment("ampbridge", "what a call of the model returns is cast"),
    "masters='float32'": FeatureTreatment(
        "native", "variables stay float32, and are read in low precision"
    ),
    "masters='kahan'": FeatureTreatment(
        "native", "a float32 variable is the low weight and its compensation"
    ),
    "masters='stochastic'": FeatureTreatment(
        "ampbridge", "variables are rounded by chance after each step of the optimizer"
    ),
    "masters=None": FeatureTreatment(
        "ampbridge", "variables are rounded after each step of the optimizer"
    ),
    "slots='bfloat16'": FeatureTreatment(
        "ampbridge", "moments are rounded by chance after each step of the optimizer"
    ),
    "save_dtype": FeatureTreatment("refused", "Keras and TensorFlow save the float32 variables"),
    "master_grad": FeatureTreatment("native", "gradients of float32 variables are float32"),
    "loss scaling": FeatureTreatment(
        "ampbridge", "the common rule, in variables, without a branch"
    ),
    "schedules": FeatureTreatment(
        "ampbridge", "one trace for each policy; the model is fitted to it"
    ),
    "compile=True": FeatureTreatment("native", "the whole step is a tf.function"),
    "fit": FeatureTreatment(
        "ampbridge", "Keras' fit of a decorated model, with ampbridge_tensorflow.LossScaleOptimizer"
    ),
}
