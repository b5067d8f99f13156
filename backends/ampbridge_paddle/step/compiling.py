"""Compiled losses: ``paddle.jit.to_static`` of the loss, one program for each policy.

The forward pass and its gradients become a static program; scaling, checking and stepping stay
eager, since the optimizer is stepped from Python anyway. Paddle keeps a traced program by the
shapes of its inputs alone, so that a later policy would silently run what the first one traced.
Therefore each policy, and each training mode of the layers, has a traced function of its own.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import paddle

from ampbridge.adapters import nested
from ampbridge.adapters.backend import LossFn, Program
from ampbridge.adapters.nested import Structure, leaves
from ampbridge.errors import UnsupportedError
from ampbridge.neutral import losses, models, modules, native
from ampbridge.policies.policy import Policy
from ampbridge.scaling import scaler
from ampbridge_paddle import neutral
from ampbridge_paddle._private import private
from ampbridge_paddle.autocast import casting, functions, simulation
from ampbridge_paddle.autocast.functions import Function
from ampbridge_paddle.step.gradients import one_thread_at_a_time

# They hold no control flow on tensors. ``neutral.forward`` converts what it calls, a model.
paddle.jit.ignore_module([losses, models, modules, native, neutral, scaler])


def compile_step(build: Callable[[LossFn], Program], loss_fn: LossFn) -> Program:
    """Build the program of a step whose loss is traced, anew for each policy.

    Compiled steps of several threads take turns: while one traces, Paddle is in static mode for all
    threads, and an eager op of another would become part of its program.
    """
    programs: dict[Policy, Program] = {}

    def program(policy: Policy, *arguments: Any) -> Any:
        with one_thread_at_a_time:
            if policy not in programs:
                programs[policy] = build(_traced(loss_fn, policy))
            return programs[policy](policy, *arguments)

    return program


def _traced(loss_fn: LossFn, policy: Policy) -> LossFn:
    """``loss_fn`` as programs under one policy."""
    programs: dict[tuple[int, tuple[bool, ...], Structure], Function] = {}

    def loss(model: Any, *positional: Any, **named: Any) -> Any:
        modes = tuple(layer.training for layer in model.sublayers(include_self=True))
        structure = Structure((positional, named))
        key = (id(model), modes, structure)
        # The program enters the region itself, where it is traced.
        with simulation.intercepting_nothing(), warnings.catch_warnings():
            if key not in programs:
                programs[key] = trace(loss_fn, model, policy, structure)
            # Paddle asks traced values for their place, and warns itself of it (tensor/creation.py).
            warnings.filterwarnings("ignore", "Tensor do not have 'place'", UserWarning)
            return programs[key](leaves((positional, named)))

    return loss


def trace(loss_fn: LossFn, model: Any, policy: Policy, structure: Structure) -> Function:
    """Make a static program of ``loss_fn`` of ``model``: a function of the leaves of a batch.

    The function raises UnsupportedError for a loss that Paddle cannot translate, or not differentiate.
    """
    if isinstance(model, paddle.DataParallel) and paddle.distributed.get_world_size() > 1:
        raise UnsupportedError(
            "compile=True of a paddle.DataParallel: its call asks the eager tracer whether there will be "
            "gradients, and a program that is being traced has none.\nHint: compile=False"
        )
    converted = _with_control_flow(loss_fn, model)
    loops: list[str] = []

    def loss(items: Any) -> Any:
        positional, named = structure.filled(items)
        # Entered while tracing: the program holds the casts, whatever is open when it runs.
        with casting.region(policy):
            output = converted(model, *positional, **named)
        loops.extend(_loops_with_gradients(paddle.static.default_main_program().global_block()))
        return _copied(output)

    # Paddle would translate the Python of these to graph code.
    paddle.jit.ignore_module([casting, nested, sys.modules[__name__]])
    # Without full_graph, Paddle's bytecode tracer breaks the graph and reuses parts across policies.
    compiled: LossFn = paddle.jit.to_static(loss, full_graph=True)

    def run(items: Any) -> Any:
        try:
            output = compiled(items)
        except private("paddle.jit.dy2static.utils.Dygraph2StaticException") as error:
            reason = str(error).strip().rpartition("Exception: ")[2]
            raise UnsupportedError(
                f"compile=True: Paddle cannot make a program of this loss: {reason}\n"
                "Hint: compile=False"
            ) from error
        if loops:  # not while tracing: Paddle would wrap the error
            raise UnsupportedError(
                "compile=True of a loss with a loop that goes by a tensor (`while loss > 1`, "
                f"`for i in range(n)`): Paddle {paddle.__version__} does not differentiate what it "
                "computes.\nHint: compile=False"
            )
        return output

    return run


def _loops_with_gradients(block: Any) -> Iterator[str]:
    """Find the loops of a program that Paddle cannot differentiate: it fails, or finds None (3.3.1)."""
    for op in block.ops:
        for inner in op.blocks():
            yield from _loops_with_gradients(inner)
            if op.name() == "pd_op.while":
                carried = [*op.operands_source(), *inner.ops[-1].operands_source()]  # in and out
                if not all(value.stop_gradient for value in carried):
                    yield op.name()


def _with_control_flow(loss_fn: LossFn, model: Any) -> LossFn:
    """Turn ``if`` and ``while`` on values in ``loss_fn`` into ops of the program."""
    if isinstance(loss_fn, partial):
        function = _with_control_flow(loss_fn.func, model)
        return partial(function, *loss_fn.args, **loss_fn.keywords)
    if not inspect.isfunction(loss_fn):
        return loss_fn
    if loss_fn.__name__ != "<lambda>":
        return functions.with_control_flow(loss_fn)
    # Paddle does not convert a lambda; what ``model`` does is converted.
    convert = private("paddle.jit.dy2static.convert_call_func.convert_call")

    def loss(*positional: Any, **named: Any) -> Any:
        own = vars(model).get("forward")
        model.forward = convert(model.forward)
        try:
            return loss_fn(*positional, **named)
        finally:
            if own is None:
                del model.forward
            else:
                model.forward = own

    return loss


def _copied(output: Any) -> Any:
    """Copy the traced values in ``output``.

    Paddle's in-place pass takes a returned value for dead after its last use in the program, and
    overwrites it: ``return mse_loss(p, y), p`` would return something else for ``p`` (3.3.1).
    """
    return paddle.utils.map_structure(
        lambda x: paddle.assign(x) if isinstance(x, paddle.pir.Value) else x, output
    )
