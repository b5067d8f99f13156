"""Float32 masters of low-precision parameters, and the hooks by which optimizers update them.

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

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary, ref

import torch
from torch import Tensor, nn, optim
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ampbridge.adapters.calling_code import warn
from ampbridge.adapters.frozen_writes import FrozenWrites
from ampbridge.adapters.low_storage import (
    cast_since,
    is_moment,
    joined,
    no_moments,
    not_decorated_with,
    rounded_by_chance,
    split,
    warn_of_dropped_masters,
    warn_of_rounded_slots,
    warn_of_rounded_weights,
)
from ampbridge.errors import CallOrderError, UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge_torch import _private
from ampbridge_torch.autocast.casting import DTYPES
from ampbridge_torch.step import ranks

STATE_KEY = "master_weight"

UPDATES = "updates_rounded_by_chance"
"""Where the first group of an optimizer counts them: the count seeds the draws, and torch saves it.

It stays there when the optimizer is undecorated, as it goes on from there when it is decorated anew.
"""

CHUNK = 2**24
"""As many numbers of compact masters or low slots are float32 at a time, or one parameter."""

IN_CACHE = 2**15
"""As many are rounded at a time on a CPU: torch starts no threads for them."""

Draws = Callable[[Tensor], Tensor]
T = TypeVar("T")


class WideParameter:
    """A parameter of a model at O2 that stays float32. It is copied and pickled as a master is."""

    def __init__(self, tensor: Tensor, name: str) -> None:
        self.tensor, self.name = tensor, name
        self.dtype = torch.float32
        self.known_dtypes = {self.dtype}
        _wide[id(tensor)] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return WideParameter, (self.tensor, self.name)


class Master:
    """A tensor of a model in low precision, and the float32 tensor that it is the rounding of.

    It is copied and pickled together with the model, whose tensor it refers to.

    Attributes:
        wide: the float32 tensor, an ``nn.Parameter``.
        dtype: in which the low tensor was made; ``model.float()`` may have cast it since.
        known_dtypes: those in which it may be, without a word.
        name: that of the low tensor in the model.
        policy: says how the two are kept, and the optimizer's slots for them.
        low_slots: whether these are in bfloat16 between steps.
        version: torch's count of writes to the low tensor when the two last agreed.
        loaded_at: that count when a state of the model was loaded into the low tensor.
    """

    def __init__(self, low: Tensor, wide: Tensor | None, name: str, policy: Policy) -> None:
        self.low = low
        self.dtype = low.dtype
        self.known_dtypes = {low.dtype}
        self.wide: Any = wide
        self.name = name
        self.policy = policy
        self.low_slots = policy.slots == "bfloat16"
        self.version = low._version
        self.loaded_at: int | None = None
        self._given_out: list[ref[Tensor]] = []
        self._widened: Tensor | None = None
        _masters[id(low)] = self
        _watch.start()

    def value(self) -> Tensor:
        """The float32 value, to be read; what others wrote is in it."""
        self.adopt()
        wide: Tensor = self.wide.detach()
        return wide

    def __reduce__(self) -> tuple[Any, ...]:
        self.adopt()  # a new one takes them to agree
        return Master, (self.low, self.wide, self.name, self.policy)

    def gave_out(self, data: Tensor) -> None:
        """Note that somebody has ``data``, the low tensor's memory, and may write to it."""
        self._given_out = [*self._still_out(), ref(data)]

    def adopt(self) -> None:
        """Take over what others wrote to the low tensor: an initialisation, loaded weights, a clamp.

        Element by element, so that what was not written keeps its float32 value. It costs nothing
        where torch counted no write and nobody got ``.data``.
        """
        given_out, is_written = self._given_out, self.low._version != self.version
        if given_out:
            self._given_out = self._still_out()
        if given_out or is_written or self.low.device != self.wide.device:
            self._take_over()

    def adopt_if_written(self) -> bool:
        """``adopt``, and whether somebody wrote to the low tensor; through ``.data``, other values."""
        written = self.low._version != self.version
        if self._given_out and not written:
            written = not torch.equal(self.low, self.wide.to(self.low))
        self.adopt()
        return written

    def _still_out(self) -> list[ref[Tensor]]:
        return [each for each in self._given_out if each() is not None]

    @torch.no_grad()
    def _take_over(self) -> None:
        low, wide = self.low, self.wide.data.to(self.low.device)  # after model.to(device)
        values = low.to(wide.dtype)
        if low.ndim == wide.ndim:  # of other sizes after a resized embedding, say
            both = tuple(map(slice, map(min, low.shape, wide.shape)))
            same = low[both] == wide[both].to(self.dtype).to(low.dtype)
            values[both] = torch.where(same, wide[both], values[both])
        self.wide.data = wide.copy_(values) if low.shape == wide.shape else values
        self.version = low._version

    def is_as_loaded(self) -> bool:
        """Whether a state of the model was loaded, and no step was taken since: each step writes as well.

        Torch's ``load_state_dict`` writes once more after its hooks.
        """
        return self.loaded_at is not None and self.low._version <= self.loaded_at + 1

    def widened(self, grad: Tensor) -> Tensor:
        """A float32 tensor for ``grad``, the same one at each step: a new one costs more than the copy."""
        if self._widened is None or self._widened.shape != grad.shape:
            self._widened = torch.empty_like(grad, dtype=self.wide.dtype)
        return self._widened

    def forget(self) -> None:
        _masters.pop(id(self.low), None)
        if not _masters:
            _watch.stop()


class CompactMaster(Master):
    """A master whose float32 tensor is made when it is asked for, and goes when it is stored.

    In between others may write to the low tensor: the rest stays within half a unit of what they wrote.

    Attributes:
        rest: what the low tensor lacks, in int16; None but for "kahan".
    """

    _wide: nn.Parameter | None

    def __init__(self, low: Tensor, rest: Tensor | None, name: str, policy: Policy) -> None:
        super().__init__(low, None, name, policy)
        self.rest: Any = rest

    def __reduce__(self) -> tuple[Any, ...]:
        return CompactMaster, (self.low, self.rest, self.name, self.policy)

    @property
    def wide(self) -> Any:
        if self._wide is None:
            widen([self])
        return self._wide

    @wide.setter
    def wide(self, wide: Any) -> None:
        self._wide = wide

    def value(self) -> Tensor:
        return _made_wide([self])[0] if self._wide is None else self._wide.detach()

    def has_rest(self) -> bool:
        """Whether there is one for each number: a resized embedding has others, say."""
        return self.rest is not None and self.rest.shape == self.low.shape

    def adopt(self) -> None:
        """Nothing is to be done: the low tensor is what counts."""

    def adopt_if_written(self) -> bool:
        written, self.version = self.low._version != self.version, self.low._version
        return written

    def widened(self, grad: Tensor) -> Tensor:
        return grad.new_empty(grad.shape, dtype=torch.float32)  # to keep it would cost as a master


def makes_masters(policy: Policy) -> bool:
    """Whether low parameters have masters: with "none" for the updates of low slots, in float32."""
    return policy.level == "O2" and (policy.masters is not None or policy.slots != "float32")


def make_master(policy: Policy, low: Tensor, wide: Tensor, name: str) -> Master:
    """The master of ``low``, by ``policy.masters``."""
    if policy.masters == "float32":
        return Master(low, wide, name, policy)
    rest = torch.zeros_like(low, dtype=torch.int16) if policy.masters == "kahan" else None
    compact = CompactMaster(low, rest, name, policy)
    compact.wide = wide
    round_all([compact])
    return compact


def is_of(master: Tensor, value: Tensor, low: torch.dtype) -> bool:
    """Whether a float32 ``value`` is ``master`` or its rounding to ``low``, in all of its numbers.

    "kahan" rounds ties in its own way.
    """
    if master.shape != value.shape:
        return False
    upper: Tensor = split(master.view(torch.int32), torch.where)[0].view(master.dtype)
    same = (value == master) | (value == master.to(low)) | (value == upper)
    return bool(same.all())


def _rounded_by(draws: Draws, wide: Sequence[Tensor]) -> Tensor:
    """The numbers of ``wide``, each rounded by chance to a bfloat16, in one piece."""
    bits, drawn = _in_one(wide).view(torch.int32), _in_one([*map(draws, wide)])
    rounded: Tensor = rounded_by_chance(bits, drawn, torch.where).view(torch.float32)
    return rounded


def seeded(seed: int) -> Draws:
    """Draws for one update: the same ones on each rank, and in a run that was resumed."""
    generators: dict[torch.device, torch.Generator] = {}

    def draw(like: Tensor) -> Tensor:
        generator = generators.get(like.device)
        if generator is None:
            generator = generators[like.device] = torch.Generator(like.device).manual_seed(seed)
        return torch.randint(
            0x10000, like.shape, generator=generator, dtype=torch.int32, device=like.device
        )

    return draw


# By identity of the low tensor, which a master keeps alive; the model's decoration keeps the masters.
_masters: WeakValueDictionary[int, Master] = WeakValueDictionary()
_wide: WeakValueDictionary[int, WideParameter] = WeakValueDictionary()

at_o2: WeakSet[nn.Module] = WeakSet()
"""The models whose parameters have masters."""


def master_of(tensor: Tensor) -> Master | None:
    """The master of a tensor, if it has one."""
    return _masters.get(id(tensor))


@torch.no_grad()
def round_all(masters: Sequence[Master], draws: Draws | None = None) -> None:
    """Give the low tensors their masters' values; with ``draws``, "stochastic" ones by chance.

    Compact masters let go of their float32 tensors.
    """
    plain = [master for master in masters if not isinstance(master, CompactMaster)]
    copy_all([master.low for master in plain], [master.wide for master in plain])
    compact = [m for m in masters if isinstance(m, CompactMaster) and m._wide is not None]
    for piece in _pieces(compact, lambda m: m.wide, lambda m: m.policy.masters):
        _store(piece, draws)
    for master in (*plain, *compact):
        master.version = master.low._version


# -- compact masters, many at a time: a GPU would wait for the kernels of each


def widen(masters: Iterable[CompactMaster]) -> None:
    """Make the float32 tensors of those that have none."""
    narrow = [master for master in masters if master._wide is None]
    for piece in _pieces(narrow, lambda m: m.low, lambda m: (m.low.dtype, m.has_rest())):
        for master, value in zip(piece, _made_wide(piece), strict=True):
            master.wide = nn.Parameter(value)


@torch.no_grad()
def _made_wide(masters: Sequence[CompactMaster]) -> list[Tensor]:
    low = [master.low.detach() for master in masters]
    wide = _in_one(low).float()
    if masters[0].has_rest():
        rest = _in_one([master.rest for master in masters]).to(wide.device).int()
        wide = joined(wide.view(torch.int32), rest, torch.where).view(wide.dtype)
    return [
        value if like.is_contiguous() else torch.empty_like(like, dtype=value.dtype).copy_(value)
        for value, like in zip(_apart(wide, low), low, strict=True)
    ]


def _store(masters: Sequence[CompactMaster], draws: Draws | None) -> None:
    """Keep the float32 tensors in 16 bits, all in one way."""
    wide, kind = [master.wide.detach() for master in masters], masters[0].policy.masters
    if kind == "kahan":
        upper, rest = split(_in_one(wide).view(torch.int32), torch.where)
        rounded = upper.view(torch.float32)
        for master, value in zip(masters, wide, strict=True):
            if not master.has_rest() or master.rest.device != value.device:
                master.rest = torch.empty_like(value, dtype=torch.int16)
        copy_all([master.rest for master in masters], _apart(rest, wide))
    elif kind == "stochastic" and draws is not None:
        rounded = _rounded_by(draws, wide)
    else:
        rounded = _in_one(wide)
    copy_all([master.low for master in masters], _apart(rounded, wide))
    for master in masters:
        master.wide = None


def copy_all(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy tensors of any dtype, on a GPU by a few kernels."""
    if to:
        _private.lookup("_foreach_copy_")(to, values)


def _pieces(
    items: Iterable[T], tensor: Callable[[T], Tensor], kind: Callable[[T], object]
) -> Iterator[list[T]]:
    """Items of one kind, side by side, whose tensors are computed as one."""
    piece: list[T] = []
    size, present = 0, None
    for item in items:
        each = tensor(item)
        room = IN_CACHE if each.device.type == "cpu" else CHUNK
        size += each.numel()
        if piece and (size > room or present != (each.device, kind(item))):
            yield piece
            piece, size = [], each.numel()
        piece.append(item)
        present = each.device, kind(item)
    if piece:
        yield piece


def _in_one(tensors: Sequence[Tensor]) -> Tensor:
    flat = [tensor.reshape(-1) for tensor in tensors]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def _apart(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def _written_frozen() -> list[str]:
    """The frozen low parameters that were written to; their masters take it over."""
    frozen = [master for master in _masters.values() if not master.low.requires_grad]
    return [master.name for master in frozen if master.adopt_if_written()]


class _Replaced(NamedTuple):
    """A master that stands in ``param_groups``, and the gradient of its parameter."""

    master: Master
    grad: Tensor | None


class MasterUpdates:
    """The hooks of one optimizer, which put masters in the place of their parameters.

    While they stand there the parameters have no gradients. So after a step that raised, whose
    masters are still in place, ``zero_grad`` and the next backward pass do what they always do; the
    next call of the optimizer clears up.
    """

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self._replaced: list[_Replaced] = []
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

    def _put_masters_in(
        self, optimizer: optim.Optimizer, chunk: Collection[int] | None = None
    ) -> None:
        """Put masters in; the groups have only the parameters of ``chunk`` then, given by their ids."""
        self.clear_up(optimizer)
        for group in optimizer.param_groups:
            parameters = group["params"]  # changed in place: LBFGS keeps the list
            held = list(parameters)
            present = [p for p in held if chunk is None or id(p) in chunk]
            widen(m for m in map(master_of, present) if isinstance(m, CompactMaster))
            self._groups.append((parameters, held))
            parameters[:] = [self._put_in(parameter, optimizer.state) for parameter in present]
        _widen_slots(self._slots(optimizer))

    def _put_in(self, parameter: Tensor, state: dict[Tensor, Any]) -> Tensor:
        master = master_of(parameter)
        if master is None:
            return parameter
        master.adopt()
        wide: Tensor = master.wide
        self._replaced.append(_Replaced(master, parameter.grad))
        parameter.grad = None
        if parameter in state:
            state[wide] = state.pop(parameter)
        return wide

    def _slots(self, optimizer: optim.Optimizer) -> list[tuple[dict[str, Any], Tensor]]:
        """The slots of the masters that stand in, and their parameters."""
        masters = [place.master for place in self._replaced]
        return [(optimizer.state.get(each.wide, {}), each.low) for each in masters]

    def _take_masters_out(self, optimizer: optim.Optimizer, *, rounded: bool = False) -> None:
        """Put the parameters back; ``rounded``: with the values of their masters."""
        state, replaced, slots = optimizer.state, self._replaced, self._slots(optimizer)
        self._replaced = []
        for parameters, held in self._groups:
            parameters[:] = held
        self._groups = []
        for master, grad in replaced:
            master.low.grad = grad
            master.wide.grad = None
            if master.wide in state:
                state[master.low] = state.pop(master.wide)
        _store_slots(slots, self._draws_of_slots)
        if rounded:
            round_all([place.master for place in replaced], self._draws)

    def clear_up(self, optimizer: optim.Optimizer) -> None:
        """Take masters out after a step that raised. Gradients that came in the meantime are valid."""
        self._replaced = [place._replace(grad=place.master.low.grad) for place in self._replaced]
        self._take_masters_out(optimizer)

    def _hand_over_gradients(self) -> None:
        """Give masters their gradients in float32: those of ``step``, or their parameters'."""
        narrow, wide = [], []
        for master, grad in self._replaced:
            grad = self._given.get(id(master.low), grad)
            if grad is None or grad.dtype is master.wide.dtype:
                master.wide.grad = grad
            elif grad.is_sparse:
                master.wide.grad = grad.to(master.wide.dtype)
            else:
                master.wide.grad = master.widened(grad)
                narrow.append(grad)
                wide.append(master.wide.grad)
        copy_all(wide, narrow)

    # -- step

    @torch.no_grad()
    def _before_step(
        self, optimizer: optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._replaced and _private.steps_under_way(optimizer) > 1:
            return None  # the parent's step, called by the optimizer's own
        masters = list(_masters_of(optimizer))
        if len(optimizer.param_groups) != self._group_count:
            self._look_at_new_groups(optimizer)
        widens = any(each.low_slots or isinstance(each, CompactMaster) for each in masters)
        check_dtypes(held_parameters(optimizer))
        _check_capturing(optimizer, widens)
        self._frozen_writes.look(_written_frozen)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        self.clear_up(optimizer)
        if any(each.low_slots or each.policy.masters == "stochastic" for each in masters):
            self._count_update(optimizer)
        *earlier, last = _chunks(optimizer) if widens else [None]
        if earlier and closure is not None:
            with torch.enable_grad():
                loss = closure()
            closure = _returning(loss)
        for chunk in earlier:
            self._put_masters_in(optimizer, chunk)
            self._hand_over_gradients()
            _private.step_without_hooks(optimizer)
            self._take_masters_out(optimizer, rounded=True)
        self._put_masters_in(optimizer, last)
        self._hand_over_gradients()
        if closure is None:
            return None
        if not earlier:
            closure = partial(self._evaluate, optimizer, closure)
        if len(args) > 1:
            return (args[0], closure, *args[2:]), kwargs
        return args, {**kwargs, "closure": closure}

    def _look_at_new_groups(self, optimizer: optim.Optimizer) -> None:
        """Warn of layers that came into a model at O2 since, of which it trains parameters."""
        from ampbridge_torch.model.decorating import warn_of_new_layers  # which imports this module

        self._group_count = len(optimizer.param_groups)
        held = set(map(id, held_parameters(optimizer)))
        for model in list(at_o2):
            if any(id(parameter) in held for parameter in model.parameters()):
                warn_of_new_layers(model)

    def _count_update(self, optimizer: optim.Optimizer) -> None:
        first = optimizer.param_groups[0]
        if first.get(UPDATES) == 1:
            _warn_without_moments(optimizer)
        first[UPDATES] = first.get(UPDATES, 0) + 1
        self._draws, self._draws_of_slots = seeded(first[UPDATES]), seeded(-first[UPDATES])

    def _end_update(self, optimizer: optim.Optimizer) -> None:
        self._take_masters_out(optimizer, rounded=True)
        self._draws = self._draws_of_slots = None

    def _evaluate(self, optimizer: optim.Optimizer, closure: Callable[[], Any]) -> Any:
        """Call a closure, which finds the model's parameters in the optimizer, at their newest values."""
        self._take_masters_out(optimizer, rounded=True)
        loss = closure()
        with torch.no_grad():
            self._put_masters_in(optimizer)
            self._hand_over_gradients()
        return loss

    def _after_step(self, optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
        if _private.steps_under_way(optimizer) > 1:
            return  # the parent's step has ended
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
            self._take_masters_out(optimizer)

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
            self._put_masters_in(present)
            self._hand_over_gradients()
            try:
                return method(present, *args, **kwargs)
            finally:
                self._replaced = [  # without the gradients that it has taken away
                    place if place.master.wide.grad is not None else place._replace(grad=None)
                    for place in self._replaced
                ]
        finally:
            self._calling = False
            self._take_masters_out(present, rounded=True)

    # -- save and load

    def _after_saving(
        self, optimizer: optim.Optimizer, state_dict: dict[str, Any]
    ) -> dict[str, Any]:
        state = dict(state_dict["state"])
        for key, parameter in zip(_keys(state_dict), held_parameters(optimizer), strict=True):
            master = master_of(parameter)
            exact = isinstance(master, CompactMaster) and master.rest is None
            if master is not None and not exact:
                state[key] = {**state.get(key, {}), STATE_KEY: master.value()}
        return {**state_dict, "state": state}

    def _before_loading(
        self, optimizer: optim.Optimizer, state_dict: dict[str, Any]
    ) -> dict[str, Any]:
        """With masters in place torch keeps the slots in float32: it casts to the parameter's dtype."""
        saved = state_dict["state"]
        self._loaded = {
            position: saved[key][STATE_KEY]
            for position, key in enumerate(_keys(state_dict))  # keys may be names, not numbers
            if STATE_KEY in saved.get(key, ())
        }
        state = {}
        for key, entry in saved.items():
            if isinstance(entry, Mapping):
                entry = {name: slot for name, slot in entry.items() if name != STATE_KEY}
            if entry:
                state[key] = entry
        self._put_masters_in(optimizer)
        return {**state_dict, "state": state}

    @torch.no_grad()
    def _after_loading(self, optimizer: optim.Optimizer) -> None:
        """Masters take what is loaded, unless other weights than theirs were loaded into the model before.

        Those were trained since in float32, by an optimizer that knows of no masters. A parameter that is
        float32 now, and was not when the state was saved, takes the digits that its weights lack.
        """
        in_groups, taken, dropped = held_parameters(optimizer), [], []
        masters = {id(place.master.wide): place.master for place in self._replaced}
        for position, loaded in self._loaded.items():
            wide = in_groups[position]
            value, master = loaded.to(wide.device, torch.float32), masters.get(id(wide))
            dtypes = DTYPES.values() if master is None else [master.dtype]
            has_loaded = master is None or master.is_as_loaded()
            if not has_loaded or any(is_of(value, wide, dtype) for dtype in dtypes):
                wide.copy_(value)
                taken += [] if master is None else [(value, master.policy)]
            elif master is not None:
                dropped.append(master.name)
        warn_if_weights_are_rounded(taken, "saved in float32 with the optimizer")
        if dropped:
            warn_of_dropped_masters(dropped, "load_state_dict")
        self._loaded = {}
        low = [each.master for each in self._replaced if each.master.low_slots]
        if low:
            slots = [(optimizer.state.get(master.wide, {}), master.low) for master in low]
            warn_if_rounded(slots, low[0].policy)
        self._take_masters_out(optimizer, rounded=True)


def _keys(state_dict: Mapping[str, Any]) -> list[Any]:
    """What a state dict calls the parameters, in their order."""
    return [key for group in state_dict["param_groups"] for key in group["params"]]


def held_parameters(optimizer: optim.Optimizer) -> list[Tensor]:
    """All parameters of an optimizer, in the order in which torch counts them in its state dict."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _masters_of(optimizer: optim.Optimizer) -> Iterator[Master]:
    for parameter in held_parameters(optimizer):
        master = master_of(parameter)
        if master is not None:
            yield master


def check_dtypes(parameters: Iterable[Tensor]) -> None:
    """Refuse what was cast to other 16 bits since it was decorated; warn once of what is float32."""
    cast = [
        (parameter.dtype, known)
        for parameter in parameters
        if (known := master_of(parameter) or _wide.get(id(parameter))) is not None
        and parameter.dtype not in known.known_dtypes
    ]
    for dtype, known in sorted(cast, key=lambda each: each[0] is torch.float32):
        said = cast_since(known.name, dtype, known.dtype)
        if isinstance(known, WideParameter) or dtype is not torch.float32:
            raise CallOrderError(
                f"{said}\nHint: amp.undecorate(model, optimizer), whose parameters are float32, in place of "
                "model.half() and the like"
            )
        for _, each in cast:
            each.known_dtypes.add(torch.float32)
        beside = {"float32": " beside their masters", None: ", and no update is rounded"}
        warn(
            f"{said} Its weights take 4 bytes each now{beside.get(known.policy.masters, '')}.\n"
            "Hint: amp.decorate(model, optimizer, policy), which casts them again; or, for a float32 model, "
            "amp.undecorate(model, optimizer)"
        )
        return


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
    if widens and _is_in_cuda_graph():
        raise UnsupportedError(
            f"A CUDA graph cannot hold this update by {kind}: what is in 16 bits between two updates is in "
            "float32 for each, at another place, and is rounded by other draws.\n"
            "Hint: masters='float32' and slots='float32'; or step outside of the graph."
        )


def _is_in_cuda_graph() -> bool:
    is_built = (
        torch.version.cuda is not None or torch.version.hip is not None
    )  # for no virtual device
    return is_built and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _chunks(optimizer: optim.Optimizer) -> list[set[int]]:
    """The ids of the parameters that are updated at a time, where some become float32 for it."""
    chunks, size = [set[int]()], 0
    own = type(optimizer).__module__.startswith("torch.optim.")
    is_split = own and not isinstance(optimizer, optim.LBFGS)
    for parameter in held_parameters(optimizer):
        size += parameter.numel()
        if is_split and chunks[-1] and size > CHUNK:
            chunks.append(set())
            size = parameter.numel()
        chunks[-1].add(id(parameter))
    return chunks


def _returning(value: Any) -> Callable[[], Any]:
    return lambda: value


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


class _Watch:
    """Watches all steps and all ``.data`` while there are masters: torch has no hook on one parameter.

    It is ``nn.Parameter.data``: torch counts what is written to a tensor, but not what goes through
    that.
    """

    def __init__(self) -> None:
        self._handle: RemovableHandle | None = None

    def start(self) -> None:
        if self._handle is None:
            self._handle = register_optimizer_step_pre_hook(check_masters_are_updated)
            nn.Parameter.data = self  # type: ignore[assignment]

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
            del nn.Parameter.data  # which it has from Tensor

    def __get__(self, parameter: Tensor | None, owner: type) -> Any:
        data = _OF_TENSORS.__get__(parameter, owner)
        if not _masters:
            self.stop()  # the last decorated model was dropped
        elif parameter is not None and (master := master_of(parameter)) is not None:
            master.gave_out(data)
        return data

    def __set__(self, parameter: Tensor, data: Tensor) -> None:
        _OF_TENSORS.__set__(parameter, data)
        if (master := master_of(parameter)) is not None:
            master.gave_out(data)
            master.version = -1  # no version of a tensor: its values are others


_OF_TENSORS: Any = Tensor.data
_watch = _Watch()


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
    if _private.any_is_sharded(held):
        its_own = set(map(id, held))  # perhaps in the places of parameters that had masters
        for model in list(at_o2):
            if any(id(p) in its_own for p in model.parameters()):
                ranks.check_not_sharded(model)


# As ``torch.compiler.disable`` does, which would import Dynamo; torch 2.6 to 2.13.
check_masters_are_updated._torchdynamo_disable = True  # type: ignore[attr-defined]


def attach(optimizer: optim.Optimizer) -> None:
    """Let ``optimizer`` update the masters of its parameters, now and after ``add_param_group``."""
    if optimizer not in _attached:
        _attached[optimizer] = MasterUpdates(optimizer)
    _adopt_loaded(optimizer)
    _store_slots(((optimizer.state.get(m.low, {}), m.low) for m in _masters_of(optimizer)), None)


@torch.no_grad()
def _adopt_loaded(optimizer: optim.Optimizer) -> None:
    """Take masters from a state dict that was loaded before there were any.

    All numbers of a weight that was loaded are the master's or their roundings, exactly. Those of one that
    was trained in float32 since are not, though in 16 bits they may be: its master is dropped with a warning.
    """
    adopted, others = [], []
    for parameter in held_parameters(optimizer):
        slots, master = optimizer.state.get(parameter, {}), master_of(parameter)
        if master is None or STATE_KEY not in slots:
            continue
        saved = slots.pop(STATE_KEY).float()  # which torch has cast to that of a low parameter
        if not slots:
            del optimizer.state[parameter]
        if is_of(saved, master.value(), parameter.dtype):
            master.wide.copy_(saved)
            adopted.append((saved, master))
        else:
            others.append(master.name)
    round_all([master for _, master in adopted])
    taken = ((saved, master.policy) for saved, master in adopted)
    warn_if_weights_are_rounded(taken, "saved in float32 with the optimizer")
    if others:
        warn_of_dropped_masters(others, "load_state_dict")


def detach(optimizer: optim.Optimizer) -> None:
    """Take the hooks back, unless the optimizer has parameters of other models with masters."""
    if optimizer in _without_masters:
        _without_masters.pop(optimizer).remove()
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
            afterwards.callback(updates._take_masters_out, optimizer)
            updates._put_masters_in(optimizer)
        yield


# -- slots


def fit_slots(
    optimizer: optim.Optimizer, parameters: Iterable[Tensor], before: torch.dtype
) -> None:
    """Bring the slots of ``parameters`` to their dtype; counters stay.

    So do slots of another dtype than ``before``, which was the parameters': an optimizer's own choice.
    """
    for parameter in parameters:
        slots = optimizer.state.get(parameter, {})
        for name, slot in slots.items():
            if not is_counter(name, slot, parameter):
                slots[name] = _cast_slot(slot, before, parameter.dtype)


def without_masters(
    optimizer: optim.Optimizer, parameters: Sequence[Tensor], policy: Policy
) -> None:
    """Bring the slots of ``parameters`` to their dtype; masters that a state brings are dropped, always."""
    slots_of = [optimizer.state[p] for p in parameters if p in optimizer.state]
    saved = [(slots.pop(STATE_KEY), policy) for slots in slots_of if STATE_KEY in slots]
    warn_if_weights_are_rounded(saved, "saved in float32 with the optimizer")
    fit_slots(optimizer, parameters, torch.float32)
    if optimizer not in _without_masters:
        drop = partial(_drop_masters, policy)
        _without_masters[optimizer] = optimizer.register_load_state_dict_pre_hook(drop)


_without_masters: WeakKeyDictionary[optim.Optimizer, RemovableHandle] = WeakKeyDictionary()
"""The hooks of those that step low parameters themselves."""


def _drop_masters(
    policy: Policy, optimizer: optim.Optimizer, state_dict: dict[str, Any]
) -> dict[str, Any]:
    """Hook before a state is loaded: low parameters take no masters from it."""
    state, saved = dict(state_dict["state"]), []
    for key, parameter in zip(_keys(state_dict), held_parameters(optimizer), strict=False):
        is_low = parameter.dtype is DTYPES[policy.dtype] and master_of(parameter) is None
        if is_low and STATE_KEY in state.get(key, ()):
            slots = dict(state.pop(key))
            saved.append((slots.pop(STATE_KEY), policy))
            if slots:
                state[key] = slots
    warn_if_weights_are_rounded(saved, "saved in float32 with the optimizer")
    return {**state_dict, "state": state}


def is_kept_low(slot: Any, parameter: Tensor) -> bool:
    """Whether ``slot`` is in bfloat16 between two steps of its optimizer."""
    master = master_of(parameter)
    return master is not None and master.low_slots and _is_dense_moment(slot, parameter)


def _is_dense_moment(slot: Any, parameter: Tensor) -> bool:
    """SGD's momentum of sparse gradients is sparse, and stays as it is."""
    return is_moment(slot, parameter) and slot.layout is torch.strided


def warn_if_rounded(slots_of: Iterable[tuple[Mapping[str, Any], Tensor]], policy: Policy) -> None:
    """Warn of the slots of low parameters if their becoming low changes them."""
    dtype = policy.dtype if policy.masters is None and policy.slots == "float32" else policy.slots
    low = DTYPES[dtype]
    moments = (
        slot
        for slots, parameter in slots_of
        for name, slot in slots.items()
        if name != STATE_KEY and _is_dense_moment(slot, parameter) and slot.dtype is torch.float32
    )
    if low is not torch.float32 and any(not torch.equal(s, s.to(low).float()) for s in moments):
        warn_of_rounded_slots(policy, dtype)


def warn_if_weights_are_rounded(loaded: Iterable[tuple[Tensor, Policy]], were: str) -> bool:
    """Warn of float32 values from a state if a policy rounds them, and that changes them; whether it does."""
    for value, policy in loaded:
        rounded = value.to(DTYPES[policy.variable_dtype])
        if not torch.equal(value, rounded.to(value.dtype)):
            warn_of_rounded_weights(policy, were, repr(policy.replace(masters="float32")))
            return True
    return False


Slots = Iterable[tuple[dict[str, Any], Tensor]]
"""Of an optimizer, each with its parameter."""


def _widen_slots(slots: Slots) -> None:
    """Those that are low become float32, for an update."""
    low = _in_dtype(slots, torch.bfloat16)
    wide = [torch.empty_like(own[name], dtype=torch.float32) for own, name in low]
    copy_all(wide, [own[name] for own, name in low])
    for (own, name), slot in zip(low, wide, strict=True):
        own[name] = slot


@torch.no_grad()
def _store_slots(slots: Slots, draws: Draws | None) -> None:
    """Those that are to be low become bfloat16, by chance; without ``draws`` to nearest."""
    for piece in _pieces(_in_dtype(slots, torch.float32), lambda one: one[0][one[1]], type):
        wide = [own[name] for own, name in piece]
        rounded = wide if draws is None else _apart(_rounded_by(draws, wide), wide)
        low = [torch.empty_like(slot, dtype=torch.bfloat16) for slot in wide]
        copy_all(low, rounded)
        for (own, name), slot in zip(piece, low, strict=True):
            own[name] = slot


def _in_dtype(slots: Slots, dtype: torch.dtype) -> list[tuple[dict[str, Any], str]]:
    """Where those are that are kept low between two steps, and are ``dtype`` now."""
    return [
        (own, name)
        for own, parameter in slots
        for name, slot in own.items()
        if is_kept_low(slot, parameter) and slot.dtype is dtype
    ]


def _warn_without_moments(optimizer: optim.Optimizer) -> None:
    """Warn if slots are to be low, and the first update has made none: before it only SGD's are known."""
    low = [master for master in _masters_of(optimizer) if master.low_slots]
    slots = [(s, m.low) for m in low for s in optimizer.state.get(m.low, {}).values()]
    if low and not any(is_kept_low(*pair) for pair in slots):
        warn(str(no_moments(low[0].policy, optimizer)))


def is_counter(name: str, slot: Any, parameter: Tensor) -> bool:
    """Whether a slot is a number that torch's optimizers count in, whatever the parameter's dtype.

    All slots of a parameter without dimensions are numbers: these are told by their names.
    """
    if not isinstance(slot, Tensor) or slot.ndim:
        return False
    return parameter.ndim > 0 or name in ("step", "eta", "mu", "mu_product")


def _cast_slot(slot: Any, before: torch.dtype, dtype: torch.dtype) -> Any:
    if isinstance(slot, Tensor):
        return slot.to(dtype) if slot.dtype is before else slot
    if isinstance(slot, list):
        return [_cast_slot(item, before, dtype) for item in slot]
    return slot
