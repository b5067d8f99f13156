"""Gradients for hand-written training loops."""

from __future__ import annotations

from typing import Any

from ampbridge.adapters.arguments import backend_of_pass
from ampbridge.adapters.backend import Backend, LossFn, Model
from ampbridge.adapters.tracing import called_as_it_is
from ampbridge.errors import CallOrderError
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single
from ampbridge.scaling.scaled_once import scaled_by
from ampbridge.scaling.scaler import Gradients, GradScaler, checked_scaler
from ampbridge.training.decorate import (
    fit_to,
    for_steps,
    under_another_policy,
    warn_of_low_parameters,
)
from ampbridge.training.step_program import returning_aux


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
    with scaled_by.during(None if factor is None else "value_and_grad"):
        loss, aux, grads = backend.gradients(paired, model, (batch, named), parsed, factor, None)
    gradients = Gradients(grads, backend.parameters(model))
    return (loss, gradients) if aux is None else ((loss, aux), gradients)


@called_as_it_is
def fit_for_own_loop(backend: Backend, model: Model, policy: Policy, caller: str) -> None:
    """Decorate for a loop by hand; refuse a user's decoration with another policy, and at O2 none."""
    present = backend.decoration(model, None)
    decorated = present.policy if present is not None and present.standalone else None
    if decorated == policy:
        return
    if decorated is not None:
        raise under_another_policy(caller, policy, decorated)
    if policy.level == "O2":
        raise CallOrderError(
            f"{caller} under {policy!r} of a model that is not decorated.\n"
            f"Hint: model, optimizer = amp.decorate(model, optimizer, {policy!r})"
        )
    if fit_to(backend, model, None, for_steps(backend, model, policy)):
        warn_of_low_parameters(backend, model, policy)
