"""Seeing what runs: each op as it is called, the kernels that it comes to, and its gradients.

    a function mode   sees the call, above the region's: the op, and what it is handed
    a dispatch mode   sees the kernels below casts and autograd; a call that comes to none that computes
                      (a view, a question, a conversion) is no op
    hooks             on autograd's nodes see the gradients (``gradient_hooks.py``)

A ``torch.autograd.Function`` is one op, whatever its body calls: its backward is the user's own.
Kernels that no call leads to (those of TorchScript, of ``torch.func``) are ops of their own, whose
gradients cannot be told apart. Backward passes inside are not looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from itertools import count
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ampbridge.adapters.interception import INHERITED, Interception, Site
from ampbridge.adapters.observation import Observer, OpCall
from ampbridge.policies import function_ops, op_table
from ampbridge_torch import _private
from ampbridge_torch.autocast.functions import Function, functions_named, twins
from ampbridge_torch.autocast.mode import OpListMode, active_mode
from ampbridge_torch.autocast.rules import Rule, Rules
from ampbridge_torch.autocast.simulation import LOW_DTYPES
from ampbridge_torch.lens.gradient_hooks import GradientReports, History
from ampbridge_torch.lens.kernels import (
    Collected,
    Kernels,
    Ran,
    bare_name,
    dtype_name,
    floating_tensors,
    operand,
)
from ampbridge_torch.model import decorating
from ampbridge_torch.model.model_calls import casts_here

# Whole layers under one name, whose parts have rules of their own.
_SHOWN_IN_PARTS = frozenset({"multi_head_attention"})


@contextmanager
def observe(model: nn.Module, observer: Observer, *, gradients: bool) -> Iterator[None]:
    """See ``Backend.observe``."""
    path: list[str] = []
    mode = ObservingMode(observer, path, gradients)
    eagerly = torch.compiler.set_stance("force_eager")
    own, functions = _own_functions.region(mode), function_ops.watched(mode.run_function)
    # The regions' mode, if it is not there: regions inside would bring it above the observer's.
    lacks_mode = active_mode() is None and casts_here()
    lists = OpListMode(Rules({})) if lacks_mode else nullcontext()
    with eagerly, own, functions, lists, _calls_noted(model, path), mode.kernels, mode:
        yield
    if mode.gradients is not None:
        mode.gradients.has_begun = True


@contextmanager
def _calls_noted(model: nn.Module, path: list[str]) -> Iterator[None]:
    """``path`` has the names of the layers that this thread is in, the innermost last.

    Layers of TorchScript take no hooks.
    """
    thread = threading.get_ident()

    def enter(name: str, module: nn.Module, args: Any) -> None:
        if threading.get_ident() == thread:
            path.append(name)

    def leave(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == thread and path[-1:] == [name]:
            path.pop()

    with ExitStack() as hooks:
        for name, _, module, _ in decorating.layers(model):
            if not isinstance(module, torch.jit.ScriptModule):
                before, after = partial(enter, name), partial(leave, name)
                hooks.enter_context(module.register_forward_pre_hook(before, prepend=True))
                hooks.enter_context(module.register_forward_hook(after, always_call=True))
        yield


class ObservingMode(TorchFunctionMode):
    """Reports the ops of one forward pass; ``path`` names the layers that call, the innermost last."""

    def __init__(self, observer: Observer, path: Sequence[str], gradients: bool) -> None:
        super().__init__()
        self.kernels = Kernels(self._run_alone)
        self.gradients = GradientReports(observer) if gradients else None
        self._observer = observer
        self._path = path
        self._numbers = count()

    def __torch_function__(
        self, func: Function, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        twin = None if self.kernels.op is not None else _shown_in_parts(func)
        if twin is not None:
            with self:
                return twin(*args, **(kwargs or {}))
        return self.run(func, partial(_op_name, func), args, kwargs or {})

    def run(
        self,
        func: Function,
        name: Callable[[Sequence[Ran]], str | None],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """``func(*args, **kwargs)``, reported as an op unless one is under way, of which it is a part.

        ``name`` names it by the kernels that computed, or gives None.
        """
        inputs = floating_tensors((args, kwargs))
        if self.kernels.op is not None or _private.is_within_transform(inputs):
            return func(*args, **kwargs)
        history = History(inputs) if self.gradients is not None else None
        with self.kernels.collected(inputs) as seen:
            result = func(*args, **kwargs)
        op = name(seen.computing) if inputs else None
        if op is not None:
            outputs = floating_tensors(result)
            reported = self._report(op, func, seen, outputs)
            if history is not None and self.gradients is not None:
                history.hook(reported, outputs, self.gradients)
        return result

    def run_function(
        self, name: str, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a Python function that is an op."""
        return self.run(function, lambda _: name, args, kwargs)

    def _run_alone(self, kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a kernel that no function led to."""
        with self.kernels.collected(floating_tensors((args, kwargs))) as seen:
            result = seen.run(kernel, args, kwargs)
        if seen.computing:
            name = bare_name(kernel)
            op = _canonical_kernel(name) or f"torch:{name}"
            self._report(op, kernel, seen, floating_tensors(result))
        return result

    def _report(
        self, op: str, func: Function, seen: Collected, outputs: Sequence[Tensor]
    ) -> OpCall:
        on_cpu = all(x.is_cpu for x in seen.inputs)
        call = OpCall(
            next(self._numbers),
            op,
            self._path[-1] if self._path else "",
            dtype_name(_computed_in(func, seen, outputs)),
            tuple(ran.kernel for ran in seen.computing),
            sum(ran.seconds for ran in seen.kernels) if on_cpu else None,
        )
        with self.kernels.collected(()):  # what the observer calls is none of the model's
            self._observer.op_ran(call, [*map(operand, seen.inputs)], [*map(operand, outputs)])
        return call


def _computed_in(func: Function, seen: Collected, outputs: Sequence[Tensor]) -> torch.dtype:
    """The dtype that an op's kernels computed in; where it was simulated, the one that was meant.

    Simulated are float32 kernels under a region that simulates, if what they made is low, or if they
    only looked at low numbers. Of an op without kernels it is that of its values.
    """
    values, mode = outputs or seen.inputs, active_mode()
    dtypes = [ran.dtype for ran in seen.kernels if ran.dtype is not None]
    narrowest = min(dtypes, key=lambda dtype: torch.finfo(dtype).bits, default=values[0].dtype)
    if mode is not None and mode.rules.simulates and narrowest is torch.float32:
        rule = mode.rules.table.get(func)
        denied = isinstance(rule, Rule) and rule.cpu == "deny"
        meant = {x.dtype for x in values} & LOW_DTYPES
        if meant and not denied:
            return meant.pop()
    return narrowest


# -- names


def _shown_in_parts(func: Function) -> FunctionType | None:
    """The twin of a composite whose parts are reported: what is no op, or is cast part by part."""
    twin, ops, mode = twins().get(func), _spellings().get(func), active_mode()
    if twin is None or ops is None:
        return twin
    rule = None if mode is None else mode.rules.table.get(func)
    return twin if ops[0] in _SHOWN_IN_PARTS and not isinstance(rule, Rule) else None


def _op_name(func: Function, kernels: Sequence[Ran]) -> str | None:
    """The op as the lens names it; None of what came to no kernel that computes.

    Where a function may be several ops (``interpolate``), the kernels tell which; where the table has
    no such function (``add_``), a single kernel does.
    """
    if not kernels:
        return None
    candidates = _spellings().get(func, ())
    for op in candidates:
        if any(ran.name in op_table.ops()[op].names.get("aten", ()) for ran in kernels):
            return op
    if candidates:
        return candidates[0]
    alone = _canonical_kernel(kernels[0].name) if len(kernels) == 1 else None
    if alone is not None:
        return alone
    overloads = getattr(func, "overloads", None)  # of torch.ops.my_library.my_op
    kernel = func if overloads is None else getattr(func, overloads()[0])
    is_kernel = isinstance(kernel, torch._ops.OpOverload)
    return f"torch:{bare_name(kernel) if is_kernel else getattr(func, '__name__', func)}"


@cache
def _spellings() -> Mapping[Function, tuple[str, ...]]:
    """The canonical ops that each function may be, its owner first."""
    found: dict[Function, tuple[str, ...]] = {}
    for namespace in ("torch", "aten"):
        for spelling, ops in op_table.native_names(namespace).items():
            for function in functions_named(namespace, spelling):
                found.setdefault(function, ops)
    return found


def _canonical_kernel(name: str) -> str | None:
    known = op_table.native_names("aten")
    ops = known.get(name) or known.get(name.removesuffix("_"))
    return ops[0] if ops else None


# -- functions with a backward of the user's own


def _sites() -> Sequence[Site]:
    """Where each ``torch.autograd.Function`` is applied, also by a name that was bound before."""
    owner = _private.lookup("_SingleLevelFunction")

    def apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        call, mode = super(owner, cls).apply, _own_functions.active.get()
        if mode is None or cls.__module__ == "torch.utils.checkpoint":  # which shows its parts
            return call(*args, **kwargs)
        return mode.run(call, lambda _: f"torch:{cls.__name__}", args, kwargs)

    return [Site(owner, "apply", INHERITED, classmethod(apply))]


_own_functions: Interception[ObservingMode] = Interception("torch autograd functions", _sites)


# -- values on the host


def to_numpy(x: Tensor) -> np.ndarray:
    """See ``Backend.to_numpy``."""
    values = x.detach() if x.layout is torch.strided else x.detach().to_dense()
    return (values if values.dtype is torch.float64 else values.float()).cpu().numpy()
