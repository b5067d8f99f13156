"""Between our policies and a framework's own: its casting op by op, and its precision objects.

``torch.autocast`` and Keras' ``DTypePolicy`` have a dtype and nothing besides; Paddle's functions take
lists as well. A model's part of a policy (``keep``, ``output_dtype``) is in none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampbridge.adapters import registry
from ampbridge.errors import ArgumentError, UnsupportedError, listed, slips
from ampbridge.errors.slips import meant
from ampbridge.policies import op_table
from ampbridge.policies.op_table import Category
from ampbridge.policies.paddle_names import looked_up, own_list, paddle_meaning, paddle_names
from ampbridge.policies.policy import Policy

# Frameworks with such objects. The list set of that name is their own.
OWN = ("torch", "paddle", "tensorflow")

# What a policy has where a framework has nothing to say it with. Its lists are its own then.
_PLAIN: Mapping[str, Any] = {
    "allow": (),
    "deny": (),
    "keep": (),
    "masters": "float32",
    "slots": "float32",
    "output_dtype": "float32",
    "execution": "native",
    "float32": "default",
}


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
    return policy.replace(lists=framework, allow=(), deny=())


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


def to_native(policy: Policy, framework: str, drop: Sequence[str]) -> Any:
    """What ``framework`` has for ``policy``. Refuses fields that it cannot follow, by name."""
    if framework not in OWN:
        found = meant(framework, OWN, slips.FRAMEWORKS)
        hint = "help(amp.Policy.to_native)" if found is None else f"policy.to_native({found!r})"
        raise ArgumentError(
            f"{framework!r} has no precision objects of its own; allowed are {listed(OWN)}.\n"
            f"Hint: {hint}"
        )
    fields = tuple(Policy.__dataclass_fields__)
    if isinstance(drop, str) or not set(drop) <= set(fields):
        msg = f"Passed drop={drop!r}; allowed are names of a policy's fields, {listed(fields)}.\n"
        raise ArgumentError(msg + "Hint: drop=['lists', 'keep']")
    beyond = list(_beyond(policy, framework))
    kept = {name: getattr(policy, name) for name in beyond if name not in drop}
    if kept:
        values = {k: list(v) if isinstance(v, tuple) else v for k, v in kept.items()}
        raise UnsupportedError(
            f"What {framework} has for a policy cannot follow "
            f"{', '.join(f'{name}={value!r}' for name, value in values.items())}.\n"
            f"Hint: policy.to_native({framework!r}, drop={sorted({*drop, *kept})!r}) gives these up; "
            f"amp.port.write(amp.Recipe(policy), {framework!r}) writes code that follows more."
        )
    changes = {name: value for name, value in _PLAIN.items() if name in drop}
    if "level" in drop and "level" in beyond:
        changes["level"] = "O1" if framework == "torch" else "O2"
    if "lists" in drop and framework != "paddle":  # which follows what it can of lists
        changes |= {"lists": "native", "allow": (), "deny": ()}
    return registry.backend(framework).native_policy(policy.replace(**changes))


def _beyond(policy: Policy, framework: str) -> Iterator[str]:
    """The fields of ``policy`` that ``framework`` cannot express."""
    # A region has no model in low precision, as in torch; Keras has such layers, and no regions.
    if policy.level == {"torch": "O2", "tensorflow": "O1"}.get(framework):
        yield "level"
    if policy.level != "O0" and policy.lists != "native":
        yield from _lists_beyond(policy, framework)
    if policy.keep:
        yield "keep"
    if policy.masters in ("kahan", "stochastic"):
        yield "masters"
    if policy.slots != "float32":
        yield "slots"
    if policy.output_dtype != "float32":
        yield "output_dtype"
    if policy.execution == "simulated":
        yield "execution"
    if policy.float32 != "default":
        yield "float32"


def _lists_beyond(policy: Policy, framework: str) -> Iterator[str]:
    """Which of ``lists``, ``allow`` and ``deny`` have an effect that the framework cannot be given."""
    if framework == "tensorflow":  # Keras casts by layers; the nearest lists are TensorFlow's
        if policy.lists != "tensorflow":
            yield "lists"
        yield from (name for name in ("allow", "deny") if getattr(policy, name))
        return
    if not _is_followed(policy.replace(allow=(), deny=()), framework):
        yield "lists"
    by_own_lists = policy.replace(lists=framework)
    for name, other in (("allow", "deny"), ("deny", "allow")):
        if not _is_followed(by_own_lists.replace(**{other: ()}), framework):
            yield name


def _is_followed(policy: Policy, framework: str) -> bool:
    """Whether every op runs as the policy says."""
    rules = paddle_rules(policy) if framework == "paddle" else own_rules(framework, policy)
    return rules == wanted_rules(framework, policy)


def from_native(native: Any) -> Policy:
    """The policy that a framework's own object stands for."""
    if isinstance(native, Mapping):  # Paddle has no object for it, but arguments of functions
        framework = "paddle"
    elif any(cls.__module__.startswith("keras.") for cls in type(native).__mro__):
        framework = "tensorflow"  # whose Keras it is
    else:
        framework = registry.framework_of(native)
    return registry.backend(framework).policy_of_native(native)
