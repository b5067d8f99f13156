"""A model fitted to a policy: what happens around its calls, and while it is differentiated.

The arrays stay float32 and are the masters that the optimizer updates. While the model is called or
differentiated its modules read them rounded: once, so that the gradient of a parameter is rounded
once as well. In the 4 bytes of such an array are the low weight and what Kahan's compensation holds.
With ``masters=None`` and ``"stochastic"`` the arrays themselves are rounded, after each step, and so are
slots that are to be low (``low_arrays.py``).

Out of reach: a part of a decorated model that is called by itself, outside of ``gradients``, is
undecorated. Arrays that are no parameters, such as tables of positions, stay float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import ref

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
from ampbridge.adapters.low_storage import (
    keeps_low,
    no_moments,
    warn_if_nothing_is_low,
)
from ampbridge.adapters.nested import map_leaves
from ampbridge.adapters.outputs import warn_of_low_values_inside
from ampbridge.adapters.registry import full_name
from ampbridge.errors import ArgumentTypeError, UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge_numpy import nn, optim
from ampbridge_numpy.autocast.casting import cast, casts_here, dtype_of, region, rules_of
from ampbridge_numpy.model.low_arrays import LowArrays

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
        low_arrays: keeps ``low`` themselves, or their slots, in low precision; None where nothing does.
        optimizers: those that the model was decorated together with.
    """

    decoration: Decoration
    kept: bool
    low: Sequence[np.ndarray]
    low_arrays: LowArrays | None
    optimizers: list[ref[optim.Optimizer]]

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
    if keeps_low(policy):
        _check_optimizer(optimizer, policy)
    low = _low_parameters(model, kept) if policy.level == "O2" else []
    warn_if_nothing_is_low(policy, low)
    is_kept = any(layer is model for layer in kept)
    low_arrays = LowArrays(low, policy) if keeps_low(policy) else None
    model.around_forward = ModelCall(decoration, is_kept, low, low_arrays, [])
    if optimizer is not None:
        serve(model, optimizer)


def serve(model: Model, optimizer: Optimizer) -> None:
    """See ``Backend.serve``."""
    call = _call_of(model)
    if call is None or call.low_arrays is None:
        return
    policy = call.decoration.policy
    _check_optimizer(optimizer, policy)
    call.low_arrays.tell_of_slots(optimizer)
    call.low_arrays.slots_to_nearest(optimizer)
    call.optimizers.append(ref(optimizer))


def served(model: Model) -> list[Optimizer]:
    """See ``Backend.served``. Where nothing is kept in 16 bits, there is nothing to know."""
    call = _call_of(model)
    present = [] if call is None else [reference() for reference in call.optimizers]
    return [optimizer for optimizer in present if optimizer is not None]


def _check_optimizer(optimizer: Optimizer | None, policy: Policy) -> None:
    if not isinstance(optimizer, optim.Optimizer | None):
        raise UnsupportedError(
            f"{policy!r}: what it keeps in 16 bits is rounded after each step of an optimizer of "
            f"ampbridge_numpy.optim, and {optimizer!r} is none.\n"
            "Hint: class Mine(optim.Optimizer): ..."
        )
    if policy.slots != "float32" and isinstance(optimizer, optim.SGD) and not optimizer.momentum:
        raise no_moments(policy, optimizer)


def undecorate(model: Model, optimizer: Optimizer | None) -> None:
    """See ``Backend.undecorate``."""
    call = _call_of(model)
    if call is None:
        return
    del model.around_forward
    if call.low_arrays is not None:
        call.low_arrays.release()


def decoration(model: Model, optimizer: Optimizer | None) -> Decoration | None:
    """See ``Backend.decoration``. Where nothing is rounded after a step, any optimizer fits."""
    call = _call_of(model)
    if call is None:
        return None
    fits = call.low_arrays is None or optimizer is None
    return call.decoration if fits or optimizer in served(model) else None


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


def largest_magnitudes(model: Model, kept: Sequence[Model], dtype: str) -> list[Magnitude]:
    """See ``Backend.largest_magnitudes``."""
    low = {id(p) for p in _low_parameters(model, kept) if p.dtype == np.float32 and p.size}
    found: dict[int, Magnitude] = {}
    for layer in layers(model):
        for name, array in layer.layer._own_parameters().items():
            if id(array) in low and id(array) not in found:
                is_rounded = not np.array_equal(array, cast(array, dtype))
                found[id(array)] = Magnitude(layer, name, float(np.abs(array).max()), is_rounded)
    return list(found.values())


def _checked(model: Model) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    msg = f"A model is an ampbridge_numpy.nn.Module, not {full_name(type(model))}.\n"
    raise ArgumentTypeError(msg + "Hint: class Model(nn.Module): ...")
