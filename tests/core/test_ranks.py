"""Ranks of an engine decide together: what one found, all act upon."""

import json

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import GradScaler
from ampbridge.backend import FINITE, INF, NAN


@pytest.fixture
def ranks(toy, monkeypatch):
    """What the other ranks found; the toy framework's ranks agree upon the worst."""
    others, asked = [FINITE], []

    def agree(self, found, optimizer):
        asked.append((found, optimizer))
        return min((kind for kind in (found, *others) if kind != FINITE), default=FINITE)

    monkeypatch.setattr(toy.Backend, "agree", agree)
    return others, asked


@pytest.fixture
def step(toy):
    model = toy.Model(1.0)
    return amp.train_step(
        lambda model: (np.float32(2.0), None),
        model,
        toy.Optimizer(model),
        scaler=GradScaler(8.0),
        name_overflows=True,
    )


@pytest.mark.parametrize(("kind", "reason"), [(INF, "inf"), (NAN, "nan")])
def test_a_step_is_skipped_for_another_rank(ranks, step, kind, reason):
    others, asked = ranks
    others[0] = kind
    result = step()
    assert (result.applied, result.reason, result.overflows) == (False, reason, {})
    assert (step.model.weight, step.scaler.get_scale()) == (0.0, 4.0)
    assert asked == [(FINITE, step.optimizer)]  # once, though each gradient was looked at as well


def test_a_loop_by_hand_is_told_by_another_rank(ranks, toy):
    others, _ = ranks
    others[0] = INF
    model = toy.Model(1.0)
    optimizer, scaler = toy.Optimizer(model), GradScaler(8.0)
    optimizer.gradient = toy.array([8.0])
    assert not scaler.step(optimizer)
    assert scaler.found_inf(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4.0
    assert json.loads(json.dumps(scaler.state_dict()))["consecutive_skips"] == 1


def test_gradients_as_values_are_agreed_upon_as_well(ranks, toy):
    others, asked = ranks
    others[0] = INF
    model = toy.Model(1.0)
    optimizer, scaler = toy.Optimizer(model), GradScaler(8.0)
    _, grads = amp.value_and_grad(lambda model: (np.float32(2.0), None), model, scaler=scaler)
    assert not scaler.step(optimizer, grads)
    assert asked == [(FINITE, optimizer)]
