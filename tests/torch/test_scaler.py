"""GradScaler in lockstep with torch.amp.GradScaler, in loops written by hand."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn, optim
from torch._subclasses.fake_tensor import FakeTensorMode

import ampbridge as amp
from ampbridge.adapters.backend import FINITE, INF, NAN
from ampbridge.scaling.scale_rule import HostStore, ScalerConfig, ScaleState
from ampbridge_torch import _private
from ampbridge_torch.step.scaling import DeviceStore, unscale

# Factors that float32 has: ours are rounded to it, torch's kernel takes them in double.
settings_of = st.fixed_dictionaries(
    {
        "init_scale": st.sampled_from([1.0, 2.0**10, 2.0**16]),
        "growth_factor": st.sampled_from([1.5, 2.0, 3.0]),
        "backoff_factor": st.sampled_from([0.25, 0.5, 0.75]),
        "growth_interval": st.integers(1, 4),
    }
)
histories = st.lists(st.sampled_from(["finite", "inf", "nan"]), min_size=1, max_size=25)
VALUES = {"finite": 1.0, "inf": math.inf, "nan": math.nan}


def parameter(device: str) -> nn.Parameter:
    return nn.Parameter(torch.ones(2, device=device))


@settings(max_examples=60)
@given(arguments=settings_of, history=histories)
def test_scales_and_steps_are_those_of_torch(arguments: dict[str, Any], history: list[str]) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ours = amp.GradScaler.like("torch", **arguments, warn_after_skips=None)
    theirs = torch.amp.GradScaler(device, **arguments)
    a, b = parameter(device), parameter(device)
    steps = optim.SGD([a], 0.1), optim.SGD([b], 0.1)
    for event in history:
        for scaler, weight, optimizer in zip((ours, theirs), (a, b), steps, strict=True):
            optimizer.zero_grad()
            scaler.scale((weight * VALUES[event]).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert ours.get_scale() == theirs.get_scale()
        assert torch.equal(a, b)
    assert ours.state_dict()["good_steps"] == theirs.state_dict()["_growth_tracker"]


def configs(**fixed: Any) -> st.SearchStrategy[ScalerConfig]:
    drawn = {
        "growth_factor": st.sampled_from([1.0, 1.5, 2.0, 1e30]),
        "backoff_factor": st.sampled_from([0.3, 0.5, 1.0]),
        "growth_interval": st.integers(1, 3),
        "backoff_interval": st.integers(1, 3),
        "min_scale": st.sampled_from([2.0**-20, 2.0**9]),
        "max_scale": st.sampled_from([2.0**11, 2.0**127]),
        "dynamic": st.booleans(),
        "growth_delay": st.integers(0, 2),
        "backoff_count": st.sampled_from(["consecutive", "until_finite", "until_growth"]),
        "at_max_scale": st.sampled_from(["clamp", "keep"]),
    }
    return st.builds(ScalerConfig, **{**drawn, **{k: st.just(v) for k, v in fixed.items()}})


@settings(max_examples=settings.default.max_examples * 3)
@given(
    # Half of them are for torch's kernel.
    config=configs() | configs(backoff_interval=1, growth_delay=0, dynamic=True),
    scale=st.sampled_from([2.0**10, 1.5 * 2.0**10, 1.5 * 2.0**126]),
    history=histories,
)
def test_the_scale_on_a_device_is_the_scale_on_the_host(
    config: ScalerConfig, scale: float, history: list[str]
) -> None:
    """The store for GPUs, whose kernels also run on a CPU, against the rule in plain Python."""
    assume(scale <= config.max_scale)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    first = config.first_state(scale)
    host, on_device = HostStore(first), DeviceStore(first, device)
    for event in history:
        found = FINITE if event == "finite" else INF
        earlier = on_device.read()
        was = [float(value) for value in earlier]
        host.update(found, config)
        on_device.update(torch.tensor(found, device=device), config)
        assert [float(value) for value in on_device.read()] == list(host.read())
        assert [float(value) for value in earlier] == was


def test_torch_s_own_rule_is_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    kernel = _private.lookup("_amp_update_scale_")

    def lookup(name: str) -> Any:
        return (lambda *a: calls.append(1) or kernel(*a)) if "update_scale" in name else None

    monkeypatch.setattr(_private, "lookup", lookup)
    for scaler in (amp.GradScaler.like("torch"), amp.GradScaler()):
        store = DeviceStore(scaler.config.first_state(8.0), torch.device("cpu"))
        store.update(torch.tensor(INF), scaler.config)
        assert float(store.read().scale) == 4.0
    assert len(calls) == 2


def test_the_scale_of_a_cpu_model_is_on_the_host() -> None:
    backend = amp.backend("torch")
    assert isinstance(backend.scale_store(ScaleState(1.0, 0, 0, 0), nn.Linear(1, 1)), HostStore)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_fused_step_on_cuda_does_not_wait(device: str) -> None:
    model = nn.Linear(3, 2).to(device)
    step = amp.train_step(
        lambda m, x: m(x).sum(), model, optim.AdamW(model.parameters(), fused=True), clip_norm=1.0
    )
    x = torch.randn(4, 3, device=device)
    step(x)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        step(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kinds", [*itertools.product([FINITE, INF, NAN], repeat=3)], ids=str)
def test_the_worst_of_several_is_the_same_on_a_device(kinds: tuple[int, ...], device: str) -> None:
    backend = amp.backend("torch")
    on_host = backend.worst(kinds)
    mixed = [torch.tensor(kinds[0], device=device), *kinds[1:]]
    assert int(backend.worst(mixed)) == on_host
    assert on_host == (INF if INF in kinds else NAN if NAN in kinds else FINITE)


def test_unscaled_gradients_can_be_clipped_in_place(device: str) -> None:
    weight = parameter(device)
    optimizer, scaler = optim.SGD([weight], 1.0), amp.GradScaler(8.0)
    scaler.scale((weight * 3).sum()).backward()
    scaler.unscale(optimizer)
    assert torch.equal(weight.grad, torch.full((2,), 3.0, device=device))
    norm = nn.utils.clip_grad_norm_([weight], 1.0)
    assert float(norm) == pytest.approx(3 * math.sqrt(2))
    scaler.step(optimizer)
    assert torch.allclose(weight.detach(), torch.full((2,), 1 - math.sqrt(0.5), device=device))


def test_states_go_to_and_fro(device: str) -> None:
    weight = parameter(device)
    optimizer = optim.SGD([weight], 0.1)
    scaler = amp.GradScaler(2.0**10, growth_interval=5)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    resumed = amp.GradScaler()
    resumed.load_state_dict(scaler.state_dict())
    assert resumed.state_dict() == scaler.state_dict()
    theirs = torch.amp.GradScaler(device, init_scale=2.0**7, growth_interval=9)
    state = {**theirs.state_dict(), "_growth_tracker": 4}
    scaler.load_state_dict(state)
    assert scaler.get_scale() == 2.0**7
    assert scaler.state_dict()["good_steps"] == 4
    assert scaler.config.growth_interval == 9


def test_every_private_name_is_there() -> None:
    """What the adapter looks up in torch; on a newer version this says what moved."""
    for name, entry in _private.NAMES.items():
        if entry.required:
            assert _private.lookup(name) is not None


def test_a_name_that_moved_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = _private.Name("torch._gone_kernel", "GradScaler.unscale", True)
    monkeypatch.setitem(_private.NAMES, "_gone_kernel", moved)
    with pytest.raises(amp.UnsupportedError) as error:
        _private.lookup("_gone_kernel")
    assert str(error.value) == (
        f"torch {torch.__version__} has no torch._gone_kernel, which GradScaler.unscale needs "
        "(checked with torch 2.13).\nHint: pip install 'torch==2.13.*'"
    )
    optional = _private.Name("torch._gone_too", "nothing", False)
    monkeypatch.setitem(_private.NAMES, "_gone_too", optional)
    assert _private.lookup("_gone_too") is None


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([3e38, 3e38], FINITE),  # their sum overflows
        ([3e38, 3e38, math.nan], NAN),
        ([math.inf, -math.inf], INF),  # their sum is NaN
        ([1.0, math.nan], NAN),
        ([math.nan, math.inf], INF),
    ],
)
def test_gradients_that_are_not_scaled_are_told_apart_and_stay(
    values: list[float], found: int
) -> None:
    grads = [torch.ones(3), torch.tensor(values)]
    checked, kind = unscale(grads, None)
    assert int(kind) == found
    assert found != FINITE or torch.equal(checked[1], torch.tensor(values))


def test_another_default_device_is_not_that_of_the_gradients() -> None:
    grads = [torch.ones(3), torch.tensor([1.0, math.nan])]
    with torch.device("meta"):
        assert unscale(grads[:1], None)[1] == FINITE
        assert unscale(grads, None)[1] == NAN
        assert unscale(grads, 2.0)[1] == NAN


def test_a_fused_step_on_a_gpu_waits_for_nothing() -> None:
    """On tensors that are on a GPU by name only: they have no values, and to read one is an error."""
    with FakeTensorMode():
        weight = nn.Parameter(torch.empty(4, 4, device="cuda"))
        optimizer = optim.AdamW([weight], fused=True)
        scaler = amp.GradScaler()
        for _ in range(2):
            assert scaler.scale(torch.empty((), device="cuda")).is_cuda
            weight.grad = torch.empty_like(weight)
            scaler.step(optimizer)
            scaler.update()
        with pytest.raises(RuntimeError):
            scaler.get_scale()
