"""A program with its configuration: where the program reads the file, its values are known.

    args = parser.parse_args()                     args.config is the file
    config = yaml.safe_load(open(args.config))     its values

A function of the program that loads it is followed. Where that cannot be done to its end, the values are
those of the file, which is noted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import libcst as cst

from ampbridge_port.interpreter.calls import DICTIONARIES
from ampbridge_port.interpreter.expressions import library_base
from ampbridge_port.interpreter.importing import Importing
from ampbridge_port.interpreter.values import (
    Class,
    ConfigFile,
    Constant,
    Container,
    Function,
    Instance,
    Items,
    Library,
    Method,
    Passed,
    Table,
    Unknown,
    Value,
)
from ampbridge_port.table import Table as Configuration
from ampbridge_port.table import literal

OPTION = re.compile(
    r"-{0,2}(?:c|cfg|conf|config|configuration|yaml|yml)(?:[-_]?(?:file|path|yaml|yml))?s?"
)
"""Options of a command line that take the path of a configuration."""
PARAMETER = frozenset({"cfg", "conf", "config"})
"""Parameters of functions that take its content."""
LOADS = re.compile(
    r"(?:load|read|parse|get|from|build).*(?:cfg|conf|yaml|yml|json)|^(?:Config|cfg)$", re.I
)
"""Functions that give its content, by their names."""
OPENS = frozenset({"open", "Path", "str", "abspath", "realpath", "expanduser", "join", "read_text"})
"""Functions that give the file, or its path."""
LIBRARIES = frozenset(
    {
        "json.load", "json.loads", "mmcv.Config.fromfile", "mmengine.Config.fromfile",
        "omegaconf.OmegaConf.load", "yaml.full_load", "yaml.load", "yaml.safe_load", "yaml.unsafe_load",
    }
)  # fmt: skip
"""Functions of libraries that give its content."""


class Configured(Importing):
    """The values of a configuration."""

    def __init__(self, *arguments: Any, configuration: Configuration | None = None) -> None:
        super().__init__(*arguments)
        self.configuration = configuration
        self.taken: list[cst.CSTNode] = []
        """Calls that give the configuration, and are not followed to their end."""

    def call(
        self, function: Value, passed: tuple[Passed, ...], node: cst.CSTNode, target: str
    ) -> Value:
        """What ``function(*passed)`` gives; of a function that is given the file, its content, say."""
        if self.configuration is None:
            return super().call(function, passed, node, target)
        if isinstance(function, Function) and not passed:
            passed = self._left_out(function)
        if isinstance(function, Library) and function.qualified in LIBRARIES:
            return self._content_of(self.configuration, node)
        if isinstance(function, Method) and isinstance(function.receiver, ConfigFile):
            return function.receiver
        if isinstance(function, Library) and function.qualified == "omegaconf.OmegaConf.merge":
            own, *others = [each.value for each in passed] or [self.unknown(node)]
            if isinstance(own, Container) and all(isinstance(each, Unknown) for each in others):
                self.taken.append(node)
                return own
        if any(isinstance(each.value, ConfigFile) for each in passed):
            return self._of_file(self.configuration, function, passed, node, target)
        return super().call(function, passed, node, target)

    def _of_file(
        self,
        configuration: Configuration,
        function: Value,
        passed: tuple[Passed, ...],
        node: cst.CSTNode,
        target: str,
    ) -> Value:
        name = _name(function)
        if isinstance(function, Library) and name in OPENS:
            return ConfigFile(node)
        given = super().call(function, passed, node, target)
        if LOADS.search(name) and not self._is_content(given, configuration):
            self.taken.append(node)
            return self._content_of(configuration, node)
        return given

    def _left_out(self, function: Function) -> tuple[Passed, ...]:
        """The configuration, where a decorator passes it: ``@hydra.main(...)`` above ``main(cfg)``."""
        first = next(iter(function.node.params.params), None)
        content = self.any_configuration(first) if first and first.default is None else None
        return (Passed(None, content, function.node),) if content else ()

    def _is_content(self, given: Value, configuration: Configuration) -> bool:
        """Whether it is an object of the program's own, or a dictionary with keys of the configuration."""
        if isinstance(given, Instance):
            return given.cls is None or library_base(given.cls) not in DICTIONARIES
        content = self.content(given)
        return isinstance(content, Table) and bool(
            content.items.keys() & configuration.entries.keys()
        )

    def merged_from(self, content: Value, passed: tuple[Passed, ...], node: cst.CSTNode) -> Value:
        """With what the file has, under ``merge_from_file``; other merges are noted."""
        if self.configuration is None or not isinstance(content, Table):
            return super().merged_from(content, passed, node)
        if any(isinstance(each.value, ConfigFile) for each in passed):
            return self._merged(content, self.configuration, node)
        self.taken.append(node)
        return content

    def _merged(self, content: Table, file: Configuration, node: cst.CSTNode) -> Table:
        """Key by key; yacs reads a text as the literal that it is: ``None``."""
        items = dict(content.items)
        for key, entry in file.entries.items():
            below = self.content(items[key]) if key in items else None
            if isinstance(entry.value, Configuration) and isinstance(below, Table):
                made = self._merged(below, entry.value, node)
                items[key] = self.container(node, made, by_attribute=True)
            elif isinstance(entry.value, str):
                items[key] = Constant(literal(entry.value))
            else:
                items[key] = self._held(entry.value, node)
        return Table(items, content.rest)

    def _content_of(self, configuration: Configuration, node: cst.CSTNode) -> Container:
        """The content of a configuration, as a program has it at ``node``: keys are attributes, too."""
        items = {key: self._held(each.value, node) for key, each in configuration.entries.items()}
        return self.container(node, Table(items), by_attribute=True)

    def _held(self, value: Any, node: cst.CSTNode) -> Value:
        if isinstance(value, Configuration):
            return self._content_of(value, node)
        if isinstance(value, Mapping):
            items = {str(key): self._held(each, node) for key, each in value.items()}
            return self.container(node, Table(items), by_attribute=True)
        if isinstance(value, list):
            held = Items("list", tuple(self._held(each, node) for each in value))
            return self.container(node, held)
        return Constant(value)

    def _option(self, flag: str, name: str, given: Mapping[str, Value], node: cst.CSTNode) -> Value:
        is_path = OPTION.fullmatch(flag) or OPTION.fullmatch(name)
        if self.configuration is not None and is_path:
            return ConfigFile(node)
        return super()._option(flag, name, given, node)

    def any_configuration(self, parameter: cst.Param) -> Value | None:
        """The configuration, for a parameter of its name that may be anything."""
        if self.configuration is None or parameter.name.value not in PARAMETER:
            return None
        return self._content_of(self.configuration, parameter)


def _name(function: Value) -> str:
    """The last name of what is called."""
    if isinstance(function, Library):
        return function.qualified.rpartition(".")[2]
    return function.name if isinstance(function, (Class, Function, Method)) else ""
