"""What the expressions of a file stand for."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import libcst as cst

from ampbridge_port.interpreter.decisions import (
    FALSE,
    TRUE,
    Atom,
    Condition,
    Cycle,
    Truth,
    both,
    either,
    negation,
)
from ampbridge_port.interpreter.evaluate import (
    BINARY,
    COMPARISONS,
    IMPOSSIBLE,
    LONGEST,
    UNARY,
    bounded,
    combined,
    equality,
    setting,
    settled,
)
from ampbridge_port.interpreter.following import MOST_LEAVES, Following, leaves
from ampbridge_port.interpreter.values import (
    Argument,
    Attributes,
    Choice,
    Class,
    Constant,
    Container,
    Formula,
    Frame,
    Function,
    Instance,
    Items,
    Library,
    Lookup,
    Loop,
    Made,
    Method,
    Module,
    Parser,
    Passed,
    Remainder,
    Super,
    Table,
    Unknown,
    Value,
)

MOST_ITEMS = 64
"""As long a list is followed item by item, at most."""


OF_TEXT = frozenset(
    {
        "upper", "lower", "strip", "lstrip", "rstrip", "format", "split", "replace", "startswith",
        "endswith", "title", "capitalize", "removeprefix", "removesuffix", "join", "hex", "is_integer",
    }
)  # fmt: skip
"""Methods of a text."""
OF_DICTIONARIES = frozenset(name for name in dir(dict) if not name.startswith("__")) | {
    "clone", "defrost", "freeze", "merge_from_file", "merge_from_list"
}  # fmt: skip
"""Methods of dictionaries, and of yacs' configurations."""


class Expressions(Following):
    """Values of expressions, by the kind of their node."""

    target = ""
    """What the value is about to be bound to: ``Event.target`` of the call that gives it."""

    def value(self, node: cst.BaseExpression, target: str = "") -> Value:
        """What ``node`` stands for, as far as it can be known."""
        self.target = target
        evaluate = getattr(self, f"_{type(node).__name__}", None)
        value = self.unknown(node) if evaluate is None else evaluate(node)
        return self.resolved(value)

    # -- literals

    def _literal(self, node: Any) -> Value:
        try:
            return Constant(node.evaluated_value)
        except (*IMPOSSIBLE, SyntaxError, MemoryError):
            return self.unknown(node)

    _Integer = _Float = _Imaginary = _SimpleString = _literal

    def _ConcatenatedString(self, node: cst.ConcatenatedString) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        return self.apply(BINARY["Add"], node, left, right)

    def _FormattedString(self, node: cst.FormattedString) -> Value:
        parts: list[Value] = []
        for part in node.parts:
            if isinstance(part, cst.FormattedStringText):
                parts.append(Constant(part.value))
            elif isinstance(part, cst.FormattedStringExpression):
                plain = part.format_spec is None and part.conversion is None
                value = self.value(part.expression)
                parts.append(value if plain else self.unknown(node, value))
        return self.apply(lambda *all: "".join(map(str, all)), node, *parts)

    def _Tuple(self, node: cst.Tuple) -> Value:
        return self._items(node, "tuple")

    def _List(self, node: cst.List) -> Value:
        return self.container(node, self._items(node, "list"))

    def _Set(self, node: cst.Set) -> Value:
        return self.container(node, self._items(node, "set"))

    def _items(self, node: cst.Tuple | cst.List | cst.Set, kind: str) -> Value:
        items: list[Value] = []
        for element in node.elements:
            value = self.value(element.value)
            if isinstance(element, cst.StarredElement):
                inner = self.iterated(value)
                if inner is None:
                    return self.unknown(node, value)
                items.extend(inner)
            else:
                items.append(value)
        return Items(kind, tuple(items))

    def _Dict(self, node: cst.Dict) -> Value:
        content = Table({})
        for element in node.elements:
            value = self.value(element.value)
            if isinstance(element, cst.DictElement):
                key = self.value(element.key)
                if isinstance(key, Constant) and _hashable(key.value):
                    content = Table({**content.items, key.value: value}, content.rest)
                else:
                    content = Table(content.items, self.unknown(element.key))
            else:
                content = self.merged(content, value, node)
        return self.container(node, content)

    def merged(self, content: Value, update: Value, node: cst.CSTNode) -> Table:
        """A table, updated by another value. What is not known of that may hold any key."""
        base = content if isinstance(content, Table) else Table({}, self.unknown(node))
        update = self.content(update)
        if isinstance(update, Choice):
            yes, no = (self.merged(Table({}), each, node) for each in (update.yes, update.no))
            items = dict(base.items)
            for key in [*yes.items, *(key for key in no.items if key not in yes.items)]:
                missing = base.items.get(key)
                left, right = yes.items.get(key, missing), no.items.get(key, missing)
                if left is None or right is None:
                    return Table(items, base.rest or self.unknown(node))
                items[key] = self.choice(update.condition, left, right, node)
            return Table(items, base.rest or yes.rest or no.rest)
        if isinstance(update, Argument) and update.default == {}:
            return Table(self.as_defaults(base.items, update), base.rest or update)
        if isinstance(update, Table):
            kept = base.items
            if isinstance(update.rest, Argument):
                kept = self.as_defaults(kept, update.rest)
            elif update.rest is not None:
                kept = {}
            return Table({**kept, **update.items}, update.rest or base.rest)
        return Table({}, update if isinstance(update, Unknown) else self.unknown(node))

    def as_defaults(self, items: Mapping[Any, Value], by: Argument) -> dict[Any, Value]:
        """Plain values as defaults, which ``by`` may change."""
        return {
            key: Argument(str(key), by.node, by.changed_by, each.value)
            if isinstance(each, Constant)
            else each
            for key, each in items.items()
        }

    # -- comprehensions

    def _ListComp(self, node: cst.ListComp) -> Value:
        return self._comprehension(node, node.for_in, node.elt, "list")

    def _SetComp(self, node: cst.SetComp) -> Value:
        return self._comprehension(node, node.for_in, node.elt, "set")

    def _GeneratorExp(self, node: cst.GeneratorExp) -> Value:
        return self._comprehension(node, node.for_in, node.elt, "list")

    def _comprehension(
        self, node: cst.BaseExpression, clause: cst.CompFor, result: cst.BaseExpression, kind: str
    ) -> Value:
        items = self.iterated(self.value(clause.iter))
        if items is None or clause.inner_for_in is not None:
            return self._any_turn(node, clause, result)
        made: list[Value] = []
        for item in items:
            self.assign(clause.target, item)
            tests = [
                self.known_truth(self.holds(self.value(each.test), each.test))
                for each in clause.ifs
            ]
            if None in tests:
                return self.unknown(node)
            if all(tests):
                made.append(self.value(result))
        return self.container(node, Items(kind, tuple(made)))

    def _DictComp(self, node: cst.DictComp) -> Value:
        return self._any_turn(node, node.for_in, node.value)

    def _any_turn(
        self, node: cst.BaseExpression, clause: cst.CompFor, result: cst.BaseExpression
    ) -> Value:
        """A comprehension over what is not known: one turn of it, whichever."""
        inner: cst.CompFor | None = clause
        loops = len(self.loops)
        while inner is not None:
            self.value(inner.iter)
            self.assign(inner.target, self.unknown(inner.target))
            self.loops.append(Loop(inner, None))
            inner = inner.inner_for_in
        made = self.unknown(node, self.value(result))
        del self.loops[loops:]
        return made

    def iterated(self, value: Value) -> tuple[Value, ...] | None:
        """The items of a short collection, if they are known."""
        content = self.content(value)
        if isinstance(content, Table) and content.rest is None:
            content = Items("list", tuple(Constant(key) for key in content.items))
        if isinstance(content, Items) and len(content.items) <= MOST_ITEMS:
            return content.items
        return None

    # -- names

    def _Name(self, node: cst.Name) -> Value:
        constants = {"True": True, "False": False, "None": None}
        if node.value in constants:
            return Constant(constants[node.value])
        found = self.lookup(node.value, node)
        return Library(found.qualified, node) if isinstance(found, Library) else found

    def _Attribute(self, node: cst.Attribute) -> Value:
        name = node.attr.value
        return self.over(
            self.value(node.value), lambda base: self.attribute(base, name, node), node
        )

    def attribute(self, base: Value, name: str, node: cst.CSTNode) -> Value:
        """``base.name``."""
        if isinstance(base, Library):
            return Library(f"{base.qualified}.{name}", node)
        if isinstance(base, Module):
            return self.of_module(base, name, node)
        if name == "__dict__" and isinstance(base, (Instance, Parser)):
            return Attributes(base)
        if isinstance(base, Parser):
            return self.memory.get(base, name) or Method(base, name)
        if isinstance(base, (Instance, Made)):
            return self._of_object(base, name, node)
        if isinstance(base, Class):
            return self.in_class(base, name) or self._of_base(base, base, name, node)
        if isinstance(base, Super):
            return self._of_super(base, name, node)
        if isinstance(base, Unknown):
            return Unknown(lambda: f"{base.text}.{name}", node, holds=base.holds)
        if isinstance(base, Method) and base.inherited is not None:
            return self.unknown(node)
        if isinstance(base, Constant) and name == "value":  # of an enumeration's member
            return base
        if isinstance(base, Container) and base.by_attribute and name not in OF_DICTIONARIES:
            return self.item(base, Constant(name), node)
        if isinstance(base, Argument) and name not in OF_TEXT:
            return Unknown(lambda: f"{base.text}.{name}", node)
        return Method(base, name)

    def _of_object(self, base: Instance | Made, name: str, node: cst.CSTNode) -> Value:
        if name in self.counters:
            return self.unknown(node)
        found = self.memory.get(base, name)
        if found is not None:
            return self.resolved(found)
        if isinstance(base, Made):
            return Method(base, name, qualified=f"{base.qualified}.{name}")
        if base.cls is None:
            return self.unknown(node)
        inherited = self.in_class(base.cls, name)
        if inherited is None:
            return self._of_base(base.cls, base, name, node)
        return self.bound(inherited, base, node)

    def bound(self, value: Value, receiver: Value, node: cst.CSTNode) -> Value:
        """A class's value as its object has it: functions as methods, properties called."""
        if not isinstance(value, Function) or value.kind == "static":
            return value
        if value.kind == "property":
            return self.call(Method(receiver, value.name, value), (), node, "")
        return Method(receiver, value.name, value)

    def in_class(self, cls: Class, name: str) -> Value | None:
        """What a class of the file, or one that it derives from, binds ``name`` to."""
        found = self.memory.get(cls.frame, name)
        for base in cls.bases if found is None else ():
            found = self.in_class(base, name) if isinstance(base, Class) else None
            if found is not None:
                break
        return found

    def _of_base(self, cls: Class, receiver: Value, name: str, node: cst.CSTNode) -> Value:
        """A name that only a library's base class can have."""
        base = library_base(cls)
        if base is None:
            return self.unknown(node)
        if name == "training":  # what is read is how the file trains
            return Constant(True)
        return Method(receiver, name, qualified=f"{base}.{name}", inherited=node)

    def _of_super(self, base: Super, name: str, node: cst.CSTNode) -> Value:
        for each in base.cls.bases:
            if isinstance(each, Class):
                found = self.in_class(each, name)
                if found is not None:
                    return self.bound(found, base.receiver, node)
        return self._of_base(base.cls, base.receiver, name, node)

    def _Subscript(self, node: cst.Subscript) -> Value:
        base = self.value(node.value)
        key: Value = Unknown("", node)
        if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
            key = self.value(node.slice[0].slice.value)
        return self.over(
            base, lambda each: self.over(key, lambda k: self.item(each, k, node), node), node
        )

    def item(self, base: Value, key: Value, node: cst.CSTNode) -> Value:
        """``base[key]``."""
        content = self.content(base)
        if isinstance(content, Choice):
            return self.over(content, lambda each: self.item(each, key, node), node)
        if isinstance(content, Table) and isinstance(key, Argument):
            return self.looked_up(content, key, None, node)
        key = settled(key)
        if not isinstance(key, Constant):
            if isinstance(content, Table) and content.rest is None:
                return self._by_cases(content, key, node)
            return self.unknown(node)
        if isinstance(content, Unknown):
            return Unknown(lambda: f"{content.text}[{key.value!r}]", node, holds=content.holds)
        if isinstance(content, Parser):
            return self.attribute(content, str(key.value), node)
        try:
            if isinstance(content, Table):
                return content.items[key.value]
            if isinstance(content, Items) and content.kind != "set":
                return content.items[operator.index(key.value)]
        except IMPOSSIBLE:
            pass
        return self.unknown(node)

    def with_item(self, content: Value, key: Any, value: Value, node: cst.CSTNode) -> Value:
        """The content of a dictionary with ``value`` under ``key``."""
        if isinstance(content, Choice):
            yes, no = (self.with_item(each, key, value, node) for each in (content.yes, content.no))
            return Choice(content.condition, yes, no)
        if isinstance(content, Table) and _hashable(key):
            return Table({**content.items, key: value}, content.rest)
        return self.unknown(node)

    def looked_up(
        self, content: Table, key: Argument, default: Value | None, node: cst.CSTNode
    ) -> Value:
        """``table[key]``, of a key that the command line says."""
        return Lookup(content, key, default) if content.rest is None else self.unknown(node)

    def _by_cases(self, content: Table, key: Value, node: cst.CSTNode) -> Value:
        """``{"a": 1, "b": 2}[unknown]``: one of its values, by what the key equals."""
        asks_text = isinstance(key, Unknown) and all(
            isinstance(each, str) for each in content.items
        )
        if not asks_text or len(content.items) > MOST_ITEMS // 8:
            return self.unknown(node)
        value: Value = self.unknown(node)
        for each, item in reversed(list(content.items.items())):
            value = self.choice(equality(key, each, ""), item, value, node)
        return value

    # -- operations

    def apply(self, compute: Callable[..., Any], node: cst.CSTNode, *parts: Value) -> Value:
        """What ``compute`` makes of constants, each way that the parts may be; else unknown."""
        parts = tuple(map(self.resolved, parts))
        if math.prod(map(leaves, parts)) > MOST_LEAVES:
            return self.unknown(node, *parts)
        for index, part in enumerate(parts):
            part = self.resolved(part)
            if isinstance(part, Choice):
                before, after = parts[:index], parts[index + 1 :]
                yes, no = (
                    self.apply(compute, node, *before, each, *after) for each in (part.yes, part.no)
                )
                return self.choice(part.condition, yes, no, node)
        settled_parts = [settled(self.resolved(part)) for part in parts]
        plain = [part.value for part in settled_parts if isinstance(part, Constant)]
        if len(plain) == len(parts):
            try:
                return combined(bounded(compute(*map(bounded, plain))), *settled_parts)
            except (*IMPOSSIBLE, MemoryError):
                pass
        return self.unknown(node, *parts)

    def _BinaryOperation(self, node: cst.BinaryOperation) -> Value:
        kind = type(node.operator).__name__
        left, right = self.value(node.left), self.value(node.right)
        contents = [self.content(each) for each in (left, right)]
        if all(isinstance(each, (Items, Table)) for each in contents):
            return self.of_collections(kind, contents[0], contents[1], node)
        if kind == "Modulo" and isinstance(left, (Unknown, Argument)):
            return Remainder(right, self.text(node))
        if kind == "Divide" and not isinstance(left, Constant):
            self.divisors.append(right)
        if kind not in BINARY:
            return self.unknown(node, left, right)
        return self.apply(BINARY[kind], node, left, right)

    def of_collections(self, kind: str, left: Value, right: Value, node: cst.CSTNode) -> Value:
        """``+``, ``|`` and ``-`` of lists, sets and dictionaries."""
        if isinstance(left, Table) and isinstance(right, Table) and kind == "BitOr":
            return self.container(node, self.merged(left, right, node))
        if not (isinstance(left, Items) and isinstance(right, Items)):
            return self.unknown(node)
        if len(left.items) + len(right.items) > LONGEST:
            return self.unknown(node)
        if kind in ("Add", "BitOr"):
            return self.container(node, Items(left.kind, left.items + right.items))
        out = [each.value for each in right.items if isinstance(each, Constant)]
        plain = [each.value for each in left.items if isinstance(each, Constant)]
        if kind != "Subtract" or (len(plain), len(out)) != (len(left.items), len(right.items)):
            return self.unknown(node)
        kept = tuple(
            each for each, value in zip(left.items, plain, strict=True) if value not in out
        )
        return self.container(node, Items(left.kind, kept))

    def _UnaryOperation(self, node: cst.UnaryOperation) -> Value:
        value = self.value(node.expression)
        if isinstance(node.operator, cst.Not):
            return self.formula(negation(self.holds(value, node.expression)))
        return self.apply(UNARY[type(node.operator).__name__], node, value)

    def _BooleanOperation(self, node: cst.BooleanOperation) -> Value:
        left = self.value(node.left)
        condition = self.holds(left, node.left)
        stops = isinstance(node.operator, cst.Or)
        known = self.known_truth(condition)
        if known is not None:
            return left if known is stops else self.value(node.right)
        right: list[Value] = []

        def run() -> Value:
            right.append(self.value(node.right))
            return right[0]

        if stops:
            value = self.either_way(condition, lambda: left, run, node)
        else:
            value = self.either_way(condition, run, lambda: left, node)
        if _is_truth(left) and _is_truth(right[0]):
            join = either if stops else both
            return self.formula(join(condition, self.holds(right[0], node.right)))
        return value

    def formula(self, condition: Condition) -> Value:
        """True or False, by ``condition``."""
        known = self.known_truth(condition)
        return Formula(condition) if known is None else Constant(known)

    def _Comparison(self, node: cst.Comparison) -> Value:
        condition: Condition = TRUE
        left = self.value(node.left)
        for each in node.comparisons:
            right = self.value(each.comparator)
            kind = type(each.operator).__name__
            condition = both(condition, self._compared(kind, left, right, node))
            left = right
        return self.formula(condition)

    def _compared(self, kind: str, left: Value, right: Value, node: cst.CSTNode) -> Condition:
        for value, one in ((left, True), (right, False)):
            value = self.resolved(value)
            if isinstance(value, Choice):
                yes, no = (
                    self._compared(kind, *((each, right) if one else (left, each)), node)
                    for each in (value.yes, value.no)
                )
                condition = value.condition
                return either(both(condition, yes), both(negation(condition), no))
        if kind in ("NotEqual", "IsNot", "NotIn"):
            opposite = {"NotEqual": "Equal", "IsNot": "Is", "NotIn": "In"}[kind]
            return negation(self._compared(opposite, left, right, node))
        if kind == "In":
            return self._contained(left, right, node)
        if kind in ("Equal", "Is"):
            return self._equal(left, right, node)
        options = [each.option for each in (left, right) if isinstance(each, Argument)]
        left, right = settled(left), settled(right)
        if isinstance(left, Constant) and isinstance(right, Constant):
            try:
                usual = bool(COMPARISONS[kind](left.value, right.value))
            except IMPOSSIBLE:
                return Atom(self.text(node), node=node)
            if options:
                return Atom(self.text(node), node=node, usual=usual, option=options[0])
            return Truth(usual)
        return Atom(self.text(node), node=node)

    def _equal(self, left: Value, right: Value, node: cst.CSTNode) -> Condition:
        if isinstance(left, Constant) and not isinstance(right, Constant):
            left, right = right, left
        elsewhere = setting(left)
        if elsewhere is not None:
            left = self.unknown(elsewhere)
        if isinstance(left, Remainder) and isinstance(right, Constant):
            return Cycle(left.period, self.text(node), node)
        if isinstance(left, Constant) and isinstance(right, Constant):
            return Truth(left.value == right.value)
        if isinstance(left, Library) and isinstance(right, Library):
            return Truth(left.qualified == right.qualified)
        if isinstance(right, Constant):
            if isinstance(left, (Unknown, Argument)):
                return equality(left, right.value, self.text(node), node)
            nothing = right.value is None and not isinstance(left, Formula)
            return FALSE if nothing else Atom(self.text(node), node=node)
        return Atom(self.text(node), node=node)

    def _contained(self, left: Value, right: Value, node: cst.CSTNode) -> Condition:
        content, plain = self.resolved(self.content(right)), settled(left)
        if isinstance(content, Choice):
            yes, no = (self._contained(left, each, node) for each in (content.yes, content.no))
            holds = content.condition
            return either(both(holds, yes), both(negation(holds), no))
        if isinstance(content, Constant) and isinstance(plain, Constant):
            try:
                return Truth(plain.value in content.value)
            except IMPOSSIBLE:
                return Atom(self.text(node))
        if isinstance(content, Table) and content.rest is None and isinstance(plain, Constant):
            return Truth(plain.value in content.items)
        items = self.iterated(content)
        if items is None:
            return Atom(self.text(node))
        condition: Condition = FALSE
        for item in items:
            condition = either(condition, self._compared("Equal", left, item, node))
        return condition

    def _IfExp(self, node: cst.IfExp) -> Value:
        target = self.target
        condition = self.holds(self.value(node.test), node.test)
        return self.either_way(
            condition,
            lambda: self.value(node.body, target),
            lambda: self.value(node.orelse, target),
            node,
        )

    def _NamedExpr(self, node: cst.NamedExpr) -> Value:
        value = self.value(node.value)
        self.assign(node.target, value)
        return value

    def _Await(self, node: cst.Await) -> Value:
        return self.value(node.expression, self.target)

    def _Yield(self, node: cst.Yield) -> Value:
        if isinstance(node.value, cst.BaseExpression):
            self.value(node.value)
        return self.unknown(node)

    # -- what statements and calls say

    def of_module(self, module: Module, name: str, node: cst.CSTNode) -> Value:
        """``module.name``, of a module of the folder."""
        raise NotImplementedError

    def assign(self, target: cst.BaseExpression, value: Value) -> None:
        """Bind the names, attributes and items of ``target``."""
        raise NotImplementedError

    def set_named(self, base: Value | Frame, name: Value, value: Value, node: cst.CSTNode) -> None:
        """``setattr(base, name, value)``."""
        raise NotImplementedError

    def call(
        self, function: Value, passed: tuple[Passed, ...], node: cst.CSTNode, target: str
    ) -> Value:
        """What a call gives."""
        raise NotImplementedError


def library_base(cls: Class) -> str | None:
    """The qualified name of the library's class that ``cls`` derives from, if any."""
    for base in cls.bases:
        name = base.qualified if isinstance(base, Library) else None
        name = library_base(base) if isinstance(base, Class) else name
        if name is not None:
            return name
    return None


def _is_truth(value: Value) -> bool:
    """Whether a value stands for true or false wherever it is used with ``and`` and ``or``."""
    if isinstance(value, Constant):
        return isinstance(value.value, bool)
    if isinstance(value, Argument):
        return value.default is None or isinstance(value.default, bool)
    return isinstance(value, (Formula, Unknown))


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
