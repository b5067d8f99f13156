"""Parameters, gradients, stored gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import paddle

from ampbridge.adapters.arguments import (
    check_dependence,
    check_that_some_train,
    differentiated_already,
)
from ampbridge.adapters.nested import map_leaves
from ampbridge.policies.policy import Policy
from ampbridge_paddle._private import method, private
from ampbridge_paddle.autocast import recomputing
from ampbridge_paddle.autocast.casting import cast, region
from ampbridge_paddle.autocast.dtypes import LOW
from ampbridge_paddle.model.low_weights import low_dtype_of, rounded_gradient
from ampbridge_paddle.step.gradient_hooks import has_had_hooks
from ampbridge_paddle.step.hybrid_groups import is_wrapped
from ampbridge_paddle.step.sparse_gradients import dense_values, merged

Tensor = Any

one_thread_at_a_time = threading.RLock()
"""Held while Paddle does what kills the process if two threads do it at once (3.3.1).

That is ``paddle.grad``, though not ``backward()``, and a call of a traced program.
"""


def parameters(owner: Any) -> list[Tensor]:
    """The trainable parameters of a layer or an optimizer, each once, in the owner's order.

    A frozen one that ``forward`` writes to, a statistic, asks for a gradient from then on: no optimizer
    has a use for it.
    """
    if isinstance(owner, paddle.nn.Layer):
        return [p for p in owner.parameters() if not p.stop_gradient]
    # As the outermost optimizer tells: of those inside, a sharded one has this rank's part alone.
    groups = method("Optimizer", owner, "_param_groups") or []
    if groups and isinstance(groups[0], dict):
        held = [p for group in groups for p in group["params"]]
    else:
        held = method("Optimizer", owner, "_parameter_list") or []
    return [p for p in held if not p.stop_gradient and p.is_leaf]


def gradients(
    loss_fn: Callable[..., Any],
    model: Any,
    batch: Sequence[Any],
    policy: Policy,
    factor: float | None,
    total: Sequence[Tensor] | None,
    optimizer: Any = None,
) -> tuple[Tensor, Any, list[Tensor]]:
    """The loss, ``aux``, and ``total`` plus the gradients of ``factor * loss``.

    ``.grad`` of the model's and the optimizer's parameters is what it was.
    """
    wanted = parameters(model if optimizer is None else optimizer)
    check_that_some_train(wanted, "parameter.stop_gradient = False")
    inputs = map_leaves(partial(native_array, like=wanted), batch)
    without = [p for p in wanted if p.grad is None]
    with recomputing.noticed() as recomputation, region(policy):
        loss, aux = loss_fn(model, *inputs)
    if any(p.grad is not None for p in without):  # Paddle would read memory that is free
        raise differentiated_already()
    loss = cast(loss, "float32")
    scaled = loss if factor is None else loss * factor
    found = _differentiate(scaled, model, wanted, recomputation.is_reentrant)
    check_dependence(found, None if paddle.is_grad_enabled() else "paddle.no_grad()")
    grads = _in_float32(found, wanted)
    if total is not None:
        grads = add(total, grads)
    aux = map_leaves(lambda x: x.detach() if isinstance(x, paddle.Tensor) else x, aux)
    return cast(loss.detach(), "float32"), aux, grads


def native_array(x: Any, like: Sequence[Tensor]) -> Any:
    """A NumPy array as a tensor; float64 becomes float32 unless the parameters are float64.

    Of unsigned integers Paddle has uint8 alone ("uint16" are bfloat16's bits): wider ones become int64.
    """
    if not isinstance(x, (np.ndarray, np.generic)):
        return x
    if x.dtype.kind == "u" and x.dtype.itemsize > 1:
        x = x.astype(np.int64)
    if x.dtype == np.float64 and all(p.dtype != paddle.float64 for p in like):
        x = x.astype(np.float32)
    # paddle.to_tensor leaks the list of its keyword arguments' names at each call (3.3.1).
    tensor = paddle.empty(x.shape, str(x.dtype))
    tensor.set_value(np.asarray(x))
    return tensor


def _differentiate(
    loss: Tensor, model: Any, wanted: list[Tensor], recomputed: bool
) -> list[Tensor]:
    """Compute the gradients of ``loss``. Parameters on which it does not depend have None.

    ``paddle.grad`` leaves ``.grad`` alone, everybody's, but runs neither the hooks on parameters
    (data parallel reduction is one) nor a backward inside of a backward (reentrant recompute).
    Those need ``backward()``, which also adds to ``.grad`` of other models in the loss, as it does
    in a loop by hand.
    """
    if loss.stop_gradient:
        return [None] * len(wanted)
    # Every parameter is asked, so that each one's count of hooks is up to date.
    needs_backward = is_wrapped(model) or True in [has_had_hooks(p) for p in wanted]
    if not (needs_backward or recomputed):
        return gradients_of(loss, wanted)
    reached = list({id(p): p for p in (*wanted, *parameters(model))}.values())
    with replaced_grad(reached, [None] * len(reached)):
        loss.backward()
        return [_copy_of_grad(p) for p in wanted]


def gradients_of(output: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Call ``paddle.grad`` of one output. Inputs on which it does not depend have None."""
    with one_thread_at_a_time:
        return list(paddle.grad(output, inputs, allow_unused=True))


@paddle.no_grad()
def _in_float32(grads: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> list[Tensor]:
    """Round gradients to the precision of ``parameters``: ``paddle.grad`` runs no hooks."""
    found = []
    for grad, parameter in zip(grads, parameters, strict=True):
        dtype = low_dtype_of(parameter)
        if grad is not None and dtype is not None:
            grad = rounded_gradient(grad, dtype)
        elif grad is not None and not grad.is_selected_rows():
            grad = cast(grad, "float32")
        found.append(grad)
    return found


@contextmanager
def replaced_grad(tensors: Sequence[Tensor], grads: Sequence[Tensor | None]) -> Iterator[None]:
    """Set ``.grad`` of ``tensors`` to ``grads`` for a block.

    A tensor whose ``.grad`` that is already keeps it.
    """
    pairs = zip(tensors, grads, strict=True)
    replaced = [(t, grad, _copy_of_grad(t)) for t, grad in pairs if not _same_memory(t.grad, grad)]
    for t, grad, _ in replaced:
        _set_grad(t, grad)
    try:
        yield
    finally:
        for t, _, before in replaced:
            _set_grad(t, before)


def _copy_of_grad(tensor: Tensor) -> Tensor | None:
    """Copy ``tensor.grad``.

    Paddle copies into ``.grad`` what it is set to, and setting it to None empties the tensor that
    ``.grad`` returned before.
    """
    grad = tensor.grad
    if grad is None:
        return None
    # A sparse gradient cannot be cloned; merging its rows copies it.
    return merged(grad) if grad.is_selected_rows() else grad.clone()


def _same_memory(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return False
    if one.is_selected_rows() != other.is_selected_rows():
        return False
    return bool(dense_values(one).data_ptr() == dense_values(other).data_ptr())


def add(total: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
    """See ``Backend.add``."""
    return [_sum(earlier, new) for earlier, new in zip(total, grads, strict=True)]


def _sum(earlier: Tensor | None, new: Tensor | None) -> Tensor | None:
    """Add two gradients, never in ``earlier``'s memory: a sum is unscaled and clipped in place."""
    if earlier is None:
        return new
    if new is None:
        return merged(earlier) if earlier.is_selected_rows() else earlier.clone()
    return paddle.add_n([earlier, new]) if earlier.is_selected_rows() else earlier + new


def stored_gradients(optimizer: Any) -> list[Tensor]:
    """``.grad`` of each parameter of ``optimizer``, the tensors themselves; None without one.

    16-bit ones are in float32 from now on, so that what the caller unscales and clips is what steps.
    """
    owners = parameters(optimizer)
    for parameter in owners:
        grad = parameter.grad
        if grad is not None and not grad.is_selected_rows() and grad.dtype in LOW.values():
            _set_grad(parameter, grad.astype("float32"))
    return [p.grad for p in owners]


def _set_grad(tensor: Tensor, grad: Tensor | None) -> None:
    """Set ``.grad``, also where it is of another kind now, into which Paddle refuses to copy."""
    try:
        tensor.grad = grad
    except (RuntimeError, ValueError):
        tensor.grad = None
        if grad is not None and not grad.is_selected_rows():
            # After a sparse gradient Paddle expects another, although ``.grad`` is None.
            dense = private("paddle.base.core.VarDesc").VarType.DENSE_TENSOR
            method("Tensor", tensor, "_set_grad_type")(dense)
        tensor.grad = grad
