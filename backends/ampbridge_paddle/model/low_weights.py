"""Parameters that are in low precision although their storage is float32: O2 where it is simulated.

The storage is the master, which optimizers step as they always do. Ops in a region read it rounded,
just as if it were a 16-bit tensor; outside of regions it reads as float32. Its gradient is rounded
before it gets to ``.grad``, as the gradient of a 16-bit parameter would be.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import paddle

from ampbridge.adapters.interrupts import LAST_OF_SEVERAL
from ampbridge.policies.policy import Policy
from ampbridge_paddle.autocast.rounding import round_to
from ampbridge_paddle.model.by_chance import rounded_by_chance
from ampbridge_paddle.step import gradient_hooks
from ampbridge_paddle.step.sparse_gradients import dense_values

Tensor = Any


class _Low(NamedTuple):
    """What is known about a low parameter."""

    policy: Policy
    hook: int | None
    """The number of our gradient hook."""


_LOW = "_ampbridge_low_parameter"

# A program that is being traced knows a parameter by its name alone.
_by_name: WeakValueDictionary[str, Tensor] = WeakValueDictionary()


def make_low(tensors: Iterable[Tensor], policy: Policy) -> None:
    """Let regions read ``tensors`` (float32) rounded to the dtype of ``policy``.

    Without a master the storage itself is rounded, now and by ``round_storage`` after each step.
    """
    for x in tensors:
        hook = None
        if not x.stop_gradient:
            hook = gradient_hooks.register(x, partial(_round_sum, dtype=policy.dtype))
        setattr(x, _LOW, _Low(policy, hook))
        _by_name[x.name] = x
    round_storage(tensors)


def make_full(tensors: Iterable[Tensor]) -> None:
    """Take ``make_low`` back; values stay as they are."""
    for x in tensors:
        low = x.__dict__.pop(_LOW, None)
        if low is not None and low.hook is not None:
            gradient_hooks.remove(x, low.hook)


def policy_of(x: Tensor) -> Policy | None:
    """The policy that the parameter ``x`` is low by, or None."""
    low = x.__dict__.get(_LOW)
    return None if low is None else low.policy


def low_dtype_of(x: Tensor) -> str | None:
    """The low precision in which regions read the parameter ``x``, or None."""
    policy = policy_of(x)
    return None if policy is None else policy.dtype


def read_like(x: Tensor, parameter: Tensor) -> Tensor:
    """Let regions read ``x``, which holds the values of ``parameter``, like that."""
    low = parameter.__dict__.get(_LOW)
    if low is not None:
        setattr(x, _LOW, low._replace(hook=None))
    return x


def low_dtype_by_name(name: str) -> str | None:
    """``low_dtype_of`` the parameter called ``name``."""
    x = _by_name.get(name)
    return None if x is None else low_dtype_of(x)


@paddle.no_grad()
def round_storage(tensors: Iterable[Tensor], stepped_by: Any = None) -> None:
    """Round, in place, those of ``tensors`` whose storage is kept in low precision, without masters.

    To nearest; what an optimizer has stepped, by chance if the policy says so.
    """
    for x in tensors:
        policy = policy_of(x)
        if policy is None or policy.variable_dtype == "float32":
            continue
        if stepped_by is not None and policy.masters == "stochastic":
            rounded = rounded_by_chance(x.detach(), stepped_by)
        else:
            rounded = round_to(x.detach(), policy.dtype)
        paddle.assign(rounded, output=x)


def _round_sum(grad: Tensor, dtype: str) -> Tensor:
    """A gradient hook. Each use of a parameter rounds its own gradient; this rounds their sum."""
    with paddle.no_grad(), LAST_OF_SEVERAL:
        return rounded_gradient(grad, dtype)


def rounded_gradient(grad: Tensor, dtype: str) -> Tensor:
    """Round ``grad``. Of a sparse one the rows that exist are rounded in place."""
    if not grad.is_selected_rows():
        return round_to(grad, dtype)
    values = dense_values(grad)
    paddle.assign(round_to(values, dtype), output=values)
    return grad
