"""Policies that change while a file trains: conditions on the loss, on steps and epochs.

Such a condition does not choose one of several recipes: it goes one way and then the other in the same
run. What follows from it is a schedule, or is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ampbridge_port.dialect import Draft
from ampbridge_port.interpreter.decisions import Atom, Decision, Outcome
from ampbridge_port.reading import Place

if TYPE_CHECKING:
    import libcst as cst

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_COMPARED = re.compile(rf"(?P<what>[^<>=!]+?)\s*(?P<sign><=?|>=?)\s*(?P<bound>{_NUMBER})")
_TURNED = re.compile(rf"(?P<bound>{_NUMBER})\s*(?P<sign><=?|>=?)\s*(?P<what>[^<>=!]+)")
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_LOSS = re.compile(r"(?:\b|_)loss(?:es)?(?:\b|_)", re.IGNORECASE)
_OF_SETTINGS = re.compile(
    r"loss(?:es)?_?(?:scal|func|fn|weight|coef|ratio|type|name|list|cfg|conf|arg)|\blen\(|parameters\(",
    re.IGNORECASE,
)
"""What is called after a loss and stays as it is: its scale, its function."""
_STEPS = re.compile(
    r"(?:^|[._])(?:global_?step|step|steps|iteration|iter|it)(?:$|_?(?:num|idx|count))"
)
_COUNTS = re.compile(
    r"\b(?:cur_?|current_?|global_?)?(?:epoch|step|iter|iteration)(?:_?(?:id|idx|num))?\b"
)


_NO_GRADIENT = re.compile(r"(?:g|(?:\w+\.)*(?:grad|gradient)) == None")
"""A parameter that the loss does not reach has none, and others have."""


@dataclass(frozen=True)
class Changing:
    """Which conditions change during a run. ``counters``: names that loops count by."""

    counters: frozenset[str]

    def __call__(self, atom: Atom) -> bool:
        """Whether ``atom`` goes both ways in one run."""
        words = set(re.findall(r"\w+", atom.text))
        if _NO_GRADIENT.fullmatch(atom.text):
            return True
        compares = bool(re.search(r"[<>=]", atom.text))
        by_count = words & self.counters or _COUNTS.search(atom.text)
        return compares and bool(by_count or _of_loss(atom) is not None)


@dataclass(frozen=True)
class _Bound:
    """``what < bound``, or the other way round."""

    what: str
    is_upper: bool
    strict: bool
    bound: float


def _bound(atom: Atom) -> _Bound | None:
    found = _COMPARED.fullmatch(atom.text)
    turned = None if found else _TURNED.fullmatch(atom.text)
    found = found or turned
    if found is None:
        return None
    kind = _MIRRORED[found["sign"]] if turned else found["sign"]
    return _Bound(found["what"].strip(), kind[0] == "<", len(kind) == 1, float(found["bound"]))


def _of_loss(atom: Atom) -> _Bound | None:
    bound = _bound(atom)
    if bound is None or _OF_SETTINGS.search(bound.what):
        return None
    return bound if _LOSS.search(bound.what) else None


def _of_steps(atom: Atom) -> _Bound | None:
    bound = _bound(atom)
    return bound if bound is not None and _STEPS.search(bound.what) else None


PlaceOf = Callable[["cst.CSTNode"], Place]


def joined(
    outcomes: Sequence[Outcome[Any]], changing: Changing, place_of: PlaceOf
) -> list[Outcome[Any]]:
    """The outcomes with those of one run made one. Their results have a ``framework`` and a ``draft``."""
    if not any(changing(each.atom) for outcome in outcomes for each in outcome.decisions):
        return list(outcomes)
    runs: dict[tuple[Decision, ...], list[Outcome[Any]]] = {}
    for outcome in outcomes:
        fixed = tuple(each for each in outcome.decisions if not changing(each.atom))
        runs.setdefault(fixed, []).append(outcome)
    found = []
    for fixed in runs:
        finer = [other for other in runs if set(other) > set(fixed)]
        if not finer:
            found.append(_of_run(fixed, _all_of_run(fixed, runs), changing, place_of))
    return found


def _all_of_run(
    fixed: tuple[Decision, ...], runs: Mapping[tuple[Decision, ...], list[Outcome[Any]]]
) -> list[Outcome[Any]]:
    """What holds at one time or another of a run, whose other conditions are ``fixed``."""
    return [each for other, members in runs.items() if set(other) <= set(fixed) for each in members]


def _of_run(
    fixed: tuple[Decision, ...],
    members: Sequence[Outcome[Any]],
    changing: Changing,
    place_of: PlaceOf,
) -> Outcome[Any]:
    first = members[0].result
    if all(each.result.same_as(first) for each in members):
        return Outcome(fixed, first)
    using = [each.result for each in members if each.result.framework] or [first]
    atoms = {d.atom: None for each in members for d in each.decisions if changing(d.atom)}
    place = next((place_of(atom.node) for atom in atoms if atom.node is not None), None)
    draft = Draft()
    for each in using:
        draft.findings.extend(f for f in each.draft.findings if f not in draft.findings)
        draft.comments.update(each.draft.comments)
        draft.origins.update(each.draft.origins)
        draft.unknown.update(each.draft.unknown)
    for key in dict.fromkeys(key for each in using for key in each.draft.settings):
        values = [each.draft.settings[key] for each in using if key in each.draft.settings]
        if not key.startswith("policy.") and key not in draft.unknown:
            _take(draft, key, values, place)
    _take_policies(draft, members, list(atoms), place)
    framework = next((each.framework for each in using), None)
    return Outcome(fixed, type(first)(framework, draft))


def _take(draft: Draft, key: str, values: Sequence[Any], place: Place | None) -> None:
    """What holds at some time of a run; unknown, where that changes as well."""
    if place is None or all(value == values[0] for value in values):
        draft.set(key, values[0])
    else:
        draft.unknown[key] = place


def _take_policies(
    draft: Draft, members: Sequence[Outcome[Any]], atoms: Sequence[Atom], place: Place | None
) -> None:
    policies = [_policy(each.result.draft) for each in members]
    if all(policy == policies[0] for policy in policies):
        draft.settings.update({f"policy.{key}": value for key, value in policies[0].items()})
        return
    assert place is not None
    by_holding = {
        decision.holds: policy
        for each, policy in zip(members, policies, strict=True)
        for decision in each.decisions
        if decision.atom in atoms
    }
    is_known = not any(key.startswith("policy.") for key in draft.unknown)
    schedule = _schedule(atoms[0], by_holding) if len(atoms) == 1 and is_known else None
    if schedule is not None:
        for noted in (draft.comments, draft.origins):
            for key in [key for key in noted if key.startswith("policy.")]:
                del noted[key]
        draft.settings.update(schedule)
        message = (
            f"The policy changes while it trains, by {place.excerpt}: the recipe has a schedule."
        )
        if any(policy.get("lists") == "tensorflow" for policy in policies):
            message += " A policy of Keras is of the layers made after it; the schedule is of all."
        draft.find("note", place, message)
        return
    for key in dict.fromkeys(key for policy in policies for key in policy):
        values = [policy.get(key) for policy in policies if key in policy]
        if key == "level" or any(value != values[0] for value in values):
            draft.set(f"policy.{key}", None)
            draft.unknown[f"policy.{key}"] = place
        else:
            draft.set(f"policy.{key}", values[0])
    told = ", ".join(dict.fromkeys(_short(policy) for policy in policies))
    draft.find(
        "unknown",
        place,
        f"The policy changes while it trains, by {place.excerpt}: {told}.",
        "amp.Schedule([(0, ...), (STEP, ...)]), if it changes at a step that you know",
    )


def _policy(draft: Draft) -> dict[str, Any]:
    """The section ``policy`` of a draft; of one that uses no mixed precision, O0."""
    of_policy = {k: v for k, v in draft.settings.items() if k.startswith("policy.")}
    return {k.removeprefix("policy."): v for k, v in of_policy.items()} or {"level": "O0"}


def _short(policy: Mapping[str, Any]) -> str:
    level = policy.get("level", "?")
    return "O0" if level == "O0" else f"{level}:{policy.get('dtype', 'float16')}"


def _schedule(atom: Atom, by_holding: Mapping[bool, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The keys of a recipe's schedule, if it has one for a condition."""
    by_loss, by_steps = _of_loss(atom), _of_steps(atom)
    if len(by_holding) != 2:
        return None
    if by_loss is not None:
        low, high = by_holding[by_loss.is_upper], by_holding[not by_loss.is_upper]
        bound = {"schedule.loss_below": by_loss.bound}
        return {**bound, "schedule.use": low, "schedule.otherwise": high}
    if by_steps is not None and by_steps.bound >= 1:
        early, late = by_holding[by_steps.is_upper], by_holding[not by_steps.is_upper]
        begins = int(by_steps.bound) + (by_steps.strict is not by_steps.is_upper)
        return {"schedule.steps": [[0, early], [begins, late]]}
    return None
