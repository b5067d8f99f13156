"""What this torch can do on this machine, and what becomes of a policy here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from ampbridge.adapters.roles.probing import (
    Device,
    Explanation,
    FeatureTreatment,
    OpTreatment,
    Probe,
    Product,
)
from ampbridge.policies import op_table
from ampbridge.policies.hardware import (
    PROBED_DTYPES,
    asked_setting,
    bfloat16_instructions,
    cpu_model,
    verdict,
)
from ampbridge.policies.policy import Policy
from ampbridge.reports.explain import PARTS_DTYPE, dtype_of, sharing, unless_refused
from ampbridge_torch import devices as accelerators
from ampbridge_torch.autocast import casting, execution
from ampbridge_torch.autocast.rules import (
    Rule,
    Rules,
    cast_by,
    functions_of,
    is_known,
    native_list,
    ops_without_kernels,
    rules_for,
)
from ampbridge_torch.devices import DeviceType
from ampbridge_torch.model import decorating

# -- devices


def devices() -> list[Device]:
    """See ``Backend.devices``: accelerators, the current one first, and the CPU."""
    cpu = Device("cpu", "cpu", cpu_model(), bfloat16_instructions=_bfloat16_instructions())
    device_type = accelerators.available()
    if device_type is None:
        return [cpu]
    module = accelerators.module_of(device_type)
    current = module.current_device() if hasattr(module, "current_device") else 0  # torch.mps: one
    others = [index for index in range(module.device_count()) if index != current]
    return [*(_accelerator(device_type, index) for index in (current, *others)), cpu]


def _accelerator(device_type: DeviceType, index: int) -> Device:
    module = accelerators.module_of(device_type)
    model = module.get_device_name(index) if hasattr(module, "get_device_name") else device_type
    if device_type != "cuda":
        return Device(f"{device_type}:{index}", device_type, model)
    # What ROCm calls a capability counts AMD's generations.
    capability = None if torch.version.hip else torch.cuda.get_device_capability(index)
    return Device(f"cuda:{index}", "gpu", model, capability)


def _bfloat16_instructions() -> tuple[str, ...]:
    """Torch asks the CPU itself, on every system; before 2.10 the core looks at Linux' flags."""
    if not hasattr(torch.cpu, "get_capabilities"):
        return bfloat16_instructions()
    has = torch.cpu.get_capabilities()
    found = {"AMX": has.get("amx_bf16"), "AVX512-BF16": has.get("avx512_bf16")}
    return tuple(name for name, present in found.items() if present)


def probe(device: Device) -> Probe:
    """See ``Backend.probe``."""
    with casting.region(Policy("O0")), torch.enable_grad():
        answers = {dtype: _failure(device.name, dtype) for dtype in PROBED_DTYPES}
    failures = {dtype: failure for dtype, failure in answers.items() if failure is not None}
    return Probe(failures, _settings(device))


def _failure(device: str, dtype: str) -> str | None:
    """Why there is no product of two matrices of ones in ``dtype``, with its gradient; or None."""
    try:
        x = torch.ones(16, 16, device=device, dtype=casting.DTYPES[dtype], requires_grad=True)
        product = x @ x
        (gradient,) = torch.autograd.grad(product.sum(), x)
        right = (product == 16).all() and (gradient == 32).all()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    found = {str(tensor.dtype).removeprefix("torch.") for tensor in (product, gradient)}
    return verdict(dtype, bool(right), found)


def _settings(device: Device) -> dict[str, str]:
    if device.kind == "cpu":
        compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
        inductor = f"Inductor, with {compiler}" if compiler else "Inductor finds no C++ compiler"
        products = _float32_precision("mkldnn", "matmul")
        return {"float32 products": products, "compiler": inductor, **asked_setting()}
    if device.kind != "gpu":
        return {}
    products = _float32_precision("cuda", "matmul")
    convolutions = _float32_precision("cudnn", "conv")
    triton = "Inductor, with Triton" if find_spec("triton") else "Inductor finds no Triton"
    return {"float32 products": f"{products}, of convolutions {convolutions}", "compiler": triton}


def _float32_precision(backend: str, operator: str) -> str:
    """The precision in which float32 values are multiplied."""
    settings = getattr(getattr(torch.backends, backend), operator, None)
    precision = getattr(settings, "fp32_precision", None)
    if precision is None:  # before torch 2.9
        of_products = torch.get_float32_matmul_precision()
        if backend == "cudnn":
            precision = "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
        elif backend == "mkldnn":
            precision = "bf16" if of_products == "medium" else "ieee"
        else:
            precision = "ieee" if of_products == "highest" else "tf32"
    return {"tf32": "TF32", "bf16": "bfloat16"}.get(precision, "float32")


# -- models


def products(model: nn.Module) -> list[Product]:
    """See ``Backend.products``: linear, convolution, attention and recurrent layers have some."""
    return [
        Product(layer.name, layer.kind, *sizes)
        for layer in decorating.layers(model)
        for sizes in _sizes(layer.layer)
    ]


def _sizes(layer: nn.Module) -> Iterator[tuple[int, int, int]]:
    """Inputs, outputs and window of each product."""
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin) and layer.has_uninitialized_params():
        return
    if isinstance(layer, nn.Linear):
        yield layer.in_features, layer.out_features, 1
    elif isinstance(layer, _ConvNd):
        inputs, outputs = (n // layer.groups for n in (layer.in_channels, layer.out_channels))
        if layer.groups == 1 or inputs > 1:  # depthwise: no matrix product
            yield inputs, outputs, layer.weight[0, 0].numel()
    elif isinstance(layer, nn.MultiheadAttention):
        if layer.in_proj_weight is not None:
            yield layer.embed_dim, 3 * layer.embed_dim, 1
    elif isinstance(layer, (nn.RNNBase, nn.RNNCellBase)):
        for name, weight in layer.named_parameters(recurse=False):
            if name.startswith("weight"):
                yield weight.shape[1], weight.shape[0], 1


# -- policies


def explain(policy: Policy) -> Explanation:
    """See ``Backend.explain``."""
    on = devices()
    device = on[-1] if policy.execution == "simulated" else on[0]  # simulated is the CPU alone
    kind: DeviceType = torch.device(device.name).type
    rules = rules_for(policy, (kind,))
    ops = {op.name: _treatment(op, policy, rules, kind) for op in op_table.ops().values()}
    for name, category in policy.own_rules("torch").items():  # of ops that the op table lacks
        treatment = OpTreatment(_by(rules, category), category, dtype_of(category, policy))
        ops[f"torch:{name}"] = _IN_FLOAT32 if policy.level == "O0" else treatment
    return Explanation(device.name, ops, _features(policy, rules))


_IN_FLOAT32 = OpTreatment("native", "deny", "float32")


def _by(rules: Rules, category: op_table.Category) -> Literal["ampbridge", "simulated"]:
    return "simulated" if rules.simulates and category != "deny" else "ampbridge"


def _treatment(op: op_table.Op, policy: Policy, rules: Rules, kind: DeviceType) -> OpTreatment:
    functions = functions_of(op)
    if not functions:
        return OpTreatment("absent", None, "", "torch has no function that is this op")
    if policy.level == "O0":
        return _IN_FLOAT32
    function, namespace, spelling = functions[0]
    rule = rules.table.get(function)
    if rule is not None and not isinstance(rule, Rule):
        wanted = "promote" if policy.lists == "native" else policy.category(op.name)
        return OpTreatment("ampbridge", wanted, PARTS_DTYPE, "its parts have rules of their own")
    treatment = rule.on(kind) if rule is not None else None
    if treatment is None:
        owner = op_table.native_names(namespace)[spelling][0]
        if not is_known(kind) and owner in cast_by(kind) and policy.lists == "native":
            return OpTreatment("native", None, "", f"torch does not tell the lists of {kind}")
        category = native_list(kind).category(owner)
        by: Literal["native", "ampbridge", "simulated"] = "native"
    else:
        category = "promote" if treatment == "follow" else treatment
        by = _by(rules, category)
    why = (
        "" if policy.lists == "native" else sharing(policy, op.name, category, namespace, spelling)
    )
    if by == "native" and op.name in ops_without_kernels(kind):
        why = "no 16-bit kernel on a CPU"
    return OpTreatment(by, category, dtype_of(category, policy), why)


def _features(policy: Policy, rules: Rules) -> dict[str, FeatureTreatment]:
    plain = Policy("O1", policy.dtype if policy.level != "O0" else "float16")
    types = accelerators.in_use()
    if rules.simulates:
        casts = FeatureTreatment("simulated", "inputs rounded, computed in float32, rounded once")
    elif rules.table:
        what = f"a function mode for {len(rules.table)} functions with other rules"
        casts = FeatureTreatment("ampbridge", f"torch.autocast, and {what}")
    else:
        casts = FeatureTreatment("native", "torch.autocast, whose lists are the policy's")
    under = "the lists that it was called under" if rules.table else "torch.autocast"
    recomputed = FeatureTreatment(
        "ampbridge" if rules.table else "native", f"torch.utils.checkpoint runs again under {under}"
    )
    return {
        "O1": casts,
        "O2": FeatureTreatment("ampbridge", f"parameters cast in place; ops as at O1: {casts.by}"),
        **FEATURES,
        "lists='native'": unless_refused(
            lambda: rules_for(plain.replace(lists="native"), types),
            FeatureTreatment("native", "torch.autocast, with nothing intercepted"),
        ),
        "execution='native'": unless_refused(
            lambda: execution.of(plain.replace(execution="native")),
            FeatureTreatment("native", f"torch's {plain.dtype} kernels"),
        ),
        "execution='simulated'": unless_refused(
            lambda: execution.of(plain.replace(execution="simulated")),
            FeatureTreatment("simulated", "float32 kernels, inputs and results rounded"),
        ),
        "recomputation": recomputed,
    }


FEATURES: Mapping[str, FeatureTreatment] = {
    "keep": FeatureTreatment("ampbridge", "a float32 region around each call of the layer"),
    "output_dtype": FeatureTreatment("ampbridge", "what a call of the model returns is cast"),
    "masters='float32'": FeatureTreatment(
        "ampbridge", "the optimizer steps float32 masters, by its public hooks"
    ),
    "masters='kahan'": FeatureTreatment(
        "ampbridge", "bfloat16 and the 16 bits that it lacks; torch.optim's step chunk by chunk"
    ),
    "masters='stochastic'": FeatureTreatment(
        "ampbridge", "steps round by chance; torch.optim's chunk by chunk"
    ),
    "masters=None": FeatureTreatment("native", "the optimizer steps the low-precision parameters"),
    "slots='bfloat16'": FeatureTreatment(
        "ampbridge", "float32 for a step, then rounded by chance; torch.optim's chunk by chunk"
    ),
    "save_dtype": FeatureTreatment("ampbridge", "a hook of state_dict"),
    "master_grad": FeatureTreatment("native", "float32 .grad of low-precision parameters"),
    "loss scaling": FeatureTreatment(
        "ampbridge", "the common rule; torch's kernels unscale and check"
    ),
    "schedules": FeatureTreatment("ampbridge", "the model is fitted to each step's policy"),
    "compile=True": FeatureTreatment("native", "torch.compile: loss and gradients, and the update"),
    "fit": FeatureTreatment("absent", "torch has no fit: train_step in a loop of your own"),
}
