"""Devices, a model's products and ``explain``: held against what Paddle does without ampbridge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import pytest
from paddle import nn

import ampbridge as amp
import ampbridge_paddle
from ampbridge.adapters.backend import Decoration
from ampbridge.reports.explain import FEATURES
from ampbridge_paddle import probing
from ampbridge_paddle.autocast.rules import rules_for

BACKEND = amp.backend("paddle")
on_cpu = pytest.mark.skipif(paddle.device.get_device() != "cpu", reason="what Paddle has on a CPU")

# -- devices


def test_the_device_that_is_set_comes_first() -> None:
    devices = BACKEND.devices()
    assert devices[0].name == paddle.device.get_device()
    assert "cpu" in [device.name for device in devices]


def test_two_gpus_by_what_paddle_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU."""
    cuda = paddle.device.cuda
    monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cuda, "get_device_name", lambda index: f"GPU {index}")
    monkeypatch.setattr(cuda, "get_device_capability", lambda index: (7, 5))
    monkeypatch.setattr(paddle.device, "get_device", lambda: "gpu:1")
    first, second, cpu = BACKEND.devices()
    assert first == ("gpu:1", "gpu", "GPU 1", (7, 5), ())
    assert second == ("gpu:0", "gpu", "GPU 0", (7, 5), ())
    assert cpu.name == "cpu"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_dtype_fails_if_and_only_if_paddle_fails_in_it(dtype: str) -> None:
    x = paddle.ones([8, 8]).astype(dtype)
    x.stop_gradient = False
    try:
        paddle.grad([paddle.matmul(x, x)], [x])
        works = True
    except RuntimeError:
        works = False
    assert (dtype not in BACKEND.probe(BACKEND.devices()[0]).failures) == works


@on_cpu
@pytest.mark.parametrize("answer", [True, False])
def test_paddle_s_own_answer_is_not_taken(answer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says yes on CPUs with AVX512, of which none has a kernel."""
    monkeypatch.setattr(paddle.amp, "is_bfloat16_supported", lambda *_: answer)
    failures = BACKEND.probe(BACKEND.devices()[0]).failures
    assert "kernel `matmul` is not registered" in failures["bfloat16"]
    assert "\n" not in failures["bfloat16"]
    assert amp.Policy.auto() == amp.Policy("O0")


@on_cpu
def test_probing_sees_paddle_and_not_the_caller_s_region() -> None:
    outside = BACKEND.probe(BACKEND.devices()[0])
    with amp.autocast("O1:bfloat16", backend="paddle"), paddle.no_grad():
        assert BACKEND.probe(BACKEND.devices()[0]) == outside


# -- models


def test_the_products_of_a_model() -> None:
    model = nn.Sequential(
        nn.Conv2D(3, 30, 5),
        nn.Conv2D(32, 32, 3, groups=32),
        nn.Conv1DTranspose(16, 8, 4),
        nn.Embedding(1001, 64),
        nn.LSTMCell(10, 20),
        nn.TransformerEncoderLayer(64, 4, 100),
        nn.LayerNorm(9),
    )
    assert [tuple(product) for product in BACKEND.products(model)] == [
        ("0", "Conv2D", 3, 30, 25),
        ("2", "Conv1DTranspose", 16, 8, 4),
        ("4", "LSTMCell", 10, 80, 1),
        ("4", "LSTMCell", 20, 80, 1),
        *(
            (f"5.self_attn.{name}", "Linear", 64, 64, 1)
            for name in ("q_proj", "k_proj", "v_proj", "out_proj")
        ),
        ("5.linear1", "Linear", 64, 100, 1),
        ("5.linear2", "Linear", 100, 64, 1),
    ]


def test_the_products_of_a_recurrent_network() -> None:
    sizes = {product[2:] for product in BACKEND.products(nn.LSTM(10, 20))}
    assert sizes == {(10, 80, 1), (20, 80, 1)}


def test_doctor_of_a_model() -> None:
    model = nn.Sequential(nn.Linear(256, 250), nn.Linear(250, 256).to(dtype="float64"))
    report = amp.doctor(model)
    assert report.model is not None
    assert [
        (finding.layer, finding.what.partition(":")[0]) for finding in report.model.findings
    ] == [
        ("1", "float64 parameters (2)"),
        ("0", "250 outputs"),
        ("1", "250 inputs"),
    ]


# -- explain: ops; in which dtype they run stands in test_ops.py


def test_a_shared_kernel_says_with_whom() -> None:
    row = amp.explain(amp.Policy(deny=["tensordot"]), "paddle").op("matmul")
    assert (row.category, row.why) == ("deny", "one with tensordot (matmul)")


def test_on_a_gpu_kernels_are_cast_by_paddle_and_functions_by_us() -> None:
    """The rules alone: the labels need no GPU."""
    from ampbridge.policies import op_table

    policy = amp.Policy()
    rules = rules_for(policy)

    def by(op: str) -> str:
        return probing._treatment(op_table.ops()[op], policy, rules, "native").by

    assert (by("matmul"), by("softmax"), by("mse_loss")) == ("native", "native", "ampbridge")


# -- explain: features


def decorate(policy: amp.Policy, **options: Any) -> Callable[[], object]:
    def call() -> None:
        model = nn.Linear(8, 8)
        optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
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
    "compile=True": lambda: BACKEND.compile(lambda loss_fn: loss_fn, paddle.sum),
}


@pytest.mark.filterwarnings("ignore::ampbridge.SimulationWarning")
@pytest.mark.parametrize("feature", ATTEMPTS)
def test_a_feature_is_refused_if_and_only_if_explain_says_so(feature: str) -> None:
    try:
        ATTEMPTS[feature]()
        refused = False
    except amp.UnsupportedError:
        refused = True
    row = amp.explain("O1:bfloat16", "paddle").feature(feature)
    assert (row.by == "refused") == refused, row
    assert row.why


def test_what_fit_needs_is_there() -> None:
    assert "ampbridge_paddle.prepare" in amp.explain("O1:bfloat16", "paddle").feature("fit").why
    assert callable(ampbridge_paddle.prepare)


def test_every_feature_is_explained() -> None:
    for policy in ("O0", "O1", "O2:bfloat16"):
        assert tuple(row.feature for row in amp.explain(policy, "paddle").features) == FEATURES


@on_cpu
def test_a_refused_policy_is_refused() -> None:
    for refused in (amp.Policy(lists="native"), amp.Policy(execution="native")):
        with pytest.raises(amp.UnsupportedError, match="Hint: "):
            amp.explain(refused, "paddle")
