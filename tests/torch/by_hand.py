"""O2 written by hand, in plain torch: what decorated models are compared with.

Uses nothing of ampbridge but the policy that a test asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

import ampbridge as amp

Make: TypeAlias = Callable[[Any], optim.Optimizer]


def policy(low: str, **changes: Any) -> amp.Policy:
    return amp.Policy("O2", low, execution="native", **changes)


class Net(nn.Module):
    """Two linear layers, whose parameters are low at O2, and a normalization, whose are not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.inner = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.outer = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(F.relu(self.norm(self.inner(x))))


def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    for _ in range(count):
        yield torch.randn(5, 6, generator=generator), torch.randn(5, 3, generator=generator)


def loss_fn(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x), y)


class ByHand:
    """The loop that O2 stands for: casts, masters, copies, one by one."""

    def __init__(self, low: str, make: Make, scale: float = 1.0) -> None:
        self.low = getattr(torch, low)
        self.scale = scale
        net = Net()
        self.masters = [nn.Parameter(p.detach().clone()) for p in net.parameters()]
        self.is_low = [not name.startswith("norm") for name, _ in net.named_parameters()]
        self.weights = [
            nn.Parameter(p.detach().to(self.low)) if is_low else p
            for p, is_low in zip(self.masters, self.is_low, strict=True)
        ]
        self.optimizer = make(self.masters)

    def forward(self, x: Tensor) -> Tensor:
        w1, b1, gamma, beta, w2, b2 = self.weights
        hidden = F.linear(x.to(self.low), w1, b1)
        normed = F.layer_norm(hidden.float(), (8,), gamma, beta)
        return F.linear(F.relu(normed).to(self.low), w2, b2).float()

    def gradients(self, x: Tensor, y: Tensor) -> list[Tensor]:
        for weight in self.weights:
            weight.grad = None
        loss = loss_fn(self.forward, x, y)
        (loss * self.scale).backward()
        self.loss = loss.detach()
        return [w.grad.float() / self.scale for w in self.weights]

    def give(self, grads: list[Tensor]) -> None:
        for master, grad in zip(self.masters, grads, strict=True):
            master.grad = grad

    def round(self) -> None:
        with torch.no_grad():
            for weight, master in zip(self.weights, self.masters, strict=True):
                weight.copy_(master)

    def step(self, grads: list[Tensor]) -> None:
        self.give(grads)
        self.optimizer.step()
        self.round()

    def train(self, count: int) -> ByHand:
        for x, y in batches(count):
            self.step(self.gradients(x, y))
        return self
