"""What JAX can do on this machine, and how it treats a policy."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from ampbridge.adapters.backend import Model
from ampbridge.adapters.roles.probing import (
    Device,
    Explanation,
    FeatureTreatment,
    OpTreatment,
    Probe,
    Product,
)
from ampbridge.policies import op_table
from ampbridge.policies.hardware import PROBED_DTYPES, cpu_model, verdict
from ampbridge.policies.policy import Policy
from ampbridge.reports.explain import dtype_of, unless_refused
from ampbridge_jax.autocast.casting import outside_of_regions
from ampbridge_jax.autocast.rules import OF_MATRICES, known_ops, rules_of
from ampbridge_jax.model.kinds import kind_of
from ampbridge_jax.model.model_calls import layers

# -- devices


def devices() -> list[Device]:
    """See ``Backend.devices``."""
    return [_device(each) for each in jax.devices()]


def _device(device: jax.Device) -> Device:
    if device.platform == "cpu":
        return Device("cpu" if device.id == 0 else f"cpu:{device.id}", "cpu", cpu_model())
    capability = str(getattr(device, "compute_capability", "")).split(".")
    known = (int(capability[0]), int(capability[1])) if len(capability) == 2 else None
    return Device(f"{device.platform}:{device.id}", device.platform, device.device_kind, known)


def probe(device: Device) -> Probe:
    """See ``Backend.probe``."""
    with outside_of_regions(), jax.default_device(_named(device.name)):
        answers = {dtype: _failure(dtype) for dtype in PROBED_DTYPES}
    failures = {dtype: failure for dtype, failure in answers.items() if failure is not None}
    asked = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    products = "float32" if device.kind == "cpu" else asked or "as XLA chooses"
    return Probe(failures, {"float32 products": products, "compiler": "XLA"})


def _named(name: str) -> jax.Device:
    return next(each for each in jax.devices() if _device(each).name == name)


def _failure(dtype: str) -> str | None:
    """Why a product of two matrices of ones in ``dtype``, or its gradient, fails; None if it works."""
    x = jnp.ones((16, 16), dtype)
    try:
        product = x @ x
        gradient = jax.grad(lambda y: (y @ y).sum())(x)
        right = bool((product == 16).all() and (gradient == 32).all())
    except Exception as error:  # whatever a compiler raises
        return str(error).partition("\n")[0]
    return verdict(dtype, right, {str(product.dtype), str(gradient.dtype)})


# -- models


def products(model: Model) -> list[Product]:
    """See ``Backend.products``."""
    found = []
    for layer in layers(model):
        if isinstance(layer.layer, kind_of(layer.layer).products):
            *window, inputs, outputs = layer.layer.kernel.shape
            found.append(Product(layer.name, layer.kind, inputs, outputs, math.prod(window)))
    return found


# -- policies


def explain(policy: Policy) -> Explanation:
    """See ``Backend.explain``."""
    rules_of(policy)
    ops = {op: _treatment(op, policy) for op in op_table.ops()}
    return Explanation(devices()[0].name, ops, _features(policy))


def _treatment(op: str, policy: Policy) -> OpTreatment:
    if op not in known_ops():
        return OpTreatment("absent", None, "", "JAX has no function of that name, only its parts")
    if policy.level == "O0":
        return OpTreatment("native", "deny", "float32")
    category = policy.category(op)
    is_matmul = category == "promote" and op in OF_MATRICES
    why = "of vectors; of matrices it is matmul" if is_matmul else ""
    return OpTreatment("ampbridge", category, dtype_of(category, policy), why)


def _features(policy: Policy) -> dict[str, FeatureTreatment]:
    plain = Policy("O1", policy.dtype if policy.level != "O0" else "float16")
    casts = FeatureTreatment("ampbridge", "a trace casts the inputs of each op")
    return {
        "O1": casts,
        "O2": FeatureTreatment("ampbridge", "parameters are rounded where they are read"),
        "keep": FeatureTreatment("ampbridge", "a float32 region around each call of the module"),
        "output_dtype": FeatureTreatment("ampbridge", "what a call of the model returns is cast"),
        "masters='float32'": FeatureTreatment("ampbridge", "the Variables stay float32"),
        "masters='kahan'": FeatureTreatment(
            "native", "a float32 Variable is the low weight and its compensation"
        ),
        "masters='stochastic'": FeatureTreatment(
            "ampbridge", "steps round low Variables by chance"
        ),
        "masters=None": FeatureTreatment("ampbridge", "the Variables are low themselves"),
        "slots='bfloat16'": FeatureTreatment(
            "ampbridge", "steps round slots by chance; they are float32 for the update"
        ),
        "save_dtype": FeatureTreatment("refused", "modules of nnx have no state_dict"),
        "master_grad": FeatureTreatment("native", "gradients of float32 Variables are float32"),
        "loss scaling": FeatureTreatment("ampbridge", "the common rule, on the device"),
        "schedules": FeatureTreatment("ampbridge", "a trace for each policy"),
        "fit": FeatureTreatment(
            "native", "Keras' own, of a decorated model; of flax there is none"
        ),
        "recomputation": FeatureTreatment("native", "jax.checkpoint, whose body is cast as well"),
        "lists='native'": unless_refused(lambda: rules_of(plain.replace(lists="native")), casts),
        "execution='native'": FeatureTreatment("native", "XLA's own 16-bit kernels"),
        "execution='simulated'": unless_refused(
            lambda: rules_of(plain.replace(execution="simulated")), casts
        ),
        "compile=True": FeatureTreatment("native", "jax.jit of the whole step"),
    }
