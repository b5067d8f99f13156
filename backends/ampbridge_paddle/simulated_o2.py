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
Buffer = tuple[Any, str]
"""A layer and the name of one of its buffers."""


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
        buffers: Sequence[Buffer],
        policy: Policy,
        optimizer: Any,
    ) -> None:
        if not policy.master_weights:
            _check_that_it_can_round(optimizer, policy)
        self._parameters, self._buffers = list(parameters), list(buffers)
        self._dtype, self._has_masters = policy.dtype, policy.master_weights
        self._optimizer = None if policy.master_weights else weakref.ref(optimizer)
        self._make_low()
        self.refresh()
        if not policy.master_weights:
            mix_in(RoundsAfterSteps, optimizer)

    def _make_low(self) -> None:
        low_parameters.make_low(self._parameters, self._dtype, self._has_masters)

    def refresh(self) -> None:
        """Buffers are replaced by assignment."""
        new = [x for x in self._present_buffers() if low_parameters.low_dtype_of(x) is None]
        low_parameters.make_low(new, self._dtype, has_master=True)

    def serves(self, optimizer: Any) -> bool:
        return self._has_masters or isinstance(optimizer, RoundsAfterSteps)

    def masters(self) -> dict[str, Tensor]:
        return {}  # the parameters' own storage

    def release(self) -> None:
        low_parameters.make_full([*self._parameters, *self._present_buffers()])
        optimizer = self._optimizer and self._optimizer()
        if optimizer is not None and not low_parameters.without_masters(parameters_of(optimizer)):
            take_out(RoundsAfterSteps, optimizer)

    def _present_buffers(self) -> list[Tensor]:
        # Not by the attribute, which is a traced value while a program is being traced.
        return [
            dict(layer.named_buffers(include_sublayers=False))[name]
            for layer, name in self._buffers
        ]

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
