"""Which optimizers may step parameters that are kept in 16 bits: those that were decorated with them.

Others are refused while there are such parameters, where all updates of Paddle's optimizers pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import Context
from functools import wraps
from typing import Any

import paddle

from ampbridge.adapters.interception import Interception, Site
from ampbridge.adapters.low_storage import keeps_low, not_decorated_with
from ampbridge.adapters.scoped import Scoped
from ampbridge.errors import UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge_paddle._private import method
from ampbridge_paddle.model import compact_masters, low_weights
from ampbridge_paddle.model.subclassing import Mixin
from ampbridge_paddle.step.gradients import parameters as parameters_of
from ampbridge_paddle.step.hybrid_groups import without_wrappers

Optimizer = Any
Tensor = Any

ADAMS = (paddle.optimizer.Adam, paddle.optimizer.AdamW)
"""Their kernels take float32 gradients of 16-bit parameters."""


def check_that_it_updates_one_by_one(optimizer: Optimizer, policy: Policy) -> None:
    """Refuse an optimizer of which not all updates go through ``_create_optimization_pass``, one by one."""
    steps = [kind.step for kind in (paddle.optimizer.Optimizer, *ADAMS)]
    native = without_wrappers(optimizer)
    own_class = getattr(native, "_own_class", type(native))  # decorated already, with another model
    if own_class.step not in steps or method("Optimizer", native, "_use_multi_tensor"):
        raise UnsupportedError(
            f"{policy!r}: the optimizer has to update parameters one after the other, each of them "
            f"in float32, and this {own_class.__name__} does not.\n"
            "Hint: paddle.optimizer.AdamW(1e-3, parameters=model.parameters()), without "
            "use_multi_tensor; or masters='float32'."
        )


# -- the others

stepping: Scoped[bool] = Scoped("ampbridge_paddle steps", False)
"""Whether a decorated optimizer steps, perhaps by one that is inside of it."""


class Watch:
    """Others are refused as long as there is one of these, which the decoration of a model holds."""

    def __init__(self) -> None:
        self._region = _updates.region(None)
        Context().run(self._region.__enter__)  # in a context that nothing runs in

    def __reduce__(self) -> tuple[Any, ...]:
        return Watch, ()  # a copy of the model is watched too


def _check(optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
    if isinstance(optimizer, Mixin) or stepping.get():
        return
    for parameter in parameters:
        native, simulated = compact_masters.policy_of(parameter), low_weights.policy_of(parameter)
        if native is not None and native.masters is not None:
            raise not_decorated_with(optimizer, native)
        if simulated is not None and keeps_low(simulated):
            raise not_decorated_with(optimizer, simulated)


def _checked_pass(update: Any) -> Any:
    @wraps(update)
    def checked(self: Any, pairs: Any, *args: Any, **kwargs: Any) -> Any:
        _check(self, [p for p, _ in (pairs["params"] if isinstance(pairs, dict) else pairs)])
        return update(self, pairs, *args, **kwargs)

    return checked


def _checked_step(step: Any) -> Any:
    @wraps(step)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        _check(self, parameters_of(self))
        return step(self, *args, **kwargs)

    return checked


def _sites() -> Sequence[Site]:
    name, owner = "_create_optimization_pass", paddle.optimizer.Optimizer
    method("Optimizer", owner, name)  # the error of a name that is missing
    lbfgs = paddle.optimizer.LBFGS  # which assigns its parameters
    return [
        Site(owner, name, vars(owner)[name], _checked_pass(vars(owner)[name])),
        Site(lbfgs, "step", vars(lbfgs)["step"], _checked_step(vars(lbfgs)["step"])),
    ]


_updates: Interception[None] = Interception("ampbridge_paddle updates", _sites)
