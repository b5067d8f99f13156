"""Weights, slots and settings, as arrays by name.

Paddle knows slots by tensors' names, which count what the process has made before; here they go by
the dotted names of the model's weights.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import paddle
from paddle import nn

from ampbridge.adapters.backend import Model, Optimizer
from ampbridge.adapters.roles.saving import OptimizerState
from ampbridge.checkpoints import outside
from ampbridge.checkpoints.held import Held, Roles, each_once, role_of
from ampbridge.checkpoints.weights import Weight
from ampbridge.errors import StateError, UnsupportedError
from ampbridge_paddle._private import method
from ampbridge_paddle.autocast.dtypes import LOW_NAMES
from ampbridge_paddle.autocast.rounding import round_to
from ampbridge_paddle.model import by_chance
from ampbridge_paddle.model.decorating import NORMALIZATIONS
from ampbridge_paddle.model.low_weights import round_storage
from ampbridge_paddle.model.model_calls import keep_masters, masters_of
from ampbridge_paddle.model.simulated_o2 import low_moments
from ampbridge_paddle.model.slots import check_known, key_of, slots_of
from ampbridge_paddle.step.gradients import parameters
from ampbridge_paddle.step.hybrid_groups import is_sharded, without_wrapper, without_wrappers

Tensor = Any


# -- weights

_NORMALIZATION = {
    "weight": ("norm.scale", "c"),
    "scale": ("norm.scale", "c"),  # as instance norms call it
    "bias": ("norm.offset", "c"),
    "_mean": ("norm.mean", "c"),
    "_variance": ("norm.variance", "c"),
}


def _convolution(role: str, axes: str) -> Roles:
    return {"weight": (f"{role}.kernel", axes), "bias": ("conv.bias", "o")}


# Class -> its tensors' roles and axes.
ROLES: Mapping[type, Roles] = {
    nn.Linear: {"weight": ("dense.kernel", "io"), "bias": ("dense.bias", "o")},
    nn.Conv1D: _convolution("conv", "oiw"),
    nn.Conv2D: _convolution("conv", "oihw"),
    nn.Conv3D: _convolution("conv", "oidhw"),
    nn.Conv1DTranspose: _convolution("conv_transpose", "iow"),
    nn.Conv2DTranspose: _convolution("conv_transpose", "iohw"),
    nn.Conv3DTranspose: _convolution("conv_transpose", "iodhw"),
    nn.Embedding: {"weight": ("embedding.table", "no")},
    **dict.fromkeys(NORMALIZATIONS, _NORMALIZATION),
}


def parameter_names(model: Model) -> list[str]:
    """See ``Backend.parameter_names``."""
    names = {id(p): name for name, p in without_wrapper(model).named_parameters()}
    return [names[id(p)] for p in parameters(model)]


def weights(model: Model) -> list[Weight]:
    """See ``Backend.weights``."""
    found = []
    for each in _tensors(model):
        floating = bool(each.tensor.is_floating_point() or each.tensor.is_complex())
        found.append(Weight(each.name, *_role(each), tuple(each.tensor.shape), floating))
    return found


def read_weights(model: Model) -> dict[str, np.ndarray]:
    """See ``Backend.read_weights``."""
    masters = masters_of(without_wrapper(model))
    return {
        each.name: _float32_if_low(masters.get(each.tensor.name, each.tensor))
        for each in _tensors(model)
    }


@paddle.no_grad()
def write_weights(model: Model, values: Mapping[str, np.ndarray]) -> None:
    """See ``Backend.write_weights``."""
    masters = masters_of(without_wrapper(model))
    for name, _, _, tensor in _tensors(model):
        _assign(tensor, values[name])
        if tensor.name in masters:
            _assign(masters[tensor.name], values[name])
    keep_masters(without_wrapper(model), masters)
    round_storage(each.tensor for each in _tensors(model))


_HINT_OF_RANKS = (
    "Hint: each rank saves its own: paddle.save([model.state_dict(), optimizer.state_dict(), "
    "step.state_dict()], f'rank{paddle.distributed.get_rank()}.pdparams')"
)


def _tensors(model: Model) -> Iterator[Held]:
    """Parameters and persistable buffers, each once."""
    if any(p.is_distributed for p in model.parameters()):
        raise UnsupportedError(
            "The model is model-parallel: no rank has its weights as a whole.\n" + _HINT_OF_RANKS
        )
    return each_once(_all_tensors(model))


def _all_tensors(model: Model) -> Iterator[Held]:
    for prefix, layer in without_wrapper(model).named_sublayers(include_self=True):
        passing = method("Layer", layer, "_non_persistable_buffer_names_set")
        own = [
            *layer.named_parameters(include_sublayers=False),
            *(
                (name, buffer)
                for name, buffer in layer.named_buffers(include_sublayers=False)
                if name not in passing and method("Tensor", buffer, "_is_initialized")()
            ),
        ]
        for attribute, tensor in own:
            yield Held(f"{prefix}.{attribute}".lstrip("."), layer, attribute, tensor)


def _role(held: Held) -> tuple[str, str]:
    role, axes = role_of(held, ROLES)
    if role == "conv.kernel":
        outputs, inputs_of_a_group = held.tensor.shape[:2]
        if 1 < outputs == method("Layer", held.layer, "_groups") and inputs_of_a_group == 1:
            # Each channel by itself, with one output each: other frameworks keep another axis.
            return "depthwise_conv.kernel", f"cm{axes[2:]}"
    return role, axes


def _float32_if_low(tensor: Tensor) -> np.ndarray:
    wide = tensor.astype("float32") if tensor.dtype in LOW_NAMES else tensor
    return np.array(wide.numpy())


def _assign(tensor: Tensor, value: np.ndarray) -> None:
    """Set ``tensor`` in place, since optimizers, marks and compiled programs know the object."""
    given = paddle.to_tensor(np.ascontiguousarray(value), place=tensor.place)
    given = given.reshape(tensor.shape)  # of what has no axes, NumPy makes one
    if tensor.dtype in LOW_NAMES and given.dtype == paddle.float32:
        given = round_to(given, LOW_NAMES[tensor.dtype])
    paddle.assign(given.astype(tensor.dtype), output=tensor)


# -- optimizers

_HINT = "Hint: step.load(path) of what step.save(path) wrote, with an optimizer made alike."


def read_optimizer(optimizer: Optimizer, model: Model) -> OptimizerState:
    """See ``Backend.read_optimizer``."""
    native = _known(optimizer)
    named = _named_parameters(native, model)
    slots = {
        f"{name}/{slot}": np.array(tensor.numpy())
        for name, parameter in named.items()
        for slot, tensor in slots_of(native, parameter).items()
    }
    slots |= {name: _float32_if_low(p) for name, p in _outside(named, model).items()}
    rate = method("Optimizer", native, "_learning_rate")
    # By what the rates of single weights are multiplied.
    factors = {name: p.optimize_attr.get("learning_rate", 1.0) for name, p in named.items()}
    settings = {
        "lr": _plain(rate.state_dict()) if _is_scheduler(rate) else float(rate),
        "lr_of_weights": {
            name: float(factor)
            for name, factor in factors.items()
            if _is_number(factor) and factor != 1.0
        },
        "groups": [_numbers(group) for group in _groups(native)],
        by_chance.SAVED_AS: by_chance.count_of(native),
    }
    return OptimizerState(slots, settings)


@paddle.no_grad()
def write_optimizer(optimizer: Optimizer, model: Model, state: OptimizerState) -> None:
    """See ``Backend.write_optimizer``."""
    native = _known(optimizer)
    named = _named_parameters(native, model)
    others, slots = _outside(named, model), dict(state.slots)
    values = outside.taken_from(slots, {k: _float32_if_low(p) for k, p in others.items()})
    wanted: dict[str, dict[str, np.ndarray]] = {}
    for key, value in slots.items():
        name, _, slot = key.rpartition("/")
        wanted.setdefault(name, {})[slot] = value
    unknown = sorted(wanted.keys() - named.keys())
    if unknown:
        raise StateError(f"slots of no parameter: {unknown[:4]}.\n{_HINT}")
    count = state.settings.get(by_chance.SAVED_AS)
    if type(count) is not int or count < 0:
        raise StateError(f"{by_chance.SAVED_AS}={count!r:.100} is no count.\n{_HINT}")
    _write_rates(native, named, state.settings)
    for name, parameter in named.items():
        if name in wanted:
            _write_slots(native, name, parameter, wanted[name])
        else:
            _forget_slots(native, parameter)
    _forget_lists_of_slots(native)
    for moment in low_moments(native):
        paddle.assign(round_to(moment, "bfloat16"), output=moment)
    for name, parameter in others.items():
        _assign(parameter, values[name])
    by_chance.set_count(native, count)


def _known(optimizer: Optimizer) -> Any:
    if is_sharded(optimizer):
        raise UnsupportedError(
            "The optimizer is sharded: no rank has the slots of all weights.\n" + _HINT_OF_RANKS
        )
    native = without_wrappers(optimizer)
    check_known(native)
    # What ``set_state_dict`` has left until the first step, under names of Paddle's.
    if method("Optimizer", native, "_accumulators_holder").keys() - {by_chance.SAVED_AS}:
        raise UnsupportedError(
            "The optimizer was given a state that it takes over in its first step; before, it can be "
            "neither saved nor loaded.\n"
            "Hint: step.save(path) after a step; step.load(path) instead of optimizer.set_state_dict()."
        )
    return native


def _named_parameters(optimizer: Any, model: Model) -> dict[str, Tensor]:
    """The optimizer's parameters by their names in the model, or their places; frozen ones included."""
    if (
        method("Optimizer", optimizer, "_master_weights").keys()
        - masters_of(without_wrapper(model)).keys()
    ):
        raise UnsupportedError(
            "The optimizer has masters that amp.decorate did not make.\n"
            "Hint: model, optimizer = amp.decorate(model, optimizer, 'O2:bfloat16'), instead of "
            "paddle.amp.decorate."
        )
    names = {id(p): name for name, p in without_wrapper(model).named_parameters()}
    own = [p for group in _groups(optimizer) for p in group["params"]]
    own = own or method("Optimizer", optimizer, "_parameter_list")
    return {names.get(id(p), outside.name_of(place)): p for place, p in enumerate(own)}


def _outside(named: Mapping[str, Tensor], model: Model) -> dict[str, Tensor]:
    """The optimizer's parameters that the model does not have."""
    own = {id(p) for p in without_wrapper(model).parameters()}
    return {name: p for name, p in named.items() if id(p) not in own}


def _groups(optimizer: Any) -> list[dict[str, Any]]:
    groups = method("Optimizer", optimizer, "_param_groups") or []
    return [group for group in groups if isinstance(group, dict)]


# -- slots


def _write_slots(
    optimizer: Any, name: str, parameter: Tensor, values: Mapping[str, np.ndarray]
) -> None:
    if not slots_of(optimizer, parameter):
        block = paddle.static.default_main_program().global_block()
        method("Optimizer", optimizer, "_create_accumulators")(block, [parameter])
    present = slots_of(optimizer, parameter)
    if present.keys() != values.keys():
        has, wants = sorted(values), sorted(present)
        raise StateError(f"{name!r} has the slots {has}, the optimizer {wants}.\n{_HINT}")
    for slot, tensor in present.items():
        value, held = values[slot], tensor.numpy()
        if (value.shape, value.dtype) != (held.shape, held.dtype):
            raise StateError(
                f"slot {f'{name}/{slot}'!r} is {value.dtype}{value.shape}, the optimizer's is "
                f"{held.dtype}{held.shape}.\n{_HINT}"
            )
        tensor.set_value(value)


def _forget_slots(optimizer: Any, parameter: Tensor) -> None:
    """Leave no slots, as before the first step with a gradient, when Paddle makes them."""
    key, accumulators = (
        key_of(optimizer, parameter),
        method("Optimizer", optimizer, "_accumulators"),
    )
    for name in list(accumulators):
        accumulators[name].pop(key, None)
        if not accumulators[name]:
            del accumulators[name]
    method("Optimizer", optimizer, "_already_create_accumulator").discard(parameter.name)


def _forget_lists_of_slots(optimizer: Any) -> None:
    """Empty the lists that ``use_multi_tensor`` keeps beside the accumulators; Paddle fills them again."""
    empty = method("Optimizer", optimizer, "_create_multi_tensor_dict")
    for kept in vars(optimizer).values():
        if isinstance(kept, dict) and kept.keys() == empty().keys():
            kept.update({k: lists for k, lists in empty().items() if kept[k] is not None})


# -- rates


def own_rate(optimizer: Any) -> float | None:
    """The learning rate of an optimizer; None if a scheduler decides it."""
    rate = method("Optimizer", optimizer, "_learning_rate")
    return None if _is_scheduler(rate) else float(rate)


def _is_scheduler(rate: Any) -> bool:
    return isinstance(rate, paddle.optimizer.lr.LRScheduler)


def _plain(state: Any) -> Any:
    """What the scheduler of a rate remembers, with Python's numbers instead of NumPy's."""
    if isinstance(state, Mapping):
        return {key: _plain(value) for key, value in state.items()}
    if isinstance(state, (np.ndarray, np.generic)):
        return _plain(state.item())
    if state is None or isinstance(state, (bool, int, float, str)):
        return state
    raise UnsupportedError(
        f"The learning rate's scheduler remembers a {type(state).__name__}, which is not plain data.\n"
        "Hint: let its state_keys() name numbers alone."
    )


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number, or a flag."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def _write_rates(optimizer: Any, named: Mapping[str, Tensor], settings: Mapping[str, Any]) -> None:
    _write_rate(optimizer, settings.get("lr"))
    rates, groups = settings.get("lr_of_weights"), settings.get("groups")
    if not isinstance(rates, dict) or not rates.keys() <= named.keys():
        raise StateError(f"lr_of_weights={rates!r:.200} is of other weights.\n{_HINT}")
    for name, parameter in named.items():
        if _is_number(parameter.optimize_attr.get("learning_rate", 1.0)):
            parameter.optimize_attr["learning_rate"] = _checked_number(name, rates.get(name, 1.0))
    own = _groups(optimizer)
    if not isinstance(groups, list) or [*map(_keys, groups)] != [_keys(_numbers(g)) for g in own]:
        raise StateError(f"groups={groups!r:.200} are not the optimizer's.\n{_HINT}")
    for group, values in zip(own, groups, strict=True):
        group.update({key: _checked_number(key, value) for key, value in values.items()})


def _keys(values: Any) -> set[str] | None:
    return set(values) if isinstance(values, dict) else None


def _checked_number(name: str, value: Any) -> Any:
    if not _is_number(value):
        raise StateError(f"{name}={value!r:.100} is no finite number.\n{_HINT}")
    return value


def _is_like(value: Any, present: Any) -> bool:
    """Whether ``value`` can take the place of ``present``. Numbers and None are of one kind."""
    if isinstance(present, dict):
        same = isinstance(value, dict) and value.keys() == present.keys()
        return same and all(_is_like(value[key], present[key]) for key in present)
    if isinstance(present, bool) or isinstance(value, bool):
        return type(value) is type(present)
    if present is None or isinstance(present, (int, float)):
        return value is None or _is_number(value)
    return type(value) is type(present)


def _write_rate(optimizer: Any, rate: Any) -> None:
    present = method("Optimizer", optimizer, "_learning_rate")
    if not _is_scheduler(present):
        if isinstance(rate, bool) or _checked_number("lr", rate) < 0:
            raise StateError(f"lr={rate!r} is no rate.\n{_HINT}")
        optimizer.set_lr(float(rate))
        return
    if not isinstance(rate, dict) or rate.keys() != present.state_dict().keys():
        raise StateError(
            f"lr={rate!r:.200} is not the state of a {type(present).__name__}.\n" + _HINT
        )
    wrong = [k for k, now in present.state_dict().items() if not _is_like(rate[k], _plain(now))]
    if wrong:
        raise StateError(
            f"{wrong[0]}={rate[wrong[0]]!r:.200} cannot be of a {type(present).__name__}.\n" + _HINT
        )
    with warnings.catch_warnings():
        # LinearWarmup takes its inner scheduler's state for a value that nobody uses.
        warnings.filterwarnings("ignore", "There are some unused values in state_dict", UserWarning)
        present.set_state_dict(rate)
