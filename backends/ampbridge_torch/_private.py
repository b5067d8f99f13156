"""Every private name of torch that the adapter touches, and what breaks without it.

Checked on torch 2.13; the adapter supports torch >= 2.6. A name that moved is found when it is
first needed, and only the feature that needs it is refused.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from pkgutil import resolve_name
from traceback import walk_stack, walk_tb
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, cast

import torch
from torch.torch_version import TorchVersion

from ampbridge.errors import UnsupportedError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


INDUCTOR_CAN_KEEP_ROUNDINGS = TorchVersion(torch.__version__) >= "2.13"
"""Whether its C++ code follows ``emulate_precision_casts``; Triton's did so before."""

DYNAMO_HANDS_OVER_OBJECTS = TorchVersion(torch.__version__) >= "2.12"
"""Whether it calls ``assume_constant_result`` functions with a frozen dataclass; before, with its ``id``."""


class Name(NamedTuple):
    """One private name: where it is, what needs it, and whether there is a way without it."""

    path: str
    breaks: str
    required: bool


NAMES = {
    name.path.rpartition(".")[2]: name
    for name in (
        Name("torch._amp_foreach_non_finite_check_and_unscale_", "GradScaler.unscale", True),
        Name("torch._amp_update_scale_", "one kernel for the scale on a GPU", False),
        Name("torch._foreach_mul_", "clip_norm", True),
        Name("torch._foreach_clamp_min_", "clip_value", True),
        Name("torch._foreach_clamp_max_", "clip_value", True),
        Name("torch._foreach_add_", "accumulate", True),
        Name("torch._foreach_copy_", "O2's master weights", True),
        Name("torch.optim.Optimizer.profile_hook_step", "O2 under steps that call others", True),
        Name("torch.optim.optimizer._global_optimizer_pre_hooks", "compile=True", True),
        Name("torch.optim.optimizer._global_optimizer_post_hooks", "compile=True", True),
        Name("torch.Tensor.grad_dtype", "float32 gradients of low-precision parameters", False),
        Name("torch._foreach_abs", "telling inf from NaN on a GPU", True),
        Name("torch._foreach_sub_", "telling inf from NaN on a GPU", True),
        Name("torch._foreach_sign_", "telling inf from NaN on a GPU", True),
        Name("torch._foreach_max", "telling inf from NaN on a GPU", True),
        Name("torch.Tensor._values", "GradScaler.unscale of sparse gradients", True),
        Name("torch.overrides._get_current_function_mode_stack", "op lists", True),
        Name("torch._C._len_torch_function_stack", "op lists", True),
        Name("torch._C._get_fp32_precision_getter", "float32 by torch's new settings", False),
        Name("torch._C._set_fp32_precision_setter", "float32 by torch's new settings", False),
        Name("torch._C._push_on_torch_function_stack", "op lists", True),
        Name("torch._C._is_any_autocast_enabled", "steps within other regions", True),
        Name("torch._C._pop_torch_function_stack", "op lists", True),
        Name("torch._C._jit_get_schemas_for_operator", "lists='tensorflow' and 'paddle'", True),
        Name("torch._C._dispatch_get_registrations_for_dispatch_key", "older native lists", False),
        Name("torch._C._dispatch_has_kernel_for_dispatch_key", "merging two dtypes", True),
        Name("torch._C._parse_dispatch_key", "merging two dtypes", True),
        Name("torch._C.DispatchKeySet", "merging two dtypes", True),
        Name("torch._C._ExcludeDispatchKeyGuard", "merging two dtypes", True),
        Name("torch._C._get_privateuse1_backend_name", "lists on devices of extensions", False),
        Name("torch._C._dispatch_get_all_op_names", "names of torch's own ops", False),
        Name("torch._functorch.config", "gradients of compiled functions under lists", False),
        Name("torch._dynamo.lookup_backend", "compile=True", True),
        Name("torch._inductor.config.emulate_precision_casts", "compile=True, simulated", True),
        Name("torch.utils.checkpoint.CheckpointFunction", "reentrant checkpoints", False),
        Name(
            "torch.utils.checkpoint._checkpoint_without_reentrant_generator",
            "checkpoints without ampbridge_torch.checkpoint",
            False,
        ),
        Name("torch.cpu._is_amx_fp16_supported", "execution='auto' in float16", False),
        Name("torch.cpu._is_avx512_bf16_supported", "execution='auto' in bfloat16", False),
        Name("torch.ops.higher_order.tag_activation_checkpoint", "compiled checkpoints", False),
        Name("torch._C.DisableTorchFunction", "compile=True", True),
        Name("torch._dynamo.eval_frame.set_code_exec_strategy", "graph breaks in a region", False),
        Name("torch._dynamo.utils.counters", "a warning of what keep does not reach", False),
        Name("torch._dynamo.config.trace_autograd_ops", "compile=True, a whole step", False),
        Name("torch._dynamo.exc.TorchDynamoException", "compile=True, a whole step", True),
        Name("torch._dynamo.exc.FailOnRecompileLimitHit", "compile=True, a whole step", True),
        Name("torch._C._current_graph_task_id", "amp.lens", True),
        Name("torch._C._autograd._get_sequence_nr", "amp.lens", True),
        Name("torch.autograd.graph.Node._sequence_nr", "amp.lens", True),
        Name("torch.autograd.graph.Node._input_metadata", "amp.lens", True),
        Name("torch.autograd.Variable._execution_engine", "amp.lens", True),
        Name("torch.autograd.graph._engine_run_backward", "60 us less for a backward pass", False),
        Name("torch.ops.aten.relu.default._schema", "amp.lens", True),
        Name("torch.autograd.function._SingleLevelFunction", "amp.lens", True),
        Name("torch._C._functorch.is_functorch_wrapped_tensor", "amp.lens under torch.func", True),
        Name("torch._C._functorch.peek_interpreter_stack", "simulated low precision", True),
        Name("torch._C._functorch.get_unwrapped", "simulating under torch.func", True),
        Name("torch._C._DisableFuncTorch", "simulating under torch.func", True),
    )
}


@cache
def lookup(name: str) -> Any:
    """The object of that name in ``NAMES``. If it has moved: None, or an error if it is required."""
    entry = NAMES[name]
    try:
        return resolve_name(entry.path)
    except (AttributeError, ImportError) as error:
        if not entry.required:
            return None
        raise UnsupportedError(
            f"torch {torch.__version__} has no {entry.path}, which {entry.breaks} needs "
            "(checked with torch 2.13).\nHint: pip install 'torch==2.13.*'"
        ) from error


# Looked up at once, because Dynamo cannot trace the lookup.
function_mode_stack: Callable[[], Sequence[Any]] = lookup("_get_current_function_mode_stack")
"""The function modes of this thread, outermost first."""
function_modes: Callable[[], int] = lookup("_len_torch_function_stack")
"""The number of modes on that stack, in less time."""


def float32_settings() -> tuple[Any, Any]:
    """What reads and sets the precision of float32 by backend and op; both None before torch 2.9."""
    return lookup("_get_fp32_precision_getter"), lookup("_set_fp32_precision_setter")


def push_function_mode(mode: Any) -> None:
    """``mode.__enter__()``."""
    lookup("_push_on_torch_function_stack")(mode)


def pop_function_mode(mode: Any) -> None:
    """``mode.__exit__``, where it is the innermost one of this thread."""
    stack = function_mode_stack()
    if stack and stack[-1] is mode:
        lookup("_pop_torch_function_stack")()


@cache
def autocast_settings(
    device_type: str, dtype: torch.dtype | None
) -> tuple[bool, torch.dtype | None]:
    """Whether ``torch.autocast`` of ``dtype`` casts on a type of device, or raises; None never casts."""
    return dtype is not None and torch.autocast(device_type, dtype=dtype)._enabled, dtype


def trainable_parameters(model: torch.nn.Module) -> list[torch.Tensor]:
    """``[p for p in model.parameters() if p.requires_grad]`` at a quarter of its time.

    ``parameters`` builds every name on its way; models that override it are asked.
    """
    kind, inherited = type(model), torch.nn.Module
    if (
        kind.parameters is not inherited.parameters
        or kind.named_parameters is not inherited.named_parameters
        or kind.named_modules is not inherited.named_modules
    ):
        return [p for p in model.parameters() if p.requires_grad]
    found: dict[int, torch.Tensor] = {}
    waiting, seen = [model], set()
    while waiting:
        module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            for parameter in module._parameters.values():
                if parameter is not None and parameter.requires_grad:
                    found[id(parameter)] = parameter
            waiting += [child for child in reversed(module._modules.values()) if child is not None]
    return list(found.values())


def sparse_values(tensor: torch.Tensor) -> torch.Tensor:
    """The stored elements of a sparse tensor, coalesced or not; shares its memory."""
    return cast(torch.Tensor, lookup("_values")(tensor))


def persistent_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A module's own buffers that are part of its state; all, if torch does not say which are."""
    passing: Collection[str] = getattr(module, "_non_persistent_buffers_set", frozenset())
    own = module.named_buffers(recurse=False)
    return {name: buffer for name, buffer in own if name not in passing}


def is_sharded(parameter: torch.Tensor) -> TypeGuard[DTensor]:
    """Whether it is a DTensor, without importing what makes them."""
    return type(parameter) is not torch.nn.Parameter and hasattr(parameter, "device_mesh")


def any_is_sharded(parameters: Sequence[torch.Tensor]) -> bool:
    """Whether any of them is sharded; plain parameters show by their one type that none is."""
    return set(map(type, parameters)) != {torch.nn.Parameter} and any(map(is_sharded, parameters))


def check_gradient_dtypes() -> None:
    """Refuse a torch whose ``.grad`` has to be of its parameter's dtype."""
    if lookup("grad_dtype") is None:
        raise UnsupportedError(
            f"torch {torch.__version__} cannot hold float32 gradients of low-precision parameters.\n"
            "Hint: pip install 'torch>=2.10'; or amp.train_step, or amp.value_and_grad with "
            "scaler.step(optimizer, grads), which need none."
        )


def set_gradient_dtype(tensor: torch.Tensor, dtype: torch.dtype | None) -> None:
    """Let ``tensor.grad``, which is None now, be of ``dtype``; with None, of any that is set."""
    if lookup("grad_dtype") is None and dtype is tensor.dtype:
        return
    check_gradient_dtypes()
    if tensor.grad_dtype is not dtype:
        tensor.grad_dtype = dtype


def has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether hooks can be registered: torch's own ``__init__`` makes what holds them."""
    return all(
        f"_optimizer_{call}_{when}_hooks" in vars(optimizer)
        for call in ("step", "state_dict", "load_state_dict")
        for when in ("pre", "post")
    )


def steps_under_way(optimizer: torch.optim.Optimizer) -> int:
    """How many calls of ``optimizer.step`` the calling code is in: two where it calls its parent's.

    Torch runs an optimizer's hooks in a function around each of them, and tells nobody which one it
    is. A step that raised is none any more, however long its traceback is kept.
    """
    return sum(stepping is optimizer for stepping in _stepping())


def step_without_hooks(optimizer: torch.optim.Optimizer) -> None:
    """``optimizer.step()`` as its class defines it; torch puts a function around that."""
    step: Any = type(optimizer).step
    step.__wrapped__(optimizer)


def innermost_step(
    optimizer: torch.optim.Optimizer, ours: Collection[Callable[..., None]]
) -> Callable[[Any], Any] | None:
    """The update of one of torch's own optimizers, for Dynamo to trace; None if somebody waits for the call.

    Around it torch puts a function that calls hooks, and one that breaks Dynamo's graph twice; a scheduler
    puts there a third, which notes that there was a step: this notes it, and calls the hooks ``ours``.
    """
    around = vars(optimizer).get("step")
    if around is not None and not hasattr(around, "_wrapped_by_lr_sched"):
        return None
    before_all = lookup("_global_optimizer_pre_hooks").values()
    before = [*before_all, *optimizer._optimizer_step_pre_hooks.values()]
    left_out = (
        [hook for hook in before if hook not in ours],
        optimizer._optimizer_step_post_hooks,
        lookup("_global_optimizer_post_hooks"),
        optimizer.defaults.get("differentiable"),  # gradients are recorded
    )
    step: Callable[[Any], Any] = inspect.unwrap(type(optimizer).step)
    if any(left_out) or not step.__module__.startswith("torch.optim."):
        return None
    if around is not None:
        optimizer._opt_called = True  # type: ignore[attr-defined]
    for hook in before:
        hook(optimizer, (), {})
    return step


def is_outermost_step() -> bool:
    """Whether the calling code, a hook, is in one call of ``step`` alone, of any optimizer."""
    return sum(1 for _ in _stepping()) == 1


def has_stepped(error: BaseException) -> bool:
    """Whether an error that left ``optimizer.step`` came when its update was done, from a post hook.

    Torch's function around a step keeps what that has returned in a local variable, ``out``. It is
    around the step of each class of an optimizer that calls its parent's.
    """
    around = _code_around_steps()
    steps = [f.f_locals for f, _ in walk_tb(error.__traceback__) if f.f_code is around]
    return any("out" in step and step["self"] is steps[0]["self"] for step in steps)


def function_that_raised(error: BaseException) -> type[torch.autograd.Function] | None:
    """The innermost ``torch.autograd.Function`` whose backward an error left, if there is one."""
    owners = (
        getattr(type(frame.f_locals.get("self")), "_forward_cls", None)
        for frame, _ in walk_tb(error.__traceback__)
    )
    return next((owner for owner in reversed([*owners]) if owner is not None), None)


def _stepping() -> Iterator[Any]:
    """The optimizers whose calls of ``step`` the calling code is in."""
    hooked = _code_around_steps()
    for frame, _ in walk_stack(sys._getframe()):
        if frame.f_code is hooked:
            yield frame.f_locals.get("self")


@cache
def _code_around_steps() -> CodeType:
    return cast(CodeType, lookup("profile_hook_step")(lambda: None).__code__)


FUNCTION_NAMESPACES: tuple[tuple[Any, str], ...] = (
    (torch, ""),
    (torch.Tensor, ""),
    (torch.nn.functional, ""),
    (torch._C._VariableFunctions, ""),
    (torch._C._nn, ""),
    (vars(torch._C)["_sparse"], ""),
    (torch.special, "special_"),
    (torch.linalg, "linalg_"),
    (torch.fft, "fft_"),
)
"""Where torch keeps its overridable functions; each with the prefix that aten puts before their names."""


def is_aten(name: str) -> bool:
    """Whether there is an aten op of that name."""
    return bool(lookup("_jit_get_schemas_for_operator")(f"aten::{name}"))


def computes(aten_name: str) -> bool:
    """Whether an aten op makes new tensors from tensors: no view, nothing in place, no query."""
    maps_tensors = False
    for schema in lookup("_jit_get_schemas_for_operator")(f"aten::{aten_name}"):
        if any(each.alias_info is not None and not each.is_out for each in schema.arguments):
            return False
        kinds = ([str(each.type) for each in of] for of in (schema.arguments, schema.returns))
        maps_tensors |= all(any("Tensor" in kind for kind in each) for each in kinds)
    return maps_tensors


@cache
def registered_for_autocast(device_type: str) -> frozenset[str] | None:
    """The aten names that ``torch.autocast(device_type)`` casts; None where torch cannot say."""
    registrations = lookup("_dispatch_get_registrations_for_dispatch_key")
    if registrations is None:
        return None
    names = registrations(autocast_key(device_type))
    return frozenset(
        name.removeprefix("aten::").partition(".")[0] for name in names if name.startswith("aten::")
    )


def autocast_key(device_type: str) -> str:
    """The dispatch key of ``torch.autocast(device_type)``."""
    renamed = lookup("_get_privateuse1_backend_name")
    is_extension = renamed is not None and device_type == renamed()
    return "AutocastPrivateUse1" if is_extension else f"Autocast{device_type.upper()}"


def has_kernel(overload: Any, key: str) -> bool:
    """Whether an overload of an op has a kernel of its own on a dispatch key."""
    return bool(lookup("_dispatch_has_kernel_for_dispatch_key")(overload.name(), key))


def past(key: str, overload: Any) -> Callable[..., Any]:
    """Runs an overload of an op, from a kernel on ``key``, without what is registered on ``key``.

    What a composite calls meets ``key`` again. What any other op calls does not: modes that see it
    below autograd, such as that of fake tensors, call it once more.
    """
    this = lookup("_parse_dispatch_key")(key)
    excluded = lookup("DispatchKeySet")(this)
    is_composite = has_kernel(overload, "CompositeImplicitAutograd")
    guard = nullcontext if is_composite else lookup("_ExcludeDispatchKeyGuard")

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        with guard(excluded):
            return overload.redispatch(keys.remove(this), *args, **kwargs)

    return run


def registered_ops() -> list[str]:
    """The names of all ops there are, aten's without their library; none where torch cannot say."""
    names = lookup("_dispatch_get_all_op_names")
    found = [] if names is None else names()
    return sorted({name.partition(".")[0].removeprefix("aten::") for name in found})


def backward_autocast_off() -> AbstractContextManager[Any]:
    """What is compiled inside computes its backward pass as eager torch does: outside of autocast.

    By default AOTAutograd traces it inside, where denied ops' gradients are computed in low
    precision: an error of 4e-3 instead of 2e-7. The setting is read while a graph is compiled.
    """
    config = lookup("config")
    if config is None or not hasattr(config, "backward_pass_autocast"):
        return nullcontext()
    patched: AbstractContextManager[Any] = config.patch(backward_pass_autocast="off")
    return patched


def backward_autocast_is_on() -> bool:
    """Whether functions compiled now would compute their backward pass under autocast."""
    config = lookup("config")
    return getattr(config, "backward_pass_autocast", "off") != "off"


def no_function_modes() -> AbstractContextManager[Any]:
    """A context in which no mode sees the calls of torch."""
    context: AbstractContextManager[Any] = lookup("DisableTorchFunction")()
    return context


def leave_to_python(code: CodeType) -> None:
    """Let Dynamo compile neither ``code`` nor what it calls, where it runs outside of a graph.

    A graph that is being traced still has it. Dynamo (torch 2.13) compiles the mode of a region by
    itself where the graph around it breaks, in ``nn.LSTM`` or at a module's hooks, and mixes up the
    arguments of the calls that the mode passes on.
    """
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    if eval_frame is None or code in _left_to_python:  # nobody compiles, or it is known
        return
    set_strategy = lookup("set_code_exec_strategy")
    if set_strategy is not None:
        skip = eval_frame.FrameAction.SKIP
        set_strategy(code, eval_frame.FrameExecStrategy(skip, skip))
    _left_to_python.add(code)


_left_to_python: set[CodeType] = set()


def has_compiled() -> bool:
    """Whether Dynamo has compiled anything in this process, as far as is known."""
    if "torch._dynamo.utils" not in sys.modules:
        return False
    counters = lookup("counters")
    return counters is None or counters.get("frames", {}).get("total", 0) > 0


def can_trace_gradients() -> bool:
    """Whether this torch has ``tracing_gradients``."""
    return lookup("trace_autograd_ops") is not None


@contextmanager
def tracing_gradients() -> Iterator[None]:
    """What is traced inside has ``torch.autograd.grad`` in its graph, instead of two graphs around it.

    The setting is read while a function is traced.
    """
    config: Any = import_module("torch._dynamo.config")
    before = config.trace_autograd_ops
    config.trace_autograd_ops = True
    try:
        yield
    finally:
        config.trace_autograd_ops = before


def object_at(address: int) -> Any:
    """The object whose ``id`` is ``address``, of CPython; the caller knows that it is alive."""
    return ctypes.cast(address, ctypes.py_object).value


def inductor(
    graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], keeps_roundings: bool
) -> Callable[..., Any]:
    """``graph`` compiled by Inductor, and its backward pass, whenever that is compiled.

    With ``keeps_roundings`` casts to 16 bits and back round, as in eager code; else they are fused away.
    Where Inductor cannot keep them, the graph runs op by op.
    """
    op_by_op = keeps_roundings and not INDUCTOR_CAN_KEEP_ROUNDINGS
    name = "aot_eager" if op_by_op else "inductor"
    compile_graph = cast(Callable[..., Callable[..., Any]], lookup("lookup_backend")(name))
    if op_by_op or not keeps_roundings:
        return compile_graph(graph, inputs)
    lookup("emulate_precision_casts")
    return compile_graph(graph, inputs, config_patches={"emulate_precision_casts": True})


def inductor_keeps_roundings() -> bool:
    """Whether functions compiled now would keep casts to 16 bits and back."""
    config = import_module("torch._inductor.config")
    return INDUCTOR_CAN_KEEP_ROUNDINGS and bool(getattr(config, "emulate_precision_casts", False))


def decides_by_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Whether torch's own fused kernel skips by ``optimizer.found_inf``, on the device.

    Optimizers of others that say so may expect an older contract.
    """
    supports = getattr(optimizer, "_step_supports_amp_scaling", False)
    is_torchs = type(optimizer).__module__.startswith("torch.optim.")
    return bool(supports) and is_torchs and not _has_momentum_to_make(optimizer)


def _has_momentum_to_make(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the next step is SGD's first one with momentum.

    Torch 2.13 makes the buffers with ``empty_like``, and a kernel that skips leaves what was in that
    memory for the momentum of the second step.
    """
    return isinstance(optimizer, torch.optim.SGD) and any(
        group["momentum"]
        and all(optimizer.state.get(p, {}).get("momentum_buffer") is None for p in group["params"])
        for group in optimizer.param_groups
    )


# -- what the lens sees by


def backward_pass() -> int:
    """A number that tells one backward pass from another, inside of it; -1 outside."""
    return int(lookup("_current_graph_task_id")())


def is_backward_pass() -> bool:
    """Whether autograd's engine calls, in this thread."""
    return backward_pass() != -1


def at_the_end_of_the_backward_pass(call: Callable[[], None]) -> None:
    """Call ``call`` once this backward pass is over."""
    lookup("_execution_engine").queue_callback(call)


def nodes_made() -> int:
    """How many autograd nodes this thread has made: the number of its next one."""
    return int(lookup("_get_sequence_nr")())


def is_made_since(node: Any, number: int) -> bool:
    """Whether an autograd node of this thread is the ``number``-th or a later one."""
    return not is_leaf_node(node) and bool(node._sequence_nr() >= number)


def is_leaf_node(node: Any) -> bool:
    """Whether a node adds to the ``.grad`` of a leaf, its ``variable``."""
    return bool(node.name() == "torch::autograd::AccumulateGrad")


def gradient_dtype(node: Any) -> torch.dtype:
    """The dtype in which a node of one output takes its gradient."""
    return cast(torch.dtype, node._input_metadata[0].dtype)


def backward(loss: torch.Tensor, factor: Any, inputs: Sequence[torch.Tensor] | None) -> None:
    """``(loss * factor).backward(inputs=inputs)``, past what torch does in Python ahead of its engine.

    The factor, a number or a tensor, comes in as the gradient of the loss: the same bits, and no node
    of the graph. It is a new tensor, as a parameter may get it for its ``.grad``.
    """
    run = lookup("_engine_run_backward")
    is_plain = type(loss) is torch.Tensor and lookup("peek_interpreter_stack")() is None
    if run is None or not is_plain:
        (loss if factor is None else loss * factor).backward(inputs=inputs)
        return
    if isinstance(factor, torch.Tensor):
        seed = factor.to(loss.device, loss.dtype, copy=True).reshape(loss.shape)
    else:
        seed = loss.new_full((), 1.0 if factor is None else factor)
    as_backward = {"allow_unreachable": True, "accumulate_grad": True}
    run((loss,), (seed,), False, False, tuple(inputs or ()), **as_backward)


def is_transforming() -> bool:
    """Whether a transform of ``torch.func`` is running in this thread."""
    return lookup("peek_interpreter_stack")() is not None


def write_below_transforms(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """``tensor.data.copy_(values)`` in the memory that every level of ``torch.func`` has saved.

    On the wrapped tensors it would count as a change of what the outer levels have saved. The
    ``values`` were made from ``tensor`` alone, so both are mapped along the same dimension.
    """
    is_wrapped, inner = lookup("is_functorch_wrapped_tensor"), lookup("get_unwrapped")
    with lookup("_DisableFuncTorch")():
        while is_wrapped(tensor):
            tensor, values = inner(tensor), inner(values)
        tensor.data.copy_(values)


def is_within_transform(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether ``torch.func`` maps or differentiates with any tensor, which has no values then."""
    return any(map(lookup("is_functorch_wrapped_tensor"), tensors))


def written(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments that a kernel writes to."""
    schema = getattr(kernel, "_schema", None)  # those that take functions have none
    if schema is None or not schema.is_mutable:
        return []
    given = {**dict(zip((a.name for a in schema.arguments), args, strict=False)), **kwargs}
    return [
        given[argument.name]
        for argument in schema.arguments
        if argument.alias_info is not None
        and argument.alias_info.is_write
        and isinstance(given.get(argument.name), torch.Tensor)
    ]


def makes_tensors(kernel: Any) -> bool:
    """Whether a kernel returns tensors with values of their own, or writes values: no view."""
    schema = getattr(kernel, "_schema", None)
    return schema is None or any(
        "Tensor" in str(returned.type)
        and (returned.alias_info is None or returned.alias_info.is_write)
        for returned in schema.returns
    )


# -- of packages built on torch


def after_closure(plugin: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Lightning's hooks between the backward pass and the step, clipping among them.

    Each of Lightning's own precision plugins calls it; checked with Lightning 2.6.
    """
    plugin._after_closure(model, optimizer)


KERAS_VARIABLES = "_torch_params"
"""The attribute of a Keras layer that holds its variables as parameters; checked with Keras 3.15."""


def keras_layers(layer: Any) -> list[Any]:
    """All layers inside of a Keras layer or model, which hides them from torch; checked with Keras 3.15."""
    return list(layer._flatten_layers(include_self=False))
