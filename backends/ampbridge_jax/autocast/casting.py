"""The region: a trace that casts, and the replacements that stand while it is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import jax

from ampbridge.adapters.process_setting import cannot_round, rounds_to_tf32
from ampbridge.policies import function_ops
from ampbridge.policies.policy import Policy
from ampbridge_jax.autocast.rules import ALL_FLOAT32, UNTOUCHED, rules_of
from ampbridge_jax.autocast.whole_ops import active_rules, regions, under_rules


@contextmanager
def region(policy: Policy) -> Iterator[None]:
    """See ``Backend.autocast``."""
    if policy.float32 != "default":
        with float32(policy), region(policy.replace(float32="default")):
            yield
        return
    rules = rules_of(policy)
    outer = active_rules()
    if rules is ALL_FLOAT32 and outer is None:
        yield  # there is nothing to take back
        return
    with function_ops.standing(rules.functions), regions.region(outer), under_rules(rules):
        yield


def float32(policy: Policy) -> AbstractContextManager[None]:
    """See ``Backend.float32``. JAX traces it as a parameter of each product, that of its gradient too."""
    if rounds_to_tf32(policy):
        raise cannot_round("jax")
    name = "float32" if policy.float32 == "ieee" else "tensorfloat32"
    block: AbstractContextManager[None] = jax.default_matmul_precision(name)
    return block


@contextmanager
def outside_of_regions() -> Iterator[None]:
    """A block in which no op is cast."""
    if active_rules() is None:
        yield
        return
    with under_rules(UNTOUCHED):
        yield
