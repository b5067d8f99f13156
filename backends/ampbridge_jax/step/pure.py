"""A step as a function of a state, for who owns the ``jax.jit`` around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ampbridge.adapters.backend import Array
from ampbridge.adapters.interrupts import uninterrupted
from ampbridge.errors import ArgumentTypeError, StateError, UnsupportedError, listed
from ampbridge.training.step import TrainStep
from ampbridge_jax._private import fill_all, level_of, values_of
from ampbridge_jax.arguments import kind
from ampbridge_jax.model.decorating import serve
from ampbridge_jax.model.kinds import named_variables
from ampbridge_jax.model.structure import Structure
from ampbridge_jax.model.variables import check_level
from ampbridge_jax.optimizers import acquaint
from ampbridge_jax.step.compiling import Computed, computed, computing
from ampbridge_jax.step.gradients import look, modules_of
from ampbridge_jax.step.placing import keep_shardings
from ampbridge_jax.step.scaling import Store, parts_of, words_of


class State(NamedTuple):
    """All that a step changes: what the Variables of model and optimizer hold, and the scaler's state."""

    variables: list[Array]
    scale: Array
    counts: Array
    steps: Array


class Result(NamedTuple):
    """What a step did, as arrays; ``overflow`` is 0, or 1 for inf, or 2 for NaN without inf."""

    loss: Array
    scale: Array
    applied: Array
    overflow: Array
    grad_norm: Array | None
    aux: Any


def pure(step: TrainStep) -> tuple[Callable[..., tuple[State, Result]], State]:
    """A step as a function ``(state, *batch) -> (state, result)``, and the state to begin with.

        function, state = pure(step)
        state, results = jax.lax.scan(lambda state, batch: function(state, *batch), state, batches)
        take(step, state)

    The function changes nothing. It works in ``jax.jit``, which may donate the state, in ``lax.scan``
    and in ``jax.vmap``. Alarms of skipped steps come after ``take``, with the next result of ``step``.

    Raises:
        UnsupportedError: for a step that the host takes part in: one with ``accumulate``, a schedule, a
            scheduler, ``name_overflows`` or ``compile=False``.
    """
    held, store, told = _parts(step)
    by_the_host = {
        "accumulate": step.accumulate > 1,
        "on_overflow": step.on_overflow != "drop_step",
        "name_overflows": step.name_overflows,
        "a schedule": told["policy"] != step.policy.to_dict(),
        "scheduler": step._scheduler is not None,
        "compile=False": not _is_compiled(step),
    }
    found = [name for name, is_there in by_the_host.items() if is_there]
    if found:
        raise UnsupportedError(
            f"The host takes part in a step with {listed(found)}, which a pure function leaves out.\n"
            "Hint: step = amp.train_step(loss_fn, model, optimizer, policy='O1:float16'); "
            "a rate that changes is optax's: optax.adam(optax.cosine_decay_schedule(1e-3, 1000))"
        )

    def function(state: State, /, *batch: Any, **named: Any) -> tuple[State, Result]:
        if [*map(id, _variables(step))] != [*map(id, held)]:
            raise StateError(
                "The model or the optimizer has other Variables than when its step was made pure.\n"
                "Hint: function, state = ampbridge_jax.pure(step)"
            )

        def run() -> Any:
            try:
                with computing.during(True):
                    return step(*batch, **named)
            except Computed as reached:
                return reached.output

        roots, words = _roots(step), words_of(state.scale, state.counts)
        output, after, (words,), _ = computed(run, roots, held, state.variables, words)
        scale, counts = parts_of(words)
        result = Result(
            output.loss,
            jnp.float32(1 if output.scale is None else output.scale),
            jnp.asarray(output.applied),
            jnp.int32(output.overflow),
            output.grad_norm,
            output.aux,
        )
        return State(after, scale, counts, state.steps + 1), result

    steps = jnp.asarray(told["step"], jnp.int32)
    return function, _copied(_present(held, store, steps))


def take(step: TrainStep, state: State) -> None:
    """Put a state into the model, the optimizer and the scaler of ``step``, which goes on from there.

    They get copies, sharded as their own arrays were: the state may be donated afterwards.

    Raises:
        StateError: if it is none of this step, or was donated; nothing is changed then.
    """
    if isinstance(step, State):
        msg = "The step comes first, and the state second.\nHint: ampbridge_jax.take(step, state)"
        raise ArgumentTypeError(msg)
    held, store, _ = _parts(step)
    own = _present(held, store, jnp.int32(0))
    if isinstance(state, tuple) and any(isinstance(part, State) for part in state):
        msg = "state is all that the function returned; the state is its first part.\n"
        raise StateError(msg + "Hint: state, result = function(state, x, y)")
    if not isinstance(state, State) or _forms(state) != _forms(own):
        raise StateError(
            "The state is none of this step: its arrays have other shapes or dtypes, or another number.\n"
            "Hint: function, state = ampbridge_jax.pure(step); of several seeds, take one: "
            "jax.tree.map(lambda x: x[0], state)"
        )
    if any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(state)):
        raise StateError(
            "The state was donated to a call, and its arrays are gone.\n"
            "Hint: state, result = run(state, x, y); ampbridge_jax.take(step, state)"
        )
    steps, (variables, scale, counts, _) = int(state.steps), _copied(state)
    with uninterrupted():
        fill_all(held, variables)
        keep_shardings(held, own.variables)
        store.words = words_of(scale, counts)
        step.load_state_dict({**step.state_dict(), "step": steps})


def _parts(step: TrainStep) -> tuple[list[Any], Store, dict[str, Any]]:
    """The Variables of a step, its store, and what its own state says."""
    if not isinstance(step, TrainStep) or kind(step.model) != "model":
        raise ArgumentTypeError(
            f"step is what amp.train_step returns for a model of flax nnx, not {type(step).__name__}.\n"
            "Hint: ampbridge_jax.pure(amp.train_step(loss_fn, model, optimizer))"
        )
    check_level(level_of(named_variables(step.model)[0][1]))
    acquaint(step.model, step.optimizer)
    serve(step.model, step.optimizer)
    store: Any = step._counting[step.policy].store
    return _variables(step), store, step.state_dict()


def _present(held: Sequence[Any], store: Store, steps: Array) -> State:
    scale, counts = parts_of(store.words)
    return State(values_of(held), scale, counts, steps)


def _roots(step: TrainStep) -> list[Any]:
    return [*modules_of(step.model, step.optimizer), step.optimizer]


def _variables(step: TrainStep) -> list[Any]:
    return Structure(_roots(step)).variables


def _is_compiled(step: TrainStep) -> bool:
    """Whether ``_Compiled`` is reached, ahead of which the model is decorated, and nothing is computed."""
    try:
        with computing.during(True):
            look(step)
    except Computed:
        return True
    return False


def _copied(state: State) -> State:
    """As the arrays of a donated state are gone, and Variables may share theirs."""
    copies: State = jax.tree.map(jnp.copy, state)
    return copies


def _forms(state: State) -> list[Any]:
    return [(x.shape, x.dtype) for x in jax.tree.leaves(state)]
