"""The canonical ops, their names in each framework, and the allow/deny lists of each level.

All of it is data: ``data/ops.json`` (ops and names) and ``data/lists.json`` (list sets with their
sources). Both are read once, when a policy first asks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from ampbridge.errors import PolicyError, nearest

Category = Literal["allow", "deny", "promote"]
Unlisted = Literal["follow", "promote", "full"]

LIST_SETS = ("torch", "paddle", "tensorflow", "safe", "native")

# The prefix a user writes before a framework's own op name, and the namespaces it is looked up in.
PREFIXES: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch", "aten"),
    "paddle": ("paddle", "paddle_ops", "paddle_api"),
    "tf": ("tensorflow", "tensorflow_api", "keras_ops", "keras_layers"),
    "tensorflow": ("tensorflow", "tensorflow_api", "keras_ops", "keras_layers"),
    "keras": ("keras_ops", "keras_layers"),
    "numpy": ("numpy",),
}


@dataclass(frozen=True)
class Op:
    """One canonical op. ``names`` maps a namespace to the framework's own spellings."""

    name: str
    family: str
    category: str
    why: str
    names: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class OpList:
    """The rules of one level and dtype.

    ``unlisted`` says what becomes of every other op: ``"follow"`` leaves it to the dtypes that
    arrive (the widest, where they are mixed), ``"promote"`` takes the widest input, ``"full"``
    keeps it in float32.
    """

    allow: frozenset[str]
    deny: frozenset[str]
    promote: frozenset[str]
    unlisted: Unlisted

    def category(self, op: str) -> Category:
        """The rule for canonical ``op``; ops that follow their inputs are ``"promote"``."""
        if op in self.allow:
            return "allow"
        if op in self.deny or (self.unlisted == "full" and op not in self.promote):
            return "deny"
        return "promote"


@cache
def _data(file: str) -> Any:
    from importlib.resources import files  # a quarter of the time that importing ampbridge takes

    return json.loads((files("ampbridge") / "data" / file).read_text(encoding="utf-8"))


@cache
def ops() -> Mapping[str, Op]:
    """Every canonical op by name."""
    return {
        entry["name"]: Op(
            entry["name"],
            entry["family"],
            entry["category"],
            entry["why"],
            {namespace: tuple(names) for namespace, names in entry["names"].items()},
        )
        for entry in _data("ops.json")["ops"]
    }


@cache
def _aliases() -> Mapping[str, str]:
    return {alias: e["name"] for e in _data("ops.json")["ops"] for alias in e["aliases"]}


@cache
def native_names(namespace: str) -> Mapping[str, tuple[str, ...]]:
    """Each framework spelling of ``namespace`` with the canonical ops it stands for.

    The first is the owner: the op that the spelling means when nothing else is said
    (TensorFlow's ``MatMul`` is ``matmul``, and also ``linear``, ``mm``, ...).
    """
    found: dict[str, list[str]] = {}
    for op in ops().values():
        for name in op.names.get(namespace, ()):
            found.setdefault(name, []).append(op.name)
    owners = _data("ops.json")["owners"].get(namespace, {})
    return {
        name: tuple(sorted(candidates, key=lambda op: op != owners.get(name, candidates[0])))
        for name, candidates in found.items()
    }


def resolve(name: str) -> str:
    """The canonical name of ``name``.

    ``name`` is canonical (``"softmax"``), an alias (``"dense"``), or a framework's own spelling
    with its prefix (``"paddle:reduce_sum"``, ``"tf:MatMul"``, ``"torch:aten::mm"``).

    Raises:
        PolicyError: If no such op is known; it suggests the nearest names.
    """
    if name in ops():
        return name
    if name in _aliases():
        return _aliases()[name]
    prefix, colon, native = name.partition(":")
    if colon and prefix in PREFIXES:
        return _resolve_native(name, prefix, native)
    close = nearest(name, [*ops(), *_aliases()]) or _owners_of_bare(name)
    msg = (
        f"Unknown op {name!r}; allowed are the canonical names and framework names with a prefix "
        f"({', '.join(f'{p}:' for p in PREFIXES)}).\n"
        f"Hint: {_did_you_mean(close)}"
    )
    raise PolicyError(msg)


def _resolve_native(name: str, prefix: str, native: str) -> str:
    native = native.removeprefix("aten::").removeprefix("_C_ops.")
    spellings: dict[str, str] = {}
    for namespace in PREFIXES[prefix]:
        for spelling, candidates in native_names(namespace).items():
            spellings.setdefault(spelling, candidates[0])
            spellings.setdefault(spelling.rpartition(".")[2], candidates[0])
    if native in spellings:
        return spellings[native]
    close = [f"{prefix}:{n}" for n in nearest(native, spellings)]
    msg = (
        f"Unknown op {name!r}: {native!r} is no name of {prefix!r} in the op table.\n"
        f"Hint: {_did_you_mean(close)}"
    )
    raise PolicyError(msg)


def _owners_of_bare(name: str) -> list[str]:
    """Prefixed spellings for a framework name that was written without its prefix."""
    return [
        f"{prefix}:{name}"
        for prefix in ("torch", "paddle", "tf")
        if any(name in native_names(namespace) for namespace in PREFIXES[prefix])
    ]


def _did_you_mean(close: Iterable[str]) -> str:
    options = list(close)
    if options:
        return f"did you mean {' or '.join(map(repr, options))}?"
    return "`ampbridge.oplists.ops()` lists the canonical names."


@cache
def source(list_set: str) -> str:
    """Where the list set was taken from."""
    if list_set == "native":
        return "whatever the framework does by itself"
    return str(_data("lists.json")[list_set]["source"])


@cache
def op_list(list_set: str, level: str, dtype: str) -> OpList:
    """The rules that ``list_set`` has at ``level`` ("O1" or "O2") for ``dtype``."""
    for entry in _data("lists.json")[list_set]["lists"]:
        if level in entry["levels"] and dtype in entry["dtypes"]:
            allow, deny, promote = (frozenset(entry[k]) for k in ("allow", "deny", "promote"))
            return OpList(allow, deny, promote, entry["unlisted"])
    msg = (
        f"The list set {list_set!r} has no lists for level {level!r} and dtype {dtype!r}.\n"
        f"Hint: Policy({level!r}, {dtype!r}, lists='torch')"
    )
    raise PolicyError(msg)
