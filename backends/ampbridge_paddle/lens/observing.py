"""Seeing what runs: each op as it is called, with its gradients.

Replacements of their own stand above those of ``functions`` and ``simulation`` while a model is
observed: above the casts they see what an op is handed and, by the marks, in which precision it ran.
So plain float32, where no region replaces anything, and GPUs, where Paddle casts below Python, are
seen in the same way. A function that has a rule as a whole is one op; inside of it only the names of
its kernels are noted.

Gradients are seen by hooks: on an op's results, and on views of its inputs that are handed to it in
their place, so that what this op alone adds to an input's gradient is told from the rest. Where low
precision is simulated, rounding happens at the results of the op before; a gradient is reported as
it is rounded there.

Not seen: what an activation checkpoint runs again, and the gradient that a sparse embedding's table
is left (Paddle's views take no sparse gradients).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial, wraps
from inspect import unwrap
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import paddle

from ampbridge.adapters.backend import Array, Model
from ampbridge.adapters.interception import Interception, Site
from ampbridge.adapters.nested import leaves, map_leaves
from ampbridge.adapters.observation import Kernel, Observer, OpCall, Operand
from ampbridge.policies import function_ops, op_table
from ampbridge_paddle._private import method, present, private
from ampbridge_paddle.autocast import casting, execution, functions, simulation
from ampbridge_paddle.autocast.dtypes import LOW
from ampbridge_paddle.autocast.functions import Function, Replacements
from ampbridge_paddle.autocast.rounding import round_to
from ampbridge_paddle.autocast.rules import SAME_OP, SEEN_THROUGH, functions_of_ops, is_op
from ampbridge_paddle.model import decorating
from ampbridge_paddle.model.low_weights import low_dtype_of, read_like
from ampbridge_paddle.step.sparse_gradients import dense_values, merged

_Tensor: Any = paddle.Tensor
_C_ops = private("paddle._C_ops")
_assign = private("paddle._C_ops.assign")
_cast = private("paddle._C_ops.cast")
_detach: Callable[[Array], Array] = vars(_Tensor)["detach"]

_NAMES = {getattr(paddle, name): name for name in ("float16", "bfloat16", "float32", "float64")}


@contextmanager
def observe(model: Model, observer: Observer, *, gradients: bool) -> Iterator[None]:
    """See ``Backend.observe``. Compiled functions run eagerly in other threads, too, meanwhile."""
    place = _Place(_Reporter(model, observer, gradients))
    functions = function_ops.watched(_function_op)
    with simulation.staying_installed(), _interception.region(place), functions:
        yield


class _Place(NamedTuple):
    """Where in a forward pass a call is made from.

    Attributes:
        layer: the innermost layer that is running.
        spelling: the function or layer that was called, where several ops share one kernel.
        kernels: of the op that is running; None outside of ops.
    """

    reporter: _Reporter
    layer: str = ""
    spelling: str = ""
    kernels: list[Kernel] | None = None


class _Reporter:
    """Reports the ops of one forward pass."""

    def __init__(self, model: Model, observer: Observer, gradients: bool) -> None:
        self.names = {id(layer.layer): layer.name for layer in decorating.layers(model)}
        self._observer = observer
        self._gradients = gradients
        self._numbers = count()
        self._computes_at_once = execution.on_cpu()

    def op(
        self,
        place: _Place,
        name: Callable[[Sequence[Kernel]], str],
        run: Function,
        args: Any,
        kwargs: Any,
        *,
        kernels: Sequence[Kernel] = (),
        results: tuple[int, ...] | None = None,
        in_place: bool = False,
        takes_views: bool = True,
    ) -> Any:
        """Run an op and report it.

        Args:
            name: names it by its kernels.
            kernels: those that are known beforehand.
            results: which of several outputs are results, the others being caches; None for all.
            in_place: whether it writes into an input.
            takes_views: whether it may be handed views of its inputs.
        """
        inputs = _floating((args, kwargs))
        if not inputs:
            return run(*args, **kwargs)
        handed = _Handed(in_place)
        with casting.dispatched_as_it_is():
            seen = [_operand(x, in_place) for x in inputs]
            if self._gradients and takes_views and paddle.is_grad_enabled():
                args, kwargs = map_leaves(handed.over, (args, kwargs))
        made_of = list(kernels)
        started = time.perf_counter()
        with _interception.paused(place._replace(kernels=made_of)):
            result = run(*args, **kwargs)
        seconds = time.perf_counter() - started if self._computes_at_once else None
        if in_place:
            with casting.dispatched_as_it_is():
                result = map_leaves(handed.written_back, result)
        several = results is not None and isinstance(result, (list, tuple))
        outputs = _floating([result[index] for index in results or ()] if several else result)
        returned = [_operand(x) for x in outputs]
        dtypes = {operand.dtype for operand in returned[:1] or seen}  # the widest, of the inputs'
        wide = "float64" if "float64" in dtypes else "float32"
        ran_in = dtypes.pop() if len(dtypes) == 1 else wide
        number = next(self._numbers)
        call = OpCall(number, name(made_of), place.layer, ran_in, tuple(made_of), seconds)
        self._observer.op_ran(call, seen, returned)
        if self._gradients:
            _hook(call, outputs, returned, self._observer.gradient_arrived)
            _hook(call, handed.hooked, seen, self._observer.gradient_left)
        return result


def _hook(
    call: OpCall,
    tensors: Sequence[Array],
    operands: Sequence[Operand],
    report: Callable[[OpCall, int, Operand], None],
) -> None:
    """Report the gradients of ``tensors`` when they arrive."""

    def reported(index: int, dtype: str, gradient: Array) -> None:
        if _interception.active.get() is not None:  # a gradient that the forward pass itself takes
            return
        with paddle.no_grad():
            report(call, index, _in(dtype, _detach(gradient)))

    for index, (tensor, operand) in enumerate(zip(tensors, operands, strict=False)):
        if not tensor.stop_gradient and not tensor.is_leaf:
            tensor.register_hook(partial(reported, index, operand.dtype))


class _Handed:
    """Hands views of the inputs over to one op.

    An op in place writes into the first. It gets a copy of that; what is written is then assigned to
    the input itself, which gives it the op's history.
    """

    def __init__(self, in_place: bool) -> None:
        self._in_place = in_place
        self._originals: dict[int, Array] = {}
        self.hooked: list[Array] = []

    def over(self, x: Any) -> Any:
        if not _is_floating(x):
            return x
        is_written = self._in_place and not self.hooked
        # A leaf cannot be written to; Paddle says so itself.
        if x.stop_gradient or (is_written and x.is_leaf):
            self.hooked.append(x)
            return x
        view = _view(x)
        self.hooked.append(view)
        if is_written:
            view = _view(_assign(view))
            self._originals[id(view)] = x
        return read_like(simulation.marked_like(view, x), x)

    def written_back(self, x: Any) -> Any:
        original = self._originals.get(id(x))
        if original is None:
            return x
        _itself("assign_out_")(x, original)
        return simulation.marked_like(original, x)


def _view(x: Array) -> Array:
    """A view of ``x``, which is another node of the graph; a copy of what is empty and has no views."""
    return _assign(x) if 0 in x.shape else _itself("view_shape")(x, x.shape)


@cache
def _itself(kernel: str) -> Function:
    """The kernel itself, below what replaces it while regions are open."""
    found: Function = unwrap(private(f"paddle._C_ops.{kernel}"))
    return found


# -- tensors that are seen


def _is_floating(x: Any) -> bool:
    if not isinstance(x, _Tensor) or x.dtype not in _NAMES:
        return False
    return bool(method("Tensor", x, "_is_initialized")())  # outputs that nobody asked for are not


def _floating(tree: Any) -> list[Array]:
    return [x for x in leaves(tree) if _is_floating(x)]


def _operand(x: Array, copied: bool = False) -> Operand:
    with paddle.no_grad():
        values = _assign(x) if copied else _detach(x)
        return _in(simulation.low_dtype(x) or low_dtype_of(x) or _NAMES[x.dtype], values)


def _in(dtype: str, values: Array) -> Operand:
    """``values``, rounded if they are stored in float32 and meant to be in a low ``dtype``."""
    if values.dtype == paddle.float32 and dtype in LOW:
        return Operand(round_to(values, dtype), dtype)
    return Operand(values, _NAMES[values.dtype])


# -- names

# Kernels of no rule that move, make or convert values.
_MOVES = frozenset(
    {
        *("array_to_tensor", "as_real", "as_strided", "assign_out_", "assign_value"),
        *("broadcast_tensors", "builtin_combine", "builtin_split", "cast", "coalesce_tensor"),
        *("complex", "copy_to", "crop", "depend", "diag_embed", "diagonal", "empty", "empty_like"),
        *("eye", "fill", "full", "full_like", "full_with_tensor", "gaussian_inplace"),
        *("identity_loss", "imag", "index_elementwise_get", "index_elementwise_put"),
        *("index_elementwise_put_with_tensor", "index_sample", "index_select_strided", "linspace"),
        *("logspace", "memcpy", "memcpy_d2h", "memcpy_h2d", "meshgrid", "npu_identity", "numel"),
        *("ones_like", "print", "real", "repeat_interleave", "repeat_interleave_with_tensor_index"),
        *("reshard", "reverse", "set", "set_value", "set_value_with_tensor", "shape", "shape64"),
        *("share_data", "share_var", "slice_array", "slice_array_dense", "tensor_unfold"),
        *("trans_layout", "uniform_inplace", "view_shape", "view_slice", "zeros_like"),
    }
)

# They change a tensor's shape in place, or its values without reading them.
_MOVES_IN_PLACE = simulation.EXACT_IN_PLACE - {"relu_"} | {"assign_", "cast_", "share_data_"}


@cache
def _op_of_kernel(name: str, spelling: str = "") -> str | None:
    """The op as the lens names it; None for what the table has not and that only moves values.

    Of ops that share a kernel it is the one whose function was called, else the kernel's owner.
    """
    candidates = _ops_named(name) or _ops_named(name.removesuffix("_"))
    for op in candidates:
        if spelling in op_table.ops()[op].names.get("paddle_api", ()):
            return op
    if candidates:
        return candidates[0]
    return None if name.removesuffix("_") in _MOVES else f"paddle:{name}"


def _ops_named(kernel: str) -> tuple[str, ...]:
    return op_table.native_names("paddle_ops").get(SAME_OP.get(kernel, kernel), ())


def _sharing_a_kernel() -> frozenset[str]:
    """The functions and layers whose kernel other ops have, too."""
    shared = {op for ops in op_table.native_names("paddle_ops").values() for op in ops if ops[1:]}
    return frozenset(n for op in shared for n in op_table.ops()[op].names.get("paddle_api", ()))


# -- replacements


def _place() -> _Place | None:
    """Where this call is made from; None where ops are not seen."""
    place = _interception.active.get()
    if place is None or private("paddle.base.core.eager._is_run_in_backward")():
        return None
    return place


def _function_op(
    name: str, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Run a Python function that somebody has made an op."""
    place = _place()
    if place is None or place.kernels is not None:
        return function(*args, **kwargs)
    return place.reporter.op(place, lambda _: name, function, args, kwargs)


def _kernel(name: str, replaced: Function, with_number: str | None = None) -> Function:
    """Report what calls the kernel ``name``, or ``with_number`` if a Python number is beside a tensor."""
    in_place = name.endswith("_") and not _ops_named(name)
    # The loss is what its callers know; the softmax beside it is kept for the backward pass.
    results = (1,) if name == "cross_entropy_with_softmax" else simulation.RESULTS.get(name)

    @wraps(replaced)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        place = _place()
        if place is None:
            return replaced(*args, **kwargs)
        inputs = _floating((args, kwargs))
        called = with_number if with_number and isinstance(args[1], (int, float)) else name
        known = (Kernel(called, _NAMES[inputs[0].dtype]),) if inputs else ()
        if place.kernels is not None:
            place.kernels.extend(known)
            return replaced(*args, **kwargs)
        op = _op_of_kernel(name, place.spelling) or name
        gradient_is_sparse = name == "embedding" and len(args) > 3 and bool(args[3])
        return place.reporter.op(
            place,
            lambda _: op,
            replaced,
            args,
            kwargs,
            kernels=known,
            results=results,
            in_place=in_place,
            takes_views=not gradient_is_sparse,
        )

    return kernel


def _function(name: str, replaced: Function) -> Function:
    """Report a function as one op, or note its name for the ops that it calls."""
    results = simulation.RESULTS.get(functions.KERNELS_ELSEWHERE.get(name, ""))

    @wraps(replaced)
    def function(*args: Any, **kwargs: Any) -> Any:
        place = _place()
        if place is None or place.kernels is not None:
            return replaced(*args, **kwargs)
        place = place._replace(spelling=name)
        if not _is_one_op(name, args, kwargs):
            with _interception.paused(place):
                return replaced(*args, **kwargs)
        naming = partial(_op_of_function, name)
        return place.reporter.op(place, naming, replaced, args, kwargs, results=results)

    return function


def _is_one_op(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the open region has a rule for all of it; in float32, whether most regions do."""
    region = functions.interception.active.get()
    if name in functions.CONVOLUTIONS:
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        return bias is not None and (region is None or region.rules.bias_follows)
    if name in functions.KERNELS_ELSEWHERE:
        return True
    if region is None or region.rules.dtype == "float32":
        return functions_of_ops().get(name) not in (None, *SEEN_THROUGH)
    rule = region.rules.functions.get(name)
    # A layer whose rule is to follow its inputs counts as its parts.
    return rule is not None and not (rule == "promote" and name in functions.layers())


def _op_of_function(name: str, kernels: Sequence[Kernel]) -> str:
    if name in functions_of_ops():
        return functions_of_ops()[name]
    # Else it is a convolution with its bias.
    called = functions.KERNELS_ELSEWHERE.get(name)
    kernel = called or next(kernel.name for kernel in kernels if "conv" in kernel.name)
    return _op_of_kernel(kernel, name) or kernel


def _forward(name: str, replaced: Function) -> Function:
    """Report the forward of a layer as one op, whose inputs include the layer's parameters."""

    @wraps(replaced)
    def forward(layer: Any, *inputs: Any, **options: Any) -> Any:
        place = _place()
        if place is None or place.kernels is not None or not _is_one_op(name, (), {}):
            return replaced(layer, *inputs, **options)

        held = method("Layer", layer, "_parameters")
        own = dict(held)

        def run(*values: Any, **options: Any) -> Any:
            *inputs, parameters = values
            held.update(parameters)
            try:
                return replaced(layer, *inputs, **options)
            finally:
                held.update(own)

        naming = partial(_op_of_function, name)
        return place.reporter.op(place, naming, run, (*inputs, own), options)

    return forward


def _layer_call(replaced: Function) -> Function:
    """Note which layer is called. Those of the model have names."""
    spellings = [
        (kind, name)
        for name in sorted(_sharing_a_kernel())
        if isinstance(kind := present(name), type)
    ]

    @wraps(replaced)
    def call(layer: Any, *inputs: Any, **options: Any) -> Any:
        place = _place()
        if place is None or place.kernels is not None:
            return replaced(layer, *inputs, **options)
        name = place.reporter.names.get(id(layer), place.layer)
        spelling = next((s for kind, s in spellings if isinstance(layer, kind)), place.spelling)
        with _interception.paused(place._replace(layer=name, spelling=spelling)):
            return replaced(layer, *inputs, **options)

    return call


# -- where they belong

# Tensor operators that C++ binds and that no region replaces -> their kernel.
_COMPARISONS: Mapping[str, str] = {
    "__eq__": "equal",
    "__ne__": "not_equal",
    "__gt__": "greater_than",
    "__ge__": "greater_equal",
    "__lt__": "less_than",
    "__le__": "less_equal",
}
_METHODS = {"__getitem__": "slice", "clone": "assign"}

# Operators that call another kernel where the other side is a Python number.
_WITH_NUMBERS: Mapping[str, str] = {
    **dict.fromkeys(["__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__"], "scale"),
    **dict.fromkeys(["__div__", "__truediv__"], "div_scale"),
    "__pow__": "pow",
}


@cache
def _kernels() -> Mapping[str, tuple[Any, Function]]:
    """What a region has put in the place of each kernel, and what reports that, by the kernel's name."""
    names = [name for name, own in vars(_C_ops).items() if is_op(name, unwrap(own))]
    seen = {name: getattr(_C_ops, name) for name in names if _computes(name)}
    return {name: (replaced, _kernel(name, replaced)) for name, replaced in seen.items()}


def _replacements() -> Replacements:
    yield from _kernels().values()
    named = {*functions_of_ops(), *functions.KERNELS_ELSEWHERE, *functions.CONVOLUTIONS}
    for name in sorted(named | _sharing_a_kernel()):
        if not isinstance(present(name), type):
            yield present(name), _function(name, present(name))


def _computes(name: str) -> bool:
    """Whether a kernel is reported. Those in place are if they are ops without that, too."""
    if name in _MOVES_IN_PLACE or _op_of_kernel(name) is None:
        return False
    base = name.removesuffix("_")
    return base == name or bool(_ops_named(name) or _ops_named(base) or base in vars(_C_ops))


def _class_sites() -> list[Site]:
    prefixed = {f"__{p}{n}__": k for n, k in simulation.OPERATORS.items() for p in ("", "r")}
    operators = {**prefixed, **_COMPARISONS, **_METHODS}
    own, call = vars(_Tensor), vars(paddle.nn.Layer)["__call__"]
    layers = [(n, vars(layer)["forward"], layer) for n, layer in functions.layers().items()]
    return [
        *(Site(_C_ops, n, vars(_C_ops)[n], new) for n, (_, new) in _kernels().items()),
        *(
            Site(_Tensor, name, own[name], _kernel(kernel, own[name], _WITH_NUMBERS.get(name)))
            for name, kernel in operators.items()
            if name in own
        ),
        *(Site(layer, "forward", owns, _forward(name, owns)) for name, owns, layer in layers),
        Site(_Tensor, "__neg__", own["__neg__"], _function("paddle.neg", own["__neg__"])),
        Site(paddle.nn.Layer, "__call__", call, _layer_call(call)),
    ]


def _running_eagerly() -> Site:
    """Let what ``paddle.jit.to_static`` has compiled run as plain Python."""
    translator = private("paddle.jit.dy2static.program_translator.ProgramTranslator")()
    compiles = method("ProgramTranslator", translator, "enable_to_static")
    return Site(translator, "enable_to_static", compiles, False)


_sites = functions.Sites(_replacements, _class_sites)

_interception: Interception[_Place] = Interception(
    "ampbridge_paddle_observing", lambda: [*_sites(), _running_eagerly()]
)


# -- values and memory


def to_numpy(x: Array) -> np.ndarray:
    """See ``Backend.to_numpy``; of a sparse gradient the rows that it has, each once."""
    with paddle.no_grad():
        values = dense_values(merged(x)) if x.is_selected_rows() else x
        is_wide = values.dtype in (paddle.float32, paddle.float64)
        found: np.ndarray = (values if is_wide else _cast(values, paddle.float32)).numpy()
        return found


def peak_memory(action: Callable[[], None]) -> int | None:
    """See ``Backend.peak_memory``: by Paddle's own count, whose peak begins anew."""
    if not execution.on_cpu():
        paddle.device.reset_max_memory_allocated()
        before = paddle.device.memory_allocated()
        action()
        return int(paddle.device.max_memory_allocated() - before)
    private("paddle.base.core.host_memory_stat_reset_peak_value")("Allocated", 0)
    before = private("paddle.base.core.host_memory_stat_current_value")("Allocated", 0)
    action()
    return int(private("paddle.base.core.host_memory_stat_peak_value")("Allocated", 0) - before)
