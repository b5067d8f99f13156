"""Fitting a model and its optimizer to a policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple

import paddle

from ampbridge.adapters.backend import Decoration, Magnitude, is_normalization
from ampbridge.adapters.backend import Layer as LayerOfModel
from ampbridge.adapters.low_storage import warn_if_nothing_is_low
from ampbridge.errors import UnsupportedError
from ampbridge_paddle._private import method
from ampbridge_paddle.autocast import execution
from ampbridge_paddle.autocast.dtypes import is_float32
from ampbridge_paddle.autocast.rounding import round_to
from ampbridge_paddle.model import native_o2
from ampbridge_paddle.model.low_weights import low_dtype_of
from ampbridge_paddle.model.model_calls import (
    KEPT,
    MODEL,
    DecoratedModel,
    decorate_calls,
    decorated,
    undecorate_calls,
)
from ampbridge_paddle.model.simulated_o2 import SimulatedO2
from ampbridge_paddle.step.hybrid_groups import without_wrapper

Layer = Any
Tensor = Any


def layers(model: Layer) -> list[LayerOfModel]:
    """See ``Backend.layers``."""
    found = []
    for name, layer in without_wrapper(model).named_sublayers(include_self=True):
        own = layer.named_parameters(include_sublayers=False)
        shapes = {name: tuple(parameter.shape) for name, parameter in own}
        found.append(LayerOfModel(name, type(layer).__name__, layer, shapes))
    return found


def decorate(model: Layer, optimizer: Any, decoration: Decoration) -> None:
    """See ``Backend.decorate``."""
    policy = decoration.policy
    execution.check(policy)
    at_o2 = policy.level == "O2"
    if at_o2 and isinstance(model, paddle.DataParallel) and execution.of(policy) == "native":
        # It groups gradients by dtype when it is made. Where O2 is simulated they stay float32.
        raise UnsupportedError(
            "A paddle.DataParallel has sorted the parameters by their dtypes already.\n"
            "Hint: amp.decorate(model, optimizer, policy), then paddle.DataParallel(model)"
        )
    model = without_wrapper(model)
    parameters = _parameters_at_o2(model, optimizer, decoration) if at_o2 else None
    if decoration.save_dtype is not None:
        model.register_state_dict_hook(_SavedIn(decoration.save_dtype))
    for layer in _called_layers(decoration.kept):
        decorate_calls(layer, KEPT)
    frozen = {name: p for name, p in model.named_parameters() if p.stop_gradient and _is_low(p)}
    decorate_calls(model, MODEL, DecoratedModel(decoration, parameters, frozen))


def _called_layers(kept: Iterable[Layer]) -> Iterator[Layer]:
    """Kept layers, and all layers below them that are no containers: a method may call them."""
    parts = {id(part): part for layer in kept for part in layer.sublayers(include_self=True)}
    for part in parts.values():
        if not isinstance(part, (paddle.nn.LayerList, paddle.nn.LayerDict)):
            yield part


class _SavedIn:
    """A hook of ``state_dict`` like that of ``paddle.amp.decorate(save_dtype=...)``, which rounds exactly.

    Tensors that are in ``dtype`` already stay themselves, so that values can be loaded into them.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    @paddle.no_grad()
    def __call__(self, state: MutableMapping[str, Tensor]) -> None:
        for key, value in state.items():
            if paddle.is_floating_point(value) and value.dtype != getattr(paddle, self._dtype):
                exact = value.detach()
                if exact.dtype == paddle.float32:
                    exact = round_to(exact, self._dtype)
                state[key] = exact.astype(self._dtype)
                state[key].name = value.name  # as Paddle's own hook does


def undecorate(model: Layer, optimizer: Any) -> None:
    """See ``Backend.undecorate``."""
    model = without_wrapper(model)
    present = decorated(model)
    if present is None:
        return
    if present.parameters is not None:
        present.parameters.release(model)
    undecorate_calls(model, MODEL)
    for layer in _called_layers(present.decoration.kept):
        undecorate_calls(layer, KEPT)
    hooks = method("Layer", model, "_state_dict_hooks")
    for number in [number for number, hook in hooks.items() if isinstance(hook, _SavedIn)]:
        del hooks[number]


def serve(model: Layer, optimizer: Any) -> None:
    """See ``Backend.serve``."""
    present = decorated(without_wrapper(model))
    if present is not None and present.parameters is not None:
        present.parameters.serve(optimizer)


def served(model: Layer) -> list[Any]:
    """See ``Backend.served``: those that step in another way than they did."""
    present = decorated(without_wrapper(model))
    parameters = None if present is None else present.parameters
    return [] if parameters is None else parameters.optimizers


def decoration(model: Layer, optimizer: Any) -> Decoration | None:
    """See ``Backend.decoration``."""
    present = decorated(without_wrapper(model))
    if present is None:
        return None
    parameters = present.parameters
    fits = parameters is None or optimizer is None or parameters.serves(optimizer)
    return present.decoration if fits else None


# Paddle's own normalizations, whose parameters stay float32. Its O2 keeps these of the first two lines;
# of the third, layer and instance norm in float16 alone.
NORMALIZATIONS = (
    paddle.nn.BatchNorm, paddle.nn.BatchNorm1D, paddle.nn.BatchNorm2D, paddle.nn.BatchNorm3D,
    paddle.nn.SyncBatchNorm,
    paddle.nn.LayerNorm, paddle.nn.GroupNorm,
    paddle.nn.InstanceNorm1D, paddle.nn.InstanceNorm2D, paddle.nn.InstanceNorm3D,
)  # fmt: skip


class LowTensors(NamedTuple):
    """The parameters that a decoration puts into low precision, and the layers that it leaves out."""

    parameters: Sequence[Tensor]
    left_out: Sequence[Layer]


def low_tensors(model: Layer, kept: Sequence[Layer]) -> LowTensors:
    """The float32 parameters of ``model`` apart from those of kept layers and normalizations."""
    every = layers(model)
    below_kept = [part for layer in kept for part in layer.sublayers(include_self=True)]
    full = {id(layer): layer for layer in below_kept}
    full |= {id(x.layer): x.layer for x in every if is_normalization(x, NORMALIZATIONS)}
    stays = {id(p) for layer in full.values() for p in _own_parameters(layer)}
    floating = [p for p in model.parameters() if paddle.is_floating_point(p)]
    stays |= {id(p) for p in floating if not is_float32(p)}
    others = [each.layer for each in every if id(each.layer) not in full]
    shares = [layer for layer in others if not stays.isdisjoint(map(id, _own_parameters(layer)))]
    return LowTensors([p for p in floating if id(p) not in stays], [*full.values(), *shares])


@paddle.no_grad()
def largest_magnitudes(model: Layer, kept: Sequence[Layer], dtype: str) -> list[Magnitude]:
    """See ``Backend.largest_magnitudes``."""
    low = {
        id(p)
        for p in low_tensors(model, kept).parameters
        if method("Tensor", p, "_is_initialized")()  # what is empty never is
    }
    places, values = [], []
    for layer in layers(model):
        for name, parameter in layer.layer.named_parameters(include_sublayers=False):
            if id(parameter) in low:
                low.remove(id(parameter))  # each comes once
                places.append((layer, name))
                is_rounded = (parameter.astype(dtype).astype(parameter.dtype) != parameter).any()
                values += [parameter.abs().max(), is_rounded.astype(parameter.dtype)]
    found = iter(paddle.stack(values).tolist() if values else [])
    return [Magnitude(*place, next(found), bool(next(found))) for place in places]


def _own_parameters(layer: Layer) -> list[Tensor]:
    own: list[Tensor] = layer.parameters(include_sublayers=False)
    return own


def _is_low(parameter: Tensor) -> bool:
    return low_dtype_of(parameter) is not None or native_o2.is_low(parameter)


def _parameters_at_o2(
    model: Layer, optimizer: Any, decoration: Decoration
) -> native_o2.NativeO2 | SimulatedO2:
    if any(map(_is_low, model.parameters())):
        raise UnsupportedError(
            "The model shares parameters with one that is decorated at O2 already.\n"
            "Hint: amp.undecorate(that_model, its_optimizer) first."
        )
    low = low_tensors(model, decoration.kept)
    policy = decoration.policy
    warn_if_nothing_is_low(policy, low.parameters)
    if execution.of(policy) == "native":
        return native_o2.NativeO2(model, optimizer, decoration, low.parameters, low.left_out)
    return SimulatedO2(low.parameters, policy, optimizer)
