"""``torch.compile`` of a training step: its gradients in one graph, its update in another.

    whole    loss and gradients are one graph, forward and backward; the optimizer's step is another
    loss     the loss function alone; the backward pass and the update are eager

A step is whole unless a graph would leave something out: parameters with hooks, several ranks,
simulation; or unless Dynamo breaks the graph, between whose parts it could not trace autograd. The
update is a graph where the optimizer is torch's own, has no hooks of others, and updates no masters.
The check for inf and NaN and the decision to skip are eager, between the two graphs, as in every other
step.

The region stays outside, as torch advises: Dynamo guards on autocast and on the lists that it met, so
a call under another policy compiles anew instead of reusing a graph. The backward pass is computed
outside of autocast as it is in eager code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn, optim

from ampbridge.adapters.backend import LossFn, Program, Scalar, StepOutput
from ampbridge.adapters.nested import map_leaves
from ampbridge.adapters.process_setting import rounds_to_tf32
from ampbridge.adapters.roles import cannot
from ampbridge.adapters.scoped import Scoped
from ampbridge.policies.policy import Policy
from ampbridge_torch import _private
from ampbridge_torch.autocast import execution
from ampbridge_torch.autocast.compiler_settings import in_our_hands
from ampbridge_torch.autocast.mode import active_mode
from ampbridge_torch.autocast.simulation import LOW_DTYPES
from ampbridge_torch.devices import DeviceType
from ampbridge_torch.model.master_updates import check_low_parameters, check_masters_are_updated
from ampbridge_torch.step import ranks

_memory = attrgetter("dtype", "device", "shape")


class NotInOneGraphError(Exception):
    """One graph would leave out something of this step, or breaks. Nothing has happened yet."""


def compile_step(build: Callable[[LossFn], Program], loss_fn: LossFn) -> Program:
    """The step compiled by Inductor: whole, or its loss function where that is not possible."""
    graphs, whole, with_loss = Graphs(), build(loss_fn), build(_compiled_loss(loss_fn))

    def program(policy: Policy, *arguments: Any) -> StepOutput:
        if rounds_to_tf32(policy):  # by a dispatch mode, under which Dynamo compiles nothing
            raise cannot("torch", "compile a simulation of TF32", "compile=False")
        with in_our_hands.during(True):
            with suppress(NotInOneGraphError), present_graphs.during(graphs):
                return whole(policy, *arguments)
            return with_loss(policy, *arguments)

    return program


class Graphs:
    """The two graphs of a whole step, compiled when they are first run."""

    def __init__(self) -> None:
        self._differentiate = _compiled(_differentiate, fullgraph=True)
        self._updates: dict[object, Any] = defaultdict(partial(_compiled, _step))  # by memory
        self._breaks = False  # known by the first attempt, which takes long

    def check(self, policy: Policy, wanted: Sequence[Tensor], types: Sequence[DeviceType]) -> None:
        """Look at what a graph could leave out.

        Raises:
            NotInOneGraphError: if there is any.
        """
        if self._breaks or ranks.train_together() or not _private.can_trace_gradients():
            raise NotInOneGraphError
        if execution.simulates(policy, types) or any(map(_is_watched, wanted)):
            raise NotInOneGraphError

    def gradients(
        self,
        loss_fn: LossFn,
        model: nn.Module,
        inputs: Sequence[Any],
        wanted: Sequence[Tensor],
        factor: Scalar,
    ) -> tuple[Tensor, Any, list[Tensor | None]]:
        """Loss, aux and gradients, as in the region that is open.

        Raises:
            NotInOneGraphError: if Dynamo cannot make one graph of them, which is not tried again; or has
                made as many as it may.
        """
        if factor is not None and not isinstance(factor, Tensor):
            factor = torch.full((), factor, device=wanted[0].device)  # a number would be a constant
        with _private.tracing_gradients():
            found: tuple[Tensor, Any, list[Tensor | None]]
            try:
                found = self._differentiate(loss_fn, model, inputs, list(wanted), factor)
            except _private.lookup("FailOnRecompileLimitHit") as error:
                raise NotInOneGraphError from error  # the graphs that there are serve other batches
            except _private.lookup("TorchDynamoException") as error:
                self._breaks = True
                raise NotInOneGraphError from error
        return found

    def step(self, optimizer: optim.Optimizer) -> None:
        """``optimizer.step()``: eager where it makes its slots first, is not torch's own, or has hooks."""
        update = None
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if all(map(optimizer.state.get, held)):
            ours = check_masters_are_updated, check_low_parameters
            update = _private.innermost_step(optimizer, ours)
        if update is None:
            optimizer.step()
            return
        # Dynamo guards on the objects alone, which are the same after ``model.to``.
        memory = *map(_memory, held), *map(Tensor.stride, held)
        with _rates_in_tensors(optimizer), torch.no_grad():
            self._updates[memory](update, optimizer)


present_graphs: Scoped[Graphs | None] = Scoped("ampbridge_torch graphs of the step", None)
"""Those of the step that is running, if it is a whole one."""


def _compiled(function: Any, fullgraph: bool = False) -> Any:
    """Compiled by Inductor, with a cache of its own: Dynamo keeps few graphs for one code object."""
    own = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    return torch.compile(own, backend=_inductor, fullgraph=fullgraph)


def _differentiate(
    loss_fn: LossFn, model: nn.Module, inputs: Sequence[Any], wanted: list[Tensor], factor: Any
) -> tuple[Tensor, Any, list[Tensor | None]]:
    loss, aux = loss_fn(model, *inputs)
    with torch.autocast(loss.device.type, enabled=False):
        loss = loss.float() if loss.dtype in LOW_DTYPES else loss
        scaled = loss if factor is None else loss * factor
        grads = torch.autograd.grad(scaled, wanted, allow_unused=True)
    laid_out = list(map(_laid_out_as, wanted, grads))
    return loss.detach(), map_leaves(detached, aux, leaf=Tensor), laid_out


def _laid_out_as(parameter: Tensor, grad: Tensor | None) -> Tensor | None:
    """``grad`` with the strides that ``backward`` gives ``.grad``: those of one update are always these."""
    if grad is None or grad.stride() == parameter.stride():
        return grad
    return torch.empty_like(parameter, dtype=grad.dtype).copy_(grad)


def detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) and value.requires_grad else value


def _step(update: Callable[[optim.Optimizer], Any], optimizer: optim.Optimizer) -> None:
    update(optimizer)


@contextmanager
def _rates_in_tensors(optimizer: optim.Optimizer) -> Iterator[None]:
    """Learning rates are tensors inside: numbers are constants of some graphs, one for each rate."""
    groups = optimizer.param_groups
    before = [{name: group.get(name) for name in ("lr", "foreach")} for group in groups]
    try:
        for group in groups:
            if isinstance(group["lr"], float):
                group["lr"] = group["params"][0].new_full((), group["lr"])
                if isinstance(optimizer, optim.Adam) and not group["capturable"]:
                    group["foreach"] = False  # it refuses a tensor
        yield
    finally:
        for group, held in zip(groups, before, strict=True):
            group.update({name: value for name, value in held.items() if name in group})


def _is_watched(parameter: Tensor) -> bool:
    """Whether hooks wait for its gradient, or ranks hold parts of it."""
    return bool(
        parameter._backward_hooks
        or parameter._post_accumulate_grad_hooks
        or _private.is_sharded(parameter)
    )


def _compiled_loss(loss_fn: LossFn) -> LossFn:
    natively = torch.compile(loss_fn, backend=_inductor)
    simulated = torch.compile(loss_fn, backend=partial(_inductor, keeps_roundings=True))

    def compiled_loss(*args: Any, **kwargs: Any) -> Any:
        mode = active_mode()
        compiled = simulated if mode is not None and mode.rules.simulates else natively
        return compiled(*args, **kwargs)

    return compiled_loss


def _inductor(
    graph: torch.fx.GraphModule, inputs: list[Tensor], keeps_roundings: bool = False
) -> Callable[..., Any]:
    """Inductor, with the backward pass outside of autocast as it is in eager code.

    What it has compiled has its casts: the region's mode need not see the calls again.
    """
    with _private.backward_autocast_off():
        compiled = _private.inductor(graph, inputs, keeps_roundings)

    def run(*args: Any) -> Any:
        with _private.no_function_modes():
            return compiled(*args)

    return run
