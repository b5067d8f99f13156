"""Python functions of Paddle that stand for one op, and so have one rule.

Two kinds, both made of several kernels, so that rules by kernel do not reach them: functions such
as ``mse_loss``, which run in one precision as a whole if the policy says so; and convolutions, whose
bias Paddle adds in a second kernel. They are replaced in simulated and in native regions alike.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Protocol

import paddle

from ampbridge.interception import Interception, Site
from ampbridge.oplists import Category
from ampbridge_paddle._private import PRIVATE, private
from ampbridge_paddle.rules import function_names

Tensor = Any
Function = Callable[..., Any]
Replacements = Mapping[int, tuple[Any, Function]]
"""By ``id`` of the original: the original and what replaces it."""

LINEAR = "paddle.nn.functional.linear"

CONVOLUTIONS = (
    "paddle.nn.functional.conv1d",
    "paddle.nn.functional.conv2d",
    "paddle.nn.functional.conv3d",
    "paddle.nn.functional.conv1d_transpose",
    "paddle.nn.functional.conv2d_transpose",
    "paddle.nn.functional.conv3d_transpose",
    "paddle.nn.functional.conv._conv_nd",  # what the layers Conv2D and Conv3D call
)


class FunctionRegion(Protocol):
    """What an open region, simulated or native, says of functions."""

    bias_follows: bool

    def function_rule(self, name: str) -> Category | None:
        """The rule for the function as a whole; None to leave it to its parts."""

    def as_a_whole(self, category: Category) -> AbstractContextManager[None]:
        """A region in which everything runs as ``category`` says."""

    def in_dtype_of(self, bias: Tensor, output: Tensor) -> Tensor:
        """``bias`` in the precision that ``output`` is in."""


def _as_a_whole(name: str, original: Function) -> Function:
    @wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        region = interception.active.get()
        category = None if region is None else region.function_rule(name)
        if region is None or category is None:
            return original(*args, **kwargs)
        with region.as_a_whole(category), interception.paused():
            return original(*args, **kwargs)

    return function


def _convolution(original: Function) -> Function:
    """A convolution that adds its bias in the precision of its result."""

    @wraps(original)
    def convolve(x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Any:
        region = interception.active.get()
        if region is None or bias is None or not region.bias_follows:
            return original(x, weight, bias, *args, **kwargs)
        output = original(x, weight, None, *args, **kwargs)
        shape = [1] * len(output.shape)
        shape[_channel_axis(output, args, kwargs)] = -1
        return paddle.add(output, region.in_dtype_of(bias, output).reshape(shape))

    return convolve


def _channel_axis(output: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    layouts = [a for a in (*args, *kwargs.values()) if isinstance(a, str) and a[:1] == "N"]
    return len(output.shape) - 1 if any(layout.endswith("C") for layout in layouts) else 1


class Sites:
    """A list of sites for an ``Interception``, made when the first region opens.

    Functions are replaced under every module-level name that they have in the process, since
    ``from paddle.nn.functional import mse_loss`` does not look at Paddle's modules again; the names
    are collected anew when modules or names of ``__main__`` have been added.
    """

    def __init__(
        self, replacements: Callable[[], Replacements], fixed: Callable[[], Sequence[Site]]
    ) -> None:
        self._make_replacements, self._make_fixed = replacements, fixed
        self._replacements: Replacements = {}
        self._fixed: Sequence[Site] = ()
        self._sites: Sequence[Site] = ()
        self._seen = (0, 0)

    def __call__(self) -> Sequence[Site]:
        if not self._replacements:
            self._replacements, self._fixed = self._make_replacements(), self._make_fixed()
        seen = (len(sys.modules), len(vars(sys.modules["__main__"])))
        if seen != self._seen:
            self._sites = [*self._fixed, *self._names()]
            self._seen = seen
        return self._sites

    def _names(self) -> Iterator[Site]:
        modules = [
            module
            for name, module in list(sys.modules.items())
            if type(module) is types.ModuleType and not name.startswith("ampbridge_paddle")
        ]
        for owner in [*modules, private("paddle.base.core.eager.Tensor"), paddle.pir.Value]:
            for attribute, value in list(vars(owner).items()):
                found = self._replacements.get(id(value))
                if found is not None and found[0] is value:
                    yield Site(owner, attribute, value, found[1])


def find(name: str) -> Any:
    """What a dotted name, public or in the table of private ones, stands for."""
    if name in PRIVATE:
        return private(name)
    found: Any = paddle
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


def _replacements() -> Replacements:
    originals = {name: find(name) for name in [*function_names(), LINEAR]}
    made = {
        id(original): (original, _as_a_whole(name, original))
        for name, original in originals.items()
        if not isinstance(original, type)
    }
    convolutions = [find(name) for name in CONVOLUTIONS]
    return made | {id(original): (original, _convolution(original)) for original in convolutions}


def _layers() -> list[Site]:
    """Layers that stand for an op: their forward."""
    layers = {name: found for name in function_names() if isinstance(found := find(name), type)}
    return [
        Site(layer, "forward", vars(layer)["forward"], _as_a_whole(name, vars(layer)["forward"]))
        for name, layer in layers.items()
    ]


interception: Interception[FunctionRegion] = Interception(
    "ampbridge_paddle_functions", Sites(_replacements, _layers)
)
