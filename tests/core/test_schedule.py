"""Schedules: which policy holds when, and that a run resumed goes on in the same one."""

import json

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import GradScaler, Policy, Schedule
from ampbridge.policies.schedule import from_dict


class Seen:
    """The parts of a step's result that a schedule looks at."""

    def __init__(self, loss=1.0, applied=True):
        self.loss, self.applied = loss, applied


def policies(schedule, results):
    """The policy of each step, as short text."""
    state, given = schedule.start(), []
    for result in results:
        given.append(str(schedule.policy(state)))
        state = json.loads(json.dumps(schedule.next_state(state, result)))
    return given


def test_by_step():
    schedule = Schedule([(0, "O0"), (2, "O1"), (3, Policy("O1", "bfloat16"))])
    assert policies(schedule, [Seen()] * 5) == ["O0", "O0", "O1:float16"] + ["O1:bfloat16"] * 2


def test_by_loss_with_hysteresis():
    schedule = Schedule.when(loss_below=0.5, use="O1", otherwise="O0", back_above=0.7)
    losses = [0.9, 0.6, 0.4, 0.6, 0.69, 0.8, 0.6, 0.4]
    low = "O1:float16"
    expected = ["O0", "O0", "O0", low, low, low, "O0", "O0"]
    assert policies(schedule, [Seen(loss) for loss in losses]) == expected


def test_by_loss_without_a_gap():
    schedule = Schedule.when(loss_below=0.5, use="O1:bfloat16", otherwise="O0")
    given = policies(schedule, [Seen(loss) for loss in [0.4, 0.6, 0.4, 0.5]])
    assert given == ["O0", "O1:bfloat16", "O0", "O1:bfloat16"]


def test_a_loss_at_a_bound_changes_nothing():
    """It is not below the one, nor above the other."""
    schedule = Schedule.when(loss_below=0.5, use="O1", otherwise="O0", back_above=0.75)
    given = policies(schedule, [Seen(loss) for loss in [0.5, 0.25, 0.75, 1.0]])
    assert given == ["O0", "O0", "O1:float16", "O1:float16"]


def test_a_loss_that_is_no_number_leads_back_to_nothing_lower():
    schedule = Schedule.when(loss_below=0.5, use="O1", otherwise="O0")
    assert policies(schedule, [Seen(float("nan"))] * 2) == ["O0", "O0"]


def test_by_skips_in_a_row():
    schedule = Schedule.when(skips=2, use="O1:bfloat16", otherwise="O1", back_after=3)
    applied = [False, True, False, False, True, True, True, True]
    low, wide = "O1:float16", "O1:bfloat16"
    expected = [low, low, low, low, wide, wide, wide, low]
    assert policies(schedule, [Seen(applied=a) for a in applied]) == expected


def test_by_skips_without_a_way_back():
    schedule = Schedule.when(skips=1, use="O0", otherwise="O1")
    assert policies(schedule, [Seen(applied=False), *[Seen()] * 5])[1:] == ["O0"] * 5


EXAMPLES = [
    Schedule([(0, "O0"), (7, "O1")]),
    Schedule.when(loss_below=0.5, use="O1", otherwise="O0", back_above=0.6),
    Schedule.when(skips=3, use="O1:bfloat16", otherwise="O1", back_after=9),
    Schedule.when(skips=3, use="O0", otherwise="O1"),
]


@pytest.mark.parametrize("schedule", EXAMPLES, ids=repr)
def test_round_trip(schedule):
    again = from_dict(json.loads(json.dumps(schedule.to_dict())))
    assert again == schedule
    assert hash(again) == hash(schedule)
    assert eval(repr(schedule)) == schedule  # an error's hint prints it as code to write
    assert len({*EXAMPLES}) == len(EXAMPLES)
    assert schedule != Policy("O0")


# -- in train_step


class Spy:
    """A backend's gradients, noting the policy of each call."""

    def __init__(self, backend):
        self.seen, self._gradients = [], backend.gradients
        backend.gradients = self

    def __call__(self, loss_fn, model, batch, policy, factor, total, optimizer):
        self.seen.append((str(policy), factor))
        return self._gradients(loss_fn, model, batch, policy, factor, total, optimizer)


@pytest.fixture
def make(toy):
    def step(slope=1.0, **arguments):
        model = toy.Model(slope)
        made = amp.train_step(
            lambda model: np.float32(1.0), model, toy.Optimizer(model), **arguments
        )
        return made, Spy(amp.backend("toyframework"))

    return step


def test_each_step_runs_under_its_policy_and_is_scaled_where_that_needs_it(make):
    schedule = Schedule([(0, "O0"), (1, "O1"), (2, "O1:bfloat16"), (3, "O1")])
    step, spy = make(policy=schedule, scaler=GradScaler(8.0, growth_interval=1))
    results = [step() for _ in range(4)]
    assert spy.seen == [
        ("O0", None),
        ("O1:float16", 8.0),
        ("O1:bfloat16", None),
        ("O1:float16", 16.0),
    ]
    assert [r.scale for r in results] == [1.0, 8.0, 1.0, 16.0]
    assert step.model.weight == -4.0


def test_the_policy_stays_for_all_micro_batches_of_a_step(make):
    step, spy = make(policy=Schedule([(0, "O0"), (1, "O1:bfloat16")]), accumulate=2)
    for _ in range(4):
        step()
    assert [policy for policy, _ in spy.seen] == ["O0", "O0", "O1:bfloat16", "O1:bfloat16"]


def test_a_scaler_is_made_if_any_policy_needs_one(make):
    assert make(policy=Schedule([(0, "O0"), (1, "O1")]))[0].scaler is not None
    assert make(policy=Schedule([(0, "O0"), (1, "O1:bfloat16")]))[0].scaler is None


def test_the_loss_that_a_schedule_goes_by_is_the_mean_of_the_ranks(make, toy, monkeypatch):
    monkeypatch.setattr(toy.Backend, "mean_loss", lambda self, loss, model: loss / 4)
    step, spy = make(policy=Schedule.when(loss_below=0.5, use="O1:bfloat16", otherwise="O0"))
    step(), step()
    assert [policy for policy, _ in spy.seen] == ["O0", "O1:bfloat16"]


def test_a_resumed_run_goes_on_in_the_same_policy(make):
    schedule = Schedule.when(skips=2, use="O0", otherwise="O1")
    step, _ = make(slope=np.inf, policy=schedule)
    step()
    other, spy = make(slope=np.inf, policy=schedule)
    other.load_state_dict(json.loads(json.dumps(step.state_dict())))
    other(), other()
    assert [policy for policy, _ in spy.seen] == ["O1:float16", "O0"]


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (
            lambda: Schedule([(5, "O0")]),
            amp.ArgumentError,
            "The steps of a schedule start at 0 and rise; passed [5].\n"
            "Hint: Schedule([(0, 'O0'), (200, 'O1')])",
        ),
        (
            lambda: Schedule([(0, "O0"), (9, "O1"), (9, "O0")]),
            amp.ArgumentError,
            "The steps of a schedule start at 0 and rise; passed [0, 9, 9].\n"
            "Hint: Schedule([(0, 'O0'), (200, 'O1')])",
        ),
        (
            lambda: Schedule(["O0", "O1"]),
            amp.ArgumentError,
            "Passed step='O'; allowed is a whole number from 0.\n"
            "Hint: Schedule([(0, 'O0'), (200, 'O1')])",
        ),
        (
            lambda: Schedule([1, 2]),
            amp.ArgumentTypeError,
            "A schedule is a list of (step, policy), not [1, 2].\n"
            "Hint: Schedule([(0, 'O0'), (200, 'O1')])",
        ),
        (
            lambda: Schedule.when(use="O1", otherwise="O0"),
            amp.ArgumentError,
            "Schedule.when takes loss_below (and back_above), or skips (and back_after).\n"
            "Hint: Schedule.when(loss_below=0.5, use='O1', otherwise='O0', back_above=0.6)",
        ),
        (
            lambda: Schedule.when(use="O1", otherwise="O0", loss_below=0.5, back_above=0.25),
            amp.ArgumentError,
            "Passed loss_below=0.5 and back_above=0.25; allowed is back_above from loss_below.\n"
            "Hint: back_above=0.6",
        ),
        (
            lambda: Schedule.when(use="O1", otherwise="O0", loss_below=float("nan")),
            amp.ArgumentTypeError,
            "loss_below is a number, not nan of type float.\nHint: loss_below=0.5",
        ),
        (
            lambda: Schedule.when(use="O1", otherwise="O0", skips=0),
            amp.ArgumentError,
            "Passed skips=0; allowed is a whole number from 1.\nHint: skips=5",
        ),
    ],
)
def test_messages(call, kind, text):
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == text
