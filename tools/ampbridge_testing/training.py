"""Promises of ``train_step``, eager and compiled, with this backend under it."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from ampbridge import (
    AmpBridgeWarning,
    GradScaler,
    Policy,
    Schedule,
    StepResult,
    TrainStep,
    UnsupportedError,
    train_step,
)
from ampbridge.adapters.backend import Array, LossFn, Model
from ampbridge_testing.gradients import FLOAT32_ERROR, multiplied_error, same_bits
from ampbridge_testing.reference import (
    EXACT,
    LARGEST_FLOAT16,
    PROBE,
    Example,
    dtype_shown,
    example,
    joint_norm,
    reference,
)
from ampbridge_testing.shared import RATE, Training
from ampbridge_testing.updates import Updating


class TrainStepConformance(Updating):
    """Promises of the loop's only call. Tests that take ``compiled`` run eager and compiled."""

    def train_step(self, training: Training, compiled: bool = False, **settings: Any) -> TrainStep:
        """A step whose batch is ``(x, target, factor)``, unless the settings have a ``loss_fn``."""
        loss_fn = settings.pop("loss_fn", None) or multiplied_error(self.harness)
        return train_step(loss_fn, *training, compile=compiled, **{"policy": "O0", **settings})

    def _new_step(
        self,
        compiled: bool = False,
        loss_fn: LossFn | None = None,
        *,
        kind: str = "momentum",
        rate: float = RATE,
        **settings: Any,
    ) -> TrainStep:
        training = self.new_training(kind, rate)
        return self.train_step(training, compiled, loss_fn=loss_fn, **settings)

    def run(self, step: TrainStep, factor: float = 1.0, given: Example | None = None) -> StepResult:
        given = given or example()
        return step(given.x, given.target, np.float32(factor))

    def error_of_weights(
        self, training: Training | TrainStep, steps: list[Any], rate: float = RATE
    ) -> float:
        return self._error_of_weights(training.model, *steps, rate=rate)

    # -- what a step does

    @pytest.mark.parametrize("policy", ["O0", "O1:bfloat16"])
    def test_the_loss_falls(self, policy: str) -> None:
        self.check_that_the_loss_falls(policy=policy)

    def test_the_loss_falls_under_a_scaler(self, compiled: bool) -> None:
        self.check_that_the_loss_falls(compiled, policy="O1:float16")

    def check_that_the_loss_falls(self, compiled: bool = False, **settings: Any) -> None:
        step = self._new_step(compiled, rate=0.02, **settings)
        losses = [self.run(step).loss for _ in range(12)]
        assert losses[0] == pytest.approx(EXACT.loss, rel=1e-2)
        assert losses[-1] < 0.5 * losses[0]

    def test_a_step_is_the_optimizer_s_step_from_the_true_gradients(self, compiled: bool) -> None:
        step = self._new_step(compiled)
        result = self.run(step)
        assert self.error_of_weights(step, [EXACT.gradients]) < FLOAT32_ERROR
        assert (result.applied, result.reason, result.scale) == (True, None, 1.0)

    def test_scaling_does_not_change_the_step(self, compiled: bool) -> None:
        step = self._new_step(compiled, scaler=GradScaler(2.0**10))
        result = self.run(step)
        assert self.error_of_weights(step, [EXACT.gradients]) < FLOAT32_ERROR
        assert result.scale == 2.0**10

    def test_a_denied_product_trains_in_float32(self, compiled: bool) -> None:
        policy = Policy("O1", "bfloat16", deny=("matmul", "linear"))
        step = self._new_step(compiled, policy=policy)
        self.run(step)
        assert self.error_of_weights(step, [EXACT.gradients]) < FLOAT32_ERROR

    def test_aux_passes_through(self, compiled: bool) -> None:
        h, given = self.harness, example()

        def loss_fn(model: Model, x: Array, target: Array) -> tuple[Array, Array]:
            prediction = h.forward(model, x)
            return h.mean_squared_error(prediction, target), prediction

        step = self._new_step(compiled, loss_fn)
        w1, b1, w2, b2 = given.weights
        expected = np.maximum(given.x @ w1 + b1, 0) @ w2 + b2
        assert h.numpy(step(given.x, given.target).aux) == pytest.approx(expected, rel=1e-4)

    # -- skipping

    @pytest.mark.parametrize("factor, reason", [(math.inf, "inf"), (math.nan, "nan")])
    @pytest.mark.parametrize("kind", ["momentum", "adam"])
    def test_a_skipped_training_step_leaves_every_bit(
        self, kind: str, factor: float, reason: str, compiled: bool
    ) -> None:
        step = self._new_step(compiled, kind=kind, scaler=GradScaler(2.0**10))
        assert self.run(step).applied
        before = self._state_of(step)
        result = self.run(step, factor)
        assert (result.applied, result.reason) == (False, reason)
        assert same_bits(self._state_of(step), before)

    def test_a_step_after_a_skipped_one_trains_on(self, compiled: bool) -> None:
        step = self._new_step(compiled, scaler=GradScaler(2.0**10))
        self.run(step, math.inf)
        assert self.run(step).applied
        assert self.error_of_weights(step, [EXACT.gradients]) < FLOAT32_ERROR

    def test_the_result_tells_the_scale_used_and_the_skips_in_a_row(self, compiled: bool) -> None:
        scaler = GradScaler(2.0**10, growth_interval=2)
        step = self._new_step(compiled, scaler=scaler)
        results = [self.run(step, f) for f in (1.0, math.inf, math.nan, 1.0, 1.0, 1.0)]
        assert [r.scale for r in results] == [2.0**k for k in (10, 10, 9, 8, 8, 9)]
        assert [r.consecutive_skips for r in results] == [0, 1, 2, 0, 0, 0]
        assert [r.reason for r in results] == [None, "inf", "nan", None, None, None]

    def read_seldom(self, factors: list[float], compiled: bool) -> list[str]:
        """What is said of steps of which the last result alone is read."""
        scaler = GradScaler(2.0**10, warn_after_skips=3)
        step = self._new_step(compiled, scaler=scaler)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert [self.run(step, factor) for factor in factors][-1].applied
        said = [w.message for w in caught if isinstance(w.message, AmpBridgeWarning)]
        return [str(message) for message in said]

    def test_a_run_of_skips_is_told_of_however_seldom_one_looks(self, compiled: bool) -> None:
        [said] = self.read_seldom([1.0, *[math.inf] * 4, 1.0, 1.0], compiled)
        assert said.startswith("3 steps in a row were skipped")

    def test_nans_that_finite_steps_part_are_no_run(self, compiled: bool) -> None:
        assert self.read_seldom([math.nan, math.nan, 1.0] * 5, compiled) == []

    def test_a_scale_that_is_too_large_backs_off_until_a_step_is_applied(self) -> None:
        skips = math.ceil(math.log2(EXACT.largest * 2.0**24 / LARGEST_FLOAT16))
        step = self._new_step(policy="O1:float16", scaler=GradScaler(2.0**24))
        applied = [self.run(step).applied for _ in range(skips + 2)]
        assert applied == [False] * skips + [True] * 2

    # -- accumulate, clip_norm, scheduler

    @pytest.mark.parametrize("scaled", [False, True])
    def test_accumulated_micro_batches_equal_the_big_batch(
        self, scaled: bool, compiled: bool
    ) -> None:
        """So do those of the next step, which begins anew."""
        whole = example()
        step = self._new_step(
            compiled, accumulate=4, scaler=GradScaler(2.0**10) if scaled else None
        )
        steps: list[Any] = []
        for _ in range(2):
            due = reference(self.values(step.model), whole.x, whole.target)
            losses = []
            for rows in (slice(i, i + 2) for i in range(0, 8, 2)):
                part = Example(whole.weights, whole.x[rows], whole.target[rows])
                losses.append(self.run(step, given=part).loss)
            steps.append(due.gradients)
            assert self.error_of_weights(step, steps) < FLOAT32_ERROR
            assert np.mean(losses) == pytest.approx(due.loss, rel=FLOAT32_ERROR)

    def test_an_overflow_in_any_micro_batch_skips_the_step(self, compiled: bool) -> None:
        step = self._new_step(compiled, accumulate=3, scaler=GradScaler(2.0**10))
        before = self.values(step.model)
        results = [self.run(step, factor) for factor in (1.0, math.inf, 1.0)]
        assert [r.reason for r in results] == ["accumulating", "accumulating", "inf"]
        assert same_bits(self.values(step.model), before)

    def test_an_overflow_does_not_reach_the_next_accumulation(self) -> None:
        step = self._new_step(accumulate=2, scaler=GradScaler(2.0**10))
        for factor in (1.0, math.inf, 1.0, 1.0):
            result = self.run(step, factor)
        assert result.applied
        assert self.error_of_weights(step, [EXACT.gradients]) < FLOAT32_ERROR

    @pytest.mark.parametrize("scaled", [False, True])
    def test_clip_norm_clips_the_true_gradients(self, scaled: bool, compiled: bool) -> None:
        gradients = EXACT.gradients
        norm = joint_norm(gradients)
        step = self._new_step(
            compiled, clip_norm=norm / 4, scaler=GradScaler(2.0**10) if scaled else None
        )
        assert self.run(step).grad_norm == pytest.approx(norm, rel=FLOAT32_ERROR)
        assert self.error_of_weights(step, [[g / 4 for g in gradients]]) < FLOAT32_ERROR

    def test_clip_each_norm_clips_each_true_gradient(self, compiled: bool) -> None:
        gradients = EXACT.gradients
        limit = float(np.median([joint_norm([g]) for g in gradients]))
        step = self._new_step(compiled, clip_each_norm=limit, scaler=GradScaler(2.0**10))
        assert self.run(step).grad_norm is None
        expected = [g * min(1.0, limit / joint_norm([g])) for g in gradients]
        assert self.error_of_weights(step, [expected]) < FLOAT32_ERROR

    def test_clip_value_clips_the_true_gradients(self, compiled: bool) -> None:
        gradients = EXACT.gradients
        limit = float(np.median(np.abs(np.concatenate([g.ravel() for g in gradients]))))
        step = self._new_step(compiled, clip_value=limit, scaler=GradScaler(2.0**10))
        assert self.run(step).grad_norm is None
        expected = [g.clip(-limit, limit) for g in gradients]
        assert self.error_of_weights(step, [expected]) < FLOAT32_ERROR

    def test_the_scheduler_moves_on_applied_steps_alone(self, compiled: bool) -> None:
        moves: list[int] = []
        step = self._new_step(
            compiled,
            scaler=GradScaler(2.0**10),
            accumulate=2,
            scheduler=lambda: moves.append(1),
        )
        told = []
        for factor in (1.0, 1.0, 1.0, math.inf, 1.0, 1.0):
            self.run(step, factor)
            told.append(len(moves))
        assert told == [0, 1, 1, 1, 1, 2]

    # -- policy and compiler

    def probing_loss(self, model: Model, x: Array, target: Array, a: Array, b: Array) -> Any:
        """The loss, and a product whose value shows in which precision it ran."""
        h = self.harness
        return h.mean_squared_error(h.forward(model, x), target), h.run("matmul", a, b)

    def precision_of_product(self, step: TrainStep) -> str:
        """Run one step of ``probing_loss``."""
        given = example()
        left, right = np.ones((1, 2), np.float32), np.diag(PROBE).astype(np.float32)
        result = step(given.x, given.target, left, right)
        return dtype_shown(self.harness.numpy(result.aux), PROBE)

    def test_two_steps_of_one_loss_function_follow_their_own_policies(self, compiled: bool) -> None:
        shown = []
        for policy in (
            Policy("O1", "bfloat16"),
            Policy("O0"),
            Policy("O1", "bfloat16", deny=("matmul",)),
        ):
            step = self._new_step(compiled, self.probing_loss, policy=policy)
            shown.append(self.precision_of_product(step))
        assert shown == ["bfloat16", "float32", "float32"]

    def test_a_schedule_changes_what_runs_at_the_right_step(self, compiled: bool) -> None:
        schedule = Schedule([(0, "O0"), (2, "O1:bfloat16"), (3, "O1:float16"), (4, "O0")])
        step = self._new_step(compiled, self.probing_loss, policy=schedule)
        shown = [self.precision_of_product(step) for _ in range(6)]
        assert shown == ["float32"] * 2 + ["bfloat16", "float16"] + ["float32"] * 2

    def test_the_loss_function_is_compiled(self, compiled: bool) -> None:
        h, given = self.harness, example()
        traced: list[bool] = []

        def loss_fn(model: Model, x: Array, target: Array) -> Array:
            traced.append(h.is_tracing())
            return h.mean_squared_error(h.forward(model, x), target)

        step = self._new_step(compiled, loss_fn)
        for _ in range(2):
            step(given.x, given.target)
        assert set(traced) == {compiled}

    def test_compiling_is_refused_where_there_is_no_compiler(self) -> None:
        if self.harness.compiles:
            pytest.skip("this backend compiles")
        with pytest.raises(UnsupportedError, match="Hint: "):
            self._new_step(compiled=True)

    # -- state

    def test_a_reloaded_step_goes_on_as_the_saved_one(self) -> None:
        saved, reloaded = (
            self._new_step(scaler=GradScaler(2.0**10, growth_interval=3)) for _ in range(2)
        )
        for factor in (1.0, math.inf, 1.0):
            self.run(saved, factor)
        reloaded.load_state_dict(saved.state_dict())
        for factor in (1.0, 1.0, math.inf):
            results = [self.run(step, factor) for step in (saved, reloaded)]
            assert results[0].scale == results[1].scale
            assert results[0].step == results[1].step
        assert saved.state_dict() == reloaded.state_dict()
