"""Promises of schedules: what runs changes between steps, on layers and programs built already."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ampbridge import GradScaler, Policy, Schedule, TrainStep, decorate, train_step, undecorate
from ampbridge.adapters.backend import Array, Model
from ampbridge_testing.decorating import ONE_ROW, ONES, PRODUCTS, Layered, first_output
from ampbridge_testing.gradients import same_bits

READS_LOW = Policy("O2", "float16", deny=PRODUCTS)
"""Shows by its results that parameters are low: at O1 a denied product shows nothing."""


class ScheduleConformance(Layered):
    """Promises of ``train_step`` with a schedule, on one model throughout."""

    def scheduled(
        self, schedule: Schedule, compiled: bool = False, **settings: Any
    ) -> tuple[TrainStep, Model, Any]:
        """A step whose batch is ``(ones, factor)``, its model, and how often it was traced.

        The loss is ``factor`` or a little more, and the model's weights stay as they are.
        """
        h, model = self.harness, self.probing()

        def loss_fn(model: Model, x: Array, factor: Array) -> Any:
            y = model(x)
            return y[0, 0] * factor, y

        counted, traces = h.counting_traces(loss_fn)
        settings = {"policy": schedule, "compile": compiled, **settings}
        return train_step(counted, model, h.optimizer(model, "sgd", 0.0), **settings), model, traces

    def shown_by(self, step: TrainStep, factor: float = 1.0) -> str:
        """The dtype that PROBE has come through the model in, during one step."""
        return self.shown_in(step(ONES, np.float32(factor)).aux)

    def test_a_schedule_takes_a_built_model_from_level_to_level(self, compiled: bool) -> None:
        """And back, with one trace a policy."""
        policies = [Policy("O0"), Policy("O1", "bfloat16"), READS_LOW]
        first_round, second = enumerate(policies), enumerate(policies, start=3)
        schedule = Schedule([*((2 * i, p) for i, p in [*first_round, *second]), (12, "O0")])
        step, model, traces = self.scheduled(schedule, compiled)
        before = self.values(model)
        shown = [self.shown_by(step) for _ in range(13)]
        expected = [d for d in ("float32", "bfloat16", "float16") for _ in range(2)]
        assert shown == [*expected, *expected, "float32"]
        assert traces() <= len(policies)
        assert same_bits(self.values(model), before)
        assert self.shown(model) == "float32"

    def test_another_decorated_model_makes_no_new_program(self) -> None:
        if not self.harness.compiles:
            pytest.skip("this backend compiles nothing")
        step, _, traces = self.scheduled(Schedule([(0, "O2:bfloat16")]), compiled=True)
        self.shown_by(step)
        other = decorate(self.probing(), policy="O2:bfloat16")
        self.shown_by(step)
        undecorate(other)
        self.shown_by(step)
        assert traces() == 1

    def test_a_schedule_keeps_layers_where_its_policies_say_so(self) -> None:
        kept = Policy("O2", "float16", keep=("head",))
        schedule = Schedule([(0, "O2"), (1, kept), (2, "O2"), (3, "O1"), (4, kept)])
        step, _, _ = self.scheduled(schedule)
        shown = [self.shown_by(step) for _ in range(5)]
        assert shown == ["float16", "float32", "float16", "float16", "float32"]

    def test_a_schedule_by_loss_changes_what_runs(self) -> None:
        schedule = Schedule.when(loss_below=0.5, use=READS_LOW, otherwise="O0", back_above=2.0)
        step, _, _ = self.scheduled(schedule, scaler=GradScaler(8.0))
        shown = [self.shown_by(step, factor) for factor in (1.0, 0.25, 1.0, 4.0, 1.0)]
        assert shown == ["float32", "float32", "float16", "float16", "float32"]

    def test_a_schedule_by_skips_changes_what_runs(self) -> None:
        schedule = Schedule.when(skips=2, use="O2:bfloat16", otherwise=READS_LOW, back_after=1)
        step, _, _ = self.scheduled(schedule, scaler=GradScaler(8.0))
        applied, shown = [], []
        for factor in (1.0, math.inf, math.inf, 1.0, 1.0):
            result = step(ONES, np.float32(factor))
            applied.append(result.applied)
            shown.append(self.shown_in(result.aux))
        assert applied == [True, False, False, True, True]
        assert shown == ["float16"] * 3 + ["bfloat16", "float16"]

    def test_masters_and_slots_go_through_a_schedule(self) -> None:
        """Gradients of exactly 1 at every level: the weights move as under one policy."""
        model, optimizer = self.drifting(2.0**-12, "momentum")
        schedule = Schedule([(0, "O0"), (3, "O1:bfloat16"), (6, "O2:bfloat16"), (9, "O0")])

        step = train_step(first_output, model, optimizer, policy=schedule)
        for _ in range(12):
            step(*ONE_ROW)
        undecorate(model, optimizer)
        velocity, expected = 0.0, 1.0
        for _ in range(12):
            velocity = 0.9 * velocity + 1
            expected -= 2.0**-12 * velocity
        assert np.isclose(self.drifted(model), expected, rtol=1e-6, atol=0)
