"""Parameters, gradients, stored gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import paddle

from ampbridge.errors import ArgumentTypeError
from ampbridge_paddle._private import method
from ampbridge_paddle.casting import cast
from ampbridge_paddle.gradient_hooks import has_had_hooks
from ampbridge_paddle.hybrid_groups import is_wrapped, without_wrappers
from ampbridge_paddle.low_parameters import low_dtype_of, rounded_gradient
from ampbridge_paddle.sparse_gradients import dense_values, merged

Tensor = Any


def parameters(owner: Any) -> list[Tensor]:
    """The trainable parameters of a layer or an optimizer, each once, in the owner's order."""
    if isinstance(owner, paddle.nn.Layer):
        found = owner.parameters()
    elif isinstance(without_wrappers(owner), paddle.optimizer.Optimizer):
        # As the outermost one tells: of those inside, a sharded one has this rank's part alone.
        found = _optimized(owner)
    else:
        msg = (
            f"Neither a paddle.nn.Layer nor a paddle.optimizer.Optimizer: {type(owner).__name__}.\n"
            "Hint: paddle.optimizer.SGD(0.1, parameters=model.parameters())"
        )
        raise ArgumentTypeError(msg)
    return [p for p in found if not p.stop_gradient]


def _optimized(optimizer: Any) -> list[Tensor]:
    groups = method("Optimizer", optimizer, "_param_groups") or []
    if groups and isinstance(groups[0], dict):
        return [p for group in groups for p in group["params"]]
    return list(method("Optimizer", optimizer, "_parameter_list") or [])


def gradients(
    loss_fn: Callable[..., Any],
    model: Any,
    batch: Sequence[Any],
    region: AbstractContextManager[None],
    factor: float | None,
    total: Sequence[Tensor] | None,
) -> tuple[Tensor, Any, list[Tensor]]:
    """The loss, ``aux``, and ``total`` plus the gradients of ``factor * loss``.

    ``.grad`` of every tensor, the model's and others', is what it was.
    """
    inputs = [_native(x, model) for x in batch]
    with region:
        loss, aux = loss_fn(model, *inputs)
    loss = cast(loss, "float32")
    scaled = loss if factor is None else loss * factor
    wanted = parameters(model)
    found = _differentiate(scaled, model, wanted)
    grads = [_in_float32(g, p) for g, p in zip(found, wanted, strict=True)]
    if total is not None:
        grads = add(total, grads)
    return cast(loss.detach(), "float32"), aux, grads


def _native(x: Any, model: Any) -> Any:
    """A NumPy array as a tensor; float64 becomes float32 unless the model computes in float64."""
    if not isinstance(x, (np.ndarray, np.generic)):
        return x
    if x.dtype == np.float64 and not _holds_float64(model):
        x = x.astype(np.float32)
    return paddle.to_tensor(x)


def _holds_float64(model: Any) -> bool:
    return any(p.dtype == paddle.float64 for p in model.parameters())


def _differentiate(loss: Tensor, model: Any, wanted: list[Tensor]) -> list[Tensor]:
    """Gradients of ``loss``; None where it does not depend on a parameter.

    ``paddle.grad`` leaves ``.grad`` alone, everybody's, but runs neither the hooks on parameters
    (data parallel reduction is one) nor a backward inside of a backward (reentrant recompute).
    Those need ``backward()``, which also adds to ``.grad`` of other models in the loss, as it does
    in a loop by hand.
    """
    if loss.stop_gradient:
        return [None] * len(wanted)
    if not _needs_backward(loss, model, wanted):
        return list(paddle.grad(loss, wanted, allow_unused=True)) if wanted else []
    with replaced_grad(wanted, [None] * len(wanted)):
        loss.backward()
        return [_copy_of_grad(p) for p in wanted]


def _needs_backward(loss: Tensor, model: Any, wanted: Sequence[Tensor]) -> bool:
    if is_wrapped(model):
        return True
    # Every parameter is asked, so that each one's count of hooks is up to date.
    hooked = [has_had_hooks(p) for p in wanted]
    return any(hooked) or _recomputes(loss)


def _recomputes(loss: Tensor) -> bool:
    """Whether the graph of ``loss`` holds a reentrant recompute."""
    pending, seen = [loss.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is None or node.node_ptr() in seen:
            continue
        seen.add(node.node_ptr())
        if "RecomputeFunction" in node.name():
            return True
        pending.extend(node.next_functions)
    return False


@paddle.no_grad()
def _in_float32(grad: Tensor | None, parameter: Tensor) -> Tensor | None:
    """The values that a gradient in ``parameter``'s precision has; ``paddle.grad`` runs no hooks."""
    if grad is None:
        return None
    dtype = low_dtype_of(parameter)
    if dtype is not None:
        return rounded_gradient(grad, dtype)
    return grad if grad.is_selected_rows() else cast(grad, "float32")


@contextmanager
def replaced_grad(tensors: Sequence[Tensor], grads: Sequence[Tensor | None]) -> Iterator[None]:
    """``.grad`` of ``tensors`` set to ``grads``, and put back afterwards.

    A tensor whose ``.grad`` that is already keeps it.
    """
    pairs = zip(tensors, grads, strict=True)
    replaced = [(t, grad, _copy_of_grad(t)) for t, grad in pairs if not _same_memory(t.grad, grad)]
    for t, grad, _ in replaced:
        t.grad = grad
    try:
        yield
    finally:
        for t, _, before in replaced:
            t.grad = before


def _copy_of_grad(tensor: Tensor) -> Tensor | None:
    """``tensor.grad`` in memory of its own.

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
    if earlier is None or new is None:
        return new if earlier is None else earlier
    return paddle.add_n([earlier, new]) if earlier.is_selected_rows() else earlier + new


def stored_gradients(optimizer: Any) -> list[Tensor]:
    """``.grad`` of each parameter of ``optimizer``, the tensors themselves; None without one."""
    return [p.grad for p in parameters(optimizer)]
