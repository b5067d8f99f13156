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
from ampbridge_jax.model.kinds import kind_of, named_modules, own_parameters
from ampbridge_jax.model.model_calls import (
    around,
    decoration_of,
    keep_low,
    kept_by,
    layers,
    low_parameters,
    set_call,
)
from ampbridge_jax.model.variables import LOWERED


def decorate(model: Model, optimizer: Optimizer | None, decoration: Decoration) -> None:
    """See ``Backend.decorate``.

    Raises:
        UnsupportedError: for ``save_dtype``, if a part of the model is decorated by itself, or for low
            storage of Keras' variables.
    """
    policy = decoration.policy
    kind_of(model).check_policy(policy)
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
    _keep(decoration.kept, 1)
    set_call(model, decoration, kept_by(model))
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
    if not optimizers.of(optimizer).may_be_low:
        return
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
    _keep(decoration.kept, -1)
    set_call(model, None, kept_by(model))
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


def _keep(kept: Sequence[Model], more: int) -> None:
    """Count one decoration more, or less, that keeps these layers and all below them, each once."""
    found = {id(module): module for layer in kept for _, module in named_modules(layer)}
    for module in found.values():
        set_call(module, decoration_of(module), max(kept_by(module) + more, 0))


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
