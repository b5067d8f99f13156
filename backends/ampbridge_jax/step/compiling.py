"""The whole step under ``jax.jit``, as a function of all that it reads and changes.

That is what the Variables of the model and of the optimizer hold, and the scaler's state. They go in as
arguments and come back; then they are put into the Variables. So a call that fails has changed nothing,
and the host reads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from ampbridge.adapters.backend import Array, LossFn, Program, StepOutput
from ampbridge.adapters.interrupts import hold_interrupts
from ampbridge.adapters.nested import Structure, leaves
from ampbridge.policies.policy import Policy
from ampbridge.scaling.scale_rule import ScaleState
from ampbridge_jax._private import fill, level_of, value_of
from ampbridge_jax.model.variables import belonging_here, check_level, holding, named_variables
from ampbridge_jax.optimizers import slots
from ampbridge_jax.step.arrays import arrays_in, is_array, native_array, with_arrays
from ampbridge_jax.step.gradients import Trains, looking, modules_of
from ampbridge_jax.step.scaling import Store, noticing

_NO_SCALE, _NO_COUNTS = np.float32(1), np.zeros(len(ScaleState._fields) - 1, np.int32)


def compile_step(build: Callable[[LossFn], Program], loss_fn: LossFn) -> Program:
    """``build(loss_fn)``, traced once for each policy, kind of step and structure of model and batch.

    What is no array in the batch is a constant of the trace.
    """
    step = build(loss_fn)
    traced: dict[Hashable, _Traced] = {}
    trains: list[Trains] = []

    def program(
        policy: Policy, final: bool, total: Sequence[Array] | None, batch: Sequence[Any]
    ) -> StepOutput:
        if not trains:
            trains.append(_look(step, policy, final, total, batch))
        what = trains[0]
        inputs, structure = jax.tree.flatten(batch)
        if not all(map(is_array, inputs)):
            inputs, structure = _split(batch)
        missing = None if total is None else tuple(g is None for g in total)
        graph = nnx.graphdef((*modules_of(what.model, what.optimizer), what.optimizer))
        key = policy, final, missing, structure, graph
        found = traced.get(key)
        if found is None:
            found = traced[key] = _Traced(step, what, policy, final, structure)
        return found([native_array(x) for x in inputs], total)

    return program


def _look(
    step: Program,
    policy: Policy,
    final: bool,
    total: Sequence[Array] | None,
    batch: Sequence[Any],
) -> Trains:
    """What the step trains: it is run up to its gradients, where nothing has happened yet."""
    try:
        with looking.during(True):
            step(policy, final, total, batch)
    except Trains as found:
        return found.with_traceback(None)
    raise AssertionError("a step without gradients")


class _Constants:
    """A batch of which some leaves are no arrays: these are constants, and part of the trace's key."""

    def __init__(self, batch: Any) -> None:
        self._structure = Structure(batch)
        self._leaves = [_ARRAY if is_array(x) else x for x in leaves(batch)]
        kept = [_key(x) for x in self._leaves]
        self._key = self._structure, tuple(kept)

    def unflatten(self, arrays: Sequence[Array]) -> Any:
        remaining = iter(arrays)
        return self._structure.filled([next(remaining) if x is _ARRAY else x for x in self._leaves])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constants) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


_ARRAY = object()


def _key(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value


def _split(batch: Any) -> tuple[list[Array], _Constants]:
    return [x for x in leaves(batch) if is_array(x)], _Constants(batch)


class _Framed:
    """What a step returned, with what is no array in it; JAX sees the arrays alone."""

    def __init__(self, output: Any) -> None:
        self.arrays = arrays_in(output)
        self.frame = with_arrays(output, [_ARRAY] * len(self.arrays))

    def filled(self) -> Any:
        return with_arrays(self.frame, self.arrays, lambda x: x is _ARRAY)


class _Same:
    """A frame, as a constant of a trace: the same, or another."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame


def _framed(constant: _Same, arrays: Sequence[Array]) -> _Framed:
    framed = object.__new__(_Framed)
    framed.arrays, framed.frame = list(arrays), constant.frame
    return framed


jax.tree_util.register_pytree_node(
    _Framed, lambda framed: (framed.arrays, _Same(framed.frame)), _framed
)


class _Traced:
    """A step of one kind, as a pure function."""

    def __init__(
        self, step: Program, what: Trains, policy: Policy, final: bool, structure: Any
    ) -> None:
        modules = modules_of(what.model, what.optimizer)
        self._variables = [v for _, v in named_variables(modules)]
        self._variables += [v for _, v in slots(what.optimizer)]
        self._store: list[Store] = []  # none in a micro-batch that counts for nothing by itself
        self._is_traced = False
        held, roots, touched = self._variables, [*modules, what.optimizer], self._store

        def pure(values: Any, state: Any, inputs: Any, total: Any) -> Any:
            entered: list[Store] = []

            def notice(store: Store) -> None:
                if not entered:  # a step counts with one store
                    entered.append(store)
                    before.append((store.scale, store.counts))
                    store.scale, store.counts = state

            before: list[Any] = []
            try:
                with belonging_here(roots), holding(held, values), noticing.during(notice):
                    output = step(policy, final, total, structure.unflatten(inputs))
                    after = [value_of(v) for v in held]
                counted = [(each.scale, each.counts) for each in entered]
            finally:
                for store, own in zip(entered, before, strict=True):
                    store.scale, store.counts = own
            touched[:] = entered
            natural = all(map(is_array, jax.tree.leaves(output)))
            return output if natural else _Framed(output), after, counted

        self._run: Any = jax.jit(pure)

    def __call__(self, inputs: Sequence[Array], total: Sequence[Array] | None) -> StepOutput:
        check_level(level_of(self._variables[0]))
        values = [value_of(v) for v in self._variables]
        if not self._is_traced:  # to see which store it takes
            self._run.eval_shape(values, (_NO_SCALE, _NO_COUNTS), inputs, total)
            self._is_traced = True
        state = (_NO_SCALE, _NO_COUNTS)
        for store in self._store:
            state = store.scale, store.counts
        output, after, counted = self._run(values, state, inputs, total)
        hold_interrupts()
        for variable, value in zip(self._variables, after, strict=True):
            fill(variable, value)
        for store, own in zip(self._store, counted, strict=True):
            store.scale, store.counts = own
        returned: StepOutput = output.filled() if isinstance(output, _Framed) else output
        return returned
