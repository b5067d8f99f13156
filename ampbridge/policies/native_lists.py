"""What a framework's own casting does op by op, and how far Paddle's custom lists move it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ampbridge.policies import op_table
from ampbridge.policies.op_table import Category
from ampbridge.policies.paddle_names import looked_up, own_list, paddle_meaning, paddle_names
from ampbridge.policies.policy import Policy

# Framework -> the list set that is its own.
OWN: Mapping[str, str] = {"torch": "torch", "paddle": "paddle", "tensorflow": "tensorflow"}


@dataclass(frozen=True)
class PaddleLists:
    """``custom_white_list`` and ``custom_black_list`` of ``paddle.amp.auto_cast``, sorted.

    ``immovable``: names on Paddle's own lists that a policy wants on neither: custom lists move from
    one to the other alone.
    """

    white: tuple[str, ...]
    black: tuple[str, ...]
    immovable: tuple[str, ...]


def paddle_lists(policy: Policy) -> PaddleLists:
    """The custom lists that make ``paddle.amp.auto_cast`` follow an O1 or O2 policy, as far as it can."""
    white, black = (
        {name for op in ops for name in paddle_names(op)} for ops in (policy.allow, policy.deny)
    )
    immovable: set[str] = set()
    if policy.lists not in ("paddle", "native"):
        own_white = own_list("white", policy.level, policy.dtype)
        own_black = own_list("black", policy.level, policy.dtype)
        for name, rule in _wanted(policy).items():
            if rule == "allow" and name not in own_white:
                white.add(name)
            elif rule == "deny" and name not in own_black:
                black.add(name)
            elif rule == "promote" and name in own_white | own_black:
                immovable.add(name)
    return PaddleLists(*(tuple(sorted(names)) for names in (white - black, black, immovable)))


def _wanted(policy: Policy) -> Mapping[str, Category]:
    """The rule for every name that Paddle looks up."""
    rules = policy.native_rules("paddle")
    wanted = {name: rule for name, rule in rules.items() if paddle_meaning(name)}
    for part, rest in (("mean", "reduce_mean"), ("scale", "elementwise_mul")):
        wanted[part] = rules[rest]
    if policy.op_list.unlisted == "full":
        return {**dict.fromkeys(looked_up(), "deny"), **wanted}
    return wanted


def own_policy(framework: str, policy: Policy) -> Policy:
    """``policy`` with the op lists that the framework has by itself."""
    return policy.replace(lists=OWN[framework], allow=(), deny=())


def own_rules(framework: str, policy: Policy) -> Mapping[str, Category]:
    """The rule of the framework's own lists for every op that it has."""
    return wanted_rules(framework, own_policy(framework, policy))


def wanted_rules(framework: str, policy: Policy) -> Mapping[str, Category]:
    """The rule of ``policy`` for every op that the framework has, in the order of the op table."""
    spaces = op_table.PREFIXES[framework]
    rules = policy.op_list
    return {
        op.name: rules.category(op.name)
        for op in op_table.ops().values()
        if any(op.names.get(space) for space in spaces)
    }


def paddle_rules(policy: Policy) -> Mapping[str, Category]:
    """The rule for every op in Paddle under ``paddle_lists(policy)``.

    What is made of several ops is on no list, and has the rule that it has by Paddle's own.
    """
    lists = paddle_lists(policy)
    white, black = set(lists.white), set(lists.black)
    rules = dict(own_rules("paddle", policy))
    for op in rules:
        names = set(paddle_names(op))
        if names & black:
            rules[op] = "deny"
        elif names & white:
            rules[op] = "allow"
    return rules
