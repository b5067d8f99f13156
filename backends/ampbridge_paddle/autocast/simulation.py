"""Simulated low precision on CPU, where Paddle has no 16-bit kernels.

While a region is open, the functions through which Paddle calls its kernels are replaced: the
attributes of ``paddle._C_ops``, the module-level copies of them, the Tensor operators and methods
that are bound in C++, and the Python functions that stand for one op. Storage stays float32; that
a tensor is in low precision is a mark on it. A kernel then follows its rule:

* allow: inputs rounded, computed in float32, output rounded (what a Tensor Core does) and marked;
* promote: the same, if every floating-point input is marked; else float32;
* deny: computed on the inputs as they are, output not marked.

Rounding is differentiable and rounds the gradient as well. A mark holds for the state of the
tensor that was marked: a later change in place makes it float32 again. Real float16 and bfloat16
tensors count as marked and are taken to float32 storage by whatever reads them; so do the parameters
of ``low_weights``, which are rounded by whatever reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NamedTuple

import paddle

from ampbridge.adapters.interception import Interception, Site
from ampbridge.policies import function_ops
from ampbridge.policies.op_table import Category
from ampbridge_paddle._private import method, private
from ampbridge_paddle.autocast import functions
from ampbridge_paddle.autocast.dtypes import CASTABLE, FLOAT32, FLOAT64, LOW, is_float32
from ampbridge_paddle.autocast.functions import Function, Replacements, Shape
from ampbridge_paddle.autocast.rounding import round_in_place, round_to, round_traced
from ampbridge_paddle.autocast.rules import Rules, is_op
from ampbridge_paddle.model.low_weights import low_dtype_by_name, low_dtype_of

Tensor: type[Any] = private("paddle.base.core.eager.Tensor")
Value = paddle.pir.Value
_C_ops = private("paddle._C_ops")
_assign = private("paddle._C_ops.assign")
_cast = private("paddle._C_ops.cast")
_version = method("Tensor", Tensor, "_inplace_version")
_has_memory = method("Tensor", Tensor, "_is_initialized")

_LOW_NAMES = {dtype: name for name, dtype in LOW.items()}


@dataclass(frozen=True)
class Region:
    """An open region: its rules, and the marked values of programs traced in it.

    A traced value has no place for a mark; it is known by its address, which is its own for as long
    as the program that is being traced.
    """

    rules: Rules
    marked_values: set[int] = field(default_factory=set)

    # What functions and layers do in it, see ``functions.FunctionRegion``.

    @property
    def bias_follows(self) -> bool:
        return self.rules.bias_follows

    def call_function(self, name: str, function: Function, args: Any, kwargs: Any) -> Any:
        if name == functions.LINEAR and functions.linear_is_a_kernel():
            return function(*args, **kwargs)
        kernel = functions.KERNELS_ELSEWHERE.get(name)
        category = self.rules.category(kernel) if kernel else self.rules.functions.get(name)
        if category is None:
            return function(*args, **kwargs)
        needs = _Needs(results=RESULTS.get(kernel) if kernel else None)
        return self.call_whole(category, function, args, kwargs, needs)

    def call_whole(
        self,
        rule: Category,
        function: Function,
        args: Any,
        kwargs: Any,
        needs: _Needs | None = None,
    ) -> Any:
        def in_float32(*inputs: Any, **options: Any) -> Any:
            with _interception.paused(), functions.interception.paused():
                return function(*inputs, **options)

        return _run(in_float32, args, kwargs, self, rule, needs or _Needs())

    def call_layer(self, name: str, forward: Function, args: Any, kwargs: Any) -> Any:
        category = self.rules.functions.get(name)
        if category is None or category == "promote":
            return forward(*args, **kwargs)
        inside = Region(self.rules.everything(category), self.marked_values)
        with _interception.paused(inside), functions.interception.paused():
            return forward(*args, **kwargs)

    def convolve(self, convolution: Callable[[], Any], bias: Any, shape: Shape) -> Any:
        """Where it is in low precision it is rounded before the bias, and after: as on a GPU."""
        output = convolution()
        if not _is_marked(output, self):
            return paddle.add(output, bias.reshape(shape(output)))
        bias = _rounded_input(bias, self)
        with _interception.paused():
            total = paddle.add(output, bias.reshape(shape(output)))
        return _low_output(total, self, exact=False)


# ------------------------------------------------------------------------------------------- marks

_MARK = "_ampbridge_low"


def mark(x: Any, region: Region, dtype: str | None = None) -> Any:
    """Say that ``x`` holds values of ``dtype``, the region's low precision by default."""
    dtype = dtype or region.rules.dtype
    if isinstance(x, Tensor):
        setattr(x, _MARK, (dtype, _version(x)))
    elif dtype == region.rules.dtype:
        region.marked_values.add(x.hash())
    return x


def low_dtype(x: Any) -> str | None:
    """The low precision that a tensor is marked with, or None."""
    marked = x.__dict__.get(_MARK)
    return marked[0] if marked is not None and marked[1] == _version(x) else None


def marked_like(x: Any, other: Any) -> Any:
    """``x``, which holds the values of ``other``, marked as that is."""
    dtype = low_dtype(other)
    if dtype is not None:
        setattr(x, _MARK, (dtype, _version(x)))
    return x


def _is_marked(x: Any, region: Region) -> bool:
    if isinstance(x, Tensor):
        return low_dtype(x) == region.rules.dtype
    return x.hash() in region.marked_values


# What a kernel's inputs hold, as flags. A parameter that is read rounded counts as stored low.
_NARROW, _WIDE, _STORED_LOW = 1, 2, 4


def _survey(values: Iterable[Any], region: Region) -> int:
    """Whether there are marked, float32 and really 16-bit tensors among ``values``."""
    found = 0
    for x in values:
        if isinstance(x, (Tensor, Value)):
            found |= _kind(x, region)
        elif isinstance(x, (list, tuple)):
            found |= _survey(x, region)
    return found


def _kind(x: Any, region: Region) -> int:
    in_float32 = is_float32(x)
    if in_float32 and _is_marked(x, region):
        return _NARROW
    stored = _stored_low(x)
    if stored is not None:
        return _STORED_LOW | (_NARROW if stored == region.rules.dtype else _WIDE)
    return _WIDE if in_float32 or x.dtype == FLOAT64 else 0


def _stored_low(x: Any) -> str | None:
    """The low precision of a really 16-bit tensor or of a parameter that is read so, or None."""
    if not is_float32(x):
        return _LOW_NAMES.get(x.dtype)
    return low_dtype_of(x) if isinstance(x, Tensor) else _low_dtype_of_traced(x)


def _is_low_parameter(x: Any) -> bool:
    return isinstance(x, Tensor) and low_dtype_of(x) is not None


def _low_dtype_of_traced(x: Any) -> str | None:
    op = x.get_defining_op()
    if op is None or op.name() != "builtin.parameter":
        return None
    return low_dtype_by_name(op.attrs()["parameter_name"])


# ---------------------------------------------------------------------------------------- rounding


def _round(x: Any, dtype: str) -> Any:
    # Lists of weights, such as an LSTM has, hold eager tensors in a program that is being traced, too.
    if isinstance(x, Tensor) and paddle.in_dynamic_mode():
        return round_to(x, dtype)
    return round_traced(x, dtype)


def _rounded_input(x: Any, region: Region) -> Any:
    if isinstance(x, (Tensor, Value)):
        if x.dtype not in CASTABLE or _is_marked(x, region):
            return x
        stored = _stored_low(x)
        wide = x if stored is None else _in_float32_storage(x)
        return wide if stored == region.rules.dtype else _round(wide, region.rules.dtype)
    if type(x) in (list, tuple):
        return type(x)(_rounded_input(item, region) for item in x)
    return x


def _in_float32_storage(x: Any) -> Any:
    """What is stored in low precision as float32, for which there are kernels."""
    if isinstance(x, (Tensor, Value)):
        stored = _stored_low(x)
        if stored is None:
            return x
        return _round(x, stored) if is_float32(x) else _cast(x, FLOAT32)
    if type(x) in (list, tuple):
        return type(x)(_in_float32_storage(item) for item in x)
    return x


def _low_output(x: Any, region: Region, exact: bool, is_read_again: bool = False) -> Any:
    """``x`` rounded, unless its kernel is ``exact``, and marked."""
    if isinstance(x, (Tensor, Value)):
        if not is_float32(x) or (isinstance(x, Tensor) and not _has_memory(x)):
            return x
        if exact:
            return mark(x, region)
        if is_read_again and isinstance(x, Tensor) and not x.stop_gradient:
            round_in_place(x, region.rules.dtype)
        return mark(_round(x, region.rules.dtype), region)
    if type(x) in (list, tuple):
        return type(x)(_low_output(item, region, exact, is_read_again) for item in x)
    return x


def _unmarked(x: Any) -> Any:
    """The values of ``x``, which is stored in float32, as a tensor that is really float32."""
    region = active_region()
    if isinstance(x, Tensor):
        marked = low_dtype(x) is not None
    else:
        marked = region is not None and _is_marked(x, region)
    return _assign(x) if marked else _in_float32_storage(x)


def in_dtype(x: Any, dtype: str) -> Any:
    """Floating-point ``x`` (float64 apart) in ``dtype``, as the ops of the open region see it.

    What is low is rounded and marked, in float32 storage; float32 is a tensor without a mark.
    """
    region = active_region()
    if region is None or not isinstance(x, (Tensor, Value)) or x.dtype not in CASTABLE:
        return x
    if dtype == "float32":
        return _unmarked(x)
    if dtype == region.rules.dtype:
        return x if _is_marked(x, region) else mark(_rounded_input(x, region), region)
    return mark(_round(_unmarked(x), dtype), region, dtype)


# -------------------------------------------------------------------------------- what kernels need

# Only the first input decides and is cast; scale, bias and statistics stay float32 (amp_utils.h;
# cuDNN's batch norm does the same under torch).
_FIRST_INPUT_DECIDES = frozenset({"batch_norm", "batch_norm_", "sync_batch_norm_", "layer_norm"})

# The outputs that are results; the others are caches and statistics, some without memory.
RESULTS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys([*_FIRST_INPUT_DECIDES, "einsum", "instance_norm", "group_norm"], (0,)),
    **dict.fromkeys(["rms_norm", "flash_attn", "dropout"], (0,)),
    "rnn": (0, 2),
}

# The loss is float32 then (and the softmax is not).
_RESULTS_IN_BFLOAT16: Mapping[str, tuple[int, ...]] = {"cross_entropy_with_softmax": (0,)}

# Kernels whose outputs are inputs again: representable inputs need no rounding afterwards.
_EXACT = frozenset(
    {
        # shape and order
        *("as_strided", "assign", "broadcast_tensors", "clone", "concat", "contiguous", "crop"),
        *("detach", "diag", "diagonal", "expand", "expand_as", "flatten", "flip", "meshgrid"),
        *("pixel_shuffle", "pixel_unshuffle", "repeat_interleave", "reshape", "reverse", "roll"),
        *("slice", "split", "split_with_num", "squeeze", "stack", "strided_slice", "tile"),
        *("transpose", "tril", "triu", "unbind", "unfold", "unsqueeze", "unstack", "view_shape"),
        # choice among the inputs
        *("amax", "amin", "argsort", "gather", "gather_nd", "index_sample", "index_select"),
        *("kthvalue", "masked_select", "max", "max_pool2d_with_index", "max_pool3d_with_index"),
        *("maximum", "min", "minimum", "mode", "take_along_axis", "topk", "unique", "where"),
        # sign
        *("abs", "relu", "sign"),
    }
)

# Kernels whose gradients are computed from their results, which a device has rounded.
_READ_BY_THE_BACKWARD = frozenset(
    {
        *("exp", "expm1", "sqrt", "rsqrt", "reciprocal", "divide", "cumprod", "prod", "erfinv"),
        *("sigmoid", "tanh", "hardsigmoid", "relu6", "elu", "selu", "softmax", "log_softmax"),
        *("logsumexp", "logcumsumexp", "p_norm", "frobenius_norm", "dist", "group_norm"),
        *("cross_entropy_with_softmax", "gumbel_softmax", "lp_pool2d"),
    }
)

# Kernels that take rows of an input -> which one.
_TABLES: Mapping[str, int] = {"embedding": 1}

# Changes in place that keep the mark, for the same reason.
EXACT_IN_PLACE = frozenset(
    {"relu_", "reshape_", "flatten_", "squeeze_", "unsqueeze_", "transpose_"}
)

# Tensor operators that C++ binds without a look at _C_ops -> their kernel.
OPERATORS: Mapping[str, str] = {
    "matmul": "matmul",
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "div": "divide",
    "pow": "elementwise_pow",
    "mod": "remainder",
    "floordiv": "floor_divide",
}

# Tensor methods bound in C++ that return the same values -> the kernel whose rule they follow.
_COPIES: Mapping[str, str] = {
    "__getitem__": "slice",
    "clone": "assign",
    "detach": "assign",
    "contiguous": "assign",
    "_use_gpudnn": "assign",
    "_new_shared_tensor": "assign",
}

# Methods that return the tensor itself where the dtype is the same already.
_CONVERSIONS = ("astype", "cast", "float", "to", "type_as")


# ------------------------------------------------------------------------------------ replacements


class _Needs(NamedTuple):
    """What is special about a kernel."""

    exact: bool = False
    decides: int | None = None
    """How many of the inputs decide and are cast; None for all."""
    results: tuple[int, ...] | None = None
    """Which of several outputs are cast; None for all."""
    table: int | None = None
    """Which input is one that the kernel takes rows of."""
    results_in_bfloat16: tuple[int, ...] | None = None
    """The same under bfloat16, where that is another rule."""
    is_read_again: bool = False
    """Whether the gradient is computed from the result."""


def _run(
    kernel: Function, args: Any, kwargs: Any, region: Region, category: Category, needs: _Needs
) -> Any:
    """``kernel(*args, **kwargs)`` by ``category``."""
    if needs.table is not None and _is_low_parameter(args[needs.table]):
        return _looked_up(kernel, args, kwargs, region, category, needs.table)
    deciding, others = (args, ()) if needs.decides is None else _split(args, needs.decides)
    options, other_options = (kwargs, {}) if needs.decides is None else ({}, kwargs)
    if category == "allow":
        args = (*(_rounded_input(x, region) for x in deciding), *map(_in_float32_storage, others))
        kwargs = {key: _rounded_input(x, region) for key, x in options.items()} | other_options
        return _low_results(kernel(*args, **kwargs), region, needs)
    found = _survey(deciding, region) | _survey(options.values(), region)
    if (found | _survey(others, region)) & _STORED_LOW:
        args = tuple(_in_float32_storage(x) for x in args)
        kwargs = {key: _in_float32_storage(x) for key, x in kwargs.items()}
    output = kernel(*args, **kwargs)
    if category == "promote" and found & (_NARROW | _WIDE) == _NARROW:
        return _low_results(output, region, needs)
    return output


def _split(args: Any, count: int) -> tuple[Any, Any]:
    return args[:count], args[count:]


def _looked_up(
    kernel: Function, args: Any, kwargs: Any, region: Region, category: Category, table: int
) -> Any:
    """Rows of a parameter that is read rounded: the rows are, not the whole of it.

    It is the same, also for the gradient, which may be sparse.
    """
    dtype = low_dtype_of(args[table])
    assert dtype is not None
    rows = _round(kernel(*args, **kwargs), dtype)
    if category == "allow" or (category == "promote" and dtype == region.rules.dtype):
        return _low_output(rows, region, exact=dtype == region.rules.dtype)
    return rows


def _low_results(output: Any, region: Region, needs: _Needs) -> Any:
    results = needs.results
    if needs.results_in_bfloat16 is not None and region.rules.dtype == "bfloat16":
        results = needs.results_in_bfloat16
    if results is None or not isinstance(output, (list, tuple)):
        return _low_output(output, region, needs.exact, needs.is_read_again)
    return type(output)(
        _low_output(item, region, needs.exact, needs.is_read_again) if index in results else item
        for index, item in enumerate(output)
    )


def _following_rule(name: str, original: Function) -> Function:
    """``original``, which is the kernel ``name`` or calls it, made to follow the region's rule."""
    needs = _Needs(
        name in _EXACT,
        1 if name in _FIRST_INPUT_DECIDES else None,
        RESULTS.get(name),
        _TABLES.get(name),
        _RESULTS_IN_BFLOAT16.get(name),
        name in _READ_BY_THE_BACKWARD,
    )
    active = _interception.active

    @wraps(original)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        region = active.get()
        if region is None:
            return original(*args, **kwargs)
        return _run(original, args, kwargs, region, region.rules.category(name), needs)

    return kernel


def _cast_kernel(original: Function) -> Function:
    """A cast to 16 bits rounds and marks; any other result is not marked."""

    @wraps(original)
    def cast(x: Any, dtype: Any) -> Any:
        region = _interception.active.get()
        if region is None or not is_float32(x) or dtype not in _LOW_NAMES:
            return original(x, dtype)
        rounded = _round(x, _LOW_NAMES[dtype])
        return mark(rounded, region, _LOW_NAMES[dtype])

    return cast


def _exact_in_place(original: Function) -> Function:
    @wraps(original)
    def kernel(x: Any, *args: Any, **kwargs: Any) -> Any:
        region = _interception.active.get()
        was_low = region is not None and isinstance(x, Tensor) and _is_marked(x, region)
        output = original(x, *args, **kwargs)
        if was_low and region is not None:
            mark(x, region)
        return output

    return kernel


def _conversion(original: Function) -> Function:
    """``x.astype("float32")`` of a marked tensor is a new tensor, really float32 from now on."""

    @wraps(original)
    def convert(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(self, *args, **kwargs)
        if output is self and _interception.active.get() is not None:
            return _unmarked(self)
        return output

    return convert


# ------------------------------------------------------------------------------- where they belong


def _replacements() -> Replacements:
    return {
        id(original): (original, replacement)
        for name, original in vars(_C_ops).items()
        if (replacement := _kernel_replacement(name, original)) is not None
    }


def _kernel_replacement(name: str, original: Any) -> Function | None:
    """None for what is left alone: gradients, changes in place, the optimizers' updates."""
    if not is_op(name, original):
        return None
    if name == "cast":
        return _cast_kernel(original)
    if name in EXACT_IN_PLACE:
        return _exact_in_place(original)
    if name.endswith("_") and name not in _FIRST_INPUT_DECIDES:
        return None
    return _following_rule(name, original)


def _tensor_sites() -> list[Site]:
    """Sites on the Tensor class itself, most of which C++ binds."""
    operators = {f"__{prefix}{n}__": k for n, k in OPERATORS.items() for prefix in ("", "r")}
    replacements = {
        attribute: _following_rule(kernel, vars(Tensor)[attribute])
        for attribute, kernel in {**operators, **_COPIES}.items()
        if attribute in vars(Tensor)
    }
    replacements |= {name: _conversion(vars(Tensor)[name]) for name in _CONVERSIONS}
    sites = [Site(Tensor, name, vars(Tensor)[name], new) for name, new in replacements.items()]
    return [*sites, *_operators_of_traced_values()]


def _operators_of_traced_values() -> Iterator[Site]:
    """Those that hold their kernel in a closure (``@`` and ``*``), where no name is looked up."""
    kernels = {id(kernel): name for name, kernel in vars(_C_ops).items() if is_op(name, kernel)}
    for attribute, operator in list(vars(Value).items()):
        for cell in getattr(operator, "__closure__", None) or ():
            name = kernels.get(id(cell.cell_contents))
            if name is not None:
                yield Site(Value, attribute, operator, _following_rule(name, operator))


_interception: Interception[Region] = Interception(
    "ampbridge_paddle_kernels", functions.Sites(_replacements, _tensor_sites)
)


# ------------------------------------------------------------------------------------- the region


def open_region(rules: Rules) -> AbstractContextManager[None]:
    """A region of simulated precision under ``rules``."""
    outer = active_region()
    return entering(Region(rules, outer.marked_values if outer else set()))


@contextmanager
def entering(region: Region) -> Iterator[None]:
    """Enter ``region``, new or one that ``active_region`` found elsewhere."""
    standing = function_ops.standing(region.rules.python)
    with standing, functions.interception.region(region), _interception.region(region):
        yield


@contextmanager
def intercepting_nothing() -> Iterator[None]:
    """Plain Paddle, whatever region the caller stands in."""
    with _interception.paused(), functions.interception.paused():
        yield


@contextmanager
def staying_installed() -> Iterator[None]:
    """Replacements stand, and pass straight through where no region is open, whatever opens inside."""
    functions_region = functions.interception.active.get()
    with functions.interception.region(functions_region), _interception.region(active_region()):
        yield


def active_region() -> Region | None:
    """The innermost open region of this thread or task."""
    return _interception.active.get()
