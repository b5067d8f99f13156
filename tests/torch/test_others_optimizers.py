"""What optimizers of others keep: low slots of their own choice, settings that JSON has no number for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import Net, batches, loss_fn, policy
from torch import Tensor, optim

import ampbridge as amp


class LowMomentum(optim.SGD):
    """Keeps its momentum in bfloat16, as AdaFactor does, and refuses any other."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.param_groups[0]["growth_rate"] = math.inf  # Prodigy's

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            momentum: Tensor = state.setdefault("m", torch.zeros_like(p, dtype=torch.bfloat16))
            assert momentum.dtype is torch.bfloat16
            momentum.mul_(0.9).add_(p.grad)
            p.add_(momentum, alpha=-self.param_groups[0]["lr"])


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O2 without masters"])
def test_save_load_and_go_on(level: str, low: str, tmp_path: Path) -> None:
    def make() -> amp.TrainStep:
        model = Net()
        chosen = policy(low).replace(
            level=level[:2], masters=None if "without" in level else "float32"
        )
        optimizer = LowMomentum(model.parameters(), 1e-2)
        return amp.train_step(
            loss_fn, model, optimizer, policy=chosen, scaler=amp.GradScaler(2.0**8)
        )

    step, other = make(), make()
    examples = list(batches(6))
    for example in examples[:3]:
        step(*example)
    step.save(tmp_path / "run")
    other.load(tmp_path / "run")
    assert other.optimizer.param_groups[0]["growth_rate"] == math.inf
    for example in examples[3:]:
        assert step(*example).loss == other(*example).loss
    assert all(map(torch.equal, step.model.parameters(), other.model.parameters()))


def test_fitting_a_model_leaves_slots_that_are_low_by_choice(low: str) -> None:
    model = Net()
    optimizer = LowMomentum(model.parameters(), 1e-2)
    schedule = amp.Schedule([(0, "O1"), (1, policy(low)), (2, "O1")])
    step = amp.train_step(loss_fn, model, optimizer, policy=schedule, scaler=amp.GradScaler(2.0**8))
    for example in batches(4):
        assert step(*example).applied


class OfSecondOrder(optim.Optimizer):
    """Divides by the diagonal of the Hessian, by Hutchinson's estimate: AdaHessian, SophiaH."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        owners = self.param_groups[0]["params"]
        with torch.enable_grad():
            signs = [torch.randint_like(p, 0, 2) * 2 - 1 for p in owners]
            products = torch.autograd.grad([p.grad for p in owners], owners, signs)
        for p, sign, product in zip(owners, signs, products, strict=True):
            p -= 0.1 * p.grad / (1 + (sign * product).abs())


def quadratic(model: torch.nn.Module, x: Tensor) -> Tensor:
    return model(x).float().square().mean()


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
@pytest.mark.parametrize("policy", ["O0", "O1", "O1:bfloat16", "O2", "O2:bfloat16"])
def test_an_optimizer_that_differentiates_gradients_is_told_how_it_runs(policy: str) -> None:
    model, x = torch.nn.Linear(4, 2), torch.randn(8, 4)
    optimizer = OfSecondOrder(model.parameters())
    step = amp.train_step(quadratic, model, optimizer, policy=policy)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(
        amp.UnsupportedError, match=r"(?s)OfSecondOrder differ.*Hint: .*O1:bfloat16"
    ):
        step(x)
    amp.undecorate(model, optimizer)
    assert all(map(torch.allclose, model.parameters(), before))
    losses = []
    for _ in range(20):  # the lines of the hint
        with amp.autocast("O1:bfloat16"):
            loss = quadratic(model, x)
        loss.backward(create_graph=True)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("policy", ["O0", "O1:bfloat16", "O2:bfloat16"])
def test_a_step_where_nothing_is_recorded_is_told_of_the_block(policy: str, block: Any) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = optim.SGD(model.parameters(), 0.1)
    step = amp.train_step(quadratic, model, optimizer, policy=policy)
    x = torch.randn(8, 4)
    with (
        pytest.raises(amp.ArgumentError, match=r"(?s)inside of torch\.no_grad.*Hint: end"),
        block(),
    ):
        step(x)
    assert step(x).applied


class Lookahead(optim.Optimizer):
    """As pytorch-optimizer's: around another, whose groups it has, without the hooks that torch makes."""

    def __init__(self, inner: optim.Optimizer) -> None:
        self.inner, self.defaults, self.state = inner, inner.defaults, inner.state
        self.param_groups = inner.param_groups
        self._optimizer_step_pre_hooks = self._optimizer_step_post_hooks = {}
        self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.inner.step()
        for p, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
            p.copy_(slow.lerp_(p, 0.5))


def test_each_hint_for_an_optimizer_around_another_works() -> None:
    def made() -> tuple[torch.nn.Module, optim.Optimizer]:
        model = torch.nn.Linear(4, 2)
        return model, optim.SGD(model.parameters(), 0.1)

    x = torch.randn(8, 4)
    model, inner = made()
    step = amp.train_step(quadratic, model, Lookahead(inner), policy="O2:bfloat16")
    hint = (
        r"(?s)Lookahead is around a SGD.*Hint: policy='O1'; or, .* by hand.* = Lookahead\(inner\)"
    )
    with pytest.raises(amp.UnsupportedError, match=hint):
        step(x)
    assert amp.train_step(quadratic, model, Lookahead(inner), policy="O1")(x).applied

    model, inner = made()
    model, inner = amp.decorate(model, inner, "O2:bfloat16")
    optimizer, losses = Lookahead(inner), []
    for _ in range(30):
        loss = quadratic(model, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
