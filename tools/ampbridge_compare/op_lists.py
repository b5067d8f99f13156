"""The default op lists of each framework beside those of a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ampbridge.policies import op_table
from ampbridge.policies.native_lists import OWN, own_policy
from ampbridge.policies.policy import Policy


@dataclass(frozen=True)
class OpLists:
    """The ops for which not all lists have the same rule.

    Attributes:
        columns: "the recipe", and frameworks that have lists of their own.
        rules: op -> column -> "allow", "deny" or "promote"; in parentheses the rule for ops that are
            on no list: "(follow)" its inputs' dtypes, "(promote)" to the widest, "(full)" float32.
        used: ops that the workload was seen to run.
    """

    columns: tuple[str, ...]
    rules: Mapping[str, Mapping[str, str]]
    used: frozenset[str]

    @classmethod
    def of(cls, policy: Policy, backends: Iterable[str], used: Iterable[str]) -> OpLists:
        """At O0 there is no list to look at; with ``lists="native"`` none of the recipe's."""
        if policy.level == "O0":
            return cls((), {}, frozenset())
        policies = {"the recipe": policy} if policy.lists != "native" else {}
        policies |= {name: own_policy(name, policy) for name in backends if name in OWN}
        lists = {name: each.op_list for name, each in policies.items()}
        differing = [
            op for op in op_table.ops() if len({each.category(op) for each in lists.values()}) > 1
        ]
        return cls(
            tuple(lists),
            {op: {name: _rule(each, op) for name, each in lists.items()} for op in differing},
            frozenset(used),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "columns": list(self.columns),
            "ops": {op: {"used": op in self.used, **row} for op, row in self.rules.items()},
        }


def _rule(rules: op_table.OpList, op: str) -> str:
    listed = op in rules.allow | rules.deny | rules.promote
    return rules.category(op) if listed else f"({rules.unlisted})"
