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
    """What ``framework`` has for ``policy``.

    Raises:
        ArgumentError: for a framework that has none, or a ``drop`` that names no field.
        UnsupportedError: naming the fields that it cannot follow.
    """
    if framework not in OWN:
        found = meant(framework, OWN, slips.FRAMEWORKS)
        msg = f"{framework!r} has no precision objects of its own; allowed are {listed(OWN)}.\n"
        hint = "help(amp.Policy.to_native)" if found is None else f"policy.to_native({found!r})"
        raise ArgumentError(f"{msg}Hint: {hint}")
    _check_dropped(drop)
    beyond = [name for name in _beyond(policy, framework) if name not in drop]
    if beyond:
        shown = ", ".join(f"{name}={_shown(getattr(policy, name))}" for name in beyond)
        raise UnsupportedError(
            f"What {framework} has for a policy cannot follow {shown}.\n"
            f"Hint: policy.to_native({framework!r}, drop={sorted({*drop, *beyond})!r}) gives these up; "
            f"amp.port.write(amp.Recipe(policy), {framework!r}) writes code that follows more."
        )
    return registry.backend(framework).native_policy(_without(policy, framework, drop))


def _check_dropped(drop: Sequence[str]) -> None:
    fields = tuple(Policy.__dataclass_fields__)
    if isinstance(drop, str) or not set(drop) <= set(fields):
        msg = f"Passed drop={drop!r}; allowed are names of a policy's fields, {listed(fields)}.\n"
        raise ArgumentError(msg + "Hint: drop=['lists', 'keep']")


def _shown(value: Any) -> str:
    return repr(list(value) if isinstance(value, tuple) else value)


def _without(policy: Policy, framework: str, drop: Sequence[str]) -> Policy:
    """``policy`` without what may be lost. Of lists, Paddle follows what it can."""
    changes = {name: value for name, value in _PLAIN.items() if name in drop}
    if "level" in drop and _level_beyond(policy, framework):
        changes["level"] = "O1" if framework == "torch" else "O2"
    if "lists" in drop and framework != "paddle":
        changes |= {"lists": "native", "allow": (), "deny": ()}
    return policy.replace(**changes)


# -- what is beyond a framework


def _beyond(policy: Policy, framework: str) -> Iterator[str]:
    """The fields of ``policy`` that ``framework`` cannot express."""
    if _level_beyond(policy, framework):
        yield "level"
    if policy.level != "O0" and policy.lists != "native":
        yield from _lists_beyond(policy, framework)
    if policy.keep:
        yield "keep"
    if policy.output_dtype != "float32":
        yield "output_dtype"
    if policy.execution == "simulated":
        yield "execution"


def _level_beyond(policy: Policy, framework: str) -> bool:
    """A region has no model in low precision, as in torch; Keras has such layers, and no regions."""
    return policy.level == {"torch": "O2", "tensorflow": "O1"}.get(framework)


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


# -- and back


def from_native(native: Any) -> Policy:
    """The policy that a framework's own object stands for.

    Raises:
        BackendNotFoundError, ArgumentTypeError: if it is none.
        UnsupportedError: if no policy says the same.
    """
    return registry.backend(_framework_of(native)).policy_of_native(native)


def _framework_of(native: Any) -> str:
    if isinstance(native, Mapping):  # Paddle has no object for it, but arguments of functions
        return "paddle"
    if any(cls.__module__.startswith("keras.") for cls in type(native).__mro__):
        return "tensorflow"  # whose Keras it is
    return registry.framework_of(native)
