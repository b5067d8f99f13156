"""train_step on a backend without a framework: what the core decides by itself."""

import json

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import GradScaler


def loss_fn(model, *batch):
    return np.float32(2.0), {"seen": batch}


@pytest.fixture
def make(toy):
    """A step over a fresh model with the given gradient."""

    def step(slope=1.0, **arguments):
        model = toy.Model(slope)
        return amp.train_step(loss_fn, model, toy.Optimizer(model), **arguments)

    return step


def test_a_result_says_what_happened(make):
    result = make(scaler=GradScaler(8.0))("x")
    assert (result.loss, result.aux, result.scale) == (2.0, {"seen": ("x",)}, 8.0)
    assert (result.applied, result.reason, result.step) == (True, None, 1)
    assert (result.grad_norm, result.consecutive_skips) == (None, 0)
    assert repr(result) == "StepResult(step=1, loss=2, applied=True, scale=8, reason=None)"


@pytest.mark.parametrize(("slope", "reason"), [(np.inf, "inf"), (np.nan, "nan")])
def test_a_skipped_step_says_why(make, slope, reason):
    step = make(slope, scaler=GradScaler(8.0))
    first, second = step(), step()
    assert (first.applied, first.reason, first.scale, first.consecutive_skips) == (
        False,
        reason,
        8.0,
        1,
    )
    assert (second.scale, second.consecutive_skips, second.step) == (4.0, 2, 2)
    assert step.model.weight == 0.0


def test_the_scaler_is_made_where_the_policy_needs_it(make):
    assert make(policy="O1").scaler.get_scale() == 2.0**16
    assert make(policy="O1:bfloat16").scaler is None
    assert make(policy="O0")().scale == 1.0


def test_micro_batches_are_averaged_and_step_once(make):
    step = make(slope=3.0, accumulate=3, scaler=GradScaler(8.0))
    results = [step() for _ in range(6)]
    assert [r.reason for r in results] == ["accumulating", "accumulating", None] * 2
    assert [r.step for r in results] == [0, 0, 1, 1, 1, 2]
    assert step.optimizer.steps == 2
    assert step.model.weight == -6.0


def test_an_overflow_in_one_micro_batch_drops_the_whole_step(make):
    step = make(accumulate=2, scaler=GradScaler(8.0))
    step.model.slope = np.inf
    step()
    step.model.slope = 1.0
    assert step().reason == "inf"
    assert step.optimizer.steps == 0
    step()
    assert step().applied


def test_clipping_sees_unscaled_gradients(make):
    step = make(slope=4.0, clip_norm=1.0, scaler=GradScaler(1024.0))
    assert step().grad_norm == 4.0
    assert step.model.weight == -1.0


def test_the_scheduler_moves_on_applied_steps_alone(make):
    calls = []
    step = make(scaler=GradScaler(8.0), accumulate=2, scheduler=lambda: calls.append(1))
    for slope in (1.0, np.inf, 1.0):
        step.model.slope = slope
        step()
        step()
    assert len(calls) == 2


def test_a_scheduler_may_be_an_object_with_step(make):
    class Scheduler:
        steps = 0

        def step(self):
            self.steps += 1

    scheduler = Scheduler()
    make(scheduler=scheduler)()
    assert scheduler.steps == 1


def test_a_failing_loss_leaves_the_step_as_it_was(toy):
    model = toy.Model()
    fail = True

    def sometimes(model):
        if fail:
            raise RuntimeError
        return np.float32(0.0)

    step = amp.train_step(sometimes, model, toy.Optimizer(model), accumulate=2)
    with pytest.raises(RuntimeError):
        step()
    fail = False
    assert [step().reason for _ in range(2)] == ["accumulating", None]


def test_state_goes_through_json_and_back(make):
    step = make(scaler=GradScaler(8.0, growth_interval=3))
    step(), step()
    saved = json.loads(json.dumps(step.state_dict()))
    assert saved["step"] == 2
    other = make(scaler=GradScaler())
    other.load_state_dict(saved)
    assert other.state_dict() == saved
    assert other().step == 3
    assert other.scaler.get_scale() == 16.0


def test_a_step_without_scaling_saves_no_scaler(make):
    saved = make(policy="O0").state_dict()
    assert saved.pop("policy") == amp.Policy("O0").to_dict()
    assert saved == {"version": 1, "step": 0, "schedule": {}, "scaler": None}


def test_value_and_grad_returns_aux_beside_the_loss(toy):
    (loss, aux), grads = amp.value_and_grad(loss_fn, toy.Model(3.0), "x", policy="O0")
    assert (loss, aux["seen"], grads[0]) == (2.0, ("x",), 3.0)
    assert list(grads) == [3.0]
    assert len(grads.parameters) == len(grads) == 1
