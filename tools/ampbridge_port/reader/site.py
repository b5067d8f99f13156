"""A call of a library's function, as models of libraries see it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampbridge_port.reader.dialects import is_known_library
from ampbridge_port.reader.values import Known, Made, Passed, Scope, Unknown, Value

if TYPE_CHECKING:
    from ampbridge_port.reader.machine import Machine


@dataclass(frozen=True)
class Site:
    """A call of a library's function."""

    machine: Machine
    name: str
    passed: tuple[Passed, ...]
    node: ast.AST
    scope: Scope
    receiver: Value | None = None

    def get(self, name: str, position: int | None = None) -> Value | None:
        """An argument by its name or position."""
        for each in self.passed:
            if each.name == name and name:
                return each.value
        plain = [each for each in self.passed if not each.name and not each.star]
        return plain[position].value if position is not None and position < len(plain) else None

    def text(self, name: str, position: int | None = None) -> str | None:
        """An argument that is text."""
        value = self.get(name, position)
        return value.data if isinstance(value, Known) and isinstance(value.data, str) else None

    @property
    def positional(self) -> list[Value]:
        return [each.value for each in self.passed if not each.name and not each.star]

    @property
    def keywords(self) -> dict[str, Value]:
        return {each.name: each.value for each in self.passed if each.name}

    @property
    def is_known(self) -> bool:
        """Whether the function is of a library that is known not to change what it is passed."""
        return is_known_library(self.name)

    def unknown(self, *path: str) -> Unknown:
        return Unknown(self.node, path)


def made_by(machine: Machine, name: str, passed: tuple[Passed, ...], node: ast.AST) -> Made:
    """What a library's call gives, with the call noted."""
    return Made(name, machine.note(name, name.rpartition(".")[2], node, passed))
