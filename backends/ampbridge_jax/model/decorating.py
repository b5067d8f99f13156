"""Decorate and undecorate: which modules are called otherwise, and where the masters are.

The arrays in the Variables stay float32 and are the masters that the optimizer updates; they are read
rounded. In the 4 bytes of such an array are the low weight and what Kahan's compensation holds. With
``masters=None`` and ``"stochastic"`` the arrays themselves are low. Slots that are to be low are marked,
and so is the count of an optimizer that has such slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx

from ampbridge.adapters.arguments import check_parts
from ampbridge.adapters.backend import Decoration, Magnitude, Model, Optimizer
from ampbridge.adapters.low_storage import (
    is_moment,
    no_moments,
    not_decorated_with,
    warn_if_nothing_is_low,
    warn_of_rounded_slots,
)
from ampbridge.errors import UnsupportedError
from ampbridge_jax import optimizers
from ampbridge_jax._private import fill, is_traced, value_of
from ampbridge_jax.autocast.rules import FLOAT32, cast, is_castable, rules_of
from ampbridge_jax.model import keras_models
from ampbridge_jax.model.model_calls import (
    around,
    call_of,
    decoration_of,
    keep_low,
    layers,
    low_parameters,
    set_call,
)
from ampbridge_jax.model.variables import (
    LOWERED,
    named_modules,
    named_variables,
    nodes,
    own_parameters,
)


def decorate(model: Model, optimizer: Optimizer | None, decoration: Decoration) -> None:
    """See ``Backend.decorate``.

    Raises:
        UnsupportedError: for ``save_dtype``, if a part of the model is decorated by itself, or for low
            storage of Keras' variables.
    """
    policy = decoration.policy
    if keras_models.is_layer(model):
        keras_models.check_storage(policy)
    rules_of(policy)  # refuses what there are no rules for
    check_parts(named_modules(model)[1:], decoration_of, policy)
    if decoration.save_dtype not in (None, "float32"):
        raise UnsupportedError(
            f"save_dtype={decoration.save_dtype!r}: modules of nnx have no state_dict; their "
            "Variables are float32.\nHint: jax.tree.map("
            f"lambda x: x.astype({decoration.save_dtype!r}), nnx.state(model))"
        )
    warn_if_nothing_is_low(policy, low_parameters(model, decoration.kept))
    if optimizer is not None and policy.slots != "float32":
        _lower_slots(model, optimizer, decoration)
    for module in _inside(decoration.kept):
        _keep(module, 1)
    call = call_of(model)
    set_call(model, decoration, 0 if call is None else call.kept_by)
    keep_low(model, were_low=False)


def _lower_slots(model: Model, optimizer: Optimizer, decoration: Decoration) -> None:
    """Let the slots of low parameters be low, to nearest; refuses an optimizer without any."""
    policy, moments = decoration.policy, _moments(model, optimizer, decoration)
    if not any(is_moment(*pair) for pair in optimizers.slots_by_parameter(optimizer)):
        raise no_moments(policy, optimizer)
    wide = [slot for slot in moments if slot.dtype == FLOAT32]
    if any(is_traced(s) or (cast(value_of(s), policy.slots) != value_of(s)).any() for s in wide):
        warn_of_rounded_slots(policy, policy.slots)
    for slot in moments:
        fill(slot, cast(value_of(slot), policy.slots))
        slot.set_metadata(LOWERED, "stochastic")
    optimizer.step.set_metadata(LOWERED, optimizers.mark_of_slots(optimizer))


def keep_slots(optimizer: Optimizer) -> None:
    """Have the slots be low that a decoration says are, and no others, as ``keep_low`` has parameters.

    Raises:
        CallOrderError: for an optimizer that was not decorated with a model that wants them low.
    """
    if keras_models.is_optimizer(optimizer):
        return  # its variables are float32
    mark, present = optimizer.step.get_metadata(LOWERED, None), optimizers.mark_of_slots(optimizer)
    wanting = _wanting(optimizers.roots_of(optimizer))
    if mark is None:
        if wanting:
            raise not_decorated_with(optimizer, wanting[0][1].policy)
        if present == "0 slots":
            return
    wanting = wanting or _wanting(around(optimizers.parameters(optimizer)))
    if mark != present:
        for model, decoration in wanting:
            _lower_slots(model, optimizer, decoration)
    if not (wanting or is_traced(optimizer.step)):
        optimizers.forget_marks(optimizer)


def _wanting(models: Iterable[Model]) -> list[tuple[Model, Decoration]]:
    """Those that are decorated for low slots."""
    found = [(model, decoration_of(model)) for model in models]
    return [(model, d) for model, d in found if d is not None and d.policy.slots != "float32"]


def serve(model: Model, optimizer: Optimizer) -> None:
    """See ``Backend.serve``."""
    keep_low(model)
    present = decoration_of(model)
    if present is not None and present.policy.slots != "float32":
        _lower_slots(model, optimizer, present)
    else:
        keep_slots(optimizer)


def served(model: Model) -> list[Optimizer]:
    """See ``Backend.served``: those whose slots are low."""
    if decoration_of(model) is None:
        return []
    return [each for each in optimizers.trainers_of(model) if each.step.get_metadata(LOWERED, None)]


def undecorate(model: Model, optimizer: Optimizer | None) -> None:
    """See ``Backend.undecorate``."""
    decoration = decoration_of(model)
    if decoration is None:
        return
    policy = decoration.policy
    lowered = served(model) + ([] if optimizer is None else [optimizer])
    for module in _inside(decoration.kept):
        _keep(module, -1)
    call = call_of(model)
    set_call(model, None, 0 if call is None else call.kept_by)
    if policy.variable_dtype != "float32":
        for parameter in low_parameters(model, decoration.kept):
            fill(parameter, cast(value_of(parameter), "float32"))
            if parameter.get_metadata(LOWERED, None):  # a user's update may have taken it away
                parameter.del_metadata(LOWERED)
    if policy.slots != "float32":
        for each in lowered:
            for marked in (*_moments(model, each, decoration), each.step):
                if marked.get_metadata(LOWERED, None):
                    fill(marked, cast(value_of(marked), "float32"))
                    marked.del_metadata(LOWERED)


def _moments(model: Model, optimizer: Optimizer, decoration: Decoration) -> list[Any]:
    """The optimizer's moments of the low parameters of ``model``."""
    low = set(map(id, low_parameters(model, decoration.kept)))
    return [
        slot
        for slot, parameter in optimizers.slots_by_parameter(optimizer)
        if id(parameter) in low and is_castable(slot) and is_moment(slot, parameter)
    ]


def low_by_the_user(parameters: Sequence[Any], optimizer: Optimizer | None = None) -> list[Any]:
    """See ``Backend.low_parameters``."""
    del optimizer
    low = [p for p in parameters if is_castable(p) and p.dtype != FLOAT32]
    return [p for p in low if not p.get_metadata(LOWERED, None)]


def decoration(model: Model, optimizer: Optimizer | None) -> Decoration | None:
    """See ``Backend.decoration``. Any optimizer of the model fits, unless slots are to be low."""
    present = decoration_of(model)
    if present is not None and present.policy.slots != "float32" and optimizer is not None:
        return present if optimizer.step.get_metadata(LOWERED, None) else None
    return present


def _inside(kept: Sequence[Model]) -> list[Any]:
    """The kept layers and all below them, each once."""
    found = {id(module): module for layer in kept for _, module in named_modules(layer)}
    return list(found.values())


def _keep(module: Any, more: int) -> None:
    call = call_of(module)
    kept_by = (0 if call is None else call.kept_by) + more
    set_call(module, decoration_of(module), max(kept_by, 0))


def largest_magnitudes(model: Model, kept: Sequence[Model], dtype: str) -> list[Magnitude]:
    """See ``Backend.largest_magnitudes``."""
    low = {id(p) for p in low_parameters(model, kept) if p.dtype == FLOAT32 and p.size}
    found: dict[int, Magnitude] = {}
    for layer in layers(model):
        for name, parameter in own_parameters(layer.layer):
            if id(parameter) in low and id(parameter) not in found:
                values = value_of(parameter)
                is_rounded = bool((values != values.astype(dtype)).any())
                largest = float(jnp.abs(values).max())
                found[id(parameter)] = Magnitude(layer, name, largest, is_rounded)
    return list(found.values())


def copied(model: Model, optimizer: Optimizer, memo: dict[int, Any]) -> tuple[Model, Optimizer]:
    """See ``Backend.copied``. A Variable copies itself as the array in it, so nnx copies the modules."""
    if keras_models.is_layer(model):
        return keras_models.copied(model, optimizer, memo)
    root = optimizers.root_of(optimizer)
    parts = list(root) if isinstance(root, tuple) else [root]
    if not any(part is model for part in parts):
        parts.append(model)
    copies = nnx.clone(tuple(parts))
    for ours, theirs in zip(parts, copies, strict=True):
        _copy_order(ours, theirs)
        _copy_calls(ours, theirs)
        memo |= {id(m): c for (_, m), (_, c) in _pairs(named_modules, ours, theirs)}
        memo |= {id(v): c for (_, v), (_, c) in _pairs(named_variables, ours, theirs)}
    trains = nnx.clone(optimizer)
    its = copies[: len(root)] if isinstance(root, tuple) else copies[0]
    optimizers.note(trains, its)
    memo[id(optimizer)] = trains
    return memo[id(model)], trains


def _pairs(named: Any, ours: Any, theirs: Any) -> list[tuple[Any, Any]]:
    """What has the same name in both; nnx's copies hold their attributes in another order."""
    copies = dict(named(theirs))
    return [(pair, (pair[0], copies[pair[0]])) for pair in named(ours)]


def _copy_order(ours: Any, theirs: Any) -> None:
    """Put the attributes of a copy in the order of the original, in which parameters are listed."""
    for (_, node), (_, copy) in _pairs(nodes, ours, theirs):
        held: Any = vars(copy)
        ordered = {key: held[key] for key in vars(node) if key in held}
        rest = {key: value for key, value in held.items() if key not in ordered}
        held.clear()
        held.update(ordered | rest)


def _copy_calls(ours: Any, theirs: Any) -> None:
    """The decorations of a copy, whose kept layers are its own."""
    copies = {id(m): c for (_, m), (_, c) in _pairs(named_modules, ours, theirs)}
    for _, module in named_modules(ours):
        call, copy = call_of(module), copies[id(module)]
        if call is not None:
            present = decoration_of(module)
            if present is not None:
                kept = [copies.get(id(layer), layer) for layer in present.kept]
                present = present._replace(kept=kept)
            set_call(copy, present, call.kept_by)
