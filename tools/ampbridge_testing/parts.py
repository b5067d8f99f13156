"""Promises of what a step is made of and called with: parameters, batches of any form, wrong arguments."""

from __future__ import annotations

import math
from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ampbridge import GradScaler, StateError, TrainStep, decorate, train_step, value_and_grad
from ampbridge.adapters.backend import Array, Model, Optimizer
from ampbridge.adapters.roles.saving import Saving
from ampbridge.checkpoints import checkpoint
from ampbridge_testing.gradients import FLOAT32_ERROR, same_bits, squared_error
from ampbridge_testing.harness import NumpyArray, untransposed
from ampbridge_testing.reference import EXACT, example, joint_norm, reference, relative_error
from ampbridge_testing.roles import needs
from ampbridge_testing.shared import RATE, Conformance

Pair = namedtuple("Pair", "x target")


@dataclass(frozen=True)
class Sample:
    """A batch of one's own class."""

    x: Any
    target: Any


CONTAINERS: dict[str, Callable[[Any, Any], Any]] = {
    "dict": lambda x, target: {"x": x, "target": target},
    "mapping": lambda x, target: UserDict(x=x, target=target),
    "list": lambda x, target: [x, [target]],
    "named tuple": Pair,
    "dataclass": Sample,
}


def parts_of(batch: Any) -> tuple[Any, Any]:
    """``x`` and ``target`` of what ``CONTAINERS`` make."""
    if isinstance(batch, (dict, UserDict)):
        return batch["x"], batch["target"]
    if isinstance(batch, list):
        return batch[0], batch[1][0]
    return batch.x, batch.target


class OutsideConformance(Conformance):
    """A step trains what the optimizer holds, in the model or not."""

    def two_models(self, layered: bool = False) -> tuple[Model, Model, Optimizer]:
        """A model, another one that the loss uses besides, and the optimizer of both."""
        h, weights = self.harness, example().weights
        make = h.layered if layered else h.model
        model, outside = make(weights), make(weights)
        return model, outside, h.optimizer(model, "momentum", RATE, outside)

    def both_losses(self, outside: Model, layered: bool = False) -> Any:
        """``loss_fn(model, x, target, factor)``: that of the model, and ``factor`` times the other's."""
        h = self.harness

        def prediction(model: Model, x: Array) -> Array:
            return model(x) if layered else h.forward(model, x)

        def loss_fn(model: Model, x: Array, target: Array, factor: Array) -> Array:
            own = h.mean_squared_error(prediction(model, x), target)
            return own + h.mean_squared_error(prediction(outside, x), target) * factor

        return loss_fn

    def values_of(self, *models: Model) -> list[NumpyArray]:
        return [value for model in models for value in self.values(model)]

    def test_parameters_outside_of_the_model_are_trained(self, compiled: bool) -> None:
        model, outside, optimizer = self.two_models()
        step = train_step(
            self.both_losses(outside), model, optimizer, policy="O0", compile=compiled
        )
        step(*self.batch())
        for trained in (model, outside):
            assert self._error_of_weights(trained, EXACT.gradients) < FLOAT32_ERROR

    def test_they_are_accumulated_and_clipped_with_the_others(self, compiled: bool) -> None:
        model, outside, optimizer = self.two_models()
        gradients = EXACT.gradients
        norm = math.sqrt(2) * joint_norm(gradients)
        step = train_step(
            self.both_losses(outside),
            model,
            optimizer,
            policy="O0",
            compile=compiled,
            scaler=GradScaler(2.0**10),
            accumulate=2,
            clip_norm=norm / 4,
        )
        for _ in range(2):
            result = step(*self.batch())
        assert result.grad_norm == pytest.approx(norm, rel=FLOAT32_ERROR)
        assert self._error_of_weights(outside, [g / 4 for g in gradients]) < FLOAT32_ERROR

    def test_their_overflow_skips_the_step_and_is_named(self) -> None:
        model, outside, optimizer = self.two_models()
        step = train_step(
            self.both_losses(outside),
            model,
            optimizer,
            policy="O0",
            scaler=GradScaler(2.0**10),
            name_overflows=True,
        )
        before = self.values_of(model, outside)
        result = step(*self.batch(math.inf))
        assert (result.applied, result.reason) == (False, "inf")
        assert set(result.overflows) == {f"optimizer[{place}]" for place in range(4, 8)}
        assert same_bits(self.values_of(model, outside), before)

    def test_at_O2_they_stay_float32_and_are_trained(self) -> None:
        h, given = self.harness, example()
        model, outside, optimizer = self.two_models(layered=True)
        loss_fn = self.both_losses(outside, layered=True)
        before = self.values(outside)
        step = train_step(loss_fn, model, optimizer, policy="O2:bfloat16")
        assert step(*self.batch()).applied
        assert {h.dtype_of(p) for p in h.parameters(outside)} == {"float32"}
        moved = [new - old for new, old in zip(self.values(outside), before, strict=True)]
        expected = [-RATE * g for g in EXACT.gradients]
        assert relative_error(untransposed(moved, given.weights), expected) < 3e-2

    @needs(Saving)
    @pytest.mark.parametrize("policy", ["O0", "O2:bfloat16"])
    def test_a_checkpoint_holds_them(self, tmp_path: Any, policy: str) -> None:
        """Fresh objects go on from it bit by bit; what the step has that loads is replaced."""
        saved, loaded = (self.step_of_both(policy, calls) for calls in (3, 1))
        (step, _), (other, _) = saved, loaded
        step.save(tmp_path)
        other.load(tmp_path)
        assert same_bits(self.all_trained(*loaded), self.all_trained(*saved))
        for _ in range(2):
            losses = [each(*self.batch()).loss for each in (step, other)]
            assert losses[0] == losses[1]
        assert same_bits(self.all_trained(*loaded), self.all_trained(*saved))

    @needs(Saving)
    @pytest.mark.parametrize("change", ["missing", "more", "of another shape", "of another dtype"])
    def test_a_checkpoint_with_others_is_refused(self, tmp_path: Any, change: str) -> None:
        step, outside = self.step_of_both("O1:bfloat16", 2)
        step.save(tmp_path)
        step(*self.batch())
        before, (state, tensors) = self.all_trained(step, outside), checkpoint.read(tmp_path)
        value, others = tensors["optimizer/optimizer[4]"], dict(tensors)
        if change == "missing":
            del others["optimizer/optimizer[4]"]
        elif change == "more":
            others["optimizer/optimizer[9]"] = value
        else:
            longer, wider = np.stack([value] * 2), value.astype(np.float64)
            others["optimizer/optimizer[4]"] = longer if "shape" in change else wider
        checkpoint.write(tmp_path, checkpoint.Checkpoint(state, others))
        with pytest.raises(StateError, match=r"optimizer\[\d\]"):
            step.load(tmp_path)
        assert same_bits(self.all_trained(step, outside), before)

    @needs(Saving)
    def test_of_a_checkpoint_that_is_adopted_they_are_told_as_not_used(self, tmp_path: Any) -> None:
        (step, _), (other, outside) = (self.step_of_both("O1:bfloat16", 1) for _ in range(2))
        step.save(tmp_path)
        before = self.values(outside)
        report = other.adopt(tmp_path)
        assert [each.name for each in report.unused] == [f"optimizer[{n}]" for n in range(4, 8)]
        assert same_bits(self.values(outside), before)

    def step_of_both(self, policy: str, calls: int) -> tuple[TrainStep, Model]:
        """A step that has been called so often, and what it trains besides its model."""
        model, outside, optimizer = self.two_models(layered=True)
        step = train_step(self.both_losses(outside, layered=True), model, optimizer, policy=policy)
        for number in range(calls):
            step(*self.batch(1.0 + number))
        return step, outside

    def all_trained(self, step: TrainStep, outside: Model) -> list[NumpyArray]:
        return [*self.values_of(step.model, outside), *self.harness.slots(step.optimizer)]


class BatchConformance(Conformance):
    """What a step is called with reaches the loss: containers of any class, keywords."""

    @pytest.mark.parametrize("kind", CONTAINERS)
    def test_arrays_in_containers_are_those_of_the_framework(self, kind: str) -> None:
        h, given = self.harness, example()
        seen: list[str] = []

        def loss_fn(model: Model, batch: Any) -> Array:
            x, target = parts_of(batch)
            seen.append(h.dtype_of(x))
            assert type(x) is type(h.array(given.x))
            return h.mean_squared_error(h.forward(model, x), target)

        model = h.model(given.weights)
        batch = CONTAINERS[kind](given.x.astype(np.float64), given.target.astype(np.float64))
        _, grads = value_and_grad(loss_fn, model, batch, policy="O0")
        assert seen == ["float32"]
        actual = [h.numpy(g) for g in grads]
        assert relative_error(actual, EXACT.gradients) < FLOAT32_ERROR

    @pytest.mark.parametrize("kind", CONTAINERS)
    def test_a_step_takes_containers(self, kind: str, compiled: bool) -> None:
        h = self.harness

        def loss_fn(model: Model, batch: Any) -> Array:
            x, target = parts_of(batch)
            return h.mean_squared_error(h.forward(model, x), target)

        self.check_two_steps(
            loss_fn, compiled, lambda x, target: ((CONTAINERS[kind](x, target),), {})
        )

    def test_keywords_reach_the_loss(self, compiled: bool) -> None:
        self.check_two_steps(
            squared_error(self.harness), compiled, lambda x, target: ((x,), {"target": target})
        )

    def test_a_batch_of_keywords_alone(self, compiled: bool) -> None:
        self.check_two_steps(
            squared_error(self.harness),
            compiled,
            lambda x, target: ((), {"target": target, "x": x}),
        )

    def check_two_steps(
        self, loss_fn: Any, compiled: bool, call: Callable[[Any, Any], Any]
    ) -> None:
        """Two batches in a row: a program that was traced for the first takes the values of both."""
        given, (model, optimizer) = example(), self.new_training()
        step = train_step(loss_fn, model, optimizer, policy="O0", compile=compiled)
        positional, named = call(given.x, given.target)
        assert step(*positional, **named).loss == pytest.approx(EXACT.loss, rel=1e-4)
        assert self._error_of_weights(model, EXACT.gradients) < FLOAT32_ERROR
        positional, named = call(given.x * 2, given.target)
        later = reference(self.values(model), given.x * 2, given.target)
        assert step(*positional, **named).loss == pytest.approx(later.loss, rel=1e-4)

    def test_value_and_grad_takes_keywords(self) -> None:
        h, given = self.harness, example()
        _, grads = value_and_grad(
            squared_error(h), h.model(given.weights), given.x, target=given.target, policy="O0"
        )
        actual = [h.numpy(g) for g in grads]
        assert relative_error(actual, EXACT.gradients) < FLOAT32_ERROR

    def test_aux_is_cut_off_from_the_computation(self) -> None:
        h, given = self.harness, example()

        def loss_fn(model: Model, x: Array, target: Array) -> Any:
            prediction = h.forward(model, x)
            return h.mean_squared_error(prediction, target), {"made": [prediction]}

        model = h.model(given.weights)
        _, aux = value_and_grad(loss_fn, model, given.x, given.target, policy="O0")[0]
        assert not h.is_differentiable(aux["made"][0])


class ArgumentConformance(Conformance):
    """What is no model, no optimizer or no loss is refused, in the same words for each framework."""

    @pytest.mark.parametrize("wrong", ["None", "text", "list", "class", "model"])
    def test_what_is_no_optimizer_is_refused(self, wrong: str) -> None:
        h, (model, optimizer) = self.harness, self.new_training()
        passed = {
            "None": None,
            "text": "adam",
            "list": [optimizer],
            "class": type(optimizer),
            "model": h.model(example().weights),
        }[wrong]
        words = f"optimizer is an optimizer of {h.backend.name}, not "
        with pytest.raises(TypeError, match=words):
            train_step(squared_error(h), model, passed)
        if passed is not None:
            with pytest.raises(TypeError, match=words):  # which takes a list of optimizers
                decorate(model, ["adam"] if wrong == "list" else passed, "O1")

    def test_arguments_in_another_order_are_refused(self) -> None:
        h, (model, optimizer) = self.harness, self.new_training()
        for order in (
            (model, optimizer, squared_error(h)),
            (squared_error(h), optimizer, model),
        ):
            with pytest.raises(TypeError, match="in this order"):
                train_step(*order)

    def test_a_model_as_the_loss_is_refused(self) -> None:
        h = self.harness
        model = h.model(example().weights)
        with pytest.raises(TypeError, match=r"loss_fn is a function of \(model, \*batch\), not a"):
            train_step(h.model(example().weights), model, h.optimizer(model, "momentum", RATE))

    def test_an_optimizer_of_another_model_is_refused(self) -> None:
        h = self.harness
        model, other = h.model(example().weights), h.model(example().weights)
        with pytest.raises(ValueError, match="holds none of the model's parameters"):
            train_step(squared_error(h), model, h.optimizer(other, "momentum", RATE))
