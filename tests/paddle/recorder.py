"""What really ran, told without ampbridge: Paddle's own count of kernels, and the values themselves.

Below Python, Paddle counts the kernels that it calls, by their names in the old static graph. In which
low precision an op is meant to be where that is simulated, no kernel shows: ``Recorder`` looks at what
came out. It is low if 16 bits hold every value of it and of what a following op (``*``) makes of it.
"""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paddle
from paddle.base import core
from paddle_reference import is_representable

# They move, make or convert; what they are handed says nothing about an op.
MOVES = frozenset(
    {
        *("cast", "assign", "assign_out_", "empty", "full", "full_like", "fill", "shape"),
        *("zeros_like", "ones_like"),
    }
)

# Functions that are one op, whatever kernels they call.
WHOLE = (
    "linear", "conv2d", "scaled_dot_product_attention", "mse_loss",
)  # fmt: skip

OPERATORS = {
    "__add__": "add", "__radd__": "add", "__sub__": "subtract", "__rsub__": "subtract",
    "__mul__": "multiply", "__rmul__": "multiply", "__truediv__": "divide", "__matmul__": "matmul",
    "__getitem__": "slice",
}  # fmt: skip

OTHER_NAMES = {"legacy_reshape": "reshape", "squeeze2": "squeeze", "unsqueeze2": "unsqueeze"}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Paddle's own count of the float32 kernels that are called inside, by their names in ``_C_ops``."""
    found: Counter[str] = Counter()
    core.clear_low_precision_op_list()
    paddle.set_flags({"FLAGS_low_precision_op_list": 1})
    try:
        yield found
    finally:
        paddle.set_flags({"FLAGS_low_precision_op_list": 0})
        for fluid_name, counts in core.get_low_precision_op_list().items():
            name = core._get_phi_kernel_name(fluid_name)
            found[OTHER_NAMES.get(name, name)] += int(counts.split(",")[2])
        for name in [name for name in found if name in MOVES or not found[name]]:
            del found[name]


class Recorder:
    """Collects ``(kernel, dtype)`` of every call from Python, while it stands as a context manager."""

    def __init__(self, low: str) -> None:
        """``low`` is the low precision that is looked for; "float32" where there is none."""
        self.calls: Counter[tuple[str, str]] = Counter()
        self._low = low
        self._inside: list[str] | None = None
        self._probes = False
        self._replaced: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Recorder:
        functions = paddle.nn.functional
        whole = [getattr(functions, name) for name in WHOLE] + [functions.conv._conv_nd]
        kernels = {
            id(kernel): (kernel, name)
            for name in vars(paddle._C_ops)
            if isinstance(
                kernel := getattr(paddle._C_ops, name),
                (types.BuiltinFunctionType, types.FunctionType),
            )
            and not name.endswith(("_grad", "_grad_"))
            and name not in MOVES
        }
        replaced = {id(function): (function, None) for function in whole} | kernels
        for owner in {id(m): m for n, m in sys.modules.items() if n.startswith("paddle")}.values():
            for attribute in list(vars(owner)):
                value = getattr(owner, attribute)  # what an open region shows
                found = replaced.get(id(value))
                if found is not None and found[0] is value:
                    self._replace(owner, attribute, value, found[1])
        for attribute, name in OPERATORS.items():
            self._replace(core.eager.Tensor, attribute, getattr(core.eager.Tensor, attribute), name)
        return self

    def __exit__(self, *exception: object) -> None:
        for owner, attribute, value in reversed(self._replaced):
            setattr(owner, attribute, value)

    def _replace(self, owner: Any, attribute: str, value: Any, name: str | None) -> None:
        self._replaced.append((owner, attribute, value))
        setattr(owner, attribute, self._recording(value, name))

    def _recording(self, call: Callable[..., Any], name: str | None) -> Callable[..., Any]:
        def recording(*args: Any, **kwargs: Any) -> Any:
            if self._probes or not _floating((args, kwargs)):
                return call(*args, **kwargs)
            kernels = [_with_number(name, args)] if name else []
            if self._inside is not None:
                self._inside += kernels
                return call(*args, **kwargs)
            self._inside = kernels
            output = call(*args, **kwargs)
            inside, self._inside = self._inside, None
            dtype = self._dtype_of(output)
            self.calls.update((kernel, dtype) for kernel in inside)
            return output

        return recording

    def _dtype_of(self, output: Any) -> str:
        self._probes = True
        low = any(
            is_representable(x, self._low) and is_representable(x * 0.7, self._low)
            for x in _floating(output)
            if self._low != "float32"
        )
        self._probes = False
        return self._low if low else "float32"


def _with_number(operator: str, args: Any) -> str:
    """``x + 1`` and ``x * 2`` call a kernel of their own."""
    if len(args) < 2 or not isinstance(args[1], (int, float)):
        return operator
    others = {"add": "scale", "subtract": "scale", "multiply": "scale", "divide": "div_scale"}
    return others.get(operator, operator)


def _floating(tree: Any) -> list[paddle.Tensor]:
    if isinstance(tree, paddle.Tensor):
        return [tree] if tree.dtype == paddle.float32 and tree._is_initialized() else []
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    return [x for item in tree for x in _floating(item)] if isinstance(tree, (list, tuple)) else []
