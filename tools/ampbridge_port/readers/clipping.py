"""A recipe's ``clip_norm``, ``clip_each_norm`` or ``clip_value``, from what each framework calls them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ampbridge.training.clipping import CLIPPINGS
from ampbridge_port.dialect import Call, Draft, NotKnown
from ampbridge_port.readers import scaling
from ampbridge_port.reading import Finding, Place

BY: Mapping[str, str] = {
    "clip_norm": "by their joint norm",
    "clip_each_norm": "each by its own norm",
    "clip_value": "by value",
}
SCALED = "clipping before unscaling"
"""Where gradients are clipped that are still scaled, in ``Draft.seen``."""
UNSCALED = "unscale"
"""Where the file unscales gradients by itself, in ``Draft.seen``."""


def finite(value: Any) -> Any:
    """A largest norm; None, which is none, for one that only measures."""
    as_number = scaling.number(value)
    return None if as_number == float("inf") else as_number


def limit(value: Any) -> Any:
    """As ``finite``, of a library that takes 0 for none."""
    return finite(value) or None


def is_known(draft: Draft) -> bool:
    """Whether something has been said of clipping."""
    return bool(_said(draft))


def take(
    draft: Draft,
    name: str,
    call: Call,
    argument: str,
    convert: Callable[[Any], Any] = finite,
    usual: Any = None,
) -> None:
    """Set ``step.<name>`` to an argument, in the place of other clipping, which is then told."""
    draft.take(f"step.{name}", call, argument, usual, convert)
    if name in _said(draft):
        _be_the_only_one(draft, name, call.place)


def unknown(draft: Draft, place: Place, name: str = "clip_norm") -> None:
    """That gradients are clipped, and it cannot be known how far."""
    draft.set(f"step.{name}", None)
    draft.unknown[f"step.{name}"] = place
    _be_the_only_one(draft, name, place)


def doubt(draft: Draft, place: Place) -> None:
    """That what was said of clipping may not hold."""
    for name in _said(draft):
        unknown(draft, place, name)


def join(draft: Draft, chosen: Draft) -> None:
    """Where two dialects clip, ``chosen`` holds; the other is told, unless it is the same."""
    for name in _said(draft) if is_known(chosen) else ():
        key = f"step.{name}"
        if draft.settings.get(key, draft) != chosen.settings.get(key, chosen):
            chosen.findings.append(_other(draft, name, _said(chosen)[0], chosen.seen[_SEEN]))
    for name in _said(draft) if is_known(chosen) else ():
        _forget(draft, name)
    if is_known(draft):
        chosen.seen |= {key: draft.seen[key] for key in (SCALED, _SEEN) if key in draft.seen}


_SEEN = "clipping"


def _said(draft: Draft) -> list[str]:
    return [n for n in CLIPPINGS if f"step.{n}" in {*draft.settings, *draft.unknown}]


def _be_the_only_one(draft: Draft, name: str, place: Place) -> None:
    for other in _said(draft):
        if other != name:
            draft.findings.append(_other(draft, other, name, place))
            _forget(draft, other)
    draft.seen[_SEEN] = place


def _forget(draft: Draft, name: str) -> None:
    draft.set(f"step.{name}", None)
    draft.comments.pop(f"step.{name}", None)


def _other(draft: Draft, other: str, name: str, place: Place) -> Finding:
    return Finding(
        "lost",
        draft.seen[_SEEN],
        f"It clips gradients {BY[other]}, and line {place.line} clips them {BY[name]}. A step of a "
        "recipe clips in one way: it has the latter.",
        f"step.{other}, if that is the one to keep.",
    )


# -- what several dialects have


def by_norm(call: Call, draft: Draft) -> None:
    """``clip_grad_norm_(parameters, max_norm, norm_type=2.0, ...)``, of torch and of Paddle."""
    try:
        norm = scaling.number(call.value("norm_type", 2.0))
    except NotKnown as error:
        unknown(draft, error.place)
        return
    if norm != 2.0:
        message = f"It clips by the {norm}-norm; a recipe clips by the 2-norm."
        draft.find("lost", call.place, message, _IN_THE_LOOP)
        return
    name = "clip_each_norm" if _is_of_each(call) else "clip_norm"
    take(draft, name, call, "max_norm")
    note_order(draft, call)
    if name == "clip_norm":
        _tell_of_part(call, draft)


def by_value(call: Call, draft: Draft) -> None:
    """``clip_grad_value_(parameters, clip_value)``."""
    take(draft, "clip_value", call, "clip_value")
    note_order(draft, call)


def within(call: Call, draft: Draft, least: str, most: str, *, symmetric: bool = False) -> None:
    """Clipping to a range; ``symmetric``: without ``least`` it is ``-most``."""
    try:
        low, high = (scaling.number(call.value(name, None)) for name in (least, most))
    except NotKnown as error:
        unknown(draft, error.place, "clip_value")
        return
    low = -high if low is None and symmetric and isinstance(high, float) else low
    if not isinstance(low, float) or not isinstance(high, float) or low != -high:
        bounds = f"from {_or_none(low)} to {_or_none(high)}"
        message = f"It clips gradients to values {bounds}; clip_value is alike on both sides."
        draft.find("lost", call.place, message, _IN_THE_LOOP)
        return
    take(draft, "clip_value", call, most)


_IN_THE_LOOP = "clip in the loop, between scaler.unscale and scaler.step"


def _or_none(bound: Any) -> str:
    return "no bound" if bound is None else str(bound)


def note_order(draft: Draft, call: Call) -> None:
    """Keep in mind whether gradients have been unscaled where they are clipped."""
    if UNSCALED in draft.seen:
        draft.seen.pop(SCALED, None)
    else:
        draft.seen[SCALED] = call.place


def tell_of_order(draft: Draft, hint: str) -> None:
    """Of gradients that are clipped while they are scaled, if a scaler scales them."""
    scaled = draft.settings.get("scaler.enabled", True) and scaling.known(draft)
    if scaled and SCALED in draft.seen and is_known(draft):
        draft.find(
            "lost",
            draft.seen[SCALED],
            "It clips gradients that are still scaled, so that the limit is as much smaller as the "
            "loss scale is large; the recipe clips them unscaled.",
            hint,
        )


def _parameters(call: Call) -> str:
    written = call.arguments.get("parameters")
    text = "" if written is None else written.place.text
    return text[1:-1] if text[:1] + text[-1:] in ("[]", "()") else text


def _is_of_each(call: Call) -> bool:
    """Whether it stands in a loop over the parameters, and clips each."""
    return bool(_PARAMETERS.search(call.loops.get(_parameters(call), "")))


_PARAMETERS = re.compile(r"param", re.IGNORECASE)


def _tell_of_part(call: Call, draft: Draft) -> None:
    """Of a loop in which the norm of a part of the gradients is clipped, in each turn."""
    written = _parameters(call)
    if not call.loops.keys().isdisjoint(re.findall(r"\w+", written)):
        draft.find(
            "lost",
            call.place,
            f"It clips the norm of {written} in each turn of a loop; a recipe clips the joint norm of "
            "all gradients.",
            "the same, where the loop has one turn; else clip in the loop",
        )
