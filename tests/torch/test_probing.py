"""Devices, a model's products and ``explain``: held against what torch does without ampbridge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from recorder import run_eager
from test_ops import CASES, inputs_of
from torch import nn

import ampbridge as amp
from ampbridge.adapters.backend import Decoration
from ampbridge.adapters.roles.probing import Device
from ampbridge.policies import hardware, op_table
from ampbridge.reports.explain import FEATURES
from ampbridge_torch import probing

BACKEND = amp.backend("torch")
LOW = "bfloat16"

# -- devices


def test_the_cpu_comes_last_and_gpus_first() -> None:
    devices = BACKEND.devices()
    assert devices[-1].name == "cpu"
    assert len(devices) == 1 + torch.cuda.device_count()
    if torch.cuda.is_available():
        assert devices[0].name == f"cuda:{torch.cuda.current_device()}"
        assert devices[0].compute_capability == torch.cuda.get_device_capability()


@pytest.mark.parametrize("hip, capability", [(None, (8, 6)), ("6.2", None)])
def test_two_gpus_by_what_torch_says(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, capability: tuple[int, int] | None
) -> None:
    """Without a GPU. ROCm's capabilities are not NVIDIA's."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8, 6))
    monkeypatch.setattr(torch.version, "hip", hip)
    first, second, cpu = BACKEND.devices()
    assert first == ("cuda:1", "gpu", "GPU 1", capability, ())
    assert second == ("cuda:0", "gpu", "GPU 0", capability, ())
    assert cpu.name == "cpu"


def test_the_settings_of_a_gpu() -> None:
    """They can be read without one."""
    gpu = Device("cuda:0", "gpu", "A GPU", (8, 0))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert probing._settings(gpu)["float32 products"] == "TF32, of convolutions TF32"
        torch.set_float32_matmul_precision("highest")
        assert probing._settings(gpu)["float32 products"] == "float32, of convolutions TF32"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_dtype_fails_if_and_only_if_torch_fails_in_it(dtype: torch.dtype) -> None:
    for device in BACKEND.devices():
        x = torch.ones(8, 8, device=device.name, dtype=dtype, requires_grad=True)
        try:
            (x @ x).sum().backward()
            works = x.grad is not None and x.grad.dtype == dtype
        except RuntimeError:
            works = False
        assert (str(dtype).removeprefix("torch.") not in BACKEND.probe(device).failures) == works


def test_a_dtype_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.bfloat16:
            raise RuntimeError("no kernel for bfloat16\nC++ stack")
        return torch.matmul(x, y)

    monkeypatch.setattr(torch.Tensor, "__matmul__", matmul)
    assert BACKEND.probe(BACKEND.devices()[-1]).failures == {LOW: "no kernel for bfloat16"}


def test_probing_sees_torch_and_not_the_caller_s_region() -> None:
    with amp.autocast("O1:bfloat16", backend="torch"), torch.no_grad():
        assert "float32" not in BACKEND.probe(BACKEND.devices()[-1]).failures


def test_the_precision_of_float32_products_is_told() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert BACKEND.probe(BACKEND.devices()[-1]).settings["float32 products"] == "bfloat16"
        torch.set_float32_matmul_precision("highest")
        assert BACKEND.probe(BACKEND.devices()[-1]).settings["float32 products"] == "float32"
    finally:
        torch.set_float32_matmul_precision(before)


def test_what_auto_is_stands_among_the_settings_where_the_environment_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for asked, setting in (("auto", None), ("native", "native, by AMPBRIDGE_CPU_EXECUTION")):
        monkeypatch.setattr(hardware, "asked_execution", lambda asked=asked: asked)
        settings = BACKEND.probe(BACKEND.devices()[-1]).settings
        assert settings.get("execution='auto'") == setting


@pytest.mark.skipif(torch.cuda.is_available(), reason="what a CPU favours")
def test_auto_favours_bfloat16_where_the_cpu_multiplies_it() -> None:
    flags = BACKEND.devices()[0].bfloat16_instructions
    assert str(amp.Policy.auto("cpu")) == ("O1:bfloat16" if flags else "O0")
    assert amp.Policy.auto() == amp.Policy.auto(torch.device("cpu"))


# -- models


def test_the_products_of_a_model() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 30, 5),
        nn.Conv2d(32, 32, 3, groups=32),
        nn.ConvTranspose1d(16, 8, 4),
        nn.Embedding(1001, 64),
        nn.LSTM(10, 20),
        nn.TransformerEncoderLayer(64, 4, 100),
        nn.LazyLinear(7),
        nn.LayerNorm(9),
    )
    assert [tuple(product) for product in BACKEND.products(model)] == [
        ("0", "Conv2d", 3, 30, 25),
        ("2", "ConvTranspose1d", 16, 8, 4),
        ("4", "LSTM", 10, 80, 1),
        ("4", "LSTM", 20, 80, 1),
        ("5.self_attn", "MultiheadAttention", 64, 192, 1),
        ("5.self_attn.out_proj", "NonDynamicallyQuantizableLinear", 64, 64, 1),
        ("5.linear1", "Linear", 64, 100, 1),
        ("5.linear2", "Linear", 100, 64, 1),
    ]


def test_doctor_of_a_model() -> None:
    model = nn.Sequential(nn.Linear(256, 250), nn.Linear(250, 256).double())
    report = amp.doctor(model)
    assert report.model is not None
    assert [
        (finding.layer, finding.what.partition(":")[0]) for finding in report.model.findings
    ] == [
        ("1", "float64 parameters (2)"),
        ("0", "250 outputs"),
        ("1", "250 inputs"),
    ]


def test_a_decorated_model_is_no_finding() -> None:
    model = amp.decorate(nn.Linear(256, 256), policy="O2:bfloat16")
    assert amp.doctor(model).model.findings == ()


# -- explain: ops; in which dtype they run stands in test_ops.py


def test_an_op_that_shares_its_function_says_so() -> None:
    policy = amp.Policy("O1", LOW, lists="paddle", execution="native")
    row = amp.explain(policy, "torch").op("depthwise_conv2d")
    assert (row.category, row.why) == ("allow", "one with conv2d (torch.nn.functional.conv2d)")


def test_what_torch_has_not_is_absent() -> None:
    row = amp.explain("O1", "torch").op("swiglu")
    assert (row.by, row.category, row.dtype) == ("absent", "", "")


def test_absent_are_the_ops_without_a_function() -> None:
    absent = {row.op for row in amp.explain("O1:bfloat16", "torch").ops if row.by == "absent"}
    named = {op.name for op in op_table.ops().values() if {"torch", "aten"} & op.names.keys()}
    assert absent.isdisjoint(CASES)
    assert set(op_table.ops()) - named <= absent


@pytest.mark.filterwarnings("ignore::ampbridge.SimulationWarning")
@pytest.mark.parametrize("op", ["matmul", "tanh", "softmax"])
def test_simulated_ops_compute_in_float32_and_round(op: str) -> None:
    policy = amp.Policy("O1", LOW, execution="simulated")
    row, case = amp.explain(policy, "torch").op(op), CASES[op]
    x = inputs_of(case, "cpu", LOW)
    ran = run_eager(case.run, x, amp.autocast(policy, backend="torch"))
    with amp.autocast(policy, backend="torch"):
        result = case.run(*x)
    assert ran.dtypes == {"float32"}
    assert row.by == ("simulated" if result.dtype == torch.bfloat16 else "ampbridge")


# -- explain: features


def tried(call: Callable[[], object]) -> bool:
    """Whether it is refused."""
    try:
        call()
    except amp.UnsupportedError:
        return True
    return False


def decorate(policy: amp.Policy, **options: Any) -> Callable[[], object]:
    def call() -> None:
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        BACKEND.decorate(model, optimizer, Decoration(policy, **options))

    return call


def region(**fields: Any) -> Callable[[], object]:
    def call() -> None:
        with BACKEND.autocast(amp.Policy("O1", LOW, **fields)):
            pass

    return call


O2 = amp.Policy("O2", LOW)
ATTEMPTS: dict[str, Callable[[], object]] = {
    "O1": region(),
    "O2": decorate(O2),
    "keep": lambda: amp.decorate(nn.Sequential(nn.Linear(2, 2)), policy=O2.replace(keep=["0"])),
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
    "compile=True": lambda: BACKEND.compile(lambda loss_fn: loss_fn, torch.sum),
}


@pytest.mark.filterwarnings("ignore::ampbridge.SimulationWarning")
@pytest.mark.parametrize("feature", ATTEMPTS)
def test_a_feature_is_refused_if_and_only_if_explain_says_so(feature: str) -> None:
    row = amp.explain("O1:bfloat16", "torch").feature(feature)
    assert (row.by == "refused") == tried(ATTEMPTS[feature]), row
    assert row.why


def test_every_feature_is_explained() -> None:
    for policy in ("O0", "O1", "O2:bfloat16"):
        assert tuple(row.feature for row in amp.explain(policy, "torch").features) == FEATURES
