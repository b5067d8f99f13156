"""Float32 masters of a model's parameters in low precision, and what others write to these."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary, ref

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ampbridge.adapters.calling_code import warn
from ampbridge.adapters.low_storage import cast_since, warn_of_rounded_weights
from ampbridge.errors import CallOrderError
from ampbridge.policies.policy import Policy
from ampbridge_torch.autocast.casting import DTYPES
from ampbridge_torch.model.rounding import Draws, joined_from, round_to, split_to, widened


class Unmastered:
    """A parameter without a master of a model at O2, low or not. It is copied and pickled as a master is."""

    def __init__(self, tensor: Tensor, name: str, policy: Policy) -> None:
        self.tensor, self.name, self.policy = tensor, name, policy
        self.dtype = tensor.dtype
        self.known_dtypes = {self.dtype}
        _unmastered[id(tensor)] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return Unmastered, (self.tensor, self.name, self.policy)


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
        is_written = self.low._version != self.version
        if self._given_out or is_written or self.low.device != self.wide.device:
            self._given_out = self._still_out()
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
    """A master whose float32 tensor is made when it is asked for, and goes when it is rounded.

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
        return _values([self])[self] if self._wide is None else self._wide.detach()

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
    compact = CompactMaster(low, None, name, policy)
    compact.wide = wide
    round_all([compact])
    return compact


def widen(masters: Iterable[Master]) -> None:
    """Make the float32 tensors of compact ones that have none."""
    narrow = [m for m in masters if isinstance(m, CompactMaster) and m._wide is None]
    for master, value in _values(narrow).items():
        master.wide = nn.Parameter(value)


@torch.no_grad()
def _values(masters: Iterable[CompactMaster]) -> dict[CompactMaster, Tensor]:
    rests = {master: master.rest for master in masters if master.has_rest()}
    plain = [master for master in masters if master not in rests]
    joined = joined_from([master.low.detach() for master in rests], [*rests.values()])
    made = widened([master.low.detach() for master in plain])
    return dict(zip([*rests, *plain], [*joined, *made], strict=True))


@torch.no_grad()
def round_all(masters: Iterable[Master], draws: Draws | None = None) -> None:
    """Give the low tensors their masters' values; with ``draws``, "stochastic" ones by chance.

    Compact masters let go of their float32 tensors.
    """
    by_kind: dict[str | None, list[Any]] = defaultdict(list)
    for master in masters:
        if not isinstance(master, CompactMaster) or master._wide is not None:
            by_kind[master.policy.masters].append(master)
    for kind, alike in by_kind.items():
        low, wide = [each.low for each in alike], [each.wide for each in alike]
        if kind == "kahan":
            for each, value in zip(alike, wide, strict=True):
                if not each.has_rest() or each.rest.device != value.device:
                    each.rest = torch.empty_like(value, dtype=torch.int16)
            split_to(low, [each.rest for each in alike], wide)
        else:
            round_to(low, wide, draws if kind == "stochastic" else None)
        for each in alike:
            each.version = each.low._version
            if kind != "float32":
                each.wide = None


# By identity of the low tensor, which a master keeps alive; the model's decoration keeps the masters.
_masters: WeakValueDictionary[int, Master] = WeakValueDictionary()
_unmastered: WeakValueDictionary[int, Unmastered] = WeakValueDictionary()


def master_of(tensor: Tensor) -> Master | None:
    """The master of a tensor, if it has one."""
    return _masters.get(id(tensor))


def unmastered(tensor: Tensor) -> Unmastered | None:
    """What is known of a parameter at O2 that has no master."""
    return _unmastered.get(id(tensor))


def of_no_model_at_o2(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Those of ``parameters`` whose dtype is the user's own."""
    return [p for p in parameters if master_of(p) is None and unmastered(p) is None]


def written_frozen() -> list[str]:
    """The frozen low parameters that were written to; their masters take it over."""
    frozen = [master for master in _masters.values() if not master.low.requires_grad]
    return [master.name for master in frozen if master.adopt_if_written()]


class _Watch:
    """Watches all steps and all ``.data`` while there are masters: torch has no hook on one parameter.

    It is ``nn.Parameter.data``: torch counts what is written to a tensor, but not what goes through
    that.
    """

    def __init__(self) -> None:
        self._handle: RemovableHandle | None = None

    def start(self) -> None:
        if self._handle is None:
            from ampbridge_torch.model.master_updates import check_masters_are_updated

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


def check_dtypes(parameters: Iterable[Tensor]) -> None:
    """Refuse what was cast to other 16 bits since it was decorated; warn once of what is float32."""
    cast = [
        (parameter.dtype, known)
        for parameter in parameters
        if (known := master_of(parameter) or unmastered(parameter)) is not None
        and parameter.dtype not in known.known_dtypes
    ]
    for dtype, known in sorted(cast, key=lambda each: each[0] is torch.float32)[:1]:
        said = cast_since(known.name, dtype, known.dtype)
        if known.dtype is torch.float32 or dtype is not torch.float32:
            raise CallOrderError(
                f"{said}\nHint: amp.undecorate(model, optimizer), whose parameters are float32, in place of "
                "model.half() and the like"
            )
        for _, each in cast:
            each.known_dtypes.add(dtype)
        beside = {"float32": " beside their masters", None: ", and no update is rounded"}
        warn(
            f"{said} Its weights take 4 bytes each now{beside.get(known.policy.masters, '')}.\n"
            "Hint: amp.decorate(model, optimizer, policy), which casts them again; or, for a float32 model, "
            "amp.undecorate(model, optimizer)"
        )


def warn_if_weights_are_rounded(
    loaded: Iterable[tuple[Tensor, Policy]], of: str = " with the optimizer"
) -> bool:
    """Warn of float32 values from a state if a policy rounds them, and that changes them; whether it does."""
    for value, policy in loaded:
        rounded = value.to(DTYPES[policy.variable_dtype])
        if not torch.equal(value, rounded.to(value.dtype)):
            exact = repr(policy.replace(masters="float32"))
            warn_of_rounded_weights(policy, f"saved in float32{of}", exact)
            return True
    return False
