"""Whether this device computes a policy natively, or whether low precision is simulated."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Literal

from ampbridge.adapters.calling_code import warn
from ampbridge.errors import SimulationWarning, UnsupportedError
from ampbridge.policies import hardware
from ampbridge.policies.policy import Policy
from ampbridge_torch import _private, devices


def of(policy: Policy) -> Literal["native", "simulated"]:
    """See ``Backend.execution``. Where an accelerator is in use, of that."""
    types = devices.in_use()
    on = types if policy.execution == "simulated" else types[-1:]
    return "simulated" if simulates(policy, on) else "native"


def simulates(policy: Policy, device_types: Collection[str]) -> bool:
    """Whether regions of ``policy`` simulate on the CPU. (Accelerators have their kernels.)

    "auto" simulates where torch's own kernels are not faster, or AMPBRIDGE_CPU_EXECUTION says so.

    Raises:
        UnsupportedError: for ``execution="simulated"`` on an accelerator alone, or with
            ``lists="native"``.
    """
    if policy.level == "O0" or policy.execution == "native":
        return False
    if policy.execution == "auto":
        return (
            policy.lists != "native"
            and "cpu" in device_types
            and hardware.auto_execution(lambda: has_fast_kernels(policy.dtype)) == "simulated"
        )
    if policy.lists == "native":
        raise UnsupportedError(
            f"{policy!r}: what torch.autocast does by itself are torch's own kernels.\n"
            f"Hint: {policy.replace(lists='torch')!r}"
        )
    if "cpu" not in device_types:
        raise UnsupportedError(no_simulation_on(*device_types))
    return True


def no_simulation_on(device_type: str) -> str:
    """Why nothing is simulated on an accelerator."""
    name = "CUDA" if device_type == "cuda" else f"the device {device_type!r}"
    return (
        f"execution='simulated': {name} has low-precision kernels; torch simulates on the CPU alone.\n"
        "Hint: policy.replace(execution='auto'), or model.to('cpu')"
    )


@cache
def has_fast_kernels(dtype: str) -> bool:
    """Whether this CPU multiplies matrices of ``dtype`` faster than those of float32.

    Without AVX512-BF16 or AMX torch's own kernels are 2 to 16 times slower than the simulation; with
    AVX512-FP16 they are as fast as it is in float16, and give other bits (docs/performance.md).
    """
    name = {"float16": "_is_amx_fp16_supported", "bfloat16": "_is_avx512_bf16_supported"}[dtype]
    supported = _private.lookup(name)
    return supported is not None and bool(supported())


_warned = False


def warn_once(policy: Policy) -> None:
    """Say, once in a process, that "auto" has chosen to simulate."""
    global _warned
    if policy.execution != "auto" or hardware.asked_execution() != "auto" or _warned:
        return
    _warned = True
    msg = (
        f"{policy.dtype} is simulated on this CPU: tensors are stored in it, each op computes in "
        "float32 and rounds once. Torch's own kernels are no faster here, or much slower.\n"
        f"Hint: {policy.replace(execution='simulated')!r} asks for it; "
        f"{policy.replace(execution='native')!r} runs torch's kernels."
    )
    warn(msg, SimulationWarning)
