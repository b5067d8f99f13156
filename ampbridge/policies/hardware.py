"""What the hardware favours: the rule behind ``Policy.auto`` and ``doctor``."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Literal, NamedTuple

from ampbridge.adapters import registry
from ampbridge.adapters.backend import Backend
from ampbridge.adapters.roles.probing import Device, Probe
from ampbridge.errors import ArgumentError, BackendNotFoundError, listed
from ampbridge.errors.foreign_text import shortened
from ampbridge.policies.policy import EXECUTIONS, Policy

PROBED_DTYPES = ("float32", "float16", "bfloat16")

# In the environment: what ``execution="auto"`` chooses on the CPU, whatever its instructions are.
CPU_EXECUTION = "AMPBRIDGE_CPU_EXECUTION"

CPUINFO = "/proc/cpuinfo"  # on Linux

# A flag of /proc/cpuinfo -> the instructions that it stands for, best first.
_BFLOAT16_FLAGS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16"}

_DEVICES = "'cpu', 'cuda', 'cuda:0', 'gpu', 'gpu:0', 'tpu' or 'tpu:0'"


class Recommendation(NamedTuple):
    """A policy, and why that one."""

    policy: Policy
    reason: str


def recommend(device: object = None) -> Recommendation:
    """What ``Policy.auto(device)`` returns, with the reason. See there."""
    import logging  # 4 ms: only when first needed

    backends = [registry.backend(name) for name in registry.names_in_use()]
    if not backends:
        raise BackendNotFoundError(
            "Which framework? What a device favours depends on the framework that uses it, and of "
            f"{registry.backend_names()} this process has imported none.\n"
            "Hint: import torch; policy = Policy.auto()"
        )
    having = [b for b in backends if device is None or _device(b, device) is not None]
    found = {b.name: _recommend_on(b, device) for b in having or backends}
    favoured = next(iter(found.values()))
    if any(other.policy != favoured.policy for other in found.values()):
        each = ", ".join(f"{name} {str(r.policy)!r}" for name, r in found.items())
        low = next(r.policy for r in found.values() if r.policy.level != "O0")
        raise BackendNotFoundError(
            f"Which framework? This process has imported several, which favour different policies: {each}.\n"
            f"Hint: Policy.parse({str(low)!r})"
        )
    logging.getLogger("ampbridge").info("Policy.auto: %s: %s", *favoured)
    return favoured


def _recommend_on(backend: Backend, name: object) -> Recommendation:
    """What the device of that name favours; the one that a model would be trained on, if None."""
    device = _device(backend, name)
    if device is None:
        names = list(dict.fromkeys(each.name for each in backend.devices()))
        allowed = f"allowed are None, {_DEVICES}"
        if str(name).partition(":")[0] in ("cpu", "cuda", "gpu", "tpu"):
            allowed = f"{backend.name} has {listed(names)} here"
        raise ArgumentError(
            f"Passed device={name!r}; {allowed}.\nHint: Policy.auto(device={names[0]!r})"
        )
    return recommendation(backend.name, device, backend.probe(device))


def _device(backend: Backend, name: object) -> Device | None:
    """The device of that name, a string or a torch.device; the first, if None."""
    for device in backend.devices():
        # "cuda" and "gpu" are one, and the kind alone is its first device.
        kinds = {"cuda", "gpu"} if device.kind == "gpu" else {device.kind}
        index = device.name.partition(":")[2] or "0"
        if name is None or str(name) in {device.name, *kinds, *(f"{k}:{index}" for k in kinds)}:
            return device
    return None


def recommendation(framework: str, device: Device, probe: Probe) -> Recommendation:
    """O1 in the dtype that ``device`` favours, if the framework computes in it there; else O0."""
    dtypes, reason = _favoured(framework, device)
    for dtype in dtypes:
        if dtype not in probe.failures:
            return Recommendation(Policy("O1", dtype), reason)
        reason += f"; {framework} failed in {dtype}: {shortened(probe.failures[dtype])}"
    return Recommendation(Policy("O0"), reason)


def _favoured(framework: str, device: Device) -> tuple[tuple[str, ...], str]:
    """The 16-bit dtypes that ``device`` is fast in, and why; bfloat16 first, which needs no loss scaling."""
    if device.kind == "tpu":
        return ("bfloat16",), f"{device.model} multiplies bfloat16"
    if device.kind == "cpu":
        have = " and ".join(device.bfloat16_instructions)
        wanted = " or ".join(_BFLOAT16_FLAGS.values())
        why = f"{device.model} has {have or f'no {wanted} that {framework} could use'}"
        return ("bfloat16",) if have else (), why
    if device.kind != "gpu":  # an NPU, say: such devices are made for 16-bit products
        return ("bfloat16", "float16"), f"{device.model} is an accelerator ({device.kind})"
    if device.compute_capability is None:
        return (), f"nothing is known of 16-bit products on {device.model} ({device.kind})"
    starts = {"bfloat16": (8, 0), "float16": (7, 0)}
    fast = [dtype for dtype, start in starts.items() if device.compute_capability >= start]
    capability = "{}.{}".format(*device.compute_capability)
    rule = "bfloat16 is fast from 8.0, float16 from 7.0"
    return tuple(fast), f"{device.model} has compute capability {capability} ({rule})"


def verdict(dtype: str, right: bool, dtypes: set[str]) -> str | None:
    """For adapters: what is wrong with a product and a gradient that came in ``dtypes``; or None."""
    if not right:
        return "wrong values"
    return None if dtypes == {dtype} else f"results in {' and '.join(sorted(dtypes - {dtype}))}"


def auto_execution(has_fast_kernels: Callable[[], bool]) -> Literal["native", "simulated"]:
    """What ``execution="auto"`` is on a CPU that a framework has native 16-bit kernels for.

    The environment variable AMPBRIDGE_CPU_EXECUTION decides, else the kernels' speed.
    """
    asked = asked_execution()
    if asked != "auto":
        return asked
    return "native" if has_fast_kernels() else "simulated"


@cache
def asked_execution() -> Literal["native", "simulated", "auto"]:
    """The value of AMPBRIDGE_CPU_EXECUTION, read once; "auto" where it is not set."""
    asked = os.environ.get(CPU_EXECUTION, "auto")
    if asked in ("native", "simulated", "auto"):
        return asked  # type: ignore[return-value]  # narrowed by the line above
    raise ArgumentError(
        f"Passed {CPU_EXECUTION}={asked!r} in the environment; allowed are {listed(EXECUTIONS)}.\n"
        f"Hint: export {CPU_EXECUTION}=simulated"
    )


def asked_setting() -> dict[str, str]:
    """For ``Probe.settings`` of such a CPU: what "auto" is, where the environment decides it."""
    asked = asked_execution()
    return {} if asked == "auto" else {"execution='auto'": f"{asked}, by {CPU_EXECUTION}"}


def bfloat16_instructions() -> tuple[str, ...]:
    """What this CPU multiplies bfloat16 with, as Linux tells; nothing where it cannot be asked.

    (No Mac has AMX of this kind or AVX512-BF16.)
    """
    flags = set(_cpuinfo("flags").split())
    return tuple(name for flag, name in _BFLOAT16_FLAGS.items() if flag in flags)


def cpu_model() -> str:
    """What its maker calls this CPU, or at least its architecture."""
    return _cpuinfo("model name") or platform.processor() or platform.machine() or "CPU"


def _cpuinfo(field: str) -> str:
    """A field of the first processor in ``CPUINFO``; "" where there is no such file or field."""
    with suppress(OSError), open(CPUINFO, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    return ""
