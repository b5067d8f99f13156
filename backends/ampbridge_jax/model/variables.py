"""Variables that hold other values for a while, and belong to a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ampbridge.adapters.interrupts import LAST_OF_SEVERAL, put_back_after
from ampbridge.errors import UnsupportedError
from ampbridge_jax import _private
from ampbridge_jax._private import fill_all, values_of
from ampbridge_jax.model.kinds import FLAX, named_variables, nodes

CALL = "_pytree__ampbridge_call"
"""Under which a module says what happens around its calls.

nnx carries it with the structure, and what goes over a module's attributes leaves such names out, as
flax's bridge to linen does.
"""

LOWERED = "ampbridge_lowered"
"""The metadata of what a decoration made low: ``Policy.masters`` of a parameter, "stochastic" of a slot."""


@contextmanager
def holding(variables: Sequence[Any], values: Sequence[Any]) -> Iterator[None]:
    """A block in which ``variables`` hold ``values``; afterwards they hold what they did before."""
    before = values_of(variables)
    with put_back_after(lambda: fill_all(variables, before)), LAST_OF_SEVERAL:
        fill_all(variables, values)
        yield


def check_level(level: Any) -> None:
    """Check that what belongs to a trace, or to none, may be changed now.

    Raises:
        UnsupportedError: inside of another trace, whose values would stay in it.
    """
    if not _private.is_present(level):
        raise would_keep_a_trace()


def would_keep_a_trace() -> UnsupportedError:
    """The error for a change, inside of somebody's trace, of what was made outside of it."""
    return UnsupportedError(
        "A step changes the model, the optimizer and the scaler, which were made outside of this "
        "jax.jit, jax.grad or jax.vmap; they would keep values of a trace that has ended.\n"
        "Hint: step(x, y) outside of jax.jit, as amp.train_step compiles it itself; or function, state = "
        "ampbridge_jax.pure(step), for a jax.jit of your own; in a step of your own: "
        "with amp.autocast(policy, 'jax') around what computes the loss"
    )


@contextmanager
def belonging_here(roots: Sequence[Any]) -> Iterator[None]:
    """A block in a trace, whose code may change what is in ``roots``.

    nnx refuses to change what was made outside of a trace. Here it is undone: who opens the block
    puts values in and takes them out again.
    """
    movable = [node for _, node in nodes(roots) if isinstance(node, FLAX.node)]
    movable += [v for _, v in named_variables(roots)]
    before = [_private.level_of(node) for node in movable]
    level = _private.present_level()

    def move_back() -> None:
        for node, own in zip(movable, before, strict=True):
            _private.move(node, own)

    with put_back_after(move_back), LAST_OF_SEVERAL:
        for node in movable:
            _private.move(node, level)
        yield
