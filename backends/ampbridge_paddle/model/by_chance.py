"""``masters="stochastic"`` and low ``slots``: what an optimizer has stepped is rounded by chance.

An optimizer counts the tensors that are. The count seeds the draws, in place of Paddle's generator, from
which a user's dropout goes on to draw; and it is saved with the optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle

from ampbridge.adapters import low_storage
from ampbridge_paddle._private import method
from ampbridge_paddle.model.subclassing import Mixin, mix_in

Tensor = Any

_COUNT = "_ampbridge_rounded_by_chance"
SAVED_AS = "rounded_by_chance"


class CountsTensors(Mixin):
    """Mixed into optimizers: the count is a part of Paddle's own state of them."""

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = super().state_dict()  # type: ignore[misc]
        return {**state, SAVED_AS: count} if (count := count_of(self)) else state

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        native = dict(state_dict)
        set_count(self, native.pop(SAVED_AS, 0))
        super().set_state_dict(native)  # type: ignore[misc]

    load_state_dict = set_state_dict


def let_count(kind: type[CountsTensors], optimizer: Any) -> None:
    """Mix ``kind`` into ``optimizer``, which goes on from the count of a state that was set before."""
    mix_in(kind, optimizer)
    left = method("Optimizer", optimizer, "_accumulators_holder")
    if SAVED_AS in left:
        set_count(optimizer, left.pop(SAVED_AS))


def count_of(optimizer: Any) -> int:
    """How many tensors were rounded by chance after a step of ``optimizer``."""
    count: int = vars(optimizer).get(_COUNT, 0)
    return count


def set_count(optimizer: Any, count: int) -> None:
    """Let ``count_of(optimizer)`` be ``count``."""
    if count != count_of(optimizer):
        setattr(optimizer, _COUNT, count)


def rounded_by_chance(x: Tensor, optimizer: Any) -> Tensor:
    """Float32 ``x``, which ``optimizer`` has stepped, as bfloat16 numbers."""
    set_count(optimizer, count_of(optimizer) + 1)
    # Paddle's generators on GPUs are linear: seeds in a row would draw what goes up in a row.
    seed = int(np.random.default_rng(count_of(optimizer)).integers(1, 2**31))
    draws = paddle.uniform(x.shape, "float32", 0, 0x10000, seed).astype("int32")
    draws = masked(draws, 0xFFFF)  # a float32 next to the upper end may be it
    bits = low_storage.rounded_by_chance(x.view("int32"), draws, paddle.where, masked)
    return bits.view("float32")


def masked(bits: Tensor, mask: int) -> Tensor:
    """``bits & mask``; Paddle's ``&`` takes tensors alone."""
    return bits & paddle.full([], mask, "int32")
