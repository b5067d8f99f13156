"""The training loop around the calls: which regions belong to it, and how it accumulates."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ampbridge_port.dialect import Draft, NotKnown
from ampbridge_port.interpreter.decisions import (
    FALSE,
    TRUE,
    And,
    Atom,
    Condition,
    Cycle,
    Not,
    both,
    cycle_of,
    negation,
)
from ampbridge_port.interpreter.evaluate import Plain, setting
from ampbridge_port.interpreter.values import Class, Constant, Entry, Event, Value
from ampbridge_port.reading import Origin
from ampbridge_port.source import Source

if TYPE_CHECKING:
    import libcst as cst

TRAINS = frozenset({"backward", "minimize", "step", "apply_gradients", "scale", "unscale_"})
STEPS = frozenset({"step", "minimize", "apply_gradients"})
EVALUATES = re.compile(r"eval|valid|test|infer|predict|generate|sample|export|bench", re.I)
OF_STEP = re.compile(r"clip|^(?:clamp_|step|minimize|apply_gradients|unscale_|update|backward)$")
SCALES = frozenset({"scale", "unscale_", "step", "minimize"})
SCALER = re.compile(r"scaler", re.I)
LOSS_SCALER = re.compile(r"(loss|grad|native|apex)_?scaler|^scaler$", re.I)
MAY_SCALE = re.compile(r"scale|self\.\w+\(", re.I)
LOGS = re.compile(r"log|writer|board|summary", re.I)
OPTIMIZER = re.compile(r"optim|opt\b|scaler|sgd|adam", re.I)


def in_order(events: Sequence[Event]) -> list[Event]:
    """The events in the order in which they are handled: of regions, those of an evaluation first,
    then those of the training, then those within another.
    """
    training = {event.entry.stack[-1:] for event in events if event.method in TRAINS}
    return sorted(events, key=lambda event: _weight(event, training))


def _weight(event: Event, training: set[tuple[str, ...]]) -> int:
    """How much a region says of the training: 0 for one of an evaluation."""
    if not event.entered:
        return 2
    return max(_of_entry(entry, training) for entry in event.entered)


def evaluates(event: Event) -> bool:
    """Whether a region is entered by an evaluation alone."""
    return bool(event.entered) and all(map(_evaluates, event.entered))


def _evaluates(entry: Entry) -> bool:
    return entry.without_gradients or any(EVALUATES.search(name) for name in entry.stack)


def _of_entry(entry: Entry, training: set[tuple[str, ...]]) -> int:
    if _evaluates(entry):
        return 0
    if entry.inside:
        return 4
    return 3 if any(entry.stack[n : n + 1] in training for n in range(len(entry.stack))) else 2


def never(atom: Atom) -> bool:
    """Of no condition is it said that it changes while the file trains."""
    return False


def sometimes(
    condition: Condition, changes: Callable[[Atom], bool] = never, holds: bool = True
) -> Condition:
    """``condition`` with its turns taken as come: what happens each n-th time does happen.

    ``changes``: whether an atom goes both ways in one run, as a comparison of the loop's index does.
    """
    if isinstance(condition, Cycle) or (isinstance(condition, Atom) and changes(condition)):
        return TRUE if holds else FALSE
    if isinstance(condition, Not):
        return negation(sometimes(condition.of, changes, not holds))
    if isinstance(condition, And):
        left, right = (
            sometimes(each, changes, holds) for each in (condition.left, condition.right)
        )
        return both(left, right)
    return condition


def is_of_step(event: Event) -> bool:
    """Whether a call is a part of each step, not of what is made ready before: a clipping, an update."""
    return OF_STEP.search(event.method) is not None


def scales_elsewhere(event: Event) -> bool:
    """Whether a scaler is used that the file does not make: ``scaler.scale(loss)``, ``loss_scaler(loss)``."""
    if event.qualified or LOGS.search(event.on):  # logger.scaler("loss", 1.0)
        return False
    return LOSS_SCALER.search(event.method) is not None or (
        event.method in SCALES and SCALER.search(event.on) is not None
    )


def base_elsewhere(event: Event) -> cst.CSTNode | None:
    """The base class, from another file of the user's, of a class that enters a region."""
    owners = (run.owner for entry in event.entered for run in entry.runs)
    return next((found for each in owners if each and (found := _base_elsewhere(each))), None)


def _base_elsewhere(cls: Class) -> cst.CSTNode | None:
    bases = (
        _base_elsewhere(base) if isinstance(base, Class) else setting(base) for base in cls.bases
    )
    return next(filter(None, bases), None)


def is_unscaled_backward(event: Event) -> bool:
    """Whether it is the backward pass of a plain loss: ``loss.backward()``."""
    plain = not any(each.name is None for each in event.passed)
    return event.method == "backward" and plain and not MAY_SCALE.search(event.on)


def compiles_elsewhere(event: Event) -> bool:
    """Whether a model that the file does not make is compiled: ``model.compile(optimizer, loss=loss)``."""
    passed = {each.name: each.value for each in event.passed}
    unscaled = passed.get("auto_scale_loss")
    scales = not (isinstance(unscaled, Constant) and unscaled.value is False)
    keras = not passed.keys().isdisjoint(("optimizer", "loss"))
    return event.method == "compile" and not event.qualified and keras and scales


def accumulate(
    events: Sequence[Event], divisors: Sequence[Value], draft: Draft, plain: Plain, source: Source
) -> None:
    """Set ``step.accumulate``: where steps are taken each n-th time, or after n backward passes."""
    if "step.accumulate" in draft.settings or "step.accumulate" in draft.unknown:
        return
    steps = [event for event in events if _is_step(event)]
    cycles = ((step, _cycle(step)) for step in steps)  # say more than a loop that may warm up
    by_turns = ((step, c.period, c.node or step.node) for step, c in cycles if c is not None)
    passes = [event for event in events if event.method == "backward"]
    by_loops = (
        (step, turns, step.node)
        for step in steps
        if (turns := _backward_passes(step, passes)) is not None
    )
    found = next(iter((*by_turns, *by_loops)), None)
    if found is None:
        return
    step, turns, said = found
    try:
        count = plain.of(turns)
    except NotKnown as error:
        draft.unknown["step.accumulate"] = error.place
        return
    if isinstance(count, int) and count > 1:
        draft.set("step.accumulate", count)
        draft.origins["step.accumulate"] = Origin(source.place(said))
        if not any(_is(each, count, plain) for each in divisors):
            draft.find(
                "lost",
                source.place(step.node),
                f"The gradients of {count} micro-batches are summed here; a recipe averages them.",
                f"multiply the loss by {count}, or with plain SGD the learning rate",
            )


def _is(value: Value, count: int, plain: Plain) -> bool:
    try:
        return bool(plain.of(value) == count)
    except NotKnown:
        return False


def _is_step(event: Event) -> bool:
    known = bool(event.qualified) or OPTIMIZER.search(event.on) is not None
    return event.method in STEPS and known


def _cycle(step: Event) -> Cycle | None:
    """The condition by which a step is made each so many turns."""
    return next((found for guard in step.guards if (found := cycle_of(guard))), None)


def is_of_loop(event: Event) -> bool:
    """Whether a call says how a loop takes its steps."""
    return event.method == "backward" or _is_step(event) or bool(event.entered)


def _backward_passes(step: Event, passes: Sequence[Event]) -> Value | None:
    """How many backward passes a loop beside the step makes."""
    around = step.entry.loops
    for event in passes:
        loops = event.entry.loops
        within = event.entry.stack[:1] == step.entry.stack[:1]
        if within and len(loops) == len(around) + 1 and loops[: len(around)] == around:
            return loops[-1].turns
    return None
