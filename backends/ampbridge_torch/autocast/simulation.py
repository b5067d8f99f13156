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
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from ampbridge_torch import _private
from ampbridge_torch.autocast.functions import Function, functions_named, view_functions

LOW_DTYPES = frozenset({torch.float16, torch.bfloat16})
CASTABLE = LOW_DTYPES | {torch.float32}

RoundsOnce: TypeAlias = Literal["always", "between tensors", "as a view", "never"]

# The CPU's autocast widens them, as they have no 16-bit kernel there. On CUDA they have one.
LOW_ON_CUDA = ("avg_pool3d",)

# By aten name; tests/torch/test_simulation.py holds each against the computation in float32.
ROUNDS_ONCE: dict[str, RoundsOnce] = {
    **dict.fromkeys(("cat", "concat", "concatenate", "stack", "clone", "repeat"), "always"),
    **dict.fromkeys(("flip", "roll", "tril", "triu", "where", "masked_fill"), "always"),
    **dict.fromkeys(("relu", "relu6", "leaky_relu", "silu", "neg", "abs"), "always"),
    # Not gelu: in float32 it may be oneDNN's kernel, which ends in other bits than torch's own.
    # A Python number, and alpha, would be rounded first.
    **dict.fromkeys(("add", "sub"), "between tensors"),
}

# Their derivatives are computed from the result, by one kernel: on CUDA from the rounded one.
SAVES_RESULT = (
    *("exp", "sqrt", "sigmoid", "tanh", "softmax", "log_softmax", "cdist"),
    "scaled_dot_product_attention",
)

# Their derivatives multiply, then sum where an input was broadcast: on CUDA by two kernels, of which
# each rounds.
MULTIPLIES = ("mul", "multiply", "div", "divide", "true_divide")


@cache
def rounds_once() -> dict[Function, RoundsOnce]:
    """The functions whose low kernels are as good as the simulation, and when."""
    found = {f: when for name, when in ROUNDS_ONCE.items() for f in functions_named("aten", name)}
    views: dict[Function, RoundsOnce] = dict.fromkeys(view_functions(), "always")
    return {**found, **views, Tensor.__getitem__: "as a view"}


def native_arguments(function: Function) -> tuple[tuple[str, int], ...]:
    """The arguments with which torch's own function has to run, and their positions.

    It writes to its input then, which a copy in float32 would hide, or makes gradients that no cast can
    take back.
    """
    code = getattr(function, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return tuple(
        (name, names.index(name)) for name in ("inplace", "max_norm", "sparse") if name in names
    )


# -- one op


def followed(values: Sequence[Any]) -> torch.dtype | None:
    """The low dtype in which an op of these inputs runs if it follows them; None if it is not low.

    Scalars count where there is nothing else, as in torch's type promotion.
    """
    tensors = tensors_in(values)
    deciding = [x for x in tensors if x.ndim] or tensors
    dtypes = {x.dtype for x in deciding if x.is_floating_point() or x.is_complex()}
    return dtypes.pop() if len(dtypes) == 1 and dtypes <= LOW_DTYPES else None


def tensors_in(
    values: Sequence[Any], dtypes: Collection[torch.dtype] | None = None
) -> list[Tensor]:
    """The tensors among arguments, in lists and tuples too; of ``dtypes`` alone, if they are given."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            if dtypes is None or value.dtype in dtypes:
                found.append(value)
        elif type(value) in (list, tuple):
            found.extend(tensors_in(value, dtypes))
    return found


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
        return to(to(value, dtype), torch.float32)
    if type(value) in (list, tuple):
        return type(value)([raised(item, dtype, weights) for item in value])
    if type(value) is dict:
        return {name: raised(item, dtype, weights) for name, item in value.items()}
    return value


def bias_apart(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The bias of ``linear`` where torch adds it to the rounded product, by a kernel of its own.

    It does so for inputs of three dimensions and more that do not lie contiguously.
    """
    if len(args) < 2 or args[0].ndim < 3 or args[0].is_contiguous():
        return None
    bias: Tensor | None = args[2] if len(args) > 2 else kwargs.get("bias")
    return bias


def spread(values: Sequence[Any], dtype: torch.dtype) -> Sequence[Any]:
    """The values, broadcast to one shape; the gradient of each element is rounded on its way back."""
    tensors = tensors_in(values)
    if all(x.shape == tensors[0].shape for x in tensors):
        return values
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    wide = list(values)
    for place, x in enumerate(values):
        if isinstance(x, Tensor) and x.shape != shape and x.requires_grad:
            wide[place] = x.expand(shape)
            if wide[place].requires_grad:  # not without gradients
                wide[place].register_hook(lambda gradient: gradient.to(dtype).to(gradient.dtype))
    return wide


def to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x.to(dtype)``, also for a sparse tensor whose gradient will be a strided one."""
    if x.layout is torch.strided or not x.requires_grad or x.dtype is dtype:
        return x.to(dtype)
    cast: Tensor = _CastSparse.apply(x, dtype)  # type: ignore[no-untyped-call]
    return cast


class _CastSparse(torch.autograd.Function):
    """Torch's own cast wants the gradient in the layout of the tensor (2.13)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = x.dtype
        return x.to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.to(ctx.dtype), None


def rounded_as_saved(result: Any, dtype: torch.dtype) -> Any:
    """``rounded``, also in the copy that autograd has kept."""
    low = rounded(result, dtype)
    if isinstance(result, Tensor) and result.dtype is torch.float32 and result.requires_grad:
        if _private.is_transforming():
            _private.write_below_transforms(result, low)
        else:
            result.data.copy_(low)
    return low


def rounded(result: Any, dtype: torch.dtype) -> Any:
    """The float32 tensors among an op's results in ``dtype``."""
    if isinstance(result, Tensor):
        return to(result, dtype) if result.dtype is torch.float32 else result
    if isinstance(result, (list, tuple)):  # torch.return_types, too, are made from a sequence
        return type(result)([rounded(item, dtype) for item in result])
    return result


class Weights:
    """Parameters rounded once in a region, however often they are used.

    As in ``torch.autocast``, whose gradients of all uses are low, and summed so. What autograd may
    save, the rounded weight in float32, is made once as well. An entry ends with the value that it
    was made from.
    """

    def __init__(self) -> None:
        # Of each: the weight, its version and address, and it rounded: low, and in float32 if autograd
        # may save that.
        self._known: dict[Any, tuple[Tensor, int, int, Tensor, Tensor | None]] = {}

    def raised(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """``weight`` rounded to ``dtype``, in float32."""
        # A weight that is stored low may be written through `.data`, which makes no new version;
        # the tensors of a transform are of no use after it.
        if weight.dtype is dtype or _private.is_transforming():
            return to(to(weight, dtype), torch.float32)
        is_recorded = torch.is_grad_enabled()
        key = id(weight), dtype, is_recorded, weight.requires_grad
        made_from = weight._version, weight.data_ptr()
        known = self._known.get(key)
        if known is None or known[1:3] != made_from:
            low = weight.to(dtype)
            wide = low.to(torch.float32)
            self._known[key] = (weight, *made_from, low, wide if is_recorded else None)
            return wide
        *_, low, saved = known
        if saved is None:
            return low.to(torch.float32)
        if not saved.requires_grad:
            return saved
        shared: Tensor = _InSharedMemory.apply(low, saved)  # type: ignore[no-untyped-call]
        return shared


class _InSharedMemory(torch.autograd.Function):
    """``low.to(torch.float32)``, which is ``wide`` already: the same gradient without a copy."""

    @staticmethod
    def forward(ctx: Any, low: Tensor, wide: Tensor) -> Tensor:
        return wide.view_as(wide)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None  # autograd casts it to the dtype of ``low``
