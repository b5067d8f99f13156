"""The loss scale and the skipped steps in the logs of ``Model.fit``."""

from __future__ import annotations

from typing import Any

import keras

from ampbridge.errors import ArgumentTypeError, UnsupportedError
from ampbridge_tensorflow.arguments import check_keras_backend
from ampbridge_tensorflow.fit.loss_scale_optimizer import LossScaleOptimizer


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
        check_keras_backend("ScaleLogs")
        if not isinstance(self.model.optimizer, LossScaleOptimizer):
            msg = (
                f"ScaleLogs for a {type(self.model.optimizer).__name__}, which skips no steps.\n"
                "Hint: model.compile(ampbridge_tensorflow.LossScaleOptimizer(optimizer), loss)"
            )
            raise ArgumentTypeError(msg)
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
