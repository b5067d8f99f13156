"""The training loop around the calls: which regions belong to it, and how it accumulates."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ampbridge.port.decisions import FALSE, TRUE, And, Condition, Cycle, Decisions, Not, both, negation
from ampbridge.port.dialect import Draft, NotKnown
from ampbridge.port.evaluate import Plain
from ampbridge.port.source import Source
from ampbridge.port.values import Event, Value

TRAINS = frozenset({"backward", "minimize", "step", "apply_gradients", "scale", "unscale_"})
STEPS = frozenset({"step", "minimize", "apply_gradients"})
EVALUATES = re.compile(r"eval|valid|test|infer|predict|generate|sample|export|bench", re.I)
OPTIMIZER = re.compile(r"optim|opt\b|scaler|sgd|adam", re.I)


def in_order(events: Sequence[Event]) -> list[Event]:
    """The events in the order in which they are handled: training regions last."""
    training = {event.entry.stack[-1:] for event in events if event.method in TRAINS}
    return sorted(events, key=lambda event: _weight(event, training))


def _weight(event: Event, training: set[tuple[str, ...]]) -> int:
    """How much a region says of the training: 0 for one of an evaluation."""
    if not event.entered:
        return 2
    return max(_of_entry(entry, training) for entry in event.entered)


def _of_entry(entry: object, training: set[tuple[str, ...]]) -> int:
    from ampbridge.port.values import Entry

    assert isinstance(entry, Entry)
    if entry.without_gradients or any(EVALUATES.search(name) for name in entry.stack):
        return 0
    if entry.inside:
        return 1
    return 3 if any(entry.stack[n : n + 1] in training for n in range(len(entry.stack))) else 2


def sometimes(condition: Condition, holds: bool = True) -> Condition:
    """``condition`` with its turns taken as come: what happens each n-th time does happen."""
    if isinstance(condition, Cycle):
        return TRUE if holds else FALSE
    if isinstance(condition, Not):
        return negation(sometimes(condition.of, not holds))
    if isinstance(condition, And):
        return both(sometimes(condition.left, holds), sometimes(condition.right, holds))
    return condition


def accumulate(events: Sequence[Event], draft: Draft, plain: Plain, source: Source) -> None:
    """Set ``step.accumulate``, where steps are taken each n-th time only."""
    if "step.accumulate" in draft.settings or "step.accumulate" in draft.unknown:
        return
    for event in events:
        if event.method not in STEPS or not (event.qualified or OPTIMIZER.search(event.on)):
            continue
        period = next((found for guard in event.guards if (found := _period(guard))), None)
        if period is None:
            continue
        try:
            count = plain.of(period.period)
        except NotKnown as error:
            draft.unknown["step.accumulate"] = error.place
            return
        if isinstance(count, int) and count > 1:
            draft.set("step.accumulate", count)
            draft.comments["step.accumulate"] = period.text
        return


def _period(condition: Condition) -> Cycle | None:
    if isinstance(condition, Cycle):
        return condition
    if isinstance(condition, Not):
        return _period(condition.of)
    if isinstance(condition, And):
        return _period(condition.left) or _period(condition.right)
    return None
