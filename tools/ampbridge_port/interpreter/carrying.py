"""What a loop carries from one turn to the next: names that a turn reads as the last one has left them.

Found in the text of the loop: ``x`` of ``while x < limit: x = x * 2``, and not that of ``x = 2.0``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import libcst as cst

Target = cst.Name | cst.Attribute

_Text = Callable[[cst.CSTNode], str]


def assigned(nodes: Iterable[cst.CSTNode], text: _Text) -> dict[str, Target]:
    """The names and attributes that ``nodes`` assign, by their text."""
    return _followed(nodes, text).written


def carried(nodes: Iterable[cst.CSTNode], text: _Text) -> list[Target]:
    """Those that are read, perhaps, before they are assigned."""
    found = _followed(nodes, text)
    return [target for name, target in found.written.items() if name in found.read]


def _followed(nodes: Iterable[cst.CSTNode], text: _Text) -> _Turn:
    turn = _Turn(text)
    for node in nodes:
        node.visit(turn)
    return turn


class _Turn(cst.CSTVisitor):
    """One turn of a loop, in the order in which Python runs it."""

    def __init__(self, text: _Text) -> None:
        super().__init__()
        self._text = text
        self.read: set[str] = set()
        self.written: dict[str, Target] = {}
        self._fresh: set[str] = set()
        """What this turn has assigned whatever its conditions."""

    # -- reads

    def visit_Name(self, node: cst.Name) -> None:
        self._reads(node)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        self._reads(node)
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def _reads(self, node: Target) -> None:
        name = self._text(node)
        if name not in self._fresh:
            self.read.add(name)

    # -- writes

    def visit_Assign(self, node: cst.Assign) -> bool:
        node.value.visit(self)
        for each in node.targets:
            self._writes(each.target)
        return False

    def visit_AnnAssign(self, node: cst.AnnAssign) -> bool:
        if node.value is not None:
            node.value.visit(self)
            self._writes(node.target)
        return False

    def visit_AugAssign(self, node: cst.AugAssign) -> bool:
        node.target.visit(self)
        node.value.visit(self)
        self._writes(node.target)
        return False

    def visit_NamedExpr(self, node: cst.NamedExpr) -> bool:
        node.value.visit(self)
        self._writes(node.target)
        return False

    def visit_AsName(self, node: cst.AsName) -> bool:
        self._writes(node.name)
        return False

    def _writes(self, target: cst.BaseExpression) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._writes(element.value)
        elif isinstance(target, (cst.Name, cst.Attribute)):
            name = self._text(target)
            self.written.setdefault(name, target)
            self._fresh.add(name)
        else:
            target.visit(self)

    # -- what a turn may leave out

    def visit_If(self, node: cst.If) -> bool:
        node.test.visit(self)
        self._perhaps(node.body, node.orelse)
        return False

    def visit_For(self, node: cst.For) -> bool:
        node.iter.visit(self)
        before = set(self._fresh)
        self._writes(node.target)
        node.body.visit(self)
        self._fresh = before
        self._perhaps(node.orelse)
        return False

    def visit_While(self, node: cst.While) -> bool:
        node.test.visit(self)
        self._perhaps(node.body, node.orelse)
        return False

    def visit_Try(self, node: cst.Try) -> bool:
        self._perhaps(node.body, *node.handlers, node.orelse)
        if node.finalbody is not None:
            node.finalbody.visit(self)
        return False

    def visit_MatchCase(self, node: cst.MatchCase) -> bool:
        self._perhaps(node.body)
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    visit_ClassDef = visit_FunctionDef  # type: ignore[assignment]

    def _perhaps(self, *branches: cst.CSTNode | None) -> None:
        """Each may be left out: what it assigns may be as it was."""
        for branch in branches:
            before = set(self._fresh)
            if branch is not None:
                branch.visit(self)
            self._fresh = before
