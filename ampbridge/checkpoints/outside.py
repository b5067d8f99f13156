"""Parameters that an optimizer trains and the model does not have: a criterion's weights, a temperature.

A checkpoint holds their values beside the optimizer's slots, under their places in the optimizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping
from typing import TypeVar

from ampbridge.checkpoints.weights import OTHER, Array, Weight
from ampbridge.errors import StateError

Parameter = TypeVar("Parameter")

_NAME = re.compile(r"optimizer\[\d+\]")


def name_of(place: int) -> str:
    """The name of the parameter at this place of the optimizer."""
    return f"optimizer[{place}]"


def among(trained: Iterable[Parameter], own: Iterable[object]) -> dict[str, Parameter]:
    """The parameters of an optimizer, in its order and by name, that are not the model's ``own``."""
    held = set(map(id, own))
    return {name_of(place): p for place, p in enumerate(trained) if id(p) not in held}


def taken_from(
    slots: MutableMapping[str, Array], present: Mapping[str, Array]
) -> Mapping[str, Array]:
    """The saved values of the parameters of ``present``, taken out of ``slots``; refuses others."""
    saved = {name: slots.pop(name) for name in list(slots) if _NAME.fullmatch(name)}
    if saved.keys() != present.keys():
        theirs, ours = (", ".join(sorted(names)[:4]) or "nothing" for names in (saved, present))
        raise StateError(
            f"It was saved of an optimizer that trains {theirs} outside of the model, this one "
            f"trains {ours}.\n{_HINT}"
        )
    for name, value in present.items():
        if (saved[name].shape, saved[name].dtype) != (value.shape, value.dtype):
            raise StateError(
                f"{name} is {saved[name].dtype}{saved[name].shape}, the optimizer's is "
                f"{value.dtype}{value.shape}.\n{_HINT}"
            )
    return saved


def weights_of(slots: Mapping[str, Array]) -> list[Weight]:
    """Descriptions of such parameters among saved ``slots``."""
    return [
        Weight(name, f"{OTHER}{name}", "abcdefgh"[: value.ndim], value.shape)
        for name, value in slots.items()
        if _NAME.fullmatch(name)
    ]


_HINT = "Hint: make the optimizer of the same parameters, in the same order, as when it was saved."
