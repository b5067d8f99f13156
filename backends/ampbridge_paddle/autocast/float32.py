"""``Policy.float32``: Paddle's switches of cuBLAS and cuDNN, which belong to the process."""

from __future__ import annotations

from ampbridge.adapters.process_setting import Float32Setting
from ampbridge_paddle._private import private

_SWITCHES = ("cublas", "cudnn")


def read() -> tuple[bool, ...]:
    """Whether products, and convolutions, may run in TF32."""
    return tuple(private(f"paddle.base.core.get_{name}_switch")() for name in _SWITCHES)


def _put_back(state: tuple[bool, ...]) -> None:
    for name, allowed in zip(_SWITCHES, state, strict=True):
        private(f"paddle.base.core.set_{name}_switch")(allowed)


setting = Float32Setting(
    "paddle",
    read,
    lambda precision: _put_back((precision == "tf32",) * 2),
    _put_back,
    lambda: "paddle.jit.to_static" if private("paddle.base.framework.in_pir_mode")() else "",
)
