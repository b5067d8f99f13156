"""Training steps on a device of an extension: against torch's own loop there, and the CPU's numbers.

The device computes 16-bit kernels in float32 and rounds once, as the simulation on the CPU does. So
under one policy both have the same bits, though casts are made by the one and simulated by the other.
"""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.library import Library

import ampbridge as amp
from ampbridge_rehearse import virtual_cuda
from ampbridge_torch.step import scaling

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
CASES = [("O1", "bfloat16"), ("O1", "float16"), ("O2", "bfloat16"), ("O2", "float16")]
levels = pytest.mark.parametrize("level, low", CASES)
STEPS = 6
OVERFLOWS_AT = 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.second = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(F.relu(self.first(x))))
        return self.second(x).cumsum(1)


def net() -> Net:
    torch.manual_seed(1)
    return Net()


def batches(overflow: bool = False) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(2)
    x, y = torch.randn(5, 6), torch.randn(5, 4)
    made = [(x.clone(), y) for _ in range(STEPS)]
    if overflow:
        made[OVERFLOWS_AT][0][0, 0] = math.inf
    return made


def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x).float(), y)


def optimizer(model: nn.Module, **options: Any) -> optim.Optimizer:
    return optim.AdamW(model.parameters(), lr=0.05, **options)


def trained(
    device: str, policy: amp.Policy, overflow: bool = False, fused: bool = False, **options: Any
) -> tuple[list[float], list[bool], dict[str, Tensor], float | None]:
    """The losses, which steps were applied, the weights and the scale."""
    model = net().to(device)
    step = amp.train_step(loss_fn, model, optimizer(model, fused=fused), policy=policy, **options)
    losses, applied = [], []
    for x, y in batches(overflow):
        result = step(x.to(device), y.to(device))
        losses.append(float(result.loss))
        applied.append(bool(result.applied))
    with amp.undecorated(model):
        weights = {name: value.detach().cpu() for name, value in model.named_parameters()}
    scale = None if step.scaler is None else step.scaler.get_scale()
    return losses, applied, weights, scale


def same(some: Any, others: Any) -> bool:
    (losses, applied, weights, scale), (losses_2, applied_2, weights_2, scale_2) = some, others
    return (
        torch.equal(torch.tensor(losses), torch.tensor(losses_2))
        and (applied, scale) == (applied_2, scale_2)
        and all(torch.equal(weights[name], weights_2[name]) for name in weights)
    )


# -- steps


@levels
def test_a_step_has_the_numbers_of_the_cpu_s_simulation(level: str, low: str) -> None:
    policy = amp.Policy(level, low)
    simulated = policy.replace(execution="simulated")
    found = trained("virtual", policy)
    assert same(found, trained("cpu", simulated))
    assert found[0][-1] < found[0][0]


@pytest.mark.parametrize("fused", [False, True])
@levels
def test_a_step_that_overflows_is_skipped(level: str, low: str, fused: bool) -> None:
    scaler = {"scaler": amp.GradScaler(2.0**10)}
    overflow = [index != OVERFLOWS_AT for index in range(STEPS)]
    _, applied, weights, scale = trained(
        "virtual", amp.Policy(level, low), overflow=True, fused=fused, **scaler
    )
    assert applied == overflow
    assert scale == 2.0**9
    assert all(value.isfinite().all() for value in weights.values())


@levels
def test_clipped_and_accumulated_steps_have_those_numbers_too(level: str, low: str) -> None:
    policy = amp.Policy(level, low)
    simulated = policy.replace(execution="simulated")
    options = {"accumulate": 2, "clip_norm": 0.05}
    found = trained("virtual", policy, **options)
    assert same(found, trained("cpu", simulated, **options))
    assert not same(found, trained("virtual", policy, accumulate=2))


@pytest.mark.parametrize("low", DTYPES)
def test_with_the_device_s_own_lists_it_is_torch_s_own_loop(low: str) -> None:
    policy = amp.Policy("O1", low, lists="native")
    scaler = amp.GradScaler.like("torch", init_scale=2.0**8)
    found = trained("virtual", policy, overflow=True, scaler=scaler)
    model = net().virtual()
    native_scaler, native_optimizer = torch.amp.GradScaler("virtual", 2.0**8), optimizer(model)
    losses, applied = [], []
    for x, y in batches(overflow=True):
        native_optimizer.zero_grad()
        with torch.autocast("virtual", dtype=DTYPES[low]):
            loss = loss_fn(model, x.virtual(), y.virtual())
        native_scaler.scale(loss).backward()
        native_scaler.step(native_optimizer)
        before = native_scaler.get_scale()
        native_scaler.update()
        losses.append(loss.item())
        applied.append(native_scaler.get_scale() >= before)
    weights = {name: value.detach().cpu() for name, value in model.named_parameters()}
    assert applied.count(False) == 1
    finite = [i for i in range(STEPS) if i != OVERFLOWS_AT]
    assert [found[0][i] for i in finite] == [losses[i] for i in finite]
    assert found[1:2] + found[3:] == (applied, native_scaler.get_scale())
    assert all(torch.equal(found[2][name], weights[name]) for name in weights)


@levels
def test_the_kernels_of_a_step_run_in_the_policy_s_dtypes(level: str, low: str) -> None:
    model = net().virtual()
    step = amp.train_step(loss_fn, model, optimizer(model), policy=amp.Policy(level, low))
    x, y = batches()[0]
    step(x.virtual(), y.virtual())
    virtual_cuda.forget()
    virtual_cuda.note_calls()
    step(x.virtual(), y.virtual())
    virtual_cuda.note_calls(False)
    name = {"float16": "Half", "bfloat16": "BFloat16"}[low]
    ran: dict[str, set[str]] = {}
    for call in virtual_cuda.calls():
        ran.setdefault(call.op, set()).update(call.dtypes)
    assert ran["aten::addmm"] == ran["aten::mm"] == {name}
    assert ran["aten::cumsum"] == {"Float"}  # which the device's own lists leave low
    assert ran["aten::native_layer_norm"] == {"Float"}


@pytest.mark.parametrize("low", DTYPES)
def test_the_weights_are_low_at_O2_and_the_optimizer_steps_masters(low: str) -> None:
    model = net().virtual()
    own = optimizer(model)
    amp.decorate(model, own, amp.Policy("O2", low))
    dtypes = {name: value.dtype for name, value in model.named_parameters()}
    assert dtypes["first.weight"] == dtypes["second.bias"] == DTYPES[low]
    assert dtypes["norm.weight"] == torch.float32
    step = amp.train_step(loss_fn, model, own, policy=amp.Policy("O2", low))
    step(*(value.virtual() for value in batches()[0]))
    averages = [state["exp_avg"] for state in own.state.values()]
    assert {(value.dtype, value.device.type) for value in averages} == {(torch.float32, "virtual")}
    amp.undecorate(model, own)
    assert {value.dtype for value in model.parameters()} == {torch.float32}


# -- checkpoints


@levels
def test_a_saved_training_goes_on(level: str, low: str, tmp_path: Path) -> None:
    data = batches()

    def made(seed: int) -> Any:
        torch.manual_seed(seed)
        model = Net().virtual()
        policy, scaler = amp.Policy(level, low), amp.GradScaler(2.0**7, growth_interval=2)
        return amp.train_step(loss_fn, model, optimizer(model), policy=policy, scaler=scaler)

    def run(step: Any, part: slice) -> list[float]:
        return [float(step(*(value.virtual() for value in batch)).loss) for batch in data[part]]

    step = made(1)
    run(step, slice(0, 3))
    step.save(tmp_path)
    expected = run(step, slice(3, None))
    resumed = made(9)
    resumed.load(tmp_path)
    assert run(resumed, slice(3, None)) == expected
    assert resumed.scaler.get_scale() == step.scaler.get_scale()
    assert resumed.state_dict()["step"] == STEPS


# -- what a device may lack


@pytest.mark.parametrize("fused", [False, True])
def test_without_torch_s_kernels_for_scalers_the_rule_is_the_same(fused: bool) -> None:
    policy = amp.Policy("O1", "float16")
    options = {"overflow": True, "fused": fused}
    made = [amp.GradScaler(2.0**10, growth_interval=2) for _ in range(2)]
    expected = trained("virtual", policy, scaler=made[0], **options)
    library = Library("aten", "IMPL", "PrivateUse1")
    asked = []

    def refuse(*args: Any) -> None:
        asked.append(args)
        raise NotImplementedError("Could not run it with arguments from the 'virtual' backend.")

    try:
        for name in ("_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_"):
            library.impl(name, refuse)
        found = trained("virtual", policy, scaler=made[1], **options)
    finally:
        library._destroy()
    assert len(asked) == 2 * STEPS
    assert found[1:2] + found[3:] == expected[1:2] + expected[3:]
    assert all(torch.equal(found[2][name], expected[2][name]) for name in found[2])


def test_without_float64_the_scale_is_inverted_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MPS has none. Powers of two have the same inverse."""
    assert scaling._has_float64("virtual")
    policy = amp.Policy("O1", "float16")
    options = {"overflow": True, "fused": True}
    expected = trained("virtual", policy, scaler=amp.GradScaler(2.0**10), **options)
    monkeypatch.setattr(scaling, "_has_float64", lambda device_type: False)
    refused = []
    monkeypatch.setattr(Tensor, "double", lambda tensor: refused.append(tensor))
    found = trained("virtual", policy, scaler=amp.GradScaler(2.0**10), **options)
    assert not refused
    assert found[1:2] + found[3:] == expected[1:2] + expected[3:]
    assert all(torch.equal(found[2][name], expected[2][name]) for name in found[2])


# -- what is asked of the device


def test_random_numbers_of_the_device_are_put_back() -> None:
    model = nn.Dropout(0.5)
    backend = amp.backend("torch")
    before = torch.virtual.get_rng_state()
    with backend.restored(model):
        model(torch.ones(100, device="virtual"))
        assert not torch.equal(torch.virtual.get_rng_state(), before)
    assert torch.equal(torch.virtual.get_rng_state(), before)


def test_memory_is_the_device_s() -> None:
    """Its allocator tells of other threads too, which kernels counted in this one do not."""

    def compute() -> None:
        x = torch.empty(1000, device="virtual")
        x + x

    def action() -> None:
        other = threading.Thread(target=compute)
        other.start()
        other.join()

    assert amp.backend("torch").peak_memory(action) == 2 * 4000


def test_a_process_has_the_device_once() -> None:
    virtual_cuda.install("virtual")
    with pytest.raises(
        amp.UnsupportedError, match=r"as 'virtual', not as 'cuda'\.\nHint: a process"
    ):
        virtual_cuda.install()
    assert not torch.cuda.is_available()


def test_the_device_is_found_probed_and_recommended() -> None:
    backend = amp.backend("torch")
    device, cpu = backend.devices()
    assert (device.name, device.kind, cpu.name) == ("virtual:0", "virtual", "cpu")
    assert "virtual accelerator" in device.model
    assert backend.probe(device).failures == {}
    for name in (None, "virtual", "virtual:0", torch.device("virtual", 0)):
        assert amp.Policy.auto(name) == amp.Policy("O1", "bfloat16")
    assert "virtual:0" in str(amp.doctor(net().virtual()))


def test_explained_policies_are_those_that_run() -> None:
    rows = {row.op: row for row in amp.explain("O1:bfloat16", "torch").ops}
    assert (rows["matmul"].dtype, rows["matmul"].by) == ("bfloat16", "ampbridge")
    assert (rows["cumsum"].dtype, rows["cumsum"].by) == ("float32", "ampbridge")
    native = amp.explain(amp.Policy("O1", "bfloat16", lists="native"), "torch")
    rows = {row.op: row for row in native.ops}
    assert (rows["matmul"].by, rows["matmul"].why) == (
        "native",
        "torch does not tell the lists of virtual",
    )
    assert (rows["cumsum"].by, rows["cumsum"].dtype) == ("native", "inputs'")


def test_torch_s_scaler_from_ours_is_of_the_device() -> None:
    native = amp.GradScaler.like("torch", init_scale=2.0**7).to_native("torch")
    assert native._device == "virtual"
    assert native.get_scale() == 2.0**7
    assert amp.GradScaler.from_native(native).get_scale() == 2.0**7


def test_layers_that_are_kept_run_in_float32_there() -> None:
    model = net().virtual()
    amp.decorate(model, policy=amp.Policy("O1", "bfloat16", keep=["second"]))
    found = []
    model.second.register_forward_hook(lambda layer, args, result: found.append(result.dtype))
    model(torch.ones(2, 6, device="virtual"))
    assert found == [torch.float32]
