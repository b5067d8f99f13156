"""Promises of ``unscale``, ``clip``, ``step`` and ``scale_store``: from gradients to parameters."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from ampbridge import TrainStep
from ampbridge.adapters.backend import FINITE, INF, NAN, Array, Scalar, ScaleStore
from ampbridge.scaling.scale_rule import HostStore, ScalerConfig, ScaleState
from ampbridge.scaling.step_or_skip import step_or_skip
from ampbridge_testing.gradients import FLOAT32_ERROR, same_bits
from ampbridge_testing.harness import NumpyArray, as_number
from ampbridge_testing.reference import (
    EXACT,
    example,
    joint_norm,
    momentum_steps,
    relative_error,
    scale_history,
)
from ampbridge_testing.shared import RATE, Conformance, Training

FOUND = {"inf": INF, "-inf": INF, "nan": NAN}
GRADIENTS = [g.astype(np.float32) for g in EXACT.gradients]


class Updating(Conformance):
    """What the classes below share."""

    def _state_of(self, trained: Training | TrainStep) -> list[NumpyArray]:
        """Every parameter, slot and counter."""
        return [*self.values(trained.model), *self.harness.slots(trained.optimizer)]

    def training(self, kind: str = "momentum") -> Training:
        """A training of which one step has been taken, so that the optimizer has its slots."""
        training = self.new_training(kind)
        self.step_or_skip(training, GRADIENTS, self.found("finite"))
        return training

    def step_or_skip(
        self, training: Training, gradients: Sequence[NumpyArray | None], found: Scalar
    ) -> Scalar:
        h = self.harness
        native = [None if g is None else h.array(g) for g in gradients]
        optimizer, parameters = training.optimizer, h.parameters(training.model)
        return step_or_skip(h.backend, optimizer, parameters, native, found)[0]

    def native_scale(self, value: float) -> Scalar:
        """``value`` as the backend keeps a scale."""
        return self.store(ScaleState(value, 0, 0, 0)).read().scale

    def store(self, state: ScaleState) -> ScaleStore:
        h = self.harness
        return h.backend.scale_store(state, h.model(example().weights)) or HostStore(state)

    def found(self, what: str) -> Scalar:
        """What the backend says of a gradient that holds "finite", "inf", "-inf" or "nan"."""
        value = 1.0 if what == "finite" else float(what)
        _, found = self.harness.backend.unscale(
            [self.harness.array([1.0, value])], self.native_scale(1.0)
        )
        return found


class UnscaleConformance(Updating):
    """Promises of ``Backend.unscale``."""

    def unscale(
        self, grads: Sequence[Array], scale: float = 1.0
    ) -> tuple[list[NumpyArray | None], int]:
        h = self.harness
        values, found = h.backend.unscale(grads, self.native_scale(scale))
        return [None if v is None else h.numpy(v) for v in values], int(as_number(found, h))

    def test_unscale_finds_finite_gradients_finite(self) -> None:
        h = self.harness
        grads = [h.array([1.0, -2.0]), h.array([0.0, 3e38])]
        assert self.unscale(grads)[1] == FINITE

    @pytest.mark.parametrize("exponent", [-24, -1, 0, 3, 16, 24])
    def test_unscale_divides_exactly_by_powers_of_two(self, exponent: int) -> None:
        h = self.harness
        exact = np.array([1.0, -3.0, 1 + 2.0**-23, 2.0**-60], np.float32)
        scaled = exact * np.float32(2.0**exponent)
        values, found = self.unscale([h.array(scaled), h.array(-scaled)], 2.0**exponent)
        assert found == FINITE
        assert [v.tolist() for v in values if v is not None] == [exact.tolist(), (-exact).tolist()]

    @pytest.mark.parametrize("value", FOUND)
    @pytest.mark.parametrize("position", [0, 1, 2])
    @pytest.mark.parametrize("element", [0, -1])
    def test_unscale_reports_what_it_finds_anywhere(
        self, value: str, position: int, element: int
    ) -> None:
        h = self.harness
        arrays = [np.ones((3, 4), np.float32), np.ones(5, np.float32), np.ones(1, np.float32)]
        arrays[position].reshape(-1)[element] = float(value)
        assert self.unscale([h.array(a) for a in arrays], 4.0)[1] == FOUND[value]

    @pytest.mark.parametrize("first, second", [("inf", "nan"), ("nan", "inf"), ("nan", "-inf")])
    @pytest.mark.parametrize("together", [True, False])
    def test_inf_wins_over_nan(self, first: str, second: str, together: bool) -> None:
        h = self.harness
        one, other = float(first), float(second)
        grads = [[one, other], [1.0, 1.0]] if together else [[one, 1.0], [1.0, other]]
        assert self.unscale([h.array(g) for g in grads])[1] == INF

    @pytest.mark.parametrize("what", [*product(["finite", "inf", "nan"], repeat=3)], ids="-".join)
    def test_the_worst_of_several_sets_of_gradients(self, what: Sequence[str]) -> None:
        """As the backend says what each holds, as Python numbers, and mixed."""
        h = self.harness
        found = [self.found(each) for each in what]
        numbers = [int(as_number(each, h)) for each in found]
        worst = INF if "inf" in what else NAN if "nan" in what else FINITE
        for kinds in (found, numbers, [found[0], *numbers[1:]]):
            assert as_number(h.backend.worst(kinds), h) == worst

    def test_opposite_infinities_are_inf(self) -> None:
        h = self.harness
        assert self.unscale([h.array([math.inf, -math.inf])])[1] == INF

    def test_large_gradients_are_not_taken_for_inf(self) -> None:
        h = self.harness
        assert self.unscale([h.array(np.full(1000, 3e38, np.float32))], 2.0)[1] == FINITE

    def test_unscale_passes_none_gradients_over(self) -> None:
        h = self.harness
        values, found = self.unscale([None, h.array([4.0]), None], 2.0)
        assert [v if v is None else v.tolist() for v in values] == [None, [2.0], None]
        assert found == FINITE

    @pytest.mark.parametrize("value", FOUND)
    def test_unscale_looks_behind_none_gradients(self, value: str) -> None:
        grads = [None, self.harness.array([float(value)])]
        assert self.unscale(grads)[1] == FOUND[value]

    @pytest.mark.parametrize("grads", [[], [None]])
    def test_unscale_of_no_gradients_is_finite(self, grads: list[Array]) -> None:
        assert self.unscale(grads) == (grads, FINITE)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_unscale_gives_float32_for_low_gradients(self, dtype: str) -> None:
        h = self.harness
        low, scale = h.array([2.0**-10, 1.0], dtype), self.native_scale(2.0**20)
        (value,), _ = h.backend.unscale([low], scale)
        assert h.dtype_of(value) == "float32"
        assert h.numpy(value).tolist() == [2.0**-30, 2.0**-20]

    def test_unscale_keeps_the_shapes(self) -> None:
        h = self.harness
        grads = [h.array(np.ones(shape, np.float32)) for shape in ((2, 3), (4,), ())]
        values, _ = self.unscale(grads, 2.0)
        assert [v.shape for v in values if v is not None] == [(2, 3), (4,), ()]


class ClipConformance(Updating):
    """Promises of ``Backend.clip``."""

    def clip(
        self, arrays: Sequence[NumpyArray | None], max_norm: float
    ) -> tuple[list[NumpyArray | None], float]:
        h = self.harness
        native = [None if a is None else h.array(a) for a in arrays]
        values, norm = h.backend.clip(native, max_norm)
        return [None if v is None else h.numpy(v) for v in values], as_number(norm, h)

    @property
    def arrays(self) -> list[NumpyArray]:
        return GRADIENTS

    def test_clip_brings_the_joint_norm_to_the_limit(self) -> None:
        norm = joint_norm(self.arrays)
        values, _ = self.clip(self.arrays, norm / 4)
        assert relative_error(values, [a / 4 for a in self.arrays]) < FLOAT32_ERROR  # type: ignore[arg-type]

    def test_clip_tells_the_norm_before(self) -> None:
        _, norm = self.clip(self.arrays, 1e-3)
        assert norm == pytest.approx(joint_norm(self.arrays), rel=FLOAT32_ERROR)

    def test_clip_leaves_smaller_gradients_alone(self) -> None:
        values, _ = self.clip(self.arrays, 2 * joint_norm(self.arrays))
        assert same_bits(values, self.arrays)  # type: ignore[arg-type]

    def test_clip_passes_none_gradients_over(self) -> None:
        values, norm = self.clip([None, np.array([3.0, 4.0], np.float32)], 1.0)
        assert values[0] is None
        assert values[1] == pytest.approx([0.6, 0.8], rel=FLOAT32_ERROR)
        assert norm == pytest.approx(5.0)

    def test_clip_of_zeros_is_zeros(self) -> None:
        values, norm = self.clip([np.zeros(3, np.float32)], 1.0)
        assert [v.tolist() for v in values if v is not None] == [[0.0, 0.0, 0.0]]
        assert norm == 0.0

    def test_clip_values_brings_each_number_to_the_limit(self) -> None:
        h, values = self.harness, np.array([[-3.0, -0.5], [0.25, 2.0]], np.float32)
        nothing, clipped = h.backend.clip_values([None, h.array(values)], 0.5)
        assert nothing is None
        assert h.numpy(clipped).tolist() == [[-0.5, -0.5], [0.25, 0.5]]

    def test_clip_of_no_gradient_tells_a_norm_of_zero(self) -> None:
        values, norm = self.clip([None, None], 1.0)
        assert values == [None, None]
        assert norm == 0.0


class StepOrSkipConformance(Updating):
    """Promises of ``Backend.step`` and ``step_unless``."""

    @pytest.mark.parametrize("unchecked", [True, False])
    def test_it_steps_on_finite_and_on_unchecked_gradients(self, unchecked: bool) -> None:
        training = self.training()
        found = None if unchecked else self.found("finite")
        doubled = [2 * g for g in GRADIENTS]
        applied = self.step_or_skip(training, doubled, found)
        assert bool(as_number(applied, self.harness)) is True
        assert self._error_of_weights(training.model, GRADIENTS, doubled) < FLOAT32_ERROR

    @pytest.mark.parametrize("kind", ["momentum", "adam"])
    def test_a_step_changes_parameters_and_slots(self, kind: str) -> None:
        training = self.training(kind)
        before = self._state_of(training)
        self.step_or_skip(training, GRADIENTS, self.found("finite"))
        after = self._state_of(training)
        changed = [not same_bits([a], [b]) for a, b in zip(after, before, strict=True)]
        assert all(changed[:4])
        assert any(changed[4:])

    @pytest.mark.parametrize("kind", ["momentum", "adam"])
    @pytest.mark.parametrize("value", FOUND)
    def test_a_skipped_step_leaves_every_bit(self, kind: str, value: str) -> None:
        training = self.training(kind)
        before = self._state_of(training)
        gradients = [np.full_like(g, float(value)) for g in GRADIENTS]
        applied = self.step_or_skip(training, gradients, self.found(value))
        assert bool(as_number(applied, self.harness)) is False
        assert same_bits(self._state_of(training), before)

    @pytest.mark.parametrize("kind", ["momentum", "adam"])
    def test_a_skipped_step_leaves_no_trace_in_the_next(self, kind: str) -> None:
        skipping, straight = self.training(kind), self.training(kind)
        infinite = [np.full_like(g, math.inf) for g in GRADIENTS]
        self.step_or_skip(skipping, infinite, self.found("inf"))
        for training in (skipping, straight):
            self.step_or_skip(training, GRADIENTS, self.found("finite"))
        assert same_bits(self._state_of(skipping), self._state_of(straight))

    def test_a_parameter_without_gradient_is_not_stepped(self) -> None:
        training = self.new_training()
        self.step_or_skip(training, [*GRADIENTS[:2], None, None], self.found("finite"))
        expected = momentum_steps(example().weights, [GRADIENTS], RATE)[:2] + example().weights[2:]
        actual = self.values(training.model)
        assert relative_error(actual, expected) < FLOAT32_ERROR
        assert same_bits(actual[2:], example().weights[2:])

    def test_slots_of_a_parameter_without_gradient_stay(self) -> None:
        training = self.new_training()
        for gradients in (GRADIENTS, [*GRADIENTS[:2], None, None], GRADIENTS):
            self.step_or_skip(training, gradients, self.found("finite"))
        twice, three_times = (
            momentum_steps(example().weights, [GRADIENTS] * count, RATE) for count in (2, 3)
        )
        expected = three_times[:2] + twice[2:]
        assert relative_error(self.values(training.model), expected) < FLOAT32_ERROR


CONFIGS = {
    "grows": ScalerConfig(growth_interval=3),
    "ceiling": ScalerConfig(growth_interval=1, max_scale=2.0**12),
    "floor": ScalerConfig(growth_interval=50, min_scale=2.0**7),
    "backoff_interval": ScalerConfig(growth_interval=2, backoff_interval=3),
    "other_factors": ScalerConfig(
        growth_factor=1.5, backoff_factor=0.75, growth_interval=2, backoff_interval=2
    ),
    "delayed_growth": ScalerConfig(growth_interval=2, growth_delay=1),
    "overflows_until_finite": ScalerConfig(
        growth_interval=2, backoff_interval=2, backoff_count="until_finite"
    ),
    "overflows_until_growth": ScalerConfig(
        growth_interval=2, backoff_interval=3, backoff_count="until_growth"
    ),
    "kept_below_the_ceiling": ScalerConfig(
        growth_factor=1.5, growth_interval=1, max_scale=2.0**12, at_max_scale="keep"
    ),
    "constant_factors": ScalerConfig(growth_factor=1.0, backoff_factor=1.0, growth_interval=1),
    "static": ScalerConfig(growth_interval=1, dynamic=False),
    "alarms": ScalerConfig(warn_after_skips=3, max_consecutive_skips=5, growth_interval=2),
    "alarms_at_the_floor": ScalerConfig(min_scale=2.0**8, at_min_scale="raise", backoff_interval=2),
}


class ScaleStoreConformance(Updating):
    """Promises of ``Backend.scale_store``: the core's rule, wherever the state lives."""

    def state(self, store: ScaleStore) -> ScaleState:
        return self._as_numbers(store.read())

    def _as_numbers(self, state: ScaleState) -> ScaleState:
        return ScaleState(*(as_number(value, self.harness) for value in state))

    def test_a_store_starts_with_the_given_state(self) -> None:
        given = ScaleState(2.0**11, 3, 2, 5, 1, 6, 7, 8, 9)
        assert self.state(self.store(given)) == given

    def test_a_store_reads_what_was_written(self) -> None:
        store = self.store(ScaleState(2.0, 0, 0, 0))
        written = ScaleState(2.0**-7, 4, 1, 9, 2, 3, 5, 6, 7)
        store.write(written)
        assert self.state(store) == written

    def test_the_scale_is_rounded_to_float32(self) -> None:
        store = self.store(ScaleState(0.1, 0, 0, 0))
        assert self.state(store).scale == float(np.float32(0.1))

    def test_two_stores_are_independent(self) -> None:
        one, other = self.store(ScaleState(4.0, 0, 0, 0)), self.store(ScaleState(4.0, 0, 0, 0))
        one.update(self.found("inf"), ScalerConfig())
        assert self.state(other) == ScaleState(4.0, 0, 0, 0)

    @pytest.mark.parametrize("value", FOUND)
    def test_inf_and_nan_back_off_alike(self, value: str) -> None:
        store = self.store(ScaleState(1024.0, 1, 0, 0))
        store.update(self.found(value), ScalerConfig())
        assert self.state(store)[:4] == (512.0, 0, 0, 1)

    @pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
    @pytest.mark.parametrize("overflow_share", [0.1, 0.5, 0.9])
    def test_the_scale_follows_the_rule(self, config: ScalerConfig, overflow_share: float) -> None:
        """And what skipped steps have come to is counted, for the alarms."""
        draw = random.Random(7)
        kinds = [
            draw.choice((INF, NAN, NAN)) if draw.random() < overflow_share else FINITE
            for _ in range(60)
        ]
        start = ScaleState(2.0**10, 0, 0, 0)
        store = self.store(start)
        found = {kind: self.found(what) for what, kind in {"finite": FINITE, **FOUND}.items()}
        states = []
        for kind in kinds:
            updated = store.update(found[kind], config)
            states.append(self.state(store))
            assert self._as_numbers(updated) == states[-1]
        assert states == scale_history(start, kinds, config)
