"""Weights, slots and settings, as arrays by name.

Names are those of the model itself, whatever it or a part of it is wrapped in: torch.compile,
DataParallel and DistributedDataParallel. What is low in the model is float32 here: its master, or its
exact value. What FSDP2 has sharded is whole here, so that any number of ranks can go on with it.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim

from ampbridge.adapters.roles.saving import OptimizerState
from ampbridge.checkpoints import outside
from ampbridge.checkpoints.held import NORMALIZATION, Held, Roles, each_once, role_of
from ampbridge.checkpoints.weights import Weight
from ampbridge.errors import StateError, UnsupportedError
from ampbridge_torch import _private
from ampbridge_torch.autocast.simulation import LOW_DTYPES
from ampbridge_torch.model import decorating
from ampbridge_torch.model.low_slots import STATE_KEY, is_kept_low
from ampbridge_torch.model.low_weights import COUNTED_NORMALIZATIONS, NORMALIZATIONS
from ampbridge_torch.model.master_updates import UPDATES, held_parameters, updates_of
from ampbridge_torch.model.master_weights import master_of, round_all
from ampbridge_torch.step import ranks
from ampbridge_torch.step.gradients import parameters

# Class -> its tensors' roles and axes.
ROLES: Mapping[type | tuple[type, ...], Roles] = {
    nn.Linear: {"weight": ("dense.kernel", "oi"), "bias": ("dense.bias", "o")},
    nn.Conv1d: {"weight": ("conv.kernel", "oiw"), "bias": ("conv.bias", "o")},
    nn.Conv2d: {"weight": ("conv.kernel", "oihw"), "bias": ("conv.bias", "o")},
    nn.Conv3d: {"weight": ("conv.kernel", "oidhw"), "bias": ("conv.bias", "o")},
    nn.ConvTranspose1d: {"weight": ("conv_transpose.kernel", "iow"), "bias": ("conv.bias", "o")},
    nn.ConvTranspose2d: {"weight": ("conv_transpose.kernel", "iohw"), "bias": ("conv.bias", "o")},
    nn.ConvTranspose3d: {"weight": ("conv_transpose.kernel", "iodhw"), "bias": ("conv.bias", "o")},
    (nn.Embedding, nn.EmbeddingBag): {"weight": ("embedding.table", "no")},
    NORMALIZATIONS: NORMALIZATION,
}

# What torch's wrappers of parts of a model put into names.
_WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module"})
_REPLICATING = (nn.DataParallel, nn.parallel.DistributedDataParallel)  # they put in "module"


# -- weights


def parameter_names(model: nn.Module) -> list[str]:
    """See ``Backend.parameter_names``."""
    model = _unwrapped(model)
    names = {id(p): _plain(name, model) for name, p in model.named_parameters()}
    return [names[id(parameter)] for parameter in parameters(model)]


def weights(model: nn.Module) -> list[Weight]:
    """See ``Backend.weights``. Buffers that are not persistent, and counters, are none.

    Raises:
        UnsupportedError: for a model whose state is more than tensors that can be put together.
    """
    found = []
    for each in _weights_of(model):
        floating = each.tensor.is_floating_point() or each.tensor.is_complex()
        found.append(Weight(each.name, *_role(each), tuple(each.tensor.shape), floating))
    return found


@torch.no_grad()
def read_weights(model: nn.Module) -> dict[str, np.ndarray]:
    """See ``Backend.read_weights``. Waits for the device, and for all ranks of a sharded model."""
    return {each.name: _array(_wide(each.tensor)) for each in _weights_of(model)}


def write_weights(model: nn.Module, values: Mapping[str, np.ndarray]) -> None:
    """See ``Backend.write_weights``."""
    for each in _weights_of(model):
        master = master_of(each.tensor)
        if master is None:
            _set(each.tensor, values[each.name])
        else:
            _set(master.wide, values[each.name])
            round_all([master])
            master.loaded_at = master.low._version


@torch.no_grad()
def _set(target: Tensor, value: np.ndarray) -> None:
    target.copy_(ranks.shard_of(torch.tensor(value), target))


def _unwrapped(model: nn.Module) -> nn.Module:
    model = decorating.unwrapped(model)
    return _unwrapped(model.module) if isinstance(model, nn.DataParallel) else model


def _plain(name: str, model: nn.Module) -> str:
    """A dotted name without what wrappers of a model's parts have put into it."""
    parts, owner = [], model
    for part in name.split("."):
        replicated = part == "module" and isinstance(owner, _REPLICATING)
        if part not in _WRAPPERS and not replicated:
            parts.append(part)
        owner = getattr(owner, part)
    return ".".join(parts)


def _weights_of(model: nn.Module) -> list[Held]:
    return [each for each in _tensors(model) if not _is_counter(each)]


def _tensors(model: nn.Module) -> Iterator[Held]:
    """Parameters and persistent buffers, each once, under its first name."""
    model = _unwrapped(model)
    _check_state_is_tensors(model)
    ranks.reshard(model)
    for each in each_once(_all_tensors(model)):
        name = _plain(each.name, model)
        ranks.check_placements(name, each.tensor)
        yield each._replace(name=name)


def _all_tensors(model: nn.Module) -> Iterator[Held]:
    for prefix, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        for attribute, tensor in {**own, **_private.persistent_buffers(module)}.items():
            yield Held(f"{prefix}.{attribute}".lstrip("."), module, attribute, tensor)


def _is_counter(each: Held) -> bool:
    """Whether it counts a normalization's batches, which no other framework does."""
    return each.attribute == "num_batches_tracked" and isinstance(
        each.layer, COUNTED_NORMALIZATIONS
    )


def _role(each: Held) -> tuple[str, str]:
    (role, axes), layer = role_of(each, ROLES), each.layer
    if role == "conv.kernel" and 1 < layer.groups == layer.in_channels == layer.out_channels:
        # Each channel by itself, with one output each: other frameworks keep another axis.
        return "depthwise_conv.kernel", f"cm{axes[2:]}"
    return role, axes


def _wide(tensor: Tensor) -> Tensor:
    master = master_of(tensor)
    if master is not None:
        return master.value()
    return tensor.float() if tensor.dtype in LOW_DTYPES else tensor


def _array(tensor: Tensor) -> np.ndarray:
    return np.array(ranks.whole(tensor).detach().cpu().numpy(), order="C")


def _check_state_is_tensors(model: nn.Module) -> None:
    """Refuse what would be saved in part: FSDP1's flat shards, tensors without a shape, other states."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    for name, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            msg = (
                f"{name or type(module).__name__} has an extra state, which need not be arrays; "
                "checkpoints hold arrays and no pickle.\n"
                "Hint: keep it in a buffer, self.register_buffer(name, tensor)."
            )
        elif isinstance(module, getattr(fsdp, "FullyShardedDataParallel", ())):
            msg = (
                f"{name or 'The model'} is in FullyShardedDataParallel, whose shards are of no "
                "parameter by itself.\n"
                "Hint: torch.distributed.fsdp.fully_shard(model), which has taken its place."
            )
        elif any(map(nn.parameter.is_lazy, module.parameters(recurse=False))):
            msg = (
                f"Parameters of {name or 'the model'} have no shape yet.\n"
                "Hint: call the model with a batch before."
            )
        else:
            continue
        raise UnsupportedError(msg)


# -- optimizers

# The last four choose among torch's implementations: that is up to whoever makes the optimizer.
_NO_SETTINGS = frozenset(
    {"params", "param_names", "foreach", "fused", "capturable", "differentiable"}
)
_LOW = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_HINT = "Hint: load what step.save wrote of the same model and optimizer."
_NOT_FINITE = ("inf", "-inf", "nan")


def read_optimizer(optimizer: optim.Optimizer, model: nn.Module) -> OptimizerState:
    """See ``Backend.read_optimizer``, and the counters of the model's normalizations. Waits.

    Slots are the tensors of the optimizer's state dict, by "<weight name>/<slot>". Settings: "kind", its
    class; "groups", of each the names of its parameters and what it sets for them; "numbers", slots that
    are no tensors; "low", the dtype of slots that are in low precision, which are float32 here, by the
    optimizer's own choice: others follow their parameter.

    Raises:
        UnsupportedError: for a state of other things than tensors and numbers by parameter.
    """
    slots = {each.name: _array(each.tensor) for each in _tensors(model) if _is_counter(each)}
    numbers: dict[str, Any] = {}
    low: dict[str, str] = {}
    groups, owners = _groups(optimizer, model), held_parameters(optimizer)
    names = _names(groups)
    for position, entry in _state_dict(optimizer)["state"].items():
        owner = owners[position]
        updated_dtype = owner.dtype if master_of(owner) is None else torch.float32
        for slot, value in entry.items():
            key = f"{names[position]}/{slot}"
            if slot == STATE_KEY:
                continue  # the parameter's value, which is saved as its weight
            if _is_plain(value):
                numbers[key] = value
                continue
            _check_slot(optimizer, key, value, owner)
            is_low = value.dtype in LOW_DTYPES
            if is_low and value.dtype is not updated_dtype and not is_kept_low(value, owner):
                low[key] = str(value.dtype).removeprefix("torch.")
            slots[key] = _array(value.float() if is_low else value)
    kind = type(optimizer).__qualname__
    settings = {"kind": kind, "groups": groups, "numbers": numbers, "low": low}
    return OptimizerState({**slots, **_values(_outside(optimizer, model))}, settings)


def write_optimizer(optimizer: optim.Optimizer, model: nn.Module, state: OptimizerState) -> None:
    """See ``Backend.write_optimizer``. Which implementation runs stays as it is.

    Torch itself puts the slots on their devices.
    """
    settings, present = state.settings, _groups(optimizer, model)
    _check_settings(optimizer, settings, present)
    slots, others = dict(state.slots), _outside(optimizer, model)
    values = outside.taken_from(slots, _values(others))
    counters = [each for each in _tensors(model) if _is_counter(each)]
    for each in counters:
        if each.name not in slots or slots[each.name].shape != ():
            raise _refused(f"there is no {each.name!r}")
    counts = [int(slots.pop(each.name)) for each in counters]
    saved = _by_parameter(slots, settings, optimizer, _names(present))
    groups = list(map(dict, _state_dict(optimizer)["param_groups"]))
    for group, described in zip(groups, settings["groups"], strict=True):
        group.pop(UPDATES, None)  # a saved state that has no count of them begins to count
        group.update(_like(group, described["settings"], described["tensors"]))
    whole = {"state": saved, "param_groups": groups}
    updates = updates_of(optimizer)
    if updates is None:
        optimizer.load_state_dict(whole)
    else:
        updates.load(optimizer, whole)
    _keep_dtypes(optimizer, saved)
    for each, count in zip(counters, counts, strict=True):
        each.tensor.fill_(count)
    for name, parameter in others.items():
        _set(parameter, values[name])


def _check_slot(optimizer: optim.Optimizer, key: str, value: Any, owner: Tensor) -> None:
    """Refuse a slot that no array can hold, or that is sharded in another way than its parameter."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        raise _beyond(optimizer, f"{key!r}, {type(value).__name__}")
    if not ranks.alike(value, owner):
        slot = key.rpartition("/")[2]
        raise _beyond(optimizer, f"{slot!r} is sharded in its own way")
    if type(value) not in (Tensor, nn.Parameter) and not _private.is_sharded(value):
        raise _beyond(optimizer, f"'{key}' is a {type(value).__qualname__}")


def _state_dict(optimizer: optim.Optimizer) -> dict[str, Any]:
    """The optimizer's own, if it has torch's form.

    Torch counts parameters, over all groups, where its dicts refer to them.
    """
    state_dict = optimizer.state_dict()
    if state_dict.keys() != {"state", "param_groups"}:
        raise _beyond(optimizer, f"it has {sorted(map(str, state_dict))}")
    count = len(held_parameters(optimizer))
    for position, entry in state_dict["state"].items():
        if position not in range(count) or not isinstance(entry, dict):
            raise _beyond(optimizer, f"it keeps something for {position!r:.100}")
    return state_dict


def _beyond(optimizer: optim.Optimizer, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"The state of {type(optimizer).__name__} is more than tensors and numbers by parameter: "
        f"{what}.\nHint: an optimizer of torch.optim other than LBFGS; or save "
        "optimizer.state_dict() yourself, beside step.state_dict()."
    )


def _refused(why: str) -> StateError:
    return StateError(f"{why}.\n{_HINT}")


def _outside(optimizer: optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimizer's parameters that the model does not have."""
    return outside.among(held_parameters(optimizer), [each.tensor for each in _tensors(model)])


def _values(others: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: _array(_wide(parameter)) for name, parameter in others.items()}


def _groups(optimizer: optim.Optimizer, model: nn.Module) -> list[dict[str, Any]]:
    """The groups of an optimizer as JSON values: parameters by name, rates that are tensors as numbers."""
    names = {id(each.tensor): each.name for each in _tensors(model)}
    names |= {id(p): name for name, p in _outside(optimizer, model).items()}
    return [
        {
            "parameters": [names[id(parameter)] for parameter in group["params"]],
            "settings": {
                name: _setting(optimizer, name, value)
                for name, value in group.items()
                if name not in _NO_SETTINGS
            },
            "tensors": {
                name: list(value.shape)
                for name, value in group.items()
                if isinstance(value, Tensor)
            },
        }
        for group in optimizer.param_groups
    ]


def _names(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of all parameters in groups that ``_groups`` made."""
    return [name for group in groups for name in group["parameters"]]


def _setting(optimizer: optim.Optimizer, name: str, value: Any) -> Any:
    many = isinstance(value, (tuple, list))
    numbers = [_number(item) for item in (value if many else [value])]
    if not all(map(_is_plain, numbers)):
        raise _beyond(optimizer, f"{name}={value!r:.100}")
    return numbers if many else numbers[0]


def _number(value: Any) -> Any:
    """A tensor as a number, and a number that JSON lacks (Prodigy's ``growth_rate=inf``) as text."""
    value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, (bool, int, str))


def _like(
    group: Mapping[str, Any], settings: Mapping[str, Any], tensors: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """``settings`` in the types of those of ``group``; ``tensors`` has the shapes of those that were tensors.

    Some optimizers make a tensor of a number in their first step.
    """
    was = {
        name: torch.empty(tuple(shape))
        for name, shape in tensors.items()
        if not isinstance(group.get(name), Tensor)
    }
    like = {**group, **was}
    return {name: _in_type_of(like.get(name), value) for name, value in settings.items()}


def _in_type_of(present: Any, value: Any) -> Any:
    if value in _NOT_FINITE and not isinstance(present, str):
        value = float(value)
    if isinstance(present, Tensor):
        return torch.full_like(present, value)
    if isinstance(present, (tuple, list)) and isinstance(value, list):
        pairs = zip(present, value, strict=True)
        return type(present)(_in_type_of(item, saved) for item, saved in pairs)
    return value


# -- what is refused of a saved state


def _check_settings(
    optimizer: optim.Optimizer, settings: Mapping[str, Any], present: Sequence[Mapping[str, Any]]
) -> None:
    """Check that settings are of this optimizer and of the kinds that ``read_optimizer`` gives."""
    kind = type(optimizer).__qualname__
    if settings.get("kind") != kind:
        raise _refused(f"the optimizer was {settings.get('kind')!r:.100}, this one is {kind!r}")
    groups, numbers, low = (settings.get(name) for name in ("groups", "numbers", "low"))
    if not isinstance(numbers, dict) or not all(map(_is_plain, numbers.values())):
        raise _refused(f"its numbers are {numbers!r:.200}")
    if not isinstance(low, dict) or not all(low[key] in _LOW for key in low):
        raise _refused(f"its slots in low precision are {low!r:.200}")
    if not isinstance(groups, list) or len(groups) != len(present):
        raise _refused("it has other groups of parameters than this one")
    for group, own in zip(groups, present, strict=True):
        _check_group(optimizer, group, own)


def _check_group(optimizer: optim.Optimizer, group: Any, own: Mapping[str, Any]) -> None:
    names = group.get("parameters") if isinstance(group, dict) else None
    # In any order: optimizers are also made from sets, and what belongs to a parameter has its name.
    if not isinstance(names, list) or sorted(map(str, names)) != sorted(own["parameters"]):
        raise _refused(f"a group of it has not {own['parameters'][:4]} ...")
    settings, tensors = group.get("settings"), group.get("tensors")
    if not isinstance(settings, dict):
        raise _refused(f"a group of it sets {settings!r:.200}")
    for name, value in settings.items():
        present = own["settings"].get(name)
        if name in _NO_SETTINGS or not _is_like(value, own["settings"].get(name, value)):
            raise _refused(f"{name}={value!r:.100} cannot be; it is {present!r:.100} now")
    if not isinstance(tensors, dict) or not all(
        name in settings and isinstance(shape, list) and all(size == 1 for size in shape)
        for name, shape in tensors.items()
    ):
        raise _refused(f"a group of it has the tensors {tensors!r:.200}")
    try:
        _made_anew(optimizer, settings, torch.zeros(1, 1))  # torch checks the ranges of its own
    except (ValueError, TypeError, RuntimeError) as error:
        shown = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        raise _refused(f"{error!s:.200}; {shown:.300}") from error


def _made_anew(
    optimizer: optim.Optimizer, settings: Mapping[str, Any], parameter: Tensor
) -> optim.Optimizer | None:
    """A new optimizer of torch's own, with these settings; None where it is not torch's."""
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim"):
        return None
    known = inspect.signature(kind).parameters
    values = {name: value for name, value in settings.items() if name in known}
    return kind([parameter], **_like({}, values, {}))


def _is_like(value: Any, present: Any) -> bool:
    """Whether ``value`` can replace ``present``: numbers by numbers; None by all but numbers."""
    if isinstance(value, list) and isinstance(present, list):
        return len(value) == len(present) and all(map(_is_like, value, present))
    if not _is_plain(value) or isinstance(present, list):
        return False
    if value is None or present is None:
        return not _is_number(present)
    return all(map(_is_number, (value, present))) or type(value) is type(present)


def _is_number(value: Any) -> bool:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain or value in _NOT_FINITE


# -- slots of a saved state


def _by_parameter(
    slots: Mapping[str, np.ndarray],
    settings: Mapping[str, Any],
    optimizer: optim.Optimizer,
    names: Sequence[str],
) -> dict[int, dict[str, Any]]:
    """Slots and numbers as torch's state dict has them, by the position of their parameter."""
    owners = held_parameters(optimizer)
    positions = {name: position for position, name in enumerate(names)}
    saved: dict[int, dict[str, Any]] = {}
    for key, value in {**slots, **settings["numbers"]}.items():
        name, _, slot = key.rpartition("/")
        if name not in positions or slot == STATE_KEY:
            raise _refused(f"slot {key!r:.200} is of no parameter")
        if isinstance(value, np.ndarray):
            owner = owners[positions[name]]
            _check_shape(key, value, owner, optimizer)
            value = torch.tensor(value).to(_LOW.get(settings["low"].get(key)))
            if value.ndim:
                value = ranks.shard_of(value, owner)
                if value.shape == owner.shape and not _private.is_sharded(owner):
                    # With the parameter's strides, as optimizers make slots: fused kernels need them.
                    laid_out = torch.empty_like(owner, dtype=value.dtype, device=value.device)
                    value = laid_out.copy_(value)
        saved.setdefault(positions[name], {})[slot] = value
    _check_completeness(saved, settings, optimizer, names)
    return saved


def _check_shape(
    key: str, value: np.ndarray, parameter: Tensor, optimizer: optim.Optimizer
) -> None:
    """Check that a slot of torch's has its parameter's shape, perhaps with 1 for a size, or none."""
    pairs = list(zip(value.shape, parameter.shape, strict=False))
    fits = value.ndim == parameter.ndim and all(size in (1, full) for size, full in pairs)
    if value.ndim and not fits and type(optimizer).__module__.startswith("torch.optim"):
        raise _refused(
            f"slot {key!r} of shape {value.shape} is of no parameter {tuple(parameter.shape)}"
        )


def _check_completeness(
    saved: Mapping[int, Mapping[str, Any]],
    settings: Mapping[str, Any],
    optimizer: optim.Optimizer,
    names: Sequence[str],
) -> None:
    """Check that each parameter has all the slots which a step makes, in their shapes, or none."""
    grouped = zip(optimizer.param_groups, settings["groups"], strict=True)
    owners = [(p, described["settings"]) for group, described in grouped for p in group["params"]]
    for position, slots in saved.items():
        parameter, values = owners[position]
        for slot, shape in _shapes_of_slots(optimizer, values, tuple(parameter.shape)).items():
            value = slots.get(slot)
            if slot not in slots or (value is not None and tuple(np.shape(value)) != shape):
                raise _refused(f"there is no slot '{names[position]}/{slot}' of shape {shape}")


def _shapes_of_slots(
    optimizer: optim.Optimizer, settings: Mapping[str, Any], shape: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
    """The shapes of what a step of torch's own makes for a parameter, found by a step with a small one."""
    small = torch.zeros([min(size, 2) for size in shape])
    small.grad = torch.ones_like(small)
    made = _made_anew(optimizer, settings, small)
    if made is None or isinstance(made, optim.SparseAdam):
        return {}
    made.step()
    return {
        slot: tuple(shape[axis] if size == 2 else size for axis, size in enumerate(value.shape))
        for slot, value in made.state[small].items()
        if isinstance(value, Tensor)
    }


def _keep_dtypes(optimizer: optim.Optimizer, saved: Mapping[int, Mapping[str, Any]]) -> None:
    """Torch takes floating slots to their parameter's dtype: undo it where bits were lost, and where
    the optimizer has them low by its own choice."""
    owners = held_parameters(optimizer)
    for position, entry in saved.items():
        slots = optimizer.state.get(owners[position], {})  # one around another has none
        for slot, value in entry.items():
            loaded = slots.get(slot)
            both = isinstance(value, Tensor) and isinstance(loaded, Tensor)
            if not both or is_kept_low(loaded, owners[position]):
                continue
            keeps_bits = (
                loaded.is_floating_point() == value.is_floating_point()
                and torch.promote_types(loaded.dtype, value.dtype) is loaded.dtype
            )
            if value.dtype in LOW_DTYPES or not keeps_bits:
                slots[slot] = value.to(loaded.device)
