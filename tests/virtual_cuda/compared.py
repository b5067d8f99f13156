"""The simulation on the CPU beside a region on CUDA: dtypes, values, gradients, bit by bit.

On the virtual device, or on a real one, where random numbers are others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import zip_longest
from typing import Any, NamedTuple

import op_cases
import torch
from op_cases import Call
from shares import Share
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import ampbridge as amp
from ampbridge_rehearse import virtual_cuda

RUNS = (
    *(("torch", "float16"), ("torch", "bfloat16")),
    *(("paddle", "float16"), ("tensorflow", "bfloat16")),
)
"""Lists and 16-bit dtypes that are compared."""

KINDS = ("dtype", "value", "refused", "fails", "gradient")
"""How an op differs: ``refused`` by CUDA but not by the simulation, ``fails`` the other way round."""


class Findings(NamedTuple):
    """What the calls of one list set and dtype came to: op -> the kinds in which it differs."""

    calls: int
    differing: dict[str, frozenset[str]]
    where: dict[tuple[str, str], str]
    """(op, kind) -> the first call that differs so."""
    values: dict[str, Share]
    """Op -> elements of its results, over all calls that ran on both sides."""
    gradients: dict[str, Share]
    random: frozenset[str]
    """Ops that draw numbers, which were left out as the device draws others."""


@cache
def findings(lists: Any, low: Any, ops: frozenset[str] | None = None) -> Findings:
    """All calls of the canonical ops, their float32 arguments as they are and in ``low``.

    With ``lists="torch"`` beside ``torch.autocast("cuda")``, with others beside our own region there.
    ``ops``: these alone.
    """
    dtype = getattr(torch, low)
    policy = amp.Policy("O1", low, lists=lists)

    def simulation() -> AbstractContextManager[Any]:
        return amp.autocast(policy.replace(execution="simulated"), backend="torch")

    def on_cuda() -> AbstractContextManager[Any]:
        if lists == "torch":
            return torch.autocast("cuda", dtype)
        return amp.autocast(policy, backend="torch")

    calls = [call for call in op_cases.calls() if ops is None or call.op in ops]
    random = frozenset() if virtual_cuda.is_installed() else frozenset(_drawn(calls))
    found = Findings(0, {}, {}, {}, {}, random)
    count = 0
    for call in calls:
        for start in (torch.float32, dtype):
            if call.op not in random:
                count += 1
                _note(compared(call, start, simulation, on_cuda), call, start, found)
    return found._replace(calls=count)


def _drawn(calls: Collection[Call]) -> Iterator[str]:
    """The ops whose results go by the seed, on the CPU."""
    for call in calls:
        first, second = (_ran(call, "cpu", torch.float32, nullcontext, seed) for seed in (1, 2))
        if first is not None and second is not None and not same(first.outputs, second.outputs):
            yield call.op


def _note(difference: Difference, call: Call, start: torch.dtype, found: Findings) -> None:
    kinds, values, gradients = difference
    found.differing[call.op] = found.differing.get(call.op, frozenset()) | kinds
    found.values[call.op] = found.values.get(call.op, Share()).plus(values)
    found.gradients[call.op] = found.gradients.get(call.op, Share()).plus(gradients)
    for kind in kinds:
        found.where.setdefault((call.op, kind), f"{call.name}, {start}")


Region = Callable[[], AbstractContextManager[Any]]


class Difference(NamedTuple):
    """Of one call: the kinds in which it differs, and the elements that are equal."""

    kinds: frozenset[str]
    values: Share = Share()
    gradients: Share = Share()


def compared(call: Call, start: torch.dtype, simulation: Region, on_cuda: Region) -> Difference:
    """In what the call differs; nothing where both sides refuse it."""
    found = _ran(call, "cpu", start, simulation)
    expected = _ran(call, "cuda", start, on_cuda)
    if expected is None and call.refused is not None and start in call.refused:
        return Difference(frozenset())  # CUDA has no kernel for it
    if found is None or expected is None:
        if found is expected:
            return Difference(frozenset())
        return Difference(frozenset({"fails" if found is None else "refused"}))
    kinds = set()
    values, gradients = (
        share(found.outputs, expected.outputs),
        share(found.gradients, expected.gradients),
    )
    if [x.dtype for x in found.outputs] != [x.dtype for x in expected.outputs]:
        kinds.add("dtype")
    elif not same(found.outputs, expected.outputs):
        kinds.add("value")
    if not same(found.gradients, expected.gradients):
        kinds.add("gradient")
    return Difference(frozenset(kinds), values, gradients)


class Ran(NamedTuple):
    outputs: Sequence[Tensor]
    gradients: Sequence[Tensor | None]


def _ran(call: Call, device: str, start: torch.dtype, region: Region, seed: int = 1) -> Ran | None:
    """Results and gradients; None if it is refused."""
    try:
        args, kwargs = call.on(device, start)
        torch.manual_seed(seed)
        with region():
            result = call.run(*args, **kwargs)
        outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        return Ran(outputs, _gradients(outputs, leaves(args, kwargs)))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None


def leaves(*arguments: Any) -> list[Tensor]:
    """The tensors that are to have gradients, and the parameters of layers."""
    found = []
    for value in tree_leaves(arguments):
        tensors = value.parameters() if isinstance(value, nn.Module) else [value]
        found += [x for x in tensors if isinstance(x, Tensor) and x.requires_grad]
    return found


def _gradients(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """Of a sum of the outputs in which each number has a weight of its own."""
    parts = []
    for output in outputs:
        if output.requires_grad:
            values = torch.view_as_real(output) if output.is_complex() else output
            weights = torch.linspace(0.5, 1.0, values.numel(), device=output.device)
            parts.append((values.float() * weights.reshape(values.shape)).sum())
    if not parts or not inputs:
        return []
    return list(torch.autograd.grad(sum(parts[1:], parts[0]), inputs, allow_unused=True))


def same(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> bool:
    """Whether two lists of tensors are the same in dtype, shape and bits; any NaN is a NaN."""
    return len(found) == len(expected) and all(map(_same, found, expected))


def share(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> Share:
    """Of the elements of ``expected``: whose bits are those of ``found``."""
    total = Share()
    for one, other in zip_longest(found, expected):
        equal = _equal(one, other)
        of = 0 if other is None else other.numel() * (2 if other.is_complex() else 1)
        total = total.plus(Share(0 if equal is None else int(equal.sum()), of))
    return total


def _same(found: Tensor | None, expected: Tensor | None) -> bool:
    if found is None or expected is None:
        return found is expected
    equal = _equal(found, expected)
    return equal is not None and bool(equal.all())


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _equal(found: Tensor | None, expected: Tensor | None) -> Tensor | None:
    """Element by element; None if they have not the same dtype and shape."""
    if found is None or expected is None:
        return None
    found, expected = _plain(found), _plain(expected)
    if found.dtype is not expected.dtype or found.shape != expected.shape:
        return None
    if not found.is_floating_point():
        return found == expected
    bits = _BITS[found.element_size()]
    equal = found.view(bits) == expected.view(bits)
    return equal | (found.isnan() & expected.isnan())


def _plain(x: Tensor) -> Tensor:
    x = x.detach().cpu()
    x = x.to_dense() if x.is_sparse else x
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return x.resolve_neg().contiguous()
