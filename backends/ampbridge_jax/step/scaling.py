"""From gradients to parameters: unscale, check, clip, step or skip; and the scaler's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ampbridge.adapters.backend import FINITE, INF, NAN, Array, Optimizer, Scalar
from ampbridge.adapters.interrupts import LAST_OF_SEVERAL
from ampbridge.adapters.scoped import Scoped
from ampbridge.scaling.scale_rule import ScalerConfig, ScaleState, next_state
from ampbridge_jax._private import fill_all, values_of
from ampbridge_jax.autocast.casting import outside_of_regions
from ampbridge_jax.model.decorating import keep_slots
from ampbridge_jax.model.model_calls import keep_low
from ampbridge_jax.model.variables import belonging_here, holding, would_keep_a_trace
from ampbridge_jax.optimizers import of, roots_of
from ampbridge_jax.step.numbers import Number
from ampbridge_jax.step.placing import keep_shardings

Grads = Sequence[Array]

_made_once: Any = lax.optimization_barrier
"""XLA would compute a number again in each kernel that reads it."""


# -- gradients


# Where a gradient is None, so is what comes of it: to JAX it is a tree without leaves.


@jax.jit
def _unscaled(grads: list[Array], scale: Scalar) -> tuple[list[Array], Scalar]:
    def wide(g: Array) -> Array:
        g = g.astype(jnp.promote_types(g.dtype, jnp.float32))
        return g if scale is None else g * (1.0 / scale).astype(g.dtype)

    unscaled: list[Array] = jax.tree.map(wide, grads)
    ranks = [jnp.max(_rank(g), initial=0) for g in jax.tree.leaves(unscaled)]
    worst = jnp.max(jnp.stack(ranks))
    kind = jnp.where(worst == _INF, INF, jnp.where(worst == _NAN, NAN, FINITE))
    return unscaled, _made_once(kind.astype(jnp.int32))


_NAN, _INF = 1, 2
"""Ranks of what is not finite: inf comes ahead of NaN."""


def _rank(x: Array) -> Array:
    """Of each number. So one pass over a gradient finds both."""
    return jnp.where(jnp.isinf(x), _INF, jnp.where(jnp.isnan(x), _NAN, 0)).astype(jnp.int32)


def unscale(grads: Grads, scale: Scalar) -> tuple[list[Array], Scalar]:
    """See ``Backend.unscale``."""
    if not jax.tree.leaves(grads):
        return [*grads], FINITE
    with outside_of_regions():
        known = None if scale is None else jnp.float32(scale)
        found: tuple[list[Array], Scalar] = _unscaled([*grads], known)
    return found


def unscale_for(
    optimizer: Optimizer | None, grads: Grads, scale: Scalar
) -> tuple[list[Array], Scalar]:
    """See ``Backend.unscale_for``. The host decides about an eager step, and can give the alarms."""
    grads, found = unscale(grads, scale)
    return grads, found if isinstance(found, (int, jax.core.Tracer)) else int(found)


def worst(found: Sequence[Scalar]) -> Scalar:
    """See ``Backend.worst``."""
    if all(isinstance(kind, int) for kind in found):
        return INF if INF in found else NAN if NAN in found else FINITE
    kinds = jnp.stack([jnp.asarray(kind) for kind in found])
    return jnp.where((kinds == INF).any(), INF, jnp.where((kinds == NAN).any(), NAN, FINITE))


@jax.jit
def _clipped(grads: list[Array], max_norm: Scalar) -> tuple[list[Array], Scalar]:
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))
    factor = max_norm / jnp.maximum(norm, max_norm)
    return jax.tree.map(lambda g: (g * factor).astype(g.dtype), grads), norm


def clip(grads: Grads, max_norm: float) -> tuple[list[Array], Scalar]:
    """See ``Backend.clip``."""
    with outside_of_regions():
        found: tuple[list[Array], Scalar] = _clipped([*grads], jnp.float32(max_norm))
    return found


def clip_values(grads: Grads, limit: float) -> list[Array]:
    """See ``Backend.clip_values``."""
    with outside_of_regions():
        clipped: list[Array] = jax.tree.map(lambda g: jnp.clip(g, -limit, limit), [*grads])
    return clipped


# -- the optimizer


def step(optimizer: Optimizer, parameters: Grads, grads: Grads) -> None:
    """See ``Backend.step``. A parameter without a gradient stays as it is, and so do its slots."""
    given = {id(p): g for p, g in zip(parameters, grads, strict=True)}
    _keep_what_is_low(optimizer)
    changing = of(optimizer).changed_by(optimizer)
    before = values_of(changing)
    with outside_of_regions():
        of(optimizer).update(optimizer, given, changing)
    keep_shardings(changing, before)


def step_unless(optimizer: Optimizer, parameters: Grads, grads: Grads, overflow: Scalar) -> Scalar:
    """See ``Backend.step_unless``; the device decides, in a trace, between the values before and after."""
    given = {id(p): g for p, g in zip(parameters, grads, strict=True)}
    _keep_what_is_low(optimizer)
    changing = of(optimizer).changed_by(optimizer)
    roots = [*roots_of(optimizer), optimizer]

    before = values_of(changing)
    with outside_of_regions():
        applied = jnp.asarray(overflow) == FINITE
        with belonging_here(roots), holding(changing, before), LAST_OF_SEVERAL:
            of(optimizer).update(optimizer, given, changing)
            after = values_of(changing)
        # A branch would keep XLA from fusing the update with what is around it, and copy all values.
        chosen = [
            jnp.where(applied, x.astype(old.dtype), old)
            for x, old in zip(after, before, strict=True)
        ]
    fill_all(changing, chosen)
    return applied


def _keep_what_is_low(optimizer: Optimizer) -> None:
    """Have what the optimizer trains, and its slots, be in the precision that the models' policies say."""
    for module in roots_of(optimizer):
        keep_low(module)
    keep_slots(optimizer)


# -- the scaler's state


noticing: Scoped[Callable[[Any], None] | None] = Scoped("ampbridge_jax stores", None)
"""Who is told of each store that is read: a step that is traced (``compiling``)."""


WORDS = 16
"""Of an array of int32 with a state of the scaler, whose rest is free for the numbers of a result."""

STATE = len(ScaleState._fields)
"""How many of these words are the state's: the bits of the scale, and the counts."""


class Store:
    """The scaler's state in one array, which a compiled step takes and returns."""

    def __init__(self, state: ScaleState) -> None:
        self.write(state)

    def read(self) -> ScaleState:
        """See ``ScaleStore.read``."""
        self._tell()
        words = self.words
        if isinstance(words, jax.core.Tracer):
            scale, counts = parts_of(words)
            return ScaleState(scale, *counts)
        with jax.ensure_compile_time_eval():  # also inside of a trace of the user's
            scale, _ = parts_of(words)
        return ScaleState(scale, *(Number(words, i, words.dtype) for i in range(1, STATE)))

    def _tell(self) -> None:
        notice = noticing.get()
        if notice is not None:
            notice(self)

    def write(self, state: ScaleState) -> None:
        """See ``ScaleStore.write``."""
        words = np.zeros(WORDS, np.int32)
        words[:1] = np.float32(state.scale).reshape(1).view(np.int32)
        words[1:STATE] = [int(count) for count in state[1:]]
        self.words: Array = jnp.asarray(words)

    def update(self, overflow: Scalar, config: ScalerConfig) -> ScaleState:
        """See ``ScaleStore.update``."""
        self._tell()
        with outside_of_regions():
            after = _next(self.words, overflow, config)
        if noticing.get() is None and isinstance(after, jax.core.Tracer):
            raise would_keep_a_trace()
        self.words = after
        return self.read()


class Later:
    """A state in ``WORDS`` that is read when a result is asked about it."""

    __slots__ = ("_words",)

    scale = None  # a float would say that the state is on the host

    def __init__(self, words: Array) -> None:
        self._words = words

    @property
    def consecutive_skips(self) -> int:
        return int(self.on_host().consecutive_skips)

    def on_host(self) -> ScaleState:
        """See ``ScaleState.on_host``."""
        words = np.asarray(self._words)[:STATE]
        return ScaleState(float(words[:1].view(np.float32)[0]), *words[1:].tolist())


@jax.jit
def words_of(scale: Array, counts: Array) -> Array:
    """``WORDS`` with this state."""
    bits = lax.bitcast_convert_type(scale, jnp.int32)
    return jnp.concatenate([bits[None], counts, jnp.zeros(WORDS - STATE, jnp.int32)])


@jax.jit
def parts_of(words: Array) -> tuple[Array, Array]:
    """Scale and counts."""
    return lax.bitcast_convert_type(words[0], jnp.float32), words[1:STATE]


@partial(jax.jit, static_argnums=2)
def _next(words: Array, overflow: Scalar, config: ScalerConfig) -> Array:
    scale, counts = parts_of(words)
    after = next_state(ScaleState(scale, *counts), jnp.asarray(overflow), config, _where)
    counted = jnp.stack([jnp.asarray(count, jnp.int32) for count in after[1:]])
    made: Array = _made_once(words_of(jnp.asarray(after.scale, jnp.float32), counted))
    return made


def _where(condition: Any, a: Any, b: Any) -> Any:
    if isinstance(condition, bool):
        return a if condition else b
    return jnp.where(condition, a, b)


def scale_store(state: ScaleState, like: Any) -> Store:
    """See ``Backend.scale_store``: on the device on which JAX computes."""
    del like
    return Store(state)
