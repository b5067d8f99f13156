"""Ranks of an engine decide together: what one found, all act upon."""

import json

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import GradScaler
from ampbridge.adapters.backend import FINITE, INF, NAN


@pytest.fixture
def ranks(toy, monkeypatch):
    """What the other ranks found; the toy framework's ranks agree upon the worst."""
    others, asked = [FINITE], []

    def unscale_for(self, optimizer, grads, scale):
        unscaled, found = self.unscale(grads, scale)
        asked.append((found, optimizer))
        return unscaled, min((kind for kind in (found, *others) if kind != FINITE), default=FINITE)

    monkeypatch.setattr(toy.Backend, "unscale_for", unscale_for)
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
    scaler.scale(toy.array(1.0))
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


def test_each_replica_of_a_process_goes_through_a_loop_of_its_own(toy, monkeypatch):
    """One scaler, which threads of an engine share; they run side by side."""
    calling = [0]
    monkeypatch.setattr(toy.Backend, "replica", lambda self: calling[0])
    model = toy.Model(1.0)
    optimizer, scaler = toy.Optimizer(model), GradScaler(8.0)
    scaler.scale(toy.array(1.0))
    for replica in (0, 1):
        calling[0] = replica
        optimizer.gradient = toy.array([8.0])
        assert scaler.step(optimizer)
    for replica in (0, 1):
        calling[0] = replica
        assert not scaler.found_inf(optimizer)
        scaler.update()
        with pytest.raises(amp.CallOrderError, match="nothing was checked"):
            scaler.update()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_is_run_on_all_replicas(toy, monkeypatch, compiled):
    def twice(self, program, model):
        def both(policy, final, total, batch):
            program(policy, final, total, batch)
            return program(policy, final, total, batch)

        wrapped.append(model)
        return both

    wrapped = []
    monkeypatch.setattr(toy.Backend, "on_replicas", twice)
    monkeypatch.setattr(toy.Backend, "compile", lambda self, build, loss_fn: build(loss_fn))
    model = toy.Model(1.0)
    seen = []

    def loss_fn(model):
        seen.append(model)
        return np.float32(2.0)

    amp.train_step(loss_fn, model, toy.Optimizer(model), compile=compiled)()
    assert wrapped == [model]
    assert seen == [model, model]
