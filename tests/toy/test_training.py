"""The toy trains at each level, and to where float64 NumPy comes."""

import pebble
import pytest
from ampbridge_pebble import PebbleBackend
from pebble_harness import PebbleHarness

import ampbridge as amp
from ampbridge.adapters import registry
from ampbridge_testing.reference import example, momentum_steps, reference, relative_error

STEPS, RATE = 5, 2.0**-6
FLOAT32_ERROR = 1e-5
BOUNDS = {"O0": FLOAT32_ERROR, "O1:float16": 5e-3, "O2:float16": 5e-3}
"""Of the loss and of each parameter's way: some units in the last place of the dtype."""


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for each in ("_registered", "_loaded"):
        monkeypatch.setattr(registry, each, dict(getattr(registry, each)))
    amp.register_backend("pebble", PebbleBackend)


@pytest.mark.parametrize("policy", BOUNDS)
def test_it_trains_as_float64_does(policy):
    given, harness = example(), PebbleHarness()
    model = harness.layered(given.weights)
    step = amp.train_step(
        lambda model, x, y: pebble.run("mse_loss", model(x), y),
        model,
        pebble.Optimizer(model.parameters(), RATE, momentum=0.9),
        policy=policy,
        scaler=amp.GradScaler(2.0**8, growth_interval=2),
    )
    gradients, weights = [], given.weights
    for number in range(STEPS):
        expected = reference(weights, given.x, given.target)
        result = step(given.x, given.target)
        assert result.loss == pytest.approx(expected.loss, rel=BOUNDS[policy])
        assert (result.applied, result.scale) == (True, 2.0 ** (8 + number // 2))
        gradients.append(expected.gradients)
        weights = momentum_steps(given.weights, gradients, RATE)
    moved = [p.values - w for p, w in zip(model.parameters(), given.weights, strict=True)]
    due = [new - old for new, old in zip(weights, given.weights, strict=True)]
    errors = [relative_error([a], [d]) for a, d in zip(moved, due, strict=True)]
    assert max(errors) < BOUNDS[policy]
    assert (max(errors) > FLOAT32_ERROR) == (policy != "O0")
    assert {p.dtype for p in model.parameters()} == {pebble.FLOAT32}


def test_an_overflow_skips_the_step_and_halves_the_scale():
    given, harness = example(), PebbleHarness()
    model = harness.layered(given.weights)
    optimizer = pebble.Adam(model.parameters(), RATE)
    step = amp.train_step(
        lambda model, x, y: pebble.run("mse_loss", model(x), y),
        model,
        optimizer,
        policy="O2:float16",
        scaler=amp.GradScaler(2.0**24),
    )
    results = [step(given.x, given.target) for _ in range(14)]
    skips = [result.applied for result in results].index(True)
    assert skips > 0
    assert [result.applied for result in results] == [False] * skips + [True] * (14 - skips)
    assert results[-1].scale == 2.0 ** (24 - skips)
    assert {slots["steps"] for slots in optimizer.slots} == {14 - skips}
