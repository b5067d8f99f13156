"""For adapters: the tensors that a model's layers hold, each once, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from ampbridge.checkpoints.weights import OTHER

Roles: TypeAlias = Mapping[str, tuple[str, str]]
"""What a layer calls its tensors, and the role and axes of each."""

NORMALIZATION: Roles = {
    "weight": ("norm.scale", "c"),
    "bias": ("norm.offset", "c"),
    "running_mean": ("norm.mean", "c"),
    "running_var": ("norm.variance", "c"),
}


class Held(NamedTuple):
    """A parameter or a buffer of a model, and the layer that holds it as ``attribute``."""

    name: str
    layer: Any
    attribute: str
    tensor: Any


def each_once(held: Iterable[Held]) -> Iterator[Held]:
    """Leave out tensors that have come before."""
    seen: set[int] = set()
    for each in held:
        if id(each.tensor) not in seen:
            seen.add(id(each.tensor))
            yield each


def unique(names: Iterable[str]) -> list[str]:
    """Each name, with a number if it has come before: ``a``, ``a_1``."""
    taken: dict[str, None] = {}
    for name in names:
        candidate, number = name, 0
        while candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken[candidate] = None
    return list(taken)


def dotted(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """``value``, or each item of a container and of those in it: ``blocks.0``, ``heads.left``."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from dotted(f"{name}.{key}", item)
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from dotted(f"{name}.{position}", item)
    else:
        yield name, value


def role_of(
    held: Held, roles: Mapping[Any, Roles], hides_attributes: bool = False
) -> tuple[str, str]:
    """A tensor's role and axes; of unknown layers, its own name and axes without meaning.

    Args:
        roles: by a class of layers, or a tuple of classes.
        hides_attributes: whether layers put an underscore ahead of the names in ``roles``.
    """
    attribute = held.attribute.lstrip("_") if hides_attributes else held.attribute
    dimensions = len(held.tensor.shape)
    for kind, named in roles.items():
        if isinstance(held.layer, kind) and attribute in named:
            role, axes = named[attribute]
            if len(axes) == dimensions:
                return role, axes
    return f"{OTHER}{held.attribute}", "abcdefgh"[:dimensions]
