"""O2 where low precision is simulated: parameters are read rounded, their storage is the master."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import paddle

from ampbridge.errors import UnsupportedError
from ampbridge.policy import Policy
from ampbridge_paddle import low_parameters
from ampbridge_paddle.gradients import parameters as parameters_of
from ampbridge_paddle.subclassing import Mixin, mix_in, take_out

Tensor = Any


class RoundsAfterSteps(Mixin):
    """Mixed into optimizers that step low-precision parameters without masters."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        result = super().step(*args, **kwargs)  # type: ignore[misc]
        low_parameters.round_storage(parameters_of(self))
        return result

    def minimize(self, *args: Any, **kwargs: Any) -> Any:
        result = super().minimize(*args, **kwargs)  # type: ignore[misc]
        low_parameters.round_storage(parameters_of(self))
        return result


class SimulatedO2:
    """See ``ParametersAtO2``."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        policy: Policy,
        optimizer: Any,
    ) -> None:
        if not policy.master_weights:
            _check_that_it_can_round(optimizer, policy)
        self._parameters = list(parameters)
        self._dtype, self._has_masters = policy.dtype, policy.master_weights
        self._optimizer = None if policy.master_weights else weakref.ref(optimizer)
        self._make_low()
        if not policy.master_weights:
            mix_in(RoundsAfterSteps, optimizer)

    def _make_low(self) -> None:
        low_parameters.make_low(self._parameters, self._dtype, self._has_masters)

    def serves(self, optimizer: Any) -> bool:
        return self._has_masters or isinstance(optimizer, RoundsAfterSteps)

    def masters(self) -> dict[str, Tensor]:
        return {}  # the parameters' own storage

    def release(self, model: Any) -> None:
        low_parameters.make_full(self._parameters)
        optimizer = self._optimizer and self._optimizer()
        if optimizer is not None and not low_parameters.without_masters(parameters_of(optimizer)):
            take_out(RoundsAfterSteps, optimizer)

    # A copy is one of the model, whose parameters are other tensors; the optimizer steps the first.

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_optimizer": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._make_low()


def _check_that_it_can_round(optimizer: Any, policy: Policy) -> None:
    if isinstance(optimizer, paddle.optimizer.Optimizer):
        return
    given = "no optimizer" if optimizer is None else f"a {type(optimizer).__name__}"
    msg = (
        f"{policy!r}: without masters parameters are rounded after each step of the optimizer, and "
        f"{given} was passed.\n"
        "Hint: model, optimizer = amp.decorate(model, optimizer, policy), with a paddle.optimizer "
        "one; or master_weights=True."
    )
    raise UnsupportedError(msg)
