"""Of the recipes that a file stands for, those that are meant: which train, in mixed precision, here.

A script that has an ``if use_amp:`` stands for two recipes, and nobody ports the one without mixed
precision. So alternatives are ranked, and those of the highest rank are the candidates:

1. those in mixed precision before those without;
2. of a training before an evaluation;
3. of an accelerator before a CPU, of one process before several, of the newest version before older ones;
4. by the defaults that stand in the file before others;
5. those of which nothing is unknown but, perhaps, the policy.

Equal recipes are one. ``Reading.alternatives`` has all of them.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ampbridge_port.reading import Alternative


@dataclass(frozen=True)
class Chosen:
    """The distinct recipes of a file: ``candidates``, and ``others`` that do not compete with them.

    Their conditions are those that make a difference.
    """

    candidates: tuple[Alternative, ...]
    others: tuple[Alternative, ...]

    @property
    def all(self) -> tuple[Alternative, ...]:
        """Those that ``--pick`` counts, from 1."""
        return self.candidates + self.others


def choose(alternatives: Sequence[Alternative]) -> Chosen:
    """The candidates among ``alternatives``."""
    ways = [(min(map(_rank, equal)), equal) for equal in _equal(alternatives)]
    ranked = sorted(ways, key=lambda each: each[0])
    distinct = [(rank, _as_one(equal)) for rank, equal in ranked]
    return Chosen(
        tuple(each for rank, each in distinct if rank == distinct[0][0]),
        tuple(each for rank, each in distinct if rank != distinct[0][0]),
    )


def _equal(alternatives: Iterable[Alternative]) -> list[list[Alternative]]:
    found: list[list[Alternative]] = []
    for each in alternatives:
        for equal in found:
            if (equal[0].settings, equal[0].unknown) == (each.settings, each.unknown):
                equal.append(each)
                break
        else:
            found.append([each])
    return found


def _as_one(equal: Sequence[Alternative]) -> Alternative:
    """Equal alternatives as the first of them, under the conditions that they share."""
    best = min(equal, key=_rank)
    shared = (c for c in best.conditions if all(c in each.conditions for each in equal))
    return replace(best, conditions=tuple(shared) or best.conditions)


# -- ranks


def _rank(alternative: Alternative) -> tuple[int, ...]:
    """The lower, the more likely it is meant."""
    conditions = [_parsed(text) for text in alternative.conditions]
    return (
        alternative.settings.get("policy.level") == "O0",
        *(sum(usual(each) is False for each in conditions) for usual in _USUAL),
        len(alternative.departures),
        sum(not key.startswith("policy.") for key in alternative.unknown),
    )


class _Condition(NamedTuple):
    """``subject`` compared by ``sign`` with the constant ``value``; "" if it is not compared."""

    subject: str
    sign: str
    value: Any
    holds: bool


_SIGNS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "==",
    ast.IsNot: "!=",
}


def _parsed(condition: str) -> _Condition:
    tree = _tree(condition)
    if tree is None:
        return _Condition(condition, "", None, True)
    node, holds = tree.body, True
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        node, holds = node.operand, not holds
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _SIGNS:
        sign = _SIGNS[type(node.ops[0])]
        if sign in ("!=", "not in"):
            sign, holds = {"!=": "==", "not in": "in"}[sign], not holds
        left, right = node.left, node.comparators[0]
        if isinstance(left, ast.Constant):  # "cuda" in device
            return _Condition(ast.unparse(right), f"has{sign}", left.value, holds)
        try:
            return _Condition(ast.unparse(left), sign, ast.literal_eval(right), holds)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
    return _Condition(ast.unparse(node), "", None, holds)


_TRAINS = re.compile(r"\b(?:is_|do_|self\.)?train(?:ing)?(?:_mode|_only)?$", re.IGNORECASE)
_EVALUATES = re.compile(r"(?:\b|_)(?:eval|evaluate|valid|infer|predict|export|test)(?:\b|_)", re.I)
_TRAINED = re.compile(r"(?<!model\.)(?:\b|_)(?:optimizer|optim|opt)$")
"""Of what trains; Keras' ``model.optimizer`` is None before ``compile``."""
_MODE = re.compile(r"(?:\b|_)(?:mode|phase|stage|split)\b")
ACCELERATOR = re.compile(
    r"compiled_with_(?:cuda|rocm)|cuda\.is_available|(?:use|with|has|is)_(?:gpu|cuda)\b|cuda\.device_count"
    r"|list_(?:logical|physical)_devices"
)
_NO_ACCELERATOR = re.compile(
    r"(?:use|with|has|is)_(?:cpu|xpu|npu|mlu|mkldnn|sdaa|gcu|iluvatar_gpu)\b|\bno_(?:cuda|gpu)\b|cpu_only"
    r"|compiled_with_(?:xpu|npu|custom_device)|(?:\b|_)(?i:tpus?)(?:\b|_)"
)
_DEVICE = re.compile(r"device|place\b|platform")
_RANK = re.compile(r"rank\b|get_rank|process_index|trainer_id|process_id")
_MAIN = re.compile(r"is_(?:main|master|local_main|world_process|rank_?0)")
_PROCESSES = re.compile(
    r"world_size|n_?ranks|num_trainers|trainers_num|trainer_count|n_gpus?\b|num_gpus?\b|gpu_num|device_num"
)
_SEVERAL = re.compile(
    r"\bdistributed$|use_(?:ddp|fleet|distributed)\b|(?:\b|_)(?:fleet|parallel|ddp)\b|DataParallel|no_sync"
    r"|get\(['\"](?:fleet|use_fleet|distributed)['\"]"
)
_VERSION = re.compile(r"version", re.IGNORECASE)
_OF_LIBRARY = re.compile(r"hasattr\((?:paddle|torch|tf|tensorflow|keras|amp)\b")


def _trains(each: _Condition) -> bool | None:
    """Whether a condition holds in a training; None if it says nothing of that."""
    if isinstance(each.value, str) and _MODE.search(each.subject):
        return each.holds is ("train" in each.value.lower())
    if each.sign == "==" and each.value is None and _TRAINED.search(each.subject):
        return not each.holds
    if each.sign == "" and _TRAINS.search(each.subject):
        return each.holds
    return not each.holds if each.sign == "" and _EVALUATES.search(each.subject) else None


def _accelerates(each: _Condition) -> bool | None:
    """Whether it holds on an accelerator of the usual kind."""
    if each.sign == "":
        if _NO_ACCELERATOR.search(each.subject):
            return not each.holds
        return each.holds if ACCELERATOR.search(each.subject) else None
    if each.sign == "in" and isinstance(each.value, (list, tuple)) and _DEVICE.search(each.subject):
        return each.holds is any(str(value).startswith(("gpu", "cuda")) for value in each.value)
    if isinstance(each.value, str) and _DEVICE.search(each.subject):
        return each.holds is each.value.startswith(("gpu", "cuda"))
    return None


def _is_alone(each: _Condition) -> bool | None:
    """Whether it holds in the first process, where there is but one."""
    if each.sign == "":
        if _SEVERAL.search(each.subject):
            return not each.holds
        return each.holds if _MAIN.search(each.subject) else None
    if _PROCESSES.search(each.subject):
        return _holds_of(1, each)
    return _holds_of(0, each) if _RANK.search(each.subject) else None


def _holds_of(number: int, each: _Condition) -> bool | None:
    """Whether a condition goes as it does where its subject is ``number``."""
    bound = each.value
    if each.sign == "in" and isinstance(bound, (list, tuple, set)):
        return each.holds is (number in bound)
    if isinstance(bound, bool) or not isinstance(bound, (int, float)) or each.sign not in _COMPARED:
        return None
    return each.holds is _COMPARED[each.sign](number, bound)


_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": lambda left, right: bool(left == right),
    "<": lambda left, right: bool(left < right),
    "<=": lambda left, right: bool(left <= right),
    ">": lambda left, right: bool(left > right),
    ">=": lambda left, right: bool(left >= right),
}


def _is_new(each: _Condition) -> bool | None:
    """Whether it holds in the newest version of a library."""
    if each.sign == "" and _OF_LIBRARY.search(each.subject):
        return each.holds
    if each.sign and _VERSION.search(each.subject):
        return each.holds is (each.sign in (">", ">="))
    if each.sign == "" and _VERSION.search(each.subject) and re.search("[<>]", each.subject):
        return each.holds is (">" in each.subject)  # of what is no literal: version.parse("2.4")
    return None


_USUAL = (_trains, _accelerates, _is_alone, _is_new)


# -- in words


def in_short(alternative: Alternative) -> str:
    """``O1:float16``, as far as it is known."""
    shown = [
        "?" if key in alternative.unknown else str(alternative.settings.get(key, usual))
        for key, usual in (("policy.level", "O1"), ("policy.dtype", "float16"))
    ]
    return "O0" if shown[0] == "O0" else ":".join(shown)


def numbered(shown: Sequence[Alternative]) -> list[str]:
    """A line for each: how to choose it, what it is, and where."""
    return [
        f"--pick {number}: {in_short(each)}{_what_else(each, shown)}{where(each)}"
        for number, each in enumerate(shown, 1)
    ]


def several(file: str, candidates: Sequence[Alternative]) -> str:
    """That a file stands for more than one recipe, and which."""
    lines = "".join(f"  {line}\n" for line in numbered(candidates))
    return f"{file} stands for {len(candidates)} recipes:\n{lines}"


def _what_else(alternative: Alternative, others: Sequence[Alternative]) -> str:
    """What tells an alternative from others of its level and dtype."""
    alike = [each for each in others if in_short(each) == in_short(alternative)]
    keys = dict.fromkeys(key for each in alike for key in (*each.settings, *each.unknown))
    told = [key for key in keys if key not in ("policy.lists", "scaler.like")]
    differing = [key for key in told if len({_of(each, key) for each in alike}) > 1]
    return "".join(f", {key} {_of(alternative, key)}" for key in differing[:_MOST_SHOWN])


def _of(alternative: Alternative, key: str) -> str:
    said = alternative.settings.get(key, "as usual")
    return "unknown" if key in alternative.unknown else str(said)


_MOST_SHOWN = 3


def where(alternative: Alternative) -> str:
    """``, where A and B``; "" without conditions."""
    joined = " and ".join(alternative.conditions)
    return f", where {joined}" if joined else ""


def _tree(text: str) -> ast.Expression | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in what the file says
        try:
            return ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
