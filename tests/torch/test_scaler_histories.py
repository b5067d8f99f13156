"""Random histories of torch's training steps against the pure rule."""

from typing import Any

import histories
import torch
from hypothesis import given, settings
from torch import Tensor, nn, optim

import ampbridge as amp

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), device=DEVICE))

    def forward(self, factor: Tensor) -> Tensor:
        return self.weight * factor


@settings(max_examples=settings.default.max_examples * 5)
@given(first=histories.settings, way=histories.ways, history=histories.histories)
def test_steps_follow_the_pure_rule(first: Any, way: Any, history: Any) -> None:
    model = Scalar()

    def make(**arguments: Any) -> amp.TrainStep:
        optimizer = optim.SGD(model.parameters(), 1.0)
        return amp.train_step(
            lambda model, factor: model(factor), model, optimizer, policy="O0", **arguments
        )

    histories.check(make, lambda: model.weight.item(), first, way, history)
