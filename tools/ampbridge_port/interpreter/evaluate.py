"""What values come to: as conditions, under decisions as plain Python values, and in operations."""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ampbridge_port.dialect import Name, NotKnown
from ampbridge_port.interpreter.decisions import (
    TRUE,
    Atom,
    Condition,
    Cycle,
    Decisions,
    Truth,
    both,
    either,
    negation,
)
from ampbridge_port.interpreter.memory import Memory
from ampbridge_port.interpreter.values import (
    Argument,
    Choice,
    Class,
    Constant,
    Container,
    Formula,
    Function,
    Items,
    Library,
    Lookup,
    Made,
    Method,
    Option,
    Partial,
    Remainder,
    Table,
    Unknown,
    Value,
)
from ampbridge_port.source import Source

if TYPE_CHECKING:
    import libcst as cst

LARGEST_POWER = 2**12
LONGEST = 10**4
"""Bits of a number, characters of a text, items of a list: beyond it, what a file says is unknown."""

NUMPY_DTYPES = {f"numpy.{name}": name for name in ("float16", "float32", "float64")}


# Modules whose names are classes, functions and constants: none is a setting of the user's.
PUBLISHED = frozenset(
    (
        "accelerate", "apex", "deepspeed", "keras", "lightning", "numpy", "paddle",
        "pytorch_lightning", "tensorflow", "torch",
    )
)  # fmt: skip


def setting(value: Value) -> cst.CSTNode | None:
    """Where ``value`` is used, if another file of the user's gives it: it may be anything.

    It is a name of another module, an option of absl's, or what a base class from elsewhere has.
    """
    if isinstance(value, Method):
        return value.inherited
    if not isinstance(value, Library):
        return None
    root, dot, name = value.qualified.lstrip(".").partition(".")
    option = name.startswith(("flags.FLAGS.", "compat.v1.flags.FLAGS.", "app.flags.FLAGS."))
    own = root not in PUBLISHED and root not in sys.stdlib_module_names and root != "builtins"
    inside = bool(dot) or value.qualified.startswith(".")
    return value.node if option or (own and inside) else None


def _is_class(value: Library) -> bool:
    """Whether it is named as classes are: a layer of another module is known by its name."""
    name = value.qualified.rpartition(".")[2]
    return name[:1].isupper() and not name.isupper()


# -- as a condition


def condition_of(value: Value, memory: Memory, text: Callable[[cst.CSTNode], str]) -> Condition:
    """The condition under which ``value`` is true; ``text`` gives the code of a node."""
    if isinstance(value, Constant):
        return Truth(bool(value.value))
    if isinstance(value, Formula):
        return value.condition
    if isinstance(value, Choice):
        yes, no = (condition_of(each, memory, text) for each in (value.yes, value.no))
        return either(both(value.condition, yes), both(negation(value.condition), no))
    if isinstance(value, Argument):
        return Atom(value.text, usual=bool(value.default), option=value.option)
    if isinstance(value, Unknown):
        return Atom(value.text)
    node = setting(value)
    if node is not None:
        return Atom(text(node))
    if isinstance(value, Remainder):
        return negation(Cycle(value.period, value.text))
    content = memory.get(value, "content") if isinstance(value, Container) else value
    if isinstance(content, Items):
        return Truth(bool(content.items))
    if isinstance(content, Table):
        return Truth(bool(content.items)) if content.rest is None else Atom(content.rest.text)
    if isinstance(content, Unknown):
        return Atom(content.text)
    return TRUE


def equality(
    subject: Value, constant: Any, text: str, node: cst.CSTNode | None = None
) -> Condition:
    """``subject == constant``."""
    if isinstance(subject, Argument):
        usual = bool(subject.default == constant)
        said = f"{subject.text} == {constant!r}"
        return Atom(said, subject.text, constant, subject.choices, node, usual, subject.option)
    if isinstance(subject, Unknown):
        return Atom(f"{subject.text} == {constant!r}", subject.text, constant, (), node)
    return Atom(text, node=node)


# -- as a plain value


class Plain:
    """Plain values under ``decisions``; ``options`` collects the command-line defaults that went in."""

    def __init__(self, memory: Memory, source: Source, decisions: Decisions) -> None:
        self._memory, self._source, self._decisions = memory, source, decisions
        self.options: list[Option] = []
        self.asked: frozenset[str] = frozenset()
        """Options of which conditions ask: where one stands for its default, that is decided."""
        self.calls: Callable[[Made], Any] = lambda made: Name(made.qualified)

    def truth(self, value: Value) -> bool:
        """Whether ``value`` is true; where that cannot be known, it is decided."""
        return self._decisions.decide(condition_of(value, self._memory, self._source.text_of))

    def of(self, value: Value) -> Any:
        """The value itself.

        Raises:
            NotKnown: if it cannot be known.
        """
        if isinstance(value, Constant):
            self.options.extend(value.options)
            return value.value
        if isinstance(value, Choice):
            return self.of(value.yes if self._decisions.decide(value.condition) else value.no)
        if isinstance(value, Formula):
            return self._decisions.decide(value.condition)
        if isinstance(value, (Unknown, Argument)):
            return self._unknown(value)
        if isinstance(value, Lookup):
            return self._found(value)
        if isinstance(value, (Container, Items, Table)):
            return self._content(value)
        if isinstance(value, Library) and (setting(value) is None or _is_class(value)):
            return NUMPY_DTYPES.get(value.qualified) or Name(value.qualified)
        if isinstance(value, (Class, Function)):
            return Name(value.name)
        if isinstance(value, Partial):
            return self.of(value.function)
        if isinstance(value, Made):
            return self.calls(value)
        raise NotKnown(self._source.place(setting(value) or self._source.module))

    def parts(self, value: Value) -> Mapping[Any, Value] | None:
        """The items of a collection, or the values of a dictionary; None where there is no telling."""
        if isinstance(value, Choice):
            return self.parts(value.yes if self._decisions.decide(value.condition) else value.no)
        content = self._memory.get(value, "content") if isinstance(value, Container) else value
        if isinstance(content, Items):
            return dict(enumerate(content.items))
        if not isinstance(content, Table) or isinstance(content.rest, Unknown):
            return None
        if content.rest is not None:
            self.of(content.rest)
        return content.items

    def _unknown(self, value: Unknown | Argument) -> Any:
        equal = self._decisions.value_of(value.text)
        if equal is not None:
            return equal[0]
        if isinstance(value, Argument):
            if isinstance(value.default, bool):
                return self.truth(value)
            has_default = value.default is not None or value.may_be_none
            if has_default and self._is_default(value):
                self.options.append(Option(value.changed_by, value.node))
                return value.default
        elif value.boolean:
            return self._decisions.decide(Atom(value.text))
        raise NotKnown(self._source.place(value.node))

    def _is_default(self, value: Argument) -> bool:
        if value.option in self.asked and not self._decisions.is_about(value.option):
            return self._decisions.decide(equality(value, value.default, ""))
        return not self._decisions.departs_from(value.option)

    def _found(self, value: Lookup) -> Any:
        found = value.table.items.get(self.of(value.key), value.default)
        if found is None:
            raise NotKnown(self._source.place(value.key.node))
        return self.of(found)

    def _content(self, value: Value) -> Any:
        content = self._memory.get(value, "content") if isinstance(value, Container) else value
        if isinstance(content, Items):
            made: Mapping[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "list": list}
            plain = [self.of(item) for item in content.items]
            return _set(plain) if content.kind == "set" else made[content.kind](plain)
        if isinstance(content, Table):
            if content.rest is not None:
                self.of(content.rest)
            return {key: self.of(item) for key, item in content.items.items()}
        if content is None:
            raise NotKnown(self._source.place(value.node))  # type: ignore[attr-defined]
        return self.of(content)


def _set(items: list[Any]) -> Any:
    """A set in the order of the file; of what cannot be hashed, a list."""
    try:
        return set(items)
    except TypeError:
        return items


# -- operations


def bounded(value: Any) -> Any:
    """``value``, unless it is so long that computing with it could take for ever.

    Raises:
        OverflowError: if it is.
    """
    size = value.bit_length() if isinstance(value, int) else 0
    if isinstance(value, (str, bytes)):
        size = len(value)
    if size > LONGEST:
        raise OverflowError
    return value


def of_text(method: str, text: Any, *arguments: Any) -> Any:
    """What a method of ``text`` returns."""
    if method == "format":
        _check_template(text)
    return getattr(text, method)(*arguments)


_WIDE = re.compile(r"\d{5}|\*|\{[^}]*\{")


def _check_template(text: Any) -> None:
    """A width has four digits at most, and stands in the template itself.

    Raises:
        OverflowError: where it is not so.
    """
    if isinstance(text, (str, bytes)) and _WIDE.search(str(text)):
        raise OverflowError


def _modulo(left: Any, right: Any) -> Any:
    _check_template(left)
    return left % right


def _power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > LARGEST_POWER or abs(base) > LARGEST_POWER:
        raise OverflowError
    return base**exponent


def _shift(number: Any, places: Any) -> Any:
    if places > LARGEST_POWER:
        raise OverflowError
    return number << places


def _times(left: Any, right: Any) -> Any:
    for text, count in ((left, right), (right, left)):
        if isinstance(text, (str, bytes)) and len(text) * count > LONGEST:
            raise OverflowError
    return left * right


BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Subtract": operator.sub,
    "Multiply": _times,
    "Divide": operator.truediv,
    "FloorDivide": operator.floordiv,
    "Modulo": _modulo,
    "Power": _power,
    "LeftShift": _shift,
    "RightShift": operator.rshift,
    "BitOr": operator.or_,
    "BitAnd": operator.and_,
    "BitXor": operator.xor,
}

UNARY: Mapping[str, Callable[[Any], Any]] = {
    "Minus": operator.neg,
    "Plus": operator.pos,
    "BitInvert": operator.invert,
}

COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "Equal": operator.eq,
    "NotEqual": operator.ne,
    "LessThan": operator.lt,
    "LessThanEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanEqual": operator.ge,
    "Is": operator.is_,
    "IsNot": operator.is_not,
    "In": lambda left, right: left in right,
    "NotIn": lambda left, right: left not in right,
}

IMPOSSIBLE = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)


def settled(value: Value) -> Value:
    """A command-line argument as its default, where it has one to compute with."""
    computes = isinstance(value, Argument) and not isinstance(value.default, (bool, type(None)))
    if isinstance(value, Argument) and computes:
        return Constant(value.default, (Option(value.changed_by, value.node),))
    return value


def combined(value: Any, *parts: Value) -> Constant:
    """The constant that comes of ``parts``, which were settled."""
    options = [option for part in parts if isinstance(part, Constant) for option in part.options]
    return Constant(value, tuple(dict.fromkeys(options)))
