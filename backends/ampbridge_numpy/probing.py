"""What NumPy can do on this machine, and how it treats a policy."""

from __future__ import annotations

import autograd.numpy as anp
import numpy as np
from autograd import grad

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
from ampbridge.reports.explain import PARTS_DTYPE, dtype_of, sharing, unless_refused
from ampbridge_numpy import nn
from ampbridge_numpy.autocast import casting, execution
from ampbridge_numpy.autocast.casting import DTYPES, Rules
from ampbridge_numpy.model import decorating

# -- devices


def devices() -> list[Device]:
    """The CPU. NumPy has no use of its bfloat16 instructions: its products are float32's."""
    return [Device("cpu", "cpu", cpu_model())]


def probe(device: Device) -> Probe:
    """See ``Backend.probe``; NumPy by itself, outside of any region."""
    with casting.region(Policy("O0")):
        answers = {dtype: _failure(dtype) for dtype in PROBED_DTYPES}
    failures = {dtype: failure for dtype, failure in answers.items() if failure is not None}
    return Probe(failures, {"float32 products": "float32", "compiler": "none"})


def _failure(dtype: str) -> str | None:
    """Why a product of two matrices of ones in ``dtype``, or its gradient, fails; None if it works."""
    x = np.ones((16, 16), DTYPES[dtype])
    try:
        product = anp.matmul(x, x)
        gradient = grad(lambda y: anp.sum(anp.matmul(y, y)))(x)
    except TypeError as error:
        return str(error).partition("\n")[0]
    right = bool((product == 16).all() and (gradient == 32).all())
    return verdict(dtype, right, {str(product.dtype), str(gradient.dtype)})


# -- models


def products(model: Model) -> list[Product]:
    """See ``Backend.products``: linear and convolution layers; attention is made of them."""
    found = []
    for layer in decorating.layers(model):
        if isinstance(layer.layer, nn.Linear):
            inputs, outputs = layer.layer.weight.shape
            found.append(Product(layer.name, layer.kind, inputs, outputs, 1))
        elif isinstance(layer.layer, nn.Conv2d):
            outputs, inputs, rows, columns = layer.layer.weight.shape
            found.append(Product(layer.name, layer.kind, inputs, outputs, rows * columns))
    return found


# -- policies


def explain(policy: Policy) -> Explanation:
    """See ``Backend.explain``."""
    rules = casting.rules_of(policy)
    ops = {op.name: _treatment(op, policy, rules) for op in op_table.ops().values()}
    own = {
        f"numpy:{name}": OpTreatment("native", "deny", "float32")
        if policy.level == "O0"
        else OpTreatment("ampbridge", rule, dtype_of(rule, policy))
        for name, rule in policy.own_rules("numpy").items()
    }
    return Explanation("cpu", {**ops, **own}, _features(policy))


def _treatment(op: op_table.Op, policy: Policy, rules: Rules) -> OpTreatment:
    """How an op is treated, by the name under which its rule is looked up."""
    spellings = casting.spellings(op)
    if not spellings:
        return OpTreatment("absent", None, "", "neither NumPy nor ampbridge_numpy has such an op")
    if policy.level == "O0":
        return OpTreatment("native", "deny", "float32")
    category = rules.category(spellings[0])
    if op.name == "multi_head_attention" and category != "deny":
        return OpTreatment("ampbridge", category, PARTS_DTYPE, "its parts have rules of their own")
    why = sharing(policy, op.name, category, "numpy", spellings[0])
    if spellings[0] in rules.of_matrices:
        why = "of vectors; of matrices it is matmul"
    return OpTreatment("ampbridge", category, dtype_of(category, policy), why)


def _features(policy: Policy) -> dict[str, FeatureTreatment]:
    plain = Policy("O1", policy.dtype if policy.level != "O0" else "float16")
    casts = FeatureTreatment("ampbridge", "inputs rounded, computed in float32, rounded once")
    return {
        "O1": casts,
        "O2": FeatureTreatment("ampbridge", "parameters are rounded where they are read"),
        "keep": FeatureTreatment("ampbridge", "a float32 region around each call of the module"),
        "output_dtype": FeatureTreatment("ampbridge", "what a call of the model returns is cast"),
        "masters='float32'": FeatureTreatment("ampbridge", "the arrays stay float32"),
        "masters='kahan'": FeatureTreatment(
            "native", "a float32 array is the low weight and its compensation"
        ),
        "masters='stochastic'": FeatureTreatment(
            "ampbridge", "the arrays are rounded by chance after each step"
        ),
        "masters=None": FeatureTreatment("ampbridge", "the arrays are rounded after each step"),
        "slots='bfloat16'": FeatureTreatment(
            "ampbridge", "the arrays are rounded by chance after each step"
        ),
        "save_dtype": FeatureTreatment("refused", "modules of ampbridge_numpy have no state_dict"),
        "master_grad": FeatureTreatment("native", "gradients of float32 arrays are float32"),
        "loss scaling": FeatureTreatment("ampbridge", "the common rule, on the host"),
        "schedules": FeatureTreatment("ampbridge", "the model is fitted to each step's policy"),
        "fit": FeatureTreatment("absent", "train_step in a loop of your own"),
        "recomputation": FeatureTreatment("absent", "autograd keeps every activation"),
        "lists='native'": unless_refused(
            lambda: casting.rules_of(plain.replace(lists="native")), casts
        ),
        "execution='native'": unless_refused(
            lambda: execution.of(plain.replace(execution="native")),
            FeatureTreatment("ampbridge", f"stored in {plain.dtype}, computed in float32"),
        ),
        "execution='simulated'": unless_refused(
            lambda: execution.of(plain.replace(execution="simulated")),
            FeatureTreatment("ampbridge", "the same computation as 'native'"),
        ),
        "compile=True": FeatureTreatment("refused", "NumPy runs op by op and has no compiler."),
    }
