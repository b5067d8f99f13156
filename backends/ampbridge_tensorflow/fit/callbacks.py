"""Callbacks for ``Model.fit``: skipped steps in its logs, alarms of them, and a schedule of policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from ampbridge.adapters.backend import StepOutput
from ampbridge.errors import ArgumentTypeError, UnsupportedError
from ampbridge.errors.flags import checked_count
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import Schedule
from ampbridge.training.decorate import decorate
from ampbridge.training.result import StepResult
from ampbridge_tensorflow.arguments import check_keras_backend
from ampbridge_tensorflow.fit.loss_scale_optimizer import LossScaleOptimizer
from ampbridge_tensorflow.fit.scaled_fit import wrapped
from ampbridge_tensorflow.fit.updates import scales_by_itself


def _check_that_steps_are_skipped(optimizer: Any, name: str) -> None:
    """Refuse for the callback ``name`` an optimizer that skips no steps."""
    check_keras_backend(name)
    if not isinstance(optimizer, LossScaleOptimizer):
        msg = (
            f"{name} for a {type(optimizer).__name__}, which skips no steps.\n"
            "Hint: model.compile(ampbridge_tensorflow.LossScaleOptimizer(optimizer), loss)"
        )
        raise ArgumentTypeError(msg)


class ScaleLogs(keras.callbacks.Callback):
    """Adds ``loss_scale``, ``skipped_steps`` and ``consecutive_skips`` to the logs of each epoch.

        model.fit(x, y, callbacks=[ScaleLogs(), keras.callbacks.CSVLogger("run.csv")])

    So they are in the history, on the progress bar, and in what the callbacks behind it write: CSV,
    TensorBoard. ``skipped_steps`` are those of the epoch; the other two hold at its end. They are read
    at an epoch's end, where Keras reads its metrics, and nothing waits for the device before.

    With gradients that the inner optimizer accumulates, each batch is a step of the rule.
    """

    def on_train_begin(self, logs: Any = None) -> None:
        """See whether there are skipped steps to count.

        Raises:
            ArgumentTypeError: for an optimizer that skips none.
            UnsupportedError: for data of unknown length in several steps per execution.
        """
        _check_that_steps_are_skipped(self.model.optimizer, "ScaleLogs")
        if self.model.steps_per_execution > 1 and self.params.get("steps") is None:
            msg = (
                f"ScaleLogs with steps_per_execution={self.model.steps_per_execution} cannot count the "
                "batches of data of unknown length.\nHint: model.fit(data, steps_per_epoch=1000)"
            )
            raise UnsupportedError(msg)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._batches = 0
        self._applied_before = self._applied()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # Not at a batch's end: a callback for that makes Keras read its metrics after each of them.
        self._batches = batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is None:
            return
        batches = self._batches if self.model.steps_per_execution == 1 else self.params["steps"]
        state = self.model.optimizer.scaler.state_dict()
        logs["loss_scale"] = state["scale"]
        logs["skipped_steps"] = batches - (self._applied() - self._applied_before)
        logs["consecutive_skips"] = state["consecutive_skips"]

    def _applied(self) -> int:
        return int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))


class SkipWatch(keras.callbacks.Callback):
    """Says while ``fit`` runs what a ``LossScaleOptimizer`` has to say of skipped steps.

        model.fit(x, y, callbacks=[SkipWatch()])

    Without it that is said at the end of ``fit``. It looks every so many batches, ahead of one, and
    waits for the device then; between two looks ``fit`` runs ahead of the device as ever. An alarm comes
    up to ``every`` batches after its step.

    Args:
        every: how many batches from one look to the next.

    Raises:
        ArgumentError: for another number than a whole one from 1.
    """

    def __init__(self, every: int = 25) -> None:
        super().__init__()
        self.every = checked_count("every", every, "SkipWatch(every=25)")
        self._next_look = every

    def on_train_begin(self, logs: Any = None) -> None:
        _check_that_steps_are_skipped(self.model.optimizer, "SkipWatch")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._next_look = self.every

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # Not at a batch's end: a callback for that makes Keras read its metrics after each of them.
        if batch >= self._next_look:
            self._next_look = batch + self.every
            self.model.optimizer.sound_alarms()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.sound_alarms()  # Keras has just read its metrics


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
        """The last step's result, which is read from the device only if the schedule looks at it."""
        tracker, optimizer = self.model.metrics[0], self.model.optimizer
        total, count = tracker.total.value.read_value(), tracker.count.value.read_value()
        loss = (total - self._total) / (count - self._count)  # Keras logs the mean of the epoch
        self._total, self._count = total, count
        applied: Any = True
        if isinstance(optimizer, LossScaleOptimizer) and optimizer.active:
            applied = optimizer.scaler.store.read().consecutive_skips == 0
        return StepResult(StepOutput(loss, None, applied=applied), 0)
