"""Regions: what they leave behind, how they nest, threads, torch.autocast around and inside."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from threading import Barrier
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint as torch_checkpoint
from recorder import run_eager
from torch import nn
from torch.overrides import _get_current_function_mode_stack as modes

import ampbridge as amp
import ampbridge_torch
from ampbridge_torch.autocast import functions

BF16, F32 = torch.bfloat16, torch.float32
DENY_LINEAR = amp.Policy("O1", "bfloat16", deny=["linear"])


@pytest.fixture
def x(device: str) -> torch.Tensor:
    return torch.rand(4, 4, device=device)


def region(policy: amp.Policy | str) -> object:
    return amp.autocast(policy, backend="torch")


def dtypes(x: torch.Tensor) -> tuple[torch.dtype, torch.dtype]:
    """Of a linear and of a softmax of low-precision input."""
    return F.linear(x, x).dtype, x.bfloat16().softmax(-1).dtype


def test_the_inner_policy_alone_counts(x: torch.Tensor) -> None:
    softmax_low = amp.Policy("O1", "bfloat16", allow=["softmax"])
    with region(DENY_LINEAR):
        assert dtypes(x) == (F32, F32)
        with region(softmax_low):
            assert dtypes(x) == (BF16, BF16)
            with region("O0"):
                assert dtypes(x) == (F32, F32)
                with region(softmax_low):
                    assert dtypes(x) == (BF16, BF16)
            assert dtypes(x) == (BF16, BF16)
        with region(amp.Policy("O1", "bfloat16", lists="native")):
            assert F.linear(x, x).dtype is BF16
        assert dtypes(x) == (F32, F32)
    assert dtypes(x) == (F32, BF16)


def test_an_inner_o0_region_is_full_float32(x: torch.Tensor) -> None:
    with region("O1:bfloat16"):
        low = x @ x
        with region("O0"):
            ran = run_eager(lambda y: (y @ y + y).relu().exp().mean(), [low], region("O0"))
    assert ran.dtypes == {"float32"}


def test_an_outermost_o0_region_intercepts_nothing(x: torch.Tensor) -> None:
    with region("O0"):
        assert modes() == []
        assert (x.bfloat16() * 2).dtype is BF16


def test_an_o0_region_inside_of_torch_autocast_is_full_float32(x: torch.Tensor) -> None:
    with torch.autocast(x.device.type, BF16), region("O0"):
        assert (x @ x).dtype is F32
        assert (x.bfloat16() * 2).dtype is F32


def test_torch_autocast_switched_off_inside_switches_the_lists_off(x: torch.Tensor) -> None:
    with region("O1:bfloat16"), torch.autocast(x.device.type, enabled=False):
        assert dtypes(x) == (F32, BF16)


def test_exceptions_leave_everything_as_it_was(x: torch.Tensor) -> None:
    originals = {name: vars(torch_checkpoint)[name] for name in vars(torch_checkpoint)}
    for policy in (DENY_LINEAR, "O1:bfloat16", "O0"):
        with pytest.raises(ZeroDivisionError), region("O1:float16"), region(policy):
            1 / 0  # noqa: B018
    assert modes() == []
    assert not torch.is_autocast_enabled(x.device.type)
    assert not torch.is_autocast_enabled("cpu")
    assert originals == {name: vars(torch_checkpoint)[name] for name in originals}


def test_an_op_that_raises_leaves_autocast_enabled(x: torch.Tensor) -> None:
    with region(DENY_LINEAR):
        with pytest.raises(RuntimeError):
            F.linear(x, torch.rand(3, 3, device=x.device))
        assert torch.is_autocast_enabled(x.device.type)


def test_one_thread_at_a_time_asks_torch_for_its_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch silences its deprecations meanwhile, for all threads, and the first to end undoes it."""

    def asked() -> dict[Any, Any]:
        assert functions._in_turn.locked()
        return {torch: [torch.add]}

    monkeypatch.setattr(torch.overrides, "get_overridable_functions", asked)
    assert functions._overridable.__wrapped__() == {torch.add}


def test_eight_threads_with_policies_of_their_own(x: torch.Tensor) -> None:
    policies = [DENY_LINEAR, amp.Policy("O1", "bfloat16", allow=["softmax"])] * 4
    expected = [(F32, F32), (BF16, BF16)] * 4
    together = Barrier(8)

    def run(policy: amp.Policy) -> set[tuple[torch.dtype, torch.dtype]]:
        together.wait()
        found = set()
        for _ in range(20):
            with region(policy):
                found.add(dtypes(x))
        assert modes() == []
        return found

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, policies)) == [{pair} for pair in expected]


def test_a_region_that_needs_no_lists_has_no_mode(x: torch.Tensor) -> None:
    with region(amp.Policy("O1", "bfloat16", lists="native")):
        assert modes() == []
        assert (x @ x).dtype is BF16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_region_covers_both_devices() -> None:
    for device in ("cpu", "cuda"):
        with region("O1:bfloat16"):
            assert dtypes(torch.rand(4, 4, device=device)) == (BF16, F32)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_training_step_on_cuda_is_plain_autocast() -> None:
    model = nn.Linear(4, 4, device="cuda")
    seen = []

    def loss_fn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        seen.append(modes())
        return model(x).sum()

    amp.value_and_grad(loss_fn, model, torch.rand(4, 4, device="cuda"), policy="O1")
    assert seen == [[]]


# -- activation checkpoints


CHECKPOINTS = {
    "torch's": lambda f, x: torch_checkpoint.checkpoint(f, x, use_reentrant=False),
    "torch's reentrant": lambda f, x: torch_checkpoint.checkpoint(f, x, use_reentrant=True),
    "ours": ampbridge_torch.checkpoint,
    "ours reentrant": lambda f, x: ampbridge_torch.checkpoint(f, x, use_reentrant=True),
}


@pytest.mark.parametrize("policy", [DENY_LINEAR, amp.Policy("O1", execution="simulated")], ids=str)
@pytest.mark.parametrize("backward_inside", [False, True])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_recomputes_under_the_region(
    name: str, backward_inside: bool, policy: amp.Policy, device: str
) -> None:
    """Bit by bit the gradients of the same region without a checkpoint."""
    if device == "cuda" and policy.execution == "simulated":
        pytest.skip("simulation is of the CPU")
    block = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 16))
    block.to(device)
    data = torch.randn(4, 16, device=device)

    def gradients(run: object) -> list[torch.Tensor]:
        x = data.clone().requires_grad_()
        block.zero_grad()
        with region(policy):
            loss = run(x).square().sum()
            if backward_inside:
                loss.backward()
        if not backward_inside:
            loss.backward()
        return [x.grad, *(p.grad.clone() for p in block.parameters())]

    plain = gradients(block)
    again = gradients(lambda x: CHECKPOINTS[name](block, x))
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


class _RunAgain(torch.autograd.Function):
    """Runs a layer again in its backward, as reversible networks and adjoints do."""

    region: Any = nullcontext()
    around: Any = staticmethod(lambda layer: layer)

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x)
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad(), _RunAgain.region:
            x = x.detach().requires_grad_()
            y = _RunAgain.around(ctx.layer)(x)
        torch.autograd.backward(y, gradient.to(y.dtype))
        return x.grad, None


class _Reversible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(_RunAgain.apply(self.first(x), self.block))


def step_of_reversible(policy: amp.Policy) -> amp.TrainStep:
    model = _Reversible()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return amp.train_step(lambda m, x: m(x).square().mean(), model, optimizer, policy=policy)


def test_layers_that_the_backward_pass_runs_again_are_warned_of_at_o2() -> None:
    """No region is open there, so that its softmax would run in bfloat16."""
    step = step_of_reversible(amp.Policy("O2", "bfloat16"))
    with pytest.warns(amp.AmpBridgeWarning, match=r"again: block\.(.|\n)*keep=\['block'\]"):
        step(torch.ones(4, 8))
    step(torch.ones(4, 8))  # said once
    assert step_of_reversible(amp.Policy("O2", "bfloat16", keep=["block"]))(torch.ones(4, 8))


def test_a_layer_around_one_that_runs_again_is_none_to_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As an adjoint's: it wraps the model's layer, and no policy can name it."""

    class Wrapper(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    monkeypatch.setattr(_RunAgain, "around", Wrapper)
    words = r"again: Wrapper, block\.(.|\n)*keep=\['block'\]"
    with pytest.warns(amp.AmpBridgeWarning, match=words):
        step_of_reversible(amp.Policy("O2", "bfloat16"))(torch.ones(4, 8))


class _Product(torch.autograd.Function):
    """Saves a float32 matrix without a word about autocast, as functions of libraries do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(matrix)
        return x.float() @ matrix

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (matrix,) = ctx.saved_tensors
        return gradient @ matrix.T, None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes are since Python 3.11")
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_an_error_in_a_backward_of_a_library_says_which_function_to_deny(level: Any) -> None:
    """Torch's own region raises it, too. The hint is followed."""
    matrix, x = torch.eye(3), torch.ones(2, 3)

    def loss(run: Any, x: torch.Tensor) -> torch.Tensor:
        return _Product.apply(run(x), matrix).float().sum()  # type: ignore[no-untyped-call]

    def trained(policy: amp.Policy) -> bool:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return amp.train_step(loss, model, optimizer, policy=policy, compile=False)(x).applied

    policy = amp.Policy(level, "bfloat16", execution="native")
    with torch.autocast("cpu", torch.bfloat16):
        natively = loss(nn.Linear(3, 3), x)
    for backward in (natively.backward, partial(trained, policy)):
        with pytest.raises(RuntimeError, match="same dtype") as raised:
            backward()
    (hint,) = raised.value.__notes__
    (path,) = re.findall(r"deny=\['(.*)'\]", hint)
    assert trained(policy.replace(deny=[path]))


def test_an_error_of_layers_that_run_again_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own region ends before the backward pass, too. The hint is followed."""
    with pytest.raises(RuntimeError, match="same dtype") as raised:
        step_of_reversible(amp.Policy("O1", "bfloat16"))(torch.ones(4, 8))
    notes = getattr(raised.value, "__notes__", None)  # none before Python 3.11
    assert notes is None or "again: block." in notes[0]
    for policy in (amp.Policy("O1", "bfloat16"), amp.Policy("O2", "bfloat16")):
        monkeypatch.setattr(_RunAgain, "region", amp.autocast(str(policy), backend="torch"))
        assert step_of_reversible(policy)(torch.ones(4, 8)).applied


@pytest.mark.parametrize("lists", ["native", "torch"])
def test_each_region_casts_the_weights_as_they_are(lists: str) -> None:
    """Torch keeps the casts of a region; those of the last one would be computed with again."""
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)
    policy = amp.Policy("O1", "bfloat16", lists=lists, execution="native")
    for value in (1.0, 2.0, 3.0):
        nn.init.constant_(layer.weight, value)
        nn.init.zeros_(layer.bias)
        with amp.autocast(policy, "torch"):
            assert layer(x).tolist() == [[4 * value] * 4] * 2
