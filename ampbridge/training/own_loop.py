"""Gradients for hand-written training loops."""

from __future__ import annotations

from typing import Any

from ampbridge.adapters.arguments import (
    backend_of_pass,
    check_batch,
    check_that_a_batch_is_spread,
)
from ampbridge.adapters.backend import LossFn, Model, float32_of
from ampbridge.errors.foreign_names import told_of
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single
from ampbridge.scaling.scaled_once import scaled_by
from ampbridge.scaling.scaler import Gradients, GradScaler, checked_scaler
from ampbridge.training.decorate import fit_for_own_loop
from ampbridge.training.micro_batch import returning_aux


@told_of("value_and_grad")
def value_and_grad(
    loss_fn: LossFn,
    model: Model,
    *batch: Any,
    policy: str | Policy = "O1",
    scaler: GradScaler | None = None,
    **named: Any,
) -> tuple[Any, Gradients]:
    """Compute the loss and the gradients of ``model``'s parameters, for hand-written loops.

        loss, grads = amp.value_and_grad(loss_fn, model, x, y, policy="O1", scaler=scaler)
        scaler.step(optimizer, grads)
        scaler.update()

    With a ``scaler`` the gradients are scaled; pass them to ``scaler.unscale`` or ``scaler.step``.
    Other keyword arguments go to ``loss_fn``.

    At O2 you have to decorate model and optimizer first. At other levels the policy applies to this
    call only.

    Returns:
        The loss as a native float32 scalar, or ``(loss, aux)`` if ``loss_fn`` returned a pair; and
        the gradients, in the order of the model's trainable parameters.

    Raises:
        CallOrderError: at O2, if the model is not decorated; or if it is decorated with another
            policy.
    """
    parsed = single(policy)
    backend = backend_of_pass(loss_fn, model)
    scaler = checked_scaler(scaler, "an ampbridge.GradScaler or None")
    factor = None if scaler is None else scaler.factor(backend, model)
    fit_for_own_loop(backend, model, parsed, "value_and_grad")
    paired = returning_aux(loss_fn)
    scaled = scaled_by.during(None if factor is None else "value_and_grad")
    try:
        with scaled, float32_of(parsed, backend):
            loss, aux, grads = backend.gradients(
                paired, model, (batch, named), parsed, factor, None
            )
    except Exception as error:
        hint = "amp.value_and_grad(loss_fn, model, *batch)"
        check_that_a_batch_is_spread(loss_fn, batch, named, error, hint)
        check_batch(backend, (batch, named), error)
        raise
    gradients = Gradients(grads, backend.parameters(model))
    return (loss, gradients) if aux is None else ((loss, aux), gradients)
