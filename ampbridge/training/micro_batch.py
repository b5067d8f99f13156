"""What a step computes with each micro-batch, as a function of native values that a backend may trace.

It knows the parts of a step and not the step: a dropped step is freed at once, and with it the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampbridge.adapters.backend import (
    FINITE,
    Array,
    Backend,
    BoundGradients,
    LossFn,
    Model,
    Optimizer,
    Program,
    Scalar,
    StepOutput,
)
from ampbridge.adapters.interrupts import hold_interrupts
from ampbridge.errors import ArgumentError, ArgumentTypeError
from ampbridge.policies.policy import Policy
from ampbridge.scaling.scaler import GradScaler
from ampbridge.scaling.step_or_skip import step_or_skip
from ampbridge.training.first_look import LookAtGradients
from ampbridge.training.recipe import Recipe


@dataclass(eq=False)
class MicroBatchProgram:
    """What a step computes with, and the recipe that says how. A whole batch is one micro-batch.

    Attributes:
        counting: of each policy the scaler that counts its steps, and scales them if it is not ``unscaled``.
        unscaled: counts the steps that are not scaled.
        look: is shown the gradients of each step.
    """

    backend: Backend
    model: Model
    optimizer: Optimizer
    recipe: Recipe
    counting: Mapping[Policy, GradScaler]
    unscaled: GradScaler
    look: LookAtGradients
    name_overflows: bool

    def build(self, loss_fn: LossFn) -> Program:
        """The step on every replica that this process holds.

        Of its arguments ``policy`` and ``final`` (the last micro-batch, which steps) are fixed in a trace.
        """
        backend, model, optimizer = self.backend, self.model, self.optimizer
        loss_and_aux = returning_aux(loss_fn)
        whole_steps = self.recipe.on_overflow == "drop_step"
        clipping, share = self.recipe.clipping, self.recipe.accumulate
        bound: dict[Policy, BoundGradients] = {}

        def program(
            policy: Policy, final: bool, total: Sequence[Array] | None, batch: Sequence[Any]
        ) -> StepOutput:
            gradients = bound.get(policy)
            if gradients is None:
                gradients = bound[policy] = backend.bind(loss_and_aux, model, policy, optimizer)
            counting = self.counting[policy]
            store, scaling = counting.store, counting is not self.unscaled
            scale = factor = store.read().scale if scaling else None
            if share > 1:  # the micro-batches have equal parts in the step
                factor = 1.0 / share if scale is None else scale / share
            whole = total if whole_steps else None
            loss, aux, parameters, grads = gradients(batch, factor, whole)
            self.look(policy, parameters, grads, scaled=scaling)
            if whole_steps and not final:
                return StepOutput(loss, aux, grads, scale)
            scaled = grads
            grads, overflow = backend.unscale_for(optimizer, scaled, scale)
            kinds = _kinds(backend, scaled, overflow) if self.name_overflows else None
            if not whole_steps and total is not None:
                grads = backend.add(total, grads)
            norm = applied = raised = None
            if final and clipping is not None:
                grads, norm = clipping.clip(backend, grads)
            hold_interrupts()  # up to here nothing has changed that would stay
            if final:
                applied, raised = step_or_skip(backend, optimizer, parameters, grads, overflow)
            state = store.update(overflow, counting.config)  # last: what raises moves no scale
            rest = None if final else grads
            return StepOutput(loss, aux, rest, scale, state, overflow, applied, norm, kinds, raised)

        return backend.on_replicas(program, model)


def _kinds(backend: Backend, grads: Sequence[Array], overflow: Scalar) -> Sequence[Scalar]:
    """The overflow of each gradient. It takes another pass if it is not known yet.

    Gradients that were unscaled in place will do: what was not finite is not finite now.
    """
    if isinstance(overflow, int) and overflow == FINITE:
        return [FINITE] * len(grads)
    return [backend.unscale([grad], None)[1] for grad in grads]


def returning_aux(loss_fn: LossFn) -> LossFn:
    """``loss_fn`` as a backend calls it: with the positional part of a batch, and the named one.

    It returns ``(loss, aux)``, the loss checked to be a scalar.
    """

    def loss_and_aux(
        model: Model, batch: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Array, Any]:
        output = loss_fn(model, *batch, **named)
        loss, aux = output if isinstance(output, tuple) and len(output) == 2 else (output, None)
        dimensions = getattr(loss, "ndim", loss)
        if dimensions is loss:
            raise ArgumentTypeError(
                f"loss_fn returned {type(loss).__name__}, not a tensor.\n"
                "Hint: def loss_fn(model, x, y): return loss  # or (loss, aux)"
            )
        if dimensions and hasattr(loss, "sum") and set(loss.shape) == {1}:
            loss = loss.sum()  # one number, which torch's and Paddle's backward() takes
        elif dimensions:
            raise ArgumentError(
                f"loss_fn returned a loss of shape {tuple(loss.shape)}; a scalar is needed.\n"
                f"Hint: return {'loss.mean()' if hasattr(loss, 'mean') else 'the mean of it'}"
            )
        return loss, aux

    return loss_and_aux
