"""Whether this device computes a policy natively, or whether low precision is simulated."""

from __future__ import annotations

from typing import Literal

import paddle

from ampbridge.adapters.calling_code import warn
from ampbridge.errors import SimulationWarning, UnsupportedError
from ampbridge.policies.policy import Policy


def on_cpu() -> bool:
    """Whether Paddle's present device is the CPU, where low precision is simulated."""
    device: str = paddle.device.get_device()
    return device == "cpu"


def of(policy: Policy) -> Literal["native", "simulated"]:
    """Simulated on CPU, where Paddle has no 16-bit kernels; native elsewhere, and at O0.

    Raises:
        UnsupportedError: for the other one.
    """
    if policy.level == "O0":
        return "native"
    if not on_cpu():
        refuse_simulation(policy)
        return "native"
    if policy.execution == "native":
        raise UnsupportedError(
            f"{policy!r}: PaddlePaddle has no native {policy.dtype} kernels on CPU.\n"
            "Hint: execution='simulated', or paddle.device.set_device('gpu')"
        )
    return "simulated"


def refuse_simulation(policy: Policy) -> None:
    if policy.execution == "simulated":
        raise UnsupportedError(
            f"{policy!r}: on {paddle.device.get_device()} PaddlePaddle casts natively; simulation is "
            "there for CPUs.\nHint: execution='auto', or paddle.device.set_device('cpu')"
        )


def check(policy: Policy) -> None:
    """Refuse an execution or a list set that this device cannot give.

    Raises:
        UnsupportedError: for what ``region`` would refuse.
    """
    if of(policy) == "simulated" and policy.lists == "native":
        raise UnsupportedError(
            f"{policy!r}: PaddlePaddle's own autocast does nothing on CPU, so lists='native' would "
            "train in float32.\n"
            f"Hint: Policy({policy.level!r}, {policy.dtype!r}, lists='paddle') follows its lists here."
        )


_warned = False


def warn_once() -> None:
    """Say that low precision is simulated; once a process."""
    global _warned
    if not _warned:
        _warned = True
        warn(
            "PaddlePaddle has no 16-bit kernels on CPU: low precision is simulated (values and "
            "gradients rounded, float32 storage). This is for rehearsal, it is not faster.\n"
            "Hint: warnings.simplefilter('ignore', ampbridge.SimulationWarning)",
            SimulationWarning,
        )
