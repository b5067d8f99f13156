"""Whether this device computes a policy natively, or whether low precision is simulated."""

from __future__ import annotations

from functools import cache
from typing import Literal

import tensorflow as tf

from ampbridge.adapters.calling_code import warn
from ampbridge.errors import SimulationWarning, UnsupportedError
from ampbridge.policies import hardware
from ampbridge.policies.policy import Policy


def of(policy: Policy) -> Literal["native", "simulated"]:
    """How a region of ``policy`` computes; see ``Backend.execution``."""
    if policy.level == "O0":
        return "native"
    if policy.execution != "auto":
        return policy.execution
    if has_accelerator():
        return "native"
    return hardware.auto_execution(lambda: has_fast_kernels(policy.dtype))


def check(policy: Policy) -> None:
    """Refuse a list set that TensorFlow does not have.

    Raises:
        UnsupportedError: for ``lists="native"``.
    """
    if policy.level != "O0" and policy.lists == "native":
        msg = (
            f"{policy!r}: TensorFlow casts nothing by itself, so lists='native' would be float32.\n"
            f"Hint: Policy({policy.level!r}, {policy.dtype!r}, lists='tensorflow') has the lists of "
            "TensorFlow's graph optimizer."
        )
        raise UnsupportedError(msg)


def has_accelerator() -> bool:
    """Whether TensorFlow computes on a GPU or a TPU here, where every 16-bit kernel is fast."""
    return bool(tf.config.get_visible_devices("GPU") or tf.config.list_physical_devices("TPU"))


def has_fast_kernels(dtype: str) -> bool:
    """Whether computing in ``dtype`` takes less time on this CPU than simulating it.

    bfloat16 is fast where the CPU has instructions for it; elsewhere oneDNN emulates it. float16 is
    not: Grappler fuses a product with its bias into a kernel that takes hundreds of times as long as
    float32's, and all the rest takes as long as the simulation.
    """
    return dtype == "bfloat16" and bool(_bfloat16_instructions())


_bfloat16_instructions = cache(hardware.bfloat16_instructions)


_warned = False


def warn_once(policy: Policy) -> None:
    """Warn once in a process that "auto" has chosen to simulate."""
    global _warned
    if hardware.asked_execution() != "auto" or _warned:
        return
    _warned = True
    msg = (
        f"TensorFlow's {policy.dtype} kernels are slower on this CPU than float32's: it is simulated "
        "(stored low, computed in float32, rounded once), which takes less time.\n"
        f"Hint: {policy.replace(execution='simulated')!r} says so without a warning; "
        "execution='native' runs TensorFlow's kernels."
    )
    warn(msg, SimulationWarning)
