"""Alarms of skipped steps while ``Model.fit`` runs."""

from __future__ import annotations

from typing import Any

import keras

from ampbridge.errors import ArgumentTypeError
from ampbridge.errors.flags import checked_count
from ampbridge_tensorflow.arguments import check_keras_backend
from ampbridge_tensorflow.fit.loss_scale_optimizer import LossScaleOptimizer


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
        check_keras_backend("SkipWatch")
        if not isinstance(self.model.optimizer, LossScaleOptimizer):
            msg = (
                f"SkipWatch for a {type(self.model.optimizer).__name__}, which skips no steps.\n"
                "Hint: model.compile(ampbridge_tensorflow.LossScaleOptimizer(optimizer), loss)"
            )
            raise ArgumentTypeError(msg)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._next_look = self.every

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # Not at a batch's end: a callback for that makes Keras read its metrics after each of them.
        if batch >= self._next_look:
            self._next_look = batch + self.every
            self.model.optimizer.sound_alarms()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.sound_alarms()  # Keras has just read its metrics
