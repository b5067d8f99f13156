"""The function mode that casts, and how one thread has at most one of it.

A call reaches the mode above autograd and autocast, whatever its spelling (``x @ w``,
``torch.matmul``, ``F.linear``). Torch's Python composites (``F.multi_head_attention_forward``) hide
their inner calls from function modes; where those meet the lists, a twin of the composite is run
that does not hide them. Not reached: TorchScript, ``torch.ops.aten.*`` called directly, the insides
of custom ops, and of C++ composites (``lstm``, ``einsum``), which are ops of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.overrides import TorchFunctionMode

from ampbridge.adapters.interrupts import LAST_OF_SEVERAL
from ampbridge.errors import UnsupportedError
from ampbridge.policies import function_ops
from ampbridge_torch import _private
from ampbridge_torch.autocast import execution, simulation
from ampbridge_torch.autocast.compiler_settings import (
    check_backward_pass,
    check_roundings,
    refuse_to_compile,
)
from ampbridge_torch.autocast.functions import Function
from ampbridge_torch.autocast.rules import Rule, Rules, Treatment, attribute_of
from ampbridge_torch.autocast.simulation import CASTABLE, LOW_DTYPES, tensors_in


@contextmanager
def listed(rules: Rules, outer: OpListMode | None) -> Iterator[None]:
    """Put ``rules`` in force, in the mode that is there already: the inner policy alone counts."""
    if outer is not None:
        outside = outer.rules
        try:
            outer.rules = rules
            with _replaced(rules):
                yield
        finally:
            outer.rules = outside
    elif not rules.is_empty:
        mode = OpListMode(rules)
        if not is_compiling():
            _private.leave_to_python(OpListMode.__torch_function__.__code__)
        try:
            with mode, _replaced(rules):
                yield
        finally:
            mode.rules = NOTHING  # one that an interrupt has left on torch's stack casts nothing
    else:
        yield


def _replaced(rules: Rules) -> AbstractContextManager[Any]:
    """A context in which modules hold replacements of the functions that are ops."""
    if not rules.functions:
        return nullcontext()
    if not is_compiling():
        return function_ops.standing(rules.functions)
    if rules.by_path:
        refuse_to_compile("a function by its path, which a region inside of compiled code")
    return nullcontext()


def active_mode() -> OpListMode | None:
    """The mode of the regions that this thread is in, if they need one."""
    for mode in _private.function_mode_stack():
        if isinstance(mode, OpListMode):
            return mode
    return None


class OpListMode(TorchFunctionMode):
    """Casts the inputs of the functions that ``rules`` lists."""

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.rules = rules
        self._weights = simulation.Weights()

    def __torch_function__(
        self, func: Function, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if is_dynamo_compiling():
            return self._trace(func, args, kwargs or {})
        rule = self.rules.table.get(func)
        if rule is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        return self._run(func, rule, args, kwargs or {})

    def _trace(self, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """``__torch_function__`` under Dynamo, within what Dynamo can follow."""
        if self.rules.unseen_by_dynamo:
            refuse_to_compile("the apply of a torch.autograd.Function, which torch.compile")
        rule = getattr(self.rules, attribute_of(func), None)
        if rule is not None:
            self._check_compiler_settings(args)
            return self._run(func, rule, args, kwargs)
        if func is _CHECKPOINT:  # its body runs outside of modes

            def body(*inputs: Any, **options: Any) -> Any:
                with self:
                    return args[0](*inputs, **options)

            return func(body, *args[1:], **kwargs)
        if func is Tensor.unflatten:  # Dynamo cannot follow its `super()`
            return torch.unflatten(*args, **kwargs)
        return func(*args, **kwargs)

    def run_function(
        self, function: Function, rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a Python function that is an op: inside of it nothing is cast."""
        if is_compiling():
            self._check_compiler_settings(args)

        def inside(*args: Any, **kwargs: Any) -> Any:
            with listed(NOTHING, self):
                return function(*args, **kwargs)

        return self._run(inside, rule, args, kwargs)

    def _check_compiler_settings(self, args: Sequence[Any]) -> None:
        if self.rules.lifts and torch.is_grad_enabled():
            differentiated = [x for x in tensors_in(args, CASTABLE) if x.requires_grad]
            if differentiated:
                check_backward_pass()
        if self.rules.simulates:
            check_roundings()

    def _run(
        self, func: Function, rule: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if not isinstance(rule, Rule):  # the twin of a composite
            with self:
                return rule(*args, **kwargs)
        tensors = tensors_in([*args, *kwargs.values()], CASTABLE)
        if not tensors or kwargs.get("dtype") is not None or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        if torch.dtype in list(map(type, args)):  # a list, for Dynamo
            return func(*args, **kwargs)
        device_type = tensors[0].device.type
        if device_type == "cpu":
            treatment = rule.cpu
        elif device_type == "meta":  # which has no autocast
            treatment = None
        elif self.rules.simulates_alone:
            raise UnsupportedError(execution.no_simulation_on(device_type))
        else:
            treatment = rule.accelerator
        if treatment is None:
            return func(*args, **kwargs)
        enabled = torch.is_autocast_enabled(device_type)
        if self.rules.follows_autocast and not enabled:
            return func(*args, **kwargs)
        switched_off = device_type if enabled else None
        simulates = self.rules.simulates or (rule.always_simulated and not is_compiling())
        if simulates and device_type == "cpu":
            low = _low_dtype(treatment, rule, args, kwargs)
            if low is not None and not _kernel_will_do(rule, args, kwargs):
                return self._simulate(func, rule, args, kwargs, low, switched_off)
        if treatment == "follow":
            return func(*args, **kwargs)
        if treatment == "allow":
            dtype = torch.get_autocast_dtype(device_type)
        else:
            dtype = torch.float32 if treatment == "deny" else widest(tensors)
        if not rule.input_alone:
            args = [cast_to(value, dtype, device_type) for value in args]
            kwargs = {name: cast_to(value, dtype, device_type) for name, value in kwargs.items()}
        elif treatment != "promote":
            args = [cast_to(value, dtype, device_type) for value in args[:1]] + list(args[1:])
            if treatment == "deny":
                return _run_on_statistics(func, args, kwargs, switched_off)
        return _run_outside_autocast(func, args, kwargs, switched_off)

    def _simulate(
        self,
        func: Function,
        rule: Rule,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        low: torch.dtype,
        switched_off: str | None,
    ) -> Any:
        """Run ``func`` in float32, on inputs and with results rounded to ``low``."""
        compiling = is_compiling()
        weights = None if compiling else self._weights
        if rule.input_alone:
            args = [simulation.raised(args[0], low, None), *args[1:]]
            return simulation.rounded(_run_on_statistics(func, args, kwargs, switched_off), low)
        bias = simulation.bias_apart(args, kwargs) if rule.adds_bias and not compiling else None
        if bias is not None:
            args, kwargs = args[:2], {}
        args = simulation.raised(list(args), low, weights)
        kwargs = simulation.raised(dict(kwargs), low, weights)
        if rule.multiplies and not compiling:
            args = simulation.spread(args, low)
        result = _run_outside_autocast(func, args, kwargs, switched_off)
        if rule.saves_result and not compiling:
            return simulation.rounded_as_saved(result, low)
        result = simulation.rounded(result, low)
        if bias is None:
            return result
        return simulation.rounded(result.float() + simulation.raised(bias, low, weights), low)


NOTHING = Rules({})


@function_ops.answered_by
def _function_op(name: str, function: Function) -> Function | None:
    mode = active_mode()
    rule = None if mode is None else mode.rules.functions.get(name)
    if mode is None or rule is None:
        return None

    def call(*args: Any, **kwargs: Any) -> Any:
        return mode.run_function(function, rule, args, kwargs)

    return call


def _low_dtype(
    treatment: Treatment, rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.dtype | None:
    """The low dtype that the inputs of an op are to have; None where it does not run low."""
    if treatment == "allow":
        return torch.get_autocast_dtype("cpu")
    if treatment == "deny":
        return None
    deciding = args[:1] if rule.input_alone else [*args, *kwargs.values()]
    if treatment == "follow":
        return simulation.followed(deciding)
    tensors = tensors_in(deciding, CASTABLE)
    dtype = widest(tensors) if tensors else torch.float32
    return None if dtype is torch.float32 else dtype


def _kernel_will_do(rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether torch's own low kernel is as good as the simulation, or has to run."""
    if rule.rounds_once == "between tensors":
        return not kwargs and all(isinstance(value, Tensor) for value in args)
    if rule.rounds_once == "as a view":  # the gradient of rows picked twice is a sum
        index = args[1] if isinstance(args[1], tuple) else args[1:]
        return not any(isinstance(part, (Tensor, list, np.ndarray)) for part in index)
    if rule.rounds_once == "always":
        return True
    return any(
        kwargs.get(name) or (place < len(args) and args[place]) for name, place in rule.native_with
    )


def _run_on_statistics(
    func: Function, args: Sequence[Any], kwargs: Mapping[str, Any], switched_off: str | None
) -> Any:
    """Run ``func`` on an input in float32; it writes to the others, which may be low."""
    others = [*args[1:], *kwargs.values()]
    wide = [
        simulation.to(value, torch.float32)
        if isinstance(value, Tensor) and value.dtype in LOW_DTYPES and value.is_cpu
        else value
        for value in others
    ]
    given = len(args[1:])
    kwargs = dict(zip(kwargs, wide[given:], strict=True))
    result = _run_outside_autocast(func, [*args[:1], *wide[:given]], kwargs, switched_off)
    with torch.no_grad(), LAST_OF_SEVERAL:
        for value, copy in zip(others, wide, strict=True):
            if copy is not value and not value.requires_grad:  # a running statistic
                value.copy_(copy)
    return result


def _run_outside_autocast(
    func: Function, args: Sequence[Any], kwargs: Mapping[str, Any], device_type: str | None
) -> Any:
    if device_type is None:
        return func(*args, **kwargs)
    if is_compiling():
        with torch.autocast(device_type, enabled=False):
            return func(*args, **kwargs)
    torch.set_autocast_enabled(device_type, False)  # 2.5 us less than the context manager
    try:
        return func(*args, **kwargs)
    finally:
        torch.set_autocast_enabled(device_type, True)


def cast_to(value: Any, dtype: torch.dtype, device_type: str) -> Any:
    """``value`` with its tensors of ``device_type`` in ``dtype``, in lists and tuples too."""
    if isinstance(value, Tensor):
        if value.dtype in CASTABLE and value.dtype != dtype and value.device.type == device_type:
            return simulation.to(value, dtype)
        return value
    if type(value) in (list, tuple):
        return type(value)([cast_to(item, dtype, device_type) for item in value])
    return value


def widest(tensors: Sequence[Tensor]) -> torch.dtype:
    """The one dtype of the tensors, or float32, the widest of any two that are cast."""
    first = tensors[0].dtype
    return first if all(tensor.dtype == first for tensor in tensors) else torch.float32


_CHECKPOINT = _private.lookup("tag_activation_checkpoint")
