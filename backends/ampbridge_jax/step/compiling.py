"""The whole step under ``jax.jit``, as a function of all that it reads and changes.

That is what the Variables of the model and of the optimizer hold, and the scaler's state. They go in as
arguments and come back; then they are put into the Variables. So a call that fails has changed nothing,
and the host reads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from ampbridge.adapters import nested
from ampbridge.adapters.backend import Array, LossFn, Program, StepOutput
from ampbridge.adapters.interrupts import hold_interrupts, put_back_after
from ampbridge.adapters.nested import leaves
from ampbridge.adapters.scoped import Scoped
from ampbridge.policies.policy import Policy
from ampbridge_jax._private import fill_all, level_of, values_of
from ampbridge_jax.model.decorating import serve
from ampbridge_jax.model.structure import Structure
from ampbridge_jax.model.variables import belonging_here, check_level, holding
from ampbridge_jax.optimizers import noted
from ampbridge_jax.step.arrays import arrays_in, is_array, native_array, with_arrays
from ampbridge_jax.step.gradients import Trains, look, looking, modules_of
from ampbridge_jax.step.numbers import Number, packed, places, wide
from ampbridge_jax.step.placing import may_be_spread, mesh_of, on_mesh, shardings_of
from ampbridge_jax.step.scaling import STATE, WORDS, Later, Store, noticing

_NO_WORDS = np.zeros(WORDS, np.int32)


computing: Scoped[bool] = Scoped("ampbridge_jax computing", False)
"""Whether a step only computes, in a function of the user's own (``pure``)."""


class Computed(Exception):
    """What a step computes; raised there, as a step that raises has not happened."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


def compile_step(build: Callable[[LossFn], Program], loss_fn: LossFn) -> Program:
    """``build(loss_fn)``, traced once for each policy, kind of step and structure of model and batch.

    What is no array in the batch is a constant of the trace.
    """
    return _Compiled(build(loss_fn))


class _Compiled:
    """A step and its traces, by what they are for."""

    def __init__(self, step: Program) -> None:
        self._step = step
        self._what: Trains | None = None
        self._structure: Structure | None = None
        self._noted: object = None
        self._traces: dict[Hashable, dict[Hashable, _Traced]] = {}
        """By the structure of what is trained, those of the present one by the rest."""

    def __call__(
        self, policy: Policy, final: bool, total: Sequence[Array] | None, batch: Sequence[Any]
    ) -> StepOutput:
        if computing.get():
            raise Computed(None if looking.get() else self._step(policy, final, total, batch))
        what = self._what
        if what is None:
            what = self._what = look(partial(self._step, policy, final, total, batch))
        inputs, form = jax.tree.flatten(batch)
        if not all(map(is_array, inputs)):
            inputs, form = [x for x in leaves(batch) if is_array(x)], _Constants(batch)
        missing = None if total is None else tuple(g is None for g in total)
        structure = self._present_structure(what)
        key = policy, final, missing, form
        found = self._of_structure.get(key)
        if found is None:
            found = self._of_structure[key] = _Traced(self._step, what, policy, final, form)
        return found(structure.variables, [*map(native_array, inputs)], total)

    def _present_structure(self, what: Trains) -> Structure:
        structure, told = self._structure, noted(what.optimizer)
        if structure is None or told is not self._noted or not structure.is_current():
            roots = [*modules_of(what.model, what.optimizer), what.optimizer]
            structure, before = Structure(roots), self._structure
            if before is None or structure.key != before.key:
                check_level(level_of(structure.variables[0]))
                serve(what.model, what.optimizer)  # an update may have undone a decoration
                structure = Structure(roots)
            self._structure, self._noted = structure, told
            self._of_structure = self._traces.setdefault(structure.key, {})
        return structure


class _Constants:
    """A batch of which some leaves are no arrays: these are constants, and part of the trace's key."""

    def __init__(self, batch: Any) -> None:
        self._structure = nested.Structure(batch)
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


class _Frame:
    """What a step returned, without the arrays in it; a constant of a trace, equal to itself alone.

    Its numbers are in the rest of the scaler's words, and those of each gradient in an array of their own.

    Attributes:
        arrays: the arrays, and last these numbers.
    """

    def __init__(self, output: StepOutput) -> None:
        native = output.aux, output.grads
        self.arrays = arrays_in(native)
        self._native = with_arrays(native, [_ARRAY] * len(self.arrays))
        kinds = [*map(wide, output.kinds or ())]
        self._kinds = places(kinds)
        if kinds:
            self.arrays.append(packed(kinds))
        self._is_counted = output.after is not None
        parts = output._replace(aux=None, grads=None, after=None, kinds=None)
        which = [i for i, x in enumerate(parts) if is_array(x)]
        numbers = [wide(parts[i]) for i in which]
        self.arrays.append(packed(numbers))
        self._numbers = [
            (i, STATE + place, dtype)
            for i, (place, dtype) in zip(which, places(numbers), strict=True)
        ]
        self._parts = [None if is_array(x) else x for x in parts]

    def filled(self, arrays: Sequence[Array], words: Array) -> StepOutput:
        """The output with these arrays, and what is in ``words``."""
        parts: list[Any] = self._parts.copy()
        for i, place, dtype in self._numbers:
            parts[i] = Number(words, place, dtype)
        if self._is_counted:
            parts[_AFTER] = Later(words)
        if self._kinds:
            parts[_KINDS] = [Number(arrays[-1], *where) for where in self._kinds]
        if self._native != (None, None):
            parts[_AUX], parts[_GRADS] = with_arrays(self._native, arrays, lambda x: x is _ARRAY)
        return StepOutput(*parts)


_AUX, _GRADS, _AFTER, _KINDS = map(StepOutput._fields.index, ("aux", "grads", "after", "kinds"))


class _Returned:
    """The arrays of an output, and its frame."""

    def __init__(self, frame: _Frame, arrays: Sequence[Array]) -> None:
        self.frame, self.arrays = frame, arrays


jax.tree_util.register_pytree_node(
    _Returned, lambda returned: (returned.arrays, returned.frame), _Returned
)


def computed(
    run: Callable[[], StepOutput],
    roots: Sequence[Any],
    held: Sequence[Any],
    values: Any,
    words: Array,
) -> tuple[StepOutput, list[Any], list[Array], list[Store]]:
    """What ``run`` returns where the Variables ``held`` hold ``values``, and its store ``words``.

    Also what they hold after it, and the store. Afterwards they hold what they did before.
    """
    entered: list[tuple[Store, Array]] = []

    def notice(store: Store) -> None:
        if not entered:  # a step counts with one store
            entered.append((store, store.words))
            store.words = words

    def put_back() -> None:
        for store, own in entered:
            store.words = own

    told = noticing.during(notice)
    with put_back_after(put_back), belonging_here(roots), holding(held, values), told:
        output = run()
        after = values_of(held)
        counted = [store.words for store, _ in entered]
    return output, after, counted, [store for store, _ in entered]


class _Traced:
    """A step of one kind, as a pure function."""

    def __init__(self, step: Program, what: Trains, policy: Policy, final: bool, form: Any) -> None:
        self._store: list[Store] = []  # none in a micro-batch that counts for nothing by itself
        self._present: list[Sequence[Any]] = []  # a function that had self in it would be a cycle
        touched, present = self._store, self._present

        def pure(values: Any, words: Any, inputs: Any, total: Any) -> Any:
            roots = [*modules_of(what.model, what.optimizer), what.optimizer]
            (held,) = present
            run = partial(step, policy, final, total, form.unflatten(inputs))
            output, after, counted, touched[:] = computed(run, roots, held, values, words)
            frame = _Frame(output)
            (*arrays, numbers), frame.arrays = frame.arrays, []
            state = counted[0] if counted else words
            words = lax.dynamic_update_slice(state, numbers, (STATE,))
            return _Returned(frame, arrays), after, words

        self._pure = pure
        self._run: Any = None
        self._shardings: list[Any] = []
        self._may_be_spread = may_be_spread()

    def __call__(
        self, variables: Sequence[Any], inputs: Sequence[Array], total: Sequence[Array] | None
    ) -> StepOutput:
        check_level(level_of(variables[0]))
        self._present[:] = [variables]
        values: Any = values_of(variables)
        words: Any = _NO_WORDS
        if not self._shardings:  # to see which store it takes
            values, words = self._placed(values, words, inputs)
            self._run.eval_shape(values, words, inputs, total)
        for store in self._store:
            words = store.words
        if self._may_be_spread and shardings_of([*values, words]) != self._shardings:
            values, words = self._placed(values, words, inputs)
        returned, after, words = self._run(values, words, inputs, total)
        hold_interrupts()
        fill_all(variables, after)
        for store in self._store:
            store.words = words
        frame: _Frame = returned.frame
        return frame.filled(returned.arrays, words)

    def _placed(self, values: Any, words: Any, inputs: Sequence[Array]) -> Any:
        """Values and words where the step leaves them, so that the next one finds the same trace."""
        held = [*values, words]
        mesh = mesh_of([*held, *inputs])
        if mesh is None:
            self._run, self._shardings = self._run or jax.jit(self._pure), shardings_of(held)
            return values, words
        kept = self._shardings = on_mesh(held, mesh)
        self._run = jax.jit(self._pure, out_shardings=(None, kept[:-1], kept[-1]))
        *values, words = jax.device_put(held, kept)
        return values, words
