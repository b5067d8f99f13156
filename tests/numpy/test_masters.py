"""``Policy(masters=..., slots=...)`` on NumPy."""

import copy
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kept_masters import KeptSlots, OneArray, Trajectories, policy

import ampbridge as amp
from ampbridge_testing import import_or_skip

import_or_skip("numpy")
from ampbridge_numpy import optim  # noqa: E402
from ampbridge_numpy.testing import NumpyHarness  # noqa: E402


class WithoutSlots(optim.Optimizer):
    def _step_one(self, parameter: Any, grad: Any, state: dict[str, Any]) -> None:
        parameter -= self.lr * grad


class TestMasters(KeptSlots, OneArray, Trajectories):
    harness = NumpyHarness()
    bytes_of_low_slots = 4  # 16-bit values in float32 arrays

    def moments(self, optimizer: Any) -> list[Any]:
        return [
            slot for state in optimizer.state for slot in state.values() if hasattr(slot, "shape")
        ]

    def test_an_optimizer_whose_first_update_makes_no_slots_is_told_of_once(
        self, recwarn: pytest.WarningsRecorder
    ) -> None:
        model, _ = self.made()
        step = self.step_of(model, WithoutSlots(model.parameters(), 0.1, 0.0), None, "bfloat16")
        for _ in range(2):
            step(*self.batch())
        (told,) = [str(each.message) for each in recwarn]
        assert told.startswith("slots='bfloat16' of WithoutSlots, which keeps no moments: ")

    @pytest.mark.parametrize("masters", ["stochastic", None])
    def test_float32_values_that_are_written_are_told_of_at_the_next_step(
        self, masters: Any
    ) -> None:
        """Of weights and of moments; NaN is no loss."""
        model, optimizer = self.made("adamw")
        amp.decorate(model, optimizer, policy(masters, "bfloat16"))
        self.step_by(optimizer)
        slots = self.moments(optimizer)
        slots[0].flat[0] = np.nan
        self.step_by(optimizer)
        slots[1].flat[0] = 1 / 3
        with pytest.warns(
            amp.AmpBridgeWarning, match=r"slots are float32\. slots='bfloat16' rounds"
        ):
            self.step_by(optimizer)
        model.parameters()[0].flat[0] = 1 / 3
        with pytest.warns(amp.AmpBridgeWarning, match=rf"in float32\. masters={masters!r} rounds"):
            self.step_by(optimizer)
        self.step_by(optimizer)

    @pytest.mark.parametrize("masters", ["stochastic", None])
    def test_a_copy_keeps_no_float32_weights_either(self, masters: Any) -> None:
        model, optimizer = self.made()
        amp.decorate(model, optimizer, policy(masters))
        twin, its_optimizer = copy.deepcopy((model, optimizer))
        its_optimizer.lr = 1.0
        self.step_by(its_optimizer, 0.1)
        values = self.values(twin)
        assert not np.array_equal(values, self.values(model))
        assert np.array_equal(values, values.astype(ml_dtypes.bfloat16).astype("f"))
