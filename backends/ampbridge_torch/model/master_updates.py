"""The hooks by which optimizers update float32 masters.

Outside of its own methods an optimizer is as it was: ``param_groups`` and ``state`` hold the model's
parameters, which are in low precision. While it steps, and while it loads a state, the masters stand
in their places, through torch's six public optimizer hooks. So its arithmetic, its slots and what it
saves are those of float32 training, whatever optimizer it is.

A compact master is float32 only meanwhile, and so are slots that are low between steps. So that no second
copy of all of them exists then, torch's own optimizers step such parameters chunk by chunk. Others, which
may have a state of all parameters in common, and LBFGS step all at once.

A master is saved in its parameter's entry of the optimizer's state dict, as ``master_weight``.
Torch copies and pickles optimizers without their hooks: ``decorate`` the copy anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, optim
from torch.utils.hooks import RemovableHandle

from ampbridge.adapters.calling_code import warn
from ampbridge.adapters.frozen_writes import FrozenWrites
from ampbridge.adapters.low_storage import no_moments, not_decorated_with, warn_of_dropped_masters
from ampbridge.errors import UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge_torch import _private
from ampbridge_torch.autocast.casting import DTYPES
from ampbridge_torch.model import rounding
from ampbridge_torch.model.low_slots import (
    STATE_KEY,
    fit_slots,
    is_kept_low,
    round_slots,
    slots_of,
    warn_if_rounded,
    widen_slots,
)
from ampbridge_torch.model.master_weights import (
    Master,
    check_dtypes,
    makes_masters,
    master_of,
    round_all,
    unmastered,
    warn_if_weights_are_rounded,
    widen,
    written_frozen,
)
from ampbridge_torch.model.model_calls import ModelCall, with_masters
from ampbridge_torch.model.rounding import Draws, is_of
from ampbridge_torch.step import ranks

UPDATES = "updates_rounded_by_chance"
"""Where the first group of an optimizer counts them: the count seeds the draws, and torch saves it.

It stays there when the optimizer is undecorated, as it goes on from there when it is decorated anew.
"""


class MasterUpdates:
    """The hooks of one optimizer, which put masters in the place of their parameters.

    While they stand there the parameters have no gradients. So after a step that raised, whose
    masters are still in place, ``zero_grad`` and the next backward pass do what they always do; the
    next call of the optimizer clears up.
    """

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self._in_place: dict[Master, Tensor | None] = {}  # with the gradients of their parameters
        self._groups: list[tuple[list[Tensor], list[Tensor]]] = []
        self._draws: Draws | None = None
        self._draws_of_slots: Draws | None = None
        self._given: Mapping[int, Tensor | None] = {}
        self._loaded: Mapping[int, Tensor] = {}
        self._frozen_writes = FrozenWrites()
        self._group_count = len(optimizer.param_groups)
        self._handles = (
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            optimizer.register_state_dict_pre_hook(self.clear_up),
            optimizer.register_state_dict_post_hook(self._after_saving),
            optimizer.register_load_state_dict_pre_hook(self._before_loading),
            optimizer.register_load_state_dict_post_hook(self._after_loading),
        )
        self._calling = False
        for name, method in _methods_of_its_own(type(optimizer)).items():
            setattr(optimizer, name, partial(self._call, ref(optimizer), method))

    def remove(self, optimizer: optim.Optimizer) -> None:
        for handle in self._handles:
            handle.remove()
        for name in _methods_of_its_own(type(optimizer)):
            delattr(optimizer, name)

    # -- the exchange

    def put_masters_in(
        self, optimizer: optim.Optimizer, chunk: Collection[int] | None = None
    ) -> None:
        """Put masters in; the groups have only the parameters of ``chunk`` then, given by their ids."""
        self.clear_up(optimizer)
        for group in optimizer.param_groups:
            parameters = group["params"]  # changed in place: LBFGS keeps the list
            held = list(parameters)
            present = [p for p in held if chunk is None or id(p) in chunk]
            widen(filter(None, map(master_of, present)))
            self._groups.append((parameters, held))
            parameters[:] = [self._put_in(parameter, optimizer.state) for parameter in present]
        widen_slots(self._slots(optimizer))

    def _put_in(self, parameter: Tensor, state: dict[Tensor, Any]) -> Tensor:
        master = master_of(parameter)
        if master is None:
            return parameter
        master.adopt()
        wide: Tensor = master.wide
        self._in_place[master] = parameter.grad
        parameter.grad = None
        if parameter in state:
            state[wide] = state.pop(parameter)
        return wide

    def _slots(self, optimizer: optim.Optimizer) -> list[tuple[dict[str, Any], Tensor]]:
        """The slots of the masters that are in place, if they are low between steps, and their parameters."""
        low = [each for each in self._in_place if each.low_slots]
        return [(optimizer.state.get(each.wide, {}), each.low) for each in low]

    def take_masters_out(self, optimizer: optim.Optimizer, *, rounded: bool = False) -> None:
        """Put the parameters back, if they are not; ``rounded``: with the values of their masters."""
        if not self._groups:
            return
        state, masters, slots = optimizer.state, self._in_place, self._slots(optimizer)
        self._in_place = {}
        for parameters, held in self._groups:
            parameters[:] = held
        self._groups = []
        for master, grad in masters.items():
            master.low.grad = grad
            master.wide.grad = None
            if master.wide in state:
                state[master.low] = state.pop(master.wide)
        round_slots(slots, self._draws_of_slots)
        if rounded:
            round_all(masters, self._draws)

    def clear_up(self, optimizer: optim.Optimizer) -> None:
        """Take masters out after a step that raised. Gradients that came in the meantime are valid."""
        self._in_place = {master: master.low.grad for master in self._in_place}
        self.take_masters_out(optimizer)

    def _lend(self, optimizer: optim.Optimizer, chunk: Collection[int] | None = None) -> None:
        """Put masters in, with gradients in float32: those of ``step``, or their parameters'."""
        self.put_masters_in(optimizer, chunk)
        narrow, wide = [], []
        for master, grad in self._in_place.items():
            grad = self._given.get(id(master.low), grad)
            if grad is None or grad.dtype is master.wide.dtype:
                master.wide.grad = grad
            elif grad.is_sparse:
                master.wide.grad = grad.to(master.wide.dtype)
            else:
                master.wide.grad = master.widened(grad)
                narrow.append(grad)
                wide.append(master.wide.grad)
        rounding.copy_all(wide, narrow)

    # -- step

    @torch.no_grad()
    def _before_step(
        self, optimizer: optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._in_place and _private.steps_under_way(optimizer) > 1:
            return None  # the parent's step, called by the optimizer's own
        masters = list(_masters_of(optimizer))
        widens = any(each.low_slots or each.policy.masters != "float32" for each in masters)
        if len(optimizer.param_groups) != self._group_count:
            self._group_count = len(optimizer.param_groups)
            for call in _models_of(held_parameters(optimizer)):
                call.warn_of_new_layers()
        check_dtypes(held_parameters(optimizer))
        _check_capturing(optimizer, widens)
        self._frozen_writes.look(written_frozen)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        self.clear_up(optimizer)
        if any(each.low_slots or each.policy.masters == "stochastic" for each in masters):
            self._count_update(optimizer)
        *earlier, last = _chunks(optimizer) if widens else [None]
        if closure is not None:
            closure = _called(closure) if earlier else partial(self._evaluate, optimizer, closure)
        for chunk in earlier:
            self._lend(optimizer, chunk)
            _private.step_without_hooks(optimizer)
            self.take_masters_out(optimizer, rounded=True)
        self._lend(optimizer, last)
        if closure is None:
            return None
        if len(args) > 1:
            return (args[0], closure, *args[2:]), kwargs
        return args, {**kwargs, "closure": closure}

    def _count_update(self, optimizer: optim.Optimizer) -> None:
        first = optimizer.param_groups[0]
        if first.get(UPDATES) == 1:
            _warn_without_moments(optimizer)
        first[UPDATES] = first.get(UPDATES, 0) + 1
        self._draws = rounding.seeded(first[UPDATES])
        self._draws_of_slots = rounding.seeded(-first[UPDATES])

    def _end_update(self, optimizer: optim.Optimizer) -> None:
        self.take_masters_out(optimizer, rounded=True)
        self._draws = self._draws_of_slots = None

    def _evaluate(self, optimizer: optim.Optimizer, closure: Callable[[], Any]) -> Any:
        """Call a closure, which finds the model's parameters in the optimizer, at their newest values."""
        self.take_masters_out(optimizer, rounded=True)
        loss = closure()
        with torch.no_grad():
            self._lend(optimizer)
        return loss

    def _after_step(self, optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
        if _private.steps_under_way(optimizer) <= 1:  # else the parent's step has ended
            self._end_update(optimizer)

    def step(self, optimizer: optim.Optimizer, grads: Mapping[int, Tensor | None]) -> None:
        """``optimizer.step()`` with float32 gradients by the identity of low parameters."""
        self._given = grads
        try:
            optimizer.step()
        finally:
            self._given = {}
            # Where it raised they are still there, and what it has moved stays moved.
            self._end_update(optimizer)

    def load(self, optimizer: optim.Optimizer, state_dict: dict[str, Any]) -> None:
        """``optimizer.load_state_dict``; its parameters are in their places also if it raises."""
        try:
            optimizer.load_state_dict(state_dict)
        finally:
            self._loaded = {}
            self.take_masters_out(optimizer)

    # -- methods that torch's optimizers have not

    def _call(
        self, optimizer: ref[optim.Optimizer], method: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Call ``optimizer.train()`` and the like: it reads and writes masters and their gradients."""
        present = optimizer()
        assert present is not None  # its own method is being called
        if self._calling or _private.steps_under_way(present):  # called by the optimizer itself
            return method(present, *args, **kwargs)
        self._calling = True
        try:
            self._lend(present)
            try:
                return method(present, *args, **kwargs)
            finally:
                for master in self._in_place:
                    if master.wide.grad is None:
                        self._in_place[master] = None  # it has taken the gradient away
        finally:
            self._calling = False
            self.take_masters_out(present, rounded=True)

    # -- save and load

    def _after_saving(
        self, optimizer: optim.Optimizer, state_dict: dict[str, Any]
    ) -> dict[str, Any]:
        state = dict(state_dict["state"])
        for key, parameter in zip(_keys(state_dict), held_parameters(optimizer), strict=True):
            master = master_of(parameter)
            if master is not None and master.policy.masters in ("float32", "kahan"):
                state[key] = {**state.get(key, {}), STATE_KEY: master.value()}
        return {**state_dict, "state": state}

    def _before_loading(
        self, optimizer: optim.Optimizer, state_dict: dict[str, Any]
    ) -> dict[str, Any]:
        """With masters in place torch keeps the slots in float32: it casts to the parameter's dtype."""
        rest, self._loaded = _parted(state_dict, range(len(held_parameters(optimizer))))
        self.put_masters_in(optimizer)
        return rest

    @torch.no_grad()
    def _after_loading(self, optimizer: optim.Optimizer) -> None:
        """Masters take what is loaded, unless other weights than theirs were loaded into the model before.

        Those were trained since in float32, by an optimizer that knows of no masters. A parameter that is
        float32 now, and was not when the state was saved, takes the digits that its weights lack.
        """
        in_groups, taken, dropped = held_parameters(optimizer), [], []
        masters = {id(master.wide): master for master in self._in_place}
        for position, loaded in self._loaded.items():
            wide = in_groups[position]
            value, master = loaded.to(wide.device, torch.float32), masters.get(id(wide))
            if master is None:
                if any(is_of(value, wide, dtype) for dtype in DTYPES.values()):
                    wide.copy_(value)
            elif not master.is_as_loaded() or is_of(value, wide, master.dtype):
                wide.copy_(value)
                taken.append((value, master.policy))
            else:
                dropped.append(master.name)
        warn_if_weights_are_rounded(taken)
        if dropped:
            warn_of_dropped_masters(dropped, "load_state_dict")
        self._loaded = {}
        low = [master for master in self._in_place if master.low_slots]
        if low:
            warn_if_rounded(slots_of(optimizer, [each.wide for each in low]), low[0].policy)
        self.take_masters_out(optimizer, rounded=True)


def _called(closure: Callable[[], Any]) -> Callable[[], Any]:
    """What stands for a closure whose loss is known already."""
    with torch.enable_grad():
        loss = closure()
    return lambda: loss


def _keys(state_dict: Mapping[str, Any]) -> list[Any]:
    """What a state dict calls the parameters, in their order: numbers, or names."""
    return [key for group in state_dict["param_groups"] for key in group["params"]]


def _parted(
    state_dict: Mapping[str, Any], positions: Container[int]
) -> tuple[dict[str, Any], dict[int, Tensor]]:
    """A state dict without the masters of parameters at ``positions``, and these by position."""
    state, masters = dict(state_dict["state"]), {}
    for position, key in enumerate(_keys(state_dict)):
        if position in positions and STATE_KEY in state.get(key, ()):
            state[key] = dict(state[key])
            masters[position] = state[key].pop(STATE_KEY)
            if not state[key]:
                del state[key]
    return {**state_dict, "state": state}, masters


def held_parameters(optimizer: optim.Optimizer) -> list[Tensor]:
    """All parameters of an optimizer, in the order in which torch counts them in its state dict."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _masters_of(optimizer: optim.Optimizer) -> Iterator[Master]:
    return filter(None, map(master_of, held_parameters(optimizer)))


def _models_of(held: Iterable[Tensor]) -> list[ModelCall]:
    """The models with masters, by their calls, that have any of the parameters ``held``."""
    ids = set(map(id, held))
    return [
        call
        for call in with_masters()
        if (model := call.module()) is not None and any(id(p) in ids for p in model.parameters())
    ]


def _warn_without_moments(optimizer: optim.Optimizer) -> None:
    """Warn if slots are to be low, and the first update has made none: before it only SGD's are known."""
    low = [master for master in _masters_of(optimizer) if master.low_slots]
    slots = [(s, m.low) for m in low for s in optimizer.state.get(m.low, {}).values()]
    if low and not any(is_kept_low(*pair) for pair in slots):
        warn(str(no_moments(low[0].policy, optimizer)))


def _check_capturing(optimizer: optim.Optimizer, widens: bool) -> None:
    """Refuse what torch only asserts, and what a CUDA graph would replay on memory that is gone."""
    kind = type(optimizer).__name__
    captures = any(group.get("capturable") for group in optimizer.param_groups)
    on_cpu = captures and any(p.device.type == "cpu" for p in held_parameters(optimizer))
    if on_cpu and not torch.compiler.is_compiling():
        raise UnsupportedError(
            f"{kind}(capturable=True) updates parameters on an accelerator, and some are on the CPU.\n"
            "Hint: capturable=False; or model.to('cuda')"
        )
    has_graphs = torch.version.cuda or torch.version.hip  # a virtual device has none
    if not (widens and has_graphs and torch.cuda.is_initialized()):
        return
    if torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(
            f"A CUDA graph cannot hold this update by {kind}: what is in 16 bits between two updates is in "
            "float32 for each, at another place, and is rounded by other draws.\n"
            "Hint: masters='float32' and slots='float32'; or step outside of the graph."
        )


def _chunks(optimizer: optim.Optimizer) -> list[set[int]]:
    """The ids of the parameters that are updated at a time, where some become float32 for it."""
    chunks, size = [set[int]()], 0
    own = type(optimizer).__module__.startswith("torch.optim.")
    is_split = own and not isinstance(optimizer, optim.LBFGS)
    for parameter in held_parameters(optimizer):
        size += parameter.numel()
        if is_split and chunks[-1] and size > rounding.CHUNK:
            chunks.append(set())
            size = parameter.numel()
        chunks[-1].add(id(parameter))
    return chunks


def _methods_of_its_own(kind: type) -> Mapping[str, Callable[..., Any]]:
    """The public methods of an optimizer's class that torch's ``Optimizer`` knows nothing of."""
    above = kind.__mro__[: kind.__mro__.index(optim.Optimizer)]
    return {
        name: method
        for owner in reversed(above)
        for name, method in vars(owner).items()
        if isinstance(method, FunctionType)
        and not name.startswith("_")
        and not hasattr(optim.Optimizer, name)
    }


# -- attaching

_attached: WeakKeyDictionary[optim.Optimizer, MasterUpdates] = WeakKeyDictionary()


def updates_of(optimizer: optim.Optimizer) -> MasterUpdates | None:
    """The hooks of an optimizer that updates masters."""
    return _attached.get(optimizer)


def inside(optimizer: optim.Optimizer) -> list[optim.Optimizer]:
    """The optimizers that ``optimizer`` is a wrapper of."""
    return [each for each in vars(optimizer).values() if isinstance(each, optim.Optimizer)]


def check_masters_are_updated(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Hook before any optimizer's step: refuse one that would train what has masters without them.

    Dynamo does not trace it: a graph would guard on all optimizers with masters, which may be gone by then.
    """
    if optimizer in _attached or any(each in _attached for each in inside(optimizer)):
        return
    held = held_parameters(optimizer)
    for parameter in held:
        if parameter.grad is not None and (master := master_of(parameter)) is not None:
            raise not_decorated_with(optimizer, master.policy)
    if _private.any_is_sharded(held):  # perhaps in the places of parameters that had masters
        for call in _models_of(held):
            ranks.check_not_sharded(call.module())


# As ``torch.compiler.disable`` does, which would import Dynamo; torch 2.6 to 2.13.
check_masters_are_updated._torchdynamo_disable = True  # type: ignore[attr-defined]


def fit(optimizer: optim.Optimizer, low: Sequence[Tensor], policy: Policy) -> None:
    """Let ``optimizer`` update the parameters ``low`` as ``policy`` says."""
    if makes_masters(policy):
        attach(optimizer)
    else:
        _go_without(optimizer, low, policy)


def attach(optimizer: optim.Optimizer) -> None:
    """Let ``optimizer`` update the masters of its parameters, now and after ``add_param_group``."""
    if optimizer not in _attached:
        _attached[optimizer] = MasterUpdates(optimizer)
    _adopt_loaded(optimizer)
    round_slots([(optimizer.state.get(m.low, {}), m.low) for m in _masters_of(optimizer)], None)


@torch.no_grad()
def _adopt_loaded(optimizer: optim.Optimizer) -> None:
    """Take masters from a state dict that was loaded before there were any.

    All numbers of a weight that was loaded are the master's or their roundings, exactly. Those of one that
    was trained in float32 since are not, though in 16 bits they may be: its master is dropped with a warning.
    """
    adopted, others = [], []
    masters = {master.low: master for master in _masters_of(optimizer)}
    for low, slot in _taken_out(optimizer, masters):
        master, saved = masters[low], slot.float()  # torch has cast it to that of a low parameter
        if is_of(saved, master.value(), low.dtype):
            master.wide.copy_(saved)
            adopted.append((saved, master))
        else:
            others.append(master.name)
    round_all([master for _, master in adopted])
    warn_if_weights_are_rounded((saved, master.policy) for saved, master in adopted)
    if others:
        warn_of_dropped_masters(others, "load_state_dict")


def _taken_out(
    optimizer: optim.Optimizer, parameters: Iterable[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """The masters among the slots of ``parameters``, each with its parameter."""
    found = []
    for parameter in parameters:
        slots = optimizer.state.get(parameter, {})
        if STATE_KEY in slots:
            found.append((parameter, slots.pop(STATE_KEY)))
            if not slots:
                del optimizer.state[parameter]
    return found


def _go_without(optimizer: optim.Optimizer, low: Sequence[Tensor], policy: Policy) -> None:
    """Bring the slots of parameters to their dtype; masters that a state brings are dropped, always."""

    def drop(optimizer: optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        places = {
            place: parameter
            for place, parameter in enumerate(held_parameters(optimizer))
            if parameter.dtype is DTYPES[policy.dtype] and master_of(parameter) is None
        }
        rest, saved = _parted(state_dict, places)
        warn_if_weights_are_rounded((each, policy) for each in saved.values())
        keys = _keys(state_dict)
        slots = [(rest["state"].get(keys[place], {}), held) for place, held in places.items()]
        warn_if_rounded(slots, policy)
        return rest

    warn_if_weights_are_rounded((saved, policy) for _, saved in _taken_out(optimizer, low))
    fit_slots(optimizer, low, torch.float32)
    if optimizer not in _without_masters:
        _without_masters[optimizer] = (
            optimizer.register_load_state_dict_pre_hook(drop),
            optimizer.register_step_pre_hook(check_low_parameters),
        )


_without_masters: WeakKeyDictionary[optim.Optimizer, Sequence[RemovableHandle]] = (
    WeakKeyDictionary()
)
"""The hooks of those that step low parameters themselves."""


def check_low_parameters(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Hook before a step without masters: the slots of what was cast to float32 since follow it."""
    held = held_parameters(optimizer)
    check_dtypes(held)
    for parameter in held:
        known = unmastered(parameter)
        if known is not None and parameter.dtype is not known.dtype:
            fit_slots(optimizer, [parameter], known.dtype)


check_low_parameters._torchdynamo_disable = True  # type: ignore[attr-defined]


def detach(optimizer: optim.Optimizer) -> None:
    """Take the hooks back, unless the optimizer has parameters of other models with masters."""
    for handle in _without_masters.pop(optimizer, ()):
        handle.remove()
    updates = _attached.get(optimizer)
    if updates is None:
        return
    updates.clear_up(optimizer)
    if not any(_masters_of(optimizer)):
        updates.remove(optimizer)
        del _attached[optimizer]


def updating(masters: Iterable[Master]) -> list[optim.Optimizer]:
    """The optimizers that update any of ``masters``."""
    wanted = set(masters)
    return [each for each in _attached if not wanted.isdisjoint(_masters_of(each))]


@contextmanager
def masters_in_optimizers(masters: Iterable[Master]) -> Iterator[None]:
    """Optimizers that update any of ``masters`` hold them as plain float32 parameters."""
    with ExitStack() as afterwards:
        for optimizer in updating(masters):
            updates = _attached.pop(optimizer)
            updates.remove(optimizer)
            afterwards.callback(attach, optimizer)
            afterwards.callback(updates.take_masters_out, optimizer)
            updates.put_masters_in(optimizer)
        yield
