"""Worth it?: what is timed, against a clock that the loss itself turns; and what is said of it."""

import itertools
import json
import statistics
import time
import tracemalloc

import autograd.numpy as anp
import numpy as np
import pytest
from autograd.extend import defvjp, primitive

import ampbridge as amp
from ampbridge import lens
from ampbridge_lens import worth
from ampbridge_numpy import nn, optim

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)


def make():
    model = nn.Linear(4, 4, rng=0)
    return model, optim.SGD(model.parameters(), 1e-3)


def loss_fn(model, x):
    return anp.mean(model(x) ** 2)


class Clock:
    """Seconds of an imagined device: a forward pass takes so many, by the dtype of its products."""

    def __init__(self, **seconds):
        self.seconds, self.now, self.passes = seconds, 0.0, []

    def __call__(self):
        return self.now

    def loss_fn(self, model, x):
        out = model(x)
        dtype = str(anp.matmul(x, np.eye(4, dtype=np.float32)).dtype)
        self.passes.append((id(model), dtype))
        seconds = self.seconds[dtype]
        self.now += (
            seconds[len(self.passes) % len(seconds)] if isinstance(seconds, list) else seconds
        )
        return anp.mean(out**2)


@pytest.fixture
def raced(monkeypatch):
    def race(clock, **options):
        monkeypatch.setattr(worth.time, "perf_counter", clock)
        try:
            return lens.worth_it(clock.loss_fn, make, X, **options)
        finally:
            monkeypatch.undo()

    return race


def test_faster_and_slower_are_told_by_the_ratios(raced):
    clock = Clock(float32=3.0, float16=1.5, bfloat16=4.5)
    found = raced(clock, policies=["O1", "O1:bfloat16"], steps=2, rounds=4)
    assert [row.name for row in found.rows] == [
        "float32",
        "float32, again",
        "O1:float16",
        "O1:bfloat16",
    ]
    assert [row.ratio for row in found.rows] == [1.0, 1.0, 0.5, 1.5]
    assert [row.seconds for row in found.rows] == [(3.0,) * 4, (3.0,) * 4, (1.5,) * 4, (4.5,) * 4]
    assert found.noise == 0
    faster, slower = (row.verdict for row in found.rows[2:])
    assert faster.startswith("2.0x faster, ")
    assert slower.startswith("slower: 1.50 times the time, ")


def test_what_is_within_the_noise_is_no_gain(raced):
    rng = np.random.default_rng(0)
    clock = Clock(float32=list(rng.uniform(0.5, 1.5, 97)), float16=0.99)
    found = raced(clock, policies=["O1"], steps=1, rounds=30)
    assert found.noise > 0.02
    assert found.rows[2].verdict.startswith(
        f"no gain here: within the noise of +-{found.noise:.1%}"
    )


def test_everybody_takes_turns_with_a_model_of_their_own(raced):
    clock = Clock(float32=1.0, float16=1.0)
    raced(clock, policies=["O0", "O1", "O1", "float16"], steps=2, rounds=6)
    models = list(dict.fromkeys(model for model, _ in clock.passes))
    assert len(models) == 3  # float32 twice, and O1 once, however it is spelled
    warm_up, rounds = clock.passes[:9], clock.passes[9:-3]
    assert [models.index(model) for model, _ in warm_up] == [0] * 3 + [1] * 3 + [2] * 3
    turns = [models.index(model) for model, _ in rounds[::2]]
    assert [models.index(model) for model, _ in rounds[1::2]] == turns  # turns of two steps
    by_round = [turns[i : i + 3] for i in range(0, 18, 3)]
    assert all(sorted(order) == [0, 1, 2] for order in by_round)
    assert {order[0] for order in by_round} == {0, 1, 2}
    assert {(a, b) for order in by_round for a, b in itertools.pairwise(order)} == {
        (a, b) for a in range(3) for b in range(3) if a != b
    }


def test_a_turn_ends_when_the_device_has_answered(monkeypatch):
    """The clock stands while steps are asked for; it moves when a loss is read."""
    clock = Clock()
    monkeypatch.setattr(worth.time, "perf_counter", clock)

    def read(result):
        clock.now += 7.0
        return 0.0

    monkeypatch.setattr(worth.StepResult, "loss", property(read))
    found = lens.worth_it(loss_fn, make, X, policies=[], steps=7, rounds=2)
    assert found.rows[0].seconds == (1.0, 1.0)


@primitive
def large(x):
    return np.ones(2**18, np.float32)  # 1 MiB


defvjp(large, lambda ans, x: lambda g: np.sum(g) * np.ones_like(x))


def test_memory_is_that_of_a_step(monkeypatch):
    def with_large(model, x):
        return anp.mean(large(model(x)) * 2.0)

    found = lens.worth_it(with_large, make, X, policies=["O1"], steps=1, rounds=2)
    for row in found.rows:
        assert 2 * 2**20 < row.memory < 8 * 2**20
    low, float32 = found.rows[2].memory, found.rows[0].memory
    assert f"{low / float32:.2g} of the memory" in found.rows[2].verdict
    assert "MiB" in str(found)


def test_memory_that_is_not_told():
    tracemalloc.start()  # somebody else's measurement
    try:
        found = lens.worth_it(loss_fn, make, X, policies=["O1"], steps=1, rounds=2)
    finally:
        tracemalloc.stop()
    assert {row.memory for row in found.rows} == {None}
    assert "of the memory" not in found.rows[2].verdict
    assert "unknown" in str(found)


def test_simulation_is_called_by_its_name():
    policies = [amp.Policy(execution="simulated"), "O1"]
    found = lens.worth_it(loss_fn, make, X, policies=policies, steps=1, rounds=2)
    simulated, native = found.rows[2:]
    assert (simulated.execution, native.execution) == ("simulated", "native")
    assert "simulated: its time says nothing of a GPU" in simulated.verdict
    assert "simulated" not in native.verdict
    assert simulated.name == repr(policies[0])


def test_what_a_backend_refuses_is_said_in_its_row():
    found = lens.worth_it(
        loss_fn, make, X, policies=[amp.Policy(lists="native"), "O1"], steps=1, rounds=2
    )
    refused, sound = found.rows[2:]
    assert refused.verdict == "refused: lists='native': NumPy has no autocast of its own."
    assert (refused.ratio, refused.seconds, refused.memory) == (None, (), None)
    assert sound.ratio is not None
    assert refused.verdict in found.table().text(None)


def test_skipped_steps_are_told():
    def overflowing(model, x):
        return anp.mean(anp.abs(model(x)) * np.float32(np.inf))

    with pytest.warns(amp.AmpBridgeWarning, match="Nothing is being trained"):
        found = lens.worth_it(overflowing, make, X, policies=["O1"], steps=2, rounds=2)
    assert all(row.skipped == 4 for row in found.rows)
    assert all("4 of 4 steps were skipped" in row.verdict for row in found.rows)


def test_warming_up_finds_a_scale_that_fits():
    """Gradients of 2**4 overflow float16 until the loss scale has come down; nothing is skipped then."""

    def steep(model, x):
        return anp.sum(model(x)) * 16.0

    found = lens.worth_it(steep, make, X, policies=["O1"], steps=2, rounds=2)
    assert found.rows[2].skipped == 0


def test_ratios_are_those_of_the_same_round():
    found = lens.worth_it(loss_fn, make, X, policies=["O1"], steps=1, rounds=9)
    for row in found.rows:
        ratios = np.divide(row.seconds, found.rows[0].seconds)
        assert row.ratio == pytest.approx(statistics.median(ratios))
        assert row.quartiles == pytest.approx(tuple(np.percentile(ratios, [25, 75])))
    assert found.noise == max(abs(1 - quartile) for quartile in found.rows[1].quartiles)


def test_as_data_and_in_words():
    found = lens.worth_it(loss_fn, make, X, steps=1, rounds=2)
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [amp.Policy.from_dict(row["policy"]).level for row in data["rows"]] == [
        "O0",
        "O0",
        "O1",
        "O2",
    ]
    assert data["rows"][3]["ratio"] == found.rows[3].ratio
    assert len(data["rows"][3]["seconds"]) == 2
    text = found.table().text(None)
    assert all(row.verdict in text for row in found.rows)


def test_progress_is_told():
    told = []
    options = {"policies": ["O1"], "steps": 1, "rounds": 4}
    lens.worth_it(loss_fn, make, X, progress=lambda *what: told.append(what), **options)
    assert [done for done, _, _ in told] == list(
        range(19)
    )  # three of them: warm-up, 4 rounds, memory
    assert {total for _, total, _ in told} == {18}


MODEL = make()


@pytest.mark.parametrize(
    "wrong, options, error, message",
    [
        (make, {"steps": 0}, amp.ArgumentError, "steps=0"),
        (make, {"rounds": 1}, amp.ArgumentError, "rounds=1"),
        (make, {"rounds": 2.5}, amp.ArgumentError, "rounds=2.5"),
        (make, {"policies": "O1"}, amp.ArgumentTypeError, r"policies=\['O1'\]"),
        (make, {"policies": amp.Policy()}, amp.ArgumentTypeError, "policies="),
        (make, {"policies": ["O3"]}, amp.PolicyError, "O3"),
        (lambda: make()[0], {}, amp.ArgumentTypeError, "return model, optimizer"),
        (MODEL[0], {}, amp.ArgumentTypeError, r"Hint: def make\(\)"),
        (lambda: MODEL, {}, amp.ArgumentTypeError, "same model"),
        (lambda: (MODEL[0], make()[1]), {}, amp.ArgumentTypeError, "same model"),
    ],
)
def test_what_cannot_be_is_refused(wrong, options, error, message):
    with pytest.raises(error, match=message):
        lens.worth_it(loss_fn, wrong, X, **options)


def test_the_clock_is_the_real_one():
    def slow(model, x):
        time.sleep(0.02)
        return loss_fn(model, x)

    found = lens.worth_it(slow, make, X, policies=[], steps=2, rounds=2)
    assert all(seconds >= 0.02 for row in found.rows for seconds in row.seconds)
