"""Hugging Face's ``Trainer`` under ampbridge's policies, op lists and scaler.

    from ampbridge_torch.transformers import Trainer

    trainer = Trainer(model, args, policy="O1", train_dataset=dataset)

For a trainer that derives from it, such as TRL's: ``class Mine(AmpBridge, SFTTrainer): ...``.
"""

from __future__ import annotations

from typing import Any, Literal

import transformers

import ampbridge as amp
from ampbridge_torch.accelerate import Accelerator

__all__ = ["AmpBridge", "Trainer"]


class AmpBridge:
    """For subclasses of ``transformers.Trainer``: its Accelerator becomes ampbridge's.

    The policy takes the place of ``TrainingArguments(fp16=..., bf16=...)``. Skipped steps do not move
    the learning rate. Logs contain ``loss_scale``, that of the next loss, and the numbers of steps
    skipped so far and in a row, ``skipped_steps`` and ``consecutive_skips``. Checkpoints contain the
    scaler's state, and at O2 float32 weights: a resumed run continues with the same bits.

    Args:
        policy: a Policy or its short form.
        scaler: a GradScaler; "auto" makes one if the policy needs it; None for none.

    Raises:
        ArgumentError, UnsupportedError: as ``ampbridge_torch.accelerate.Accelerator``.
    """

    accelerator: Accelerator
    model: Any

    def __init__(
        self,
        *args: Any,
        policy: str | amp.Policy = "O1",
        scaler: amp.GradScaler | Literal["auto"] | None = "auto",
        **kwargs: Any,
    ) -> None:
        self._policy, self._scaler = policy, scaler
        super().__init__(*args, **kwargs)

    def create_accelerator_and_postprocess(self) -> None:
        """Called by ``Trainer.__init__``."""
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        Accelerator.convert(self.accelerator, self._policy, self._scaler)

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate under the policy; also what is no call of the model, such as ``generate``."""
        with self.accelerator.autocast():
            return super().prediction_step(*args, **kwargs)  # type: ignore[misc]

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save float32 weights, and a configuration that says so, at O2 too."""
        with self.accelerator.scaler.undecorated(self.model):
            super().save_model(*args, **kwargs)  # type: ignore[misc]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the loss scale and the skipped steps too. Waits for the device."""
        metrics = {name: float(value) for name, value in self.accelerator.scaler.metrics().items()}
        super().log({**logs, **metrics}, *args, **kwargs)  # type: ignore[misc]


class Trainer(AmpBridge, transformers.Trainer):
    """``transformers.Trainer`` with the arguments ``policy`` and ``scaler`` of ``AmpBridge``."""
