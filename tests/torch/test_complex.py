"""Models with complex parameters train as by hand, at each level."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn, optim

import ampbridge as amp

X = torch.view_as_complex(torch.linspace(-1, 1, 24).reshape(3, 4, 2))


class Spectral(nn.Module):
    """A complex layer, and a real one that its magnitudes go to."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.complex = nn.Linear(4, 4, dtype=torch.cfloat)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.complex(x).abs())


def loss_fn(model: nn.Module, x: Tensor, factor: Tensor) -> Tensor:
    return (model(x) ** 2).mean() * factor


def trained(policy: str | None, scaler: amp.GradScaler | None = None) -> nn.Module:
    model = Spectral()
    optimizer = optim.SGD(model.parameters(), 0.1)
    one = torch.ones(())
    if policy is None:
        for _ in range(5):
            optimizer.zero_grad()
            loss_fn(model, X, one).backward()
            optimizer.step()
        return model
    step = amp.train_step(loss_fn, model, optimizer, policy=policy, scaler=scaler, clip_norm=1e6)
    assert all(step(X, one).applied for _ in range(5))
    amp.undecorate(model, optimizer)
    return model


@pytest.mark.parametrize("scaler", [None, amp.GradScaler(2.0**10)], ids=["unscaled", "scaled"])
def test_o0_is_the_plain_loop(scaler: amp.GradScaler | None) -> None:
    for ours, plain in zip(
        trained("O0", scaler).parameters(), trained(None).parameters(), strict=True
    ):
        assert torch.equal(ours, plain) if scaler is None else torch.allclose(ours, plain)


@pytest.mark.parametrize("policy", ["O1:bfloat16", "O1", "O2:bfloat16", "O2"])
def test_complex_parameters_stay_and_train(policy: str) -> None:
    scaler = amp.GradScaler(2.0**10)
    for ours, plain in zip(
        trained(policy, scaler).parameters(), trained(None).parameters(), strict=True
    ):
        assert ours.dtype is plain.dtype
        assert torch.allclose(ours, plain, atol=3e-2)


@pytest.mark.parametrize(("factor", "reason"), [(float("inf"), "inf"), (float("nan"), "nan")])
@pytest.mark.parametrize("policy", ["O0", "O2"])
def test_an_overflow_is_found_and_skipped(policy: str, factor: float, reason: str) -> None:
    model = Spectral()
    optimizer, scaler = optim.SGD(model.parameters(), 0.1), amp.GradScaler(2.0**8)
    step = amp.train_step(loss_fn, model, optimizer, policy=policy, scaler=scaler)
    assert step(X, torch.ones(())).applied
    before = model.complex.weight.detach().clone()
    result = step(X, torch.tensor(factor))
    assert not result.applied
    assert result.reason in (reason, "nan")
    assert torch.equal(model.complex.weight, before)


def test_a_loop_by_hand_unscales_complex_gradients_in_place() -> None:
    model = Spectral()
    optimizer = optim.SGD(model.parameters(), 0.1)
    scaler = amp.GradScaler(2.0**10)
    scaler.scale(loss_fn(model, X, torch.ones(()))).backward()
    scaler.unscale(optimizer)
    expected = Spectral()
    loss_fn(expected, X, torch.ones(())).backward()
    assert torch.allclose(model.complex.weight.grad, expected.complex.weight.grad)
    assert scaler.step(optimizer)
