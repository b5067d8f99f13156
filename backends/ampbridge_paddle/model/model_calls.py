"""What is done to the calls of layers: of a model as a whole, and of layers kept in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import paddle

from ampbridge.adapters import kept_calls
from ampbridge.adapters.backend import Decoration
from ampbridge.adapters.frozen_writes import FrozenWrites
from ampbridge.adapters.low_storage import warn_of_rounded_weights
from ampbridge.adapters.nested import map_leaves
from ampbridge.policies.policy import Policy
from ampbridge_paddle._private import method
from ampbridge_paddle.autocast import casting
from ampbridge_paddle.model import compact_masters, low_weights
from ampbridge_paddle.model.native_o2 import NativeO2, take_over
from ampbridge_paddle.model.simulated_o2 import SimulatedO2
from ampbridge_paddle.model.subclassing import Mixin, mix_in, take_out

Layer = Any
Tensor = Any
Call = Callable[..., Any]

_FLOAT32 = Policy("O0")
_version = method("Tensor", paddle.Tensor, "_inplace_version")

# Attributes of a layer, which may have both.
KEPT, MODEL = "_ampbridge_kept", "_ampbridge_model"


class DecoratedLayer(Mixin):
    """Mixed into kept layers and decorated models."""

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        call: Call = super().__call__  # type: ignore[misc]
        if KEPT in vars(self):
            call = partial(_call_kept, call)
        model = decorated(self)
        return call(*inputs, **options) if model is None else model.run(call, *inputs, **options)

    def set_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load also what was saved in another dtype than the layer holds, which Paddle's own refuses.

        Masters become what their parameters are set to, or else the next step would undo that. One that
        rounds to a 16-bit value keeps its further digits: it may have been loaded before. What has no
        master is rounded, and a warning says so if that loses digits.
        """
        held = self.state_dict(use_hook=False)  # type: ignore[attr-defined]
        given = {
            key: paddle.to_tensor(value) if isinstance(value, np.ndarray) else value
            for key, value in state_dict.items()
        }
        fitting = {key: _in_dtype_of(held.get(key), value) for key, value in given.items()}
        masters = masters_of(self)
        result = super().set_state_dict(fitting, *args, **kwargs)  # type: ignore[misc]
        for key in held.keys() & given.keys():
            if held[key].name in masters:
                take_over(masters[held[key].name], given[key])
        keep_masters(self, masters)
        low_weights.round_storage(held.values())
        _tell_of_lost_digits((held[key], given[key]) for key in held.keys() & given.keys())
        return result

    set_dict = load_dict = set_state_dict


def _in_dtype_of(held: Any, value: Any) -> Any:
    if held is None or not isinstance(value, paddle.Tensor) or value.dtype == held.dtype:
        return value
    return value.astype(held.dtype)


def _tell_of_lost_digits(loaded: Iterable[tuple[Tensor, Any]]) -> None:
    """Warn once if one of these parameters without a master is not the float32 value that came for it."""
    for parameter, value in loaded:
        policy = low_weights.policy_of(parameter) or compact_masters.policy_of(parameter)
        if policy is None or policy.variable_dtype == "float32":
            continue
        if value.shape == parameter.shape and bool((parameter.astype(value.dtype) != value).any()):
            hint = policy.replace(masters="float32")
            warn_of_rounded_weights(policy, "saved in float32", repr(hint))
            return


def _call_kept(call: Call, *inputs: Any, **options: Any) -> Any:
    """Call a kept layer: in float32, with all that is below it, if an O1 or O2 region is open."""
    kept_calls.note(call.__self__)  # type: ignore[attr-defined]  # the layer's own method
    if not casting.is_in_low_region():
        return call(*inputs, **options)
    with casting.region(_FLOAT32):
        inputs, options = _in_dtype((inputs, options), "float32")
        return _in_dtype(call(*inputs, **options), "float32")


class DecoratedModel:
    """A model that is called under the policy of ``decoration``.

    Args:
        parameters: None below O2.
        frozen: those of them that are frozen, by their names.
    """

    def __init__(
        self,
        decoration: Decoration,
        parameters: NativeO2 | SimulatedO2 | None,
        frozen: Mapping[str, Tensor],
    ) -> None:
        self.decoration, self.parameters = decoration, parameters
        self._frozen, self._frozen_writes = frozen, FrozenWrites()
        self._versions: Mapping[str, int] = {}
        self._written()

    def run(self, call: Call, *inputs: Any, **options: Any) -> Any:
        policy = self.decoration.policy
        if self._frozen:
            self._frozen_writes.look(self._written)
        if isinstance(self.parameters, SimulatedO2):
            self.parameters.check_storage()
        if self.decoration.standalone and not casting.is_active(policy):
            with casting.region(policy):
                return _in_dtype(call(*inputs, **options), policy.output_dtype)
        if not (self.decoration.standalone or casting.is_in_low_region()):
            return call(*inputs, **options)
        return _in_dtype(call(*inputs, **options), policy.output_dtype)

    def _written(self) -> list[str]:
        """The names of the frozen parameters that were written to since this was called last."""
        before = self._versions
        self._versions = {name: _version(p) for name, p in self._frozen.items()}
        return [name for name, version in self._versions.items() if version != before.get(name)]


def _in_dtype(tree: Any, dtype: str) -> Any:
    return map_leaves(lambda x: casting.in_region_dtype(x, dtype), tree)


def decorated(layer: Layer) -> DecoratedModel | None:
    """What ``layer`` is decorated as, if it is a decorated model."""
    found: DecoratedModel | None = vars(layer).get(MODEL)
    return found


def masters_of(layer: Layer) -> Mapping[str, Tensor]:
    """See ``NativeO2.masters``; none below O2."""
    model = decorated(layer)
    return {} if model is None or model.parameters is None else model.parameters.masters()


def keep_masters(layer: Layer, masters: Mapping[str, Tensor]) -> None:
    """See ``NativeO2.keep``; ``masters`` are those of ``masters_of``."""
    model = decorated(layer)
    if model is not None and isinstance(model.parameters, NativeO2):
        model.parameters.keep(masters)


def decorate_calls(layer: Layer, attribute: str, value: Any = True) -> None:
    """Let ``layer`` be called as ``KEPT`` says, or as a ``DecoratedModel`` under ``MODEL``."""
    layer.__dict__[attribute] = value
    mix_in(DecoratedLayer, layer)


def undecorate_calls(layer: Layer, attribute: str) -> None:
    """Take ``decorate_calls`` back."""
    layer.__dict__.pop(attribute, None)
    if KEPT not in vars(layer) and MODEL not in vars(layer):
        take_out(DecoratedLayer, layer)
