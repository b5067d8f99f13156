"""How much of some code is about mixed precision, by its words and by what it calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from ampbridge_port.reader.source import Module, last_name, module_of, parents, text_of

WORDS = re.compile(
    r"auto_?cast|scaler|(?:\b|_)amp(?:\b|_)|amp_guard|mixed|fp16|bf16|float16|\bhalf\b|LossScale|loss_scal"
    r"|GradScaler|set_global_policy|dtype_policy|MixedPrecision|decorate\(|precision|Accelerator|deepspeed"
    r"|clip_?grad|grad_?clip|clip_by|clip_?norm|clip_?value|\.compile\("
    r"|\.grad(?:\.data)?(?:\.\w+_\(| *[*/]?= )",
    re.I,
)
SWITCH = re.compile(
    r"(?:^|_)(?:fp16|bf16|float16|half|amp|autocast|mixed(?:_precision)?)(?:$|_)", re.I
)
"""Names of constants that switch mixed precision on."""
TRAINS = re.compile(r"backward|\.step\(|minimize|apply_gradients|\.fit\(|train", re.I)
CALLED = re.compile(r"\b\w+(?=\()")


class Words:
    """What is known of the modules of a program before they are followed; shared by all runs."""

    def __init__(self) -> None:
        self.counted: set[str] = set()
        """Attributes that are counted up somewhere."""
        self.counted_globals: set[str] = set()
        self._about: dict[str, bool] = {}
        self._defined: dict[str, list[ast.AST]] = {}
        self._wordy: dict[int, bool] = {}
        self._scores: dict[int, int] = {}
        self._calls: dict[int, set[str]] = {}
        self._resets: dict[int, set[tuple[str, str]]] = {}
        self._changed_in: dict[int, list[tuple[ast.AST, bool]]] = {}
        self._assigned_in: dict[int, tuple[list[Any], bool]] = {}
        self._seen: set[int] = set()

    def add(self, module: Module) -> None:
        """Look at the definitions of a module, and at what it counts up."""
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        any_words = bool(WORDS.search(module.text))
        for node in module.nodes:
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
                self.counted.add(node.target.attr)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                if _goes_on(node) and _happens_again(node, node.targets[0]):
                    self.counted.add(node.targets[0].attr)
            elif isinstance(node, ast.Global):
                function = next((p for p in parents(node) if isinstance(p, ast.FunctionDef)), None)
                for each in ast.walk(function) if function is not None else ():
                    name = last_name(each.targets[0]) if isinstance(each, ast.Assign) else ""
                    if name in node.names and _goes_on(each):
                        self.counted_globals.add(name)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                about = any_words and bool(WORDS.search(module.segment(node, whole=True)))
                self._about[node.name] = self._about.get(node.name, False) or about
                self._defined.setdefault(node.name, []).append(node)

    def score(self, nodes: Sequence[ast.AST]) -> int:
        """How much of some code is about mixed precision."""
        return sum(map(self._score_of, nodes))

    def _score_of(self, node: ast.AST) -> int:
        if id(node) not in self._scores:
            text = module_of(node).segment(node, whole=True)
            about = sum(self._about.get(each, False) for each in CALLED.findall(text))
            self._scores[id(node)] = len(WORDS.findall(text)) + about
        return self._scores[id(node)]

    def is_about(self, node: ast.AST) -> bool:
        """Whether code is about mixed precision or takes steps, or calls what does."""
        if id(node) not in self._wordy:
            self._wordy[id(node)] = False  # while it is asked for
            text = module_of(node).segment(node, whole=True)
            self._wordy[id(node)] = bool(WORDS.search(text) or TRAINS.search(text)) or any(
                self.is_about(each)
                for name in self.calls_of(node)
                for each in self._defined.get(name, ())
            )
        return self._wordy[id(node)]

    def calls_of(self, node: ast.AST) -> set[str]:
        """The last names of what code calls or passes on."""
        if id(node) not in self._calls:
            calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
            found = {last_name(each.func) for each in calls}
            found |= {a.id for each in calls for a in each.args if isinstance(a, ast.Name)}
            self._calls[id(node)] = found
        return self._calls[id(node)]

    # -- what code assigns

    def resets(self, node: ast.AST) -> set[tuple[str, str]]:
        """The names that are set back in the class or module around ``node``.

        Each is set to a number, or to the name that stands behind it.
        """
        while getattr(node, "_parent", None) is not None and not isinstance(node, ast.ClassDef):
            node = node._parent  # type: ignore[attr-defined]
        if id(node) not in self._resets:
            self._resets[id(node)] = found = set()
            for each in ast.walk(node):
                if not isinstance(each, ast.Assign):
                    continue
                name, of = last_name(each.targets[0]), last_name(each.value)
                inside = any(isinstance(p, (ast.If, ast.For, ast.While)) for p in parents(each))
                if (isinstance(each.value, ast.Constant) and inside) or isinstance(
                    each.value, ast.BinOp
                ):
                    found.add((name, ""))
                elif of and inside:
                    found.add((name, of))
        return self._resets[id(node)]

    def changed_in(self, loop: ast.AST) -> list[tuple[ast.AST, bool]]:
        """What one turn of a loop leaves to the next, and whether it counts up: ``i += 1``."""
        if id(loop) not in self._changed_in:
            self._changed_in[id(loop)] = found = []
            inside = list(ast.walk(loop))
            assigned = [each for each in inside if isinstance(each, ast.Assign)]
            names = {n.id for each in assigned for n in _names(each.targets)}
            read: dict[str, int] = {}
            for each in inside:
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                    read[each.id] = min(each.lineno, read.get(each.id, each.lineno))
            found += [(each.target, True) for each in inside if isinstance(each, ast.AugAssign)]
            for node in assigned:
                carries = any(each.id in names for each in _names([node.value]))
                in_each_turn = getattr(node, "_parent", None) is loop
                for each in _names(node.targets):
                    if carries or (in_each_turn and read.get(each.id, node.lineno) < node.lineno):
                        found.append((each, _goes_on(node)))
        return self._changed_in[id(loop)]

    def assigned_in(self, node: ast.If | ast.For | ast.AsyncFor) -> tuple[list[Any], bool]:
        """What both ways of a condition assign, or the turns of a loop, and whether one returns."""
        if id(node) not in self._assigned_in:
            inside = [each for part in (*node.body, *node.orelse) for each in ast.walk(part)]
            found = [t for each in inside if isinstance(each, ast.Assign) for t in each.targets]
            by_name = (ast.Name, ast.Attribute)
            by_key = [t for t in found if isinstance(getattr(t, "slice", None), ast.Constant)]
            targets = [t for t in found if isinstance(t, by_name) or t in by_key]
            returns = any(isinstance(each, ast.Return) for each in inside)
            self._assigned_in[id(node)] = (targets, returns)
        return self._assigned_in[id(node)]


def _names(nodes: Sequence[ast.AST]) -> list[ast.Name]:
    return [each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)]


def _goes_on(node: Any) -> bool:
    """Whether what is assigned is made of what was there: ``x = min(x + 1, most)``."""
    target = text_of(node.targets[0])
    return any(
        isinstance(each, (ast.Name, ast.Attribute)) and text_of(each) == target
        for each in ast.walk(node.value)
    )


def _happens_again(node: ast.AST, target: ast.Attribute) -> bool:
    """Whether an assignment stands in a loop, or in a method that may be called again."""
    for each in parents(node):
        if isinstance(each, (ast.For, ast.While)):
            return True
        if isinstance(each, ast.FunctionDef):
            return each.name != "__init__" and text_of(target.value) == "self"
    return False
