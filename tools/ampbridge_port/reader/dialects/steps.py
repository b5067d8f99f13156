"""A recipe's ``[scaler]`` and ``[step]``, from what each framework calls them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ampbridge.scaling.presets import preset
from ampbridge.training.clipping import CLIPPINGS
from ampbridge_port.reader.dialects.calls import Call, Draft, Name, NotKnown, doubting
from ampbridge_port.reading import Finding, Place

ELSEWHERE, COMPILED = "a scaler from elsewhere", "a model that is compiled"
SCALED, UNSCALED, CLIPPED = "clipped scaled", "unscale", "clipping"
"""What is kept in mind of a step, in ``Draft.seen``."""


# -- numbers and dtypes

DTYPES: Mapping[str, str] = {
    "half": "float16", "fp16": "float16", "bf16": "bfloat16",
    "fp32": "float32", "float": "float32", "double": "float64",
}  # fmt: skip


def dtype_name(value: Any) -> Any:
    """``torch.half`` as ``"float16"``; what is no dtype stays, for the recipe to refuse it."""
    text = value.qualified if isinstance(value, Name) else value
    if not isinstance(text, str):
        return text
    last = text.rpartition(".")[2].lower()
    return DTYPES.get(last, last)


def low_dtype(value: Any) -> Any:
    """As ``dtype_name``; float16, where none is passed."""
    return dtype_name(value) or "float16"


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
    return int(as_float) if isinstance(as_float, float) and as_float.is_integer() else value


def micro_batches(value: Any) -> Any:
    """A number of micro-batches; 1, which is usual, need not be said."""
    return None if whole(value) == 1 else whole(value)


@doubting("step.accumulate")
def accumulate_by_ranks(call: Call, draft: Draft, batch: str, micro: str) -> None:
    """Micro-batches as the quotient of two arguments: 1 if they are equal, or ``batch`` is negative."""
    whole_batch, part = call.value(batch, -1), call.value(micro, 1)
    if whole_batch not in (part, -1):
        ranks = f"{whole_batch} / ({part} x the number of ranks)"
        raise NotKnown(replace(call.place_of(batch), text=ranks))
    draft.set("step.accumulate", None)


def finite(value: Any) -> Any:
    """A largest norm; None for one that only measures."""
    return None if number(value) == float("inf") else number(value)


def limit(value: Any) -> Any:
    """As ``finite``, of a library that takes 0, or less, for none."""
    found = finite(value)
    return None if isinstance(found, float) and found <= 0 else found or None


def tell_of_low_slots(draft: Draft, place: Place, hint: str = "") -> None:
    """Slots in bfloat16 are rounded to nearest by all that has them, but here."""
    message = (
        "Slots are rounded to nearest there, and Adam's average of squares cannot shrink; those of a "
        "recipe are rounded by chance."
    )
    draft.note(place, message, hint)


# -- scalers


def like(draft: Draft, name: str) -> None:
    """A scaler by the rule of preset ``name``, in the place of what was said before."""
    draft.forget("scaler.")
    draft.set("scaler.like", name)


def fixed(draft: Draft, name: str, scale: Any) -> None:
    """A scale that stays as it is, by the rule of preset ``name``."""
    like(draft, name)
    draft.set("scaler.init_scale", scale)
    draft.set("scaler.dynamic", False)
    bounds = preset(name).settings
    if isinstance(scale, float) and scale < bounds["min_scale"]:
        draft.set("scaler.min_scale", scale)
    if isinstance(scale, float) and scale > bounds["max_scale"]:
        draft.set("scaler.max_scale", scale)


def never(draft: Draft, comment: str = "") -> None:
    """No loss scaling."""
    draft.forget("scaler.")
    draft.set("scaler.enabled", False)
    if comment:
        draft.comments["scaler.enabled"] = comment


def settle(draft: Draft, name: str) -> None:
    """Once a file is read: no scaling, if nothing has been said of it, and no other file does it."""
    if draft.says("scaler."):
        return
    if ELSEWHERE in draft.seen:
        like(draft, name)
        draft.unknown["scaler.enabled"] = draft.seen[ELSEWHERE]
    else:
        never(draft, "no GradScaler in this file")


NUMBERS: Mapping[str, Callable[[Any], Any]] = {
    "init_scale": number,
    "growth_factor": number,
    "backoff_factor": number,
    "growth_interval": whole,
    "backoff_interval": whole,
    "min_scale": number,
    "max_scale": number,
}


def scaler(
    call: Call, draft: Draft, preset_name: str, keys: Mapping[str, str], switch: str = ""
) -> None:
    """A scaler by the rule of a preset, with what was passed under ``keys``: argument -> key."""
    like(draft, preset_name)
    draft.seen["scaler"] = call.place
    tell_of_own_rule(call, draft)
    try:
        if switch and not call.flag(switch, True):
            never(draft, f"{switch}={call.place_of(switch).text}")
            return
    except NotKnown as error:
        draft.unknown["scaler.enabled"] = error.place
    take_numbers(call, draft, keys)


RULE = frozenset([
    "scale", "step", "update", "minimize", "unscale_", "_unscale", "_update",
    "_unscale_grads_", "_maybe_opt_step", "apply", "apply_gradients", "stateless_apply",
    "scale_loss", "get_scaled_loss", "get_unscaled_gradients",
])  # fmt: skip
"""Methods of a scaler in which the rule of its scale stands, and that of its skips."""


def tell_of_own_rule(call: Call, draft: Draft) -> bool:
    """Whether a scaler is of a class of the program that replaces methods of the rule, which is told."""
    own = sorted(call.overridden & RULE)
    if own:
        message = (
            f"A subclass of {call.name.rpartition('.')[2]} with its own {', '.join(own)}: what "
            "they change of the scale, or of skipped steps, is not read."
        )
        hint = "say it: scaler.max_scale, scaler.growth_interval, ..."
        draft.find("unknown", call.place, message, hint)
    return bool(own)


def take_numbers(call: Call, draft: Draft, keys: Mapping[str, str]) -> None:
    """What a scaler was told; the rest stays as its preset has it."""
    for argument, key in keys.items():
        if argument in call.arguments or call.unpacked is not None:
            if key == "dynamic":
                draft.take_flag("scaler.dynamic", call, argument, True, None)
            else:
                convert = partial(_unless_none, NUMBERS[key])
                draft.take(f"scaler.{key}", call, argument, None, convert)


def _unless_none(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


def unscales(call: Call, draft: Draft) -> None:
    """Functions that come after it clip unscaled gradients."""
    draft.seen[UNSCALED] = call.place


# -- clipping

BY: Mapping[str, str] = {
    "clip_norm": "by their joint norm",
    "clip_each_norm": "each by its own norm",
    "clip_value": "by value",
}
_IN_THE_LOOP = "clip in the loop, between scaler.unscale and scaler.step"


def clips(draft: Draft) -> list[str]:
    """In which ways gradients are clipped, as far as it was said."""
    return [n for n in CLIPPINGS if draft.says(f"step.{n}")]


def clip(
    draft: Draft,
    name: str,
    call: Call,
    argument: str,
    convert: Callable[[Any], Any] = finite,
    usual: Any = None,
) -> None:
    """Set ``step.<name>`` to an argument, in the place of other clipping, which is then told."""
    draft.take(f"step.{name}", call, argument, usual, convert)
    if name in clips(draft):
        _be_the_only_one(draft, name, call.place)


def doubt_clip(draft: Draft, place: Place, name: str = "clip_norm") -> None:
    """That gradients are clipped, and it cannot be known how far."""
    draft.doubt(place, f"step.{name}")
    _be_the_only_one(draft, name, place)


def _be_the_only_one(draft: Draft, name: str, place: Place) -> None:
    for other in clips(draft):
        if other != name:
            draft.findings.append(_other(other, name, draft.seen.get(CLIPPED, place), place))
            draft.forget(f"step.{other}")
    draft.seen[CLIPPED] = place


def _other(other: str, name: str, here: Place, there: Place) -> Finding:
    return Finding(
        "lost",
        here,
        f"It clips gradients {BY[other]}, and line {there.line} clips them {BY[name]}. A step of "
        "a recipe clips in one way: it has the latter.",
        f"step.{other}, if that is the one to keep.",
    )


def join_clips(draft: Draft, chosen: Draft) -> None:
    """Where two dialects clip, ``chosen`` holds; the other is told, unless it is the same."""
    if clips(chosen):
        for name in clips(draft):
            key = f"step.{name}"
            if draft.settings.get(key, draft) != chosen.settings.get(key, chosen):
                here, there = draft.seen[CLIPPED], chosen.seen[CLIPPED]
                chosen.findings.append(_other(name, clips(chosen)[0], here, there))
            draft.forget(key)
    if clips(draft):
        chosen.seen |= {key: draft.seen[key] for key in (SCALED, CLIPPED) if key in draft.seen}


def note_order(draft: Draft, call: Call) -> None:
    """Keep in mind whether gradients have been unscaled where they are clipped."""
    if UNSCALED in draft.seen:
        draft.seen.pop(SCALED, None)
    else:
        draft.seen[SCALED] = call.place


def tell_of_order(
    draft: Draft, hint: str = "scaler.unscale_(optimizer) before it, as was probably meant."
) -> None:
    """Of gradients that are clipped while they are scaled, if a scaler scales them."""
    scales = draft.settings.get("scaler.enabled", True) and draft.says("scaler.")
    if scales and SCALED in draft.seen and clips(draft):
        message = (
            "It clips gradients that are still scaled, so that the limit is as much smaller as the "
            "loss scale is large; the recipe clips them unscaled."
        )
        draft.lost(draft.seen[SCALED], message, hint)


def clip_by_norm(call: Call, draft: Draft) -> None:
    """``clip_grad_norm_(parameters, max_norm, norm_type=2.0, ...)``."""
    try:
        norm = number(call.value("norm_type", 2.0))
    except NotKnown as error:
        doubt_clip(draft, error.place)
        return
    if norm != 2.0:
        message = f"It clips by the {norm}-norm; a recipe clips by the 2-norm."
        draft.lost(call.place, message, _IN_THE_LOOP)
        return
    written = call.place_of("parameters").text if "parameters" in call.arguments else ""
    bare = written[1:-1] if written[:1] + written[-1:] in ("[]", "()") else written
    each = re.search("param", call.loops.get(bare, ""), re.I)
    clip(draft, "clip_each_norm" if each else "clip_norm", call, "max_norm")
    note_order(draft, call)
    if not each and not call.loops.keys().isdisjoint(re.findall(r"\w+", bare)):
        each_turn = f"It clips the norm of {bare} in each turn of a loop"
        message = f"{each_turn}; a recipe clips the joint norm of all gradients."
        hint = "the same, where the loop has one turn; else clip in the loop"
        draft.lost(call.place, message, hint)


def clip_by_value(call: Call, draft: Draft) -> None:
    """``clip_grad_value_(parameters, clip_value)``."""
    clip(draft, "clip_value", call, "clip_value")
    note_order(draft, call)


def clip_within(
    call: Call, draft: Draft, least: str, most: str, *, symmetric: bool = False
) -> None:
    """Clipping to a range; ``symmetric``: without ``least`` it is ``-most``."""
    try:
        low, high = (number(call.value(name, None)) for name in (least, most))
    except NotKnown as error:
        doubt_clip(draft, error.place, "clip_value")
        return
    low = -high if low is None and symmetric and isinstance(high, float) else low
    if isinstance(low, float) and isinstance(high, float) and low == -high:
        clip(draft, "clip_value", call, most)
        return
    shown = ["no bound" if each is None else str(each) for each in (low, high)]
    bounds = f"It clips gradients to values from {shown[0]} to {shown[1]}"
    draft.lost(call.place, f"{bounds}; clip_value is alike on both sides.", _IN_THE_LOOP)
