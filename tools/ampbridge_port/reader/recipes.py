"""One run of a program -> the recipe that it trains with: its events, handled by the dialects."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile
from typing import Any

from ampbridge_port.reader import structure
from ampbridge_port.reader.dialects import (
    DIALECTS,
    FRAMEWORKS,
    is_known,
    is_known_library,
    resolved,
    steps,
)
from ampbridge_port.reader.dialects.calls import (
    Argument,
    Call,
    Dialect,
    Draft,
    Name,
    NotKnown,
    Object,
)
from ampbridge_port.reader.machine import Machine
from ampbridge_port.reader.source import module_of, place_of, text_of
from ampbridge_port.reader.values import (
    Around,
    Class,
    Dictionary,
    Event,
    Instance,
    Items,
    Known,
    Library,
    Made,
    Method,
    Option,
    Passed,
    Unknown,
    Value,
    qualified_of,
)
from ampbridge_port.reading import Finding, Place

IMPOSSIBLE = (TypeError, ValueError, AttributeError, LookupError, OverflowError, RecursionError)
FORWARD = frozenset({"forward", "call", "__call__"})
REGIONS = frozenset({"auto_cast", "autocast", "amp_guard"})
GRADIENT = re.compile(r"\.grad(\.data)?$")


@dataclass(frozen=True)
class Result:
    """What a program comes to in one run."""

    framework: str | None
    draft: Draft
    events: tuple[Event, ...] = ()
    files: frozenset[str] = frozenset()
    """Those in which calls stand that were handled."""

    @property
    def trains_low(self) -> bool:
        """Whether it is a recipe of mixed precision."""
        settings = self.draft.settings
        if self.framework is None:
            return False
        return settings.get("policy.level") != "O0"

    def same_as(self, other: Result) -> bool:
        """Whether two runs come to one recipe."""
        a, b = self.draft, other.draft
        return (a.settings, set(a.unknown)) == (b.settings, set(b.unknown))


def read(machine: Machine) -> Result:
    """The recipe of a run."""
    return _Recipe(machine).read()


class _Recipe:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.drafts = {each.framework: Draft() for each in DIALECTS}
        self._used = {each.qualified.partition(".")[0] for each in machine.events}
        self._origins: dict[str, tuple[str, Event]] = {}
        self._files: dict[str, None] = {}
        self._taken: dict[Option, None] = {}

    def read(self) -> Result:
        events = [each for each in map(self._named, self.machine.events) if self._is_of_step(each)]
        events, told = structure.last_training(events)
        events, anew = self._without_earlier_models(events)
        passes = [e for e in events if structure.is_step(e) or e.method == "backward"]
        training = {frame.node for e in passes for frame in e.around.frames}
        regions = [event for event in events if self._is_region(event)]
        for event in events:
            if not self._is_region(event):
                self._handle(event)
        self._handle_regions(regions, training)
        result = self._chosen(events)
        result.draft.findings += [*told, *anew]
        return result

    def _without_earlier_models(self, events: list[Event]) -> tuple[list[Event], list[Finding]]:
        """Without what was done with a model that the script makes anew and trains once more."""
        script = self.machine.finder.script
        found = structure.model_made_anew(events, script.tree)
        if found is None:
            return events, []
        first, again = found
        between = range(first.lineno, again.lineno)  # type: ignore[attr-defined]
        past = [e for e in events if e.around.frames[:1] and self._line(e) in between]
        used = [e.receiver for e in events if e not in past]
        kept = {id(each.event) for each in used if isinstance(each, Made)}
        events = [e for e in events if e not in past or id(e) in kept]
        said = "The model is made anew here and trained once more"
        message = f"{said}; the recipe is of this training."
        return events, [Finding("note", place_of(again), message, structure.ONE_TRAINING)]

    def _line(self, event: Event) -> int:
        """The line of the script at which an event happens."""
        frames = event.around.frames
        node = frames[1].call if len(frames) > 1 and frames[1].call is not None else event.node
        return getattr(node, "lineno", 0) if module_of(node) is self.machine.finder.script else 0

    def _is_of_step(self, event: Event) -> bool:
        """Not what the top level of an imported module trains."""
        frames = event.around.frames
        is_top = len(frames) == 1 and module_of(event.node) is not self.machine.finder.script
        return not (is_top and event.around.loops)

    def _named(self, event: Event) -> Event:
        """What tensors and models of another file do, as torch's own; Keras' ``compile``."""
        machine = self.machine
        if event.method == "unscale_" and not is_known(event.qualified):
            return _renamed(event, "torch.amp.GradScaler.unscale_")
        if event.method == "clamp_" and GRADIENT.search(structure.receiver(event)):
            return _renamed(event, "torch.Tensor.grad.clamp_")
        unknown, names = not is_known(event.qualified), {each.name for each in event.passed}
        if event.method in ("half", "bfloat16") and unknown and not names and "torch" in self._used:
            on = structure.receiver(event)
            of_models = ("parameters", "named_parameters", "modules")
            models = (e for e in machine.events if e.method in of_models)
            if isinstance(event.receiver, Instance) or on in map(structure.receiver, models):
                return _renamed(event, f"torch.nn.Module.{event.method}")
        of_keras = unknown and self._used & {"keras", "tensorflow", "tf_keras"}
        if event.method == "compile" and of_keras and names & {"optimizer", "loss"}:
            return _renamed(event, "keras.Model.compile")
        if event.method == "prepare" and "amp_configs" in names:
            return _renamed(event, "paddle.Model.prepare")
        if unknown and "grad_clip" in names:
            return _renamed(event, "paddle.optimizer.SGD")
        if event.method.startswith("=[") and event.qualified.startswith("os.environ"):
            key = Passed(Known(event.method[2:-1]), event.node)
            return _renamed(event, "os.environ.__setitem__", (key, *event.passed))
        of_optimizer = re.search(r"opt", text_of(getattr(event.node, "value", event.node)), re.I)
        if event.method.startswith("=") and of_optimizer and not is_known(event.qualified):
            return _renamed(event, f"keras.optimizers.Optimizer.{event.method[1:]}")
        return event

    # -- regions

    _by_trainer = False
    """Whether what runs the model opens a region around it: a library's trainer."""

    @staticmethod
    def _is_region(event: Event) -> bool:
        return event.qualified.rpartition(".")[2] in REGIONS and is_known(event.qualified)

    def _handle_regions(self, regions: Sequence[Event], training: set[ast.AST]) -> None:
        """Those of an evaluation first, then those of the training; those within another are told."""
        self._by_trainer = any("region" in d.seen for d in self.drafts.values()) or not all(
            each.entered for each in regions
        )
        weighed = [(self._weight(each, training), n, each) for n, each in enumerate(regions)]
        plain = [each for each in weighed if each[0] < 4]
        if not plain and not any(
            d.says("policy.level") or "decorated" in d.seen for d in self.drafts.values()
        ):
            plain = [(3, n, each) for _, n, each in weighed]
        if training:
            plain = [each for each in plain if each[0] > 0]
        kept = [each for each in plain if each[0] > 0] or plain
        for _, _, event in sorted(kept, key=lambda each: each[:2]):
            self._handle(event)
        handled = [each[2] for each in plain]
        for weight, _, event in weighed:
            if event not in handled:
                self._handle_within(event, bool(kept), weight)

    def _weight(self, event: Event, training: set[ast.AST]) -> int:
        """How much a region says of the training: 0 of an evaluation, 4 within another."""
        if not event.entered:
            return 1
        return max(self._of_entry(event, each, training) for each in event.entered)

    def _of_entry(self, event: Event, around: Around, training: set[ast.AST]) -> int:
        if structure.evaluates(around.frames, around.without_gradients):
            return 0
        off = _is_off(event)
        of_model = [*dropwhile(lambda f: f.name not in FORWARD or f.owner is None, around.frames)]
        if _is_within(around, event) or (off and around.frames):
            return 4
        if any(frame.node in training for frame in of_model or around.frames):
            return 3
        return 4 if self._by_trainer else 2

    def _handle_within(self, event: Event, in_another: bool, weight: int) -> None:
        """A region within another: what it changes is told, and does not change the draft."""
        for dialect, _ in _names(event.qualified):
            draft = self.drafts[dialect.framework]
            held = (draft.settings, draft.unknown, draft.comments, draft.origins)
            kept: list[dict[str, Any]] = [dict(each) for each in held]
            told, origins, seen = len(draft.findings), dict(self._origins), dict(draft.seen)
            self._origins.clear()
            self._handle(event)
            self._origins = origins
            differs = draft.settings != kept[0] or draft.unknown != kept[1]
            draft.settings, draft.unknown, draft.comments, draft.origins = kept
            draft.seen |= seen
            is_told = any(each.kind == "lost" for each in draft.findings[told:])
            if weight == 0:
                del draft.findings[told:]
            elif in_another and differs and not is_told:
                what = "A region in float32" if _is_off(event) else "A region within another"
                message = (
                    f"{what} is different from the one around it: a recipe has one policy for all "
                    "of a step."
                )
                hint = "name its ops under deny, or its layers under keep"
                draft.lost(place_of(event.node), message, hint)

    # -- handling

    def _handle(self, event: Event) -> None:
        for dialect, name in _names(event.qualified):
            draft = self.drafts[dialect.framework]
            before = dict(draft.settings)
            draft.handled = call = self.call_of(dialect, name, event)
            self._files[call.place.file] = None
            handler = dialect.calls[name][1]
            assert handler is not None
            try:
                handler(call, draft)
            except NotKnown as error:
                draft.find("unknown", error.place, f"{name} takes what cannot be known here.")
            except IMPOSSIBLE:
                draft.find("unknown", call.place, f"{name} cannot be called with these arguments.")
            draft.handled = None
            self._tell_of_extra(call, name, draft)
            self._tell_of_defaults(draft, before)
            self._tell_of_changes(before, draft, name, event)

    def _tell_of_extra(self, call: Call, name: str, draft: Draft) -> None:
        """Keywords that a known call does not have, unless it is one that takes any."""
        if any(name in dialect.any_keyword for dialect in DIALECTS):
            return
        for key, argument in call.extra.items():
            if not key.isdecimal():
                draft.find_no_parameter(name.rpartition(".")[2], key, argument.place)

    def _tell_of_defaults(self, draft: Draft, before: Mapping[str, Any]) -> None:
        """The defaults that were taken, of the command line say."""
        for option in sorted(self._taken, key=lambda each: each.place):  # not as a set has them
            changes = option.changed_by and option.default is not None
            if changes and option.key not in self.machine.assumed:
                message = (
                    f"The recipe has the default in `{option.place.excerpt}`; {option.changed_by} "
                    "may change it."
                )
                changed = [key for key, value in draft.settings.items() if before.get(key) != value]
                key = changed[0] if len(changed) == 1 else "KEY"
                draft.note(option.place, message, f"--set {key}=VALUE, if it does")
        self._taken.clear()

    def _tell_of_changes(
        self, before: Mapping[str, Any], draft: Draft, name: str, event: Event
    ) -> None:
        """Two calls of the same kind that say different things: the recipe follows the last."""
        for key, value in draft.settings.items():
            if key in before and before[key] == value:
                continue
            earlier = self._origins.get(key)
            if earlier and earlier[0] == name and before.get(key) is not None:
                here, there = place_of(earlier[1].node), place_of(event.node)
                follows = f"the recipe follows {there.seen_from(here)}, where it is {value!r}."
                if earlier[1].node is event.node:
                    follows = f"a later call of this line has {value!r}, which the recipe follows."
                draft.note(here, f"{key} is {before[key]!r} here; {follows}")
            self._origins[key] = (name, event)

    def call_of(self, dialect: Dialect, name: str, event: Event) -> Call:
        """A library's call as its dialect has it."""
        parameters = dialect.calls[name][0].split()
        arguments: dict[str, Argument] = {}
        extra: dict[str, Argument] = {}
        unpacked: Place | None = None
        position = 0
        for each in event.passed:
            if each.star:
                unpacked = place_of(each.node)
                continue
            key = each.name
            if not key:
                known = position < len(parameters) and not (unpacked and position == 0)
                key = parameters[position] if known else str(position)
                position += 1
            argument = self._argument(each.value, each.node, each.node is event.node)
            (arguments if key in parameters else extra)[key] = argument
        return Call(
            name, place_of(event.node), arguments, extra, unpacked, event.overridden, _loops(event)
        )

    def _argument(self, value: Value, node: ast.AST, is_read: bool = False) -> Argument:
        """An argument; ``is_read``: nothing is written for it but the call that reads a file."""
        written: Place | None = getattr(value, "place", None) if is_read else None
        place = written or place_of(node)
        truth, parts = partial(self._truth, value, node), partial(self._parts, value, node)
        return Argument(place, partial(self.plain, value, place), truth, parts)

    def _truth(self, value: Value, node: ast.AST) -> bool:
        true, options = self.machine.truth(value)
        for option in options:
            option.relevant = True
            option.domain |= {} if option.domain else {True: None, False: None}
            self._taken[option] = None
        if true is None:
            own = isinstance(value, Unknown) and isinstance(value.node, (ast.expr, ast.arg))
            known = self.machine.undecided(value.node if own else node)  # type: ignore[attr-defined]
            for option in known.options:
                option.relevant = True
            return bool(known.data)
        return true

    def _parts(self, value: Value, node: ast.AST) -> Mapping[Any, Argument] | None:
        if isinstance(value, Dictionary) and value.rest is None:
            return {key: self._argument(each, node) for key, each in value.items.items()}
        if isinstance(value, Items):
            return {n: self._argument(each, node) for n, each in enumerate(value.items)}
        return None

    def plain(self, value: Value, place: Place) -> Any:
        """A value as dialects have it.

        Raises:
            NotKnown: if it cannot be known.
        """
        match value:
            case Known():
                for option in value.options:
                    option.relevant = True
                    self._taken[option] = None
                return value.data
            case Dictionary() if value.rest is None or value.items:
                return {key: self.plain(each, place) for key, each in value.items.items()}
            case Items() if value.whole or value.items:
                return [self.plain(each, place) for each in value.items]
            case Library() if is_known_library(value.qualified):
                return Name(value.qualified)
            case Class():
                return Name(value.name)
            case Made() | Instance() if (event := _event_of(value)) is not None:
                for dialect, name in resolved(event.qualified):
                    return Object(name, self.call_of(dialect, name, event))
                if isinstance(value, Made) and value.qualified.partition(".")[0] in FRAMEWORKS:
                    return Name(value.qualified)
                raise NotKnown(place_of(event.node))
            case Method():
                name_of = qualified_of(value)
                if is_known_library(name_of):
                    return Name(name_of)
                raise NotKnown(place_of(value.node))
            case Unknown():
                for option in value.options:
                    option.relevant = True
                raise NotKnown(place_of(value.node) if isinstance(value.node, ast.expr) else place)
        raise NotKnown(place)

    # -- of several frameworks, one

    def _chosen(self, events: Sequence[Event]) -> Result:
        used = [name for name, draft in self.drafts.items() if draft.says("policy.", "scaler.")]
        if not used or self._scaler_is_not_used(used, events):
            return Result(None, Draft(), tuple(events), frozenset(self._files))
        framework = used[0]
        chosen = self.drafts[framework]
        dialect = next(each for each in DIALECTS if each.framework == framework)
        for name, draft in self.drafts.items():
            if name != framework and not draft.says("policy."):
                _add(draft, chosen)
            elif name != framework:
                chosen.findings.extend(draft.findings)
        before = dict(chosen.settings)
        structure.accumulation(events, self.machine, self._number, chosen)
        if not chosen.says("scaler."):
            structure.scaling_elsewhere(events, chosen)
        self._tell_of_defaults(chosen, before)
        dialect.finish(chosen)
        structure.check(events, framework, chosen)
        return Result(framework, chosen, tuple(events), frozenset(self._files))

    def _scaler_is_not_used(self, used: Sequence[str], events: Sequence[Event]) -> bool:
        """Whether a scaler is all there is of mixed precision, and the steps are taken without it."""
        if any(self.drafts[name].says("policy.") for name in used):
            return False
        methods = ("scale", "unscale_", "value_and_grad", *structure.STEPS)
        calls = [e for e in events if e.method in methods]
        on = " ".join(f"{e.qualified} {structure.receiver(e)}" for e in calls).lower()
        scaled = "scale" in on or any(map(_is_passed_on, events))
        return not scaled and any(map(structure.is_step, events))

    def _number(self, value: Value) -> Any:
        """A plain number; the place of what is not known."""
        node = value.node if isinstance(value, Unknown) else self.machine.finder.script.tree
        try:
            return self.plain(value, place_of(node))
        except NotKnown as error:
            return error.place


def _is_passed_on(event: Event) -> bool:
    """Whether a scaler goes into what is not known, which may step with it."""
    return any(
        isinstance(each.value, Made) and "scale" in each.value.qualified.lower()
        for each in event.passed
        if not is_known(event.qualified)
    )


def _renamed(event: Event, name: str, passed: tuple[Passed, ...] | None = None) -> Event:
    event.qualified = name
    if passed is not None:
        event.passed = passed
        event.method = "__setitem__"
    return event


def _names(qualified: str) -> list[tuple[Dialect, str]]:
    return [(d, name) for d, name in resolved(qualified) if d.calls[name][1] is not None]


def _event_of(value: Value) -> Event | None:
    made = value.made if isinstance(value, Instance) else value
    return made.event if isinstance(made, Made) else None


def _is_within(around: Around, event: Event) -> bool:
    return any(_Recipe._is_region(each) and each is not event for each in around.regions)


def _is_off(event: Event) -> bool:
    takes_first = event.qualified.startswith("paddle")
    by_place = [each for each in event.passed[:1] if takes_first and not each.name]
    by_name = [each for each in event.passed if each.name in ("enable", "enabled")]
    values = [each.value for each in (*by_place, *by_name)]
    return any(isinstance(v, Known) and v.data is False and not v.options for v in values)


def _loops(event: Event) -> dict[str, str]:
    """The names of the loops around a call, each with what it goes over."""
    found: dict[str, str] = {}
    for loop in event.around.loops:
        target = getattr(loop.node, "target", None)
        if target is not None:
            found |= dict.fromkeys(re.findall(r"\w+", text_of(target)), loop.over)
    return found


def _add(draft: Draft, chosen: Draft) -> None:
    """What another dialect says beside it: torch's clipping under apex, its scaler in Lightning."""
    if draft.says("scaler."):
        chosen.forget("scaler.")
    steps.join_clips(draft, chosen)
    chosen.settings = {**draft.settings, **chosen.settings}
    chosen.unknown = {**draft.unknown, **chosen.unknown}
    chosen.comments = {**draft.comments, **chosen.comments}
    chosen.origins = {**draft.origins, **chosen.origins}
    chosen.findings.extend(draft.findings)
