"""What an optimizer keeps for each parameter, which Paddle calls accumulators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import paddle

from ampbridge.adapters.low_storage import is_moment
from ampbridge.errors import UnsupportedError
from ampbridge_paddle._private import method
from ampbridge_paddle.autocast.dtypes import is_float32

Tensor = Any

# Those that remember nothing beside their slots, which Paddle calls accumulators.
KNOWN = (
    paddle.optimizer.SGD, paddle.optimizer.Momentum, paddle.optimizer.Adam, paddle.optimizer.AdamW,
    paddle.optimizer.RMSProp, paddle.optimizer.Adagrad, paddle.optimizer.Adadelta,
    paddle.optimizer.Adamax, paddle.optimizer.Lamb, paddle.optimizer.NAdam, paddle.optimizer.RAdam,
    paddle.optimizer.ASGD, paddle.optimizer.Rprop,
)  # fmt: skip

# NAdam and RAdam have these powers and products in the shape of a parameter; others in the shape [1], which
# may be that of a parameter too.
_COUNTERS = frozenset({
    "beta1_pow_acc", "beta2_pow_acc", "beta1_pow", "beta2_pow", "momentum_decay_pow", "mu_product", "rho",
})  # fmt: skip


def check_known(optimizer: Any) -> None:
    """Refuse an optimizer that is of no class in ``KNOWN``."""
    if not isinstance(optimizer, KNOWN):
        raise UnsupportedError(
            f"What a {type(optimizer).__name__} remembers is not known; known are "
            f"{', '.join(kind.__name__ for kind in KNOWN)}.\n"
            "Hint: paddle.optimizer.AdamW(1e-3, parameters=model.parameters())"
        )


def slots_of(optimizer: Any, parameter: Tensor) -> dict[str, Tensor]:
    """The accumulators of ``parameter`` by their names, without the prefix of the optimizer's name."""
    key = key_of(optimizer, parameter)
    prefix = method("Optimizer", optimizer, "_name")
    return {
        name if prefix is None else name.removeprefix(f"{prefix}_"): by_parameter[key]
        for name, by_parameter in method("Optimizer", optimizer, "_accumulators").items()
        if key in by_parameter
    }


def key_of(optimizer: Any, parameter: Tensor) -> str:
    """The name under which Paddle keeps the parameter's accumulators: its master's, if it has one."""
    masters = method("Optimizer", optimizer, "_master_weights")
    name: str = masters.get(parameter.name, parameter).name
    return name


def moments_of(optimizer: Any, parameters: Iterable[Tensor]) -> list[Tensor]:
    """The float32 slots that have a number for each one of their parameter's, without counters."""
    return [
        slot
        for parameter in parameters
        for name, slot in slots_of(optimizer, parameter).items()
        if name not in _COUNTERS and is_moment(slot, parameter) and is_float32(slot)
    ]
