"""Promises of the first step: mistakes that would train wrongly are said, in the same words everywhere."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

from ampbridge import (
    AmpBridgeWarning,
    ArgumentError,
    CallOrderError,
    GradScaler,
    Policy,
    Schedule,
    SimulationWarning,
    TrainStep,
    autocast,
    decorate,
    train_step,
    undecorate,
    value_and_grad,
)
from ampbridge.adapters.backend import Array, Backend, Model, Optimizer
from ampbridge.training.decorate import policy_by_hand
from ampbridge_testing.decorating import Layered, levels
from ampbridge_testing.gradients import FLOAT32_ERROR, same_bits
from ampbridge_testing.harness import untransposed
from ampbridge_testing.reference import EXACT, example, relative_error
from ampbridge_testing.roles import overrides
from ampbridge_testing.shared import RATE

FLOAT16_WITHOUT_MASTERS = r"(?s)are float16, without float32 masters.*Hint: "


class FirstStepConformance(Layered):
    """What is silently wrong elsewhere is refused at the first step, or warned of."""

    def _check_refused(self, step: TrainStep, error: type[Exception], words: str) -> None:
        """Check that every call raises, and changes no weight."""
        before = self.values(step.model)
        for _ in range(2):
            with pytest.raises(error, match=words):
                step(*self.batch())
        assert all(map(np.array_equal, self.values(step.model), before))

    @contextmanager
    def _without_a_word(self) -> Iterator[None]:
        """Warnings are errors in a block, but for the one of a simulation."""
        with warnings.catch_warnings():
            warnings.simplefilter("error", AmpBridgeWarning)
            warnings.simplefilter("ignore", SimulationWarning)
            yield

    # -- a loss that is scaled twice

    def scaled_by(self, scaler: GradScaler) -> Any:
        """A loss function in which ``scaler.scale`` of a loop by hand was left."""

        def loss_fn(model: Model, x: Array, target: Array, factor: Array) -> Array:
            return scaler.scale(self.loss()(model, x, target, factor))

        return loss_fn

    @pytest.mark.parametrize("others", [True, False], ids=["another scaler", "the step's scaler"])
    def test_a_loss_that_its_function_scales_is_refused(self, others: bool, compiled: bool) -> None:
        model, optimizer = self.trainable()
        scaler = GradScaler(2.0**10)
        used = None if others else scaler
        step = train_step(
            self.scaled_by(scaler), model, optimizer, policy="O0", scaler=used, compile=compiled
        )
        # Nor does a program that was traced once scale in silence.
        self._check_refused(step, CallOrderError, "inside of the loss_fn of train_step")
        assert self.harness.numpy(scaler.scale(self.harness.array(3.0))).item() == 3072.0

    def test_a_loss_that_the_framework_s_own_scaler_scales_is_refused(self) -> None:
        h = self.harness
        if h.scaled_by_itself(h.array(1.0)) is None:
            pytest.skip("the framework has no loss scaler of its own here")

        def loss_fn(*batch: Any) -> Array:
            return h.scaled_by_itself(self.loss()(*batch))

        model, optimizer = self.trainable()
        step = train_step(loss_fn, model, optimizer, policy="O0", compile=False)
        self._check_refused(step, CallOrderError, "inside of the loss_fn of train_step")
        assert h.numpy(h.scaled_by_itself(h.array(1.0))).item() == 1024.0

    def test_value_and_grad_scales_once(self) -> None:
        model, _ = self.trainable()
        scaler = GradScaler(2.0**10)
        loss_fn = self.scaled_by(scaler)
        with pytest.raises(CallOrderError, match="inside of the loss_fn of value_and_grad"):
            value_and_grad(loss_fn, model, *self.batch(), policy="O0", scaler=scaler)
        _, scaled = value_and_grad(loss_fn, model, *self.batch(), policy="O0")
        expected = [g * 2.0**10 for g in EXACT.gradients]
        actual = untransposed([self.harness.numpy(g) for g in scaled], expected)
        assert relative_error(actual, expected) < FLOAT32_ERROR

    # -- float16 parameters without masters

    def in_16_bits(self, dtype: str) -> tuple[Model, Optimizer]:
        model = self.harness.in_16_bits(example().weights, dtype)
        if model is None:
            pytest.skip("parameters are float32 always here")
        return model, self.harness.optimizer(model, "sgd", RATE)

    def test_a_loss_scale_for_float16_parameters_without_masters_is_refused(
        self, compiled: bool
    ) -> None:
        model, optimizer = self.in_16_bits("float16")
        step = self.step(model, optimizer, policy="O1:float16", compile=compiled)
        self._check_refused(step, ArgumentError, FLOAT16_WITHOUT_MASTERS)

    def test_a_step_by_hand_of_float16_parameters_without_masters_is_refused(self) -> None:
        h = self.harness
        model, optimizer = self.in_16_bits("float16")
        grads = [h.array(np.ones(value.shape)) for value in self.values(model)]
        scaler = GradScaler()
        scaler.scale(h.array(1.0))
        for _ in range(2):
            with pytest.raises(ArgumentError, match=FLOAT16_WITHOUT_MASTERS):
                scaler.step(optimizer, grads)

    def test_bfloat16_parameters_without_masters_are_warned_of(self, compiled: bool) -> None:
        model, optimizer = self.in_16_bits("bfloat16")
        step = self.step(
            model, optimizer, policy="O1:bfloat16", scaler=GradScaler(8.0), compile=compiled
        )
        with pytest.warns(AmpBridgeWarning, match="model are in 16 bits by themselves"):
            assert step(*self.batch()).applied

    @pytest.mark.parametrize("masters", ["float32", None])
    def test_float16_parameters_of_a_policy_are_trained_with_a_loss_scale(
        self, masters: Any
    ) -> None:
        model, optimizer = self.trainable()
        policy, scaler = Policy("O2", masters=masters), GradScaler(8.0)
        decorate(model, optimizer, policy)
        _, grads = value_and_grad(self.loss(), model, *self.batch(), policy=policy, scaler=scaler)
        assert scaler.step(optimizer, grads)

    # -- a model that the user has decorated

    @pytest.mark.parametrize("policy", ["O2:bfloat16", "O1:bfloat16"])
    def test_a_step_without_a_policy_takes_that_of_the_decorated_model(self, policy: str) -> None:
        model, optimizer = self.trainable()
        decorate(model, optimizer, policy)
        step = self.step(model, optimizer)
        assert step.policy == Policy.parse(policy)
        assert step(*self.batch()).applied
        assert policy_by_hand(self.harness.backend, model) == Policy.parse(policy)

    @pytest.mark.parametrize("decorated", ["O2:float16", "O1:float16"])
    @pytest.mark.parametrize("policy", ["O0", "O1:bfloat16"])
    def test_a_step_under_another_policy_than_the_decorated_model_s_is_refused(
        self, policy: str, decorated: str
    ) -> None:
        model, optimizer = self.trainable()
        decorate(model, optimizer, decorated)
        step = self.step(model, optimizer, policy=policy)
        self._check_refused(step, CallOrderError, "of a model that is decorated with")
        undecorate(model, optimizer)
        assert step(*self.batch()).step == 1
        assert self.step(model, optimizer, policy=decorated)(*self.batch()).step == 1

    def test_a_schedule_may_come_to_the_decorated_model_s_policy(self) -> None:
        model, optimizer = self.trainable()
        decorate(model, optimizer, "O2:bfloat16")
        step = self.step(model, optimizer, policy=Schedule([(0, "O0"), (1, "O2:bfloat16")]))
        assert step(*self.batch()).applied
        assert step(*self.batch()).applied

    # -- nothing to train

    @pytest.mark.parametrize("steps", [0, 1], ids=["frozen at first", "frozen later"])
    def test_a_step_that_would_train_nothing_is_refused(self, steps: int, compiled: bool) -> None:
        model, optimizer = self.trainable()
        step = self.step(model, optimizer, policy="O0", compile=compiled)
        for _ in range(steps):
            step(*self.batch())
        self.harness.freeze(model, optimizer)
        self._check_refused(step, ArgumentError, "There is nothing to train")

    # -- a region around

    @pytest.mark.parametrize("outer", ["O1:bfloat16", "O1:float16"])
    @pytest.mark.parametrize("policy", ["O0", "O1:bfloat16", "O2:bfloat16"])
    def test_steps_within_a_region_are_those_outside_of_it(
        self, policy: str, outer: str, compiled: bool
    ) -> None:
        """A loop in one region: its gradients, updates and weights are the step's own."""
        trained = []
        for region in (nullcontext(), autocast(outer, self.harness.backend.name)):
            model, optimizer = self.trainable("adam")
            step = self.step(model, optimizer, policy=policy, compile=compiled)
            with region:
                losses = [np.float64(step(*self.batch()).loss) for _ in range(4)]
            trained.append([*losses, *self.values(model)])
        assert same_bits(*trained)

    # -- a precision of the framework's own

    @pytest.mark.parametrize("policy", ["O0", "O1:bfloat16"])
    def test_the_framework_s_own_precision_is_warned_of_once(self, policy: str) -> None:
        step = self.step_of_a_low_model("float16", policy)
        words = f"comes before the step's {Policy.parse(policy)!r}"
        with pytest.warns(AmpBridgeWarning, match=re.escape(words)):
            step(*self.batch())
        step(*self.batch())

    def test_the_framework_s_own_precision_may_be_that_of_the_policy(self) -> None:
        self.step_of_a_low_model("bfloat16", "O1:bfloat16")(*self.batch())

    def step_of_a_low_model(self, dtype: str, policy: str) -> TrainStep:
        model = self.harness.low_by_itself(example().weights, dtype)
        if model is None:
            pytest.skip("the framework has no mixed precision of its own here")
        optimizer = self.harness.optimizer(model, "momentum", RATE)
        return self.step(model, optimizer, policy=policy)

    # -- parts of a model

    def test_an_optimizer_of_a_replaced_layer_is_warned_of_once(self, compiled: bool) -> None:
        h = self.harness
        (model, _), (other, _) = self.trainable(), self.trainable()
        optimizer = h.optimizer(model.hidden, "momentum", RATE, other.head)
        step = self.step(model, optimizer, policy="O0", compile=compiled)
        left_out = self.parameter_of_head()
        with pytest.warns(
            AmpBridgeWarning,
            match=rf"2 of the optimizer's parameters are neither in .* not trained: {left_out}(?s:.*)\n"
            rf"Hint: optimizer = {type(optimizer).__name__}\(\.\.\.\), of the parameters",
        ):
            step(*self.batch())
        step(*self.batch())

    def reading_weights_of_the_head(self, model: Model, x: Array, target: Array, _: Array) -> Array:
        """A loss of the model that calls its head, and does more with the head's weights."""
        h, head = self.harness, model.head
        weight = head.kernel if hasattr(head, "kernel") else head.weight
        return h.mean_squared_error(weight, 0 * weight)

    def parameter_of_head(self) -> str:
        """A pattern for the name of the head's weight: its number, where an adapter gives no names."""
        named = overrides(self.harness.backend, Backend, "parameter_names")
        return r"head\.(weight|kernel)" if named else "2"

    @levels
    def test_parameters_of_a_kept_layer_that_is_not_called_are_warned_of_once(
        self, level: str
    ) -> None:
        model, optimizer = self.trainable()
        with self.harness.backend.noting_kept_calls() as called:
            if called() is None:
                pytest.skip("calls are not noted here")
        policy = Policy(level, "bfloat16", keep=("head",))  # type: ignore[arg-type]
        loss_fn = self.reading_weights_of_the_head
        step = train_step(loss_fn, model, optimizer, policy=policy, compile=False)
        weight = self.parameter_of_head()
        words = rf"(?s)keep=\['head'\] does not reach where .* used: {weight}\. .*Hint: "
        with pytest.warns(AmpBridgeWarning, match=words):
            step(*self.batch())
        step(*self.batch())

    @pytest.mark.parametrize("keep", [("head",), ("*",)])
    @levels
    def test_parameters_of_called_kept_layers_are_used_without_a_word(
        self, level: str, keep: tuple[str, ...]
    ) -> None:
        def loss_fn(model: Model, x: Array, *others: Array) -> Array:
            regularized = self.reading_weights_of_the_head(model, x, *others)
            return self.loss()(model, x, *others) + regularized

        model, optimizer = self.trainable()
        policy = Policy(level, "bfloat16", keep=keep)  # type: ignore[arg-type]
        with self._without_a_word():
            train_step(loss_fn, model, optimizer, policy=policy, compile=False)(*self.batch())

    @pytest.mark.parametrize("policy", ["O0", "O1:bfloat16"])
    def test_a_part_of_a_model_is_trained_without_a_word(self, policy: str, compiled: bool) -> None:
        """With another model in the same optimizer, on which this loss does not depend."""
        h = self.harness
        (model, _), (other, _) = self.trainable(), self.trainable()
        optimizers = (
            h.optimizer(model.hidden, "momentum", RATE),
            h.optimizer(model, "momentum", RATE, other),
        )
        with self._without_a_word():
            for optimizer in optimizers:
                self.step(model, optimizer, policy=policy, compile=compiled)(*self.batch())
