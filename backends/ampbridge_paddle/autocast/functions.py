"""Python functions and layers of Paddle that stand for one op, and so have one rule.

They are made of several kernels, so that rules by kernel do not reach them: functions such as
``mse_loss``, layers such as ``LSTMCell``, and convolutions, whose bias Paddle adds in a second kernel.
They are replaced in simulated and in native regions alike; what a rule means there, the region
says. So is what ``paddle.jit.to_static`` has compiled, whose programs know of no region.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, wraps
from typing import Any, Protocol

import paddle

from ampbridge.adapters.calling_code import warn
from ampbridge.adapters.interception import Interception, Site
from ampbridge.adapters.tracing import constant_result
from ampbridge.policies import function_ops
from ampbridge.policies.op_table import Category
from ampbridge_paddle._private import method, present, private
from ampbridge_paddle.autocast.rules import Rules, functions_of_ops

Tensor = Any
Function = Callable[..., Any]
Replacements = Iterable[tuple[Any, Function]]
"""Originals, each with what replaces it."""

LINEAR = "paddle.nn.functional.linear"

# Functions that call one kernel on a GPU and several on a CPU -> that kernel.
KERNELS_ELSEWHERE: Mapping[str, str] = {
    LINEAR: "linear_v2",
    "paddle.nn.functional.scaled_dot_product_attention": "flash_attn",
    "paddle.nn.functional.flash_attention.flash_attention": "flash_attn",
}


def linear_is_a_kernel() -> bool:
    """Whether ``LINEAR`` calls its one kernel here, with a bias or without, and nothing besides."""
    return not paddle.is_compiled_with_cuda() and bool(paddle.in_dynamic_mode())


CONVOLUTIONS = (
    *(f"paddle.nn.functional.conv{n}d{kind}" for n in (1, 2, 3) for kind in ("", "_transpose")),
    "paddle.nn.functional.conv._conv_nd",  # what the layers Conv2D and Conv3D call
)


class FunctionRegion(Protocol):
    """How an open region, simulated or native, runs functions."""

    @property
    def rules(self) -> Rules:
        """The rules that it follows."""

    def call(self, name: str, function: Function, args: Any, kwargs: Any) -> Any:
        """``function(*args, **kwargs)`` by the rule for ``name``, if there is one.

        It may be the forward of a layer, whose parameters are not among ``args``.
        """

    def call_whole(self, rule: Category, function: Function, args: Any, kwargs: Any) -> Any:
        """``function(*args, **kwargs)`` as one op of that rule."""

    def add_bias(self, output: Tensor, bias: Tensor, shape: list[int]) -> Tensor:
        """``output`` of a convolution and ``bias`` in that shape and in the precision of ``output``."""


def _by_its_rule(name: str, original: Function) -> Function:
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        region = interception.active.get()
        if region is None:
            return original(*args, **kwargs)
        return region.call(name, original, args, kwargs)

    return call


def _convolution(original: Function) -> Function:
    """``original``, a convolution, with its bias added in the precision of its result."""

    @wraps(original)
    def convolve(x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Any:
        region = interception.active.get()
        if region is None or bias is None or not region.rules.bias_follows:
            return original(x, weight, bias, *args, **kwargs)
        output = original(x, weight, None, *args, **kwargs)
        layouts = [a for a in (*args, *kwargs.values()) if isinstance(a, str) and a[:1] == "N"]
        shape = [1] * len(output.shape)
        shape[-1 if any(layout.endswith("C") for layout in layouts) else 1] = -1
        return region.add_bias(output, bias, shape)

    return convolve


def _compiled_before(original: Function) -> Function:
    """The call of a function of ``paddle.jit.to_static``, which runs as plain Python in a region.

    Paddle keeps a program in the precision that it was traced in, whatever region it is called in.
    """
    translator = private("paddle.jit.dy2static.program_translator.ProgramTranslator")()

    @wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        inside = interception.active.get() is not None and paddle.in_dynamic_mode()
        if not inside or not method("ProgramTranslator", translator, "enable_to_static"):
            return original(self, *args, **kwargs)
        warn(
            f"{self.dygraph_function.__qualname__} is compiled by paddle.jit.to_static, whose programs "
            "stay in the precision in which they were traced first: in mixed precision it runs op by "
            "op.\nHint: amp.train_step(..., compile=True) compiles the loss for each policy."
        )
        return self.dygraph_function(*args, **kwargs)

    return call


# This adapter itself, modules whose names only the compiler and Paddle's C++ read, and the one that has
# a site of its own.
_NEVER_LOOKED_UP_IN = (
    "ampbridge_paddle",
    "paddle._C_ops",
    "paddle.base.libpaddle",
    "paddle._legacy_C_ops",
    "paddle._pir_ops",
    "paddle.decomposition",
    "paddle.incubate.autograd",
)


class Sites:
    """Finds the sites of an ``Interception``, when the first region opens.

    Functions are replaced under every module-level name that they have in the process, since
    ``from paddle.nn.functional import mse_loss`` does not look at Paddle's modules again. The names
    are collected anew when modules, or names in the user's own modules, have been added. What an
    object or a closure holds is not found: such a function does what its parts do.

    Args:
        replacements: makes pairs of a function and what replaces it.
        fixed: makes the sites that are not found by their values.
    """

    def __init__(
        self, replacements: Callable[[], Replacements], fixed: Callable[[], Sequence[Site]]
    ) -> None:
        self._make_replacements, self._make_fixed = replacements, fixed
        self._by_id: dict[int, tuple[Any, Function]] = {}
        self._fixed: Sequence[Site] = ()
        self._sites: Sequence[Site] = ()
        self._watched: list[dict[str, Any]] = []
        self._seen = (0, 0)

    def __call__(self) -> Sequence[Site]:
        if not self._by_id:
            self._by_id = {id(pair[0]): pair for pair in self._make_replacements()}
            self._fixed = self._make_fixed()
        if self._seen != self._names_there_are():
            self._sites = [*self._fixed, *self._names()]
            self._watched = [vars(m) for m in list(sys.modules.values()) if _is_the_user_s(m)]
            self._seen = self._names_there_are()
        return self._sites

    def _names_there_are(self) -> tuple[int, int]:
        return len(sys.modules), sum(map(len, self._watched))

    def _names(self) -> Iterator[Site]:
        # By identity: several modules are registered under more than one name.
        modules = {
            id(module): module
            for name, module in list(sys.modules.items())
            if type(module) is types.ModuleType and not name.startswith(_NEVER_LOOKED_UP_IN)
        }
        for owner in [*modules.values(), paddle.Tensor, paddle.pir.Value]:
            for attribute, value in list(vars(owner).items()):
                found = self._by_id.get(id(value))
                if found is not None and found[0] is value:
                    yield Site(owner, attribute, value, found[1])


def _is_the_user_s(module: Any) -> bool:
    """Whether names may be added to ``module`` after its import: a script, a notebook, a test."""
    file = getattr(module, "__file__", None) or ""
    installed = "site-packages" in file or "dist-packages" in file
    root = getattr(module, "__name__", "").partition(".")[0]
    not_theirs = {*sys.stdlib_module_names, "ampbridge_paddle"} - {"__main__"}
    return not installed and root not in not_theirs


@cache
def layers() -> Mapping[str, type]:
    """The layers that stand for one op, by their dotted names."""
    found = {name: present(name) for name in functions_of_ops()}
    return {name: kind for name, kind in found.items() if isinstance(kind, type)}


def _replacements() -> Replacements:
    named = [name for name in functions_of_ops() if name not in layers()]
    for name in [*named, *KERNELS_ELSEWHERE]:
        yield present(name), _by_its_rule(name, present(name))
    for name in CONVOLUTIONS:
        yield present(name), _convolution(present(name))


def _class_sites() -> list[Site]:
    """The sites of layers, of the operator that is a function of its own, and of compiled functions."""
    negation = vars(paddle.Tensor)["__neg__"]
    compiled = private("paddle.jit.dy2static.program_translator.StaticFunction")
    call = vars(compiled)["__call__"]
    forwards = [(name, layer, vars(layer)["forward"]) for name, layer in layers().items()]
    return [
        Site(compiled, "__call__", call, _compiled_before(call)),
        Site(paddle.Tensor, "__neg__", negation, _by_its_rule("paddle.neg", negation)),
        *(Site(layer, "forward", own, _by_its_rule(name, own)) for name, layer, own in forwards),
    ]


interception: Interception[FunctionRegion] = Interception(
    "ampbridge_paddle_functions", Sites(_replacements, _class_sites)
)


def with_control_flow(function: Function) -> Function:
    """Turn ``if`` and ``while`` on values in ``function`` into ops of the program.

    Paddle converts what a traced function calls by itself, unless it is defined in another
    function. Without its source (typed at a prompt) it is traced as it is; Paddle refuses an ``if``.
    """
    if not inspect.isfunction(function):  # the apply of a PyLayer
        found: Function = private("paddle.jit.dy2static.convert_call_func.convert_call")(function)
        return found
    if function.__name__ == "<lambda>":
        return function
    convert = private("paddle.jit.dy2static.program_translator.convert_to_static")
    try:
        converted: Function = convert(function)
    except (OSError, TypeError, SyntaxError):
        return function
    return converted


@function_ops.answered_by
def _function_op(name: str, function: Function) -> Function | None:
    is_traced = private("paddle.base.framework.in_pir_mode")()
    if is_traced:  # Paddle converts what it meets itself, not what stands behind an entry
        function = with_control_flow(function)
    if not has_rule(name):
        return function if is_traced else None

    def call(*args: Any, **kwargs: Any) -> Any:
        region = interception.active.get()
        assert region is not None
        return region.call_whole(region.rules.python[name], function, args, kwargs)

    return call


@constant_result
def has_rule(name: str) -> bool:
    """Whether a region is open that allows or denies the function of this name."""
    region = interception.active.get()
    return region is not None and name in region.rules.python
