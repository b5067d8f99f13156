"""Between our policies and the frameworks' own objects: what theirs can say of ours, and what not.

``torch.autocast`` and Keras' ``DTypePolicy`` have a dtype and nothing besides; Paddle's functions take
lists as well. A model's part of a policy (``keep``, ``output_dtype``) is in none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ampbridge.adapters import registry
from ampbridge.errors import ArgumentError, UnsupportedError, listed, slips
from ampbridge.errors.slips import meant
from ampbridge.policies.native_lists import OWN, own_rules, paddle_rules, wanted_rules
from ampbridge.policies.policy import Policy

# What a policy has where a framework has nothing to say it with. Its lists are its own then.
_PLAIN: Mapping[str, Any] = {
    "allow": (),
    "deny": (),
    "keep": (),
    "output_dtype": "float32",
    "execution": "native",
}


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
    if policy.output_dtype != "float32":
        yield "output_dtype"
    if policy.execution == "simulated":
        yield "execution"


def _lists_beyond(policy: Policy, framework: str) -> Iterator[str]:
    """Which of ``lists``, ``allow`` and ``deny`` have an effect that the framework cannot be given."""
    if framework == "tensorflow":  # Keras casts by layers; the nearest lists are TensorFlow's
        if policy.lists != "tensorflow":
            yield "lists"
        yield from (name for name in ("allow", "deny") if getattr(policy, name))
        return
    if not _is_followed(policy.replace(allow=(), deny=()), framework):
        yield "lists"
    by_own_lists = policy.replace(lists=OWN[framework])
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
