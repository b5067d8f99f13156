"""What a framework's AMP calls mean for a recipe: a dialect is a table of calls, and functions for them.

A file is read under decisions: where an expression depends on a condition that cannot be known
(``"O2" if args.fp16 else "O1"``), the whole file is read once for each way it may go. So a dialect
sees plain values only, or none:

    def auto_cast(call: Call, draft: Draft) -> None:
        draft.take("policy.level", call, "level", "O1")
        draft.take("policy.dtype", call, "dtype", "float16")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ampbridge_port.reading import Finding, FindingKind, Origin, Place


class NotKnown(Exception):
    """A value that cannot be known without running the file; ``place`` is where it comes from."""

    def __init__(self, place: Place) -> None:
        super().__init__(str(place))
        self.place = place


@dataclass(frozen=True)
class Argument:
    """An argument as it was written, and its value under the present decisions.

    ``evaluate()`` returns a plain Python value, or raises ``NotKnown``; for a class or function of a
    library a ``Name``, for an object that a known call made an ``Object``. ``truth()``, where there is
    one, never raises: what cannot be known is a condition, and the file is read once for each way it
    may go. ``parts``: the items of a list or the values of a dictionary, each an argument; None where
    there is no telling.
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
    """A call of a framework's API: ``arguments`` by name, as the dialect's signature has them.

    ``extra``: positional arguments beyond the signature, and keywords that it does not have.
    ``unpacked``: where a ``**kwargs`` or ``*args`` that cannot be known was passed.
    ``function``: the function or method around it, "" at module level.
    ``target``: the name or attribute that its result is bound to ("scaler", "self.scaler"), or "".
    ``overridden``: the methods of a class of the file that derives from the one that is named.
    ``loops``: the names of the loops around it, each with the text of what its loop goes over.
    """

    name: str
    place: Place
    arguments: Mapping[str, Argument]
    extra: Mapping[str, Argument] = field(default_factory=dict)
    unpacked: Place | None = None
    function: str = ""
    target: str = ""
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
        """Whether an argument is true, such as ``enabled``, or ``default`` if it was not passed.

        Raises:
            NotKnown: if it may be among arguments that cannot be known.
        """
        truth = self.arguments[name].truth if name in self.arguments else None
        return bool(self.value(name, default)) if truth is None else truth()

    def place_of(self, name: str) -> Place:
        """Where an argument stands; the call, if it was not passed."""
        return self.arguments[name].place if name in self.arguments else self.place


@dataclass(frozen=True)
class Object(Name):
    """What a known call made, by the name of that call."""

    call: Call = field(compare=False, repr=False)


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
        self.seen: dict[str, Place] = {}
        """What handlers leave for ``Dialect.finish`` to know."""

    def take(
        self,
        key: str,
        call: Call,
        argument: str,
        default: Any,
        convert: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        """Set ``key`` to an argument's value, converted; note it as unknown if it is."""
        self._take(key, call, argument, lambda: convert(call.value(argument, default)))

    def take_flag(
        self, key: str, call: Call, argument: str, default: bool, yes: Any = True, no: Any = False
    ) -> None:
        """Set ``key`` by whether an argument is true; what cannot be known is a condition."""
        self._take(key, call, argument, lambda: yes if call.flag(argument, default) else no)

    def _take(self, key: str, call: Call, argument: str, value: Callable[[], Any]) -> None:
        try:
            self.set(key, value())
        except NotKnown as error:
            self.unknown[key] = error.place
            self.settings.pop(key, None)
            return
        if key not in self.settings:
            return
        if argument in call.arguments:
            self.comments[key] = f"{argument}={call.arguments[argument].place.text}"
        is_default = argument not in call.arguments
        self.origins[key] = Origin(call.place_of(argument), call.name, is_default)

    def set(self, key: str, value: Any) -> None:
        """Set ``key``, written as in a recipe file: ``"policy.level"``. None leaves it out."""
        self.unknown.pop(key, None)
        self.origins.pop(key, None)
        if self.handled is not None and value is not None:
            is_default = key == "scaler.like"  # a library's rule
            self.origins[key] = Origin(self.handled.place, self.handled.name, is_default)
        if value is None:
            self.settings.pop(key, None)
        else:
            self.settings[key] = value

    def find(self, kind: FindingKind, place: Place, message: str, hint: str = "") -> None:
        """Tell the reader of the recipe something."""
        self.findings.append(Finding(kind, place, message, hint))


Handler = Callable[[Call, Draft], None]
"""Handlers run in the order of the calls, those of training regions last: what is set last holds."""


@dataclass(frozen=True)
class Dialect:
    """A framework's AMP calls.

    Args:
        framework: as ``Reading.framework`` names it.
        signatures: qualified name -> parameter names in order, for every call that is of interest
            (methods as ``"paddle.amp.GradScaler.minimize"``: of objects made by a known class).
        aliases: other qualified names of the same: older or shorter ones -> the one in ``signatures``.
        handlers: qualified name -> what the call means.
        words: a file that holds none of these strings uses nothing of it (a quick pre-check on bytes).
        finish: completes a draft once all calls have been handled, where any set something of
            ``policy`` or ``scaler`` ("no GradScaler in the file: no scaling").

    Setting an attribute of an object made by a known class is a call with one argument:
    ``strategy.amp = True`` is ``("paddle.distributed.fleet.DistributedStrategy.amp")``, ``("value",)``.
    """

    framework: str
    signatures: Mapping[str, tuple[str, ...]]
    aliases: Mapping[str, str]
    handlers: Mapping[str, Handler]
    words: tuple[str, ...]
    finish: Callable[[Draft], None] = lambda draft: None
