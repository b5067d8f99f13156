"""Parameters, and the gradients of a loss with respect to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, repeat
from operator import attrgetter, is_, itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim

from ampbridge.adapters import kept_calls
from ampbridge.adapters.arguments import (
    check_dependence,
    check_that_some_train,
    differentiated_already,
)
from ampbridge.adapters.backend import LossFn, Scalar
from ampbridge.adapters.nested import map_leaves
from ampbridge.errors import UnsupportedError
from ampbridge.policies import function_ops
from ampbridge.policies.policy import Policy
from ampbridge_torch import _private
from ampbridge_torch.autocast.casting import Region, cast, run_outside
from ampbridge_torch.autocast.mode import NOTHING
from ampbridge_torch.autocast.rules import Rules, rules_for
from ampbridge_torch.autocast.simulation import LOW_DTYPES
from ampbridge_torch.devices import DeviceType, types_of
from ampbridge_torch.step import ranks, reruns
from ampbridge_torch.step.compiling import detached, present_graphs

# Read in C: a step asks each parameter a dozen things.
grad_of = attrgetter("grad")
_is_trained, _is_leaf = attrgetter("requires_grad"), attrgetter("is_leaf")
_traits, _of_group = attrgetter("__class__", "dtype", "is_cpu"), itemgetter("params")
_PLAIN = {(nn.Parameter, torch.float32, True)}
"""The traits of parameters that need no closer look."""


def parameters(owner: nn.Module | optim.Optimizer) -> list[Tensor]:
    """The trainable parameters of a model or an optimizer, in its own order.

    A frozen one that ``forward`` writes to, a statistic, asks for a gradient from then on: no optimizer
    has a use for it.
    """
    if isinstance(owner, optim.Optimizer):
        held = chain.from_iterable(map(_of_group, owner.param_groups))
        return list(filter(_is_leaf, filter(_is_trained, held)))
    return _private.trainable_parameters(owner)


def stored_gradients(optimizer: optim.Optimizer) -> list[Tensor | None]:
    """``.grad`` of the optimizer's parameters, 16-bit ones in float32 from now on.

    So what the caller unscales and clips in place is what steps. In float16 unscaled gradients under
    6e-8 would be zero.

    Raises:
        UnsupportedError: for low gradients, if torch cannot hold them in float32.
    """
    owners = parameters(optimizer)
    for parameter in owners:
        grad = parameter.grad
        if grad is not None and grad.dtype in LOW_DTYPES:
            _private.check_gradient_dtypes()  # ahead of taking the gradient away
            parameter.grad = None
            _private.set_gradient_dtype(parameter, None)
            parameter.grad = grad.float()
    return list(map(grad_of, owners))


def store(owners: Iterable[Tensor], grads: Iterable[Tensor | None]) -> None:
    for parameter, grad in zip(owners, grads, strict=False):
        parameter.grad = grad


def gradients(
    loss_fn: LossFn,
    model: nn.Module,
    batch: Sequence[Any],
    policy: Policy,
    factor: Scalar,
    total: Sequence[Tensor | None] | None,
    optimizer: optim.Optimizer | None = None,
) -> tuple[Tensor, Any, list[Tensor | None]]:
    """The loss, aux and gradients: see ``Backend.gradients``, and ``Bound``."""
    loss, aux, _, grads = Bound(loss_fn, model, policy, optimizer)(batch, factor, total)
    return loss, aux, grads


class Bound:
    """``gradients`` of one loss of one model under one policy.

    Runs ``backward``, so that hooks and DistributedDataParallel work, but for the wanted parameters
    alone: others that the loss depends on get no gradient, unless the model is sharded (and
    reentrant checkpoints, which torch refuses then, have to be non-reentrant ones). ``.grad`` is as
    before.
    """

    def __init__(
        self, loss_fn: LossFn, model: nn.Module, policy: Policy, optimizer: optim.Optimizer | None
    ) -> None:
        self._loss_fn, self._model, self._policy = loss_fn, model, policy
        self._owner = model if optimizer is None else optimizer
        # The rules of the policy, looked up once for the devices of the last call.
        self._rules: Rules = NOTHING
        self._types: tuple[DeviceType, ...] = ()
        self._changes_of_ops = -1

    def __call__(
        self, batch: Sequence[Any], factor: Scalar, total: Sequence[Tensor | None] | None
    ) -> tuple[Tensor, Any, list[Tensor], list[Tensor | None]]:
        """See ``Backend.gradients``; with the parameters ahead of their gradients.

        Raises:
            ArgumentError: if there are no trainable parameters or the loss depends on none.
            UnsupportedError: if the model is on a device that torch has no autocast for.
        """
        model, policy = self._model, self._policy
        wanted = parameters(self._owner)
        is_plain = set(map(_traits, wanted)) == _PLAIN
        if not is_plain:
            check_that_some_train(wanted, "layer.requires_grad_(True)")
        types = ("cpu",) if is_plain else types_of(wanted)
        inputs = _native_batch(batch, wanted[0])
        graphs, together = present_graphs.get(), ranks.train_together()
        if types != self._types or self._changes_of_ops != function_ops.changes:
            self._rules = rules_for(policy, types)
            self._types, self._changes_of_ops = types, function_ops.changes
        region = Region(policy, types, self._rules)
        if graphs is not None:
            graphs.check(policy, wanted, types)
            loss, aux, grads = region.run(
                graphs.gradients, self._loss_fn, model, inputs, wanted, factor
            )
        else:
            loss, aux = region.run(self._loss_fn, model, *inputs)
            loss = loss if loss.dtype is torch.float32 else cast(loss, "float32")
            reached = wanted
            if together:  # ranks reduce gradients in groups, and wait for each one of a group
                reached = list({id(p): p for p in (*wanted, *parameters(model))}.values())
            if policy.level != "O0" and kept_calls.are_noted():  # in the first step
                with reruns.noticed(model, policy):
                    grads = run_outside(_backward, loss, factor, wanted, reached)
            else:
                grads = run_outside(_backward, loss, factor, wanted, reached)
        if not is_plain:
            grads = [
                g if g is None or p.dtype not in LOW_DTYPES else g.float()
                for g, p in zip(grads, wanted, strict=True)
            ]
        unrecorded = "torch.no_grad() or torch.inference_mode()"
        check_dependence(grads, None if torch.is_grad_enabled() else unrecorded)
        if together and _lends_gradients(model):
            grads = [g if g is None else g.clone() for g in grads]
        if total is not None:
            grads = _with_total(grads, total)
        if aux is not None:
            aux = map_leaves(detached, aux, leaf=Tensor)
        return loss.detach(), aux, wanted, grads


def _lends_gradients(model: nn.Module) -> bool:
    """Whether gradients lie in buckets of DistributedDataParallel, which the next pass overwrites."""
    return any(getattr(part, "gradient_as_bucket_view", False) for part in model.modules())


def _backward(
    loss: Tensor, factor: Scalar, wanted: Sequence[Tensor], reached: Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradients of ``factor * loss``, 16-bit ones in float32; what ``.grad`` held is put back.

    ``.grad`` is empty meanwhile: autograd adds in place to what it finds there, and a pass that is
    cut short would leave some of it added to.
    """
    if not loss.requires_grad:
        return [None] * len(wanted)
    before = list(map(grad_of, reached))
    try:
        if not all(map(is_, before, repeat(None))):
            store(reached, repeat(None))
        # Sharded parameters are no leaves of the graph: their gradients come by hooks of FSDP's.
        _private.backward(loss, factor, None if _private.any_is_sharded(reached) else reached)
        grads = list(map(grad_of, wanted))
        store(reached, before)
    except BaseException as error:
        # No ``finally``: an interrupt of the line above would leave it half done.
        store(reached, before)
        if "backward through the graph a second time" in str(error):
            raise differentiated_already() from error
        raise
    if any(map(is_, grads, repeat(None))):
        _refuse_reentrant_checkpoints(loss)
    return grads


@torch.no_grad()
def _with_total(
    grads: Sequence[Tensor | None], total: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """``add(total, grads)`` in the memory of ``grads``, which are new; ``total`` stays what it is."""
    sums = list(grads)
    new, earlier = [], []
    for place, (grad, present) in enumerate(zip(grads, total, strict=True)):
        if grad is None or present is None or grad.is_sparse or present.is_sparse:
            sums[place] = add([present], [grad])[0]
        else:
            new.append(grad)
            earlier.append(present)
    if new:
        _private.lookup("_foreach_add_")(new, earlier)
    return sums


@torch.no_grad()
def add(total: Sequence[Tensor | None], grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """See ``Backend.add``. No sum is an element of ``total``: sums are unscaled and clipped in place."""
    sums = list(grads)
    for place, (present, grad) in enumerate(zip(total, grads, strict=True)):
        if present is not None and grad is None:
            sums[place] = present.clone()
        elif present is not None and grad is not None:
            # Torch adds a sparse gradient to a dense one, and not the other way round.
            sums[place] = grad + present if present.is_sparse else present + grad
    return sums


def _refuse_reentrant_checkpoints(loss: Tensor) -> None:
    """Raise if the loss came through one: its inner parameters would silently have no gradient.

    ``backward`` for given parameters does not enter a checkpoint that hides them from the graph.
    Where it has to go through one to others, torch itself raises.
    """
    nodes, seen = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "CheckpointFunctionBackward":
            msg = (
                "The loss came through a reentrant checkpoint, whose parameters got no gradient.\n"
                "Hint: torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)"
            )
            raise UnsupportedError(msg)
        nodes.extend(parent for parent, _ in node.next_functions)


def _native_batch(batch: Sequence[Any], like: Tensor) -> Sequence[Any]:
    """``batch`` with tensors for NumPy's arrays, at any depth."""
    of_a_step = len(batch) == 2 and type(batch[0]) is tuple and type(batch[1]) is dict
    if of_a_step and not batch[1] and all(map(is_, map(type, batch[0]), repeat(Tensor))):
        return batch
    native: Sequence[Any] = map_leaves(partial(native_array, like=like), batch, leaf=Tensor)
    return native


def native_array(value: Any, like: Tensor) -> Any:
    """A NumPy array as a tensor on the model's device; anything else as it is.

    Float64 arrays, NumPy's default, become float32 for a float32 model, which would refuse them.
    """
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == np.float64 and like.dtype != torch.float64:
        value = value.astype(np.float32)
    if not value.flags.writeable or any(stride < 0 for stride in value.strides):
        value = value.copy()  # torch shares the memory, and can share neither
    if value.dtype.name == "bfloat16":  # ml_dtypes', which torch does not know
        return torch.from_numpy(value.view(np.uint16)).view(torch.bfloat16).to(like.device)
    return torch.from_numpy(value).to(like.device)
