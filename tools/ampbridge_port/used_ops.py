"""The ops that a script names: as functions and methods, as layers, or by ``@``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache

from ampbridge.policies import op_table


def used_ops(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """The canonical ops among the names of a tree; ``nn.Conv2D``, ``F.conv2d`` and ``conv2d`` are one.

    Names alone are compared: ``x.mean()`` names the op, whatever ``x`` is.
    """
    by_name = _ops_by_name()
    found: set[str] = set()
    for name in map(_plain, _names(nodes)):
        found |= by_name.get(name) or by_name.get(_DIMENSIONS.sub("", name), set())
    return frozenset(found)


_DIMENSIONS = re.compile(r"\dd$")
"""Of layers whose op has none: ``BatchNorm2D``."""


def _names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Attribute) and not _is_self(node.value):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.MatMult):
            yield "matmul"


def _is_self(node: ast.expr) -> bool:
    """Whose attributes have the script's own names."""
    return isinstance(node, ast.Name) and node.id == "self"


_OF_USERS = ("torch", "paddle_api", "keras_layers", "keras_ops", "tensorflow_api")
"""Whose names scripts use. A kernel's name, which is another one's function, would be two ops."""


@cache
def _ops_by_name() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, op in op_table.ops().items():
        spellings = [spelling for space in _OF_USERS for spelling in op.names.get(space, ())]
        for spelling in (name, *spellings):
            found.setdefault(_plain(spelling.rpartition(".")[2]), set()).add(name)
    return found


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
