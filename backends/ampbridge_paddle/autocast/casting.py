"""The region: how an op's inputs are cast.

On a device that has 16-bit kernels it is ``paddle.amp.auto_cast`` with the policy's lists in Paddle's
names; on CPU it is simulated.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import paddle
from paddle.amp.auto_cast import amp_global_state

from ampbridge.adapters.nested import map_leaves
from ampbridge.adapters.scoped import Scoped
from ampbridge.errors import UnsupportedError
from ampbridge.policies import function_ops
from ampbridge.policies.op_table import Category
from ampbridge.policies.policy import Policy
from ampbridge_paddle._private import method, private
from ampbridge_paddle.autocast import execution, float32, functions, recomputing, simulation
from ampbridge_paddle.autocast.dtypes import CASTABLE, FLOAT32, FLOAT64, LOW
from ampbridge_paddle.autocast.functions import Function
from ampbridge_paddle.autocast.rules import (
    AmpLists,
    Rules,
    amp_lists_for,
    lists_of_everything,
    rules_for,
)

Tensor = Any


def region(policy: Policy) -> AbstractContextManager[None]:
    """A region in which ops run as ``policy`` says.

    Raises:
        UnsupportedError: for an execution or a list set that this device cannot give, and for what
            ``policy.float32`` needs and is not there.
    """
    opened = _region(policy)
    return opened if policy.float32 == "default" else float32.setting.around(opened, policy)


@contextmanager
def _region(policy: Policy) -> Iterator[None]:
    if _tracing():
        _check_that_functions_are_seen(policy)
    opened: AbstractContextManager[None] = nullcontext()
    if not execution.on_cpu():
        opened = native_region(policy)
    elif policy.level != "O0" or simulation.active_region() is not None:
        execution.check(policy)
        if policy.level != "O0" and policy.execution == "auto":
            execution.warn_once()
        outer = simulation.active_region()
        marked_values = set() if outer is None else outer.marked_values
        opened = simulation.entering(simulation.Region(rules_for(policy), marked_values))
    with recomputing.followed(), opened:
        yield


def _check_that_functions_are_seen(policy: Policy) -> None:
    for op in function_ops.named_by_path(function_ops.rules_of(policy)):
        if op.owner is not None and issubclass(op.owner[0], paddle.autograd.PyLayer):
            raise UnsupportedError(
                f"The policy names {op.name!r}, the apply of a PyLayer, which paddle.jit.to_static does "
                "not see.\n"
                "Hint: @amp.register_op above the function that is called, and its name in the policy."
            )


def cast(x: Tensor, dtype: str) -> Tensor:
    """``x`` cast to ``dtype``, differentiably; what is float64 or no floating point stays as it is."""
    if x.dtype not in CASTABLE or x.dtype in (_BY_NAME[dtype],):
        return x
    return x.astype(dtype)


_BY_NAME = {"float32": FLOAT32, **LOW}


def in_region_dtype(x: Any, dtype: str) -> Any:
    """``x`` cast to ``dtype`` as the ops of the open region see it. What ``cast`` leaves alone stays."""
    if execution.on_cpu():
        return simulation.in_dtype(x, dtype)
    return cast(x, dtype) if _floating([x]) else x


def is_in_low_region() -> bool:
    """Whether an O1 or O2 region is the innermost one."""
    if execution.on_cpu():
        simulated = simulation.active_region()
        return simulated is not None and simulated.rules.dtype != "float32"
    native = functions.interception.active.get()
    return _amp_is_on() and not (native is not None and native.rules.dtype == "float32")


def is_active(policy: Policy) -> bool:
    """Whether the innermost region is one of ``policy``, as far as can be told without effort."""
    region = simulation.active_region()
    return region is not None and region.rules is rules_for(policy)


@contextmanager
def native_region(policy: Policy) -> Iterator[None]:
    """``paddle.amp.auto_cast`` with the policy's lists, also while a program is being traced.

    Raises:
        UnsupportedError: for execution="simulated".
    """
    if policy.level == "O0" and not _amp_is_on():
        yield
        return
    if policy.level != "O0":
        execution.refuse_simulation(policy)
        if policy.lists == "native":
            with _one_thread(), _opened(level=policy.level, dtype=policy.dtype):
                yield
            return
    region = NativeRegion(rules_for(policy))
    standing = function_ops.standing(region.rules.python)
    inside = functions.interception.region(region)
    with _one_thread(), standing, inside, _auto_cast(amp_lists_for(policy)):
        yield


class _Inside:
    """Says that a thread is inside of a native region, as long as the region holds it."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()


_inside: WeakValueDictionary[int, _Inside] = WeakValueDictionary()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep other threads out: Paddle's level and dtype belong to a thread, its op lists to the process.

    Whoever leaves a region puts back the lists that were there when it was entered, so that not even
    threads with the same lists may be inside at the same time.
    """
    # A thread is listed first and looks then, so that of two at the same time at most one is inside. No
    # lock: an interrupt can't leave one behind, and ``valuerefs`` takes its list in a single step.
    here = _Inside()
    _inside[id(here)] = here
    try:
        others = [other() for other in _inside.valuerefs()]
        if any(other is not None and other.thread != here.thread for other in others):
            raise UnsupportedError(
                "Another thread is inside of a region of mixed precision. On "
                f"{paddle.device.get_device()} Paddle keeps one set of op lists for the whole "
                "process, so that each thread would run by the other's.\n"
                "Hint: lock = threading.Lock(), and `with lock:` around each step or region; or a "
                "process for each."
            )
        yield
    finally:
        _inside.pop(id(here), None)


class NativeRegion:
    """How an open native region runs functions that are no kernel of their own."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def call(self, name: str, function: Function, args: Any, kwargs: Any) -> Any:
        rule = self.rules.functions.get(name)
        if name == functions.LINEAR:
            # Without a bias it calls matmul there, which may have another rule.
            rule = self.rules.category("linear")
            rule = None if rule == self.rules.category("matmul") else rule
        if rule is None:
            return function(*args, **kwargs)
        return self.call_whole(rule, function, args, kwargs)

    def call_whole(self, rule: Category, function: Function, args: Any, kwargs: Any) -> Any:
        if rule == "promote":  # the parts by their rules; the result as low as the inputs
            output = function(*args, **kwargs)
            arrived = {x.dtype for x in _floating([*args, *kwargs.values()])}
            if arrived != {_BY_NAME[self.rules.dtype]}:
                return output
            return paddle.utils.map_structure(
                lambda x: cast(x, self.rules.dtype) if _floating([x]) else x, output
            )
        if rule == "deny":  # before its Python asks for their dtypes
            args, kwargs = map_leaves(partial(in_region_dtype, dtype="float32"), (args, kwargs))
        lists = lists_of_everything(self.rules.dtype, rule)
        with _auto_cast(lists), functions.interception.paused():
            return function(*args, **kwargs)

    def add_bias(self, output: Tensor, bias: Tensor, shape: list[int]) -> Tensor:
        bias = cast(bias, str(output.dtype).rpartition(".")[2].lower())
        return paddle.add(output, bias.reshape(shape))


def _floating(values: Any) -> list[Tensor]:
    kinds = (paddle.Tensor, paddle.pir.Value)
    found = [x for x in paddle.utils.flatten(values) if isinstance(x, kinds)]
    return [x for x in found if x.dtype in CASTABLE or x.dtype == FLOAT64]


@contextmanager
def _auto_cast(lists: AmpLists) -> Iterator[None]:
    """Open Paddle's region with exactly ``lists``.

    Custom lists can move an op from one list to the other, but not out of both; what Paddle lists
    and ``lists`` does not is taken out by setting the dispatcher's lists.
    """
    white, black = set(lists.white), set(lists.black)
    with _opened(
        custom_white_list=white, custom_black_list=black, level=lists.level, dtype=lists.dtype
    ):
        if _tracing():
            private("paddle.base.core._set_amp_op_list")(white, black)
        else:
            method("Tracer", _tracer(), "_set_amp_op_list")(white, black)
        yield


opening: Scoped[bool] = Scoped("ampbridge_paddle opening a region", False)
"""Whether ``paddle.amp.auto_cast`` is called by this module, and not by the user."""


def _opened(**settings: Any) -> AbstractContextManager[None]:
    with opening.during(True):
        region: AbstractContextManager[None] = paddle.amp.auto_cast(**settings)
    return region


def own_auto_cast() -> tuple[str, str] | None:
    """Level and dtype of the ``paddle.amp.auto_cast`` that the user has opened; None if there is none."""
    if not _amp_is_on() or functions.interception.active.get() is not None:
        return None
    level = method("Tracer", _tracer(), "_amp_level")
    return str(level.name), str(amp_global_state().amp_dtype)


def _amp_is_on() -> bool:
    if _tracing():
        level = method("AmpAttrs", private("paddle.base.core._get_amp_attrs")(), "_amp_level")
    else:
        level = method("Tracer", _tracer(), "_amp_level")
    return bool(level != private("paddle.base.core.AmpLevel").O0)


@contextmanager
def dispatched_as_it_is() -> Iterator[None]:
    """Let Paddle's dispatcher cast nothing in the block, whatever region is open."""
    tracer = _tracer()
    level = method("Tracer", tracer, "_amp_level")
    tracer._amp_level = private("paddle.base.core.AmpLevel").O0
    try:
        yield
    finally:
        tracer._amp_level = level


def _tracer() -> Any:
    return private("paddle.base.framework._dygraph_tracer")()


def _tracing() -> bool:
    return bool(private("paddle.base.framework.in_pir_mode")())
