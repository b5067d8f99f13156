"""``Model.fit`` with ampbridge's loss scaling: what Keras expects of it, and our rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ampbridge.adapters import registry
from ampbridge.adapters.backend import FINITE, INF, NAN, Array, Scalar
from ampbridge.errors import ArgumentError, ArgumentTypeError, CallOrderError, UnsupportedError
from ampbridge.scaling.scale_rule import ScalerConfig, ScaleState
from ampbridge.scaling.scaler import GradScaler
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.arguments import check_keras_backend
from ampbridge_tensorflow.autocast.regions import outside_of_regions
from ampbridge_tensorflow.fit.updates import scaled
from ampbridge_tensorflow.native_values import values_of
from ampbridge_tensorflow.step.scaling import VariableStore, divided, has_inf, kind_of


@keras.saving.register_keras_serializable("ampbridge")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """A Keras optimizer whose loss is scaled by the rule of an ``ampbridge.GradScaler``.

        scaler = amp.GradScaler(growth_interval=500)
        optimizer = LossScaleOptimizer(keras.optimizers.Adam(1e-3), scaler)
        amp.decorate(model, policy="O1")
        model.compile(optimizer, loss="mse")
        model.fit(x, y)

    A model that is decorated in float16 and compiled with another optimizer gets one of these by itself,
    with the default scaler (``scaled_fit``).

    Keras multiplies the loss by asking ``scale_loss``, and knows the class: ``compile`` wraps it in
    no other. Clipping, EMA and gradient accumulation are the inner optimizer's, and see true
    gradients. Each call of ``apply`` is a step of the rule; where gradients are accumulated, an
    overflow leaves out that micro-batch alone.

    The state lives in the optimizer's variables, so that checkpoints and ``model.save`` hold it, and
    ``scaler`` shows it. ``keras.models.load_model`` finds the class once it has been imported.

    Skipped steps are counted on the device, and nothing of a traced step waits for it. What the scaler
    has to say of them (``warn_after_skips``, ``max_consecutive_skips``, NaN, its minimum) is said at the
    end of ``fit``; while it runs if a ``SkipWatch`` is among the callbacks; and at once of eager steps.

    Args:
        inner_optimizer: a Keras optimizer that does not scale by itself.
        scaler: its settings and present state; a disabled one scales nothing. None for the default.
        initial_scale, dynamic_growth_steps: Keras' own, in the place of a scaler:
            ``GradScaler.like("keras", init_scale=..., growth_interval=...)``.

    Raises:
        ArgumentTypeError: for other objects than these.
        ArgumentError: for a scaler and Keras' arguments together.
        CallOrderError: for a scaler whose state lives elsewhere already.
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        scaler: GradScaler | None = None,
        name: str | None = None,
        *,
        initial_scale: float | None = None,
        dynamic_growth_steps: int | None = None,
        **keras_arguments: Any,
    ) -> None:
        check_keras_backend("LossScaleOptimizer")
        _private.check(_private.FINITE_BRANCH, _private.OVERFLOW_BRANCH)
        scaler = _scaler_of(scaler, initial_scale, dynamic_growth_steps)
        _check_arguments(inner_optimizer, scaler)
        state = ScaleState(*scaler.store.read())
        super().__init__(
            inner_optimizer,
            float(state.scale),
            scaler.config.growth_interval,
            name=name,
            **keras_arguments,
        )
        self.scaler = scaler
        self._store: VariableStore | None = None
        self._traced_with: ScalerConfig | None = None
        self._found: Callable[[], Scalar] | None = None
        """Tells what is in the gradients of the step that is being applied, if they are not finite."""
        self.active = True
        """Whether steps that are traced now are scaled at all; see ``PolicySchedule``."""
        self.waits = False
        """Whether all is left to the inner optimizer until ``scale_loss`` is called; see ``scaled_fit``."""
        scaler.bind(registry.backend("tensorflow"), self)
        if scaler.store is not self._store:
            msg = (
                "The state of this GradScaler lives elsewhere: with another optimizer, or in a "
                "train_step.\n"
                "Hint: scaler = amp.GradScaler(); scaler.load_state_dict(the_other.state_dict())"
            )
            raise CallOrderError(msg)

    def scale_store(self, state: ScaleState) -> VariableStore:
        """A place for the scaler's state among this optimizer's variables; see ``Backend``."""
        self.dynamic_scale = self._variable("dynamic_scale", "float32", state.scale)
        self.counts = self._variable("counts", "int32", state[1:])
        self._store = VariableStore(self.dynamic_scale, self.counts)
        return self._store

    def _variable(self, name: str, dtype: str, value: Any) -> keras.Variable:
        """A variable that checkpoints and saved models hold."""
        first = np.asarray(value, dtype)
        return self.add_variable(
            first.shape, lambda shape, dtype: tf.constant(first), dtype, name=name
        )

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Build the inner optimizer; the variables for the scale are there since ``__init__``."""
        self.inner_optimizer.build(variables)
        super(keras.optimizers.LossScaleOptimizer, self).build(variables)

    @property
    def iterations(self) -> keras.Variable:
        """The inner optimizer's, which skipped steps leave as they are."""
        return self.inner_optimizer.iterations

    @outside_of_regions
    def scale_loss(self, loss: Array) -> Array:
        """``loss`` in float32, since 65536 is infinite in float16, times the scale."""
        self.waits = False
        if not self._scales():
            return loss
        return tf.cast(loss, tf.float32) * self.dynamic_scale.value

    def _scales(self) -> bool:
        return self.scaler.enabled and self.active and not self.waits

    @outside_of_regions
    def apply(
        self,
        grads: Sequence[Array | None],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Unscale and step, unless a gradient is inf or NaN; then the rule."""
        if not self._scales():
            self.inner_optimizer.apply(grads, trainable_variables)
            return
        try:
            super().apply(grads, trainable_variables)
        finally:
            self._found = None
        if tf.executing_eagerly():
            self.sound_alarms()
        else:
            self._traced_with = self.scaler.config

    def check_finite(self, grads: Sequence[Array | None]) -> Array:
        """Whether all gradients are finite, on each replica: they are summed only after this.

        (Keras asks one replica, and another's overflow goes into the weights.)
        """
        finite = super().check_finite(grads)
        values = [values_of(gradient) for gradient in grads if gradient is not None]
        replica = tf.distribute.get_replica_context()
        if replica is None or replica.num_replicas_in_sync == 1:
            self._found = partial(kind_of, values)  # in the branch of an overflow alone
            return finite
        infinite = tf.cond(finite, lambda: tf.constant(False), lambda: has_inf(values))
        flags = tf.cast(tf.stack([finite, infinite]), tf.int32)
        counts = replica.all_reduce(tf.distribute.ReduceOp.SUM, flags)
        found = tf.where(counts[1] > 0, INF, NAN)
        self._found = lambda: found
        return counts[0] == replica.num_replicas_in_sync

    @scaled
    def _stateful_handle_finite_grads(
        self,
        grads: Sequence[Array | None],
        trainable_variables: Sequence[keras.Variable] | None,
    ) -> None:
        variables = trainable_variables or self._trainable_variables
        unscaled = divided(grads, self.dynamic_scale.value)
        # float8's scales, which Keras hands over as gradients, were never multiplied.
        kept = [getattr(v, "overwrite_with_gradient", False) for v in variables]
        chosen = [g if keep else u for g, u, keep in zip(grads, unscaled, kept, strict=True)]
        self.inner_optimizer.apply(chosen, trainable_variables)
        self.scaler.store.update(FINITE, self.scaler.config)

    def _stateful_handle_non_finite_grads(self) -> None:
        assert self._found is not None
        self.scaler.store.update(self._found(), self.scaler.config)

    def finalize_variable_values(self, var_list: Sequence[keras.Variable]) -> None:
        """Called by ``fit`` at its end.

        Raises:
            OverflowStuckError: as ``sound_alarms``.
        """
        super().finalize_variable_values(var_list)
        self.sound_alarms()

    @outside_of_regions
    def sound_alarms(self) -> None:
        """Say what the scaler has to say of the steps skipped last. Waits for the device.

        Raises:
            OverflowStuckError: where too many were skipped in a row, or at the minimum of the scale.
            CallOrderError: where the scaler's settings have changed since the steps were traced.
        """
        if not self._scales():
            return
        if self._traced_with not in (None, self.scaler.config):
            msg = (
                "The scaler's settings have changed since Keras traced the training step, which goes "
                "on with those before.\n"
                "Hint: scaler.load_state_dict(state); model.make_train_function(force=True)"
            )
            raise CallOrderError(msg)
        self.scaler.sound_alarms()

    def stateless_apply(self, *_: Any) -> Any:
        """Refused: this is how Keras trains on JAX.

        Raises:
            UnsupportedError: always.
        """
        msg = (
            "LossScaleOptimizer.stateless_apply is Keras' way on JAX; this one works on TensorFlow.\n"
            "Hint: optimizer.apply(grads, variables)"
        )
        raise UnsupportedError(msg)

    def get_config(self) -> dict[str, Any]:
        """Plain values: the inner optimizer, and the scaler with its state as it is now."""
        config = super().get_config()
        del config["initial_scale"], config["dynamic_growth_steps"]
        return {**config, "scaler": self.scaler.state_dict(), "waits": self.waits}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> LossScaleOptimizer:
        """The optimizer that ``get_config`` described."""
        config = dict(config)
        scaler = GradScaler()
        scaler.load_state_dict(config.pop("scaler"))
        waits = config.pop("waits", False)
        made: LossScaleOptimizer = super().from_config({**config, "scaler": scaler}, custom_objects)
        made.waits = waits
        return made


def _scaler_of(
    scaler: GradScaler | None, initial_scale: float | None, dynamic_growth_steps: int | None
) -> GradScaler:
    keras_arguments = {"init_scale": initial_scale, "growth_interval": dynamic_growth_steps}
    said = {name: value for name, value in keras_arguments.items() if value is not None}
    if scaler is None:
        return GradScaler.like("keras", **said) if said else GradScaler()
    if said:
        msg = (
            "A LossScaleOptimizer's scaler says what initial_scale and dynamic_growth_steps are; they "
            "were passed beside it.\n"
            "Hint: LossScaleOptimizer(optimizer, amp.GradScaler(400.0, growth_interval=2000))"
        )
        raise ArgumentError(msg)
    return scaler


def _check_arguments(inner: Any, scaler: Any) -> None:
    if isinstance(inner, keras.optimizers.LossScaleOptimizer):
        msg = (
            f"inner_optimizer is a {type(inner).__name__}, which scales the loss by itself.\n"
            "Hint: LossScaleOptimizer(optimizer.inner_optimizer, scaler)"
        )
        raise ArgumentTypeError(msg)
    if not isinstance(inner, keras.optimizers.Optimizer):
        msg = (
            f"inner_optimizer is a keras.optimizers.Optimizer, not {type(inner).__name__}.\n"
            "Hint: LossScaleOptimizer(keras.optimizers.SGD(0.1))"
        )
        raise ArgumentTypeError(msg)
    if not isinstance(scaler, GradScaler):
        msg = (
            f"scaler is an ampbridge.GradScaler or None, not {type(scaler).__name__}.\n"
            "Hint: LossScaleOptimizer(optimizer, amp.GradScaler(growth_interval=500))"
        )
        raise ArgumentTypeError(msg)
