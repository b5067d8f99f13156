"""The device, a model's products and ``explain``: held against what NumPy is seen to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ampbridge as amp
from ampbridge.adapters.backend import Decoration
from ampbridge.policies import op_table
from ampbridge.reports.explain import FEATURES
from ampbridge_numpy import functional, nn, optim

BACKEND = amp.backend("numpy")
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}

# -- the device


def test_there_is_one_device() -> None:
    (device,) = BACKEND.devices()
    assert (device.name, device.kind, device.bfloat16_instructions) == ("cpu", "cpu", ())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtype_fails_if_numpy_answers_in_another(dtype: str) -> None:
    x = np.ones((4, 4), DTYPES[dtype])
    fails = np.matmul(x, x).dtype != x.dtype
    assert (dtype in BACKEND.probe(BACKEND.devices()[0]).failures) == fails


def test_auto_favours_float32() -> None:
    assert amp.Policy.auto() == amp.Policy("O0")


# -- models


class Net(nn.Module):
    def __init__(self) -> None:
        self.conv = nn.Conv2d(3, 30, 5)
        self.embedding = nn.Embedding(1001, 64)
        self.attention = nn.MultiHeadAttention(64, 4)
        self.norm = nn.LayerNorm(9)
        self.head = nn.Linear(64, 10)


def test_the_products_of_a_model() -> None:
    assert [tuple(product) for product in BACKEND.products(Net())] == [
        ("conv", "Conv2d", 3, 30, 25),
        *(
            (f"attention.{name}", "Linear", 64, 64, 1)
            for name in ("query", "key", "value", "output")
        ),
        ("head", "Linear", 64, 10, 1),
    ]


def test_doctor_of_a_model() -> None:
    report = amp.doctor(Net())
    assert report.recommendation is not None
    assert report.recommendation.policy == amp.Policy("O0")
    assert {finding.layer for finding in report.model.findings} >= {"conv", "head"}


# -- explain: ops; in which dtype they run stands in test_ops.py


def test_absent_are_the_ops_that_nothing_here_is() -> None:
    table = amp.explain("O1", "numpy")
    absent = {row.op for row in table.ops if row.by == "absent"}
    named = {op.name for op in op_table.ops().values() if op.names.get("numpy")}
    ours = {name for name in op_table.ops() if callable(getattr(functional, name, None))}
    assert absent >= set(op_table.ops()) - named - ours - {"slice"}  # which is x[...]
    assert absent.isdisjoint(ours)


# -- explain: features


def decorate(policy: amp.Policy, **options: Any) -> Callable[[], object]:
    def call() -> None:
        model = nn.Linear(8, 8)
        optimizer = optim.SGD(model.parameters(), 0.1)
        BACKEND.decorate(model, optimizer, Decoration(policy, **options))

    return call


def region(**fields: Any) -> Callable[[], object]:
    def call() -> None:
        with BACKEND.autocast(amp.Policy("O1", "bfloat16", **fields)):
            pass

    return call


O2 = amp.Policy("O2", "bfloat16")
ATTEMPTS: dict[str, Callable[[], object]] = {
    "O1": region(),
    "O2": decorate(O2),
    "keep": lambda: amp.decorate(Net(), policy=O2.replace(keep=["head"])),
    "output_dtype": decorate(O2.replace(output_dtype="float16")),
    "masters='float32'": decorate(O2),
    "masters='kahan'": decorate(O2.replace(masters="kahan")),
    "masters='stochastic'": decorate(O2.replace(masters="stochastic")),
    "masters=None": decorate(O2.replace(masters=None)),
    "save_dtype": decorate(O2, save_dtype="float16"),
    "master_grad": decorate(O2, master_grad=True),
    "lists='native'": region(lists="native"),
    "execution='native'": region(execution="native"),
    "execution='simulated'": region(execution="simulated"),
    "compile=True": lambda: BACKEND.compile(lambda loss_fn: loss_fn, np.sum),
}


@pytest.mark.parametrize("feature", ATTEMPTS)
def test_a_feature_is_refused_if_and_only_if_explain_says_so(feature: str) -> None:
    try:
        ATTEMPTS[feature]()
        refused = False
    except amp.UnsupportedError:
        refused = True
    row = amp.explain("O1:bfloat16", "numpy").feature(feature)
    assert (row.by == "refused") == refused, row
    assert row.why


def test_every_feature_is_explained() -> None:
    for policy in ("O0", "O1", "O2:bfloat16"):
        assert tuple(row.feature for row in amp.explain(policy, "numpy").features) == FEATURES


def test_a_refused_policy_is_refused() -> None:
    with pytest.raises(amp.UnsupportedError, match="Hint: "):
        amp.explain(amp.Policy(lists="native"), "numpy")
