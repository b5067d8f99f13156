"""The loss scale and the skipped steps in the logs of ``paddle.Model.fit``."""

from __future__ import annotations

from typing import Any

import paddle

from ampbridge.errors import ArgumentTypeError
from ampbridge.scaling.scaler import GradScaler
from ampbridge_paddle._private import method

_NAMES = ("loss_scale", "skipped_steps", "consecutive_skips")


class ScaleLogs(paddle.callbacks.Callback):
    """Adds ``loss_scale``, ``skipped_steps`` and ``consecutive_skips`` to the logs of each batch.

        ampbridge_paddle.prepare(model, optimizer, loss, policy="O1")
        model.fit(data, callbacks=[ScaleLogs(), paddle.callbacks.VisualDL("logs")])

    So they are on the progress bar, and in what the callbacks behind it write. ``skipped_steps`` are
    those of this ``fit``. Does not wait for the device: Paddle's host knows whether a step was skipped.
    """

    def set_params(self, params: dict[str, Any]) -> None:
        """Let the callbacks that show the model's metrics show these as well: they share the list."""
        super().set_params(params)
        shown = params.get("metrics")
        if shown:
            shown.extend(name for name in _NAMES if name not in shown)

    def on_train_begin(self, logs: Any = None) -> None:
        """See whether there are skipped steps to count.

        Raises:
            ArgumentTypeError: for a model without a scaler.
        """
        scaler = method("Model", self.model, "_scaler")
        if not isinstance(scaler, GradScaler):
            raise ArgumentTypeError(
                "ScaleLogs for a paddle.Model without an ampbridge.GradScaler, which skips no steps.\n"
                "Hint: ampbridge_paddle.prepare(model, optimizer, loss, policy='O1')"
            )
        self._scaler, self._skipped = scaler, 0
        self._in_a_row = scaler.state_dict()["consecutive_skips"]

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        state = self._scaler.state_dict()
        in_a_row = state["consecutive_skips"]
        self._skipped += max(0, in_a_row - self._in_a_row)  # batches that accumulate change nothing
        self._in_a_row = in_a_row
        if logs is not None:
            logs.update(zip(_NAMES, (state["scale"], self._skipped, in_a_row), strict=True))
