"""Parameters of a model, and the gradient of a loss with respect to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
from autograd.extend import VJPNode

from ampbridge.adapters.arguments import check_dependence, check_that_some_train
from ampbridge.adapters.backend import Array, LossFn, Model, Optimizer, Scalar, sums
from ampbridge.adapters.interception import Interception, Site
from ampbridge.adapters.interrupts import LAST_OF_SEVERAL
from ampbridge.adapters.nested import map_leaves
from ampbridge.errors import ArgumentTypeError
from ampbridge.policies.policy import Policy
from ampbridge_numpy._private import look_up
from ampbridge_numpy.autocast.casting import cast, is_box, outside_of_regions, region, value_of
from ampbridge_numpy.model.decorating import decorated
from ampbridge_numpy.nn import Module, substituted

_new_box, _add_outgrads = look_up("new_box"), look_up("add_outgrads")
_toposort = look_up("toposort")


class _TraceNumbers:
    """Numbers the traces of all threads; stands in for autograd's ``trace_stack``.

    An inner trace must have a higher number than an outer one. autograd counts the open traces of
    the process, which goes wrong when threads open and close theirs in turn. Here no number is
    given twice, and all lie above autograd's own.
    """

    def __init__(self) -> None:
        self._numbers = count(2**32)

    @contextmanager
    def new_trace(self) -> Iterator[int]:
        yield next(self._numbers)


_numbers = _TraceNumbers()
_numbering: Interception[None] = Interception(
    "ampbridge_numpy traces",
    lambda: [Site(look_up("tracer"), "trace_stack", look_up("trace_stack"), _numbers)],
)


def parameters(owner: Model | Optimizer) -> list[np.ndarray]:
    """The arrays of a module or an optimizer, themselves."""
    found: list[np.ndarray] = owner.parameters() if isinstance(owner, Module) else owner.parameters
    return found


def gradients(
    loss_fn: LossFn,
    model: Model,
    batch: Sequence[Any],
    policy: Policy,
    factor: Scalar,
    total: Sequence[Array] | None,
    optimizer: Optimizer | None = None,
) -> tuple[Array, Any, list[Array]]:
    """See ``Backend.gradients``; float64 arrays of the batch become float32 if the model is."""
    arrays = parameters(model if optimizer is None else optimizer)
    check_that_some_train(arrays, "self.weight = nn.Parameter(values)")
    inputs = _in_model_precision(batch, arrays)
    roots = [VJPNode.new_root() for _ in arrays]
    with _numbering.region(None), _numbers.new_trace() as trace:
        traced = {id(a): _new_box(a, trace, root) for a, root in zip(arrays, roots, strict=True)}
        with region(policy), substituted(traced), decorated(model):
            loss, aux = _called(loss_fn, model, inputs)
        loss = cast(loss, "float32")
        depends = is_box(loss) and loss._trace == trace
        grads = _backward(loss, roots, factor) if depends else [None] * len(arrays)
    check_dependence(grads)
    grads = [g if g is None else np.asarray(g, a.dtype) for g, a in zip(grads, arrays, strict=True)]
    if total is not None:
        with _quiet(), LAST_OF_SEVERAL:
            grads = sums(total, grads)
    return np.asarray(value_of(loss), np.float32), map_leaves(value_of, aux), grads


def _called(loss_fn: LossFn, model: Model, inputs: Sequence[Any]) -> tuple[Array, Any]:
    try:
        result: tuple[Array, Any] = loss_fn(model, *inputs)
    except ValueError as error:
        if "setting an array element with a sequence" not in str(error):
            raise
        msg = (
            "A function of plain NumPy got an array whose gradient is being taken: its ufuncs and the "
            "operators take one (np.exp, @), np.dot, np.tensordot, np.einsum, np.inner, np.outer and "
            "np.concatenate do not.\n"
            "Hint: import autograd.numpy as np"
        )
        raise ArgumentTypeError(msg) from error
    return result


def _quiet() -> np.errstate:
    """Infinities in gradients are what every step looks for, and inf - inf follows from them."""
    return np.errstate(over="ignore", invalid="ignore")


def _backward(loss: Array, roots: Sequence[Any], factor: Scalar) -> list[Array | None]:
    """The gradient of ``factor * loss`` at each root; None where the loss does not depend on it."""
    seed = value_of(loss).dtype.type(1 if factor is None else factor)
    pending = {loss._node: (np.asarray(seed), False)}
    found: dict[Any, Array] = dict.fromkeys(roots)
    with outside_of_regions(), _quiet(), LAST_OF_SEVERAL:
        for node in _toposort(loss._node):
            gradient, _ = pending.pop(node)
            if node in found:
                found[node] = gradient
            for parent, part in zip(node.parents, node.vjp(gradient), strict=True):
                pending[parent] = _add_outgrads(pending.get(parent), part)
    return [found[root] for root in roots]


def _in_model_precision(batch: Sequence[Any], arrays: Sequence[np.ndarray]) -> Any:
    """The batch with float64 arrays as float32, if the model is float32.

    NumPy makes float64 arrays without being asked, and the model would compute in float64 with them.
    """
    if any(array.dtype != np.float32 for array in arrays):
        return batch

    def narrowed(x: Any) -> Any:
        is_double = isinstance(x, (np.ndarray, np.float64)) and x.dtype == np.float64
        return np.asarray(x, np.float32) if is_double else x

    return map_leaves(narrowed, batch)
