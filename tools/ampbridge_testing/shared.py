"""What the parts of the suite share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from ampbridge.adapters.backend import Model, Optimizer
from ampbridge_testing.harness import Harness, NumpyArray
from ampbridge_testing.reference import example, momentum_steps, relative_error

RATE = 2.0**-6  # small: the residuals of the example must keep their sign for some steps


class Training(NamedTuple):
    """The example's model with its optimizer."""

    model: Model
    optimizer: Optimizer


class Conformance:
    """A part of the suite."""

    harness: Harness

    def _storing(self) -> Harness:
        """The harness; where its framework stores no gradients, the test is skipped."""
        if not self.harness.stores_gradients:
            pytest.skip("gradients are values here")
        return self.harness

    def new_training(self, kind: str = "momentum", rate: float = RATE) -> Training:
        model = self.harness.model(example().weights)
        return Training(model, self.harness.optimizer(model, kind, rate))

    def batch(self, factor: float = 1.0) -> tuple[NumpyArray, ...]:
        """``(x, target, factor)`` of the example; the loss is multiplied by the factor."""
        given = example()
        return given.x, given.target, np.float32(factor)

    def values(self, model: Model) -> list[NumpyArray]:
        """The parameters of the model, on the host."""
        return [self.harness.numpy(p) for p in self.harness.parameters(model)]

    def _error_of_weights(
        self, model: Model, *gradients: list[NumpyArray], rate: float = RATE
    ) -> float:
        """How far ``model``, the example's, is from where SGD with momentum leads.

        SGD takes a step for each of ``gradients``.
        """
        expected = momentum_steps(example().weights, gradients, rate)
        return relative_error(self.values(model), expected)
