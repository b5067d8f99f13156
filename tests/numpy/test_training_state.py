"""What does not fit an optimizer of NumPy's leaves it as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ampbridge as amp
from ampbridge.adapters.roles.saving import OptimizerState
from ampbridge_numpy import nn, optim
from ampbridge_numpy.backend import NumpyBackend

BACKEND = NumpyBackend()


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({}, {}),
        ({"lr": None}, {}),
        ({"lr": True}, {}),
        ({"lr": -1.0}, {}),
        ({"lr": float("nan")}, {}),
        ({"lr": float("inf")}, {}),
        ({"lr": 0.5}, {}),
        ({"lr": 0.5, "rounded_by_chance": -1}, {}),
        ({"lr": 0.5, "rounded_by_chance": 0}, {"weight/exp_avg": np.ones(5)}),
        ({"lr": 0.5, "rounded_by_chance": 0}, {"elsewhere/exp_avg": np.ones(5)}),
    ],
    ids=str,
)
def test_what_does_not_fit_changes_nothing(settings: Any, slots: Any) -> None:
    model = nn.Linear(3, 2, rng=0)
    optimizer = optim.AdamW(model.parameters(), 0.1)
    optimizer.step([np.ones_like(p) for p in optimizer.parameters])
    before = BACKEND.read_optimizer(optimizer, model)
    held = [value for state in optimizer.state for value in state.values()]
    with pytest.raises(amp.StateError, match="Hint: "):
        BACKEND.write_optimizer(
            optimizer, model, OptimizerState({**before.slots, **slots}, settings)
        )
    assert optimizer.lr == 0.1
    present = [value for state in optimizer.state for value in state.values()]
    assert all(one is was for one, was in zip(present, held, strict=True))


def test_what_has_not_stepped_yet_has_no_slots_after_loading() -> None:
    model = nn.Linear(3, 2, rng=0)
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    new = BACKEND.read_optimizer(optimizer, model)
    optimizer.step([np.ones_like(p) for p in optimizer.parameters])
    BACKEND.write_optimizer(optimizer, model, new)
    assert optimizer.state == [{}, {}]


class ForHeads(nn.Linear):
    """A subclass whose weight has an axis more."""

    def __init__(self) -> None:
        super().__init__(3, 2, rng=0)
        self.weight = nn.Parameter(np.zeros((4, 3, 2), np.float32))


def test_an_array_of_other_axes_than_its_class_has_is_of_no_role() -> None:
    described = {each.name: (each.role, each.axes) for each in BACKEND.weights(ForHeads())}
    assert described == {"weight": ("other.weight", "abc"), "bias": ("dense.bias", "o")}


class Owner(nn.Module):
    """An array called as that of a dense layer is."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(np.zeros((3, 2), np.float32))


class Gated(nn.LayerNorm):
    """A subclass with an array more."""

    def __init__(self) -> None:
        super().__init__(2)
        self.gate = nn.Parameter(np.zeros(2, np.float32))


def test_a_role_is_that_of_a_name_in_its_class() -> None:
    described = {each.name: (each.role, each.axes) for each in BACKEND.weights(Owner())}
    assert described == {"weight": ("other.weight", "ab")}
    described = {each.name: (each.role, each.axes) for each in BACKEND.weights(Gated())}
    assert described == {
        "weight": ("norm.scale", "c"),
        "bias": ("norm.offset", "c"),
        "gate": ("other.gate", "a"),
    }


@pytest.mark.parametrize(
    ("features", "bias", "difference"),
    [
        (3, False, "unexpected ['bias']"),
        (4, True, "of another shape ['weight']"),
        (4, False, "unexpected ['bias'], of another shape ['weight']"),
    ],
)
def test_a_checkpoint_of_another_model_is_told_by_what_differs(
    tmp_path: Path, features: int, bias: bool, difference: str
) -> None:
    saved_in = nn.Linear(features, 2, bias=bias, rng=0)
    step_of(saved_in).save(tmp_path / "run")
    with pytest.raises(amp.StateError) as caught:
        step_of(nn.Linear(3, 2, rng=0)).load(tmp_path / "run")
    assert str(caught.value) == (
        f"The checkpoint belongs to another model: {difference}.\n"
        "Hint: amp.load_weights(path, model) loads only the weights; pass mapping= if names differ."
    )


def test_of_many_differences_some_are_told_each_by_what_it_is(tmp_path: Path) -> None:
    """The fifth weight that is missing was once told of as one of another shape."""
    step_of(nn.Sequential(*(nn.Linear(2, 2, rng=0) for _ in range(4)))).save(tmp_path / "run")
    with pytest.raises(amp.StateError) as caught:
        step_of(nn.Sequential(nn.Linear(2, 2, rng=0))).load(tmp_path / "run")
    missing = ["layers.1.bias", "layers.1.weight", "layers.2.bias", "layers.2.weight"]
    assert f"another model: missing {missing}.\n" in str(caught.value)


def step_of(model: nn.Module) -> amp.TrainStep:
    optimizer = optim.SGD(model.parameters(), 0.1)
    return amp.train_step(lambda model, x: model(x).mean(), model, optimizer, policy="O0")


def test_an_array_that_two_layers_share_is_one_weight() -> None:
    first, second = nn.Linear(2, 2, rng=0), nn.Linear(2, 2, rng=1)
    first.weight = second.weight = nn.Parameter(np.eye(2, dtype=np.float32))
    model = nn.Sequential(first, second)
    arrays = [id(array) for array in model.parameters()]
    assert len(set(arrays)) == len(arrays) == 3
    assert len(BACKEND.weights(model)) == len(BACKEND.read_weights(model)) == 3
