"""The region: while it is open, the ops of this thread run as a policy says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import tensorflow as tf

from ampbridge.adapters.interception import Site
from ampbridge.adapters.tracing import called_as_it_is, constant_result
from ampbridge.policies import function_ops
from ampbridge.policies.effects import warn_of_rules_without_effect
from ampbridge.policies.policy import POLICIES_REMEMBERED, Policy
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast import (  # noqa: F401 - some say what they replace, and no more
    execution,
    float32,
    functions,
    keras_layers,
    op_entry,
    simulation,
    traced_code,
)
from ampbridge_tensorflow.autocast.regions import REPLACEMENTS, active_rules, regions
from ampbridge_tensorflow.autocast.rules import Rules, rules_of
from ampbridge_tensorflow.fit import updates  # noqa: F401 - the same
from ampbridge_tensorflow.model import fitted


def region(policy: Policy) -> AbstractContextManager[None]:
    """Run ops by ``policy``; the inner of nested regions alone counts.

    O0 within another region is full float32; elsewhere it intercepts nothing.

    Raises:
        UnsupportedError: for ``lists="native"``: TensorFlow casts nothing by itself; and for what
            ``policy.float32`` needs and is not there.
    """
    opened = _region(policy)
    return opened if policy.float32 == "default" else float32.setting.around(opened, policy)


@contextmanager
def _region(policy: Policy) -> Iterator[None]:
    execution.check(policy)
    if policy.level == "O0" and active_rules() is None:
        yield
        return
    _warn_of_missing(policy)
    rules = rules_for(policy)
    if rules.simulated and policy.execution == "auto":
        execution.warn_once(policy)
    standing = function_ops.standing(rules.python)
    with standing, regions.region(rules), fitted.calls_seen(), explained(policy):
        yield


def explained(policy: Policy) -> AbstractContextManager[None]:
    """A block in which an error about the low dtypes of ``policy`` gets a hint."""
    return nullcontext() if policy.level == "O0" else _EXPLAINED


class _Explained(AbstractContextManager[None]):
    """Adds a hint to an error of Python code that no rule reaches."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not isinstance(error, (TypeError, ValueError, tf.errors.OpError)):
            return
        add_note = getattr(error, "add_note", None)  # of Python 3.11 and later
        if add_note is None or not _ABOUT_LOW_DTYPES.search(str(error)):
            return
        hint = (
            "Hint: Policy(..., deny=['tf:OP']) runs the op that raised in float32, "
            "deny=['module:function'] (or 'module:Class.__init__') the Python function that compared "
            "dtypes, and keep=['LAYER'] the layer whose values it was handed."
        )
        if hint not in getattr(error, "__notes__", ()):
            add_note(hint)


_EXPLAINED = _Explained()

_ABOUT_LOW_DTYPES = re.compile(
    r"dtype.*float16|float16.*dtype|DT_HALF|DT_BFLOAT16|attr 'T'.*half|half (tensor|is provided)"
    r"|bfloat16 (tensor|is provided)"
)


def rules_for(policy: Policy) -> Rules:
    """The rules that a region of ``policy`` follows."""
    return rules_of(policy, execution.of(policy) == "simulated")


def differentiation(policy: Policy) -> AbstractContextManager[None]:
    """A block in which the gradients of a region of ``policy`` are built."""
    return nullcontext() if policy.level == "O0" else regions.region(rules_for(policy).gradients)


@lru_cache(POLICIES_REMEMBERED)
def _warn_of_missing(policy: Policy) -> None:
    warn_of_rules_without_effect(policy, "tensorflow", "TensorFlow", "tf", functions.has_effect)


# -- Python functions that are ops


@function_ops.answered_by
def _function_op(name: str, function: Callable[..., Any]) -> Callable[..., Any] | None:
    if not has_rule(name):
        return None

    @called_as_it_is
    def call(*args: Any, **kwargs: Any) -> Any:
        rules = active_rules()
        assert rules is not None
        converted = _private.with_autograph(function)
        return functions.run_whole(rules, rules.python[name], name, converted, args, kwargs)

    return call


@constant_result
def has_rule(name: str) -> bool:
    """Whether a region is open that allows or denies the function of this name."""
    rules = active_rules()
    return rules is not None and name in rules.python


# -- what stands in the place of what

made: dict[_private.PrivateName, Site] = {}
"""Where the region that was opened last has replaced a private name."""


def find_sites() -> Sequence[Site]:
    """The places that a region replaces; made anew where somebody else has replaced one since."""
    sites = []
    for name in _private.PRIVATE_NAMES:
        place = _private.find(name)
        if place is None or name not in REPLACEMENTS:
            continue
        site = made.get(name)
        if site is None or site.original is not place.value:
            site = made[name] = Site(*place, REPLACEMENTS[name](place.value))
        sites.append(site)
    return [*sites, *functions.sites().find()]
