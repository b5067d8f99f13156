"""A model fitted to a policy: what happens around its calls, and while it is differentiated.

The arrays stay float32 and are the masters that the optimizer updates. While the model is called or
differentiated its modules read them rounded: once, so that the gradient of a parameter is rounded
once as well. In the 4 bytes of such an array are the low weight and what Kahan's compensation holds.
With ``masters=None`` and ``"stochastic"`` the arrays themselves are rounded, after each step, and so are
slots that are to be low.

Out of reach: a part of a decorated model that is called by itself, outside of ``gradients``, is
undecorated. Arrays that are no parameters, such as tables of positions, stay float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampbridge.adapters.arguments import check_parts
from ampbridge.adapters.backend import (
    Decoration,
    Layer,
    Magnitude,
    Model,
    Optimizer,
    is_normalization,
)
from ampbridge.adapters.calling_code import warn
from ampbridge.adapters.low_storage import (
    is_moment,
    no_moments,
    rounded_by_chance,
    warn_if_nothing_is_low,
    warn_of_rounded_slots,
)
from ampbridge.adapters.nested import map_leaves
from ampbridge.adapters.outputs import warn_of_low_values_inside
from ampbridge.adapters.registry import full_name
from ampbridge.errors import ArgumentTypeError, UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge_numpy import nn, optim
from ampbridge_numpy.autocast.casting import cast, casts_here, dtype_of, region, rules_of

NORMALIZATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)
"""Our own normalizations, whose parameters stay float32 at O2."""


def layers(model: Model) -> list[Layer]:
    """See ``Backend.layers``."""
    found: dict[int, Layer] = {}
    for name, module in _checked(model).named_modules():
        shapes = {key: array.shape for key, array in module._own_parameters().items()}
        found.setdefault(id(module), Layer(name, type(module).__name__, module, shapes))
    return list(found.values())


# -- around a call


@dataclass(frozen=True, eq=False)
class ModelCall:
    """What a call of a decorated model does around ``forward``.

    Attributes:
        kept: whether the model itself is a kept layer.
        low: the parameters that are read in ``policy.dtype``.
        rounding: keeps the arrays themselves, or slots, in low precision; None where nothing does.
    """

    decoration: Decoration
    kept: bool
    low: Sequence[np.ndarray]
    rounding: Rounding | None

    def __call__(self, forward: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
        if self.decoration.standalone:
            with region(self.decoration.policy):
                return self._call(forward, *inputs, **options)
        if casts_here():
            return self._call(forward, *inputs, **options)
        return forward(*inputs, **options)

    def _call(self, forward: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
        policy = self.decoration.policy
        if self.kept:
            outputs = nn.in_float32(forward, *inputs, **options)
        else:
            with self.in_effect():
                outputs = forward(*inputs, **options)
        outputs = map_leaves(lambda x: cast(x, policy.output_dtype), outputs)
        warn_of_low_values_inside(outputs, policy.output_dtype, _dtype_name)
        return outputs

    @contextmanager
    def in_effect(self) -> Iterator[None]:
        """A context in which parameters are read in ``policy.dtype``, and kept layers run in float32."""
        if not self.low and not self.decoration.kept:
            yield
            return
        dtype = self.decoration.policy.dtype
        rounded = {id(array): cast(nn.present(array), dtype) for array in self.low}
        with nn.substituted(rounded), nn.keeping(self.decoration.kept):
            yield


def _dtype_name(value: Any) -> str | None:
    return getattr(dtype_of(value), "name", None)


def decorated(model: Model) -> AbstractContextManager[None]:
    """A context in which parts of ``model`` that are called by themselves follow its decoration too."""
    call = _call_of(model)
    return nullcontext() if call is None else call.in_effect()


# -- decorate and undecorate


@dataclass(eq=False)
class Rounding:
    """Rounds ``arrays``, and their slots, in place when called: after each step of ``optimizer``.

    Slots by chance, and arrays where the policy is "stochastic": the optimizer's count of such updates
    seeds the draws. The first step that makes no slots, where these are to be low, warns.
    """

    arrays: list[np.ndarray]
    policy: Policy
    optimizer: optim.Optimizer
    has_looked: bool = False

    def to_nearest(self) -> None:
        if self.policy.variable_dtype != "float32":
            _round(self.arrays, self.policy.dtype)
        _round(self.slots(), "bfloat16")

    def __call__(self) -> None:
        stochastic = self.policy.masters == "stochastic"
        if self.policy.masters is None:
            _round(self.arrays, self.policy.dtype)
        slots = self.slots()
        if self.policy.slots != "float32" and not self.has_looked:
            self.has_looked = True
            if not slots:
                warn(str(no_moments(self.policy, self.optimizer)))
        by_chance = [*(self.arrays if stochastic else ()), *slots]
        if not by_chance:
            return
        self.optimizer.rounded_by_chance += 1
        generator = np.random.default_rng(self.optimizer.rounded_by_chance)
        for array in by_chance:
            if array.dtype == np.float32:
                draws = generator.integers(0, 0x10000, array.shape, np.int32)
                bits = rounded_by_chance(array.view(np.int32), draws, np.where)
                array[...] = bits.view(np.float32)

    def slots(self) -> list[np.ndarray]:
        """The moments of ``arrays``, if these are to be low."""
        if self.policy.slots == "float32":
            return []
        low = set(map(id, self.arrays))
        return [
            slot
            for parameter, state in zip(
                self.optimizer.parameters, self.optimizer.state, strict=True
            )
            for slot in state.values()
            if id(parameter) in low and is_moment(slot, parameter)
        ]


def _round(arrays: Sequence[np.ndarray], dtype: str) -> None:
    for array in arrays:
        array[...] = cast(array, dtype)


def decorate(model: Model, optimizer: Optimizer | None, decoration: Decoration) -> None:
    """See ``Backend.decorate``.

    Raises:
        UnsupportedError: for ``save_dtype``, where arrays or slots are rounded without an optimizer
            of ``ampbridge_numpy.optim``, or if a part of the model is decorated by itself.
    """
    policy, kept = decoration.policy, decoration.kept
    rules_of(policy)  # refuses what there are no rules for
    check_parts(_checked(model).named_modules(), _decoration_of, policy)
    if decoration.save_dtype not in (None, "float32"):
        raise UnsupportedError(
            f"save_dtype={decoration.save_dtype!r}: modules of ampbridge_numpy have no state_dict; "
            "their arrays are float32.\nHint: np.savez(file, **{name: array.astype('float16') "
            "for name, array in model.named_parameters()})"
        )
    low = _low_parameters(model, kept) if policy.level == "O2" else []
    warn_if_nothing_is_low(policy, low)
    rounding = None
    if policy.variable_dtype != "float32" or policy.slots != "float32":
        if not isinstance(optimizer, optim.Optimizer):
            raise UnsupportedError(
                f"{policy!r}: what it keeps in 16 bits is rounded after each step of an optimizer of "
                f"ampbridge_numpy.optim, and {optimizer!r} is none.\n"
                "Hint: model, optimizer = amp.decorate(model, optimizer, policy)"
            )
        if (
            policy.slots != "float32"
            and isinstance(optimizer, optim.SGD)
            and not optimizer.momentum
        ):
            raise no_moments(policy, optimizer)
        rounding = Rounding(low, policy, optimizer)
        slots = rounding.slots()
        if any(not np.array_equal(slot, cast(slot, policy.slots)) for slot in slots):
            warn_of_rounded_slots(policy, policy.slots)
        optimizer.after_step.append(rounding)
        rounding.to_nearest()
    is_kept = any(layer is model for layer in kept)
    model.around_forward = ModelCall(decoration, is_kept, low, rounding)


def undecorate(model: Model, optimizer: Optimizer | None) -> None:
    """See ``Backend.undecorate``."""
    call = _call_of(model)
    if call is None:
        return
    del model.around_forward
    if call.rounding is None:
        return
    call.rounding.arrays.clear()  # an optimizer that was not passed goes on calling it
    if isinstance(optimizer, optim.Optimizer) and call.rounding in optimizer.after_step:
        optimizer.after_step.remove(call.rounding)


def decoration(model: Model, optimizer: Optimizer | None) -> Decoration | None:
    """See ``Backend.decoration``. Where nothing is rounded after a step, any optimizer fits."""
    call = _call_of(model)
    if call is None:
        return None
    if call.rounding is None or optimizer is None or call.rounding in optimizer.after_step:
        return call.decoration
    return None


def _call_of(model: Model) -> ModelCall | None:
    around = _checked(model).around_forward
    return around if isinstance(around, ModelCall) else None


def _decoration_of(module: nn.Module) -> Decoration | None:
    call = _call_of(module)
    return None if call is None else call.decoration


def _low_parameters(model: nn.Module, kept: Sequence[nn.Module]) -> list[np.ndarray]:
    """The parameters outside of normalizations and kept layers; ``cast`` leaves float64 as it is."""
    wide = {id(array) for layer in kept for array in layer.parameters()}
    for each in layers(model):
        if is_normalization(each, NORMALIZATIONS):
            wide |= {id(array) for array in each.layer._own_parameters().values()}
    return [p for p in model.parameters() if id(p) not in wide]


def largest_magnitudes(model: Model, kept: Sequence[Model]) -> list[Magnitude]:
    """See ``Backend.largest_magnitudes``."""
    low = {id(p) for p in _low_parameters(model, kept) if p.dtype == np.float32 and p.size}
    found: dict[int, Magnitude] = {}
    for layer in layers(model):
        for name, array in layer.layer._own_parameters().items():
            if id(array) in low and id(array) not in found:
                found[id(array)] = Magnitude(layer, name, float(np.abs(array).max()))
    return list(found.values())


def _checked(model: Model) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    msg = f"A model is an ampbridge_numpy.nn.Module, not {full_name(type(model))}.\n"
    raise ArgumentTypeError(msg + "Hint: class Model(nn.Module): ...")
