"""Lightning's ``Trainer`` and ``Fabric`` under ampbridge's policies, op lists and scaler.

    from ampbridge_torch.lightning import AmpBridge

    trainer = L.Trainer(plugins=[AmpBridge("O1")])
    fabric = L.Fabric(plugins=[AmpBridge("O2:bfloat16")])

For the package ``lightning``; for ``pytorch_lightning`` if that is imported and ``lightning`` is not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Literal

from torch import Tensor, nn, optim

import ampbridge as amp
from ampbridge.errors import ArgumentTypeError, UnsupportedError
from ampbridge_torch._private import after_closure
from ampbridge_torch.fit.loop_precision import GatedScheduler, LoopPrecision
from ampbridge_torch.model.decorating import unwrapped

__all__ = ["AmpBridge", "ScaleLogs"]

_ROOTS = (("lightning.pytorch", "lightning.fabric"), ("pytorch_lightning", "lightning_fabric"))
_TRAINER, _FABRIC = next((names for names in _ROOTS if names[0] in sys.modules), _ROOTS[0])

_TrainerPrecision: Any = import_module(f"{_TRAINER}.plugins.precision").Precision
_FabricPrecision: Any = import_module(f"{_FABRIC}.plugins.precision").Precision
_LightningOptimizer: Any = import_module(f"{_TRAINER}.core.optimizer").LightningOptimizer
_is_wrapped: Any = import_module(f"{_FABRIC}.wrappers").is_wrapped
_Callback: Any = import_module(f"{_TRAINER}.callbacks").Callback


class AmpBridge(LoopPrecision, _TrainerPrecision):
    """A precision plugin: ``Trainer(plugins=[AmpBridge("O1")])``, ``Fabric(plugins=[...])``.

    The model is decorated while the Trainer works with it, and all of a ``training_step`` runs under
    the policy; in Fabric, calls of the model and what is inside of ``fabric.autocast()`` do.
    Gradients are unscaled before ``on_before_optimizer_step`` and before they are clipped, whatever
    the optimizer, fused ones included, and whether optimization is automatic or manual. A step whose
    gradients overflowed is skipped. Schedulers that the Trainer steps move only if a step was applied
    since their last move. ``optimizer.step()`` returns whether it stepped, for those that you step:

        if optimizer.step():
            scheduler.step()

    Several optimizers share the scaler. The scale is updated when the next loss is scaled, so losses
    that were differentiated together are unscaled by one scale. (Optimizers that accumulate over
    different batches see the scale change between their batches, as with Lightning's own.)

    A Trainer's checkpoint contains the scaler's state, and at O2 float32 weights and the optimizer's
    masters: a resumed run continues with the same bits. The checkpoint of a run with
    ``precision="16-mixed"`` is continued with its scale. With Fabric, save ``plugin.state_dict()``.

    Args:
        policy: a Policy or its short form. At O2 the model is decorated before its optimizers are
            configured.
        scaler: a GradScaler; "auto" makes one if the policy needs it; None for none.

    Raises:
        ArgumentTypeError, UnsupportedError: as ``train_step``; for a Schedule.
    """

    def __init__(
        self,
        policy: str | amp.Policy = "O1",
        *,
        scaler: amp.GradScaler | Literal["auto"] | None = "auto",
    ) -> None:
        super().__init__(policy, scaler)
        self._trains_in_trainer = False
        self._optimizers: list[optim.Optimizer] = []

    # -- the model and its optimizers

    def adopt(self, optimizer: optim.Optimizer) -> None:
        """Let ``optimizer`` update the float32 masters of a model at O2. A Trainer does so by itself.

        With Fabric the first step does; before that, call this ahead of ``fabric.load``:

            model, optimizer = fabric.setup(model, optimizer)
            plugin.adopt(optimizer)
            fabric.load(path, {"model": model, "optimizer": optimizer})

        Raises:
            CallOrderError: if a state has been loaded already, which torch has rounded to 16 bits.
            UnsupportedError: for optimizers around other optimizers.
        """
        super().adopt(_unwrapped(optimizer))

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Decorate the model, before it is moved and wrapped."""
        self.decorate(module)
        return module

    def connect(self, model: Any, optimizers: list[Any], lr_schedulers: list[Any]) -> Any:
        """Called by the Trainer once it has configured the optimizers."""
        self._trains_in_trainer = True
        self._optimizers = optimizers
        for optimizer in optimizers:
            self.adopt(optimizer)
        if lr_schedulers and unwrapped(model).automatic_optimization:  # else the user steps them
            for config in lr_schedulers:
                config.scheduler = GatedScheduler(config.scheduler, self)
        return model, optimizers, lr_schedulers

    def teardown(self) -> None:
        """At the end of ``fit``, also by an exception, the model is undecorated."""
        self.undecorate(*self._optimizers)
        self._optimizers = []

    def forward_context(self) -> AbstractContextManager[Any]:
        """The region of the policy."""
        return self.region()

    # -- backward

    def pre_backward(self, tensor: Tensor, module: Any) -> Any:
        """Scale the loss, in a Trainer; Fabric ignores what this returns."""
        if not self._trains_in_trainer:
            return None
        return super().pre_backward(self.scale(tensor), module)

    def backward(self, tensor: Tensor, model: Any, *args: Any, **kwargs: Any) -> None:
        """The Trainer passes its optimizer too."""
        if self._trains_in_trainer:
            super().backward(tensor, model, *args, **kwargs)
        else:
            _FabricPrecision.backward(self, self.scale(tensor), model, *args, **kwargs)

    def post_backward(self, tensor: Tensor, module: Any) -> Any:
        return super().post_backward(tensor, module) if self._trains_in_trainer else None

    # -- clip and step

    def unscale_gradients(self, optimizer: optim.Optimizer) -> None:
        """Called by ``fabric.clip_gradients``."""
        self.unscale(optimizer)

    def clip_gradients(
        self, optimizer: Any, clip_val: float = 0.0, *args: Any, **kwargs: Any
    ) -> None:
        """Clip unscaled gradients, in manual optimization too (Lightning#18089)."""
        if clip_val > 0:
            self.unscale(_unwrapped(optimizer))
        super().clip_gradients(optimizer, clip_val, *args, **kwargs)

    def optimizer_step(
        self,
        optimizer: optim.Optimizer,
        model: Any = None,
        closure: Callable[[], Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the closure, unscale, clip, then step or skip; whether it stepped.

        None where ``training_step`` returned None, so that there is nothing to step with.
        """
        _check_arguments(optimizer, kwargs)
        output = None if closure is None else closure()
        if model is not None:
            if output is None and model.automatic_optimization:
                return None
            self.unscale_if_needed(optimizer)
            after_closure(self, model, optimizer)
        return self.step(optimizer)

    # -- checkpoints

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Continue a run of Lightning's own ``MixedPrecision`` with its scale."""
        theirs = checkpoint.get("MixedPrecision")
        if theirs and type(self).__qualname__ not in checkpoint:
            self.load_state_dict(theirs)


def _unwrapped(optimizer: Any) -> optim.Optimizer:
    """The user's optimizer in what ``self.optimizers()`` or ``fabric.setup`` returned."""
    is_wrapper = isinstance(optimizer, _LightningOptimizer) or _is_wrapped(optimizer)
    inner: optim.Optimizer = optimizer.optimizer if is_wrapper else optimizer
    return inner


def _check_arguments(optimizer: optim.Optimizer, kwargs: Mapping[str, Any]) -> None:
    if isinstance(optimizer, optim.LBFGS):
        raise UnsupportedError(
            "LBFGS evaluates the loss several times in a step; AmpBridge checks its gradients once.\n"
            "Hint: optim.AdamW(self.parameters())"
        )
    if kwargs:
        raise UnsupportedError(
            f"optimizer.step() with {', '.join(kwargs)}: a step that may be skipped takes a closure "
            "alone.\nHint: optimizer.step(closure)"
        )


class ScaleLogs(_Callback):
    """Logs ``loss_scale``, ``skipped_steps`` and ``consecutive_skips`` of an ``AmpBridge``.

        trainer = L.Trainer(plugins=[AmpBridge("O1")], callbacks=[ScaleLogs()])

    They are in ``trainer.callback_metrics`` and in the loggers, after each batch: the scale of the next
    loss, and the numbers of steps skipped so far and in a row. Does not wait for the device.

    Args:
        prog_bar: whether the progress bar shows them, which waits for the device.
    """

    def __init__(self, *, prog_bar: bool = False) -> None:
        self._prog_bar = prog_bar

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Look for the plugin.

        Raises:
            ArgumentTypeError: for a Trainer without it.
        """
        if not isinstance(trainer.precision_plugin, AmpBridge):
            raise ArgumentTypeError(
                f"ScaleLogs for a Trainer with {type(trainer.precision_plugin).__name__}.\n"
                "Hint: Trainer(plugins=[AmpBridge('O1')], callbacks=[ScaleLogs()])"
            )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        """Log what this batch's step did."""
        metrics = trainer.precision_plugin.metrics()
        pl_module.log_dict(metrics, on_step=True, on_epoch=False, prog_bar=self._prog_bar)
