"""Policies that change while a program trains: conditions on the loss, on steps and epochs.

Such a condition does not choose one of two recipes: it goes one way and then the other in the same run.
What follows from it is a schedule, or is not known.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ampbridge_port.reader.dialects.calls import Draft
from ampbridge_port.reader.recipes import Result
from ampbridge_port.reader.values import Option


def joined(usual: Result, other: Result, option: Option, value: bool) -> Result:
    """One result of both; ``other`` is where ``option`` has ``value``, and it turns within a run."""
    by_holding = {value: policy(other), not value: policy(usual)}
    result = usual if usual.trains_low else other
    draft = copy.copy(result.draft)
    draft.settings = {k: v for k, v in result.draft.settings.items() if not k.startswith("policy.")}
    for name in ("unknown", "comments", "origins"):
        noted = getattr(result.draft, name)
        setattr(draft, name, {k: v for k, v in noted.items() if not k.startswith("policy.")})
    draft.findings = list(result.draft.findings)
    earlier = {k: at for k, at in usual.draft.unknown.items() if k.startswith("policy.")}
    schedule = None if earlier else _schedule(option, by_holding)
    if schedule is not None:
        draft.settings |= schedule
        _tell_of_schedule(draft, option, by_holding)
    else:
        _be_unknown(draft, option, by_holding)
        draft.unknown |= earlier
        draft.settings = {k: v for k, v in draft.settings.items() if k not in draft.unknown}
    return replace(result, draft=draft)


def _tell_of_schedule(draft: Draft, option: Option, policies: Mapping[bool, Any]) -> None:
    changes = f"The policy changes while it trains, by {option.place.excerpt}"
    message = f"{changes}: the recipe has a schedule."
    if any(policy.get("lists") == "tensorflow" for policy in policies.values()):
        message += " A policy of Keras is of the layers made after it; the schedule is of all."
    draft.note(option.place, message)


def _be_unknown(draft: Draft, option: Option, by_holding: Mapping[bool, Any]) -> None:
    policies = list(by_holding.values())
    for key in dict.fromkeys(key for policy in policies for key in policy):
        values = [policy[key] for policy in policies if key in policy]
        if key == "level" or any(each != values[0] for each in values):
            draft.unknown[f"policy.{key}"] = option.place
        else:
            draft.set(f"policy.{key}", values[0])
    shown = ", ".join(dict.fromkeys(map(_in_short, policies)))
    message = f"The policy changes while it trains, by {option.place.excerpt}: {shown}."
    hint = "amp.Schedule([(0, ...), (STEP, ...)]), if it changes at a step that you know"
    draft.find("unknown", option.place, message, hint)


def _in_short(policy: Mapping[str, Any]) -> str:
    level = policy.get("level", "?")
    return "O0" if level == "O0" else f"{level}:{policy.get('dtype', 'float16')}"


def policy(result: Result) -> dict[str, Any]:
    """The section ``policy`` of a result; of one without mixed precision, O0."""
    settings = result.draft.settings.items()
    found = {k.removeprefix("policy."): v for k, v in settings if k.startswith("policy.")}
    return found if result.trains_low else {"level": "O0"}


def _schedule(option: Option, by_holding: Mapping[bool, Any]) -> dict[str, Any] | None:
    """The keys of a recipe's schedule, if it has one for the condition."""
    assert option.turns is not None
    what, sign, number = option.turns
    is_upper, strict = sign in ("<", "<="), sign in ("<", ">")
    if not sign:
        return None
    if what == "loss":
        low, high = by_holding[is_upper], by_holding[not is_upper]
        return {"schedule.loss_below": number, "schedule.use": low, "schedule.otherwise": high}
    if what == "step" and number >= 1:
        early, late = by_holding[is_upper], by_holding[not is_upper]
        begins = int(number) + (strict is not is_upper)
        return {"schedule.steps": [[0, early], [begins, late]]}
    return None
