"""The simulation on the CPU beside a region on the virtual device: dtypes, values, gradients, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, NamedTuple

import op_cases
import torch
from op_cases import Call
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import ampbridge as amp

RUNS = (
    *(("torch", "float16"), ("torch", "bfloat16")),
    *(("paddle", "float16"), ("tensorflow", "bfloat16")),
)
"""Lists and 16-bit dtypes that are compared in `make test`."""

FORWARD = ("dtype", "value", "refused", "fails")
KINDS = (*FORWARD, "gradient")
"""How an op differs: ``refused`` by CUDA but not by the simulation, ``fails`` the other way round."""


class Findings(NamedTuple):
    """What the calls of one list set and dtype came to: op -> the kinds in which it differs."""

    calls: int
    differing: dict[str, frozenset[str]]
    where: dict[tuple[str, str], str]
    """(op, kind) -> the first call that differs so."""

    def share_equal(self, kinds: Iterable[str]) -> tuple[int, int]:
        """How many ops differ in none of ``kinds``, of how many."""
        equal = [op for op, found in self.differing.items() if not found & set(kinds)]
        return len(equal), len(self.differing)


@cache
def findings(lists: Any, low: Any) -> Findings:
    """All calls of the canonical ops, their float32 arguments as they are and in ``low``.

    With ``lists="torch"`` beside ``torch.autocast("cuda")``, with others beside our own region there.
    """
    dtype = getattr(torch, low)
    policy = amp.Policy("O1", low, lists=lists)

    def simulation() -> AbstractContextManager[Any]:
        return amp.autocast(policy.replace(execution="simulated"), backend="torch")

    def on_cuda() -> AbstractContextManager[Any]:
        if lists == "torch":
            return torch.autocast("cuda", dtype)
        return amp.autocast(policy, backend="torch")

    count, differing, where = 0, {}, {}
    for call in op_cases.calls():
        for start in (torch.float32, dtype):
            count += 1
            kinds = compared(call, start, simulation, on_cuda)
            differing[call.op] = differing.get(call.op, frozenset()) | kinds
            for kind in kinds:
                where.setdefault((call.op, kind), f"{call.name}, {start}")
    return Findings(count, differing, where)


Region = Callable[[], AbstractContextManager[Any]]


def compared(call: Call, start: torch.dtype, simulation: Region, on_cuda: Region) -> frozenset[str]:
    """In what the call differs; nothing where both sides refuse it."""
    found = _ran(call, "cpu", start, simulation)
    expected = _ran(call, "cuda", start, on_cuda)
    if expected is None and call.refused is not None and start in call.refused:
        return frozenset()  # CUDA has no kernel for it
    if found is None or expected is None:
        if found is expected:
            return frozenset()
        return frozenset({"fails" if found is None else "refused"})
    kinds = set()
    (outputs, gradients), (outputs_there, gradients_there) = found, expected
    if [x.dtype for x in outputs] != [x.dtype for x in outputs_there]:
        kinds.add("dtype")
    elif not same(outputs, outputs_there):
        kinds.add("value")
    if not same(gradients, gradients_there):
        kinds.add("gradient")
    return frozenset(kinds)


Ran = tuple[Sequence[Tensor], Sequence[Tensor | None]]


def _ran(call: Call, device: str, start: torch.dtype, region: Region) -> Ran | None:
    """Results and gradients; None if it is refused."""
    try:
        args, kwargs = call.on(device, start)
        torch.manual_seed(1)
        with region():
            result = call.run(*args, **kwargs)
        outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        return outputs, _gradients(outputs, leaves(args, kwargs))
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


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _same(found: Tensor | None, expected: Tensor | None) -> bool:
    if found is None or expected is None:
        return found is expected
    found, expected = _plain(found), _plain(expected)
    if found.dtype is not expected.dtype or found.shape != expected.shape:
        return False
    if not found.is_floating_point():
        return torch.equal(found, expected)
    bits = _BITS[found.element_size()]
    equal = found.view(bits) == expected.view(bits)
    return bool((equal | (found.isnan() & expected.isnan())).all())


def _plain(x: Tensor) -> Tensor:
    x = x.detach().cpu()
    x = x.to_dense() if x.is_sparse else x
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return x.resolve_neg().contiguous()
