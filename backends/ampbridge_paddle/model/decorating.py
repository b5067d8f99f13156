"""Fitting a model and its optimizer to a policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import paddle

from ampbridge.adapters.backend import Decoration, Magnitude, is_normalization
from ampbridge.adapters.backend import Layer as LayerOfModel
from ampbridge.errors import UnsupportedError
from ampbridge_paddle._private import method
from ampbridge_paddle.autocast import execution
from ampbridge_paddle.autocast.dtypes import is_float32
from ampbridge_paddle.model import native_o2, saving
from ampbridge_paddle.model.low_weights import low_dtype_of
from ampbridge_paddle.model.model_calls import (
    DecoratedModel,
    Kept,
    ParametersAtO2,
    add_role,
    remove_role,
    role_of,
)
from ampbridge_paddle.model.simulated_o2 import SimulatedO2
from ampbridge_paddle.step.hybrid_groups import without_wrapper

Layer = Any
Tensor = Any


def layers(model: Layer) -> list[LayerOfModel]:
    """See ``Backend.layers``."""
    model = without_wrapper(model)
    return [
        LayerOfModel(name, type(layer).__name__, layer, _own_shapes(layer))
        for name, layer in model.named_sublayers(include_self=True)
    ]


def _own_shapes(layer: Layer) -> dict[str, tuple[int, ...]]:
    own = layer.named_parameters(include_sublayers=False)
    return {name: tuple(parameter.shape) for name, parameter in own}


def decorate(model: Layer, optimizer: Any, decoration: Decoration) -> None:
    """See ``Backend.decorate``."""
    execution.check(decoration.policy)
    at_o2 = decoration.policy.level == "O2"
    if at_o2 and isinstance(model, paddle.DataParallel):
        _check_that_its_buckets_fit(decoration)
    model = without_wrapper(model)
    parameters = _parameters_at_o2(model, optimizer, decoration) if at_o2 else None
    if decoration.save_dtype is not None:
        saving.save_in(model, decoration.save_dtype)
    for layer in _called_layers(decoration.kept):
        add_role(layer, Kept())
    frozen = {name: p for name, p in model.named_parameters() if p.stop_gradient and _is_low(p)}
    add_role(model, DecoratedModel(decoration, parameters, frozen))


def _called_layers(kept: Iterable[Layer]) -> Iterator[Layer]:
    """Kept layers and all below them, which a method may call, without containers."""
    parts = {id(part): part for layer in kept for part in layer.sublayers(include_self=True)}
    for part in parts.values():
        if not isinstance(part, (paddle.nn.LayerList, paddle.nn.LayerDict)):
            yield part


def _check_that_its_buckets_fit(decoration: Decoration) -> None:
    """Data parallel groups gradients by dtype when it is made; simulated, they stay float32."""
    if execution.of(decoration.policy) == "native":
        raise UnsupportedError(
            "A paddle.DataParallel has sorted the parameters by their dtypes already.\n"
            "Hint: amp.decorate(model, optimizer, policy), then paddle.DataParallel(model)"
        )


def undecorate(model: Layer, optimizer: Any) -> None:
    """See ``Backend.undecorate``."""
    model = without_wrapper(model)
    role = role_of(model, DecoratedModel)
    if role is None:
        return
    if role.parameters is not None:
        role.parameters.release(model)
    remove_role(model, DecoratedModel)
    for layer in _called_layers(role.decoration.kept):
        remove_role(layer, Kept)
    saving.save_as_held(model)


def decoration(model: Layer, optimizer: Any) -> Decoration | None:
    """See ``Backend.decoration``."""
    role = role_of(without_wrapper(model), DecoratedModel)
    if role is None:
        return None
    served = role.parameters is None or optimizer is None or role.parameters.serves(optimizer)
    decorated: Decoration | None = role.decoration if served else None
    return decorated


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
    stays |= {
        id(p) for p in model.parameters() if paddle.is_floating_point(p) and not is_float32(p)
    }
    others = [each.layer for each in every if id(each.layer) not in full]
    parameters = {
        id(p): p
        for layer in others
        for p in _own_parameters(layer)
        if is_float32(p) and id(p) not in stays
    }
    shares = [layer for layer in others if not stays.isdisjoint(map(id, _own_parameters(layer)))]
    return LowTensors(list(parameters.values()), [*full.values(), *shares])


@paddle.no_grad()
def largest_magnitudes(model: Layer, kept: Sequence[Layer]) -> list[Magnitude]:
    """See ``Backend.largest_magnitudes``."""
    low = {id(p) for p in low_tensors(model, kept).parameters if _has_values(p)}
    held: dict[int, tuple[LayerOfModel, str, Tensor]] = {}
    for layer in layers(model):
        for name, parameter in layer.layer.named_parameters(include_sublayers=False):
            if id(parameter) in low:
                held.setdefault(id(parameter), (layer, name, parameter))
    if not held:
        return []
    largest = paddle.stack([parameter.abs().max() for _, _, parameter in held.values()]).tolist()
    return [Magnitude(*each[:2], value) for each, value in zip(held.values(), largest, strict=True)]


def _has_values(parameter: Tensor) -> bool:
    return bool(method("Tensor", parameter, "_is_initialized")()) and parameter.size > 0


def _own_parameters(layer: Layer) -> list[Tensor]:
    own: list[Tensor] = layer.parameters(include_sublayers=False)
    return own


def shares_low_weights(model: Layer) -> bool:
    """Whether a part of ``model``, or what it is a part of, is decorated at O2."""
    return any(map(_is_low, without_wrapper(model).parameters()))


def _is_low(parameter: Tensor) -> bool:
    return low_dtype_of(parameter) is not None or native_o2.is_low(parameter)


def _parameters_at_o2(model: Layer, optimizer: Any, decoration: Decoration) -> ParametersAtO2:
    if shares_low_weights(model):
        raise UnsupportedError(
            "The model shares parameters with one that is decorated at O2 already.\n"
            "Hint: amp.undecorate(that_model, its_optimizer) first."
        )
    low = low_tensors(model, decoration.kept)
    policy = decoration.policy
    if execution.of(policy) == "native":
        return native_o2.NativeO2(model, optimizer, decoration, low.parameters, low.left_out)
    return SimulatedO2(low.parameters, policy, optimizer)
