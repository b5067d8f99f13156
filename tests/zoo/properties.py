"""What has to be true of each model of the zoo, in each framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pytest
from zoo import Subject

import ampbridge as amp
from ampbridge import lens
from ampbridge_testing.growth import BOUND, Growth, growth

LOW = ("bfloat16", "float16")
LEVELS = ("O1", "O2")

NEARNESS = {"O1": 4.0, "O2": 8.0}
"""How many times as far from float32 as the native loop a loss may be: rounding errors are random."""

ROUNDING = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
"""The distance of two neighbours, relative to them; a loss that is natively nearer was lucky."""

OF_TWO_MINDS = "scaled_dot_product_attention"
"""Torch's kernel for it computes in float32 by itself where it cannot be fused; it stores low values."""


class Properties:
    """Tests of a ``subject``, a fixture; those of a framework's process inherit them."""

    growth_bound: Growth = BOUND

    def test_o0_is_plain_training(self, subject: Subject) -> None:
        run, plain = subject.train(amp.Policy("O0")), subject.native("float32")
        assert run.losses == plain.losses
        assert_equal(run.weights, plain.weights)

    @pytest.mark.parametrize("level", LEVELS)
    def test_a_step_is_skipped_as_in_the_native_loop(self, subject: Subject, level: str) -> None:
        scales = subject.train(amp.Policy(level, "float16")).scales
        assert scales == subject.native("float16").scales

    @pytest.mark.parametrize("level", LEVELS)
    def test_a_skipped_step_changes_nothing(self, subject: Subject, level: str) -> None:
        """No parameter, no slot, no master; buffers move in the forward pass, as they do natively."""
        run = subject.train(amp.Policy(level, "float16"))
        assert run.changed[1:] == run.applied[1:]  # the first step also makes masters

    @pytest.mark.parametrize("low", LOW)
    @pytest.mark.parametrize("level", LEVELS)
    def test_losses_are_as_near_to_float32_as_natively(
        self, subject: Subject, level: str, low: str
    ) -> None:
        plain, allowed = subject.native("float32"), distance_by_hand(subject, low)
        distance = subject.train(amp.Policy(level, low)).farthest_from(plain)
        assert distance <= NEARNESS[level] * allowed

    @pytest.mark.parametrize("level", LEVELS)
    def test_a_saved_training_goes_on(self, subject: Subject, level: str) -> None:
        policy, half = amp.Policy(level, "float16"), subject.half
        unbroken = subject.train(policy)
        model, optimizer = subject.built()
        step = subject.step_of(model, optimizer, policy)
        step.load(unbroken.saved)
        results = [subject.take(step, number) for number in range(half, subject.framework.steps)]
        amp.undecorate(model, optimizer)
        assert [result.loss for result in results] == unbroken.losses[half:]
        assert [result.scale for result in results] == unbroken.scales[half:]
        assert_equal(subject.framework.weights(model), unbroken.weights)

    @pytest.mark.parametrize("level", LEVELS)
    def test_undecorating_gives_everything_back(self, subject: Subject, level: str) -> None:
        model, optimizer = subject.built()
        framework = subject.framework
        anatomy, weights = framework.anatomy(model, optimizer), framework.weights(model)
        amp.decorate(model, optimizer, amp.Policy(level, "bfloat16"))
        amp.undecorate(model, optimizer)
        assert framework.anatomy(model, optimizer) == anatomy
        assert_equal(framework.weights(model), weights)

    @pytest.mark.parametrize("level", LEVELS)
    def test_the_census_sees_low_products(self, subject: Subject, level: str) -> None:
        policy = amp.Policy(level, "bfloat16")
        model, _ = subject.built()
        seen = lens.census(
            subject.specimen.loss, model, *subject.batches[0], policy=policy, passes=1
        )
        products = [row for row in seen.rows if row.rule == f"{level} allow"]
        assert {row.dtype for row in products if row.op != OF_TWO_MINDS} == {"bfloat16"}

    def test_steps_leave_nothing(self, subject: Subject) -> None:
        """No object and no memory stays of a step that is over, compiled or not as is usual."""
        model, optimizer = subject.built()
        step = subject.step_of(model, optimizer, amp.Policy("O1", "bfloat16"), compile="auto")
        left = growth(lambda: subject.take(step, 0).applied, self.growth_bound)
        assert left.is_within(self.growth_bound), left


class ByTheRule(Properties):
    """For a framework that has no loss scaling of its own here: the scale goes by its rule."""

    @pytest.mark.parametrize("level", LEVELS)
    def test_a_step_is_skipped_as_in_the_native_loop(self, subject: Subject, level: str) -> None:
        """As its rule would have it; an overflow there is one here."""
        run, rule = subject.train(amp.Policy(level, "float16")), subject.framework.scaling
        scale, good = rule["init_scale"], 0
        for number, applied in enumerate(run.applied):
            assert run.scales[number] == scale
            good = good + 1 if applied else 0
            if not applied:
                scale *= rule["backoff_factor"]
            elif good == rule["growth_interval"]:
                scale, good = scale * rule["growth_factor"], 0


class StepByStep(ByTheRule):
    """For long trainings: each step that was applied is held against float32's of that number."""

    nearness: ClassVar = NEARNESS

    @pytest.mark.parametrize("low", LOW)
    @pytest.mark.parametrize("level", LEVELS)
    def test_losses_are_as_near_to_float32_as_natively(
        self, subject: Subject, level: str, low: str
    ) -> None:
        """And fall as far."""
        plain, allowed = subject.native("float32"), distance_by_hand(subject, low)
        run = subject.train(amp.Policy(level, low))
        losses = [loss for loss, applied in zip(run.losses, run.applied, strict=True) if applied]
        theirs = plain.losses[: len(losses)]
        distance = max(abs(a - b) for a, b in zip(losses, theirs, strict=True))
        assert distance <= self.nearness[level] * allowed
        assert losses[0] - losses[-1] >= 0.9 * (theirs[0] - theirs[-1]) > 0


class BesideRounding(StepByStep):
    """For a framework without mixed precision: the loop by hand rounds what it reads, once.

    A model in mixed precision rounds at each of its ops, one after the other.
    """

    nearness: ClassVar = dict.fromkeys(LEVELS, 16.0)


def distance_by_hand(subject: Subject, low: str) -> float:
    """How far losses of the native training in ``low`` are from float32's; a rounding of one at least."""
    plain = subject.native("float32")
    return max(subject.native(low).farthest_from(plain), ROUNDING[low] * abs(plain.losses[0]))


def assert_equal(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    """To the bit, and in the same dtype."""
    assert found.keys() == expected.keys()
    assert {key: value.dtype for key, value in found.items()} == {
        key: value.dtype for key, value in expected.items()
    }
    assert [key for key in found if found[key].tobytes() != expected[key].tobytes()] == []
