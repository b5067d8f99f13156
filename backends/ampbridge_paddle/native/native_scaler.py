"""``paddle.amp.GradScaler``, from ours and to ours."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle

from ampbridge.adapters.calling_code import warn
from ampbridge.errors import ArgumentTypeError, UnsupportedError
from ampbridge.scaling.scaler import GradScaler
from ampbridge.scaling.scaler_state import FOREIGN
from ampbridge_paddle.autocast import execution


def native_scaler(state: Mapping[str, Any], optimizer: Any) -> Any:
    """See ``Backend.native_scaler``."""
    # Its setters refuse factors of 1; its ``load_state_dict`` would not.
    if not state["growth_factor"] > 1.0 > state["backoff_factor"]:
        raise UnsupportedError(
            f"paddle.amp.GradScaler has no growth_factor={state['growth_factor']!r} with "
            f"backoff_factor={state['backoff_factor']!r}: it grows by more than 1, and backs off by "
            "less.\nHint: GradScaler(dynamic=False) keeps the scale as it is."
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "AmpScaler can only be enabled", UserWarning)
        scaler = paddle.amp.GradScaler(enable=state["enabled"])
    if not state["enabled"]:
        return scaler
    if not scaler.is_enable():
        raise UnsupportedError(
            f"paddle.amp.GradScaler switches itself off on {paddle.device.get_device()!r}.\n"
            "Hint: paddle.device.set_device('gpu'), or go on with this GradScaler, which works here."
        )
    _, names = FOREIGN["paddle"]
    own = {theirs: state[ours] for theirs, ours in names.items()}
    scaler.load_state_dict({**own, "scale": np.array([state["scale"]], np.float32)})
    return scaler


def native_scaler_state(scaler: Any) -> Mapping[str, Any]:
    """See ``Backend.native_scaler_state``."""
    if not isinstance(scaler, paddle.amp.grad_scaler.AmpScaler):
        raise ArgumentTypeError(
            f"{type(scaler).__name__} is no paddle.amp.GradScaler.\n"
            "Hint: GradScaler.from_native(paddle.amp.GradScaler())"
        )
    if not scaler.is_enable():  # one that is off has no state
        if execution.on_cpu():
            warn(
                "This paddle.amp.GradScaler is off, as Paddle makes every one on a CPU, whose settings "
                "are lost then; the GradScaler made from it is off as well.\n"
                "Hint: amp.GradScaler.like('paddle', init_scale=2.0**16) scales on a CPU too."
            )
        return GradScaler.like("paddle", enabled=False).state_dict()
    return dict(scaler.state_dict())
