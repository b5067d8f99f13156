"""The modules of a model and their Variables: found, named, and given other values for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flax import nnx

from ampbridge.adapters.interrupts import LAST_OF_SEVERAL, put_back_after
from ampbridge.errors import UnsupportedError
from ampbridge_jax import _private
from ampbridge_jax._private import fill_all, values_of
from ampbridge_jax.model import keras_models
from ampbridge_jax.model.keras_models import is_layer

CALL = "_pytree__ampbridge_call"
"""Under which a module says what happens around its calls.

nnx carries it with the structure, and what goes over a module's attributes leaves such names out, as
flax's bridge to linen does.
"""

LOWERED = "ampbridge_lowered"
"""The metadata of what a decoration made low: ``Policy.masters`` of a parameter, "stochastic" of a slot."""


def nodes(root: Any) -> list[tuple[str, Any]]:
    """Every object of nnx that is no Variable, with its dotted name; outer before inner, each once.

    And every layer of Keras.
    """
    found: dict[int, tuple[str, Any]] = {}
    _find_nodes("", root, found)
    return list(found.values())


def _find_nodes(name: str, value: Any, found: dict[int, tuple[str, Any]]) -> None:
    # No function inside of another: one that calls itself is a cycle, which holds what it has found.
    if isinstance(value, nnx.Pytree):
        if id(value) in found:
            return
        found[id(value)] = (name, value)
    elif is_layer(value):
        for part_name, part in keras_models.named_layers(value):
            found.setdefault(id(part), (f"{name}.{part_name}".strip("."), part))
    for key, item in _items(value):
        _find_nodes(f"{name}.{key}".lstrip("."), item, found)


def named_modules(root: Any) -> list[tuple[str, Any]]:
    """Every module, with its dotted name; outer before inner, each once."""
    return [(name, node) for name, node in nodes(root) if _is_module(node)]


def _is_module(value: Any) -> bool:
    return isinstance(value, nnx.Module) or is_layer(value)


def own_variables(module: Any) -> list[tuple[str, Any]]:
    """The Variables of a module that no module below it has, in the order of their definition."""
    if is_layer(module):
        return list(keras_models.own_variables(module))
    return [pair for key, value in _items(module) for pair in _variables(key, value)]


def _variables(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, nnx.Variable):
        yield name, value
    elif not _is_module(value):
        for key, item in _items(value):
            yield from _variables(f"{name}.{key}", item)


def own_parameters(module: Any) -> list[tuple[str, Any]]:
    """Those of ``own_variables`` that are parameters."""
    if is_layer(module):
        return list(keras_models.own_parameters(module))
    return [(name, v) for name, v in own_variables(module) if isinstance(v, nnx.Param)]


def named_variables(root: Any) -> list[tuple[str, Any]]:
    """Every Variable with its dotted name, each once, in the order of their definition."""
    return _named(own_variables, root)


def named_parameters(root: Any) -> list[tuple[str, Any]]:
    """Those of ``named_variables`` that are parameters."""
    return _named(own_parameters, root)


def _named(own: Callable[[Any], list[tuple[str, Any]]], root: Any) -> list[tuple[str, Any]]:
    found: dict[int, tuple[str, Any]] = {}
    modules = named_modules(root)
    owners = modules if _is_module(root) else [("", root), *modules]
    for prefix, owner in owners:
        for name, variable in own(owner):
            found.setdefault(id(variable), (f"{prefix}.{name}".lstrip("."), variable))
    return list(found.values())


def _items(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, nnx.Variable):
        return []
    if isinstance(value, nnx.Pytree):
        held = vars(value).items()
        return [(str(key), item) for key, item in held if not str(key).startswith("_pytree__")]
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if keras_models.is_optimizer(value):
        value = keras_models.changed_by(value)
    if isinstance(value, (list, tuple)):
        return [(str(key), item) for key, item in enumerate(value)]
    return []


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
    movable = [node for _, node in nodes(roots) if not is_layer(node)]
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
