"""What is done to the calls of layers: of a model as a whole, and of layers kept in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import numpy as np
import paddle

from ampbridge.adapters import kept_calls
from ampbridge.adapters.backend import Decoration
from ampbridge.adapters.frozen_writes import FrozenWrites
from ampbridge.adapters.nested import map_leaves
from ampbridge.policies.policy import Policy
from ampbridge_paddle._private import method
from ampbridge_paddle.autocast import casting
from ampbridge_paddle.model.native_o2 import take_over
from ampbridge_paddle.model.subclassing import Mixin, mix_in, take_out

Layer = Any
Tensor = Any
Call = Callable[..., Any]

_FLOAT32 = Policy("O0")
_version = method("Tensor", paddle.Tensor, "_inplace_version")


class Role(Protocol):
    """What a decorated layer is, of which it can be both."""

    order: int
    """The lower is the further inside."""

    def run(self, call: Call, *inputs: Any, **options: Any) -> Any:
        """``call(*inputs, **options)``, and what there is around it."""


class DecoratedLayer(Mixin):
    """Mixed into layers that have roles."""

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        call: Call = super().__call__  # type: ignore[misc]
        for role in vars(self).get(_ROLES, ()):
            call = partial(role.run, call)
        return call(*inputs, **options)

    def set_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Also of what was saved in another dtype than the layer holds; Paddle's own refuses it."""
        held = self.state_dict(use_hook=False)  # type: ignore[attr-defined]
        given = {key: _as_tensor(value) for key, value in state_dict.items()}
        fitting = {key: _in_dtype_of(held.get(key), value) for key, value in given.items()}
        result = super().set_state_dict(fitting, *args, **kwargs)  # type: ignore[misc]
        _set_masters(self, {held[key].name: given[key] for key in held.keys() & given.keys()})
        return result

    set_dict = load_dict = set_state_dict


def _as_tensor(value: Any) -> Any:
    return paddle.to_tensor(value) if isinstance(value, np.ndarray) else value


def _in_dtype_of(held: Any, value: Any) -> Any:
    if held is None or not isinstance(value, paddle.Tensor) or value.dtype == held.dtype:
        return value
    return value.astype(held.dtype)


def _set_masters(layer: Any, values: Mapping[str, Tensor]) -> None:
    """Let masters be what their parameters were set to, or else the next step would undo that.

    One that rounds to a 16-bit value keeps its further digits: it may have been loaded before.
    """
    role = role_of(layer, DecoratedModel)
    masters = role.parameters.masters() if role is not None and role.parameters is not None else {}
    for name in masters.keys() & values.keys():
        take_over(masters[name], values[name])


_ROLES = "_ampbridge_roles"


def add_role(layer: Layer, role: Role) -> None:
    """Let ``layer`` be called as ``role`` says."""
    roles = [*layer.__dict__.get(_ROLES, ()), role]
    layer.__dict__[_ROLES] = sorted(roles, key=lambda role: role.order)
    mix_in(DecoratedLayer, layer)


def remove_role(layer: Layer, kind: type) -> None:
    """Take ``add_role`` of a role of that kind back."""
    roles = [role for role in layer.__dict__.pop(_ROLES, ()) if not isinstance(role, kind)]
    if roles:
        layer.__dict__[_ROLES] = roles
    else:
        take_out(DecoratedLayer, layer)


def role_of(layer: Layer, kind: type) -> Any:
    """The role of that kind that ``layer`` has, or None."""
    return next((role for role in layer.__dict__.get(_ROLES, ()) if isinstance(role, kind)), None)


class Kept:
    """In float32, with all that is below it, while an O1 or O2 region is open."""

    order = 0

    def run(self, call: Call, *inputs: Any, **options: Any) -> Any:
        kept_calls.note(call.__self__)  # type: ignore[attr-defined]  # innermost: the layer's own method
        if not casting.is_in_low_region():
            return call(*inputs, **options)
        with casting.region(_FLOAT32):
            inputs, options = _in_dtype((inputs, options), "float32")
            return _in_dtype(call(*inputs, **options), "float32")


class ParametersAtO2(Protocol):
    """How the parameters of a model are in low precision."""

    def serves(self, optimizer: Any) -> bool:
        """Whether ``optimizer`` may step the model."""

    def masters(self) -> dict[str, Any]:
        """float32 tensors that are stepped in the place of parameters, by the parameters' names."""

    def release(self, model: Layer) -> None:
        """Take it all back from ``model``, the optimizer's part included."""


class DecoratedModel:
    """Under the policy of ``decoration``.

    Args:
        parameters: None below O2.
        frozen: those of them that are frozen, by their names.
    """

    order = 1

    def __init__(
        self,
        decoration: Decoration,
        parameters: ParametersAtO2 | None,
        frozen: Mapping[str, Tensor],
    ) -> None:
        self.decoration, self.parameters = decoration, parameters
        self._frozen, self._frozen_writes = frozen, FrozenWrites()
        self._written()

    def run(self, call: Call, *inputs: Any, **options: Any) -> Any:
        policy = self.decoration.policy
        if self._frozen:
            self._frozen_writes.look(self._written)
        if not self.decoration.standalone:
            if not casting.is_in_low_region():
                return call(*inputs, **options)
            return _in_dtype(call(*inputs, **options), policy.output_dtype)
        with self._region():
            return _in_dtype(call(*inputs, **options), policy.output_dtype)

    def _written(self) -> list[str]:
        """The names of the frozen parameters that were written to since this was called last."""
        before: Mapping[str, int] = vars(self).get("_versions", {})
        self._versions = {name: _version(p) for name, p in self._frozen.items()}
        return [name for name, version in self._versions.items() if version != before.get(name)]

    def _region(self) -> AbstractContextManager[None]:
        policy = self.decoration.policy
        return nullcontext() if casting.is_active(policy) else casting.region(policy)


def _in_dtype(tree: Any, dtype: str) -> Any:
    return map_leaves(lambda x: casting.in_region_dtype(x, dtype), tree)
