"""Several trainings in one file: the recipe is of the last of them.

A function that trains may be called more than once, and a script may make its model anew and train
that. Without this, settings of one training would be mixed with those of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from ampbridge_port.interpreter.values import Event, Run
from ampbridge_port.reading import Finding
from ampbridge_port.source import Source

TAKES_STEPS = frozenset({"backward", "minimize", "step", "apply_gradients"})
OF_MODELS = frozenset({"parameters", "named_parameters", "trainable_variables"})


@dataclass(frozen=True)
class Trainings:
    """The trainings of a file before its last."""

    _before: dict[int, Event]
    """Events of an earlier call of a function, by id: what shows that it is called once more."""
    _replaced: frozenset[int]
    """Events of a model that was made anew since."""
    findings: tuple[Finding, ...]

    def is_past(self, event: Event, happens: Callable[[Event], bool]) -> bool:
        """Whether an event belongs to a training before the last that ``happens``."""
        if id(event) in self._replaced:
            return True
        again = self._before.get(id(event))
        return again is not None and (happens(again) or self.is_past(again, happens))


def trainings(events: Sequence[Event], source: Source) -> Trainings:
    """Tell the trainings of a file apart."""
    before, runs = _repeated(events)
    replaced, places = _with_replaced_models(events, source)
    findings = [
        Finding(
            "note",
            source.place(run.call),
            f"{run.function} trains more than once here; the recipe is of its last call.",
            "port a file with the one training that is meant",
        )
        for run in dict.fromkeys(runs)
    ]
    findings += [
        Finding(
            "note",
            source.place(node),
            "The model is made anew here and trained once more; the recipe is of this training.",
            "port a file with the one training that is meant",
        )
        for node in places
    ]
    return Trainings(before, replaced, tuple(findings))


# -- functions that are called again


def _repeated(events: Sequence[Event]) -> tuple[dict[int, Event], list[Run]]:
    """Events of earlier runs, with the region that is entered once more; and the last runs."""
    training = {id(run) for e in events if e.method in TAKES_STEPS for run in e.entry.runs}
    last: dict[int, Event] = {}
    again: dict[int, Event] = {}
    runs: dict[int, Run] = {}
    for event in reversed(events):
        if not event.entered:
            continue
        later = last.setdefault(id(event.node), event)
        pair = _parted(event, later)
        if pair is not None and all(id(run) in training for run in pair):
            again[id(pair[0])] = later
            runs[id(pair[1])] = pair[1]
    before = {
        id(event): again[id(run)]
        for event in events
        for run in event.entry.runs
        if id(run) in again
    }
    return before, list(runs.values())


def _parted(event: Event, later: Event) -> tuple[Run, Run] | None:
    """The two runs of one function in which two events stand, if they do."""
    for run, other in zip(event.entry.runs, later.entry.runs, strict=False):
        if run is not other:
            return (run, other) if run.function == other.function else None
    return None


# -- models that are made anew


def _with_replaced_models(
    events: Sequence[Event], source: Source
) -> tuple[frozenset[int], list[cst.CSTNode]]:
    """Events of models before the last, and where the last is made."""
    if source.others:  # lines are those of the script
        events = [each for each in events if source.has(each.node)]
    models = {each.on for each in events if each.method in OF_MODELS}
    steps = [_line(e.node, source) for e in events if e.method in TAKES_STEPS]
    replaced: set[int] = set()
    found: list[cst.CSTNode] = []
    for made in _made_anew(source, models) if len(steps) > 1 else ():
        lines = [_line(node, source) for node in made]
        trained = [n for n in range(1, len(lines)) if _any_within(steps, lines[n - 1], lines[n])]
        if not trained:
            continue
        first, last = lines[0], lines[trained[-1]]
        past = [e for e in events if first <= _line(e.node, source) < last]
        of_it = set(map(id, past))
        kept = {id(e.receiver) for e in events if id(e) not in of_it}
        replaced.update(id(event) for event in past if id(event) not in kept)
        found.append(made[trained[-1]])
    return frozenset(replaced), found


def _line(node: cst.CSTNode, source: Source) -> int:
    return source.range_of(node)[0][0]


def _any_within(lines: Sequence[int], first: int, last: int) -> bool:
    return any(first <= line < last for line in lines)


def _made_anew(source: Source, names: set[str]) -> Iterator[list[cst.CSTNode]]:
    """Assignments of one name in one block that do not use what it held: two or more."""
    for block in _blocks(source.module):
        made: dict[str, list[cst.CSTNode]] = {}
        for statement in block:
            for part in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
                name = _fresh(part)
                if name in names:
                    made.setdefault(name, []).append(part)
        yield from (each for each in made.values() if len(each) > 1)


def _fresh(node: cst.CSTNode) -> str:
    """The name to which a call's result is assigned, unless the call uses the name itself."""
    if not isinstance(node, cst.Assign) or not isinstance(node.value, cst.Call):
        return ""
    target = node.targets[0].target
    used = _Names()
    node.value.visit(used)
    return target.value if isinstance(target, cst.Name) and target.value not in used.found else ""


class _Names(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def visit_Name(self, node: cst.Name) -> None:
        self.found.add(node.value)


def _blocks(node: cst.CSTNode) -> Iterator[Sequence[cst.CSTNode]]:
    """The bodies of statements, inside of ``node`` and its own; expressions have none."""
    left = [node]
    while left:
        each = left.pop()
        if isinstance(each, (cst.Module, cst.IndentedBlock)):
            yield each.body
            left.extend(each.body)
        elif not isinstance(each, (cst.SimpleStatementLine, cst.BaseExpression)):
            left.extend(each.children)
