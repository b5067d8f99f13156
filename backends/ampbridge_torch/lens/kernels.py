"""Which of torch's kernels run, below autograd and autocast, and what is no computation among them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampbridge.adapters.observation import Kernel, Operand
from ampbridge_torch import _private

# Kernels that make, copy or convert values, and views in place; other views are known by schema.
_MOVES = frozenset({
    "_reshape_copy", "_to_copy", "_unsafe_view", "as_strided_", "clone", "contiguous", "copy", "copy_",
    "detach", "detach_", "fill_", "lift_fresh", "resize_", "scalar_tensor", "set_", "squeeze_", "t_",
    "transpose_", "unsqueeze_", "zero_",
})  # fmt: skip


class Ran(NamedTuple):
    """One kernel.

    Attributes:
        name: ``"addmm"`` if it is aten's, else with its library: ``"mylib::swish"``.
        dtype: in which it computed: its result's or, where that is no number, its inputs' widest;
            None if it only moves, makes or converts values.
    """

    name: str
    kernel: Kernel
    dtype: torch.dtype | None
    seconds: float


class Kernels(TorchDispatchMode):
    """Notes the kernels of this thread while an op is ``collected``, and hands the others to ``alone``.

    ``op`` is the op that is under way. Kernels of a backward pass go through unseen.
    """

    supports_higher_order_operators = True

    def __init__(self, alone: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no annotations
        self._alone = alone
        self.op: Collected | None = None

    @contextmanager
    def collected(self, inputs: Sequence[Tensor]) -> Iterator[Collected]:
        """A block in which an op of ``inputs`` runs."""
        outer, self.op = self.op, Collected()
        try:
            self.op.inputs = [x.detach() for x in inputs]
            yield self.op
        finally:
            self.op = outer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if _private.is_backward_pass():
            return func(*args, **(kwargs or {}))
        run = self._alone if self.op is None else self.op.run
        return run(func, args, kwargs or {})


class Collected:
    """The kernels of one op, and its inputs as they were before it wrote to them."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.kernels: list[Ran] = []

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        written = set(map(_memory, _private.written(func, args, kwargs)))
        if written:
            self.inputs = [x.clone() if _memory(x) in written else x for x in self.inputs]
        started = time.perf_counter()
        result = func(*args, **kwargs)
        seconds = time.perf_counter() - started
        floating = floating_tensors((args, kwargs))
        if floating:
            kernel = Kernel(func.name().partition(".")[0], dtype_name(floating[0].dtype))
            dtype = None if only_moves(func) else _computed_in(result, floating)
            self.kernels.append(Ran(bare_name(func), kernel, dtype, seconds))
        return result

    @property
    def computing(self) -> list[Ran]:
        """The kernels that compute."""
        return [ran for ran in self.kernels if ran.dtype is not None]


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr() if x.layout is torch.strided else id(x)


def floating_tensors(tree: Any) -> list[Tensor]:
    """The floating-point tensors in nested arguments or results, in order."""
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor) and x.is_floating_point()]


def dtype_name(dtype: torch.dtype) -> str:
    """``"float16"``; of a complex dtype that of its parts."""
    return str(dtype.to_real() if dtype.is_complex else dtype).removeprefix("torch.")


def operand(x: Tensor) -> Operand:
    """``x`` as an observer is shown it."""
    return Operand(x.detach(), dtype_name(x.dtype))


def bare_name(func: Any) -> str:
    """The name of a kernel without overload: ``"add_"`` of aten's, ``"mylib::swish"``."""
    name: str = func.name()
    return name.partition(".")[0].removeprefix("aten::")


@cache
def only_moves(func: Any) -> bool:
    """Whether a kernel computes nothing: views, copies, conversions, allocations, questions."""
    name = bare_name(func)
    return (
        name in _MOVES
        or name.startswith(("new_", "empty"))
        or name.endswith("_like")
        or not _private.makes_tensors(func)
    )


def _computed_in(result: Any, inputs: Sequence[Tensor]) -> torch.dtype:
    made = [x.dtype for x in tree_leaves(result) if isinstance(x, Tensor)]
    numbers = [dtype for dtype in made if dtype.is_floating_point or dtype.is_complex]
    if numbers:
        return numbers[0]
    return reduce(torch.promote_types, [x.dtype for x in inputs])
