"""Simulated low precision: tensors are stored low, every op computes in float32 and rounds once.

These are the numerics of Tensor Cores and of the NumPy backend, on any CPU. An op's inputs are
rounded where they are wider, taken to float32, and its result is rounded. Autograd's derivatives
of the casts round the gradients in the same places: the products of a backward pass run in float32
as well, and the gradient of a low value is low.

What changes nothing is left out: views, what only moves numbers, and the kernels of torch that
already convert to float32 and round once, forward and backward (``ROUNDS_ONCE``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ampbridge.calling_code import warn
from ampbridge.errors import SimulationWarning, UnsupportedError
from ampbridge.policy import Policy
from ampbridge_torch import _private
from ampbridge_torch.functions import Function, functions_named, view_functions

LOW_DTYPES = frozenset({torch.float16, torch.bfloat16})
CASTABLE = LOW_DTYPES | {torch.float32}

RoundsOnce: TypeAlias = Literal["always", "between tensors", "as a view", "never"]

# By aten name; tests/torch/test_simulation.py holds each against the computation in float32.
ROUNDS_ONCE: dict[str, RoundsOnce] = {
    **dict.fromkeys(("cat", "concat", "concatenate", "stack", "clone", "repeat"), "always"),
    **dict.fromkeys(("flip", "roll", "tril", "triu", "where", "masked_fill"), "always"),
    **dict.fromkeys(("relu", "relu6", "leaky_relu", "silu", "neg", "abs"), "always"),
    # Not gelu: in float32 it may be oneDNN's kernel, which ends in other bits than torch's own.
    # A Python number, and alpha, would be rounded first.
    **dict.fromkeys(("add", "sub"), "between tensors"),
}


@cache
def rounds_once() -> dict[Function, RoundsOnce]:
    """The functions whose low kernels are as good as the simulation, and when."""
    found = {f: when for name, when in ROUNDS_ONCE.items() for f in functions_named("aten", name)}
    views: dict[Function, RoundsOnce] = dict.fromkeys(view_functions(), "always")
    return {**found, **views, Tensor.__getitem__: "as a view"}


# With them torch's own function has to run: it writes to its input, which a copy in float32 would
# hide, or makes gradients that no cast can take back.
_NATIVE_ARGUMENTS = ("inplace", "max_norm", "sparse")


# -- whether to simulate


def chosen(policy: Policy, device_types: Collection[str]) -> bool:
    """Whether regions of ``policy`` simulate on the CPU. (CUDA has its kernels.)

    "auto" simulates where torch's own kernels are not faster.

    Raises:
        UnsupportedError: for ``execution="simulated"`` on CUDA alone, or with ``lists="native"``.
    """
    if policy.level == "O0" or policy.execution == "native":
        return False
    if policy.execution == "auto":
        return (
            policy.lists != "native"
            and "cpu" in device_types
            and not has_fast_kernels(policy.dtype)
        )
    if policy.lists == "native":
        msg = (
            f"{policy!r}: what torch.autocast does by itself are torch's own kernels.\n"
            f"Hint: {policy.replace(lists='torch')!r}"
        )
        raise UnsupportedError(msg)
    if "cpu" not in device_types:
        raise UnsupportedError(NOT_ON_CUDA)
    return True


NOT_ON_CUDA = (
    "execution='simulated': CUDA has low-precision kernels; torch simulates on the CPU alone.\n"
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
    if policy.execution != "auto" or _warned:
        return
    _warned = True
    msg = (
        f"{policy.dtype} is simulated on this CPU: tensors are stored in it, each op computes in "
        "float32 and rounds once. Torch's own kernels are no faster here, or much slower.\n"
        f"Hint: {policy.replace(execution='simulated')!r} asks for it; "
        f"{policy.replace(execution='native')!r} runs torch's kernels."
    )
    warn(msg, SimulationWarning)


# -- one op


class Kernel(Protocol):
    """What a rule says of a function's own kernel."""

    @property
    def input_alone(self) -> bool: ...
    @property
    def rounds_once(self) -> RoundsOnce: ...
    @property
    def native_with(self) -> tuple[tuple[str, int], ...]: ...


def followed(values: Sequence[Any]) -> torch.dtype | None:
    """The low dtype in which an op of these inputs runs if it follows them; None if it is not low.

    Scalars count where there is nothing else, as in torch's type promotion.
    """
    tensors = _tensors(values)
    deciding = [x for x in tensors if x.ndim] or tensors
    dtypes = {x.dtype for x in deciding if x.is_floating_point() or x.is_complex()}
    only = dtypes.pop() if len(dtypes) == 1 else None
    return only if only in LOW_DTYPES else None


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif type(value) in (list, tuple):
            found.extend(_tensors(value))
    return found


def kernel_will_do(rule: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether torch's own low kernel is as good, or has to run."""
    if rule.rounds_once == "between tensors":
        return not kwargs and all(isinstance(value, Tensor) for value in args)
    if rule.rounds_once == "as a view":  # the gradient of rows picked twice is a sum
        index = args[1] if isinstance(args[1], tuple) else args[1:]
        return not any(isinstance(part, (Tensor, list, np.ndarray)) for part in index)
    if rule.rounds_once == "always":
        return True
    if rule.input_alone:  # the others hold running statistics
        return any(x.dtype in LOW_DTYPES for x in _tensors([*args[1:], *kwargs.values()]))
    return any(
        kwargs.get(name) or (place < len(args) and args[place]) for name, place in rule.native_with
    )


def raised(value: Any, dtype: torch.dtype, weights: Weights | None) -> Any:
    """Floating tensors of the CPU rounded to ``dtype``, in float32; in lists and dicts too.

    Their gradients are rounded to ``dtype`` on their way back. ``weights`` remembers the casts of
    parameters; None for none.
    """
    if isinstance(value, Tensor):
        if value.dtype not in CASTABLE or not value.is_cpu:
            return value
        if weights is not None and type(value) is nn.Parameter and not value.is_inference():
            return weights.raised(value, dtype)
        return _raised(value, dtype)
    if type(value) in (list, tuple):
        return type(value)([raised(item, dtype, weights) for item in value])
    if type(value) is dict:
        return {name: raised(item, dtype, weights) for name, item in value.items()}
    return value


def _raised(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).to(torch.float32)


def rounded(result: Any, dtype: torch.dtype) -> Any:
    """The float32 tensors among an op's results in ``dtype``."""
    if isinstance(result, Tensor):
        return result.to(dtype) if result.dtype is torch.float32 else result
    if isinstance(result, (list, tuple)):  # torch.return_types, too, are made from a sequence
        return type(result)([rounded(item, dtype) for item in result])
    return result


class Weights:
    """Parameters rounded and raised once in a region, however often they are used.

    The gradients of all uses are summed in float32 before they are rounded. An entry ends with the
    value that it was made from.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, torch.dtype, bool], tuple[Tensor, int, int, Tensor]] = {}

    def raised(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """``weight`` rounded to ``dtype``, in float32."""
        key = id(weight), dtype, torch.is_grad_enabled()
        known = self._known.get(key)
        if known is not None and known[1:3] == (weight._version, weight.data_ptr()):
            return known[3]
        result = _raised(weight, dtype)
        self._known[key] = weight, weight._version, weight.data_ptr(), result
        return result


def native_arguments(function: Function) -> tuple[tuple[str, int], ...]:
    """The arguments with which ``function`` is not simulated, and their positions."""
    code = getattr(function, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return tuple((name, names.index(name)) for name in _NATIVE_ARGUMENTS if name in names)
