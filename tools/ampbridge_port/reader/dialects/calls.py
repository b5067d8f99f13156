"""A library's call, as dialects have it, and the recipe in the making.

A dialect is a table of calls: the parameters of each in their order, and a function that sets the keys
of a recipe by its arguments. It sees plain values, under one set of decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partialmethod, wraps
from itertools import takewhile
from typing import Any, Concatenate, ParamSpec

from ampbridge_port.reader.settings import Table, is_filled_in
from ampbridge_port.reading import Alternative, Finding, FindingKind, Origin, Place


class NotKnown(Exception):
    """A value that cannot be known without running the file; ``place`` is where it comes from."""

    def __init__(self, place: Place) -> None:
        super().__init__(str(place))
        self.place = place


@dataclass(frozen=True)
class Argument:
    """An argument as it was written, and its value under the present decisions.

    ``evaluate()`` returns a plain value, or raises ``NotKnown``; ``truth()`` may ask for a decision.
    ``parts()``: the items of a list or the values of a dictionary; None where there is no telling.
    """

    place: Place
    evaluate: Callable[[], Any]
    truth: Callable[[], bool] | None = None
    parts: Callable[[], Mapping[Any, Argument] | None] = lambda: None


@dataclass(frozen=True)
class Name:
    """Something of a library, by its qualified name: ``paddle.nn.LayerNorm``, ``torch.float16``."""

    qualified: str

    @property
    def last(self) -> str:
        return self.qualified.rpartition(".")[2]


@dataclass(frozen=True)
class Call:
    """A call of a library: ``arguments`` by name, as its dialect has them.

    ``extra``: arguments that the dialect does not have, by name or position. ``unpacked``: where a
    ``**kwargs`` was passed that cannot be known. ``overridden``: methods that a class of the program
    overrides. ``loops``: the names of the loops around it, each with the text of what it goes over.
    """

    name: str
    place: Place
    arguments: Mapping[str, Argument]
    extra: Mapping[str, Argument] = field(default_factory=dict)
    unpacked: Place | None = None
    overridden: frozenset[str] = frozenset()
    loops: Mapping[str, str] = field(default_factory=dict)

    def value(self, name: str, default: Any) -> Any:
        """The value of an argument, or ``default`` if it was not passed.

        Raises:
            NotKnown: if it cannot be known, or may be among arguments that cannot.
        """
        if name in self.arguments:
            return self.arguments[name].evaluate()
        if self.unpacked is not None:
            raise NotKnown(self.unpacked)
        return default

    def flag(self, name: str, default: bool) -> bool:
        """Whether an argument is true, or ``default`` if it was not passed.

        Raises:
            NotKnown: if it may be among arguments that cannot be known.
        """
        truth = self.arguments[name].truth if name in self.arguments else None
        return bool(self.value(name, default)) if truth is None else truth()

    def known(self, name: str, default: Any, otherwise: Any = None) -> Any:
        """The value of an argument; ``otherwise`` where it cannot be known."""
        try:
            return self.value(name, default)
        except NotKnown:
            return otherwise

    def place_of(self, name: str) -> Place:
        """Where an argument stands; the call, if it was not passed."""
        return self.arguments[name].place if name in self.arguments else self.place

    def given(self, name: str) -> bool:
        """Whether an argument is passed and is not None or False; true where that is not known."""
        return name in self.arguments and self.known(name, None, True) not in (None, False)

    def named(self, name: str, **renamed: str) -> Call:
        """The call of ``name`` with the arguments ``parameter="argument"`` of this one."""
        passed = {p: self.arguments[key] for p, key in renamed.items() if key in self.arguments}
        return replace(self, name=name, arguments=passed, extra={})

    def passing(self, **values: Any) -> Call:
        """The same call with arguments that stand at the call, besides what is written."""
        usual = {key: constant(value, self.place) for key, value in values.items()}
        return replace(self, arguments={**usual, **self.arguments})

    def parts(self, name: str) -> Call | None:
        """The dictionary that is passed for ``name``, as arguments of their own."""
        parts = self.arguments[name].parts() if name in self.arguments else None
        if parts is None:
            return None
        return replace(self, arguments={str(key): each for key, each in parts.items()})


@dataclass(frozen=True)
class Object(Name):
    """What a known call made, by the name of that call."""

    call: Call = field(compare=False, repr=False)


def constant(value: Any, place: Place) -> Argument:
    """A plain value as an argument."""
    return Argument(replace(place, text=repr(value)), lambda: value, lambda: bool(value))


def of_table(table: Table, name: str, keys: Iterable[str] = (), **parameters: str) -> Call:
    """The call of ``name`` that a program makes of a configuration's table.

    Args:
        keys: those that it passes on under their own names.
        parameters: parameter name = key. What the table lacks is not passed.
    """
    passed = {**{key: key for key in keys}, **parameters}
    return Call(
        name, table.place, {p: entry(table, key) for p, key in passed.items() if key in table}
    )


def entry(table: Table, key: str) -> Argument:
    """The value under a key as an argument: unknown where another file fills it in."""
    place, value = table.place_of(key), table[key]

    def evaluate() -> Any:
        if is_filled_in(value):
            raise NotKnown(place)
        return value

    def parts() -> Mapping[Any, Argument] | None:
        if isinstance(value, Table):
            return {each: entry(value, each) for each in value}
        items = value if isinstance(value, list) else None
        return None if items is None else {n: constant(v, place) for n, v in enumerate(items)}

    return Argument(place, evaluate, lambda: str(evaluate()).lower() == "true", parts)


class Draft:
    """A recipe in the making, under one set of decisions: see ``Alternative``."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.unknown: dict[str, Place] = {}
        self.comments: dict[str, str] = {}
        self.origins: dict[str, Origin] = {}
        self.handled: Call | None = None
        """The call that is being handled, from which a value comes unless ``take`` says more."""
        self.findings: list[Finding] = []
        self.seen: dict[str, Any] = {}
        """What is kept in mind for ``Dialect.finish``."""

    def take(
        self,
        key: str,
        call: Call,
        argument: str,
        default: Any = None,
        convert: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        """Set ``key`` to an argument's value, converted; note it as unknown if it is."""
        self._take(key, call, argument, lambda: convert(call.value(argument, default)))

    def take_flag(
        self, key: str, call: Call, argument: str, default: bool, yes: Any = True, no: Any = False
    ) -> None:
        """Set ``key`` by whether an argument is true."""
        self._take(key, call, argument, lambda: yes if call.flag(argument, default) else no)

    def _take(self, key: str, call: Call, argument: str, value: Callable[[], Any]) -> None:
        try:
            found = value()
            if found is True and key.startswith("step."):
                raise NotKnown(call.place_of(argument))  # that there is a number, and not which
            self.set(key, found)
        except NotKnown as error:
            self.unknown[key] = error.place
            self.settings.pop(key, None)
            return
        if key in self.settings:
            if argument in call.arguments:
                self.comments[key] = f"{argument}={call.arguments[argument].place.text}"
            is_default = argument not in call.arguments
            self.origins[key] = Origin(call.place_of(argument), call.name, is_default)

    def set(self, key: str, value: Any) -> None:
        """Set ``key``, written as in a recipe file: ``"policy.level"``. None leaves it out."""
        self.unknown.pop(key, None)
        self.origins.pop(key, None)
        self.settings.pop(key, None)
        if value is not None:
            self.settings[key] = value
            if self.handled is not None:  # the rule of a scaler is a library's
                self.origins[key] = Origin(
                    self.handled.place, self.handled.name, key == "scaler.like"
                )

    def set_policy(self, level: str, dtype: Any, lists: str) -> None:
        """Set the level, the low precision and whose op lists."""
        for key, value in (("level", level), ("dtype", dtype), ("lists", lists)):
            self.set(f"policy.{key}", value)

    def doubt(self, place: Place, *keys: str) -> None:
        """Say of ``keys`` that they cannot be known."""
        for key in keys:
            self.settings.pop(key, None)
            self.unknown[key] = place

    def says(self, *sections: str) -> bool:
        """Whether something has been said of a section: ``"policy."``."""
        return any(key.startswith(sections) for key in (*self.settings, *self.unknown))

    def forget(self, section: str) -> None:
        """Take back what was said of a section."""
        for noted in (self.settings, self.unknown, self.comments, self.origins):
            for key in [key for key in noted if key.startswith(section)]:
                del noted[key]

    def find(self, kind: FindingKind, place: Place, message: str, hint: str = "") -> None:
        """Tell the reader of the recipe something."""
        self.findings.append(Finding(kind, place, message, hint))

    lost, note = partialmethod(find, "lost"), partialmethod(find, "note")
    ignored = partialmethod(find, "ignored")

    def find_no_parameter(self, name: str, key: str, place: Place) -> None:
        """Tell of a keyword or a key that a known call or section does not have."""
        said = f"{name} has no parameter {key!r} that is known here"
        message = f"{said}; the recipe takes no notice of it."
        self.find("unknown", place, message, "say what it does: --set KEY=VALUE")

    def alternative(
        self, conditions: tuple[str, ...], why: str, departures: tuple[str, ...] = ()
    ) -> Alternative:
        """The draft as a recipe; ``why``: why what is unknown of it is unknown."""
        unknown = (
            Finding("unknown", at, f"{key} is {at.excerpt}, {why}.", f"--set {key}=...", key)
            for key, at in self.unknown.items()
        )
        findings = tuple(dict.fromkeys((*unknown, *self.findings)))
        said = self.settings, self.unknown, self.comments
        return Alternative(conditions, *said, departures, findings, self.origins)


Handler = Callable[[Call, Draft], None]
"""Handlers run in the order of the flow, those of training regions last: what is set last holds."""

P = ParamSpec("P")
_Takes = Callable[Concatenate[Call, Draft, P], None]


def doubting(*keys: str) -> Callable[[_Takes[P]], _Takes[P]]:
    """Of a handler: where an argument is not known, ``keys`` are not."""

    def decorated(handler: _Takes[P]) -> _Takes[P]:
        @wraps(handler)
        def handle(call: Call, draft: Draft, /, *args: P.args, **kwargs: P.kwargs) -> None:
            try:
                handler(call, draft, *args, **kwargs)
            except NotKnown as error:
                draft.doubt(error.place, *keys)

        return handle

    return decorated


@dataclass(frozen=True)
class Dialect:
    """The calls of one framework.

    Args:
        framework: as ``Reading.framework`` names it.
        calls: by qualified name the parameters, in order, and what the call means (None: it is known).
        aliases: other qualified names of the same -> the one in ``calls``. A name need not stand in
            each module in which a library defines it: it is known in those below, too.
        packages: other names of a package -> the one in ``calls``.
        finish: completes a draft once all calls have been handled.
        any_keyword: calls that pass on keywords which are not listed.
    """

    framework: str
    calls: Mapping[str, tuple[str, Handler | None]]
    aliases: Mapping[str, str] = field(default_factory=dict)
    finish: Callable[[Draft], None] = lambda draft: None
    any_keyword: frozenset[str] = frozenset()
    packages: Mapping[str, str] = field(default_factory=dict)

    def resolve(self, qualified: str) -> str | None:
        """The name in ``calls`` that a qualified name stands for; of a method by its class."""
        for other, package in self.packages.items():
            if qualified.startswith(f"{other}."):
                qualified = package + qualified.removeprefix(other)
        for spelled in _in_packages_above(qualified):
            name = self.aliases.get(spelled, spelled)
            if name in self.calls:
                return name
        owner, _, method = qualified.rpartition(".")
        name = f"{self.resolve(owner)}.{method}" if owner else ""
        return name if name in self.calls else None


def _in_packages_above(qualified: str) -> Iterator[str]:
    """``torch.cuda.amp.grad_scaler.GradScaler.step``, and the same as ``torch.cuda.amp`` exports it."""
    parts = qualified.split(".")
    modules = list(takewhile(str.islower, parts[:-1]))
    for count in range(len(modules), 0, -1):
        yield ".".join(modules[:count] + parts[len(modules) :])
