"""A recipe's ``[scaler]``, from the loss scalers of torch and of what is built on it."""

from __future__ import annotations

from typing import Any

from ampbridge.scaling.presets import preset
from ampbridge_port.dialect import Draft

ELSEWHERE = "a scaler from elsewhere"
"""Where a file uses a scaler that it does not make, in ``Draft.seen``."""
COMPILED = "a model from elsewhere is compiled"
"""Where a file compiles a model that it does not make, for Keras: in ``Draft.seen`` too."""


def known(draft: Draft) -> bool:
    """Whether something has been said of a scaler."""
    return any(key.startswith("scaler.") for key in (*draft.settings, *draft.unknown))


def like(draft: Draft, name: str) -> None:
    """A scaler by the rule of preset ``name``, in the place of what was said before."""
    forget(draft)
    draft.set("scaler.like", name)


def fixed(draft: Draft, name: str, scale: Any) -> None:
    """A scale that stays as it is, by the rule of preset ``name``."""
    like(draft, name)
    draft.set("scaler.init_scale", scale)
    draft.set("scaler.dynamic", False)
    within(draft, name, scale)


def within(draft: Draft, name: str, scale: Any) -> None:
    """Widen the bounds of preset ``name`` where the first scale lies outside of them."""
    bounds = preset(name).settings
    if isinstance(scale, float) and scale < bounds["min_scale"]:
        draft.set("scaler.min_scale", scale)
    if isinstance(scale, float) and scale > bounds["max_scale"]:
        draft.set("scaler.max_scale", scale)


def never(draft: Draft) -> None:
    """No loss scaling."""
    forget(draft)
    draft.set("scaler.enabled", False)


def unless_known(draft: Draft, name: str) -> None:
    """A scaler by the rule of preset ``name``, if nothing has been said of one."""
    if not known(draft):
        like(draft, name)


def settle(draft: Draft, name: str) -> None:
    """Once a file is read: no scaling, if nothing has been said of it, and no other file does it."""
    if known(draft):
        return
    if ELSEWHERE in draft.seen:
        like(draft, name)
        draft.unknown["scaler.enabled"] = draft.seen[ELSEWHERE]
    else:
        never(draft)
        draft.comments["scaler.enabled"] = "no GradScaler in this file"


def number(value: Any) -> Any:
    """A number, also where it is written as text; what is none stays, for the recipe to refuse it."""
    if isinstance(value, bool):
        return value
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return value


def whole(value: Any) -> Any:
    """A whole number, also where it is written as ``2e3``; what is none stays."""
    as_float = number(value)
    if isinstance(as_float, float) and as_float.is_integer():
        return int(as_float)
    return value


def forget(draft: Draft) -> None:
    """Take back what was said of a scaler."""
    for noted in (draft.settings, draft.unknown, draft.comments, draft.origins):
        for key in [key for key in noted if key.startswith("scaler.")]:
            del noted[key]
