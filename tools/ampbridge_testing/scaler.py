"""Promises of the public ``GradScaler`` and ``value_and_grad``, with this backend under them."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from ampbridge import (
    AmpBridgeWarning,
    CallOrderError,
    GradScaler,
    OverflowStuckError,
    value_and_grad,
)
from ampbridge.adapters.backend import Array, Model
from ampbridge.scaling.scaler import Gradients
from ampbridge_testing.gradients import (
    ERROR_BOUNDS,
    FLOAT32_ERROR,
    multiplied_error,
    same_bits,
    squared_error,
)
from ampbridge_testing.harness import NumpyArray
from ampbridge_testing.reference import EXACT, example, joint_norm, relative_error
from ampbridge_testing.shared import Training
from ampbridge_testing.updates import Updating

# No value is a default, so that none can be lost unseen.
SETTINGS: dict[str, Any] = {
    "init_scale": 2.0**9,
    "growth_factor": 4.0,
    "backoff_factor": 0.25,
    "growth_interval": 3,
    "backoff_interval": 2,
    "min_scale": 2.0**-6,
    "max_scale": 2.0**20,
    "growth_delay": 1,
    "backoff_count": "until_growth",
    "at_max_scale": "keep",
    "at_min_scale": "raise",
    "warn_after_skips": 20,
    "max_consecutive_skips": 30,
}


class GradScalerConformance(Updating):
    """Promises of the loop by hand: scale, unscale, step, update."""

    def scaled_gradients(
        self, scaler: GradScaler | None, model: Model, factor: float = 1.0, policy: str = "O0"
    ) -> Gradients:
        """Gradients as values; ``factor`` multiplies the loss, an infinite one makes them inf."""
        loss_fn, batch = multiplied_error(self.harness), self.batch(factor)
        return value_and_grad(loss_fn, model, *batch, policy=policy, scaler=scaler)[1]

    def iterate(self, scaler: GradScaler, training: Training, factor: float = 1.0) -> bool:
        """One iteration of the loop; whether the optimizer was stepped."""
        gradients = self.scaled_gradients(scaler, training.model, factor)
        applied = scaler.step(training.optimizer, gradients)
        scaler.update()
        return bool(applied)

    # -- scale

    def test_scale_multiplies_the_loss(self) -> None:
        h = self.harness
        scaled = GradScaler(2.0**10).scale(h.array(3.0))
        assert h.numpy(scaled).item() == 3072.0

    def test_scale_takes_a_low_loss_to_float32_first(self) -> None:
        h = self.harness
        scaled = GradScaler(2.0**16).scale(h.array(3.0, "float16"))
        assert h.numpy(scaled).item() == 196608.0

    def test_scale_takes_lists_and_dicts_of_losses(self) -> None:
        h = self.harness
        scaled = GradScaler(8.0).scale({"a": [h.array(1.0), h.array(2.0)], "b": h.array(3.0)})
        assert [h.numpy(x).item() for x in (*scaled["a"], scaled["b"])] == [8.0, 16.0, 24.0]

    def test_the_framework_s_own_gradients_of_a_scaled_loss(self) -> None:
        h, given = self.harness, example()
        scaler, model = GradScaler(2.0**12), h.model(given.weights)
        batch = [h.array(given.x), h.array(given.target)]
        grads = h.native_gradients(model, squared_error(h), batch, scaler.scale)
        expected = [g * 2.0**12 for g in EXACT.gradients]
        assert relative_error([h.numpy(g) for g in grads], expected) < FLOAT32_ERROR

    def test_the_native_loop_steps_from_the_true_gradients(self) -> None:
        h, given = self.harness, example()
        scaler, (model, optimizer) = GradScaler(2.0**12), self.new_training()
        batch = [h.array(given.x), h.array(given.target)]
        grads = h.native_gradients(model, squared_error(h), batch, scaler.scale)
        assert scaler.step(optimizer, None if h.stores_gradients else grads)
        scaler.update()
        assert self._error_of_weights(model, EXACT.gradients) < FLOAT32_ERROR

    # -- value_and_grad

    def test_value_and_grad_gives_the_unscaled_loss_and_scaled_gradients(self) -> None:
        h, given = self.harness, example()
        batch, scaler = (given.x, given.target), GradScaler(2.0**10)
        model = h.model(given.weights)
        loss, grads = value_and_grad(squared_error(h), model, *batch, policy="O0", scaler=scaler)
        expected = EXACT
        assert h.numpy(loss).item() == pytest.approx(expected.loss, rel=FLOAT32_ERROR)
        scaled = [g * 2.0**10 for g in expected.gradients]
        assert relative_error([h.numpy(g) for g in grads], scaled) < FLOAT32_ERROR

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_value_and_grad_follows_the_policy(self, dtype: str) -> None:
        h, given = self.harness, example()
        grads = self.scaled_gradients(None, h.model(given.weights), policy=f"O1:{dtype}")
        error = relative_error([h.numpy(g) for g in grads], EXACT.gradients)
        assert FLOAT32_ERROR < error < ERROR_BOUNDS[dtype]

    def test_value_and_grad_returns_aux_beside_the_loss(self) -> None:
        h, given = self.harness, example()

        def loss_fn(model: Model, x: Array, target: Array) -> tuple[Array, str]:
            return h.mean_squared_error(h.forward(model, x), target), "aux"

        model = h.model(given.weights)
        (loss, aux), _ = value_and_grad(loss_fn, model, given.x, given.target, policy="O0")
        assert aux == "aux"
        assert h.numpy(loss).item() == pytest.approx(EXACT.loss, rel=FLOAT32_ERROR)

    def test_value_and_grad_does_not_disturb_another_model(self) -> None:
        h, given = self.harness, example()
        other = self.training()
        batch = [h.array(given.x), h.array(given.target)]
        h.native_gradients(other.model, squared_error(h), batch, lambda loss: loss)
        before = self._state_of(other) + self.stored(other)

        def loss_of_both(model: Model, x: Array, target: Array) -> Array:
            return h.mean_squared_error(h.forward(model, x), h.forward(other.model, x))

        model = h.model([w / 2 for w in given.weights])
        value_and_grad(loss_of_both, model, given.x, given.target, policy="O0")
        assert same_bits(self._state_of(other) + self.stored(other), before)

    def stored(self, training: Training) -> list[NumpyArray]:
        h = self.harness
        if not h.stores_gradients:
            return []
        return [h.numpy(g) for g in h.backend.stored_gradients(training.optimizer)]

    # -- unscale and step

    def test_unscale_gives_the_true_gradients(self) -> None:
        h, given = self.harness, example()
        scaler = GradScaler(2.0**10)
        grads = scaler.unscale(self.scaled_gradients(scaler, h.model(given.weights)))
        assert relative_error([h.numpy(g) for g in grads], EXACT.gradients) < FLOAT32_ERROR

    def test_step_after_unscale_does_not_unscale_again(self) -> None:
        scaler, (model, optimizer) = GradScaler(2.0**10), self.new_training()
        grads = scaler.unscale(self.scaled_gradients(scaler, model))
        assert scaler.step(optimizer, grads)
        assert self._error_of_weights(model, EXACT.gradients) < FLOAT32_ERROR

    def test_step_unscales_by_itself(self) -> None:
        scaler, (model, optimizer) = GradScaler(2.0**10), self.new_training()
        assert scaler.step(optimizer, self.scaled_gradients(scaler, model))
        assert self._error_of_weights(model, EXACT.gradients) < FLOAT32_ERROR

    @pytest.mark.parametrize("factor", [math.inf, math.nan])
    def test_step_skips_what_overflowed(self, factor: float) -> None:
        training, scaler = self.training(), GradScaler(2.0**10)
        before = self._state_of(training)
        assert self.iterate(scaler, training, factor) is False
        assert same_bits(self._state_of(training), before)
        assert scaler.get_scale() == 2.0**9

    def test_found_inf_tells_what_the_check_found(self) -> None:
        training, scaler = self.training(), GradScaler(2.0**10)
        told = []
        for factor in (1.0, math.inf):
            scaler.step(training.optimizer, self.scaled_gradients(scaler, training.model, factor))
            told.append(scaler.found_inf(training.optimizer))
            scaler.update()
        assert told == [False, True]

    def test_each_of_two_optimizers_is_skipped_by_its_own_gradients(self) -> None:
        bad, good, scaler = self.training(), self.training(), GradScaler(2.0**10)
        before = [self._state_of(bad), self._state_of(good)]
        applied = [
            bool(scaler.step(bad.optimizer, self.scaled_gradients(scaler, bad.model, math.inf))),
            bool(scaler.step(good.optimizer, self.scaled_gradients(scaler, good.model))),
        ]
        assert applied == [False, True]
        assert same_bits(self._state_of(bad), before[0])
        assert not same_bits(self._state_of(good), before[1])

    @pytest.mark.parametrize("factors", [(math.inf, 1.0), (1.0, math.nan), (math.inf, math.nan)])
    def test_two_optimizers_back_the_scale_off_once(self, factors: tuple[float, float]) -> None:
        scaler = GradScaler(2.0**10)
        for training, factor in zip((self.training(), self.training()), factors, strict=True):
            scaler.step(training.optimizer, self.scaled_gradients(scaler, training.model, factor))
        scaler.update()
        assert scaler.get_scale() == 2.0**9

    def test_the_scale_grows_after_growth_interval_finite_steps(self) -> None:
        training, scaler = self.training(), GradScaler(2.0**10, growth_interval=2)
        scales = []
        for factor in (1.0, 1.0, 1.0, math.inf, 1.0, 1.0):
            self.iterate(scaler, training, factor)
            scales.append(scaler.get_scale())
        assert scales == [2.0**k for k in (10, 11, 11, 10, 10, 11)]

    # -- alarms

    def test_alarms_sound_in_a_loop_by_hand(self) -> None:
        scaler = GradScaler(2.0**10, warn_after_skips=3, max_consecutive_skips=5)
        training = self.training()
        for _ in range(2):
            self.iterate(scaler, training, math.inf)
        with pytest.warns(AmpBridgeWarning, match="3 steps in a row were skipped"):
            self.iterate(scaler, training, math.nan)
        self.iterate(scaler, training, math.inf)
        with pytest.raises(OverflowStuckError, match="5 steps in a row were skipped"):
            self.iterate(scaler, training, math.inf)
        assert self.iterate(scaler, training)

    # -- state

    def test_the_state_makes_the_round_trip_with_every_field(self) -> None:
        training = self.training()
        scaler = GradScaler(**SETTINGS)
        self.iterate(scaler, training)
        saved = json.loads(json.dumps(scaler.state_dict()))
        assert self.reloaded(saved).state_dict() == saved

    def test_the_counters_make_the_round_trip(self) -> None:
        training = self.training()
        scaler = GradScaler(**SETTINGS)
        self.iterate(scaler, training, math.inf)
        saved = scaler.state_dict()
        assert (saved["bad_steps"], saved["consecutive_skips"]) == (1, 1)
        assert self.reloaded(saved).state_dict() == saved

    def reloaded(self, saved: dict[str, Any]) -> GradScaler:
        """A default scaler, in use already, that has taken over ``saved``."""
        scaler = GradScaler()
        self.iterate(scaler, self.training())
        scaler.load_state_dict(saved)
        return scaler

    def test_a_reloaded_scaler_goes_on_as_the_saved_one(self) -> None:
        factors = (1.0, 1.0, 1.0, math.inf, 1.0, 1.0, 1.0, math.inf, math.inf, 1.0)
        saved, training = GradScaler(**SETTINGS), self.training()
        for factor in factors[:2]:
            self.iterate(saved, training, factor)
        reloaded = self.reloaded(saved.state_dict())
        for factor in factors[2:]:
            for scaler in (saved, reloaded):
                self.iterate(scaler, training, factor)
            assert saved.state_dict() == reloaded.state_dict()

    # -- disabled

    def test_a_disabled_scaler_passes_everything_through(self) -> None:
        scaler, (model, optimizer) = GradScaler(enabled=False), self.new_training()
        grads = self.scaled_gradients(scaler, model)
        values = [self.harness.numpy(g) for g in grads]
        assert relative_error(values, EXACT.gradients) < FLOAT32_ERROR
        assert scaler.step(optimizer, grads)
        scaler.update()
        assert self._error_of_weights(model, EXACT.gradients) < FLOAT32_ERROR
        assert scaler.get_scale() == 1.0

    @pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy warns of inf - inf
    def test_a_disabled_scaler_steps_on_infinite_gradients(self) -> None:
        scaler, (model, optimizer) = GradScaler(enabled=False), self.training()
        assert scaler.step(optimizer, self.scaled_gradients(scaler, model, math.inf))
        assert not np.isfinite(joint_norm(self.values(model)))


class StoredGradientsConformance(Updating):
    """Promises of the scaler's calls on an optimizer that holds its gradients."""

    def training_with_stored(self, scaler: GradScaler, factor: float = 1.0) -> Training:
        """Training with the gradients of a scaled loss stored, where the framework stores them."""
        h, training = self.harness, self.new_training()
        batch = [h.array(v) for v in self.batch(factor)]
        h.native_gradients(training.model, multiplied_error(h), batch, scaler.scale)
        return training

    def test_unscale_changes_stored_gradients_in_place(self) -> None:
        h, scaler = self._storing(), GradScaler(2.0**10)
        training = self.training_with_stored(scaler)
        scaler.unscale(training.optimizer)
        stored = [h.numpy(g) for g in h.backend.stored_gradients(training.optimizer)]
        assert relative_error(stored, EXACT.gradients) < FLOAT32_ERROR

    @pytest.mark.parametrize("unscale_first", [True, False])
    def test_step_takes_stored_gradients(self, unscale_first: bool) -> None:
        self._storing()
        scaler = GradScaler(2.0**10)
        model, optimizer = self.training_with_stored(scaler)
        if unscale_first:
            scaler.unscale(optimizer)
        assert scaler.step(optimizer)
        assert self._error_of_weights(model, EXACT.gradients) < FLOAT32_ERROR

    def test_step_skips_stored_gradients_that_overflowed(self) -> None:
        self._storing()
        scaler = GradScaler(2.0**10)
        training = self.training_with_stored(scaler, math.inf)
        before = self._state_of(training)
        assert scaler.step(training.optimizer) is False
        scaler.update()
        assert same_bits(self._state_of(training), before)
        assert scaler.get_scale() == 2.0**9

    @pytest.mark.parametrize("call", ["unscale", "step"])
    def test_a_forgotten_backward_is_an_error(self, call: str) -> None:
        h, scaler = self._storing(), GradScaler()
        optimizer = self.new_training().optimizer
        scaler.scale(h.array(1.0))
        with pytest.raises(CallOrderError, match=r"(?s)not one gradient.*Hint: "):
            getattr(scaler, call)(optimizer)

    def test_unscale_of_an_optimizer_is_refused_where_gradients_are_values(self) -> None:
        if self.harness.stores_gradients:
            pytest.skip("gradients are stored here")
        training = self.training()
        with pytest.raises(NotImplementedError, match="Hint: "):
            GradScaler().unscale(training.optimizer)

    def test_minimize_is_step_and_update(self) -> None:
        self._storing()
        scaler = GradScaler(2.0**10, growth_interval=1)
        model, optimizer = self.training_with_stored(scaler)
        assert scaler.minimize(optimizer, None)
        assert scaler.get_scale() == 2.0**11
        assert self._error_of_weights(model, EXACT.gradients) < FLOAT32_ERROR
