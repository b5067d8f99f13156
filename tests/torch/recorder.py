"""What really ran: the dtypes that reached the kernels, seen below autograd and autocast.

Uses torch alone, nothing of ampbridge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# They move, allocate or convert; what they are handed says nothing about the op.
MOVES = """
    _to_copy copy copy_ to detach detach_ alias view _unsafe_view _reshape_alias reshape t
    transpose transpose_ permute expand unsqueeze unsqueeze_ squeeze squeeze_ clone contiguous
    slice select as_strided as_strided_ empty empty_like empty_strided new_empty new_zeros zeros
    zeros_like ones ones_like full full_like fill_ lift_fresh scalar_tensor unbind split chunk
    split_with_sizes unsafe_split resize_ set_ index_select _local_scalar_dense zero_
    is_same_size sym_size movedim arange
"""


class Recorder(TorchDispatchMode):
    """Collects ``(aten op, dtypes of its floating-point inputs)`` of every op that computes.

    ``firsts`` has the dtype of the first of them alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, frozenset[str]]] = []
        self.firsts: list[tuple[str, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition("::")[2].partition(".")[0]
        if name not in MOVES.split():
            dtypes = [
                str(leaf.dtype).removeprefix("torch.")
                for leaf in tree_leaves((args, kwargs))
                if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
            ]
            if dtypes and _computes_in_float32(func, args, kwargs or {}):
                dtypes = ["float32"]
            if dtypes:
                self.calls.append((name, frozenset(dtypes)))
                self.firsts.append((name, dtypes[0]))
        return func(*args, **(kwargs or {}))

    @property
    def dtypes(self) -> set[str]:
        return set().union(*(dtypes for _, dtypes in self.calls))


def _computes_in_float32(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a kernel is told to, whatever it is handed: CUDA's autocast has ``sum`` and others widen."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return given.get("dtype") is torch.float32 or given.get("half_to_float") is True


def run_eager(function: Callable[..., Any], inputs: Sequence[Any], region: Any) -> Recorder:
    """What ran when ``function`` was called inside of ``region``."""
    recorder = Recorder()
    with recorder, region:
        function(*inputs)
    return recorder


def run_compiled(function: Callable[..., Any], inputs: Sequence[Any], region: Any) -> Recorder:
    """The same of ``torch.compile(function, fullgraph=True)``: what its graph ran."""
    recorder = Recorder()

    def recording(graph: Callable[..., Any], _: Sequence[Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            with recorder:
                return graph(*arguments)

        return run

    compiled = torch.compile(function, fullgraph=True, backend=recording)
    with region:
        compiled(*inputs)
    return recorder
