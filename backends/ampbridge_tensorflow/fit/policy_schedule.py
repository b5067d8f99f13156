"""A schedule of policies in ``Model.fit``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from ampbridge.adapters.backend import StepOutput
from ampbridge.errors import ArgumentTypeError, UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import Schedule
from ampbridge.training.decorate import decorate
from ampbridge.training.result import StepResult
from ampbridge_tensorflow.arguments import check_keras_backend
from ampbridge_tensorflow.autocast.keras_fit import scales_by_itself
from ampbridge_tensorflow.fit.loss_scale_optimizer import LossScaleOptimizer
from ampbridge_tensorflow.fit.scaled_fit import wrapped


class PolicySchedule(keras.callbacks.Callback):
    """Decorates the model that is being fitted for the policy of each step.

        schedule = amp.Schedule([(0, "O0"), (200, "O1"), (1000, "O2:bfloat16")])
        model.fit(x, y, callbacks=[PolicySchedule(schedule)])

    A batch is a step. There is one trace for each policy. Where the schedule needs a loss scale, and the
    model was compiled with an optimizer that has none, it becomes a ``LossScaleOptimizer``. After ``fit`` the
    model stays decorated for the next step, and another ``fit`` goes on from there;
    ``amp.undecorate(model)`` takes it back.

    Args:
        schedule: an ``ampbridge.Schedule``.
        state: ``state`` of an earlier one, to go on from; it is plain JSON values.
    """

    def __init__(self, schedule: Schedule, state: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        if not isinstance(schedule, Schedule):
            msg = (
                f"PolicySchedule takes an ampbridge.Schedule, not {schedule!r}.\n"
                "Hint: PolicySchedule(amp.Schedule([(0, 'O0'), (200, 'O1')])); a single policy needs "
                "none: amp.decorate(model, policy='O1')"
            )
            raise ArgumentTypeError(msg)
        self.schedule = schedule
        self.state = dict(schedule.start() if state is None else state)
        self._decorated: Policy | None = None
        self._total: Any = 0.0
        self._count: Any = 0.0

    @property
    def policy(self) -> Policy:
        """The policy of the next step."""
        return self.schedule.policy(self.state)

    def on_train_begin(self, logs: Any = None) -> None:
        check_keras_backend("PolicySchedule")
        if self.model.steps_per_execution != 1:
            msg = (
                f"PolicySchedule with steps_per_execution={self.model.steps_per_execution}: Keras calls "
                "back only after that many steps.\nHint: model.compile(..., steps_per_execution=1)"
            )
            raise UnsupportedError(msg)
        needs_scaling = any(policy.needs_scaling for policy in self.schedule.policies)
        if needs_scaling and not scales_by_itself(self.model.optimizer):
            self.model.optimizer = wrapped(self.model.optimizer)  # here: one scale for all policies
        self.model.make_train_function(force=True)  # no trace from before knows of ``active``
        self._fit_model()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._total = self._count = 0.0  # Keras has just reset its metrics

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state = self.schedule.next_state(self.state, self._result())
        self._fit_model()

    def on_train_end(self, logs: Any = None) -> None:
        self.model.train_function = None
        if isinstance(self.model.optimizer, LossScaleOptimizer):
            self.model.optimizer.active = True

    def _fit_model(self) -> None:
        """Decorate for the next step, and scale its loss only if the policy needs it."""
        policy = self.policy
        if policy != self._decorated:
            decorate(self.model, policy=policy)
            self._decorated = policy
        if isinstance(self.model.optimizer, LossScaleOptimizer):
            self.model.optimizer.active = policy.needs_scaling

    def _result(self) -> StepResult:
        """What the last step did; read from the device only where the schedule looks."""
        tracker, optimizer = self.model.metrics[0], self.model.optimizer
        total, count = tracker.total.value.read_value(), tracker.count.value.read_value()
        loss = (total - self._total) / (count - self._count)  # Keras logs the mean of the epoch
        self._total, self._count = total, count
        applied: Any = True
        if isinstance(optimizer, LossScaleOptimizer) and optimizer.active:
            applied = optimizer.scaler.store.read().consecutive_skips == 0
        return StepResult(StepOutput(loss, None, applied=applied), 0)
