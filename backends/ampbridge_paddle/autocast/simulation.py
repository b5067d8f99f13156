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
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any

import paddle

from ampbridge.adapters.interception import Interception, Site, looked_up_in
from ampbridge.policies import function_ops
from ampbridge.policies.op_table import Category
from ampbridge_paddle._private import method, private
from ampbridge_paddle.autocast import functions
from ampbridge_paddle.autocast.dtypes import CASTABLE, FLOAT32, FLOAT64, LOW_NAMES, is_float32
from ampbridge_paddle.autocast.functions import Function
from ampbridge_paddle.autocast.rounding import round_in_place, round_to, round_traced
from ampbridge_paddle.autocast.rules import Rules, is_op
from ampbridge_paddle.model.low_weights import low_dtype_by_name, low_dtype_of

Tensor: type[Any] = paddle.Tensor
Value = paddle.pir.Value
_C_ops = private("paddle._C_ops")
_assign = private("paddle._C_ops.assign")
_cast = private("paddle._C_ops.cast")
_version = method("Tensor", Tensor, "_inplace_version")
_has_memory = method("Tensor", Tensor, "_is_initialized")


@dataclass(frozen=True)
class Region:
    """An open region: its rules, and the marked values of programs traced in it.

    A traced value has no place for a mark; it is known by its address, which is its own for as long
    as the program that is being traced.
    """

    rules: Rules
    marked_values: set[int] = field(default_factory=set)

    # What functions and layers do in it, see ``functions.FunctionRegion``.

    def call(self, name: str, function: Function, args: Any, kwargs: Any) -> Any:
        if name == functions.LINEAR and functions.linear_is_a_kernel():
            return function(*args, **kwargs)
        kernel = functions.KERNELS_ELSEWHERE.get(name, "")
        category = self.rules.category(kernel) if kernel else self.rules.functions.get(name)
        is_layer = name in functions.layers()
        if category is None or (is_layer and category == "promote"):
            return function(*args, **kwargs)
        if not is_layer:
            return self.call_whole(category, function, args, kwargs, kernel)
        inside = Region(self.rules.everything(category), self.marked_values)
        with _interception.paused(inside), functions.interception.paused():
            return function(*args, **kwargs)

    def call_whole(
        self, rule: Category, function: Function, args: Any, kwargs: Any, kernel: str = ""
    ) -> Any:
        def in_float32(*inputs: Any, **options: Any) -> Any:
            with intercepting_nothing():
                return function(*inputs, **options)

        return _run(in_float32, args, kwargs, self, rule, kernel)

    def add_bias(self, output: Any, bias: Any, shape: list[int]) -> Any:
        """If the output is in low precision, it is rounded before the bias and after it, as on a GPU."""
        if not _is_marked(output, self):
            return paddle.add(output, bias.reshape(shape))
        bias = _rounded_input(bias, self)
        with _interception.paused():
            total = paddle.add(output, bias.reshape(shape))
        return _low_output(total, self)


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
    """Mark ``x``, which holds the values of ``other``, like that."""
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
            in_float32 = is_float32(x)
            if in_float32 and _is_marked(x, region):
                found |= _NARROW
            elif (stored := _stored_low(x)) is not None:
                found |= _STORED_LOW | (_NARROW if stored == region.rules.dtype else _WIDE)
            elif in_float32 or x.dtype == FLOAT64:
                found |= _WIDE
        elif isinstance(x, (list, tuple)):
            found |= _survey(x, region)
    return found


def _stored_low(x: Any) -> str | None:
    """The low precision of a really 16-bit tensor or of a parameter that is read so, or None."""
    if not is_float32(x):
        return LOW_NAMES.get(x.dtype)
    if isinstance(x, Tensor):
        return low_dtype_of(x)
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


def _each(function: Callable[..., Any], x: Any, *settings: Any) -> Any:
    """``function`` of a tensor, or of each tensor in a list or tuple; anything else as it is."""
    if isinstance(x, (Tensor, Value)):
        return function(x, *settings)
    if type(x) in (list, tuple):
        return type(x)(_each(function, item, *settings) for item in x)
    return x


def _rounded_input(x: Any, region: Region) -> Any:
    if x.dtype not in CASTABLE or _is_marked(x, region):
        return x
    stored = _stored_low(x)
    wide = x if stored is None else _in_float32_storage(x)
    return wide if stored == region.rules.dtype else _round(wide, region.rules.dtype)


def _in_float32_storage(x: Any) -> Any:
    """``x`` in float32, for which there are kernels, if it is stored in low precision."""
    stored = _stored_low(x)
    if stored is None:
        return x
    return _round(x, stored) if is_float32(x) else _cast(x, FLOAT32)


def _low_output(x: Any, region: Region, kernel: str = "") -> Any:
    """Mark ``x``, a result of ``kernel``, and round it unless the kernel only moves values."""
    if not is_float32(x) or (isinstance(x, Tensor) and not _has_memory(x)):
        return x
    if kernel in _EXACT:
        return mark(x, region)
    if kernel in _READ_BY_THE_BACKWARD and isinstance(x, Tensor) and not x.stop_gradient:
        round_in_place(x, region.rules.dtype)
    return mark(_round(x, region.rules.dtype), region)


def _unmarked(x: Any) -> Any:
    """The values of ``x`` as a tensor that is really float32, and not only stored so."""
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

# Changes in place that keep the mark, for the same reason.
EXACT_IN_PLACE = {"relu_", "reshape_", "flatten_", "squeeze_", "unsqueeze_", "transpose_"}

# Tensor operators that C++ binds without a look at _C_ops -> their kernel.
OPERATORS: Mapping[str, str] = {
    "matmul": "matmul",
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "pow": "elementwise_pow",
    "truediv": "divide",
    "div": "divide",
    "mod": "remainder",
    "floordiv": "floor_divide",
}

# Tensor methods bound in C++ that return the same values -> the kernel whose rule they follow.
_COPIES: Mapping[str, str] = {
    "__getitem__": "slice",
    **dict.fromkeys(["clone", "detach", "contiguous"], "assign"),
    **dict.fromkeys(["_use_gpudnn", "_new_shared_tensor"], "assign"),
}

# Methods that return the tensor itself where the dtype is the same already.
_CONVERSIONS = ("astype", "cast", "float", "to", "type_as")


# ------------------------------------------------------------------------------------ replacements


def _run(
    function: Function, args: Any, kwargs: Any, region: Region, category: Category, kernel: str
) -> Any:
    """Run ``function`` by the rule ``category``. ``kernel`` tells what is special about it."""
    if kernel == "embedding" and isinstance(args[1], Tensor) and (low := low_dtype_of(args[1])):
        return _looked_up(function, args, kwargs, region, category, low)
    deciding, others, options, other_options = args, (), kwargs, {}
    if kernel in _FIRST_INPUT_DECIDES:
        deciding, others, options, other_options = args[:1], args[1:], {}, kwargs
    if category == "allow":
        args = (*_each(_rounded_input, deciding, region), *_each(_in_float32_storage, others))
        rounded = {key: _each(_rounded_input, x, region) for key, x in options.items()}
        kwargs = rounded | other_options
        return _low_results(function(*args, **kwargs), region, kernel)
    found = _survey(deciding, region) | _survey(options.values(), region)
    if (found | _survey(others, region)) & _STORED_LOW:
        args = _each(_in_float32_storage, args)
        kwargs = {key: _each(_in_float32_storage, x) for key, x in kwargs.items()}
    output = function(*args, **kwargs)
    if category == "promote" and found & (_NARROW | _WIDE) == _NARROW:
        return _low_results(output, region, kernel)
    return output


def _looked_up(
    function: Function, args: Any, kwargs: Any, region: Region, category: Category, dtype: str
) -> Any:
    """Take rows of a parameter that is read rounded, and round only these rows.

    It is the same, also for the gradient, which may be sparse.
    """
    rows = _round(function(*args, **kwargs), dtype)
    if category == "deny" or (category == "promote" and dtype != region.rules.dtype):
        return rows
    # Rows of a table in this precision are gathered, those of another are rounded once more.
    return _low_output(rows, region, "gather" if dtype == region.rules.dtype else "")


def _low_results(output: Any, region: Region, kernel: str) -> Any:
    results = RESULTS.get(kernel)
    if kernel == "cross_entropy_with_softmax" and region.rules.dtype == "bfloat16":
        results = (0,)  # the softmax; the loss is float32 then
    if results is None or not isinstance(output, (list, tuple)):
        return _each(_low_output, output, region, kernel)
    return type(output)(
        _each(_low_output, item, region, kernel) if index in results else item
        for index, item in enumerate(output)
    )


def _following_rule(name: str, original: Function) -> Function:
    """Make ``original``, which is the kernel ``name`` or calls it, follow the region's rule."""
    active = _interception.active

    @wraps(original)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        region = active.get()
        if region is None:
            return original(*args, **kwargs)
        return _run(original, args, kwargs, region, region.rules.category(name), name)

    return kernel


def _cast_kernel(original: Function) -> Function:
    """Let a cast to 16 bits round and mark. Any other cast marks nothing."""

    @wraps(original)
    def cast(x: Any, dtype: Any) -> Any:
        region = _interception.active.get()
        if region is None or not is_float32(x) or dtype not in LOW_NAMES:
            return original(x, dtype)
        return mark(_round(x, LOW_NAMES[dtype]), region, LOW_NAMES[dtype])

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
    """Let ``x.astype("float32")`` of a marked tensor return a new tensor that is really float32."""

    @wraps(original)
    def convert(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(self, *args, **kwargs)
        if output is self and _interception.active.get() is not None:
            return _unmarked(self)
        return output

    return convert


# ------------------------------------------------------------------------------- where they belong


@cache
def _kernels() -> dict[str, tuple[Any, Function]]:
    """By name, each kernel that is replaced and its replacement.

    Gradients, changes in place and the optimizers' updates are left alone.
    """
    found: dict[str, tuple[Any, Function]] = {}
    for name, original in vars(_C_ops).items():
        if not is_op(name, original):
            continue
        if name == "cast":
            found[name] = original, _cast_kernel(original)
        elif name in EXACT_IN_PLACE:
            found[name] = original, _exact_in_place(original)
        elif not name.endswith("_") or name in _FIRST_INPUT_DECIDES:
            found[name] = original, _following_rule(name, original)
    return found


def _fixed_sites() -> list[Site]:
    """The sites of all kernels, where they are looked up, and of methods, most of which C++ binds."""
    operators = {f"__{prefix}{n}__": k for n, k in OPERATORS.items() for prefix in ("", "r")}
    own = vars(Tensor)
    new = {n: _following_rule(k, own[n]) for n, k in {**operators, **_COPIES}.items() if n in own}
    new |= {name: _conversion(own[name]) for name in _CONVERSIONS}
    sites = [Site(Tensor, name, own[name], replacement) for name, replacement in new.items()]
    # Operators of traced values that hold their kernel in a closure (``@`` and ``*``).
    names = {id(kernel): name for name, kernel in vars(_C_ops).items() if is_op(name, kernel)}
    for attribute, operator in list(vars(Value).items()):
        for cell in getattr(operator, "__closure__", None) or ():
            name = names.get(id(cell.cell_contents))
            if name is not None:
                sites.append(Site(Value, attribute, operator, _following_rule(name, operator)))
    return [looked_up_in(_C_ops, _kernels()), *sites]


_interception: Interception[Region] = Interception(
    "ampbridge_paddle_kernels", functions.Sites(lambda: _kernels().values(), _fixed_sites)
)


# ------------------------------------------------------------------------------------- the region


@contextmanager
def entering(region: Region) -> Iterator[None]:
    """Enter ``region``, a new one or one that ``active_region`` has found elsewhere."""
    standing = function_ops.standing(region.rules.python)
    with standing, functions.interception.region(region), _interception.region(region):
        yield


@contextmanager
def intercepting_nothing() -> Iterator[None]:
    """Let Paddle run as it is, whatever region the caller is in."""
    with _interception.paused(), functions.interception.paused():
        yield


@contextmanager
def staying_installed() -> Iterator[None]:
    """Keep all replacements installed. Where no region is open they pass straight through."""
    functions_region = functions.interception.active.get()
    with functions.interception.region(functions_region), _interception.region(active_region()):
        yield


def active_region() -> Region | None:
    """The innermost open region of this thread or task."""
    return _interception.active.get()
