"""A Python file -> its reading: the known calls in it, handled by the dialects that know them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ampbridge_port import loops
from ampbridge_port.dialect import Argument, Call, Dialect, Draft, NotKnown, Object
from ampbridge_port.interpreter.decisions import (
    Atom,
    Condition,
    Decisions,
    atoms,
    described,
    explore,
)
from ampbridge_port.interpreter.evaluate import IMPOSSIBLE, Plain
from ampbridge_port.interpreter.values import Argument as Default
from ampbridge_port.interpreter.values import Choice, Event, Made, Value
from ampbridge_port.readers import DIALECTS, clipping, scaling
from ampbridge_port.readers.torch import CLAMP
from ampbridge_port.reading import Alternative, Finding, Reading
from ampbridge_port.schedules import Changing, joined
from ampbridge_port.source import Source
from ampbridge_port.table import Table
from ampbridge_port.used_ops import used_ops

if TYPE_CHECKING:
    import libcst as cst

    from ampbridge_port.interpreter.statements import Interpreter
    from ampbridge_port.modules import Modules

MOST_ALTERNATIVES = 32
"""As many as anyone would look at, to choose one by ``--where``."""

REGIONS = ("autocast", "auto_cast")
"""Methods of objects from elsewhere that open one: ``accelerator.autocast()``."""


def concerns(data: bytes, dialects: Iterable[Dialect] = DIALECTS) -> bool:
    """Whether a file's bytes hold a word of any dialect: the quick pre-check."""
    return any(word.encode() in data for dialect in dialects for word in dialect.words)


def read_module(
    source: Source,
    dialects: Sequence[Dialect] = DIALECTS,
    modules: Modules | None = None,
    configuration: Table | None = None,
) -> Reading:
    """What a module says of mixed precision, with the ``modules`` that it imports and its configuration.

    Raises:
        RecursionError, Exhausted: if it is nested too deeply, or too long, to be followed.
    """
    from ampbridge_port.interpreter.statements import Interpreter  # LibCST, where it is needed

    vocabulary = _Vocabulary(dialects)
    interpreter = Interpreter(source, vocabulary, modules, configuration=configuration)
    interpreter.run()
    return _Reader(interpreter, dialects).read()


def known_calls(source: Source, dialects: Sequence[Dialect] = DIALECTS) -> list[Call]:
    """Every call in a module that a dialect knows, each once, in the order of the text.

    Raises:
        SourceError: if it is nested too deeply to be followed.
    """
    from ampbridge_port.interpreter.statements import Interpreter

    interpreter = Interpreter(source, _Vocabulary(dialects))
    interpreter.run()
    return _Reader(interpreter, dialects).calls()


# -- which names are known


def resolve(dialect: Dialect, qualified: str) -> str | None:
    """The name in a dialect's signatures that a qualified name stands for; methods by their class."""
    name = dialect.aliases.get(qualified, qualified)
    if name in dialect.signatures:
        return name
    owner, _, method = qualified.rpartition(".")
    if not owner:
        return None
    if owner in dialect.aliases:
        name = f"{dialect.aliases[owner]}.{method}"
        return name if name in dialect.signatures else None
    return None


def _of_torch(events: Sequence[Event]) -> list[Event]:
    """What tensors and models of another file do, as torch's own, in a file that uses torch.

    ``net.half()``: what has parameters is a module. ``p.grad.clamp_()``.
    """
    of_torch = any((each.library or each.qualified).startswith("torch.") for each in events)
    unknown = [each for each in events if not each.qualified] if of_torch else []
    models = {each.on for each in unknown if each.method in _OF_MODELS}
    names = {
        **{id(e): f"torch.nn.Module.{e.method}" for e in unknown if _casts(e) and e.on in models},
        **{id(e): CLAMP for e in unknown if e.method == "clamp_" and _GRADIENT.search(e.on)},
    }
    return [replace(e, qualified=names[id(e)]) if id(e) in names else e for e in events]


def _casts(event: Event) -> bool:
    return event.method in ("half", "bfloat16")


_GRADIENT = re.compile(r"\.grad(\.data)?$")
_OF_MODELS = frozenset({"parameters", "named_parameters", "modules", "named_modules", "children"})


class _Vocabulary:
    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self._dialects = dialects
        self._known: dict[str, bool] = {}

    def knows(self, qualified: str) -> bool:
        if qualified not in self._known:
            self._known[qualified] = any(resolve(each, qualified) for each in self._dialects)
        return self._known[qualified]

    def may_set(self, qualified: str, key: Any) -> bool:
        return qualified != "os.environ" or "MIXED_PRECISION" in str(key)

    def names_of(self, module: str) -> list[str]:
        names = [name for each in self._dialects for name in (*each.signatures, *each.aliases)]
        heads = [name.rpartition(".") for name in names]
        return sorted({last for head, _, last in heads if head == module})


# -- reading under decisions


@dataclass(frozen=True)
class _Draft:
    """What a file comes to under one set of decisions."""

    framework: str | None
    draft: Draft

    def same_as(self, other: _Draft) -> bool:
        a, b = self.draft, other.draft
        return (a.settings, a.unknown) == (b.settings, b.unknown)


class _Reader:
    def __init__(self, interpreter: Interpreter, dialects: Sequence[Dialect]) -> None:
        from ampbridge_port.trainings import trainings  # LibCST, as above

        self._interpreter, self._dialects = interpreter, dialects
        self._source: Source = interpreter.source
        self._met = events = _of_torch(interpreter.events)
        self._changing = Changing(frozenset(interpreter.counters | interpreter.turns))
        self._trainings = trainings(events, self._source)
        self._events = loops.in_order(events)
        self._handlers = {id(each): self._handlers_of(each) for each in self._events}
        self._telling = [
            each for each in self._events if self._handlers[id(each)] or loops.is_of_loop(each)
        ]
        self._asked = frozenset(each.option for each in _conditions(events)) - {""}

    def read(self) -> Reading:
        outcomes, all_of_them = explore(self._draft, _Draft.same_as)
        all_of_them = all_of_them and len(outcomes) <= MOST_ALTERNATIVES
        outcomes = joined(outcomes[:MOST_ALTERNATIVES], self._changing, self._source.place)
        used = [each for each in outcomes if each.result.framework]
        findings = [f for each in outcomes for f in self._findings(each.result.draft)]
        framework = used[0].result.framework if used else None
        alternatives = [
            Alternative(
                tuple(conditions),
                each.result.draft.settings if each.result.framework else {"policy.level": "O0"},
                each.result.draft.unknown if each.result.framework else {},
                each.result.draft.comments if each.result.framework else {},
                tuple(text for text, is_usual in conditions.items() if not is_usual),
                tuple(dict.fromkeys(self._findings(each.result.draft))),
                each.result.draft.origins if each.result.framework else {},
            )
            for each in (outcomes if used else ())
            for conditions in (described(each.decisions),)
        ]
        if used and not all_of_them:
            place = self._source.place(self._source.module)
            findings.append(
                Finding(
                    "unknown",
                    place,
                    f"More than {len(outcomes)} ways that the conditions may go; these are the first.",
                    "port the branch that you train with, --where CONDITION",
                )
            )
        findings += self._trainings.findings if used else ()
        findings += self._wrappers() + self._between_unscaling_and_step()
        findings += self._second_steps() + self._taken()
        return Reading(
            self._source.file,
            framework,
            tuple(alternatives),
            tuple(dict.fromkeys(findings)),
            used_ops(self._source.text).union(
                *map(used_ops, (e.text for e in self._source.others))
            ),
            self._other_files(),
            any(each.method in ("fit", *loops.STEPS) for each in self._events),
        )

    def _taken(self) -> list[Finding]:
        """Where a function gives the configuration that is not followed to its end."""
        return [
            Finding(
                "note",
                self._source.place(node),
                f"The configuration is as its file has it; what `{self._source.text_of(node)}` may "
                "change of it is not known.",
                "-o KEY=VALUE, if it does",
            )
            for node in self._interpreter.taken
        ]

    def _other_files(self) -> frozenset[str]:
        """The modules of the folder in which calls stand that were handled."""
        nodes = (
            [e.node for e in self._events if self._handlers[id(e)]] if self._source.others else []
        )
        return frozenset(self._source.of(node).file for node in nodes) - {self._source.file}

    def calls(self) -> list[Call]:
        """The known calls, whatever the conditions; where one is met several times, as at first."""
        plain = Plain(self._interpreter.memory, self._source, Decisions())
        plain.calls = partial(self._of_made, plain)
        found: dict[int, Call] = {}
        for event in self._events:
            for dialect in self._dialects:
                name = resolve(dialect, event.qualified)
                if name is not None:
                    found.setdefault(id(event.node), self._call(dialect, name, event, plain))
        return sorted(found.values(), key=lambda call: (call.place.line, call.place.column))

    def _wrappers(self) -> list[Finding]:
        """Calls of modules and objects that no dialect knows, and that look like mixed precision."""
        roots = {name.partition(".")[0] for d in self._dialects for name in d.signatures}
        known = roots | sys.stdlib_module_names
        return [
            Finding(
                "unknown",
                self._source.place(event.node),
                self._where_else(event.library or f"{event.on}.{event.method}"),
                "read that file too, amp.port.read(...), and say here what it comes to, --set ...",
            )
            for event in self._interpreter.events
            if (
                event.library.partition(".")[0] not in known and _looks_like_amp(event)
                if event.library
                else not event.qualified and event.method in REGIONS
            )
        ]

    def _where_else(self, name: str) -> str:
        """That a function stands in another file, and why that was not read, if it is of the folder."""
        refused = self._interpreter.refused
        module = next((each for each in refused if name.startswith(f"{each}.")), None)
        if module is None:
            return f"What {name} does stands in another file."
        return f"What {name} does is not known: {refused[module]}"

    def _between_unscaling_and_step(self) -> list[Finding]:
        """Calls of other files that may change the unscaled gradients, a clipper of one's own say."""
        found, unscaled = [], False
        for event in self._met:
            name = event.qualified.rpartition(".")[2] or event.method
            if name in ("unscale_", "step"):
                unscaled = name == "unscale_"
            elif unscaled and not event.qualified and self._may_change_gradients(event):
                message = (
                    f"`{self._text_of(event)}` stands between unscale_ and step; what it does to the "
                    "gradients is not in the recipe."
                )
                hint = "step.clip_norm in the recipe, if it clips by the joint norm; or keep this call."
                found.append(Finding("unknown", self._source.place(event.node), message, hint))
        return found

    def _second_steps(self) -> list[Finding]:
        """``optimizer.step()`` where ``scaler.step(optimizer)`` has stepped under the same conditions."""
        found: list[Finding] = []
        stepped: list[tuple[object, ...]] = []
        for event in self._met:
            where = (event.guards, event.entry.stack)
            if event.method in ("step", "minimize") and event.qualified and event.passed:
                stepped.append((self._source.text_of(event.passed[0].node), *where))
            elif event.method == "step" and (event.on, *where) in stepped and not event.passed:
                message = (
                    f"{event.on} steps a second time here: the scaler has stepped, or has skipped a "
                    "step whose gradients overflowed; the recipe's steps are the scaler's."
                )
                found.append(
                    Finding("lost", self._source.place(event.node), message, "take this line out.")
                )
        return found

    def _may_change_gradients(self, event: Event) -> bool:
        harmless = event.method in _OF_MODELS or event.method in _LOOKS_ALONE
        return not harmless and bool(_OF_GRADIENTS.search(self._text_of(event)))

    def _text_of(self, event: Event) -> str:
        return self._source.text_of(event.node)

    def _findings(self, draft: Draft) -> list[Finding]:
        unknown = [
            Finding(
                "unknown",
                place,
                f"{key} is {place.excerpt}, which cannot be known without running the file.",
                f"--set {key}=...",
                key,
            )
            for key, place in draft.unknown.items()
        ]
        return unknown + draft.findings

    def _draft(self, decisions: Decisions) -> _Draft:
        drafts = {dialect.framework: Draft() for dialect in self._dialects}
        plain = Plain(self._interpreter.memory, self._source, decisions)
        plain.calls, plain.asked = partial(self._of_made, plain), self._asked
        origins: dict[str, tuple[str, Event]] = {}
        happens = partial(self._happens, decisions=decisions)
        events = [each for each in self._telling if not self._trainings.is_past(each, happens)]
        trained = self._trained(decisions)
        for event in events:
            for dialect, name in self._handlers[id(event)]:
                draft = drafts[dialect.framework]
                overruled = event.qualified in trained and loops.evaluates(event)
                if overruled and self._is_known_to_happen(event, decisions) is None:
                    continue
                if not self._happens(event, decisions):
                    draft.seen.setdefault(name, self._source.place(event.node))
                elif self._is_nested(event, origins):
                    self._handle_nested(dialect, name, event, draft, plain)
                else:
                    before = dict(draft.settings)
                    self._handle(dialect, name, event, draft, plain)
                    self._tell_of_changes(before, draft, name, event, origins)
        return self._chosen(drafts, events, plain, decisions)

    def _handlers_of(self, event: Event) -> list[tuple[Dialect, str]]:
        """The dialects that handle a call, and its name there."""
        names = ((dialect, resolve(dialect, event.qualified)) for dialect in self._dialects)
        return [(dialect, name) for dialect, name in names if name in dialect.handlers and name]

    def _trained(self, decisions: Decisions) -> set[str]:
        """Regions of the training that happen, by name: they overrule those of an evaluation, and
        whether one is made at all is then not asked.
        """
        evaluated = {each.qualified for each in self._events if loops.evaluates(each)}
        return {
            event.qualified
            for event in self._events
            if event.entered
            and event.qualified in evaluated
            and not loops.evaluates(event)
            and self._happens(event, decisions)
        }

    def _is_known_to_happen(self, event: Event, decisions: Decisions) -> bool | None:
        """Whether an event happens, by what has been decided; None if that is not enough."""
        known = [decisions.decided(self._sometimes(guard, event)) for guard in event.guards]
        return False if False in known else None if None in known else True

    def _happens(self, event: Event, decisions: Decisions) -> bool:
        known = self._is_known_to_happen(event, decisions)
        if known is not None:
            return known
        return all(decisions.decide(self._sometimes(guard, event)) for guard in event.guards)

    def _sometimes(self, guard: Condition, event: Event) -> Condition:
        changing = self._changing if loops.is_of_step(event) else loops.never
        return loops.sometimes(guard, changing)

    def _is_nested(self, event: Event, origins: Mapping[str, tuple[str, Event]]) -> bool:
        """Whether a region is only ever entered within the one that the recipe follows."""
        policy = [origin for key, (_, origin) in origins.items() if key.startswith("policy.")]
        return bool(event.entered) and all(
            any(each in policy and each is not event for each in entry.inside)
            for entry in event.entered
        )

    def _handle_nested(
        self, dialect: Dialect, name: str, event: Event, draft: Draft, plain: Plain
    ) -> None:
        """A region within another: what it changes is told, and does not change the draft."""
        settings, unknown, comments, origins = (
            dict(draft.settings),
            dict(draft.unknown),
            dict(draft.comments),
            dict(draft.origins),
        )
        told = len(draft.findings)
        self._handle(dialect, name, event, draft, plain)
        differs = draft.settings != settings or draft.unknown != unknown
        if differs and all(finding.kind != "lost" for finding in draft.findings[told:]):
            message = (
                "A region within another is different: a recipe has one policy for all of a step."
            )
            hint = "enter amp.autocast around that part by yourself"
            draft.find("lost", self._source.place(event.node), message, hint)
        draft.settings, draft.unknown = settings, unknown
        draft.comments, draft.origins = comments, origins

    def _handle(
        self, dialect: Dialect, name: str, event: Event, draft: Draft, plain: Plain
    ) -> None:
        plain.options.clear()
        draft.handled = call = self._call(dialect, name, event, plain)
        try:
            dialect.handlers[name](call, draft)
        except NotKnown as error:
            draft.find("unknown", error.place, f"{name} takes what cannot be known here.")
        except IMPOSSIBLE:
            draft.find("unknown", call.place, f"{name} cannot be called with these arguments.")
        draft.handled = None
        self._tell_of_options(plain, draft)

    def _tell_of_options(self, plain: Plain, draft: Draft) -> None:
        """The defaults that were taken, of the command line say."""
        for option in dict.fromkeys(plain.options):
            place = self._source.place(option.node)
            message = f"The recipe has the default in `{place.excerpt}`; {option.changed_by} may change it."
            draft.find("note", place, message, "--set KEY=VALUE in the recipe, if it does")

    def _tell_of_changes(
        self,
        before: Mapping[str, Any],
        draft: Draft,
        name: str,
        event: Event,
        origins: dict[str, tuple[str, Event]],
    ) -> None:
        """Two calls of the same kind that say different things: the recipe follows the last."""
        for key, value in draft.settings.items():
            if key in before and before[key] == value:
                continue
            earlier = origins.get(key)
            if earlier and earlier[0] == name and earlier[1].node is not event.node:
                here, there = (self._source.place(e.node) for e in (earlier[1], event))
                if before.get(key) is not None:
                    draft.find(
                        "note",
                        here,
                        f"{key} is {before[key]!r} here; the recipe follows {there.seen_from(here)}, "
                        f"where it is {value!r}.",
                    )
            origins[key] = (name, event)

    def _call(self, dialect: Dialect, name: str, event: Event, plain: Plain) -> Call:
        parameters = dialect.signatures[name]
        arguments: dict[str, Argument] = {}
        extra: dict[str, Argument] = {}
        unpacked = None
        position = 0
        for each in event.passed:
            if each.star == "**" and isinstance(each.value, Default):
                plain.of(each.value)  # empty by default, which is told
                continue
            if each.star:
                unpacked = self._source.place(each.node)
                continue
            argument = self._argument(each.value, each.node, plain)
            key = each.name
            if key is None:
                known = position < len(parameters) and not (unpacked and position == 0)
                key = parameters[position] if known else str(position)
                position += 1
            (arguments if key in parameters else extra)[key] = argument
        stack = event.entry.stack
        return Call(
            name,
            self._source.place(event.node),
            arguments,
            extra,
            unpacked,
            stack[-1] if stack else "",
            event.target,
            event.overridden,
            dict(self._loop_names(event)),
        )

    def _loop_names(self, event: Event) -> Iterator[tuple[str, str]]:
        """The names that the loops around a call bind, with what each goes over."""
        for loop in event.entry.loops:
            over = self._source.text_of(loop.node.iter)
            yield from ((n, over) for n in _WORD.findall(self._source.text_of(loop.node.target)))

    def _argument(self, value: Value, node: cst.CSTNode, plain: Plain) -> Argument:
        return Argument(
            self._source.place(node),
            partial(plain.of, value),
            partial(plain.truth, value),
            partial(self._parts, value, node, plain),
        )

    def _parts(
        self, value: Value, node: cst.CSTNode, plain: Plain
    ) -> Mapping[Any, Argument] | None:
        parts = plain.parts(value)
        if parts is None:
            return None
        return {key: self._argument(each, node, plain) for key, each in parts.items()}

    def _of_made(self, plain: Plain, made: Made) -> Any:
        """An object that a known call made, as that call."""
        for dialect in self._dialects:
            name = resolve(dialect, made.qualified)
            if name is not None:
                return Object(name, self._call(dialect, name, made.event, plain))
        raise NotKnown(self._source.place(made.event.node))

    # -- of several frameworks, one

    def _chosen(
        self,
        drafts: Mapping[str, Draft],
        events: Sequence[Event],
        plain: Plain,
        decisions: Decisions,
    ) -> _Draft:
        used = [name for name, draft in drafts.items() if _sets(draft, "policy.", "scaler.")]
        chosen = Draft()
        framework = used[0] if used else None
        if framework is not None:
            chosen = drafts[framework]
            dialect = next(each for each in self._dialects if each.framework == framework)
            for name, draft in drafts.items():
                if name != framework and not _sets(draft, "policy."):
                    self._add(draft, chosen)
                elif name != framework:
                    chosen.findings.extend(draft.findings)
            divisors = self._interpreter.divisors
            plain.options.clear()
            loops.accumulate(events, divisors, chosen, plain, self._source)
            if not scaling.known(chosen):
                self._note_foreign(scaling.ELSEWHERE, loops.scales_elsewhere, chosen, decisions)
                self._note_foreign(scaling.COMPILED, loops.compiles_elsewhere, chosen, decisions)
                self._note_inherited(events, chosen)
            self._tell_of_options(plain, chosen)
            dialect.finish(chosen)
        return _Draft(framework, chosen)

    def _note_foreign(
        self, what: str, found: Callable[[Event], bool], draft: Draft, decisions: Decisions
    ) -> None:
        for event in self._events:
            if found(event) and self._happens(event, decisions):
                draft.seen[what] = self._source.place(event.node)
                return

    def _note_inherited(self, events: Sequence[Event], draft: Draft) -> None:
        """A base class of another file may scale, unless the backward pass stands here."""
        bases = filter(None, map(loops.base_elsewhere, events))
        if not any(map(loops.is_unscaled_backward, events)):
            for base in bases:
                draft.seen.setdefault(scaling.ELSEWHERE, self._source.place(base))

    def _add(self, draft: Draft, chosen: Draft) -> None:
        """What another dialect says beside it: torch's clipping under apex, its scaler in Lightning."""
        if _sets(draft, "scaler."):
            scaling.forget(chosen)
        clipping.join(draft, chosen)
        chosen.settings = {**draft.settings, **chosen.settings}
        chosen.unknown = {**draft.unknown, **chosen.unknown}
        chosen.comments = {**draft.comments, **chosen.comments}
        chosen.origins = {**draft.origins, **chosen.origins}
        chosen.findings.extend(draft.findings)


def _conditions(events: Iterable[Event]) -> Iterator[Atom]:
    """Those on which events, and what they are passed, depend."""
    guards = {id(guard): guard for event in events for guard in event.guards}
    for guard in guards.values():
        yield from atoms(guard)
    for event in events:
        for each in event.passed:
            value = each.value
            while isinstance(value, Choice):
                yield from atoms(value.condition)
                value = value.no


_AMP_NAME = re.compile(
    r"(?:^|_)(?:amp|auto_?cast|grad_?scaler|loss_?scal\w*|mixed_?precision|fp16|bf16|float16)(?:$|_)"
    r"|Amp[A-Z]|AMP|GradScaler|LossScal|MixedPrecision|FP16|BF16"
)


_WORD = re.compile(r"\w+")
_OF_GRADIENTS = re.compile(r"clip|grad|param", re.IGNORECASE)
_LOOKS_ALONE = frozenset(
    {
        "abs", "all", "any", "append", "clone", "cpu", "detach", "float", "isfinite", "isinf", "isnan",
        "item", "log", "max", "mean", "min", "norm", "numel", "numpy", "pow", "size", "sqrt", "std",
        "sum", "tolist", "zero_grad",
    }
)  # fmt: skip
"""Methods that leave a gradient as it is."""


def _looks_like_amp(event: Event) -> bool:
    """By the name of what is called, or of an argument."""
    names = [event.method, *(each.name for each in event.passed if each.name)]
    return any(_AMP_NAME.search(name) for name in names)


def _sets(draft: Draft, *sections: str) -> bool:
    return any(key.startswith(sections) for key in (*draft.settings, *draft.unknown))
