"""O2 where low precision is simulated: parameters are read rounded, their storage is the master."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle

from ampbridge.adapters.low_storage import (
    are_bfloat16,
    cast_since,
    keeps_low,
    no_moments,
    warn_of_rounded_slots,
    warn_of_rounded_weights,
)
from ampbridge.errors import CallOrderError, UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge_paddle.autocast.dtypes import is_float32
from ampbridge_paddle.autocast.rounding import round_to
from ampbridge_paddle.model import low_weights
from ampbridge_paddle.model.by_chance import CountsTensors, let_count, rounded_by_chance
from ampbridge_paddle.model.served_optimizers import (
    Watch,
    check_that_it_updates_one_by_one,
    stepping,
)
from ampbridge_paddle.model.slots import check_known, moments_of
from ampbridge_paddle.model.subclassing import take_out
from ampbridge_paddle.step.gradients import parameters as parameters_of

Tensor = Any


class StepsLowParameters(CountsTensors):
    """Mixed into optimizers that step 16-bit parameters in another way than float32 ones."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        with _updating(self):
            return super().step(*args, **kwargs)  # type: ignore[misc]

    def minimize(self, *args: Any, **kwargs: Any) -> Any:
        with _updating(self):
            return super().minimize(*args, **kwargs)  # type: ignore[misc]

    @paddle.no_grad()
    def _create_param_lr(self, param_and_grad: Any) -> Any:
        """The rate; of SGD in the parameter's dtype, as its kernel takes it on a GPU."""
        rate = super()._create_param_lr(param_and_grad)  # type: ignore[misc]
        policy = low_weights.policy_of(param_and_grad[0])
        if policy is None or not isinstance(self, paddle.optimizer.SGD):
            return rate
        # The others' parameters are float32 while they are updated.
        return round_to(rate, policy.dtype) if policy.masters in ("float32", None) else rate


@contextmanager
def _updating(optimizer: Any) -> Iterator[None]:
    _tell_of_what_was_written(optimizer)
    with stepping.during(True):
        yield
    _round_what_is_low(optimizer)


def _tell_of_what_was_written(optimizer: Any) -> None:
    """Warn of float32 values that somebody has put into weights or moments since the last update."""
    policies = [(p, low_weights.policy_of(p)) for p in parameters_of(optimizer)]
    low = [(p, policy) for p, policy in policies if policy is not None]
    for p, policy in low:
        if policy.variable_dtype != "float32" and _are_rounded_by([p], policy.dtype):
            hint = policy.replace(masters="float32")
            warn_of_rounded_weights(policy, "written in float32", repr(hint))
            break
    if low and _are_rounded_by(low_moments(optimizer), "bfloat16"):
        warn_of_rounded_slots(low[0][1], "bfloat16")


def _are_rounded_by(tensors: Iterable[Tensor], dtype: str) -> bool:
    """Whether any number would change; NaN does not. As a rule none would, as its bits show."""
    for x in tensors:
        values = x.detach()
        if dtype == "bfloat16" and is_float32(x) and are_bfloat16(np.from_dlpack(values)):
            continue
        if bool(((values != round_to(values, dtype)) & (values == values)).any()):
            return True
    return False


@paddle.no_grad()
def _round_what_is_low(optimizer: Any) -> None:
    """After an update: storage without masters, and by chance the moments that are to be low."""
    low_weights.round_storage(parameters_of(optimizer), optimizer)
    for moment in low_moments(optimizer):
        paddle.assign(rounded_by_chance(moment, optimizer), output=moment)


def low_moments(optimizer: Any) -> list[Tensor]:
    """The moments of ``optimizer`` that are bfloat16 numbers between its steps."""
    policies = [(p, low_weights.policy_of(p)) for p in parameters_of(optimizer)]
    low = [p for p, policy in policies if policy is not None and policy.slots != "float32"]
    return moments_of(optimizer, low)


@paddle.no_grad()
def _lower_moments(optimizer: Any, parameters: Sequence[Tensor], policy: Policy) -> None:
    """Round to nearest the moments that are there; warns if that loses digits."""
    moments = moments_of(optimizer, parameters)
    if _are_rounded_by(moments, policy.slots):
        warn_of_rounded_slots(policy, policy.slots)
    for moment in moments:
        paddle.assign(round_to(moment, policy.slots), output=moment)


class SimulatedO2:
    """The parameters of a model that are read rounded; its methods are those of ``NativeO2``."""

    def __init__(self, parameters: Sequence[Tensor], policy: Policy, optimizer: Any) -> None:
        self._parameters = list(parameters)
        self._policy = policy
        self._optimizers: list[weakref.ref[Any]] = []
        self._rounds = keeps_low(policy)
        if optimizer is not None or self._rounds:
            self.serve(optimizer)
        low_weights.make_low(self._parameters, policy)
        self._watch = Watch() if self._rounds else None

    @property
    def optimizers(self) -> list[Any]:
        """Those that are decorated with the model and step in another way."""
        present = [reference() for reference in self._optimizers]
        return [optimizer for optimizer in present if optimizer is not None]

    def serve(self, optimizer: Any) -> None:
        """Let one more optimizer step the parameters."""
        policy = self._policy
        if self._rounds and not isinstance(optimizer, paddle.optimizer.Optimizer):
            given = "no optimizer" if optimizer is None else f"a {type(optimizer).__name__}"
            raise UnsupportedError(
                f"{policy!r}: what it keeps in 16 bits is rounded after each step of the optimizer, "
                f"and {given} was passed.\n"
                "Hint: model, optimizer = amp.decorate(model, optimizer, policy), with a "
                f"paddle.optimizer one; or {policy.replace(masters='float32', slots='float32')!r}."
            )
        if policy.masters in ("kahan", "stochastic"):
            check_that_it_updates_one_by_one(optimizer, policy)
        if policy.slots != "float32":
            if isinstance(optimizer, paddle.optimizer.SGD):
                raise no_moments(policy, optimizer)
            check_known(optimizer)
            _lower_moments(optimizer, self._parameters, policy)
        if not self._steps_as_it_is(optimizer):
            self._optimizers.append(weakref.ref(optimizer))
            let_count(StepsLowParameters, optimizer)

    def serves(self, optimizer: Any) -> bool:
        return self._steps_as_it_is(optimizer) or any(x is optimizer for x in self.optimizers)

    def _steps_as_it_is(self, optimizer: Any) -> bool:
        return not (self._rounds or isinstance(optimizer, paddle.optimizer.SGD))

    def masters(self) -> dict[str, Tensor]:
        return {}  # the parameters' own storage

    def check_storage(self) -> None:
        """Refuse a model that was cast since, of which Paddle's backward pass knows no more than dtypes."""
        for p in self._parameters[:1]:
            if not is_float32(p):
                raise CallOrderError(
                    f"{cast_since(p.name, p.dtype, paddle.float32)} Its float32 values are gone.\n"
                    "Hint: amp.undecorate(model, optimizer); model.float(), and its weights loaded anew"
                )

    def release(self, model: Any) -> None:
        low_weights.make_full(self._parameters)
        for optimizer in self.optimizers:
            if not any(map(low_weights.low_dtype_of, parameters_of(optimizer))):
                take_out(StepsLowParameters, optimizer)

    # A copy is one of the model, whose parameters are other tensors; the optimizers step the first.

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_optimizers": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        low_weights.make_low(self._parameters, self._policy)
