"""Bfloat16 parameters that are their own masters, on a device that has 16-bit kernels.

Such a parameter is float32 while the optimizer updates it, and in 16 bits again before the next one is: no
float32 copy of all exists. Paddle's multi_precision is off. With "kahan" the 16 bits that rounding cuts
off are beside a parameter, as an attribute; with "stochastic" nothing is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import paddle

from ampbridge.adapters.low_storage import joined, split
from ampbridge.policies.policy import Policy
from ampbridge_paddle._private import method
from ampbridge_paddle.model.by_chance import CountsTensors, masked, rounded_by_chance
from ampbridge_paddle.step.gradients import parameters as parameters_of

Optimizer = Any
Tensor = Any

_POLICY, _REST = "_ampbridge_native_o2", "_ampbridge_rest"

SAVED_AS = "master_weights"
"""Where Paddle's state of an optimizer has the masters."""


def make_low(parameter: Tensor, policy: Policy) -> None:
    """Note that a decorated model holds ``parameter`` in 16 bits by ``policy``, whatever its masters are."""
    setattr(parameter, _POLICY, policy)


def forget(parameter: Tensor) -> None:
    """Take ``make_low`` and ``store`` back."""
    for attribute in (_POLICY, _REST):
        parameter.__dict__.pop(attribute, None)


def policy_of(parameter: Tensor) -> Policy | None:
    """The policy by which a decorated model holds ``parameter`` in 16 bits, or None."""
    policy: Policy | None = vars(parameter).get(_POLICY)
    return policy


def is_compact(parameter: Tensor) -> bool:
    """Whether ``parameter`` is its own master."""
    policy = policy_of(parameter)
    return policy is not None and policy.masters in ("kahan", "stochastic")


def has_rest(parameter: Tensor) -> bool:
    """Whether something is kept beside ``parameter``."""
    return vars(parameter).get(_REST) is not None


def values_of(parameters: Iterable[Tensor]) -> dict[str, Tensor]:
    """The float32 values, by name, of those ``parameters`` that something is kept beside of."""
    return {p.name: _value_of(p) for p in parameters if has_rest(p)}


@paddle.no_grad()
def _value_of(parameter: Tensor) -> Tensor:
    wide, rest = parameter.astype("float32"), vars(parameter).get(_REST)
    if rest is None:
        return wide
    bits = joined(wide.view("int32"), rest.astype("int32"), paddle.where, masked)
    return bits.view("float32")


def low_of(value: Tensor) -> Tensor:
    """What ``store`` keeps of float32 ``value`` in the parameter."""
    return split(value.view("int32"), paddle.where, masked)[0].view("float32").astype("bfloat16")


@paddle.no_grad()
def store(parameter: Tensor, value: Tensor) -> None:
    """Keep float32 ``value`` in ``parameter`` and beside it."""
    upper, rest = split(value.view("int32"), paddle.where, masked)
    setattr(parameter, _REST, rest.astype("int16"))
    _hold(parameter, upper.view("float32").astype("bfloat16"))


def _hold(parameter: Tensor, value: Tensor) -> None:
    """Let ``parameter`` have the memory and the dtype of ``value``, as ``Layer.to`` does."""
    held = method("Tensor", parameter, "get_tensor")()
    method("DenseTensor", held, "_share_data_with")(value.get_tensor())


class UpdatesInFloat32(CountsTensors):
    """Mixed into optimizers that step such parameters."""

    def _create_optimization_pass(self, pairs: Any, *args: Any, **kwargs: Any) -> Any:
        """Update one parameter after the other."""
        group = pairs if isinstance(pairs, dict) else None  # with settings of its own
        for p, grad in pairs if group is None else group["params"]:
            one = [(p, grad.astype("float32") if is_compact(p) else grad)]
            with _in_float32(p, self):
                super()._create_optimization_pass(  # type: ignore[misc]
                    one if group is None else {**group, "params": one}, *args, **kwargs
                )
        return []  # of a static graph it would be the ops

    def _create_regularization_of_grad(self, param: Any, *args: Any, **kwargs: Any) -> Any:
        """Let a decay be that of the float32 value."""
        decayed = param
        if has_rest(param):
            decayed = _value_of(param)
            decayed.regularizer = param.regularizer
        return super()._create_regularization_of_grad(  # type: ignore[misc]
            decayed, *args, **kwargs
        )

    def state_dict(self) -> dict[str, Any]:
        """With the float32 values as Paddle's multi_precision saves them."""
        state, values = super().state_dict(), values_of(parameters_of(self))
        return {**state, SAVED_AS: values} if values else state


@contextmanager
def _in_float32(parameter: Tensor, optimizer: Optimizer) -> Iterator[None]:
    """Let ``parameter`` be float32 in the block if it is its own master."""
    if not is_compact(parameter):
        yield
        return
    _hold(parameter, _value_of(parameter))
    try:
        yield
    finally:
        if has_rest(parameter):
            store(parameter, parameter)
        else:
            _hold(parameter, rounded_by_chance(parameter, optimizer).astype("bfloat16"))
