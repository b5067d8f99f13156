"""train_step on a backend without a framework: what the core decides by itself."""

import copy
import json
import pickle

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import GradScaler
from ampbridge.scaling.scale_rule import HostStore, ScaleState, next_state


def loss_fn(model, *batch):
    return np.float32(2.0), {"seen": batch}


@pytest.fixture
def make(toy):
    """A step over a fresh model with the given gradient."""

    def step(slope=1.0, **arguments):
        model = toy.Model(slope)
        return amp.train_step(loss_fn, model, toy.Optimizer(model), **arguments)

    return step


def test_a_step_tells_what_it_is(make):
    step = make(scaler=GradScaler(8.0), accumulate=2, clip_norm=1.0)
    step(), step()
    assert repr(step) == "TrainStep(ToyModel, ToyOptimizer, step=1, policy=Policy('O1', 'float16'))"
    assert str(step) == (
        "A step of ToyModel and ToyOptimizer on toyframework, 1 taken\npolicy: O1:float16\n"
        "scaler: GradScaler(8.0)\naccumulate: 2\nclip_norm: 1.0"
    )
    assert step._repr_html_() == f"<pre>{step}</pre>"


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
    step = make(policy="O1")
    assert (step.scaler.get_scale(), step().scale) == (2.0**16, 2.0**16)
    for policy in ("O0", "O1:bfloat16"):
        step = make(policy=policy)
        assert (step.scaler, step().scale) == (None, 1.0)


def test_micro_batches_are_averaged_and_step_once(make):
    step = make(slope=3.0, accumulate=3, scaler=GradScaler(8.0))
    results, weights = [], []
    for _ in range(6):
        results.append(step())
        weights.append(step.model.weight.item())
    assert [r.reason for r in results] == ["accumulating", "accumulating", None] * 2
    assert [r.applied for r in results] == [False, False, True] * 2
    assert [r.step for r in results] == [0, 0, 1, 1, 1, 2]
    assert [r.consecutive_skips for r in results] == [0] * 6
    assert step.optimizer.steps == 2
    assert weights == [0.0, 0.0, -3.0, -3.0, -3.0, -6.0]


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


def test_a_step_tells_its_settings(make):
    settings = {"accumulate": 3, "clip_norm": 0.5, "on_overflow": "drop_microbatch"}
    step = make(name_overflows=True, **settings)
    assert {name: getattr(step, name) for name in settings} == settings
    assert step.name_overflows
    assert make().clip_norm is None
    for name in ("clip_each_norm", "clip_value"):
        assert getattr(make(**{name: 0.5}), name) == 0.5
        assert getattr(make(), name) is None


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


@pytest.fixture
def scheduled(toy):
    """A step with a scheduler that counts, as torch's and Paddle's do."""

    class Counting(toy.Rates):
        last_epoch = 0

        def step(self):
            self.last_epoch += 1

    model = toy.Model()
    optimizer = toy.Optimizer(model)
    scheduler = Counting(optimizer)
    return [
        amp.train_step(loss_fn, model, optimizer, scaler=GradScaler(8.0), scheduler=scheduler)
        for _ in range(2)
    ]


def test_a_scheduler_that_the_loop_moves_too_is_warned_of_once(scheduled, toy, monkeypatch):
    monkeypatch.setattr(toy.Backend, "kind", _kind_of_subclasses(toy))
    step, _ = scheduled
    step(), step._trained.scheduler.step()
    step(), step._trained.scheduler.step()  # one may have been loaded
    with pytest.warns(amp.AmpBridgeWarning, match=r"(?s)The Counting .* moves twice.*Hint: leave"):
        step()
    step._trained.scheduler.step()
    step()


def test_a_scheduler_that_is_loaded_or_moved_by_steps_is_not_warned_of(scheduled, toy, monkeypatch):
    monkeypatch.setattr(toy.Backend, "kind", _kind_of_subclasses(toy))
    one, other = scheduled
    scheduler = one._trained.scheduler
    for slope in (1.0, np.inf, 1.0, 1.0):
        one.model.slope = slope  # by steps that take turns, one of which is skipped
        one(), other()
    for count in (7, 8, 3, 3, 20):
        scheduler.last_epoch = count
        one()


def _kind_of_subclasses(toy):
    kind = toy.Backend.kind
    return lambda self, obj: "scheduler" if isinstance(obj, toy.Rates) else kind(self, obj)


def test_a_step_whose_scheduler_raises_has_happened(make):
    due = []

    def scheduler():
        due.append(None)
        if len(due) == 2:
            raise RuntimeError

    step = make(slope=3.0, scheduler=scheduler)
    step()
    with pytest.raises(RuntimeError):
        step()
    assert (step.state_dict()["step"], step.optimizer.steps, step.model.weight) == (2, 2, -6.0)
    assert step().step == len(due) == 3
    assert step.model.weight == -9.0


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
    assert saved == {
        "version": 1,
        "step": 0,
        "schedule": {},
        "scaler": None,
        "unscaled": GradScaler(1.0, dynamic=False).state_dict(),
    }


def test_a_state_cannot_change_what_steps_without_scaling_go_by(make):
    step = make(np.inf, policy="O0")
    saved = step.state_dict()
    changed = {"scale": 8.0, "dynamic": True, "enabled": False, "max_consecutive_skips": 1}
    step.load_state_dict({**saved, "unscaled": {**saved["unscaled"], **changed}})
    assert step().scale == 1.0
    assert step.state_dict()["unscaled"] == {**saved["unscaled"], "consecutive_skips": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": -1},
        {"step": 1.5},
        {"step": True},
        {"step": 2**31},
        {"unscaled": "3"},
        {"unscaled": {}},
        {"unscaled": {**GradScaler().state_dict(), "consecutive_nans": -1}},
        {"unscaled": {**GradScaler().state_dict(), "consecutive_nans": 2**31}},
        {"schedule": {"step": 3}},
        {"schedule": None},
        {"policy": None},
        {"policy": {"level": 3}},
        {"policy": {"steps": 5}},
        {"policy": {"use": 5, "otherwise": 6}},
        {"scaler": {}},
        {"scaler": None},
        {"version": 2},
        {"version": True},
        {"version": [1]},
        {"extra": 1},
    ],
    ids=str,
)
def test_an_impossible_state_is_refused_whole(make, wrong):
    step = make(scaler=GradScaler(8.0))
    step()
    before = step.state_dict()
    with pytest.raises(amp.StateError, match="Hint: "):
        step.load_state_dict({**before, "step": 5, **wrong})
    assert step.state_dict() == before


def test_the_largest_counts_of_a_state_are_taken(make):
    step = make(scaler=GradScaler(8.0))
    counts = {**GradScaler().state_dict(), "consecutive_nans": 2**31 - 1}
    step.load_state_dict({**step.state_dict(), "step": 2**31 - 1, "unscaled": counts})
    assert step.state_dict()["step"] == 2**31 - 1
    assert step.state_dict()["unscaled"]["consecutive_nans"] == 2**31 - 1


@pytest.mark.parametrize(
    "state",
    [{"step": "1"}, {"step": -1}, {"step": True}, {"step": 2**31}, {}, {"using": 1}],
    ids=str,
)
def test_an_impossible_state_of_a_schedule_is_refused(make, state):
    step = make(policy=amp.Schedule([(0, "O0"), (2, "O1")]))
    with pytest.raises(amp.StateError, match="is no state of Schedule"):
        step.load_state_dict({**step.state_dict(), "schedule": state})


@pytest.mark.parametrize("count", [0, 2**31 - 1])
def test_the_least_and_the_largest_count_of_a_schedule_are_taken(make, count):
    step = make(policy=amp.Schedule([(0, "O0"), (2, "O1")]))
    step.load_state_dict({**step.state_dict(), "schedule": {"step": count}})
    assert step.state_dict()["schedule"] == {"step": count}


# -- steps without loss scaling are checked too


@pytest.mark.parametrize("policy", ["O0", "O1:bfloat16"])
@pytest.mark.parametrize(("slope", "reason"), [(np.inf, "inf"), (np.nan, "nan")])
def test_a_step_without_scaling_is_skipped_and_counted(make, policy, slope, reason):
    step = make(slope, policy=policy)
    results = [step(), step()]
    assert [(r.applied, r.reason, r.scale) for r in results] == [(False, reason, 1.0)] * 2
    assert [r.consecutive_skips for r in results] == [1, 2]
    counts = step.state_dict()["unscaled"]
    assert (counts["consecutive_skips"], counts["consecutive_nans"]) == (2, 2 * (reason == "nan"))
    assert step.model.weight == 0.0


def test_skips_without_scaling_go_on_after_loading(make):
    step, other = make(np.inf, policy="O0"), make(np.inf, policy="O0")
    step()
    other.load_state_dict(step.state_dict())
    assert other().consecutive_skips == 2


# -- which parameters overflowed


@pytest.mark.parametrize(
    ("slope", "named"), [(1.0, {}), (np.inf, {"weight": "inf"}), (np.nan, {"weight": "nan"})]
)
def test_a_result_names_the_parameters_that_overflowed(make, slope, named):
    step = make(slope, scaler=GradScaler(8.0), name_overflows=True)
    assert step().overflows == named


# -- an overflow drops its micro-batch alone


def test_a_dropped_micro_batch_is_replaced_by_the_next(make):
    step = make(accumulate=2, scaler=GradScaler(8.0), on_overflow="drop_microbatch")
    results = []
    for slope in (1.0, np.inf, np.inf, 3.0, 5.0, 7.0):
        step.model.slope = slope
        results.append(step())
    assert [r.reason for r in results] == ["accumulating", "inf", "inf", None, "accumulating", None]
    assert [r.scale for r in results] == [8.0, 8.0, 4.0, 2.0, 2.0, 2.0]
    assert [r.step for r in results] == [0, 0, 0, 1, 1, 2]
    assert step.model.weight == -2.0 - 6.0


def test_each_micro_batch_counts_towards_growth(make):
    scaler = GradScaler(8.0, growth_interval=3)
    step = make(accumulate=2, scaler=scaler, on_overflow="drop_microbatch")
    assert [step().scale for _ in range(4)] == [8.0, 8.0, 8.0, 16.0]
    assert step.model.weight == -2.0


def test_a_first_micro_batch_may_be_dropped(make):
    step = make(np.inf, accumulate=2, scaler=GradScaler(8.0), on_overflow="drop_microbatch")
    step()
    step.model.slope = 2.0
    assert [step().reason for _ in range(2)] == ["accumulating", None]
    assert step.model.weight == -2.0


# -- alarms


def test_many_skips_in_a_row_are_warned_of_once(make):
    step = make(np.inf, scaler=GradScaler(8.0, warn_after_skips=3))
    step(), step()
    with pytest.warns(
        amp.AmpBridgeWarning, match=r"3 steps in a row were skipped; the loss scale is 1\.0"
    ):
        step()
    step()


def test_too_many_skips_in_a_row_are_an_error(make):
    scaler = GradScaler(8.0, warn_after_skips=None, max_consecutive_skips=3)
    step = make(np.inf, scaler=scaler)
    for _ in range(2):
        step()
    for skips, scale in ((3, 1.0), (4, 0.5)):
        with pytest.raises(amp.OverflowStuckError, match=f"{skips} steps in a row were skipped"):
            step()
        assert scaler.get_scale() == scale
    step.model.slope = 1.0
    assert step().applied


@pytest.mark.parametrize("slope", [np.inf, np.nan])
def test_alarms_can_be_switched_off(make, slope):
    step = make(slope, scaler=GradScaler(8.0, warn_after_skips=None, max_consecutive_skips=None))
    for _ in range(1100):
        step()


def test_nan_is_told_from_an_overflow_that_scaling_cures(make):
    step = make(np.nan, scaler=GradScaler(8.0))
    for _ in range(7):
        step()
    said = r"(?s)NaN in their gradients and no inf.*Hint: look for 0/0"
    with pytest.warns(amp.AmpBridgeWarning, match=said):
        step()
    step()


def test_inf_between_nans_starts_the_count_anew(make):
    step = make(scaler=GradScaler(8.0))
    for slope in (*[np.nan] * 7, np.inf, *[np.nan] * 7):
        step.model.slope = slope
        step()


def test_an_overflow_at_the_floor_may_be_an_error(make):
    scaler = GradScaler(4.0, min_scale=1.0, at_min_scale="raise", backoff_interval=2)
    step = make(np.inf, scaler=scaler)
    for _ in range(5):
        step()
    assert scaler.get_scale() == 1.0
    with pytest.raises(amp.OverflowStuckError, match=r"at its minimum, 1\.0"):
        step()


class DeviceStore(HostStore):
    """Arrays, which the host has to wait for."""

    def write(self, state):
        self._state = ScaleState(*map(np.asarray, state))

    def update(self, overflow, config):
        self.write(next_state(self._state, overflow, config, np.where))
        return self.read()


@pytest.mark.parametrize("read", ["applied", "reason", "consecutive_skips"])
def test_an_alarm_on_a_device_waits_for_who_reads_a_result_and_sounds_once(
    make, toy, monkeypatch, read
):
    unscale = toy.Backend.unscale

    def on_device(self, grads, scale):
        wide, found = unscale(self, grads, scale)
        return wide, np.asarray(found)

    monkeypatch.setattr(toy.Backend, "unscale", on_device)
    monkeypatch.setattr(toy.Backend, "scale_store", lambda self, state, like: DeviceStore(state))
    step = make(np.inf, scaler=GradScaler(8.0, max_consecutive_skips=2))
    step()
    result = step()
    with pytest.raises(amp.OverflowStuckError, match="2 steps in a row were skipped"):
        getattr(result, read)
    assert (result.applied, result.reason, result.consecutive_skips) == (False, "inf", 2)


# -- a function of the loss alone


def test_value_and_grad_returns_aux_beside_the_loss(toy):
    (loss, aux), grads = amp.value_and_grad(loss_fn, toy.Model(3.0), "x", policy="O0")
    assert (loss, aux["seen"], grads[0]) == (2.0, ("x",), 3.0)
    assert list(grads) == [3.0]
    assert len(grads.parameters) == len(grads) == 1


@pytest.mark.parametrize("call", [pickle.dumps, copy.copy])
def test_a_step_is_not_pickled(make, call):
    with pytest.raises(amp.UnsupportedError, match=r"Hint: step\.save\(path\)"):
        call(make())


def test_a_copy_goes_on_counting_steps_that_are_not_scaled(toy):
    model = toy.Model(slope=np.inf)
    step = amp.train_step(lambda model: np.zeros(()), model, toy.Optimizer(model), policy="O0")
    step()
    copied = copy.deepcopy(step)
    assert copied.state_dict() == step.state_dict()
    assert copied.state_dict()["unscaled"]["consecutive_skips"] == 1


@pytest.mark.parametrize(
    ("compile", "by_default", "compiled"),
    [(True, False, True), (False, True, False), ("auto", True, True), ("auto", False, False)],
)
def test_a_step_is_compiled_if_asked_for_or_usual(
    make, toy, monkeypatch, compile, by_default, compiled
):
    calls = []

    def noting(self, build, loss_fn):
        calls.append(loss_fn)
        return build(loss_fn)

    monkeypatch.setattr(toy.Backend, "compile", noting)
    monkeypatch.setattr(toy.Backend, "compiles_by_default", by_default)
    assert make(compile=compile)().applied
    assert calls == [loss_fn] * compiled


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_a_loss_of_one_element_is_a_scalar(toy, shape):
    model = toy.Model()
    step = amp.train_step(
        lambda model: np.full(shape, 3.0, np.float32), model, toy.Optimizer(model)
    )
    assert step().loss == 3.0


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_an_empty_batch_is_refused(make, shape):
    step, empty = make(policy="O0"), np.zeros(shape, np.float32)
    with pytest.raises(
        amp.ArgumentError, match=r"The batch is empty: its arrays have the shapes \(0,"
    ):
        step(empty, np.zeros(0), np.float32(1))
    assert step.model.weight == 0.0
    assert step(empty, np.ones(3)).applied, "one input alone may be empty"
    assert step(np.float32(1)).applied
