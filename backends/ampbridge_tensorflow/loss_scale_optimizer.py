"""``Model.fit`` with ampbridge's loss scaling: what Keras expects of it, and our rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from ampbridge import registry
from ampbridge.backend import FINITE, INF, NAN, Array, Scalar
from ampbridge.errors import ArgumentTypeError, CallOrderError, UnsupportedError
from ampbridge.scale_rule import ScalerConfig, ScaleState
from ampbridge.scaler import GradScaler
from ampbridge.skip_alarm import SkipAlarm, SkippedRun
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.native_values import values_of
from ampbridge_tensorflow.scaling import VariableStore, divided, outside_of_regions


@keras.saving.register_keras_serializable("ampbridge")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):  # type: ignore[misc]
    """A Keras optimizer whose loss is scaled by the rule of an ``ampbridge.GradScaler``.

        scaler = amp.GradScaler(growth_interval=500)
        optimizer = LossScaleOptimizer(keras.optimizers.Adam(1e-3), scaler)
        amp.decorate(model, policy="O1")
        model.compile(optimizer, loss="mse")
        model.fit(x, y)

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

    Raises:
        ArgumentTypeError: for other objects than these.
        CallOrderError: for a scaler whose state lives elsewhere already.
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        scaler: GradScaler | None = None,
        name: str | None = None,
        **keras_arguments: Any,
    ) -> None:
        _private.check(_private.FINITE_BRANCH, _private.OVERFLOW_BRANCH)
        scaler = GradScaler() if scaler is None else scaler
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
        self._alarm = SkipAlarm()
        self._traced_with: ScalerConfig | None = None
        self._found: Scalar = None  # while a step is being applied
        self.active = True
        """Whether steps that are traced now are scaled at all; see ``PolicySchedule``."""
        scaler.bind(registry.backend("tensorflow"), self)
        if not (isinstance(scaler.store, OptimizersStore) and scaler.store.optimizer is self):
            raise CallOrderError(_BOUND)

    def scale_store(self, state: ScaleState) -> OptimizersStore:
        """A place for the scaler's state among this optimizer's variables; see ``Backend``."""
        self.dynamic_scale = self._scalar("dynamic_scale", "float32", state.scale)
        self.step_counter = self._scalar("step_counter", "int32", state.good)
        self.bad_steps = self._scalar("bad_steps", "int32", state.bad)
        self.consecutive_skips = self._scalar("consecutive_skips", "int32", state.consecutive_skips)
        # Of the last run of skipped steps; they mean nothing while there are no consecutive skips.
        self.nans_in_a_row = self._scalar("nans_in_a_row", "int32", 0)
        self.skips_at_minimum = self._scalar("skips_at_minimum", "int32", 0)
        return OptimizersStore(self)

    def _scalar(self, name: str, dtype: str, value: Scalar) -> keras.Variable:
        """A variable that checkpoints and saved models hold."""
        initial = keras.initializers.Constant(float(value))
        return self.add_variable(shape=(), initializer=initial, dtype=dtype, name=name)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Build the inner optimizer; the variables for the scale are there since ``__init__``."""
        self.inner_optimizer.build(variables)
        super(keras.optimizers.LossScaleOptimizer, self).build(variables)

    @property
    def iterations(self) -> keras.Variable:
        """The inner optimizer's, which skipped steps leave as they are."""
        return self.inner_optimizer.iterations

    def scale_loss(self, loss: Array) -> Array:
        """``loss`` in float32, since 65536 is infinite in float16, times the scale."""
        if not self._scales():
            return loss
        return _times(loss, self.dynamic_scale.value)

    def _scales(self) -> bool:
        return self.scaler.enabled and self.active

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
        infinite = tf.cond(finite, lambda: tf.constant(False), lambda: _has_inf(values))
        replica = tf.distribute.get_replica_context()
        if replica is not None and replica.num_replicas_in_sync > 1:
            flags = tf.cast(tf.stack([finite, infinite]), tf.int32)
            counts = replica.all_reduce(tf.distribute.ReduceOp.SUM, flags)
            finite, infinite = counts[0] == replica.num_replicas_in_sync, counts[1] > 0
        self._found = tf.where(finite, FINITE, tf.where(infinite, INF, NAN))
        return finite

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
        self._adapt(FINITE)

    def _stateful_handle_non_finite_grads(self) -> None:
        self._count_skip()
        self._adapt(self._found)

    def _count_skip(self) -> None:
        """For the alarms: NaN in a row, and overflows that should have lowered a scale at its minimum."""
        before, config = self.scaler.store.read(), self.scaler.config
        goes_on = before.consecutive_skips > 0
        nans = tf.where(goes_on, self.nans_in_a_row.value, 0) + 1
        self.nans_in_a_row.assign(tf.where(self._found == NAN, nans, 0))
        due = before.bad + 1 >= config.backoff_interval
        stuck = (before.scale == config.min_scale) & due & config.dynamic
        before_it = tf.where(goes_on, self.skips_at_minimum.value, 0)
        self.skips_at_minimum.assign(before_it + tf.cast(stuck, tf.int32))

    def _adapt(self, found: Scalar) -> None:
        self.scaler.store.update(found, self.scaler.config)

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
            raise CallOrderError(_TRACED)
        state = self.scaler.store.read()
        skips, scale = int(state.consecutive_skips), float(state.scale)
        counted = (self.nans_in_a_row, self.skips_at_minimum)
        nans, at_minimum = (int(tf.convert_to_tensor(v.value)) if skips else 0 for v in counted)
        self._alarm.look(SkippedRun(skips, nans, at_minimum, scale), self.scaler.config)

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
        return {**config, "scaler": self.scaler.state_dict()}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> LossScaleOptimizer:
        """The optimizer that ``get_config`` described."""
        scaler = GradScaler()
        scaler.load_state_dict(config["scaler"])
        return super().from_config({**config, "scaler": scaler}, custom_objects)


class OptimizersStore(VariableStore):
    """The scaler's state in the variables of a ``LossScaleOptimizer``."""

    def __init__(self, optimizer: LossScaleOptimizer) -> None:
        self.optimizer = optimizer

    def read(self) -> ScaleState:
        """The state as tensors."""
        return ScaleState(*(tf.convert_to_tensor(v.value) for v in self._variables()))

    def write(self, state: ScaleState) -> None:
        """Set the variables, from Python numbers or tensors."""
        for variable, value in zip(self._variables(), state, strict=True):
            variable.assign(value)

    def _variables(self) -> tuple[keras.Variable, ...]:
        own = self.optimizer
        return own.dynamic_scale, own.step_counter, own.bad_steps, own.consecutive_skips


def _has_inf(values: Sequence[Array]) -> Array:
    return tf.reduce_any(tf.stack([tf.reduce_any(tf.math.is_inf(v)) for v in values]))


@outside_of_regions
def _times(loss: Array, scale: Array) -> Array:
    return tf.cast(loss, tf.float32) * scale


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


_TRACED = (
    "The scaler's settings have changed since Keras traced the training step, which goes on with those "
    "before.\nHint: scaler.load_state_dict(state); model.make_train_function(force=True)"
)

_BOUND = (
    "The state of this GradScaler lives elsewhere: with another optimizer, or in a train_step.\n"
    "Hint: scaler = amp.GradScaler(); scaler.load_state_dict(the_other.state_dict())"
)
