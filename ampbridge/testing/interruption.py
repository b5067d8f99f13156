"""Promises of a step that an exception ends: it has not happened, and may be tried again."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import pytest

from ampbridge import GradScaler, train_step
from ampbridge.backend import Array, Model
from ampbridge.testing.decorating import Layered
from ampbridge.testing.gradients import same_bits

POINTS = ("forward", "loss", "backward", "unscale", "clip", "apply")
"""In the model's call, after it, in the backward pass; before a method of the backend."""


class Interrupted(Exception):
    """What is raised, as a full memory would; Paddle's backward pass makes an OSError of it."""


class InterruptionConformance(Layered):
    """An exception at any point leaves everything as it was before the step."""

    @pytest.mark.parametrize("policy", ["O0", "O1:float16", "O2:bfloat16"])
    @pytest.mark.parametrize("point", POINTS)
    def test_an_interrupted_step_has_not_happened(self, point: str, policy: str) -> None:
        """It is tried again, and all goes on as in a run that nothing interrupted."""
        undisturbed = self.run_of_steps(policy, None)
        assert same_bits(self.run_of_steps(policy, point), undisturbed)

    def run_of_steps(self, policy: str, point: str | None) -> list[Any]:
        """Weights, slots, losses and scales of five steps; the third is interrupted at ``point``."""
        h = self.harness
        model, optimizer = self.trainable("adam")
        raising: list[str] = []

        def raise_at(here: str) -> None:
            if here in raising:
                raise Interrupted(here)

        def loss_fn(model: Model, x: Array, target: Array, factor: Array) -> Array:
            raise_at("forward")
            outputs = h.on_backward(model(x), lambda: raise_at("backward"))
            raise_at("loss")
            return h.mean_squared_error(outputs, target) * factor

        scaler = GradScaler(2.0**6, growth_interval=2)
        settings: dict[str, Any] = {
            "policy": policy,
            "scaler": scaler,
            "clip_norm": 1.0,
            "compile": False,
        }
        step = train_step(loss_fn, model, optimizer, **settings)
        seen: list[Any] = []
        for number in range(5):
            if number == 2 and point is not None:
                raising.append(point)
                with self.interrupted_at(point), pytest.raises((Interrupted, OSError)):
                    step(*self.batch())
                raising.clear()
            result = step(*self.batch())
            seen += [h.array(value) for value in (result.loss, result.scale, result.step)]
        numbers = [h.numpy(value) for value in seen]
        return [*numbers, *self.values(model), *h.slots(optimizer)]

    def interrupted_at(self, point: str) -> AbstractContextManager[Any]:
        """The backend's method of that name raises; elsewhere ``loss_fn`` does it itself."""
        backend = type(self.harness.backend)
        if not hasattr(backend, point):
            return nullcontext()
        return mock.patch.object(backend, point, side_effect=Interrupted(point))
