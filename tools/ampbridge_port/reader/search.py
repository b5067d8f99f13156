"""The recipes that a program stands for: a run by its defaults, and one for each option that matters.

run the program by its defaults
for each option that something of mixed precision depends on, and each other value it may have:
    run it with that value
if none of these trains in mixed precision:
    from each, once more
recipes that are equal are one
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ampbridge_port.reader import schedules, structure
from ampbridge_port.reader.machine import Exhausted, Machine
from ampbridge_port.reader.modules import Finder
from ampbridge_port.reader.recipes import Result, read
from ampbridge_port.reader.settings import Table
from ampbridge_port.reader.source import Module, last_name, place_of
from ampbridge_port.reader.values import Option, Unknown
from ampbridge_port.reader.words import WORDS, Words
from ampbridge_port.reading import Alternative, Finding, Reading

MOST_RUNS = 28
MOST_STEPS = 500_000
"""As many expressions are looked at in all runs together."""
MOST_VALUES = 6
"""As many values of one option are tried."""

ASK_FOR_IT = "ampbridge port the module that trains"
Assumed = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One run, and what it comes to."""

    assumed: Assumed
    machine: Machine
    result: Result

    @property
    def steps(self) -> bool:
        """Whether it takes a step."""
        return structure.has_steps(self.result.events)


class Search:
    """All runs of a program."""

    def __init__(
        self, script: Module, finder: Finder, config: Table | None, config_file: str
    ) -> None:
        self._script, self.finder = script, finder
        self._config, self._config_file = config, config_file
        self._steps, self._words = 0, Words()
        self.runs: list[Run] = []
        self.is_cut = self._has_more = False

    def read(self) -> Reading:
        """Every recipe of the program."""
        base = self._run({})
        self._others(base)
        low = [run for run in self.runs if run.result.trains_low]
        if not base.result.trains_low:
            for run in low or self.runs[1:]:
                self._others(run)
        elif len(self.runs) <= MOST_RUNS // 2:
            for run in [each for each in self.runs[1:] if all(_undecided(each))]:
                self._others(run)
        self._join_schedules(base)
        return self._reading(base)

    def _join_schedules(self, base: Run) -> None:
        """A condition on the loss or the step makes one recipe of two runs."""
        joined: set[str] = set()
        for run in self.runs[1:]:
            (key, value), *others = run.assumed.items()
            option = run.machine.options.get(key)
            if option is None or option.turns is None or others or key in joined:
                continue
            if schedules.policy(run.result) != schedules.policy(base.result):
                joined.add(key)
                result = schedules.joined(base.result, run.result, option, bool(value))
                base = self.runs[0] = replace(base, result=result)
        self.runs = [run for run in self.runs if not joined & run.assumed.keys()]

    def _run(self, assumed: Assumed) -> Run:
        machine = Machine(self.finder, self._config, self._config_file, assumed, self._words)
        try:
            machine.run(self._script)
        except Exhausted:
            self.is_cut = True
        self._steps += machine.steps
        run = Run(assumed, machine, read(machine))
        self.runs.append(run)
        return run

    def _others(self, run: Run) -> None:
        """The runs that differ from one in one option."""
        seen = {frozenset(each.assumed.items()) for each in self.runs}
        for option, value in _values(run):
            assumed = {**run.assumed, option.key: value}
            if frozenset(assumed.items()) in seen or option.key in run.assumed:
                continue
            if len(self.runs) >= MOST_RUNS or self._steps > MOST_STEPS:
                self._has_more = True
                return
            self._run(assumed)

    def _know_levels(self) -> None:
        """A run without a region is in float32, where another run of the program opens one."""
        drafts = [run.result.draft for run in self.runs]
        if any(draft.settings.get("policy.level", "O0") != "O0" for draft in drafts):
            for draft in drafts:
                if draft.unknown.get("policy.level", "") == draft.seen.get("scaler"):
                    draft.set("policy.level", "O0")

    def _reading(self, base: Run) -> Reading:
        base = self.runs[0]
        if any(run.steps for run in self.runs):  # where no step is taken, nothing is trained
            self.runs = [run for run in self.runs if run.steps]
        asked = [run for run in self.runs if not any(_undecided(run))]
        least = min((run.machine.raised for run in asked), default=sys.maxsize)
        self.runs = [run for run in self.runs if run.machine.raised <= least]  # else it refuses
        self._know_levels()
        low = [run for run in self.runs if run.result.framework is not None]
        framework = next((run.result.framework for run in low if run.result.trains_low), None)
        framework = framework or (low[0].result.framework if low else None)
        equal: list[list[Run]] = []
        for run in sorted(self.runs, key=lambda each: len(each.assumed)):
            group = next((g for g in equal if g[0].result.same_as(run.result)), None)
            equal.append([run]) if group is None else group.append(run)
        deciding = {key for group in equal[1:] for run in group for key in run.assumed}
        deciding |= equal[0][0].assumed.keys()
        alternatives = [_alternative(group, deciding) for group in equal] if low else []
        shown = next((run for run in low if run.result.trains_low), base)
        findings = dict.fromkeys(f for each in alternatives for f in each.findings)
        findings |= dict.fromkeys(structure.of_program(shown.result.events, shown.machine))
        self.is_cut |= self._has_more and not any(run.result.trains_low for run in low)
        if not low and not self.is_cut:
            findings |= dict.fromkeys(_not_reached(base.machine))
        if self.is_cut:
            too_much = "The program has too much to be followed to its end"
            message = f"{too_much}; the recipe is of what was met until then."
            place = self._script.place(self._script.tree)
            findings[Finding("unknown", place, message, ASK_FOR_IT)] = None
        return Reading(
            self._script.file,
            framework,
            tuple(alternatives),
            tuple(findings),
            None,
            frozenset(f for run in low for f in run.result.files) - {self._script.file},
            structure.has_steps(base.machine.events),
        )


def _values(run: Run) -> Iterator[tuple[Option, Any]]:
    """The other values of the options that matter; those that decide most come first."""
    options = [each for each in run.machine.options.values() if each.relevant]
    options.sort(key=lambda each: not WORDS.search(each.key.rpartition(": ")[2]))
    for option in options:
        held = run.assumed.get(option.key, option.default)
        domain = dict(option.domain)
        if isinstance(option.default, bool):
            domain |= {True: None, False: None}
        if option.default is None and set(domain) <= {None}:
            domain[True] = None
        if type(option.default) is int and option.default <= 0 and set(domain) <= {option.default}:
            domain[1] = None  # a switch that is a number
        others = [
            v for v in domain if v != held or isinstance(v, bool) is not isinstance(held, bool)
        ]
        for value in others[:MOST_VALUES]:
            yield option, value


def _undecided(run: Run) -> list[bool]:
    """Of each condition that a run assumes: whether nobody who starts the program decides it."""
    options = run.machine.options
    return [key in options and not options[key].changed_by for key in run.assumed]


def _conditions(run: Run, deciding: set[str]) -> dict[str, str]:
    """The options that decide between recipes, with their values in a run, by their keys."""
    asked = [o for key, o in run.machine.options.items() if key in deciding]
    options = [o for o in asked if o.relevant or o.key in run.assumed]
    return {o.key: _condition(o, run.assumed.get(o.key, o.default)) for o in options}


def _alternative(equal: list[Run], deciding: set[str]) -> Alternative:
    """The recipe of equal runs, under the conditions that they share."""
    run = equal[0]
    draft, options = run.result.draft, run.machine.options.values()
    conditions = _conditions(run, deciding)
    others = [_conditions(each, deciding) for each in equal[1:]]
    shared = {k: c for k, c in conditions.items() if all(each.get(k, c) == c for each in others)}
    shared = {k: c for k, c in shared.items() if all(k in each for each in others)} or shared
    departures = [
        conditions[o.key] for o in options if o.key in run.assumed and (o.changed_by or o.is_clear)
    ]
    told = tuple(shared.values()) or tuple(conditions[k] for k in run.assumed if k in conditions)
    why = "which cannot be known without running the file"
    found = draft.alternative(told, why, tuple(departures))
    is_used = run.result.framework is not None
    return found if is_used else replace(found, settings={"policy.level": "O0"})


def _condition(option: Option, value: Any) -> str:
    """An option's value in the words of the program."""
    if isinstance(value, bool):
        return option.text if value else _negated(option.text)
    return f"{option.text} == {value!r}"


_PAIRS: Sequence[tuple[type[ast.cmpop], type[ast.cmpop]]] = (
    *((ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *((ast.Lt, ast.GtE), (ast.Gt, ast.LtE)),
)
_OPPOSITE = {**dict(_PAIRS), **{other: one for one, other in _PAIRS}}


def _negated(text: str) -> str:
    """The opposite of a condition, as Python would write it."""
    node = ast.parse(text, mode="eval").body
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        node.ops = [_OPPOSITE[type(node.ops[0])]()]
        return ast.unparse(node)
    return f"not ({text})" if " " in text else f"not {text}"


CALLS = frozenset(
    ["GradScaler", "autocast", "auto_cast", "amp_guard", "half", "scale_loss", "LossScaleOptimizer"]
)
"""What a program calls for mixed precision, by any library's name for it."""


def _not_reached(machine: Machine) -> Iterator[Finding]:
    """Where modules that were read call or set mixed precision, or fit what cannot be known."""
    for event in machine.events:
        if event.method == "fit" and not event.qualified and isinstance(event.receiver, Unknown):
            message = f"What {structure.receiver(event)} is cannot be known, nor how it trains."
            yield Finding("unknown", place_of(event.node), message, ASK_FOR_IT)
    for module in machine.modules.values():
        for node in module.nodes:
            called = isinstance(node, ast.Call) and last_name(node.func) in CALLS
            if called or _sets_mixed_precision(node):
                message = "This was not met on the way from the script's first line to its steps."
                yield Finding("unknown", module.place(node), message, ASK_FOR_IT)
                break


def _sets_mixed_precision(node: ast.AST) -> bool:
    is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    return is_set and bool(structure.AMP_NAME.search(last_name(node)))
