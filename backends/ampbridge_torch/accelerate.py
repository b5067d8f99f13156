"""Hugging Face's Accelerate under ampbridge's policies, op lists and scaler.

from ampbridge_torch.accelerate import Accelerator

accelerator = Accelerator("O1", gradient_accumulation_steps=4)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import accelerate
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn, optim

import ampbridge as amp
from ampbridge.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from ampbridge_torch.autocast.casting import region
from ampbridge_torch.fit.loop_precision import LoopPrecision
from ampbridge_torch.model.decorating import unwrapped
from ampbridge_torch.model.master_updates import held_parameters

__all__ = ["Accelerator"]

_ENGINES = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU")


class Accelerator(accelerate.Accelerator):
    """``accelerate.Accelerator`` under a policy.

    Prepared models open a region of the policy in each call, as Accelerate's own do; what is inside of
    ``accelerator.autocast()`` runs under it too. ``clip_grad_norm_`` and ``clip_grad_value_`` clip
    unscaled gradients, of fused optimizers too. A step whose gradients overflowed is skipped:
    ``optimizer_step_was_skipped`` tells it for each optimizer, and prepared schedulers stand still.
    Several optimizers share the scaler, whose scale is updated when the next loss is scaled.

    ``save_state`` and ``load_state`` contain the scaler's state, and at O2 float32 weights and the
    optimizers' masters: a resumed run continues with the same bits. ``end_training`` undecorates the
    models.

    ``accelerator.scaler`` reports: ``skipped_steps``, ``last_step_skipped``, ``reason``,
    ``loss_scale``, and ``metrics()`` for ``accelerator.log``, which does not wait for the device.

    Args:
        policy: a Policy or its short form.
        scaler: a GradScaler; "auto" makes one if the policy needs it; None for none.
        kwargs: for ``accelerate.Accelerator``.

    Raises:
        ArgumentError: for Accelerate's own mixed precision beside the policy.
        UnsupportedError: for FSDP, DeepSpeed, Megatron-LM and XLA.
    """

    def __init__(
        self,
        policy: str | amp.Policy = "O1",
        *,
        scaler: amp.GradScaler | Literal["auto"] | None = "auto",
        **kwargs: Any,
    ) -> None:
        if kwargs.get("mixed_precision", "no") != "no":
            raise ArgumentError(
                f"Passed mixed_precision={kwargs['mixed_precision']!r} beside policy={policy!r}.\n"
                f"Hint: Accelerator({policy!r})"
            )
        super().__init__(**{**kwargs, "mixed_precision": "no"})
        _check(self, policy)
        self.scaler: LoopPrecision = LoopPrecision(policy, scaler)

    @classmethod
    def convert(
        cls,
        accelerator: Any,
        policy: str | amp.Policy = "O1",
        scaler: amp.GradScaler | Literal["auto"] | None = "auto",
    ) -> None:
        """Let an ``accelerate.Accelerator`` that has prepared nothing yet be one of these, in place.

        Raises:
            ArgumentTypeError: for another class, also one derived from Accelerate's.
            ArgumentError, UnsupportedError: as for a new one. Nothing is changed then.
        """
        if type(accelerator) is not accelerate.Accelerator:
            raise ArgumentTypeError(
                f"An accelerate.Accelerator is needed, not {type(accelerator).__qualname__}.\n"
                "Hint: ampbridge_torch.accelerate.Accelerator(policy)"
            )
        _check(accelerator, policy)
        accelerator.scaler = LoopPrecision(policy, scaler)
        accelerator.__class__ = cls

    @contextmanager
    def autocast(self, autocast_handler: Any = None) -> Iterator[None]:
        """A region of the policy; of float32 with ``AutocastKwargs(enabled=False)``."""
        disabled = autocast_handler is not None and not autocast_handler.enabled
        with region(amp.Policy("O0")) if disabled else self.scaler.region():
            yield

    def prepare_model(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Decorate the model, then as Accelerate's own."""
        self.scaler.decorate(unwrapped(model), calls_open_regions=True)
        return super().prepare_model(model, *args, **kwargs)

    def prepare_optimizer(
        self, optimizer: optim.Optimizer, device_placement: bool | None = None
    ) -> Any:
        """As Accelerate's own; the result steps or skips by ampbridge's check."""
        if getattr(optimizer, "_is_accelerate_prepared", False):
            return super().prepare_optimizer(optimizer, device_placement)
        self.scaler.adopt(optimizer)
        placed = self.device_placement if device_placement is None else device_placement
        prepared = _PolicyOptimizer(optimizer, placed, self.scaler)
        self._optimizers.append(prepared)
        return prepared

    def unscale_gradients(
        self, optimizer: optim.Optimizer | Sequence[optim.Optimizer] | None = None
    ) -> None:
        """Unscale the gradients of these optimizers, by default of all that have some."""
        if optimizer is None:
            chosen = [
                each
                for each in self._optimizers
                if any(p.grad is not None for p in held_parameters(each))
            ]
        else:
            chosen = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        for each in chosen:
            self.scaler.unscale(_inner(each))

    def end_training(self) -> None:
        """As Accelerate's own; besides, the models are undecorated: their weights are float32."""
        super().end_training()
        self.scaler.undecorate(*map(_inner, self._optimizers))


def _check(accelerator: Any, policy: str | amp.Policy) -> None:
    """Refuse what would be ignored, and the engines whose steps nobody has checked here."""
    precision = accelerator.mixed_precision
    if precision != "no" or accelerator.scaler_handler or accelerator.autocast_handler:
        raise ArgumentError(
            f"Accelerate's own mixed precision ({precision!r}, GradScalerKwargs or AutocastKwargs) "
            f"beside policy={policy!r}.\n"
            "Hint: mixed_precision='no' and no such kwargs; Accelerator(policy, "
            "scaler=amp.GradScaler(init_scale=1024))"
        )
    engine = accelerator.distributed_type.name
    if engine not in _ENGINES:
        raise UnsupportedError(
            f"Accelerate with {engine}, under which ampbridge's scaler was never run.\n"
            "Hint: DistributedDataParallel; or fully_shard(model), then amp.train_step"
        )


class _PolicyOptimizer(AcceleratedOptimizer):
    """Asks the check of the gradients whether a step was skipped, and not whether ``step`` was called.

    A fused optimizer on a GPU is called in either case: its kernel skips (accelerate#4242).
    """

    def __init__(self, optimizer: Any, device_placement: bool, loop: LoopPrecision) -> None:
        super().__init__(optimizer, device_placement)
        self._loop, self._applied = loop, True

    def step(self, closure: Any = None) -> None:
        if not self.gradient_state.sync_gradients:
            return
        if closure is not None:
            raise UnsupportedError(
                "optimizer.step(closure): a step that may be skipped needs its gradients before.\n"
                "Hint: accelerator.backward(loss); optimizer.step()"
            )
        self._applied = self._loop.step(self.optimizer)

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last step was skipped. Waits for the device if its kernel decides."""
        return not bool(self._applied)


def _inner(optimizer: Any) -> optim.Optimizer:
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    inner: optim.Optimizer = optimizer
    return inner
