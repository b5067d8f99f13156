"""What this Paddle can do on this machine, and what becomes of a policy here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import paddle

from ampbridge.adapters.roles.probing import (
    Device,
    Explanation,
    FeatureTreatment,
    OpTreatment,
    Probe,
    Product,
)
from ampbridge.policies import op_table
from ampbridge.policies.hardware import PROBED_DTYPES, bfloat16_instructions, cpu_model, verdict
from ampbridge.policies.op_table import Category
from ampbridge.policies.policy import Policy
from ampbridge.reports.explain import PARTS_DTYPE, dtype_of, sharing, unless_refused
from ampbridge_paddle.autocast import casting, execution, float32, simulation
from ampbridge_paddle.autocast.rules import Rules, has_effect, rules_for
from ampbridge_paddle.model import decorating
from ampbridge_paddle.step.gradients import gradients_of

# -- devices


def devices() -> list[Device]:
    """The device that is set, the other accelerators, and the CPU."""
    cpu = Device("cpu", "cpu", cpu_model(), bfloat16_instructions=bfloat16_instructions())
    gpus = paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0
    found = []
    for index in range(gpus):
        name = paddle.device.cuda.get_device_name(index)
        capability = paddle.device.cuda.get_device_capability(index)
        found.append(Device(f"gpu:{index}", "gpu", name, tuple(capability)))
    # What vendors' plugins bring, such as "npu:0"; of a model Paddle knows the kind alone.
    for kind in paddle.device.get_all_custom_device_type() or ():
        count = paddle.device.device_count(kind)
        found += [Device(f"{kind}:{index}", kind, kind) for index in range(count)]
    present = paddle.device.get_device()
    return sorted([*found, cpu], key=lambda device: device.name != present)


def probe(device: Device) -> Probe:
    """See ``Backend.probe``. (``paddle.amp.is_bfloat16_supported`` says yes on CPUs without kernels.)"""
    with casting.region(Policy("O0")), simulation.intercepting_nothing(), paddle.enable_grad():
        answers = {dtype: _failure(device, dtype) for dtype in PROBED_DTYPES}
    failures = {dtype: failure for dtype, failure in answers.items() if failure is not None}
    compiler = "CINN" if paddle.is_compiled_with_cinn() else "built without CINN"
    return Probe(failures, {"float32 products": _float32_products(device), "compiler": compiler})


def _float32_products(device: Device) -> str:
    products, convolutions = (
        "TF32" if allowed and device.kind == "gpu" else "float32" for allowed in float32.read()
    )
    return products if device.kind == "cpu" else f"{products}, of convolutions {convolutions}"


def _failure(device: Device, dtype: str) -> str | None:
    """Why a product of two matrices of ones, or its gradient, fails in ``dtype``; None if it does not."""
    try:
        x = paddle.to_tensor(np.ones((16, 16), np.float32), place=device.name).astype(dtype)
        x.stop_gradient = False
        product = paddle.matmul(x, x)
        (gradient,) = gradients_of(product, [x])
        wide = [tensor.astype("float32").numpy() for tensor in (product, gradient)]
    except (RuntimeError, ValueError, OSError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # A C++ traceback stands around the line that says what is wrong.
        return next((line for line in lines if line.startswith("(")), lines[0] if lines else "")
    found = {str(tensor.dtype).rpartition(".")[2].lower() for tensor in (product, gradient)}
    right = bool((wide[0] == 16).all() and (wide[1] == 32).all())
    return verdict(dtype, right, found)


# -- models


def products(model: Any) -> list[Product]:
    """The matrix products of linear, convolution and recurrent layers."""
    return [
        Product(layer.name, layer.kind, *sizes)
        for layer in decorating.layers(model)
        for sizes in _sizes(layer.layer)
    ]


_CONVOLUTIONS = (paddle.nn.Conv1D, paddle.nn.Conv2D, paddle.nn.Conv3D)
_TRANSPOSED = (paddle.nn.Conv1DTranspose, paddle.nn.Conv2DTranspose, paddle.nn.Conv3DTranspose)
_RECURRENT = (
    *(paddle.nn.SimpleRNNCell, paddle.nn.LSTMCell, paddle.nn.GRUCell),
    *(paddle.nn.SimpleRNN, paddle.nn.LSTM, paddle.nn.GRU),
)


def _sizes(layer: Any) -> Iterator[tuple[int, int, int]]:
    """Inputs, outputs and window of each product."""
    if isinstance(layer, paddle.nn.Linear):
        yield *layer.weight.shape, 1
    elif isinstance(layer, (*_CONVOLUTIONS, *_TRANSPOSED)):
        first, second, *window = layer.weight.shape
        outputs, inputs = (first, second) if isinstance(layer, _CONVOLUTIONS) else (second, first)
        if inputs > 1:  # depthwise: no matrix product
            yield inputs, outputs, math.prod(window)
    elif isinstance(layer, _RECURRENT):
        for name, weight in layer.named_parameters(include_sublayers=False):
            if name.startswith("weight"):
                yield weight.shape[1], weight.shape[0], 1


# -- policies


def explain(policy: Policy) -> Explanation:
    """See ``Backend.explain``."""
    execution.check(policy)
    how = execution.of(policy)
    rules = rules_for(policy)
    ops = {op.name: _treatment(op, policy, rules, how) for op in op_table.ops().values()}
    own = {
        f"paddle:{name}": _kernel_treatment(f"paddle:{name}", name, policy, rules, how)
        for name in policy.own_rules("paddle")
    }
    return Explanation(devices()[0].name, {**ops, **own}, _features(policy, how))


def _kernel_treatment(
    op: str, kernel: str, policy: Policy, rules: Rules, how: Literal["native", "simulated"]
) -> OpTreatment:
    if policy.level == "O0":
        return OpTreatment("native", "deny", "float32")
    category = rules.category(kernel)
    why = sharing(policy, op, category, "paddle_ops", kernel)
    return OpTreatment(_by(how, category), category, dtype_of(category, policy), why)


def _treatment(
    op: op_table.Op, policy: Policy, rules: Rules, how: Literal["native", "simulated"]
) -> OpTreatment:
    """How a region treats ``op``, which is a kernel here, or a function made of several."""
    if not has_effect(op):
        return OpTreatment("absent", None, "", "Paddle has no such op, or it never casts it")
    kernels = op.names.get("paddle_ops", ())
    if kernels:
        return _kernel_treatment(op.name, kernels[0], policy, rules, how)
    if policy.level == "O0":
        return OpTreatment("native", "deny", "float32")
    ruled = [name for name in op.names.get("paddle_api", ()) if name in rules.functions]
    if ruled:
        category = rules.functions[ruled[0]]
        by = _by("simulated" if how == "simulated" else "ampbridge", category)
        return OpTreatment(by, category, dtype_of(category, policy))
    wanted = policy.category(op.name)
    why = "its kernels have rules of their own"
    return OpTreatment(_by(how, wanted), wanted, PARTS_DTYPE, why)


By: TypeAlias = Literal["native", "ampbridge", "simulated"]


def _by(by: By, category: Category) -> By:
    """Float32 is never simulated: the region casts at most what arrives in 16 bits."""
    return "ampbridge" if by == "simulated" and category == "deny" else by


def _features(policy: Policy, how: Literal["native", "simulated"]) -> dict[str, FeatureTreatment]:
    plain = Policy("O1", policy.dtype if policy.level != "O0" else "float16")
    casts, parameters = "paddle.amp.auto_cast with the policy's lists", "paddle.amp.decorate"
    slots = FeatureTreatment("refused", "slots='float32'")
    if how == "simulated":
        casts = "inputs rounded, computed in float32, rounded once"
        parameters = "parameters rounded where they are read"
        slots = FeatureTreatment("ampbridge", "each step of the optimizer rounds slots by chance")
    return {
        "O1": FeatureTreatment(how, casts),
        "O2": FeatureTreatment(how, parameters),
        **FEATURES,
        "slots='bfloat16'": slots,
        "lists='native'": unless_refused(
            lambda: execution.check(plain.replace(lists="native")),
            FeatureTreatment("native", "paddle.amp.auto_cast with its own lists"),
        ),
        "execution='native'": unless_refused(
            lambda: execution.of(plain.replace(execution="native")),
            FeatureTreatment("native", f"Paddle's {plain.dtype} kernels"),
        ),
        "execution='simulated'": unless_refused(
            lambda: execution.of(plain.replace(execution="simulated")),
            FeatureTreatment("simulated", "float32 kernels, inputs and results rounded"),
        ),
        "recomputation": FeatureTreatment(
            "ampbridge", "ampbridge_paddle.recompute runs again in the same region"
        ),
    }


FEATURES: Mapping[str, FeatureTreatment] = {
    "keep": FeatureTreatment("ampbridge", "a float32 region around each call of the layer"),
    "output_dtype": FeatureTreatment("ampbridge", "what a call of the model returns is cast"),
    "masters='float32'": FeatureTreatment("ampbridge", "float32 storage is the master"),
    "masters='kahan'": FeatureTreatment(
        "ampbridge", "float32 storage; on a GPU bfloat16 and the 16 bits that it lacks"
    ),
    "masters='stochastic'": FeatureTreatment(
        "ampbridge", "parameters are rounded by chance after each step of the optimizer"
    ),
    "masters=None": FeatureTreatment(
        "ampbridge", "parameters are rounded after each step of the optimizer"
    ),
    "save_dtype": FeatureTreatment("ampbridge", "a hook of state_dict"),
    "master_grad": FeatureTreatment("native", "float32 gradients"),
    "loss scaling": FeatureTreatment(
        "ampbridge", "the common rule; Paddle's kernel unscales and checks"
    ),
    "schedules": FeatureTreatment("ampbridge", "the model is fitted to each step's policy"),
    "compile=True": FeatureTreatment("native", "paddle.jit.to_static of the loss, by policy"),
    "fit": FeatureTreatment("ampbridge", "paddle.Model's fit, after ampbridge_paddle.prepare"),
}
