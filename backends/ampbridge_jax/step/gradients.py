"""The gradient of a loss with respect to the Variables that are trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import jax
import jax.numpy as jnp

from ampbridge.adapters.arguments import check_dependence, check_that_some_train
from ampbridge.adapters.backend import (
    Array,
    BoundGradients,
    LossFn,
    Model,
    Optimizer,
    Scalar,
    sums,
)
from ampbridge.adapters.interrupts import LAST_OF_SEVERAL
from ampbridge.adapters.nested import map_leaves
from ampbridge.adapters.restoring import remember_attributes
from ampbridge.adapters.scoped import Scoped
from ampbridge.errors import UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge_jax._private import fill_all, level_of, used_inputs, value_of, values_of
from ampbridge_jax.autocast.casting import region
from ampbridge_jax.autocast.rules import cast
from ampbridge_jax.model.kinds import kind_of, named_variables, nodes
from ampbridge_jax.model.model_calls import keep_low, reading
from ampbridge_jax.model.variables import (
    belonging_here,
    check_level,
    holding,
    would_keep_a_trace,
)
from ampbridge_jax.optimizers import acquaint, parameters, roots_of
from ampbridge_jax.step.arrays import arrays_in, native_array, with_arrays
from ampbridge_jax.step.placing import keep_shardings

looking: Scoped[bool] = Scoped("ampbridge_jax looking", False)
"""Whether a step only looks what it trains (``compiling``)."""


class Trains(Exception):
    """What a step trains; raised ahead of its gradients where it only looks."""

    def __init__(self, model: Model, optimizer: Optimizer) -> None:
        super().__init__()
        self.model, self.optimizer = model, optimizer


def look(step: Callable[[], object]) -> Trains:
    """What a step trains: it is run up to its gradients, where nothing has happened yet."""
    try:
        with looking.during(True):
            step()
    except Trains as found:
        return found.with_traceback(None)
    raise AssertionError("a step without gradients")


def bind(loss_fn: LossFn, model: Model, policy: Policy, optimizer: Optimizer) -> BoundGradients:
    """See ``Backend.bind``."""
    acquaint(model, optimizer)

    def bound(
        batch: Sequence[Any], factor: Scalar, total: Sequence[Array] | None
    ) -> tuple[Array, Any, list[Array], list[Array]]:
        if looking.get():
            if any(isinstance(value_of(p), jax.core.Tracer) for p in parameters(optimizer)):
                raise would_keep_a_trace()  # of the user's: this step is not being traced yet
            raise Trains(model, optimizer)
        loss, aux, grads = gradients(loss_fn, model, batch, policy, factor, total, optimizer)
        return loss, aux, parameters(optimizer), grads

    return bound


def modules_of(model: Model, optimizer: Optimizer | None) -> tuple[Any, ...]:
    """The model, and what else the optimizer trains."""
    roots = () if optimizer is None else roots_of(optimizer)
    return (model, *(root for root in roots if root is not model))


def gradients(
    loss_fn: LossFn,
    model: Model,
    batch: Sequence[Any],
    policy: Policy,
    factor: Scalar,
    total: Sequence[Array] | None,
    optimizer: Optimizer | None = None,
) -> tuple[Array, Any, list[Array]]:
    """See ``Backend.gradients``; float64 arrays of the batch become float32.

    ``loss_fn`` gets the model itself, with traced values in its Variables, so that what it reads by
    another way than by its argument is differentiated as well.
    """
    trained = parameters(model if optimizer is None else optimizer)
    check_that_some_train(trained, kind_of(model).unfreeze)
    check_level(level_of(trained[0]))
    keep_low(model)
    modules = modules_of(model, optimizer)
    ours = set(map(id, trained))
    others = [v for _, v in named_variables(modules) if id(v) not in ours]
    batch = map_leaves(native_array, batch)
    aux_of_trace: list[Any] = []

    def forward(values: Sequence[Array]) -> Any:
        every = [*trained, *others]
        put_in = holding(every, [*values, *values_of(others)])  # changes come out as `after`
        with belonging_here(modules), put_in, LAST_OF_SEVERAL:
            with region(policy), reading(model):
                loss, aux = loss_fn(model, *batch)
            _check_variables(modules, every)
            after = values_of(others)
            for module in modules:
                kind_of(module).clear_losses(module)
        loss = cast(loss, "float32")
        aux_of_trace[:] = [aux]
        return loss if factor is None else loss * factor, (loss, arrays_in(aux), after)

    values = values_of(trained)
    with ExitStack() as unless_done:
        attributes = [node for _, node in nodes(modules)]
        remember_attributes(unless_done, attributes, lambda stack, held: None)
        scaled, pull, (loss, arrays, after) = jax.vjp(forward, values, has_aux=True)
        unless_done.pop_all()
    depends = used_inputs(pull, len(trained))
    check_dependence([True if each else None for each in depends])
    (found,) = pull(jnp.ones_like(scaled))
    grads = [_wide(g) if each else None for g, each in zip(found, depends, strict=True)]
    before = values_of(others)
    fill_all(others, after)
    keep_shardings(others, before)
    aux = with_arrays(aux_of_trace[0], arrays)
    return loss, aux, grads if total is None else sums(total, grads)


def _check_variables(modules: Sequence[Any], before: Sequence[Any]) -> None:
    """Check that the loss has added no Variable, which would hold what belongs to a trace.

    Raises:
        UnsupportedError: if it has, as ``sow`` does.
    """
    known = set(map(id, before))
    found = [pair for module in modules for pair in named_variables(module)]
    added = dict.fromkeys(name for name, v in found if id(v) not in known)
    if added:
        raise UnsupportedError(
            f"loss_fn gave the model new Variables: {', '.join(added)}. They would hold values of a trace.\n"
            "Hint: make them in the module's __init__; instead of sow, return nnx.capture(model, "
            "nnx.Intermediate)(x)[1] as an output beside the loss"
        )


def _wide(grad: Array) -> Array:
    return grad.astype(jnp.promote_types(grad.dtype, jnp.float32))
