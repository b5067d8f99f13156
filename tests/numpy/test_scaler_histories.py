"""Random histories of NumPy's training steps against the pure rule."""

from typing import Any

import histories
import numpy as np
import pytest
from hypothesis import given, settings

import ampbridge as amp
import ampbridge_numpy as npb


class Scalar(npb.nn.Module):
    def __init__(self) -> None:
        self.weight = npb.nn.Parameter(np.zeros(1, np.float32))

    def forward(self, factor: Any) -> Any:
        return (self.weight * factor).sum()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy warns of inf * 0
@settings(max_examples=settings.default.max_examples * 5)
@given(first=histories.settings, way=histories.ways, history=histories.histories)
def test_steps_follow_the_pure_rule(first: Any, way: Any, history: Any) -> None:
    model = Scalar()

    def make(**arguments: Any) -> amp.TrainStep:
        optimizer = npb.optim.SGD(model.parameters(), 1.0)
        return amp.train_step(
            lambda model, factor: model(factor), model, optimizer, policy="O0", **arguments
        )

    histories.check(make, lambda: model.weight.item(), first, way, history)
