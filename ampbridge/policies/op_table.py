"""The canonical ops, their names in each framework, and the allow/deny lists of each level.

All of it is data: ``data/ops.json`` (ops and names) and ``data/lists.json`` (list sets with their
sources). Both are read once, when a policy first asks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from ampbridge.errors import PolicyError, nearest, one_of

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
    "jax": ("jax", "jax_api"),
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
def data(file: str) -> Any:
    """A file of ``policies/data``, read once."""
    from importlib.resources import files  # a quarter of the time that importing ampbridge takes

    return json.loads((files("ampbridge.policies") / "data" / file).read_text(encoding="utf-8"))


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
        for entry in data("ops.json")["ops"]
    }


@cache
def _aliases() -> Mapping[str, str]:
    return {alias: e["name"] for e in data("ops.json")["ops"] for alias in e["aliases"]}


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
    owners = data("ops.json")["owners"].get(namespace, {})
    return {
        name: tuple(sorted(candidates, key=lambda op: op != owners.get(name, candidates[0])))
        for name, candidates in found.items()
    }


def resolve(name: str) -> str:
    """The name under which a policy keeps the op ``name``.

    The canonical one, if the op table has it under any spelling. Else a framework's own name with its
    prefix (``"torch:my_library::my_op"``, ``"tf:Betainc"``) or a Python function with its module
    (``"package.module:function"``) is kept; whether there is such a thing, ``backend.explain`` and the
    regions know.

    Raises:
        PolicyError: for anything else; it suggests the nearest names.
    """
    found = _in_table(name)
    if found is not None:
        return found
    prefix, _, rest = name.partition(":")
    if prefix in _OWN_PREFIXES and _FRAMEWORKS_OWN.fullmatch(rest):
        return f"{_OWN_PREFIXES[prefix]}:{_bare(rest)}"
    if prefix not in PREFIXES and _FUNCTION.fullmatch(name):
        return name
    raise _unknown(name)


def canonical(name: str) -> str:
    """The canonical name of ``name``, in any spelling of the op table; a PolicyError suggests the nearest."""
    found = _in_table(name)
    if found is None:
        raise _unknown(name)
    return found


def op(name: str) -> Op:
    """What is known of an op by the name under which a policy keeps it."""
    if name in ops():
        return ops()[name]
    prefix = own_prefix(name)
    whose = f"an op of {prefix}'s own" if prefix else "a Python function"
    return Op(
        name, "own", "", f"not in the op table: {whose}, followed where a policy lists it", {}
    )


def own_prefix(name: str) -> str:
    """The prefix of the framework that alone has the op of this name, as ``resolve`` gave it; or ''."""
    prefix, colon, _ = name.partition(":")
    return prefix if colon and prefix in PREFIXES else ""


def is_function(name: str) -> bool:
    """Whether the name that ``resolve`` gave is a Python function's."""
    return ":" in name and not own_prefix(name)


def no_such_op(name: str, where: str, known: Iterable[str]) -> PolicyError:
    """The error for a name behind a prefix or a module that is nothing there.

    Args:
        name: as the policy has it.
        where: what was searched: ``"torch 2.13.0"``, ``"module package.layers"``.
        known: what there is, without prefix or module.
    """
    prefix, _, rest = name.partition(":")
    close = [f"{prefix}:{each}" for each in nearest(rest, known)]
    msg = f"Unknown op {name!r}: {where} has no {rest!r}.\nHint: {one_of(close, _ALL_OPS)}"
    return PolicyError(msg)


# Behind which there may be ops that the table lacks -> the one that they are kept with. (Keras' are
# Python functions: ``keras.ops:correlate``.)
_OWN_PREFIXES: Mapping[str, str] = {
    **{prefix: prefix for prefix in ("torch", "tf", "paddle", "numpy", "jax")},
    "tensorflow": "tf",
}

_ALL_OPS = "`ampbridge.policies.op_table.ops()` lists the canonical names."

_FRAMEWORKS_OWN = re.compile(r"\w+(::\w+)?(\.\w+)*")
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.([^\W\d]\w*|<locals>))*")


def _in_table(name: str) -> str | None:
    if name in ops():
        return name
    if name in _aliases():
        return _aliases()[name]
    prefix, _, native = name.partition(":")
    return _spellings(prefix).get(_bare(native)) if prefix in PREFIXES else None


def _bare(native: str) -> str:
    return native.removeprefix("aten::").removeprefix("_C_ops.")


@cache
def _spellings(prefix: str) -> Mapping[str, str]:
    """What may stand behind ``prefix`` -> the canonical op."""
    found: dict[str, str] = {}
    for namespace in PREFIXES[prefix]:
        for spelling, candidates in native_names(namespace).items():
            found.setdefault(spelling, candidates[0])
            found.setdefault(spelling.rpartition(".")[2], candidates[0])
    return found


def _unknown(name: str) -> PolicyError:
    prefix, colon, _ = name.partition(":")
    if colon and prefix in PREFIXES:
        return no_such_op(name, "the op table", _spellings(prefix))
    without_its_prefix = [
        f"{prefix}:{name}"
        for prefix in ("torch", "paddle", "tf", "jax")
        if any(name in native_names(namespace) for namespace in PREFIXES[prefix])
    ]
    close = nearest(name, [*ops(), *_aliases()])
    return PolicyError(
        f"Unknown op {name!r}; allowed are the canonical names, framework names with a prefix "
        f"({', '.join(f'{p}:' for p in PREFIXES)}), and functions with their module "
        "(package.module:function).\n"
        f"Hint: {one_of(close or without_its_prefix, _ALL_OPS)}"
    )


def source(list_set: str) -> str:
    """Where the list set was taken from."""
    if list_set == "native":
        return "the framework's own rules"
    return str(data("lists.json")[list_set]["source"])


@cache
def op_list(list_set: str, level: str, dtype: str) -> OpList:
    """The rules that ``list_set`` has at ``level`` ("O1" or "O2") for ``dtype``."""
    for entry in data("lists.json")[list_set]["lists"]:
        if level in entry["levels"] and dtype in entry["dtypes"]:
            allow, deny, promote = (frozenset(entry[k]) for k in ("allow", "deny", "promote"))
            return OpList(allow, deny, promote, entry["unlisted"])
    raise PolicyError(
        f"The list set {list_set!r} has no lists for level {level!r} and dtype {dtype!r}.\n"
        f"Hint: Policy({level!r}, {dtype!r}, lists='torch')"
    )
