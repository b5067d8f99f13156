"""Which model an ``nnx.Optimizer`` trains: it does not know, and is told where both are seen.

Its parameters are the model's Variables that its ``wrt`` selects, in the order of their definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import jax
import optax
from flax import nnx

from ampbridge.errors import ArgumentError, CallOrderError
from ampbridge_jax._private import fill, value_of
from ampbridge_jax.arguments import EXAMPLES
from ampbridge_jax.autocast.rules import FLOAT32, cast
from ampbridge_jax.model import keras_models
from ampbridge_jax.model.variables import LOWERED, named_variables

_trained: WeakKeyDictionary[Any, tuple[bool, tuple[ref[Any], ...]]] = WeakKeyDictionary()
"""Of an optimizer, whether it was made for several modules, and these modules."""

_orders: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()
"""Of an optimizer, the places of its Variables by name: ``nnx.grad`` sorts a module's attributes."""


class Optimizer(nnx.Optimizer[Any]):
    """An ``nnx.Optimizer`` that knows its model: ``Optimizer(model, optax.adam(1e-3))``.

    Loops by hand need it, ``scaler.step(optimizer, grads)``; ``train_step`` and ``decorate`` take a
    plain one as well. One for several modules is made of a tuple of them.
    """

    def __init__(self, model: Any, tx: Any, *, wrt: Any = nnx.Param) -> None:
        super().__init__(model, tx, wrt=wrt)
        note(self, model)
        _widen(self)


def note(optimizer: Any, model: Any) -> None:
    """Remember that ``optimizer`` trains ``model``, a module or a tuple of them."""
    several = isinstance(model, (tuple, list))
    _orders[optimizer] = {name: place for place, (name, _) in enumerate(named_variables(model))}
    _trained[optimizer] = several, tuple(map(ref, model if several else (model,)))


def noted(optimizer: Any) -> object:
    """What ``note`` has remembered: another object if it was told anew."""
    return _trained.get(optimizer)


def acquaint(model: Any, optimizer: Any) -> None:
    """See ``Backend.acquaint``. One that was made for modules that are still there trains these.

    One that was made after a decoration gets the slots of one that was made before it.

    Raises:
        ArgumentError: if the optimizer was made for another model, or trains one that is still there; for
            an optimizer of optax with a model of Keras, or the other way round.
    """
    if keras_models.is_layer(model) or keras_models.is_optimizer(optimizer):
        _acquaint_keras(model, optimizer)
        return
    present = _root(optimizer)
    if present is None or (not isinstance(optimizer, Optimizer) and present is not model):
        _check_that_it_fits(model, optimizer)
        note(optimizer, model)
    _widen(optimizer)


def _acquaint_keras(model: Any, optimizer: Any) -> None:
    """The optimizers of Keras know what they train."""
    if not keras_models.is_optimizer(optimizer):
        raise of_keras(model)
    if not keras_models.is_layer(model):
        raise ArgumentError(
            f"{type(optimizer).__name__} of Keras trains Keras' models, not a {type(model).__name__}.\n"
            f"Hint: {EXAMPLES['optimizer']}"
        )
    keras_models.build(model, optimizer)


def of_keras(model: Any) -> ArgumentError:
    """The error for another optimizer than Keras' of a model of Keras."""
    return ArgumentError(
        f"A {type(model).__name__} of Keras trains with Keras' optimizers.\n"
        "Hint: optimizer = keras.optimizers.SGD(0.1)"
    )


def _check_that_it_fits(model: Any, optimizer: Any) -> None:
    """See ``acquaint``; nobody has said yet that ``optimizer`` trains ``model``."""
    made = jax.eval_shape(optimizer.tx.init, nnx.as_pure(nnx.state(model, optimizer.wrt)))
    held = nnx.as_pure(optimizer.opt_state)
    if _shapes(made) != _shapes(held):
        raise ArgumentError(
            "The optimizer was made for other parameters than the model's: its slots have other names "
            f"or shapes.\nHint: {EXAMPLES['optimizer']}"
        )
    if _root(optimizer) is not None:
        raise ArgumentError(
            "The optimizer trains another model, which is still there.\n"
            f"Hint: an optimizer for each model: {EXAMPLES['optimizer']}"
        )


def _widen(optimizer: Any) -> None:
    """Have the slots be float32 that are low for the one reason that a decoration's parameters were.

    Optax makes slots in the image of the parameters, and nnx gives them their marks. Of an optimizer whose
    slots are to be low, the count is marked.
    """
    held = _optax_slots(optimizer)
    marked = {id(slot) for slot in held if slot.get_metadata(LOWERED, None)}
    if not marked or optimizer.step.get_metadata(LOWERED, None):
        return
    image: Any = jax.ShapeDtypeStruct
    images = {
        id(p): image(p.shape, FLOAT32 if p.get_metadata(LOWERED, None) else p.dtype)
        for p in parameters(optimizer)
    }
    made = jax.eval_shape(optimizer.tx.init, nnx.as_pure(gradients_as_state(optimizer, images)))
    for slot, wanted in zip(held, jax.tree.leaves(made), strict=True):
        if id(slot) in marked:
            fill(slot, cast(value_of(slot), str(wanted.dtype)))
            slot.del_metadata(LOWERED)


def mark_of_slots(optimizer: Any) -> str:
    """What its count is marked by while as many slots are low; ``nnx.update`` changes their marks."""
    low = [slot for slot in _optax_slots(optimizer) if slot.get_metadata(LOWERED, None)]
    return f"{len(low)} slots"


def forget_marks(optimizer: Any) -> None:
    """Have the slots be float32 that are low only in another optimizer, whose state was put here."""
    if optimizer.step.get_metadata(LOWERED, None):
        optimizer.step.del_metadata(LOWERED)
    _widen(optimizer)


def _shapes(tree: Any) -> list[tuple[str, tuple[int, ...]]]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), x.shape) for path, x in leaves]


def trainers_of(model: Any) -> list[Any]:
    """The optimizers that ``note`` was told of for ``model``."""
    found = _trained.items()
    return [each for each, (_, modules) in found if any(m() is model for m in modules)]


def _root(optimizer: Any) -> Any:
    own = vars(optimizer).get("model")
    if isinstance(optimizer, nnx.ModelAndOptimizer) and own is not None:
        return own
    several, references = _trained.get(optimizer, (False, ()))
    modules = tuple(reference() for reference in references)
    if not modules or any(module is None for module in modules):
        return None
    return modules if several else modules[0]


def root_of(optimizer: Any) -> Any:
    """The module that ``optimizer`` trains, or the tuple of them: an empty one for Keras' own.

    Raises:
        CallOrderError: if nobody has said which.
    """
    if keras_models.is_optimizer(optimizer):
        return ()
    root = _root(optimizer)
    if root is None:
        raise CallOrderError(
            "An nnx.Optimizer does not know the model that it trains.\n"
            "Hint: optimizer = ampbridge_jax.Optimizer(model, tx, wrt=nnx.Param); or pass it to "
            "amp.train_step or amp.decorate with its model."
        )
    return root


def roots_of(optimizer: Any) -> tuple[Any, ...]:
    """The modules that ``optimizer`` trains."""
    root = root_of(optimizer)
    return root if isinstance(root, tuple) else (root,)


def by_path(optimizer: Any) -> dict[tuple[Any, ...], Any]:
    """The Variables that an optimizer trains, by their paths in nnx's own state."""
    root = root_of(optimizer)
    selected = {path for path, _ in nnx.to_flat_state(nnx.state(root, optimizer.wrt))}
    return {path: v for path, v in nnx.iter_graph(root) if path in selected}


def parameters(owner: Any) -> list[Any]:
    """See ``Backend.parameters``: the Variables of a model, or those that an optimizer trains."""
    if keras_models.is_optimizer(owner):
        return list(keras_models.trained(owner))
    if keras_models.is_layer(owner):
        return [keras_models.variable_of(v) for v in owner.trainable_variables]
    if not isinstance(owner, nnx.Optimizer):
        return [v for _, v in named_variables(owner) if isinstance(v, nnx.Param)]
    selected = set(map(id, by_path(owner).values()))
    found = [(name, v) for name, v in named_variables(root_of(owner)) if id(v) in selected]
    order = _orders.get(owner, {})
    found.sort(key=lambda pair: order.get(pair[0], len(order)))
    return [v for _, v in found]


def slots(optimizer: Any) -> list[tuple[str, Any]]:
    """The Variables of an optimizer's own state, with their paths as names."""
    if keras_models.is_optimizer(optimizer):
        return list(keras_models.slots(optimizer))
    flat = nnx.iter_graph({"opt_state": optimizer.opt_state, "step": optimizer.step})
    return [("/".join(map(str, path)), v) for path, v in flat if isinstance(v, nnx.Variable)]


def _optax_slots(optimizer: Any) -> list[Any]:
    """Those that optax makes, in the order of its own leaves."""
    return [v for name, v in slots(optimizer) if name.startswith("opt_state/")]


def slots_by_parameter(optimizer: Any) -> list[tuple[Any, Any]]:
    """Those that optax makes in the image of the parameters, each with its parameter."""
    trained = parameters(optimizer)
    places = {id(p): place for place, p in enumerate(trained)}
    marked = optax.tree.map_params(
        optimizer.tx,
        lambda _, place: place,
        nnx.as_pure(optimizer.opt_state),
        nnx.as_pure(gradients_as_state(optimizer, places)),
        transform_non_params=lambda _: -1,
    )
    pairs = zip(_optax_slots(optimizer), jax.tree.leaves(marked), strict=True)
    return [(slot, trained[place]) for slot, place in pairs if place >= 0]


def gradients_as_state(optimizer: Any, gradients: dict[int, Any]) -> Any:
    """Gradients, by the ids of the Variables, in the form that ``nnx.grad`` gives them."""
    ours = by_path(optimizer)
    flat: Sequence[Any] = [
        (path, v.replace(gradients[id(ours[path])]))
        for path, v in nnx.to_flat_state(nnx.state(root_of(optimizer), optimizer.wrt))
    ]
    return nnx.from_flat_state(flat)
