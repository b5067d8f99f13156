"""Promises of what C adds to a step: checks without scaling, overflows by name, saving and loading."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ampbridge import GradScaler, StateError, TrainStep
from ampbridge.adapters.backend import FINITE
from ampbridge.adapters.roles.saving import Saving
from ampbridge.checkpoints import checkpoint
from ampbridge_testing.gradients import FLOAT32_ERROR, same_bits
from ampbridge_testing.harness import as_number
from ampbridge_testing.reference import EXACT, example, joint_norm
from ampbridge_testing.roles import needs
from ampbridge_testing.shared import RATE
from ampbridge_testing.training import TrainStepConformance
from ampbridge_testing.updates import FOUND

Tensors = Mapping[str, npt.NDArray[Any]]

POLICIES = ["O0", "O1", "O2", "O2:bfloat16"]


def _without(tensors: Tensors, slot: str) -> Tensors:
    return {name: array for name, array in tensors.items() if name != slot}


def _longer(tensors: Tensors, slot: str) -> Tensors:
    return {**tensors, slot: np.stack([tensors[slot]] * 2)}


def _of_one_number(tensors: Tensors, slot: str) -> Tensors:
    """Which would be broadcast; of what is one, two."""
    array = tensors[slot]
    one = array.reshape(-1)[:1].reshape((1,) * array.ndim)
    return {**tensors, slot: np.stack([array] * 2) if array.size == 1 else one}


_FORGERIES: Mapping[str, Callable[[Tensors, str], Tensors]] = {
    "missing": _without,
    "longer": _longer,
    "of one number": _of_one_number,
}


class _Unwilling:
    """A scheduler that cannot take its own state."""

    def step(self) -> None:
        """It has no rate to change."""

    def state_dict(self) -> dict[str, int]:
        return {"steps": 3}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise IndexError("this is not mine")


class TrainingStateConformance(TrainStepConformance):
    """Steps that are told apart, dropped in part, saved and taken up again."""

    # -- checks without a scale

    def test_a_check_alone_leaves_every_bit(self) -> None:
        h = self.harness
        given = [np.array([3.0, -0.0], np.float32), np.array([math.inf, math.nan], np.float32)]
        native = [h.array(g) for g in given]
        for found in ([native[0]], native):
            h.backend.unscale(found, None)
        assert same_bits([h.numpy(g) for g in native], given)

    @pytest.mark.parametrize("value", FOUND)
    def test_a_check_alone_finds(self, value: str) -> None:
        h = self.harness
        _, found = h.backend.unscale([None, h.array([1.0, float(value)])], None)
        assert as_number(found, h) == FOUND[value]
        _, found = h.backend.unscale([h.array([1.0])], None)
        assert as_number(found, h) == FINITE

    @pytest.mark.parametrize("value", ["inf", "nan"])
    @pytest.mark.parametrize("policy", ["O0", "O1:bfloat16"])
    def test_a_step_without_scaling_is_skipped_too(self, policy: str, value: str) -> None:
        step = self._new_step(kind="adam", policy=policy)
        self.run(step)
        before = self._state_of(step)
        results = [self.run(step, float(value)) for _ in range(2)]
        assert [(r.applied, r.reason) for r in results] == [(False, value)] * 2
        assert [r.consecutive_skips for r in results] == [1, 2]
        assert same_bits(self._state_of(step), before)

    # -- overflows by name

    def test_overflows_are_named(self, compiled: bool) -> None:
        step = self._new_step(compiled, name_overflows=True)
        assert self.run(step).overflows == {}
        named = self.run(step, math.nan).overflows
        names = self.harness.backend.parameter_names(step.model)
        assert len(set(names)) == 4
        assert named == dict.fromkeys(names, "nan")

    # -- an overflow that drops its micro-batch alone

    def test_gradients_are_added(self) -> None:
        h = self.harness
        first = [h.array([1.0, 2.0]), None, None]
        total = h.backend.add(first, [h.array([8.0, 4.0]), h.array([3.0]), None])
        sums = [None if g is None else h.numpy(g).tolist() for g in total]
        assert sums == [[9.0, 6.0], [3.0], None]

    def test_a_dropped_micro_batch_is_taken_once_more(self, compiled: bool) -> None:
        scaler = GradScaler(2.0**10)
        step = self._new_step(compiled, accumulate=2, on_overflow="drop_microbatch", scaler=scaler)
        results = [self.run(step, factor) for factor in (1.0, math.inf, 1.0)]
        assert [r.reason for r in results] == ["accumulating", "inf", None]
        assert [r.scale for r in results] == [2.0**10, 2.0**10, 2.0**9]
        assert self.error_of_weights(step, [EXACT.gradients]) < FLOAT32_ERROR

    # -- saving and loading

    def saved_and_loaded(
        self, folder: Path, policy: str, kind: str, *, used: bool
    ) -> tuple[TrainStep, TrainStep]:
        """A step that was saved after some others, and another, of another rate, that has loaded it."""
        steps = []
        for rate in (RATE, 2 * RATE):
            scaler = GradScaler(2.0**8, growth_interval=3) if policy != "O2:bfloat16" else None
            steps.append(self._new_step(kind=kind, rate=rate, policy=policy, scaler=scaler))
        step, other = steps
        for factor in (1.0, math.inf, 1.0):
            self.run(step, factor)
        step.save(folder)
        if used:
            self.run(other)
        other.load(folder)
        return step, other

    @needs(Saving)
    @pytest.mark.parametrize("policy", POLICIES)
    @pytest.mark.parametrize("kind", ["momentum", "adam"])
    def test_a_loaded_step_goes_on_bit_by_bit(self, tmp_path: Path, policy: str, kind: str) -> None:
        step, other = self.saved_and_loaded(tmp_path, policy, kind, used=False)
        assert other.state_dict() == step.state_dict()
        for factor in (1.0, 1.0, math.inf, 1.0):
            results = [self.run(s, factor) for s in (step, other)]
            assert [r.loss for r in results] == [results[0].loss] * 2
        assert other.state_dict() == step.state_dict()
        assert same_bits(self._state_of(other), self._state_of(step))

    @needs(Saving)
    def test_what_was_there_before_is_replaced(self, tmp_path: Path) -> None:
        step, other = self.saved_and_loaded(tmp_path, "O1", "adam", used=True)
        assert same_bits(self._state_of(other), self._state_of(step))
        self.run(step), self.run(other)
        assert same_bits(self._state_of(other), self._state_of(step))

    def _check_twins(self, step: TrainStep, twin: TrainStep) -> None:
        """Check that they are at the same point, and still so after one more step each."""
        for _ in range(2):
            assert same_bits(self._state_of(step), self._state_of(twin))
            assert step.state_dict() == twin.state_dict()
            self.run(step), self.run(twin)

    @needs(Saving)
    @pytest.mark.parametrize("policy", ["O1", "O2:bfloat16"])
    def test_a_load_that_fails_has_not_happened(self, tmp_path: Path, policy: str) -> None:
        """In what is set last, the scheduler; a twin has never tried to load."""
        saving, loading, twin = (
            self._new_step(kind="adam", policy=policy, scheduler=_Unwilling()) for _ in range(3)
        )
        self.run(saving)
        saving.save(tmp_path)
        for _ in range(2):
            self.run(loading), self.run(twin)
        with pytest.raises(StateError, match="IndexError: this is not mine"):
            loading.load(tmp_path)
        self._check_twins(loading, twin)

    @needs(Saving)
    @pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
    @pytest.mark.parametrize("forged", _FORGERIES)
    @pytest.mark.parametrize("policy", ["O0", "O2:bfloat16"])
    def test_a_forged_slot_is_refused(
        self, tmp_path: Path, policy: str, forged: str, used: bool
    ) -> None:
        """A checkpoint that is whole, but for a slot of Adam that it lacks or has in another shape."""
        saving, loading, twin = (self._new_step(kind="adam", policy=policy) for _ in range(3))
        self.run(saving)
        saving.save(tmp_path)
        if used:
            self.run(loading), self.run(twin)
        state, tensors = checkpoint.read(tmp_path)
        slots = [name for name in tensors if name.startswith("optimizer/")]
        assert len(slots) >= 8  # two moments of four parameters
        for slot in slots:
            checkpoint.write(
                tmp_path, checkpoint.Checkpoint(state, _FORGERIES[forged](tensors, slot))
            )
            with pytest.raises(StateError):
                loading.load(tmp_path)
        self._check_twins(loading, twin)

    def test_settings_that_are_loaded_hold_from_the_next_step_on(self, compiled: bool) -> None:
        step = self._new_step(compiled, scaler=GradScaler(2.0**4))
        self.run(step)
        state = step.state_dict()
        state["scaler"] |= {"growth_interval": 1, "growth_factor": 4.0}
        step.load_state_dict(state)
        assert [self.run(step).scale for _ in range(3)] == [2.0**4, 2.0**6, 2.0**8]

    @needs(Saving)
    def test_weights_are_saved_as_their_masters(self, tmp_path: Path) -> None:
        """Of a step far under a unit in the last place of bfloat16."""
        step = self._new_step(kind="sgd", rate=2.0**-20, policy="O2:bfloat16")
        self.run(step)
        values = self.harness.backend.read_weights(step.model)
        pairs = zip(values.values(), example().weights, strict=True)
        moved = max(np.abs(value - weight).max() for value, weight in pairs)
        assert 0.0 < moved < 2.0**-20 * joint_norm(EXACT.gradients)

    @needs(Saving)
    def test_weights_written_are_those_that_train(self) -> None:
        step, backend = self._new_step(), self.harness.backend
        values = backend.read_weights(step.model)
        shapes = [weight.shape for weight in backend.weights(step.model)]
        assert shapes == [value.shape for value in values.values()]
        zeros = {name: np.zeros_like(value) for name, value in values.items()}
        backend.write_weights(step.model, zeros)
        assert not any(value.any() for value in self.values(step.model))
        backend.write_weights(step.model, values)
        self.run(step)
        assert self.error_of_weights(step, [EXACT.gradients]) < FLOAT32_ERROR
