"""What an expression of a program stands for: a value that is known, or the words of one that is not."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from ampbridge_port.reader.source import Module
from ampbridge_port.reading import Place


@dataclass(eq=False)
class Option:
    """A default of the program that something outside of it may change, and what else it may be.

    ``changed_by``: "the command line's --level"; "" for a condition that cannot be known.
    ``domain``: the values that the program compares it with, or that its parser allows.
    """

    key: str
    text: str
    changed_by: str
    place: Place
    default: Any
    domain: dict[Any, None] = field(default_factory=dict)
    turns: tuple[str, str, float] | None = None
    """Of a condition that changes within a run: ``("step", ">=", 1000.0)``, the sign "" of another form."""
    chooses: set[bool] = field(default_factory=set)
    """Of a condition that cannot be known: True where one way of it alone is about mixed precision, False
    where both are."""
    relevant: bool = False
    """Whether something of mixed precision depends on it."""

    @property
    def is_clear(self) -> bool:
        """Whether the way that trains in mixed precision is clear wherever it is asked for."""
        return self.chooses == {True}


Options = frozenset[Option]
NONE: Options = frozenset()


@dataclass(eq=False)
class Value:
    """The base of all."""


@dataclass(eq=False)
class Known(Value):
    """A plain value: text, a number, a truth value, None. ``place``: where a configuration has it."""

    data: Any
    options: Options = NONE
    place: Place | None = None


def is_plain(value: Value | None) -> TypeGuard[Known]:
    """Whether it is text, a number, a truth value or None."""
    return isinstance(value, Known) and isinstance(value.data, (str, int, float, type(None)))


@dataclass(eq=False)
class Unknown(Value):
    """What cannot be known: the expression that gave it.

    ``path``: the names after its root, as of ``config.optimizer.lr``. ``counts``: it is counted up.
    """

    node: ast.AST
    path: tuple[str, ...] = ()
    counts: bool = False
    holds: Value | None = None
    """What it was made from, as a wrapper holds a model."""
    options: Options = NONE


@dataclass(eq=False)
class Remainder(Value):
    """``count % period``."""

    period: Value
    node: ast.AST


@dataclass(eq=False)
class Turn(Value):
    """True each ``period``-th time (or false, where ``holds`` is not): ``count % period == 0``."""

    period: Value
    node: ast.AST
    holds: bool = True


@dataclass(eq=False)
class Items(Value):
    """A list, tuple or set. ``whole``: these are all."""

    kind: str
    items: list[Value]
    whole: bool = True
    place: Place | None = None


@dataclass(eq=False)
class Dictionary(Value):
    """A dictionary. ``rest``: what it was merged with that cannot be known."""

    items: dict[Any, Value]
    rest: Value | None = None
    by_attribute: bool = False
    cls: Class | None = None
    """The program's own class that derives from ``dict``."""
    place: Place | None = None


@dataclass(eq=False)
class Library(Value):
    """Something of a library, by its qualified name; ``builtins.len`` too."""

    qualified: str


@dataclass(eq=False)
class Made(Value):
    """What a library's call gave. ``attributes``: those that the program has set."""

    qualified: str
    event: Event
    attributes: dict[str, Value] = field(default_factory=dict)


@dataclass(eq=False)
class Method(Value):
    """A method of a value that is no instance of the program's own classes."""

    receiver: Value
    name: str
    node: ast.AST


@dataclass(eq=False)
class Scope:
    """Where names are bound: a module, a class, or one run of a function."""

    module: Module
    parent: Scope | None
    names: dict[str, Value] = field(default_factory=dict)
    is_class: bool = False
    outer: set[str] = field(default_factory=set)
    """Names that are declared global or nonlocal."""
    owner: Class | None = None
    receiver: Value | None = None
    stars: list[str] = field(default_factory=list)
    """Libraries of which a module imports all names."""

    def find(self, name: str) -> Value | None:
        """The value of a name, looked up as Python does."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and (scope is self or not scope.is_class):
                return scope.names[name]
            scope = scope.parent
        return None

    @property
    def root(self) -> Scope:
        """The module's scope."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def bind(self, name: str, value: Value) -> None:
        """Bind a name where Python would."""
        scope: Scope = self
        if name in self.outer:
            above = self.parent
            while above is not None and name not in above.names:
                above = above.parent
            scope = above or self.root
        scope.names[name] = value


@dataclass(eq=False)
class ModuleOf(Value):
    """A module of the repository; of a package without ``__init__``, its dotted name alone."""

    scope: Scope | None
    name: str
    importer: Module
    level: int = 0


@dataclass(eq=False)
class Function(Value):
    """A function of the program."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    defaults: dict[str, Value]
    owner: Class | None = None
    kind: str = ""
    """``staticmethod``, ``classmethod``, ``property`` or ``contextmanager``."""
    regions: tuple[Value, ...] = ()
    """Decorators that open a region: ``@autocast()``."""
    bound_as: str = ""
    """By which name gin files bind its parameters."""

    @property
    def name(self) -> str:
        return getattr(self.node, "name", "<lambda>")


@dataclass(eq=False)
class Bound(Value):
    """A function with its receiver: ``self.step``; or with arguments, as ``functools.partial``."""

    function: Value
    receiver: Value | None
    passed: tuple[Passed, ...] = ()


@dataclass(eq=False)
class Generator(Value):
    """A call of a function that yields, which runs where it is iterated or entered."""

    function: Function
    run: Callable[[Callable[[Value], None]], Value]


@dataclass(eq=False)
class Class(Value):
    """A class of the program. ``fields``: the annotated ones of a dataclass, with their defaults."""

    node: ast.ClassDef
    scope: Scope
    bases: tuple[Value, ...]
    fields: dict[str, Value | None] = field(default_factory=dict)
    is_dataclass: bool = False

    @property
    def name(self) -> str:
        return self.node.name

    def lineage(self) -> list[Class]:
        """The class and the program's own classes that it derives from."""
        found: dict[int, Class] = {id(self): self}
        for base in self.bases:
            if isinstance(base, Class):
                found |= {id(each): each for each in base.lineage()}
        return list(found.values())

    def libraries(self) -> list[str]:
        """The classes of libraries that it derives from."""
        names = [b.qualified for c in self.lineage() for b in c.bases if isinstance(b, Library)]
        return list(dict.fromkeys(names))

    def find(self, name: str, after: Class | None = None) -> Value | None:
        """An attribute of the class; ``after``: of what comes behind that class, as ``super()`` has it."""
        lineage = self.lineage()
        if after is not None and after in lineage:
            lineage = lineage[lineage.index(after) + 1 :]
        return next((c.scope.names[name] for c in lineage if name in c.scope.names), None)


@dataclass(eq=False)
class Instance(Value):
    """An object of a class of the program; a plain namespace, where it has none.

    ``made``: the call of the library's class that it derives from.
    """

    cls: Class | None
    attributes: dict[str, Value] = field(default_factory=dict)
    made: Made | None = None
    node: ast.AST | None = None


@dataclass(eq=False)
class Super(Value):
    """``super()`` in a method of ``cls``."""

    cls: Class
    receiver: Value


@dataclass(eq=False)
class Passed:
    """An argument of a call; ``star`` for ``*args`` and ``**kwargs`` that cannot be known."""

    value: Value
    node: ast.AST
    name: str = ""
    star: str = ""


# -- what happens


@dataclass(eq=False)
class Frame:
    """One run of a function, or of a module's top level; ``call`` is where it was called."""

    name: str
    node: ast.AST
    call: ast.AST | None = None
    owner: Class | None = None
    loops: int = 0
    """How many loops stand around the call."""
    options: Options = NONE
    """Those on which it depends what the function returns."""


@dataclass(eq=False)
class Loop:
    """One run of a loop whose turns are not known one by one. ``turns``: how many, if the text says."""

    node: ast.AST
    turns: Value | None = None
    over: str = ""
    options: Options = NONE
    """Those on which it depends which turns are taken."""


@dataclass(frozen=True)
class Around:
    """What stands around an event, outermost first."""

    frames: tuple[Frame, ...]
    loops: tuple[Loop, ...]
    regions: tuple[Event, ...]
    turns: tuple[Turn, ...]
    without_gradients: bool


@dataclass(eq=False)
class Event:
    """A call that was met, or an attribute that was set, in the order in which they would run.

    ``qualified``: the name of a library's function, "" for one of an object of unknown kind.
    """

    qualified: str
    method: str
    node: ast.AST
    passed: tuple[Passed, ...]
    around: Around
    receiver: Value | None = None
    overridden: frozenset[str] = frozenset()
    entered: list[Around] = field(default_factory=list)
    """Where it was entered, of a region."""


@dataclass(eq=False)
class Model(Value):
    """An object of a library whose behaviour is followed: a parser of the command line, an open file."""

    kind: str
    state: dict[str, Any] = field(default_factory=dict)


def held_by(value: Value | None) -> Value | None:
    """What a value that is not known was made from, as far as it matters."""
    if isinstance(value, (Made, Instance)):
        return value
    return value.holds if isinstance(value, Unknown) else None


def qualified_of(value: Value) -> str:
    """The qualified name of something of a library; "" for anything else."""
    match value:
        case Library() | Made():
            return value.qualified
        case Method():
            owner = qualified_of(value.receiver)
            return f"{owner}.{value.name}" if owner else ""
        case Instance(made=Made() as made):
            return made.qualified
        case Instance(cls=Class() as cls) | Super(cls=cls):
            return next(iter(cls.libraries()), "")
    return ""
