"""What is seen of a rehearsal: kernels, waits and optimizer steps, as they happen.

from the end of a step to the end of the next (a window):
    each kernel:  its op and dtype; forward, backward or optimizer
    each wait:    what waited, and the line of the script
at the end of a step:
    the optimizer, the loss scale, applied or skipped, how many gradients are inf or NaN
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ampbridge_rehearse import virtual_cuda
from ampbridge_rehearse.lines import Line, frames_of_others, running_line
from ampbridge_torch import _private

FORWARD, BACKWARD, OPTIMIZER = PHASES = ("forward", "backward", "optimizer")

LOW = ("float16", "bfloat16")
MIXED, CAST, OTHER = "16 bits and float32", "casts", "other dtypes"
DTYPES = (*LOW, "float32", MIXED, CAST, OTHER)

# As c10 calls them.
_FLOATING = {"Half": "float16", "BFloat16": "bfloat16", "Float": "float32"}

PRODUCTS = frozenset(
    {
        *("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm"),
        *("aten::mv", "aten::addmv", "aten::dot", "aten::vdot", "aten::_addmm_activation"),
        *("aten::convolution", "aten::convolution_backward", "aten::_grouped_mm"),
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_efficient_attention_backward",
    }
)


class Kernel(NamedTuple):
    """A kind of kernel call: its op, one of ``DTYPES``, one of ``PHASES``."""

    op: str
    dtype: str
    phase: str


class Wait(NamedTuple):
    """A place where the host waits: ``"read"``, ``"write"`` or ``"synchronize"``, and its line."""

    kind: str
    line: Line


class Product(NamedTuple):
    """A matrix product or convolution in float32, and the line of the script."""

    op: str
    phase: str
    line: Line


@dataclass
class Window:
    """What happened from the end of a step to the end of the next."""

    kernels: Counter[Kernel] = field(default_factory=Counter)
    waits: Counter[Wait] = field(default_factory=Counter)
    products: Counter[Product] = field(default_factory=Counter)


@dataclass(frozen=True)
class Step:
    """A call of an optimizer's ``step``, or one that a scaler left out.

    Attributes:
        optimizer: its name in the script, or its class.
        scale: the loss scale that the gradients had; None without a scaler.
        applied: False if a scaler skipped it.
        bad: how many of its gradients hold inf or NaN.
        gradients: how many it has.
        window: what happened since the step before.
    """

    optimizer: str
    scale: float | None
    applied: bool
    bad: int
    gradients: int
    window: Window


class EnoughSteps(SystemExit):
    """Raised in the script, at the end of its last step: nothing that it catches as an error."""


class Watch:
    """Sees what a script does with the device.

    Args:
        folder: that of the script; lines are told relative to it.
        limit: how many optimizer steps it may take.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self.steps: list[Step] = []
        self.window = Window()  # since the last step
        self.scale: float | None = None  # after the last update
        self._folder = folder
        self._limit = limit
        self._lock = threading.RLock()
        self._own = threading.local()
        self._optimizing = False
        self._scaled: tuple[Any, bool | None] | None = None  # a scaler's optimizer, and what it did
        self._names: dict[int, str] = {}
        self._named: list[Any] = []  # alive, so that none takes another's identity

    # -- what the device tells

    def call(self, op: str, dtypes: str, asked: str) -> None:
        """A kernel is about to run."""
        if self._is_own():
            return
        dtype = _dtype(op, dtypes, asked)
        phase = self._phase()
        with self._lock:
            self.window.kernels[Kernel(op.removeprefix("aten::"), dtype, phase)] += 1
            if dtype == "float32" and op in PRODUCTS:
                line = running_line(self._folder)
                self.window.products[Product(op.removeprefix("aten::"), phase, line)] += 1

    def wait(self, kind: str, op: str) -> None:
        """The host is about to wait."""
        del op
        if not self._is_own():
            with self._lock:
                self.window.waits[Wait(kind, running_line(self._folder))] += 1

    def _phase(self) -> str:
        if _private.is_backward_pass():
            return BACKWARD
        return OPTIMIZER if self._optimizing else FORWARD

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """In here nothing is counted, in this thread, and waiting is allowed."""
        mode = torch.cuda.get_sync_debug_mode()
        self._own.busy = True
        torch.cuda.set_sync_debug_mode(0)
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)
            self._own.busy = False

    def _is_own(self) -> bool:
        return getattr(self._own, "busy", False)

    # -- what optimizers and scalers do

    @contextmanager
    def open(self) -> Iterator[None]:
        """Watch the device, all optimizers, and torch's scaler."""
        hooks = (
            register_optimizer_step_pre_hook(self._begin_step),
            register_optimizer_step_post_hook(self._end_step),
        )
        scaler: Any = torch.amp.GradScaler
        methods = {name: getattr(scaler, name) for name in ("step", "unscale_", "update")}
        scaler.step = self._scaler_step(methods["step"])
        scaler.unscale_ = self._scaler_unscale(methods["unscale_"])
        scaler.update = self._scaler_update(methods["update"])
        virtual_cuda.on_call(self.call)
        virtual_cuda.on_wait(self.wait)
        try:
            yield
        finally:
            virtual_cuda.on_wait(None)
            virtual_cuda.on_call(None)
            for name, method in methods.items():
                setattr(scaler, name, method)
            for hook in hooks:
                hook.remove()

    def _begin_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del optimizer, args, kwargs
        self._optimizing = True

    def _end_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        if not _private.is_outermost_step():
            return
        with self.unseen():
            found = getattr(optimizer, "found_inf", None)  # decided on the device, if it is fused
            applied = found is None or float(found) == 0.0
        if self._scaled is not None and self._scaled[0] is optimizer:
            self._scaled = optimizer, applied
            return
        self._optimizing = False
        self._note_step(optimizer, None, applied)
        self._end_if_enough()

    def _scaler_step(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled() or self._scaled is not None:
                return method(scaler, optimizer, *args, **kwargs)
            with self.unseen():
                scale = scaler.get_scale()
            self._scaled, self._optimizing = (optimizer, False), True
            try:
                result = method(scaler, optimizer, *args, **kwargs)
                applied = bool(self._scaled[1])
            finally:
                self._scaled, self._optimizing = None, False
            self._note_step(optimizer, scale, applied)
            return result

        return step

    def _scaler_unscale(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def unscale_(scaler: Any, optimizer: Any) -> Any:
            before, self._optimizing = self._optimizing, True
            try:
                return method(scaler, optimizer)
            finally:
                self._optimizing = before

        return unscale_

    def _scaler_update(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def update(scaler: Any, *args: Any, **kwargs: Any) -> None:
            self._optimizing = True
            try:
                method(scaler, *args, **kwargs)
            finally:
                self._optimizing = False
            if scaler.is_enabled():
                with self.unseen():
                    self.scale = scaler.get_scale()
                self._end_if_enough()

        return update

    def _note_step(self, optimizer: Any, scale: float | None, applied: bool) -> None:
        with self.unseen():
            gradients = [
                parameter.grad
                for group in optimizer.param_groups
                for parameter in group["params"]
                if parameter.grad is not None
            ]
            bad = sum(not _is_finite(gradient) for gradient in gradients)
        name = self._name(optimizer)
        with self._lock:
            step = Step(name, scale, applied, bad, len(gradients), self.window)
            self.window = Window()
            self.steps.append(step)

    def _end_if_enough(self) -> None:
        if len(self.steps) >= self._limit:
            raise EnoughSteps

    # -- names

    def _name(self, optimizer: Any) -> str:
        """The variable that holds it where it steps, or its class."""
        if id(optimizer) not in self._names:
            found = _variable(optimizer) or type(optimizer).__name__
            taken = sum(name.partition(" #")[0] == found for name in self._names.values())
            self._names[id(optimizer)] = f"{found} #{taken + 1}" if taken else found
            self._named.append(optimizer)
        return self._names[id(optimizer)]


def _variable(value: Any) -> str | None:
    for frame in frames_of_others():
        for names in (frame.f_locals, frame.f_globals):
            for name, held in list(names.items()):
                if held is value:
                    return name
    return None


def _dtype(op: str, dtypes: str, asked: str) -> str:
    """In what a kernel computes, by its tensors' dtypes."""
    if asked in _FLOATING:
        return _FLOATING[asked]
    floating = {_FLOATING[name] for name in dtypes.split() if name in _FLOATING}
    if not floating:
        return OTHER
    if len(floating) == 1:
        return floating.pop()
    return CAST if op == "aten::copy_" else MIXED


def _is_finite(gradient: torch.Tensor) -> bool:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return bool(values.isfinite().all())
