"""Op lists to look at: what a list set says, where several differ, why, and names across frameworks.

A list set is named as in ``paddle``, ``paddle:O2``, ``tensorflow:bfloat16`` or ``torch:O1:float16``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ampbridge.errors import ArgumentError, PolicyError, listed, slips
from ampbridge.errors.slips import did_you_mean, meant
from ampbridge.policies import op_table
from ampbridge.policies.op_table import PREFIXES, Op, OpList
from ampbridge.policies.paddle_names import paddle_list, paddle_names
from ampbridge.policies.policy import LOW_DTYPES, Policy
from ampbridge.reports.printing import Table

WITH_LISTS = tuple(name for name in op_table.LIST_SETS if name != "native")
_LEVELS = ("O1", "O2")
_DEVICES = {"torch": "cuda"}
"""The device whose lists they are, where a framework has others too: it may be said."""

# List set -> the framework under whose names its ops are shown.
_NAMES = {"torch": "torch", "paddle": "paddle", "tensorflow": "tf"}

# What becomes of an op that no list names.
_UNLISTED = {
    "follow": "follows its inputs, the widest dtype if they differ",
    "promote": "runs in the widest dtype of its inputs",
    "full": "runs in float32",
}


# -- which lists


@dataclass(frozen=True)
class Lists:
    """The lists of a list set at a level, for a dtype."""

    list_set: str
    level: str = "O1"
    dtype: str = "float16"

    @classmethod
    def parse(cls, text: str) -> Lists:
        """``"paddle:O1:float16"``; level and dtype may be left out.

        Raises:
            PolicyError: for a part that is none.
        """
        list_set, *parts = text.split(":")
        if list_set not in WITH_LISTS:
            raise PolicyError(_no_list_set(text, list_set))
        found: dict[str, str] = {}
        for part in parts:
            if part == _DEVICES.get(list_set) and not found:
                continue
            key = "level" if part in _LEVELS else "dtype"
            if part not in (*_LEVELS, *LOW_DTYPES) or key in found:
                raise PolicyError(_no_part(text, list_set, part))
            found[key] = part
        return cls(list_set, **found)

    @property
    def rules(self) -> OpList:
        """As a policy that starts from them has them."""
        return Policy.from_dict(
            {"level": self.level, "dtype": self.dtype, "lists": self.list_set}
        ).op_list

    def rule(self, op: str) -> str:
        """``"allow"``, ``"deny"`` or ``"promote"``; in parentheses the rule for unlisted ops."""
        rules = self.rules
        if op in rules.allow | rules.deny | rules.promote:
            return rules.category(op)
        return f"({rules.unlisted})"

    def __str__(self) -> str:
        return f"{self.list_set}:{self.level}:{self.dtype}"


def _no_list_set(text: str, list_set: str) -> str:
    if list_set == "native":
        return (
            f"{text!r} has no lists: with lists='native' the framework decides op by op.\n"
            "Hint: ampbridge explain O1 torch shows what a backend does."
        )
    hint = did_you_mean(list_set, WITH_LISTS, slips.LIST_SETS, "ampbridge lists --help")
    return (
        f"Cannot read the lists {text!r}: no list set {list_set!r}; allowed are "
        f"{listed(WITH_LISTS)}.\n{hint}"
    )


def _no_part(text: str, list_set: str, part: str) -> str:
    allowed = [*_LEVELS, *LOW_DTYPES]
    found = meant(part, allowed, {**slips.LEVELS, **slips.DTYPES})
    example = f"{list_set}:O1:float16" if found is None else f"{list_set}:{found}"
    return (
        f"Cannot read the lists {text!r}: {part!r} is no level or dtype, or one too many; allowed "
        f"are a level ({listed(_LEVELS)}) and a dtype ({listed(LOW_DTYPES)}).\nHint: {example!r}"
    )


# -- show


@dataclass(frozen=True)
class ListedOps:
    """What lists say, op by op."""

    lists: Lists

    def to_dict(self) -> dict[str, Any]:
        rules = self.lists.rules
        return {
            "lists": str(self.lists),
            "source": op_table.source(self.lists.list_set),
            **{rule: sorted(getattr(rules, rule)) for rule in ("allow", "deny", "promote")},
            "unlisted": rules.unlisted,
        }

    def table(self) -> Table:
        data = self.to_dict()
        framework = _NAMES.get(self.lists.list_set)
        header = ("op", "rule", f"names in {framework}" if framework else "why")
        rows = [
            (name, rule, ", ".join(names_in(framework, op)) if framework else op.why)
            for rule in ("allow", "deny", "promote")
            for name in data[rule]
            for op in [op_table.ops()[name]]
        ]
        return Table(
            f"{self.lists}: {data['source']}",
            header,
            tuple(rows),
            (f"Every other op {_UNLISTED[data['unlisted']]}.",),
        )


# -- diff


@dataclass(frozen=True)
class Difference:
    """The ops for which lists have different rules; what follows its inputs counts as promoted."""

    lists: tuple[Lists, ...]

    def __post_init__(self) -> None:
        if len(self.lists) < 2:
            msg = f"A difference needs at least two list sets; got {len(self.lists)}.\n"
            raise ArgumentError(msg + "Hint: ampbridge lists diff torch paddle:O1")

    def ops(self) -> list[str]:
        """In the order of the op table."""
        rules = [each.rules for each in self.lists]
        return [op for op in op_table.ops() if len({each.category(op) for each in rules}) > 1]

    def to_dict(self) -> dict[str, Any]:
        return {
            "lists": [str(each) for each in self.lists],
            "ops": {op: {str(each): each.rule(op) for each in self.lists} for op in self.ops()},
        }

    def table(self) -> Table:
        ops, known = self.ops(), len(op_table.ops())
        rows = tuple((op, *(each.rule(op) for each in self.lists)) for op in ops)
        unlisted = {each.rules.unlisted for each in self.lists}
        legend = [f"({rule}): not listed, {_UNLISTED[rule]}." for rule in sorted(unlisted)]
        return Table(
            f"{len(ops)} of {known} ops differ",
            ("op", *map(str, self.lists)),
            rows,
            tuple(legend) if ops else (),
        )


# -- why


@dataclass(frozen=True)
class Reason:
    """Why an op needs which precision, what frameworks call it, and what each list set says."""

    op: Op

    def to_dict(self) -> dict[str, Any]:
        return {
            "op": self.op.name,
            "family": self.op.family,
            "why": self.op.why,
            "names": {space: list(names) for space, names in self.op.names.items()},
            "rules": {str(each): each.rule(self.op.name) for each in every_lists()},
        }

    def tables(self) -> tuple[Table, Table]:
        names = [(space, ", ".join(found)) for space, found in self.op.names.items()]
        rules = [
            (
                list_set,
                *(Lists(list_set, level, dtype).rule(self.op.name) for level, dtype in _KINDS),
            )
            for list_set in WITH_LISTS
        ]
        return (
            Table(
                f"{self.op.name} ({self.op.family}): {self.op.why}",
                ("namespace", "names"),
                tuple(names),
            ),
            Table(
                "Its rule; in parentheses the rule for unlisted ops",
                ("lists", *(f"{level}:{dtype}" for level, dtype in _KINDS)),
                tuple(rules),
            ),
        )


_KINDS = tuple((level, dtype) for level in _LEVELS for dtype in LOW_DTYPES)


def every_lists() -> list[Lists]:
    """Those of every list set, level and dtype."""
    return [Lists(list_set, level, dtype) for list_set in WITH_LISTS for level, dtype in _KINDS]


def why(name: str) -> Reason:
    """About an op, by any spelling that ``Policy(deny=...)`` takes.

    Raises:
        PolicyError: for a name that is none.
    """
    return Reason(op_table.op(op_table.resolve(name)))


# -- translate

FRAMEWORKS = tuple(PREFIXES)


@dataclass(frozen=True)
class Translation:
    """Op names of one framework, or canonical ones, in the words of another.

    Args:
        source: whose names they are; None for canonical ones.
        target: whose names are asked for.
        ops: each name with the canonical op that it stands for.
    """

    source: str | None
    target: str
    ops: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "from": self.source,
            "to": self.target,
            "ops": [
                {"name": name, "op": op, "names": list(names_in(self.target, op_table.ops()[op]))}
                for name, op in self.ops
            ],
            "remarks": self.remarks(),
        }

    def remarks(self) -> list[str]:
        """Of names that Paddle's own lists would take no notice of, or otherwise than one would think."""
        if self.source != "paddle":
            return []
        read = [paddle_list([name]) for name, _ in self.ops if "." not in name]
        return [
            f"{remark.message}\n  Hint: {remark.hint}"
            for reading in read
            for remark in [*reading.ignored.values(), *reading.notes.values()]
        ]

    def table(self) -> Table:
        data = self.to_dict()
        header = (self.source or "name", "op", self.target)
        rows = [
            (each["name"], each["op"], ", ".join(each["names"]) or "(none)") for each in data["ops"]
        ]
        return Table("", header, tuple(rows), tuple(data["remarks"]))


def translate(names: Iterable[str], source: str | None, target: str) -> Translation:
    """``names`` of the framework ``source`` in the words of ``target``.

    Raises:
        ArgumentError: for a framework that is none.
        PolicyError: for a name that ``source`` does not have.
    """
    for framework in filter(None, (source, target)):
        if framework not in FRAMEWORKS:
            hint = did_you_mean(framework, FRAMEWORKS, slips.FRAMEWORKS, "ampbridge lists --help")
            msg = f"No framework {framework!r}; allowed are {listed(FRAMEWORKS)}.\n"
            raise ArgumentError(msg + hint)
    spelled = [(name, f"{source}:{name}" if source else name) for name in names]
    return Translation(
        source, target, tuple((name, op_table.canonical(spelling)) for name, spelling in spelled)
    )


def names_in(framework: str, op: Op) -> tuple[str, ...]:
    """What ``framework`` calls ``op``; of Paddle's own the entries of its lists, then its functions."""
    if framework == "paddle":
        return (*paddle_names(op.name), *op.names.get("paddle_api", ()))
    found = [
        f"aten::{name}" if space == "aten" else name
        for space in PREFIXES[framework]
        for name in op.names.get(space, ())
    ]
    return tuple(dict.fromkeys(found))
