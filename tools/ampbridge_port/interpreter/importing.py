"""Imports: of libraries, which stay names, and of modules of the script's own folder, which are followed.

A module is followed once, when a name of it is used first; at its import, if it may change something of
mixed precision by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import libcst as cst

from ampbridge_port.interpreter.calls import Calls
from ampbridge_port.interpreter.decisions import TRUE, Condition
from ampbridge_port.interpreter.following import MOST_TURNS, counted
from ampbridge_port.interpreter.values import (
    Attributes,
    Choice,
    Constant,
    Frame,
    Imported,
    Library,
    Module,
    Unknown,
    Value,
)

DEEPEST_IMPORT = 24
"""As many modules may be in the middle of being followed, at most: each takes from Python's own stack."""


class Importing(Calls):
    """Modules of the folder."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._by_path: dict[Path, Module] = {}
        self._followed: set[int] = set()
        self._depth = 0
        """How many guards there were where the function began that is followed."""
        self._returns: list[tuple[Condition, Value]] = []
        self._joint: tuple[list[Condition], Condition] = ([], TRUE)
        """Guards of the function, and all of them as one."""
        self._breaks = 0
        self._importing = 0
        self._asked: set[tuple[int, str]] = set()
        self.refused: dict[str, str] = {}
        """Modules of the folder that are not read, by name, and why."""

    # -- statements

    def _on_Import(self, node: cst.Import) -> None:
        for alias in node.names:
            name = self.text(alias.name)
            first = name.partition(".")[0]
            whole, top = self._module(name, node), self._module(first, node)
            if alias.asname is not None:
                self.assign_name(alias.asname.name, whole or Library(name, node))
            else:
                self.bind(first, top or Library(first, node))

    def _on_ImportFrom(self, node: cst.ImportFrom) -> None:
        module = "." * len(node.relative) + (self.text(node.module) if node.module else "")
        here = self._module(module, node)
        separator = "" if module.endswith(".") else "."
        if isinstance(node.names, cst.ImportStar):
            if here is not None:
                self.frame.root.stars.append(here)
            for name in self.known.names_of(module):
                self.bind(name, Library(f"{module}.{name}", node))
            return
        for alias in node.names:
            name = self.text(alias.name)
            bound = alias.asname.name if alias.asname is not None else alias.name
            if here is not None:
                self._module(f"{module}{separator}{name}", node)
                self.assign_name(bound, Imported(here, name, node))
            else:
                self.assign_name(bound, Library(f"{module}{separator}{name}", node))

    def assign_name(self, node: cst.CSTNode, value: Value) -> None:
        """Bind the name that ``node`` is."""
        if isinstance(node, cst.Name):
            self.bind(node.value, value)

    # -- modules

    def _module(self, name: str, node: cst.CSTNode) -> Module | None:
        """The module of the folder with this name, as the module that is followed calls it."""
        if self.modules is None:
            return None
        inside = self.frame.root.module
        importer = self.modules.script if inside is None else self._file_of(inside)
        path = self.modules.find(name, importer)
        return None if path is None else self._at(path, name)

    def _file_of(self, module: Module) -> Path:
        assert self.modules is not None
        return self.modules.file_of(module.path) or module.path / "__init__.py"

    def _at(self, path: Path, name: str) -> Module | None:
        assert self.modules is not None
        if path == self.modules.script:
            return None
        if path not in self._by_path:
            frame = Frame(None)
            self.memory.own(frame)
            bare = name.lstrip(".") or path.name
            module = Module(bare, path, frame, tuple(self.guards))
            frame.module = self._by_path[path] = module
            file = self.modules.file_of(path)
            for each in self.modules.acting.get(file, ()) if file is not None else ():
                acting = self._at(*self.modules.name_of(each))
                if acting is not None:
                    self._follow(acting)
        return self._by_path[path]

    def imported(self, value: Imported) -> Value:
        """What an import of a module of the folder brings; unknown, where that is bound anew later."""
        found = self._bound(value.module, value.name)
        if found is None:
            return Library(f"{value.module.name}.{value.name}", value.node)
        frame = value.module.frame
        rebound = (id(frame), value.name) in self.rebound or _is_counted(found, value.name, frame)
        return Unknown(value.name, value.node) if rebound else found

    def of_module(self, module: Module, name: str, node: cst.CSTNode) -> Value:
        """``module.name``, of a module of the folder."""
        if name == "__dict__":
            self._follow(module)
            return Attributes(module.frame)
        found = self._bound(module, name)
        if found is not None and _is_counted(found, name, module.frame):
            return Unknown(lambda: f"{module.name}.{name}", node)
        return Library(f"{module.name}.{name}", node) if found is None else self.resolved(found)

    def star(self, frame: Frame, name: str) -> Value | None:
        """What a module has of another, all whose names it imports."""
        seen: set[int] = set()
        left = [] if name.startswith("_") else list(frame.stars)
        while left:
            module = left.pop()  # the last that is imported wins
            if id(module) in seen:
                continue
            seen.add(id(module))
            self._follow(module)
            found = self.memory.get(module.frame, name)
            if found is not None:
                return self.imported(found) if isinstance(found, Imported) else found
            left += module.frame.stars
        return None

    def _bound(self, module: Module, name: str) -> Value | None:
        """What a module binds a name to, or a module in it of that name."""
        asked = (id(module), name)
        if asked in self._asked:  # two modules that import each other
            return None
        self._asked.add(asked)
        try:
            self._follow(module)
            found = self.memory.get(module.frame, name)
            if found is None:
                found = self.star(module.frame, name)
            if isinstance(found, Imported):
                found = self.imported(found)
            return self._part(module, name) if found is None else found
        finally:
            self._asked.discard(asked)

    def _part(self, package: Module, name: str) -> Module | None:
        """The module ``name`` of a package."""
        if self.modules is None or package.path.suffix == ".py":
            return None
        path = self.modules.find(f".{name}", package.path / "__init__.py")
        return None if path is None else self._at(path, f"{package.name}.{name}")

    def _follow(self, module: Module) -> None:
        """The statements of a module, once."""
        if id(module) in self._followed or self.modules is None:
            return
        if self._importing >= DEEPEST_IMPORT:
            return
        self._followed.add(id(module))
        source = self.modules.source(module.path)
        if source is None:
            reason = self.modules.why_not(module.path)
            if reason:
                self.refused[module.name] = reason
            return
        self.source.others.append(source)
        names = counted(source.text)
        module.frame.counters.update(names)
        self.counters |= names
        self._most_statements += MOST_TURNS * source.text.count("\n")
        with self._apart(module), self.memory.unwatched():
            self.follow_block(source.module.body)

    @contextmanager
    def _apart(self, module: Module) -> Iterator[None]:
        """A module is followed by itself, wherever the name of it is used that is asked for."""
        kept = {name: getattr(self, name) for name in _STATE}
        self.frame, self.guards = module.frame, list(module.guards)
        self.stack, self.regions, self.loops, self._active = [], [], [], []
        self._returns, self._joint, self._depth = [], ([], TRUE), len(self.guards)
        self._breaks = self.without_gradients = 0
        self._importing += 1
        try:
            yield
        finally:
            self._importing -= 1
            for name, value in kept.items():
                setattr(self, name, value)

    def follow_block(self, statements: Sequence[cst.CSTNode]) -> None:
        """Follow the body of a module."""
        raise NotImplementedError


def _is_counted(found: Value, name: str, frame: Frame) -> bool:
    """Whether it is a number that its module counts up, which is not known at any time."""
    return name in frame.counters and isinstance(found, (Choice, Constant))


_STATE = (
    "frame", "guards", "stack", "regions", "loops", "without_gradients", "target", "_active",
    "_returns", "_depth", "_joint", "_breaks",
)  # fmt: skip
