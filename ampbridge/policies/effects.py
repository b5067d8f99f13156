"""Rules that cannot act: those of a framework that has none, and of ops that it does not have."""

from __future__ import annotations

from collections.abc import Callable

from ampbridge.adapters.calling_code import warn
from ampbridge.errors import UnsupportedError
from ampbridge.policies import op_table
from ampbridge.policies.op_table import Op
from ampbridge.policies.policy import Policy


def refuse_native_lists(policy: Policy, framework: str) -> None:
    """Refuse ``lists="native"`` for a framework that casts nothing by itself."""
    if policy.lists == "native":
        raise UnsupportedError(
            f"lists='native': {framework} has no autocast of its own.\n"
            f"Hint: Policy({policy.level!r}, {policy.dtype!r}, lists='torch')"
        )


def warn_of_rules_without_effect(
    policy: Policy, backend: str, framework: str, prefix: str, has: Callable[[Op], bool]
) -> None:
    """Warn of the ops that the user listed and that stand for nothing which a region could cast.

    One policy serves all backends, so it may list what one of them lacks.

    Args:
        prefix: that of the framework's own ops, ``"tf"``; other frameworks' have no effect.
        has: whether the framework has something to cast that is this op of the table.
    """

    def acts(name: str) -> bool:
        canonical = op_table.ops().get(name)
        return op_table.own_prefix(name) in ("", prefix) if canonical is None else has(canonical)

    for field, names in (("allow", policy.allow), ("deny", policy.deny)):
        idle = [name for name in names if not acts(name)]
        if idle:
            warn(
                f"{field}={idle!r} has no effect on {framework}, which has no such op to cast.\n"
                "Hint: list the ops that run in its place; "
                f"amp.explain(policy, {backend!r}) has those that there are."
            )
