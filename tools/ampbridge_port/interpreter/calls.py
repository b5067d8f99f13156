"""What calls give: of known APIs (an event each), of the file's own functions and classes, of built-ins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeGuard

import libcst as cst

from ampbridge_port.interpreter.evaluate import BINARY, IMPOSSIBLE, LONGEST, of_text
from ampbridge_port.interpreter.expressions import (
    OF_DICTIONARIES,
    OF_TEXT,
    Expressions,
    library_base,
)
from ampbridge_port.interpreter.values import (
    Argument,
    Attributes,
    Choice,
    Class,
    Constant,
    Container,
    Event,
    Frame,
    Function,
    Instance,
    Items,
    Library,
    Made,
    Method,
    Module,
    Parser,
    Partial,
    Passed,
    Run,
    Super,
    Table,
    Unknown,
    Value,
    Words,
)

DEEPEST_CALL = 12
ANY_OPTIMIZER = "keras.optimizers.Optimizer"
"""Whose attributes stand for settings, also where an object comes from elsewhere."""
MOST_RUNS = 12
"""A function of the file is followed as often as this, at most."""

NAMESPACES = frozenset(
    {
        "argparse.Namespace",
        "types.SimpleNamespace",
        "easydict.EasyDict",
        "addict.Dict",
        "munch.Munch",
        "box.Box",
        "ml_collections.ConfigDict",
    }
)
AS_THEIR_ARGUMENT = frozenset(
    {
        "copy.copy",
        "copy.deepcopy",
        "builtins.reversed",
        "ml_collections.FrozenConfigDict",
        "omegaconf.OmegaConf.to_container",
    }
)
WRAPPERS = frozenset(
    {
        "paddle.distributed.fleet.distributed_scaler",
        "paddle.distributed.sharding.group_sharded_parallel",
    }
)
"""Known functions that return what they are given, wrapped."""
RETURN_THE_MODEL = frozenset({"to", "cuda", "cpu", "train", "eval", "requires_grad_", "apply"})
"""Methods of a torch module that return the module."""
SETS_NAMES = re.compile(
    r"^_?(?:update|merge|overrid|overwrit)"
    r"|(?:load|parse|set|apply|patch|read).*(?:cfg|conf|arg|opts|options|hparam|overrid)",
    re.IGNORECASE,
)
"""Functions of other files that, by their names, set what they are passed, or their object."""
GETS = frozenset({"get", "pop", "setdefault"})
"""Methods of a mapping that take a key and a default."""
DICTIONARIES = frozenset({"builtins.dict", "collections.OrderedDict"})
NODES = frozenset({"fvcore.common.config.CfgNode", "yacs.config.CfgNode"})
"""Configurations that a program makes itself: dictionaries whose keys are attributes, too."""
LAUNCHERS = {
    "paddle.distributed.spawn": 0,
    "torch.multiprocessing.spawn": 1,
    "torch.multiprocessing.start_processes": 1,
}
"""Functions that call another one in processes of their own; how many arguments come before ``args``."""
KINDS: Mapping[str, type] = {
    f"builtins.{kind.__name__}": kind
    for kind in (bool, bytes, dict, float, int, list, set, str, tuple)
}
COLLECTIONS: Mapping[str, str] = {
    "builtins.list": "list",
    "builtins.tuple": "tuple",
    "builtins.set": "set",
    "builtins.frozenset": "set",
    "builtins.sorted": "list",
}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "builtins.int": int,
    "builtins.float": float,
    "builtins.str": str,
    "builtins.bool": bool,
    "builtins.pow": BINARY["Power"],
    "builtins.max": max,
    "builtins.min": min,
    "builtins.abs": abs,
    "builtins.round": round,
    "math.pow": lambda base, exponent: float(base) ** exponent,
    "numpy.float32": float,
    "numpy.float64": float,
    "numpy.int32": int,
    "numpy.int64": int,
    "numpy.dtype": str,
}


class Calls(Expressions):
    """Calls, by what is called."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.instances: dict[int, Instance] = {}
        """The first object of each class of the file, by its node's id."""
        self.runs: dict[int, int] = {}
        """How often each function of the file was followed, by its node's id."""
        self.parsers: list[Parser] = []
        self.handed: list[Function | Method] = []
        """Functions of other modules that something unknown was given."""
        self._active: list[int] = []

    def _Call(self, node: cst.Call) -> Value:
        target = self.target
        function = self.value(node.func)
        if isinstance(function, Library) and function.qualified == "builtins.super":
            return self._super(node)
        passed = tuple(self._passed(node))
        return self.over(function, lambda each: self.call(each, passed, node, target), node)

    def _passed(self, node: cst.Call) -> list[Passed]:
        passed: list[Passed] = []
        for argument in node.args:
            value = self.value(argument.value)
            content = self.content(value)
            if argument.star == "*":
                items = self.iterated(value)
                if items is None:
                    passed.append(Passed(None, value, argument.value, "*"))
                else:
                    passed.extend(Passed(None, item, argument.value) for item in items)
            elif argument.star == "**":
                table = self.merged(Table({}), content, argument.value)
                for key, item in table.items.items():
                    passed.append(Passed(str(key), item, argument.value))
                if table.rest is not None:
                    passed.append(Passed(None, table.rest, argument.value, "**"))
            else:
                name = argument.keyword.value if argument.keyword else None
                passed.append(Passed(name, value, argument.value))
        return passed

    def call(
        self, function: Value, passed: tuple[Passed, ...], node: cst.CSTNode, target: str
    ) -> Value:
        """What ``function(*passed)`` gives."""
        if isinstance(function, Function):
            return self.call_function(function, passed, node)
        if isinstance(function, Class):
            return self.instantiate(function, passed, node, target)
        if isinstance(function, Partial):
            return self.over(
                function.function,
                lambda each: self.call(each, function.passed + passed, node, target),
                node,
            )
        if isinstance(function, Library):
            return self._of_library(function, passed, node, target)
        if isinstance(function, Method):
            return self._of_method(function, passed, node, target)
        if isinstance(function, Instance) and function.cls is not None:
            return self._of_instance(function, passed, node)
        return self._of_unknown(function, passed, node, target)

    # -- events

    def event(
        self,
        qualified: str,
        passed: tuple[Passed, ...],
        node: cst.CSTNode,
        target: str,
        receiver: Event | None = None,
        on: Words = "",
        method: str = "",
    ) -> Event:
        """A call that dialects, or the reading of loops, want to know of."""
        frozen = tuple(Passed(p.name, self.frozen(p.value), p.node, p.star) for p in passed)
        method = method or qualified.rpartition(".")[2]
        event = Event(
            qualified, method, on, node, frozen, tuple(self.guards), self.entry(), target, receiver
        )
        self.events.append(event)
        self.handed += (each.value for each in passed if self._is_of_a_module(each.value))
        return event

    def _is_of_a_module(self, value: Value) -> TypeGuard[Function | Method]:
        function = value.function if isinstance(value, Method) else value
        return isinstance(function, Function) and function.frame.root is not self.module

    def _made(self, event: Event) -> Made:
        made = Made(event.qualified, event)
        self.memory.own(made)
        return made

    # -- of libraries

    def _of_library(
        self, function: Library, passed: tuple[Passed, ...], node: cst.CSTNode, target: str
    ) -> Value:
        qualified, values = function.qualified, [each.value for each in passed]
        if self.known.knows(qualified):
            event = self.event(qualified, passed, node, target)
            return self.unknown(node, *values) if qualified in WRAPPERS else self._made(event)
        owner, _, method = qualified.rpartition(".")
        if method == "__init__" and passed and self.known.knows(owner):
            return self._initialized(owner, passed[0].value, passed[1:], node)
        if qualified == "torch.device" and values:
            return self._device(values[0], node)
        if qualified == "functools.partial" and values:
            return Partial(values[0], passed[1:])
        if qualified == "argparse.ArgumentParser":
            return self._parser()
        if qualified in NAMESPACES:
            return self._namespace(passed, node)
        if qualified in NODES:
            plain = tuple(each for each in passed if each.name is None)
            content = self.content(self._dictionary(plain, node))
            return self.container(node, content, by_attribute=True)
        if qualified in DICTIONARIES:
            self._described(passed, node, target)
            return self._dictionary(passed, node)
        if qualified in LAUNCHERS:
            self._launched(LAUNCHERS[qualified], passed, node, target)
        if qualified in COLLECTIONS:
            return self._collection(COLLECTIONS[qualified], values, node)
        if qualified in AS_THEIR_ARGUMENT and values:
            return self._copied(values[0], node)
        if qualified in FUNCTIONS and not any(each.name or each.star for each in passed):
            return self._computed(qualified, values, node)
        if qualified in ("builtins.getattr", "builtins.setattr", "builtins.vars", "builtins.len"):
            return self._reflected(qualified, values, node)
        if qualified in ("builtins.type", "builtins.isinstance"):
            return self._typed(qualified, values, node)
        if qualified == "dataclasses.field":
            return self._field(passed, node)
        if qualified == "builtins.map" and len(passed) == 2:
            item = Passed(None, self.unknown(passed[1].node), passed[1].node)
            return self.unknown(node, self.call(values[0], (item,), node, target))
        if qualified == "typing.cast" and len(values) == 2:
            return values[1]
        if qualified == "builtins.globals":
            return Attributes(self.frame.root)
        if qualified == "builtins.exec":
            self.may_change(self.frame.root, node)
        if not qualified.startswith("builtins."):
            event = self.event("", passed, node, target, on=owner, method=method)
            event.library = qualified
            self._set_by_others(method, values, node)
        return self.unknown(node, *values)

    def _launched(
        self, ranks: int, passed: tuple[Passed, ...], node: cst.CSTNode, target: str
    ) -> None:
        """``spawn(worker, args=(config,))``: ``worker(config)``, or ``worker(rank, config)``.

        With arguments that are not known, the worker is one of the functions that nothing calls.
        """
        named = {each.name: each.value for each in passed if each.name}
        plain = [each.value for each in passed if each.name is None and not each.star]
        worker = plain[0] if plain else named.get("func", named.get("fn"))
        arguments = plain[1] if len(plain) > 1 else named.get("args", Items("tuple", ()))
        items = self.iterated(arguments)
        if items is None or any(isinstance(each, Unknown) for each in items):
            return
        if isinstance(worker, (Function, Method, Partial)):
            before = [self.unknown(node)] * ranks
            given = tuple(Passed(None, each, node) for each in (*before, *items))
            self.call(worker, given, node, target)

    def _set_by_others(self, method: str, values: Sequence[Value], node: cst.CSTNode) -> None:
        """What a function of another file may set in what it is passed."""
        if SETS_NAMES.search(method):
            for value in map(self.resolved, values):
                if isinstance(value, (Container, Instance, Parser)):
                    self.may_change(value, node)
                elif isinstance(value, Module):
                    self.may_change(value.frame, node)

    def _initialized(
        self, qualified: str, instance: Value, passed: tuple[Passed, ...], node: cst.CSTNode
    ) -> Value:
        """``super().__init__(...)`` of a known class."""
        event = self.event(qualified, passed, node, self.text(node))
        if isinstance(instance, Instance):
            event.overridden = frozenset(self._methods(instance.cls))
            instance.made.append(self._made(event))
        return Constant(None)

    def _parser(self) -> Parser:
        parser = Parser()
        self.memory.own(parser)
        self.parsers.append(parser)
        return parser

    def _namespace(self, passed: tuple[Passed, ...], node: cst.CSTNode) -> Value:
        instance = Instance(None)
        self.memory.own(instance)
        table = self.content(self._dictionary(passed, node))
        for key, value in table.items.items() if isinstance(table, Table) else ():
            self.memory.set(instance, key, value)
        return instance

    def _device(self, name: Value, node: cst.CSTNode) -> Value:
        """``torch.device("cuda:0")``, whose ``type`` is ``"cuda"``."""
        instance = Instance(None)
        self.memory.own(instance)
        kind = self.apply(lambda text: str(text).partition(":")[0], node, name)
        self.memory.set(instance, "type", kind)
        return instance

    def _described(self, passed: tuple[Passed, ...], node: cst.CSTNode, target: str) -> None:
        """``dict(type="AmpOptimWrapper", ...)``, of which OpenMMLab's registry makes an object."""
        made = next((each.value for each in passed if each.name == "type"), None)
        qualified = made.qualified if isinstance(made, Library) else ""
        if isinstance(made, Constant) and isinstance(made.value, str):
            qualified = f"mmengine.{made.value}"
        if self.known.knows(qualified):
            arguments = tuple(each for each in passed if each.name != "type")
            self.event(qualified, arguments, node, target)

    def _dictionary(self, passed: tuple[Passed, ...], node: cst.CSTNode) -> Value:
        content = Table({})
        for each in passed:
            if each.name is not None:
                content = Table({**content.items, each.name: each.value}, content.rest)
            else:
                content = self.merged(content, each.value, node)
        return self.container(node, content)

    def _collection(self, kind: str, values: list[Value], node: cst.CSTNode) -> Value:
        if not values:
            return self.container(node, Items(kind, ()))
        items = self.iterated(values[0])
        if items is None:
            content = self.content(values[0])
            return self.over(content, lambda each: self._one_collection(kind, each, node), node)
        return self.container(node, Items(kind, items))

    def _one_collection(self, kind: str, value: Value, node: cst.CSTNode) -> Value:
        items = self.iterated(value)
        return self.unknown(node) if items is None else self.container(node, Items(kind, items))

    def _copied(self, value: Value, node: cst.CSTNode) -> Value:
        if isinstance(value, Container):
            return self.container(node, self.content(value), by_attribute=value.by_attribute)
        return value

    def _computed(self, qualified: str, values: list[Value], node: cst.CSTNode) -> Value:
        if qualified == "builtins.bool" and len(values) == 1:
            return self.formula(self.holds(values[0], node))
        return self.apply(FUNCTIONS[qualified], node, *values)

    def _reflected(self, qualified: str, values: list[Value], node: cst.CSTNode) -> Value:
        name = qualified.rpartition(".")[2]
        key = values[1] if len(values) > 1 else None
        if name == "vars" and len(values) == 1:
            base = self.resolved(values[0])
            return Attributes(base) if isinstance(base, (Instance, Parser)) else base
        if name == "len" and len(values) == 1:
            items = self.iterated(values[0])
            return self.unknown(node) if items is None else Constant(len(items))
        if name == "setattr" and len(values) == 3:
            self.set_named(values[0], values[1], values[2], node)
            return Constant(None)
        if not isinstance(key, Constant) or not isinstance(key.value, str):
            return self.unknown(node, *values)
        attribute = key.value
        found = self.over(values[0], lambda each: self.attribute(each, attribute, node), node)
        absent = isinstance(found, Method) and found.function is None and not found.qualified
        base = self.resolved(values[0])
        plain = isinstance(base, Instance) and base.cls is None
        absent = absent or (plain and self.memory.get(base, attribute) is None)
        if isinstance(base, Unknown) and len(values) == 3:
            default = self.default_of(values[2])
            if default is None or default.value is None:
                return found
            return Argument(f"{base.text}.{attribute}", node, f"`{base.text}`", default.value)
        return values[2] if absent and len(values) == 3 else found

    def _typed(self, qualified: str, values: list[Value], node: cst.CSTNode) -> Value:
        """``type(x)`` and ``isinstance(x, T)`` of plain values, lists and dictionaries."""
        kind = self._kind(values[0]) if values else None
        if kind is None:
            return self.unknown(node, *values)
        if qualified == "builtins.type" and len(values) == 1:
            return Library(f"builtins.{kind.__name__}", node)
        asked = self.iterated(values[1]) if len(values) == 2 else None
        asked = asked or tuple(values[1:2])
        names = [each.qualified for each in asked if isinstance(each, Library)]
        if not names or len(names) < len(asked) or not KINDS.keys() >= set(names):
            return self.unknown(node, *values)
        return Constant(any(issubclass(kind, KINDS[name]) for name in names))

    def _kind(self, value: Value) -> type | None:
        if isinstance(value, Constant):
            return type(value.value)
        content = self.content(value)
        if isinstance(content, Table):
            return dict
        return KINDS.get(f"builtins.{content.kind}") if isinstance(content, Items) else None

    def _field(self, passed: tuple[Passed, ...], node: cst.CSTNode) -> Value:
        for each in passed:
            if each.name == "default":
                return each.value
            if each.name == "default_factory":
                return self.call(each.value, (), node, "")
        return self.unknown(node)

    def set_named(self, base: Value | Frame, name: Value, value: Value, node: cst.CSTNode) -> None:
        """``setattr(base, name, value)``."""
        name, base = self.resolved(name), base if isinstance(base, Frame) else self.resolved(base)
        if not isinstance(name, Constant):
            if isinstance(base, (Instance, Parser, Frame)):
                self.may_change(base, node)
        elif isinstance(base, Frame):
            self.memory.set(base, str(name.value), value)
        else:
            self.set_attribute(base, str(name.value), value, node)

    def set_attribute(self, base: Value, name: str, value: Value, node: cst.CSTNode) -> None:
        """``base.name = value``."""
        base = self.resolved(base)
        if isinstance(base, Choice):
            for each in (base.yes, base.no):
                self.set_attribute(each, name, value, node)
            return
        if isinstance(base, Module):
            self.of_module(base, name, node)
            self.rebound.add((id(base.frame), name))
            self.memory.set(base.frame, name, value)
        if isinstance(base, Class):
            self.memory.set(base.frame, name, value)
        for made in self.made_in(base):
            qualified = f"{made.qualified}.{name}"
            if self.known.knows(qualified):
                passed = (Passed(None, value, node),)
                self.event(qualified, passed, node, "", receiver=made.event)
        if isinstance(base, Unknown) and self.known.knows(f"{ANY_OPTIMIZER}.{name}"):
            self.event(f"{ANY_OPTIMIZER}.{name}", (Passed(None, value, node),), node, "")
        if isinstance(base, (Instance, Made, Parser)):
            self.memory.set(base, name, value)
        if isinstance(base, Container) and base.by_attribute:
            self.memory.set(base, "content", self.with_item(self.content(base), name, value, node))

    # -- of methods

    def _of_method(
        self, method: Method, passed: tuple[Passed, ...], node: cst.CSTNode, target: str
    ) -> Value:
        receiver = method.receiver
        if method.function is not None:
            me = () if method.function.kind == "static" else (Passed(None, receiver, node),)
            return self.call_function(method.function, (*me, *passed), node)
        if isinstance(receiver, Parser):
            return self._of_parser(receiver, method.name, passed, node)
        if isinstance(receiver, Container):
            return self._of_container(receiver, method.name, passed, node)
        if isinstance(receiver, Attributes):
            return self._of_attributes(receiver, method.name, passed, node)
        if isinstance(receiver, (Constant, Argument)) and method.name in OF_TEXT:
            values = [each.value for each in passed]
            made = self.apply(partial(of_text, method.name), node, receiver, *values)
            if isinstance(receiver, Argument) and isinstance(made, Constant):
                by, origin = receiver.changed_by, receiver.option
                return Argument(self.text(node), node, by, made.value, origin=origin)
            return made
        return self._of_foreign_method(method, passed, node, target)

    def _of_foreign_method(
        self, method: Method, passed: tuple[Passed, ...], node: cst.CSTNode, target: str
    ) -> Value:
        """A method of an object that a known call made, or that inherits it from a library."""
        receiver = method.receiver
        if isinstance(receiver, (Instance, Class)) and method.name == "__init__":
            owner = method.qualified.removesuffix(".__init__")
            if self.known.knows(owner):
                return self._initialized(owner, receiver, passed, node)
        if method.qualified and self.known.knows(method.qualified):
            made = receiver.made if isinstance(receiver, Instance) else [receiver]
            events = [each.event for each in made if isinstance(each, Made)]
            on = self._receiver_text(node)
            return self._made(
                self.event(method.qualified, passed, node, target, next(iter(events), None), on)
            )
        self.event("", passed, node, target, on=self._receiver_text(node), method=method.name)
        self._set_by_others(method.name, [receiver, *(each.value for each in passed)], node)
        if isinstance(receiver, Instance) and method.name in RETURN_THE_MODEL:
            return receiver
        return self.unknown(node, receiver, *(each.value for each in passed))

    def _of_unknown(
        self, function: Value, passed: tuple[Passed, ...], node: cst.CSTNode, target: str
    ) -> Value:
        on, method = self._receiver_text(node), name_of(node)
        for held in function.holds if isinstance(function, Unknown) else ():
            qualified = f"{held.qualified}.{method}"
            if self.known.knows(qualified):
                return self._made(self.event(qualified, passed, node, target, held.event, on))
        values = [each.value for each in passed]
        if method in GETS and isinstance(function, Unknown) and len(values) == 2:
            default = self.default_of(values[1])
            if default is not None:
                return self._default(node, f"`{on() if callable(on) else on}`", default)
        self.event("", passed, node, target, on=on, method=method)
        self._set_by_others(method, values, node)
        return self.unknown(node, function, *values)

    def default_of(self, value: Value) -> Constant | None:
        """The plain value of a default: a constant, a list of constants or an empty dictionary."""
        content = self.content(self.resolved(value))
        if isinstance(content, Items) and all(isinstance(each, Constant) for each in content.items):
            return Constant([each.value for each in content.items if isinstance(each, Constant)])
        if isinstance(content, Table) and not content.items and content.rest is None:
            return Constant({})
        return content if isinstance(content, Constant) else None

    def _default(self, node: cst.CSTNode, changed_by: str, default: Constant) -> Argument:
        none = default.value is None
        return Argument(self.text(node), node, changed_by, default.value, may_be_none=none)

    def _receiver_text(self, node: cst.CSTNode) -> Words:
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            return partial(self.text, node.func.value)
        return ""

    def _super(self, node: cst.Call) -> Value:
        frame: Frame | None = self.frame
        while frame is not None and frame.owner is None:
            frame = frame.parent
        receiver = self.memory.get(self.frame, "self")
        if frame is None or frame.owner is None or receiver is None:
            return self.unknown(node)
        return Super(frame.owner, receiver)

    # -- of functions and classes of the file

    def call_function(
        self, function: Function, passed: tuple[Passed, ...], node: cst.CSTNode
    ) -> Value:
        """Follow a function of the file with these arguments; its result."""
        key = id(function.node)
        runs = self.runs.get(key, 0)
        if key in self._active or len(self._active) >= DEEPEST_CALL or runs >= MOST_RUNS:
            return self.unknown(node, *(each.value for each in passed))
        self.runs[key] = runs + 1
        frame = Frame(function.frame, function.owner)
        self.memory.own(frame)
        self._bind_parameters(function, passed, frame, node)
        outer, self.frame = self.frame, frame
        self._active.append(key)
        self.stack.append(Run(function.name, node, function.owner))
        try:
            return self.run_function(function, node)
        finally:
            self._active.pop()
            self.stack.pop()
            self.frame = outer

    def _bind_parameters(
        self, function: Function, passed: tuple[Passed, ...], frame: Frame, node: cst.CSTNode
    ) -> None:
        parameters = function.node.params
        names = [p.name.value for p in (*parameters.posonly_params, *parameters.params)]
        keywords = [p.name.value for p in parameters.kwonly_params]
        bound = dict(function.defaults)
        rest = [each for each in passed if each.star and not _is_empty_by_default(each)]
        positional = [each.value for each in passed if each.name is None and not each.star]
        given = {each.name: each.value for each in passed if each.name is not None}
        for name in names + keywords:
            if rest or name not in bound:
                bound[name] = Unknown(name, rest[0].node if rest else node)
        bound.update(zip(names, positional, strict=False))
        bound.update({k: v for k, v in given.items() if k in names or k in keywords})
        extra = {k: v for k, v in given.items() if k not in names and k not in keywords}
        if parameters.star_kwarg is not None:
            unknown = next((e.value for e in rest if isinstance(e.value, Unknown)), None)
            table = Table(extra, unknown)
            bound[parameters.star_kwarg.name.value] = self.container(node, table)
        if isinstance(parameters.star_arg, cst.Param):
            bound[parameters.star_arg.name.value] = Items("tuple", tuple(positional[len(names) :]))
        for name, value in bound.items():
            self.memory.set(frame, name, value)

    def run_function(self, function: Function, node: cst.CSTNode) -> Value:
        """Follow the body of a function whose parameters are bound."""
        raise NotImplementedError

    def instantiate(
        self, cls: Class, passed: tuple[Passed, ...], node: cst.CSTNode, target: str
    ) -> Value:
        """A new object of a class of the file."""
        special = self._of_built_in_base(cls, passed, node)
        if special is not None:
            return special
        instance = Instance(cls)
        self.memory.own(instance)
        self.instances.setdefault(id(cls.node), instance)
        initialize = self.in_class(cls, "__init__")
        base = library_base(cls)
        if isinstance(initialize, Function):
            self.call_function(initialize, (Passed(None, instance, node), *passed), node)
            return instance
        if cls.is_dataclass:
            passed = (*passed, *self._field_defaults(cls, passed, node))
            self._set_fields(cls, instance, passed)
        if base is not None and self.known.knows(base):
            event = self.event(base, passed, node, target)
            event.overridden = frozenset(self._methods(cls))
            instance.made.append(self._made(event))
        return instance

    def _of_built_in_base(
        self, cls: Class, passed: tuple[Passed, ...], node: cst.CSTNode
    ) -> Value | None:
        """A new object of a class that derives from a parser of command lines, or from a dictionary."""
        base, initialize = library_base(cls), self.in_class(cls, "__init__")
        if base == "argparse.ArgumentParser":
            parser = self._parser()
            if isinstance(initialize, Function):
                self.call_function(initialize, (Passed(None, parser, node), *passed), node)
            return parser
        plain = all(each.startswith("__") or each in OF_DICTIONARIES for each in self._methods(cls))
        if base in DICTIONARIES and initialize is None and passed and plain:
            by_attribute = self.in_class(cls, "__getattr__") is not None
            content = self.content(self._dictionary(passed, node))
            return self.container(node, content, by_attribute=by_attribute)
        return None

    def _methods(self, cls: Class | None) -> Iterator[str]:
        """The names of the functions that a class of the file has, or one that it derives from."""
        if cls is None:
            return
        for name in self.memory.names(cls.frame):
            if isinstance(self.memory.get(cls.frame, name), Function):
                yield str(name)
        for base in cls.bases:
            if isinstance(base, Class):
                yield from self._methods(base)

    def _field_defaults(
        self, cls: Class, passed: tuple[Passed, ...], node: cst.CSTNode
    ) -> Iterator[Passed]:
        """The fields of a dataclass that were not passed, by their defaults."""
        given = {each.name for each in passed}
        positional = sum(each.name is None for each in passed)
        names = [name for name in self.memory.names(cls.frame) if isinstance(name, str)]
        for name in names[positional:]:
            value = self.memory.get(cls.frame, name)
            if name not in given and value is not None and not _is_declared_alone(value, name):
                yield Passed(name, value, node)

    def _set_fields(self, cls: Class, instance: Instance, passed: tuple[Passed, ...]) -> None:
        names = [name for name in self.memory.names(cls.frame) if isinstance(name, str)]
        for name, each in zip(names, [p for p in passed if p.name is None], strict=False):
            self.memory.set(instance, name, each.value)
        for each in passed:
            if each.name is not None:
                self.memory.set(instance, each.name, each.value)

    def _of_instance(
        self, instance: Instance, passed: tuple[Passed, ...], node: cst.CSTNode
    ) -> Value:
        assert instance.cls is not None
        for name in ("__call__", "forward", "call"):
            function = self.in_class(instance.cls, name)
            if isinstance(function, Function):
                return self.call_function(function, (Passed(None, instance, node), *passed), node)
        return self.unknown(node)

    def _of_attributes(
        self, receiver: Attributes, name: str, passed: tuple[Passed, ...], node: cst.CSTNode
    ) -> Value:
        if name != "update":
            return self._of_container(
                self.container(node, self.content(receiver)), name, passed, node
            )
        update = self.content(self._dictionary(passed, node))
        if isinstance(update, Table):
            if update.rest is not None:
                self.may_change(receiver.of, node)
            for key, value in update.items.items():
                self.set_named(receiver.of, Constant(key), value, node)
        return Constant(None)

    # -- of containers

    def _of_container(
        self, receiver: Container, name: str, passed: tuple[Passed, ...], node: cst.CSTNode
    ) -> Value:
        content = self.content(receiver)
        values = [each.value for each in passed]
        if name.startswith("merge_from_"):
            merged = self.over(content, lambda each: self.merged_from(each, passed, node), node)
            self.memory.set(receiver, "content", merged)
            return Constant(None)
        if isinstance(content, Table):
            return self._of_table(receiver, content, name, passed, node)
        if isinstance(content, Choice) and name in ("get", "items", "keys", "values"):
            return self.over(
                content, lambda each: self._read_content(receiver, each, name, passed, node), node
            )
        if name in ("append", "add", "extend", "update", "remove", "discard", "insert", "clear"):
            changed = self._changed(content, name, values, node)
            self.memory.set(receiver, "content", changed)
            return Constant(None)
        if name == "copy":
            return self.container(node, content, by_attribute=receiver.by_attribute)
        if name in ("union", "difference") and len(values) == 1:
            kind = "BitOr" if name == "union" else "Subtract"
            return self.of_collections(kind, content, self.content(values[0]), node)
        return self.unknown(node, *values)

    def _read_content(
        self,
        receiver: Container,
        content: Value,
        name: str,
        passed: tuple[Passed, ...],
        node: cst.CSTNode,
    ) -> Value:
        """What a method that changes nothing gives, of one of the contents that a container may have."""
        if isinstance(content, Table):
            return self._of_table(receiver, content, name, passed, node)
        return self._of_unknown(self.unknown(node, content), passed, node, "")

    def _changed(self, content: Value, name: str, values: list[Value], node: cst.CSTNode) -> Value:
        if isinstance(content, Choice):
            yes, no = (
                self._changed(each, name, values, node) for each in (content.yes, content.no)
            )
            return Choice(content.condition, yes, no)
        if name == "clear":
            return Items("list", ())
        if not isinstance(content, Items) or not values:
            return self.unknown(node)
        if name in ("append", "add"):
            return Items(content.kind, (*content.items, values[0]))
        if name in ("extend", "update"):
            items = self.iterated(values[0])
            if items is None or len(content.items) + len(items) > LONGEST:
                return self.unknown(node)
            return Items(content.kind, content.items + items)
        plain = [each.value for each in content.items if isinstance(each, Constant)]
        if (
            name == "insert"
            or len(plain) != len(content.items)
            or not isinstance(values[0], Constant)
        ):
            return self.unknown(node)
        out = values[0].value
        kept = (each for each, value in zip(content.items, plain, strict=True) if value != out)
        return Items(content.kind, tuple(kept))

    def _of_table(
        self,
        receiver: Container,
        content: Table,
        name: str,
        passed: tuple[Passed, ...],
        node: cst.CSTNode,
    ) -> Value:
        values = [each.value for each in passed]
        key = values[0] if values else None
        if name == "update":
            update = self.content(self._dictionary(passed, node))
            self.memory.set(receiver, "content", self.merged(content, update, node))
            return Constant(None)
        if name in ("copy", "clone"):
            return self.container(node, content, by_attribute=receiver.by_attribute)
        if name == "get" and isinstance(key, Argument):
            return self.looked_up(content, key, values[1] if len(values) > 1 else None, node)
        if name in ("get", "pop", "setdefault") and isinstance(key, Constant):
            found = content.items.get(key.value)
            if name == "pop":
                left = {k: v for k, v in content.items.items() if k != key.value}
                self.memory.set(receiver, "content", Table(left, content.rest))
            if found is None and content.rest is not None:
                usual = self.default_of(values[1]) if len(values) > 1 else None
                by = f"`{content.rest.text}`"
                return self.unknown(node) if usual is None else self._default(node, by, usual)
            default = values[1] if len(values) > 1 else Constant(None)
            if name == "setdefault" and found is None:
                self.memory.set(
                    receiver, "content", Table({**content.items, key.value: default}, content.rest)
                )
            return default if found is None else found
        if content.rest is None and name in ("keys", "values", "items"):
            pairs = [(Constant(k), v) for k, v in content.items.items()]
            made: Mapping[str, list[Value]] = {
                "keys": [k for k, _ in pairs],
                "values": [v for _, v in pairs],
                "items": [Items("tuple", pair) for pair in pairs],
            }
            return Items("list", tuple(made[name]))
        return self.unknown(node, *values)

    def merged_from(self, content: Value, passed: tuple[Passed, ...], node: cst.CSTNode) -> Value:
        """A configuration, as ``merge_from_file(path)`` and its like leave it."""
        return self.unknown(node)

    # -- of command lines

    def _of_parser(
        self, parser: Parser, name: str, passed: tuple[Passed, ...], node: cst.CSTNode
    ) -> Value:
        if name == "add_argument":
            self._add_option(parser, passed, node)
        elif name == "set_defaults":
            for each in passed:
                if each.name is not None:
                    self._set_default(parser, each.name, each.value)
        elif name == "parse_known_args":
            return Items("tuple", (parser, self.unknown(node)))
        return parser  # groups and what was parsed are one with their parser

    def _set_default(self, parser: Parser, name: str, value: Value) -> None:
        option = self.memory.get(parser, name)
        if isinstance(option, Argument) and isinstance(value, Constant):
            value = replace(option, default=value.value)
        self.memory.set(parser, name, value)

    def _add_option(self, parser: Parser, passed: tuple[Passed, ...], node: cst.CSTNode) -> None:
        given = {each.name: each.value for each in passed if each.name is not None}
        flags = [p.value.value for p in passed if p.name is None and isinstance(p.value, Constant)]
        flags = [flag for flag in flags if isinstance(flag, str)]
        if not flags:
            return
        flag = next((flag for flag in flags if flag.startswith("--")), flags[0])
        name = given.get("dest", Constant(flag.lstrip("-").replace("-", "_")))
        if isinstance(name, Constant):
            value = self._option(flag, str(name.value), given, node)
            self.memory.set(parser, str(name.value), value)

    def _option(self, flag: str, name: str, given: Mapping[str, Value], node: cst.CSTNode) -> Value:
        default = given.get("default", Constant(None))
        action, kind = given.get("action"), given.get("type")
        if isinstance(action, Constant) and action.value in ("store_true", "store_false"):
            default = Constant(action.value == "store_false")
        if not isinstance(default, Constant):
            return default
        text = f"args.{name}"
        if isinstance(kind, Library) and isinstance(default.value, (str, int)):
            default = self._converted(kind.qualified, default)
        items = self.iterated(given["choices"]) if "choices" in given else None
        choices = tuple(each.value for each in items or () if isinstance(each, Constant))
        return Argument(text, node, f"the command line's {flag}", default.value, choices)

    def _converted(self, kind: str, default: Constant) -> Constant:
        """A default as the option's type has it: a text is converted, a number need not be."""
        if kind == "builtins.bool":
            return Constant(bool(default.value))
        try:
            made = FUNCTIONS[kind](default.value) if kind in FUNCTIONS else default.value
        except IMPOSSIBLE:
            return default
        return Constant(made)


def _is_empty_by_default(each: Passed) -> bool:
    """Whether it is ``**config.get("scaler", {})``."""
    return each.star == "**" and isinstance(each.value, Argument)


def _is_declared_alone(value: Value, name: str) -> bool:
    """Whether a field has a type and no default: ``level: str``."""
    return isinstance(value, Unknown) and isinstance(value.node, cst.Name) and value.text == name


def name_of(node: cst.CSTNode) -> str:
    """``step`` of ``optimizer.step()``, and of ``step()``."""
    called = node.func if isinstance(node, cst.Call) else node
    name = called.attr if isinstance(called, cst.Attribute) else called
    return name.value if isinstance(name, cst.Name) else ""
