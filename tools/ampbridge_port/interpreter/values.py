"""What an expression of a file may stand for, as far as it is known without running it.

Some of it depends on conditions (``Choice``, ``Formula``): ``evaluate.plain`` says what a value is once
these have been decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ampbridge_port.interpreter.decisions import Condition

if TYPE_CHECKING:
    import libcst as cst


Words: TypeAlias = str | Callable[[], str]
"""A text of the file, or what finds it: most are never asked for."""


@dataclass(frozen=True)
class Option:
    """A default that a value comes from, and what may change it: "the command line's --level"."""

    changed_by: str
    node: cst.CSTNode


@dataclass(frozen=True, eq=False)
class Value:
    """The base of all."""


@dataclass(frozen=True, eq=False)
class Constant(Value):
    """A plain Python value that cannot be changed. ``options``: defaults that it was made from."""

    value: Any
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, eq=False)
class Unknown(Value):
    """What cannot be known. ``text`` says what it is, in the words of the file.

    ``boolean``: that it is true or false is known. ``holds``: objects that it was made from, as
    a wrapper holds what it wraps.
    """

    words: Words
    node: cst.CSTNode
    boolean: bool = False
    holds: tuple[Made, ...] = ()

    @cached_property
    def text(self) -> str:
        return self.words if isinstance(self.words, str) else self.words()


@dataclass(frozen=True, eq=False)
class Argument(Value):
    """What has a default in the file, and may be changed by something outside of it.

    It is an option of the command line, ``args.level``, a parameter, ``config.get("level", "O1")``.
    The default stands in where a value is needed, None if ``may_be_none``. ``origin``: the text of the
    one that it was made from, ``args.level`` of ``args.level.upper()``.
    """

    text: str
    node: cst.CSTNode
    changed_by: str
    default: Any
    choices: tuple[Any, ...] = ()
    origin: str = ""
    may_be_none: bool = False

    @property
    def option(self) -> str:
        """The text of what has the default."""
        return self.origin or self.text


@dataclass(frozen=True, eq=False)
class Lookup(Value):
    """``table[key]`` of a key that the command line says."""

    table: Table
    key: Argument
    default: Value | None


@dataclass(frozen=True, eq=False)
class Choice(Value):
    """One of two values, by a condition."""

    condition: Condition
    yes: Value
    no: Value


@dataclass(frozen=True, eq=False)
class Formula(Value):
    """True or False, by a condition."""

    condition: Condition


@dataclass(frozen=True, eq=False)
class Remainder(Value):
    """``count % period``, of a count that is not known: of batches or steps."""

    period: Value
    text: str


@dataclass(frozen=True, eq=False)
class Items(Value):
    """The content of a tuple, list or set."""

    kind: str
    items: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Table(Value):
    """The content of a dictionary. ``rest``: where it was merged from what cannot be known.

    It is an ``Argument`` where that is empty by a default of the file.
    """

    items: Mapping[Any, Value]
    rest: Unknown | Argument | None = None


@dataclass(frozen=True, eq=False)
class Container(Value):
    """A list, set or dictionary that may be changed; its content is a cell of the memory.

    ``by_attribute``: its keys are attributes, too.
    """

    node: cst.CSTNode
    by_attribute: bool = False


@dataclass(frozen=True, eq=False)
class ConfigFile(Value):
    """The configuration that a program is read with: its path, or the file opened."""

    node: cst.CSTNode


@dataclass(frozen=True, eq=False)
class Library(Value):
    """Something that an import brings, by its qualified name."""

    qualified: str
    node: cst.CSTNode


@dataclass(frozen=True, eq=False)
class Module(Value):
    """A module of the folder: its file or its package's folder; its names are cells under ``frame``.

    ``guards``: what holds where it was imported first.
    """

    name: str
    path: Path
    frame: Frame
    guards: tuple[Condition, ...] = ()


@dataclass(frozen=True, eq=False)
class Imported(Value):
    """A name that an import brings from a module of the folder, which is followed when it is used."""

    module: Module
    name: str
    node: cst.CSTNode


@dataclass(frozen=True, eq=False)
class Made(Value):
    """What a known call gave."""

    qualified: str
    event: Event


@dataclass(eq=False)
class Frame:
    """Where names are bound: a module, a class body, or one run of a function of ``owner``."""

    parent: Frame | None
    owner: Class | None = None
    is_class: bool = False
    outer_names: set[str] = field(default_factory=set)
    module: Module | None = None
    """The module of the folder whose names these are; None of the script itself."""
    counters: set[str] = field(default_factory=set)
    """Of a module: names that are counted up somewhere."""
    stars: list[Module] = field(default_factory=list)
    """Of a module: those that it imports all names of."""

    @cached_property
    def root(self) -> Frame:
        """The module's frame."""
        return self if self.parent is None else self.parent.root


@dataclass(frozen=True, eq=False)
class Function(Value):
    """A function of the file."""

    name: str
    node: cst.FunctionDef | cst.Lambda
    frame: Frame
    defaults: Mapping[str, Value]
    owner: Class | None = None
    kind: str = "function"


@dataclass(frozen=True, eq=False)
class Class(Value):
    """A class of the file; its names are cells under ``frame``."""

    name: str
    node: cst.ClassDef
    frame: Frame
    bases: tuple[Value, ...]
    is_dataclass: bool = False


@dataclass(frozen=True, eq=False)
class Instance(Value):
    """An object of a class of the file, or a plain namespace (``cls`` None); its attributes are cells."""

    cls: Class | None
    made: list[Made] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Method(Value):
    """A method of ``receiver``: a function of the file, or one of a library or a built-in type.

    ``inherited``: where it was asked for, if a library's base class has it, or may have set it.
    """

    receiver: Value
    name: str
    function: Function | None = None
    qualified: str = ""
    inherited: cst.CSTNode | None = None


@dataclass(frozen=True, eq=False)
class Partial(Value):
    """``functools.partial``: a call whose first arguments are given."""

    function: Value
    passed: tuple[Passed, ...]


@dataclass(frozen=True, eq=False)
class Attributes(Value):
    """``vars(of)`` and ``of.__dict__``: a dictionary of its attributes; ``globals()``, of names."""

    of: Instance | Parser | Frame


@dataclass(frozen=True, eq=False)
class Super(Value):
    """``super()`` in a method of ``cls``."""

    cls: Class
    receiver: Value


@dataclass(frozen=True, eq=False)
class Parser(Value):
    """An ``argparse.ArgumentParser``, or what it made of the command line; its options are cells."""


@dataclass(frozen=True, eq=False)
class Passed:
    """An argument of a call; ``star`` for ``*args`` and ``**kwargs`` that cannot be known."""

    name: str | None
    value: Value
    node: cst.CSTNode
    star: str = ""


@dataclass(frozen=True, eq=False)
class Loop:
    """A ``for`` loop over what is not known one by one, of a statement or of a comprehension.

    ``turns``: of a statement's ``range(turns)``.
    """

    node: cst.For | cst.CompFor
    turns: Value | None


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a function of the file; ``call`` is where it was called."""

    function: str
    call: cst.CSTNode
    owner: Class | None = None


@dataclass(frozen=True)
class Entry:
    """Where a call stands, or a context is entered: what is around it, outermost first."""

    runs: tuple[Run, ...]
    inside: tuple[Event, ...]
    """The contexts."""
    loops: tuple[Loop, ...]
    without_gradients: bool

    @cached_property
    def stack(self) -> tuple[str, ...]:
        """The names of the functions."""
        return tuple(run.function for run in self.runs)


@dataclass(eq=False)
class Event:
    """A call that was met, in the order in which they would run.

    ``qualified`` is the name of what was called; "" for a method of an object of unknown kind, whose
    name is ``method`` and which ``on`` is the text of. ``guards``: what holds there.
    """

    qualified: str
    method: str
    owner: Words
    node: cst.CSTNode
    passed: tuple[Passed, ...]
    guards: tuple[Condition, ...]
    entry: Entry
    target: str
    receiver: Event | None = None
    library: str = ""
    """The qualified name of what was called, where no dialect knows it."""
    overridden: frozenset[str] = frozenset()
    """Methods of the file's own class, where ``qualified`` is the library's that it derives from."""
    entered: list[Entry] = field(default_factory=list)

    @cached_property
    def on(self) -> str:
        """The text of the object that a method is called of, or "" for a function."""
        return self.owner if isinstance(self.owner, str) else self.owner()
