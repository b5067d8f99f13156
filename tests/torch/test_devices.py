"""Accelerators other than CUDA, of which this build of torch has the autocasts and no kernels.

Fake tensors go through torch's dispatcher as those of the device would, autocast included, and say
which dtype comes out. ``tests/virtual_accelerator`` runs steps, on a device of an extension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch._subclasses.fake_tensor import FakeTensorMode

import ampbridge as amp
from ampbridge_torch import devices
from ampbridge_torch.autocast.casting import region_on
from ampbridge_torch.autocast.rules import has_lists_of_cuda, native_list, rules_for

# With the category that ATen/autocast_mode.h of torch gives each for CUDA; None: it has none.
OPS: dict[str, tuple[Callable[[Tensor], Tensor], str | None]] = {
    "linear": (lambda x: F.linear(x, x), "low"),
    "conv2d": (lambda x: F.conv2d(x.reshape(1, 1, 4, 4), x.reshape(1, 1, 4, 4)), "low"),
    "matmul": (lambda x: x @ x, "low"),
    "einsum": (lambda x: torch.einsum("ij,jk->ik", x, x), "low"),
    "mv": (lambda x: torch.mv(x, x.select(0, 0)), "low"),
    "prelu": (lambda x: F.prelu(x, x.select(0, 0)), "low"),
    "exp": (lambda x: x.exp(), "float32"),
    "pow": (lambda x: x.pow(2), "float32"),
    "layer_norm": (lambda x: F.layer_norm(x, (4,)), "float32"),
    "rms_norm": (lambda x: F.rms_norm(x, (4,)), "float32"),
    "group_norm": (lambda x: F.group_norm(x, 2), "float32"),
    "norm": (lambda x: torch.norm(x, dim=0), "float32"),
    "mse_loss": (lambda x: F.mse_loss(x, x), "float32"),
    "softmax": (lambda x: x.softmax(-1), "float32"),
    "cumsum": (lambda x: x.cumsum(0), "float32"),
    "sum": (lambda x: x.sum(), "float32"),
    "gelu": (lambda x: F.gelu(x), None),
    "tanh": (lambda x: torch.tanh(x), None),
    "mul": (lambda x: x * x, None),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), None),
}
OWN_OF_MPS = {"rms_norm": None, "batch_norm": "float32"}
LOW = torch.bfloat16
POLICY = amp.Policy("O1", "bfloat16")
FLOAT32 = torch.float32


def expected(kind: str | None, arrives: torch.dtype) -> torch.dtype:
    return {"low": LOW, "float32": FLOAT32, None: arrives}[kind]


no_fake_tensors_of_others = pytest.mark.skipif(
    torch.version.cuda is not None and torch.cuda.is_available(),
    reason="beside a GPU torch makes fake tensors of accelerators that it was built for",
)


@no_fake_tensors_of_others
@pytest.mark.parametrize("arrives", [FLOAT32, LOW], ids=str)
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("device_type", ["xpu", "mtia", "mps"])
def test_a_region_follows_cudas_lists(device_type: str, name: str, arrives: torch.dtype) -> None:
    op, cudas = OPS[name]
    own = OWN_OF_MPS.get(name, cudas) if device_type == "mps" else cudas
    with FakeTensorMode():
        x = torch.empty(4, 4, device=device_type, dtype=arrives)
        with torch.autocast(device_type, dtype=LOW):
            assert op(x).dtype == expected(own, arrives)
        with region_on((device_type,), POLICY):
            assert op(x).dtype == expected(cudas, arrives)
        with region_on(("cpu", device_type), POLICY):
            assert op(x).dtype == expected(cudas, arrives)
            assert (torch.empty(2, 2) @ torch.empty(2, 2)).dtype == LOW
        with region_on((device_type,), POLICY.replace(lists="native")):
            assert op(x).dtype == expected(own, arrives)


def test_nothing_is_added_where_the_lists_are_cudas() -> None:
    for device_type in ("cuda", "xpu", "mtia"):
        assert has_lists_of_cuda(device_type)
        assert rules_for(POLICY, (device_type,)).is_empty
        assert native_list(device_type) == native_list("cuda")
    for device_type in ("mps", "hpu", "maia"):
        assert not has_lists_of_cuda(device_type)
        assert rules_for(POLICY, (device_type,)).table[torch.matmul].accelerator == "allow"
        assert rules_for(POLICY, (device_type,)).table[torch.cumsum].accelerator == "deny"
        assert rules_for(POLICY.replace(lists="native"), (device_type,)).is_empty


def test_what_mps_casts_and_the_policy_does_not_is_promoted() -> None:
    rules = rules_for(POLICY, ("mps",)).table
    assert rules[torch.batch_norm].accelerator == "promote"
    assert torch.relu not in rules


def test_a_model_on_a_device_without_autocast_is_refused() -> None:
    for model in (
        nn.Linear(2, 2, device="meta"),
        nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, device="meta")]),
    ):
        step = amp.train_step(lambda m: m(None), model, optim.SGD(model.parameters(), 0.1))
        expected = r"(?s)'meta'.*runs on 'cpu' and on one accelerator.*Hint: model\.to\('cpu'\)"
        with pytest.raises(amp.UnsupportedError, match=expected):
            step()


@no_fake_tensors_of_others
def test_a_model_on_two_accelerators_is_refused() -> None:
    with FakeTensorMode():
        here = {name: torch.empty(1, device=name) for name in ("cpu", "xpu", "mps")}
    assert devices.types_of([here["xpu"]]) == ("xpu",)
    assert devices.types_of([here["mps"], here["cpu"]]) == ("cpu", "mps")
    with pytest.raises(amp.UnsupportedError, match=r"on \['mps', 'xpu'\]"):
        devices.types_of([here["xpu"], here["mps"]])


def test_tensors_without_memory_go_through_a_region() -> None:
    """Torch's autocast knows no ``meta``."""
    x = torch.empty(2, 2, device="meta")
    for policy in (
        POLICY,
        POLICY.replace(execution="simulated"),
        amp.Policy("O1", deny=["matmul"]),
    ):
        with amp.autocast(policy):
            assert (x @ x).dtype == torch.float32
            assert x.cumsum(0).is_meta


# -- a device whose module of torch answers little, as torch.mps does


@pytest.fixture
def mps(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    module = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        state=torch.tensor([1]),
        get_rng_state=lambda: module.state.clone(),
        set_rng_state=lambda state: setattr(module, "state", state),
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda *check: torch.device("mps")
    )
    monkeypatch.setattr(torch, "mps", module)
    torch.get_device_module.cache_clear()
    yield module
    torch.get_device_module.cache_clear()


def test_it_is_in_use_from_the_start(mps: SimpleNamespace) -> None:
    assert devices.in_use() == ("cpu", "mps")
    assert devices.available() == "mps"
    with amp.autocast(POLICY):
        assert torch.is_autocast_enabled("mps")
    mps.is_available = lambda: False
    assert devices.in_use() == ("cpu",)
    assert devices.available() is None


def test_it_is_listed_by_its_type(mps: SimpleNamespace) -> None:
    device, cpu = amp.backend("torch").devices()
    assert device == ("mps:0", "mps", "mps", None, ())
    assert cpu.name == "cpu"


def test_its_random_numbers_are_put_back(mps: SimpleNamespace) -> None:
    with amp.backend("torch").restored(nn.Linear(1, 1)):
        mps.state = torch.tensor([2])
    assert mps.state.tolist() == [1]


def test_its_memory_is_counted_by_us(mps: SimpleNamespace) -> None:
    kept = []
    assert amp.backend("torch").peak_memory(lambda: kept.append(torch.empty(256))) == 1024


def test_torch_s_own_objects_are_made_for_it(mps: SimpleNamespace) -> None:
    native = amp.Policy("O1", "bfloat16", lists="native").to_native("torch")
    assert (native.device, native.fast_dtype) == ("mps", LOW)
    with pytest.warns(amp.AmpBridgeWarning, match="lists of its own for mps"):
        POLICY.to_native("torch")


def test_a_kept_layer_is_float32_in_its_regions(mps: SimpleNamespace) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    amp.decorate(model, policy=POLICY.replace(keep=["1"]))
    seen = []
    model[1].register_forward_hook(lambda *call: seen.append(torch.is_autocast_enabled("mps")))
    model(torch.ones(1, 2))
    amp.undecorate(model)
    assert seen == [False]
