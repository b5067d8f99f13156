"""A policy and a scaler in a training loop of another library.

Such a loop tells where it runs the model, differentiates a loss, clips and steps; it does not tell
where an iteration ends. So the scale is updated when the next loss is scaled: gradients of several
optimizers that were computed under one scale are also divided by that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor, nn, optim

import ampbridge as amp
from ampbridge.adapters import registry
from ampbridge.adapters.backend import FINITE, Scalar
from ampbridge.adapters.process_setting import check_loop_of_others
from ampbridge.errors import CallOrderError, StateError
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single
from ampbridge.scaling.scaler import scaler_for
from ampbridge.training.decorate import fit_to, for_steps
from ampbridge.training.result import REASONS, Reason
from ampbridge_torch import devices
from ampbridge_torch.autocast.casting import devices_of, region_on
from ampbridge_torch.model.decorating import has_low_slots, update_masters_by
from ampbridge_torch.model.master_updates import updates_of
from ampbridge_torch.model.master_weights import makes_masters

_Loss = TypeVar("_Loss")


class LoopPrecision:
    """What a plugin of a training loop does for its policy, and what it knows of the last step.

    Steps without loss scaling (bfloat16, float32) are checked and skipped too, as in ``train_step``.
    """

    def __init__(
        self, policy: str | Policy, scaler: amp.GradScaler | Literal["auto"] | None
    ) -> None:
        self.policy = single(policy)
        check_loop_of_others(self.policy)
        chosen = scaler_for((self.policy,), scaler)
        self._scaler = amp.GradScaler(1.0, dynamic=False) if chosen is None else chosen
        self._has_masters = makes_masters(self.policy)
        self._backend = registry.backend("torch")
        self._models: WeakSet[nn.Module] = WeakSet()
        self._devices: tuple[devices.DeviceType, ...] | None = None
        self._losses = 0
        self._unscaled: dict[int, int] = {}
        self._has_stepped = False
        self._overflow: Scalar = None
        self._last_applied: Scalar = None
        self._steps = 0
        self._applied_steps: Scalar = 0
        self._applied_by: WeakKeyDictionary[optim.Optimizer, Scalar] = WeakKeyDictionary()

    # -- what the loop's user reads

    @property
    def scaler(self) -> amp.GradScaler:
        """The scaler, updated for all steps so far; without loss scaling one that stays at 1.0."""
        self.end_iteration()
        return self._scaler

    @property
    def loss_scale(self) -> float:
        """The scale of the next loss. Waits for the device.

        Raises:
            OverflowStuckError: if too many steps were skipped in a row.
        """
        return self.scaler.get_scale()

    @property
    def steps(self) -> int:
        """The number of optimizer steps so far, skipped ones included."""
        return self._steps

    @property
    def skipped_steps(self) -> int:
        """The number of steps that were skipped so far. Waits for the device."""
        return self._steps - int(self._applied_steps)

    @property
    def last_step_skipped(self) -> bool:
        """Whether the last step was skipped; False before the first one. Waits for the device."""
        return self._last_applied is not None and not bool(self._last_applied)

    @property
    def reason(self) -> Reason | None:
        """Why the last step was skipped: "inf", or "nan" (NaN without inf); None if it was applied."""
        return REASONS[FINITE if self._overflow is None else int(self._overflow)]

    def metrics(self) -> dict[str, Any]:
        """For a logger: ``loss_scale``, ``skipped_steps``, ``consecutive_skips``, floats or tensors.

        Does not wait for the device.
        """
        state = self.scaler.store.read()
        return {
            "loss_scale": state.scale if self._scaler.enabled else 1.0,
            "skipped_steps": _as_float(self._steps - self._applied_steps),
            "consecutive_skips": _as_float(state.consecutive_skips),
        }

    # -- the model and its optimizers

    def decorate(self, model: nn.Module, *, calls_open_regions: bool = False) -> None:
        """Decorate ``model`` for the policy, in place. At O2 its ``state_dict`` is in float32.

        Args:
            calls_open_regions: also below O2, where the loop opens a region around its steps otherwise.

        Raises:
            As ``ampbridge.decorate``.
        """
        self._devices = None
        self._models.add(model)
        save_dtype = "float32" if self.policy.level == "O2" else None
        wanted = for_steps(self._backend, model, self.policy, save_dtype)
        if calls_open_regions and wanted is not None:
            wanted = wanted._replace(standalone=True)
        fit_to(self._backend, model, None, wanted)

    def adopt(self, optimizer: optim.Optimizer) -> None:
        """Let ``optimizer`` update the masters of a model that is decorated at O2.

        Call it before the optimizer's state is loaded.

        Raises:
            CallOrderError: if slots have been loaded already, which torch has rounded to 16 bits.
            UnsupportedError: for optimizers around other optimizers.
        """
        if not self._has_masters or updates_of(optimizer) is not None:
            return
        if has_low_slots(optimizer):
            raise CallOrderError(
                "The state of this optimizer was loaded ahead of its masters, so that torch has rounded "
                "it to 16 bits.\n"
                "Hint: model, optimizer = fabric.setup(model, optimizer); plugin.adopt(optimizer); "
                "then fabric.load(path, state)"
            )
        update_masters_by(optimizer, self.policy)

    def undecorate(self, *optimizers: optim.Optimizer) -> None:
        """Undo ``decorate`` and ``adopt``; the weights are in float32 then."""
        self.end_iteration()
        for model in list(self._models):
            for optimizer in optimizers or (None,):
                self._backend.undecorate(model, optimizer)
        self._models.clear()

    def undecorated(self, model: nn.Module) -> AbstractContextManager[None]:
        """``model`` undecorated inside of a block, if its parameters have float32 masters."""
        return amp.undecorated(model) if self._has_masters else nullcontext()

    def region(self) -> AbstractContextManager[Any]:
        """Run what is inside under the policy, on the devices of the decorated models."""
        if self._devices is None:
            found = {kind for model in self._models for kind in devices_of(model)}
            self._devices = tuple(sorted(found, key="cpu".__ne__)) or devices.in_use()
        return region_on(self._devices, self.policy)

    # -- an iteration

    def scale(self, loss: _Loss) -> _Loss:
        """The loss to differentiate. Updates the scale for the steps before.

        Raises:
            OverflowStuckError: if too many steps were skipped in a row.
        """
        self.end_iteration()
        self._losses += 1
        return self._scaler.scale(loss)

    def unscale(self, optimizer: optim.Optimizer) -> None:
        """Unscale and check the gradients of ``optimizer``, unless nothing has changed since.

        Raises:
            CallOrderError: if another loss was scaled in between, so that its gradients may have
                been added to unscaled ones; if there are no gradients.
        """
        if self._unscaled.get(id(optimizer)) == self._losses:
            return
        self.adopt(optimizer)
        self._overflow = self._scaler.unscale(optimizer).found
        self._unscaled[id(optimizer)] = self._losses

    def unscale_if_needed(self, optimizer: optim.Optimizer) -> None:
        """``unscale``, unless it was done since the last update, before other losses perhaps."""
        if id(optimizer) not in self._unscaled:
            self.unscale(optimizer)

    def step(self, optimizer: optim.Optimizer) -> Any:
        """Step ``optimizer`` unless its gradients overflowed.

        Returns:
            Whether it was stepped; a tensor where the optimizer's own kernel decides on a GPU.
        """
        self.unscale_if_needed(optimizer)
        applied = self._scaler.step(optimizer)
        self._has_stepped = True
        self._steps += 1
        self._last_applied = applied
        self._applied_steps = self._applied_steps + applied
        self._applied_by[optimizer] = self.applied_by(optimizer) + applied
        return applied

    def applied_by(self, optimizer: optim.Optimizer) -> Any:
        """How many steps of ``optimizer`` were applied."""
        return self._applied_by.get(optimizer, 0)

    def end_iteration(self) -> None:
        """Update the scale for the steps since the last update, if there are any."""
        if self._has_stepped:
            self._has_stepped = False
            self._unscaled.clear()
            self._scaler.update()

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """The state of the scaler and the counts, as plain JSON values. Waits for the device."""
        return {
            "scaler": self.scaler.state_dict(),
            "steps": self.steps,
            "skipped_steps": self.skipped_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of ``state_dict()``, or the state of a scaler alone: ours or torch's.

        Raises:
            StateError: if it is neither, or a value is not allowed; nothing is changed then.
        """
        steps, skipped = (state.get(name, 0) for name in ("steps", "skipped_steps"))
        if not all(type(n) is int and n >= 0 for n in (steps, skipped, steps - skipped)):
            raise StateError(
                f"steps={steps!r}, skipped_steps={skipped!r} are no counts of a training loop.\n"
                "Hint: pass what state_dict() returned."
            )
        self._scaler.load_state_dict(state.get("scaler", state))
        self._has_stepped = False
        self._unscaled.clear()
        self._steps, self._applied_steps = steps, steps - skipped
        self._overflow = self._last_applied = None


def _as_float(count: Any) -> Any:
    return count.float() if isinstance(count, Tensor) else float(count)


class GatedScheduler:
    """A learning-rate scheduler that stands still while its optimizer's steps are skipped.

    All else, reading and writing attributes included, is the scheduler's own.
    """

    def __init__(self, scheduler: Any, loop: LoopPrecision) -> None:
        applied = loop.applied_by(scheduler.optimizer)
        vars(self).update(_scheduler=scheduler, _loop=loop, _applied=applied)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """As the scheduler's own, if a step was applied since the last call."""
        applied = self._loop.applied_by(self._scheduler.optimizer)
        if bool(applied != self._applied):
            vars(self)["_applied"] = applied
            self._scheduler.step(*args, **kwargs)

    @property  # type: ignore[misc] # isinstance looks here
    def __class__(self) -> Any:
        return type(self._scheduler)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_scheduler"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_scheduler"], name, value)
