"""Optimizers: what they train and hold, and their updates.

An ``nnx.Optimizer`` does not know which model it trains, and is told where both are seen. Its parameters
are the model's Variables that its ``wrt`` selects, in the order of their definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax

from ampbridge.adapters.interrupts import LAST_OF_SEVERAL
from ampbridge.adapters.low_storage import rounded_by_chance
from ampbridge.errors import ArgumentError, CallOrderError
from ampbridge_jax._private import fill, fill_all, value_of, values_of
from ampbridge_jax.arguments import kind
from ampbridge_jax.autocast.rules import FLOAT32, cast
from ampbridge_jax.model.kinds import FLAX, keras, kind_of, named_modules, named_variables, nodes
from ampbridge_jax.model.model_calls import call_of, decoration_of, set_call
from ampbridge_jax.model.variables import LOWERED, holding

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


def _check_that_it_fits(model: Any, optimizer: Any) -> None:
    """See ``acquaint``; nobody has said yet that ``optimizer`` trains ``model``."""
    made = jax.eval_shape(optimizer.tx.init, nnx.as_pure(nnx.state(model, optimizer.wrt)))
    held = nnx.as_pure(optimizer.opt_state)
    if _shapes(made) != _shapes(held):
        raise ArgumentError(
            "The optimizer was made for other parameters than the model's: its slots have other names "
            f"or shapes.\nHint: {FLAX.examples['optimizer']}"
        )
    if _root(optimizer) is not None:
        raise ArgumentError(
            "The optimizer trains another model, which is still there.\n"
            f"Hint: an optimizer for each model: {FLAX.examples['optimizer']}"
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
    """The module that an ``nnx.Optimizer`` trains, or the tuple of them.

    Raises:
        CallOrderError: if nobody has said which.
    """
    root = _root(optimizer)
    if root is None:
        raise CallOrderError(
            "An nnx.Optimizer does not know the model that it trains.\n"
            "Hint: optimizer = ampbridge_jax.Optimizer(model, tx, wrt=nnx.Param); or pass it to "
            "amp.train_step or amp.decorate with its model."
        )
    return root


def by_path(optimizer: Any) -> dict[tuple[Any, ...], Any]:
    """The Variables that an optimizer trains, by their paths in nnx's own state."""
    root = root_of(optimizer)
    selected = {path for path, _ in nnx.to_flat_state(nnx.state(root, optimizer.wrt))}
    return {path: v for path, v in nnx.iter_graph(root) if path in selected}


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


class Optax:
    """Optimizers of flax nnx, which call optax; other kinds say what is otherwise.

    Attributes:
        may_be_low: whether their slots can be in 16 bits.
    """

    may_be_low = True

    def acquaint(self, model: Any, optimizer: Any) -> None:
        """See the function of that name.

        One that was made for modules that are still there trains these. One that was made after a
        decoration gets the slots of one that was made before it.
        """
        kind_of(model).check_for_optax(model)
        present = _root(optimizer)
        if present is None or (not isinstance(optimizer, Optimizer) and present is not model):
            _check_that_it_fits(model, optimizer)
            note(optimizer, model)
        _widen(optimizer)

    def roots(self, optimizer: Any) -> tuple[Any, ...]:
        """The modules that it is told to train; none if it knows its parameters by itself."""
        root = root_of(optimizer)
        return root if isinstance(root, tuple) else (root,)

    def parameters(self, optimizer: Any) -> list[Any]:
        """See ``Backend.parameters``."""
        selected = set(map(id, by_path(optimizer).values()))
        found = [(name, v) for name, v in named_variables(root_of(optimizer)) if id(v) in selected]
        order = _orders.get(optimizer, {})
        found.sort(key=lambda pair: order.get(pair[0], len(order)))
        return [v for _, v in found]

    def slots(self, optimizer: Any) -> list[tuple[str, Any]]:
        """See the function of that name."""
        flat = nnx.iter_graph({"opt_state": optimizer.opt_state, "step": optimizer.step})
        return [("/".join(map(str, path)), v) for path, v in flat if isinstance(v, nnx.Variable)]

    def changed_by(self, optimizer: Any) -> list[Any]:
        """What a step of the optimizer changes: its parameters and its slots."""
        return [*self.parameters(optimizer), *(v for _, v in self.slots(optimizer))]

    def update(self, optimizer: Any, gradients: dict[int, Any], changing: Sequence[Any]) -> None:
        """Update parameters and slots with gradients, by the ids of the parameters.

        A parameter without a gradient stays as it is, and so do its slots. Of what is ``changing`` that
        which is rounded by chance is float32 for the update.
        """
        missing = [p for p in parameters(optimizer) if gradients.get(id(p)) is None]
        zeros = {id(p): jnp.zeros(p.shape, jnp.float32) for p in missing}
        state = gradients_as_state(optimizer, {**gradients, **zeros})
        ids = set(map(id, missing))
        pairs = slots_by_parameter(optimizer) if missing else ()
        kept = [*missing, *(slot for slot, p in pairs if id(p) in ids)]
        values = values_of(kept)
        its_own: Any = isinstance(optimizer, nnx.ModelAndOptimizer)
        low = [v for v in changing if v.get_metadata(LOWERED, None) == "stochastic"]
        wide = [value.astype(jnp.float32) for value in values_of(low)]
        with holding(low, wide), LAST_OF_SEVERAL:
            if its_own:
                optimizer.update(state)
            else:
                optimizer.update(root_of(optimizer), state)
            wide = values_of(low)
        if low:
            fill_all(low, _rounded_by_chance(wide, value_of(optimizer.step)))
        fill_all(kept, values)

    def copied(self, model: Any, optimizer: Any, memo: dict[int, Any]) -> tuple[Any, Any]:
        """See ``Backend.copied``. A Variable copies itself as the array in it, so nnx copies the modules."""
        root, parts = root_of(optimizer), [*self.roots(optimizer)]
        if not any(part is model for part in parts):
            parts.append(model)
        copies = nnx.clone(tuple(parts))
        for ours, theirs in zip(parts, copies, strict=True):
            _make_alike(ours, theirs, memo)
        twin = memo[id(optimizer)] = nnx.clone(optimizer)
        note(twin, copies[: len(root)] if isinstance(root, tuple) else copies[0])
        return memo[id(model)], twin

    # -- what is saved

    def state(self, optimizer: Any, model: Any) -> dict[str, Any]:
        """What a step changes beside the weights, by name."""
        return dict(slots(optimizer))

    def settings(self, optimizer: Any) -> dict[str, float | None]:
        """What is saved beside the slots."""
        return {}

    def check_settings(self, optimizer: Any, saved: Mapping[str, Any]) -> None:
        """Refuse settings that ``set_settings`` cannot take."""

    def set_settings(self, optimizer: Any, saved: Mapping[str, Any]) -> None:
        """Set what ``settings`` tells."""


_OPTAX = Optax()


def of(optimizer: Any) -> Optax:
    """What is asked of an optimizer, by its kind."""
    kind: Optax = _OPTAX if kind_of(optimizer) is FLAX else keras().OPTIMIZERS
    return kind


def acquaint(model: Any, optimizer: Any) -> None:
    """See ``Backend.acquaint``.

    Raises:
        ArgumentError: if the optimizer was made for another model, or trains one that is still there; for
            an optimizer of optax with a model of Keras, or the other way round.
    """
    of(optimizer).acquaint(model, optimizer)


def roots_of(optimizer: Any) -> tuple[Any, ...]:
    """See ``Optax.roots``."""
    return of(optimizer).roots(optimizer)


def parameters(owner: Any) -> list[Any]:
    """See ``Backend.parameters``: the Variables of a model, or those that an optimizer trains."""
    if kind(owner) == "optimizer":
        return of(owner).parameters(owner)
    return kind_of(owner).parameters(owner)


def slots(optimizer: Any) -> list[tuple[str, Any]]:
    """The Variables of an optimizer's own state, with their paths as names."""
    return of(optimizer).slots(optimizer)


def copied(model: Any, optimizer: Any, memo: dict[int, Any]) -> tuple[Any, Any]:
    """See ``Backend.copied``."""
    return of(optimizer).copied(model, optimizer, memo)


def _make_alike(ours: Any, theirs: Any, memo: dict[int, Any]) -> None:
    """Give a copy the order of attributes, in which parameters are listed, and its own decorations."""
    copies = dict(nodes(theirs))
    for name, node in nodes(ours):
        copy = memo[id(node)] = copies[name]
        held: Any = vars(copy)
        ordered = {key: held[key] for key in (*vars(node), *held) if key in held}
        held.clear()
        held.update(ordered)
    variables = dict(named_variables(theirs))
    memo |= {id(v): variables[name] for name, v in named_variables(ours)}
    for _, module in named_modules(ours):
        call, present = call_of(module), decoration_of(module)
        if present is not None:
            present = present._replace(kept=[memo.get(id(layer), layer) for layer in present.kept])
        if call is not None:
            set_call(memo[id(module)], present, call.kept_by)


def _rounded_by_chance(values: Sequence[Any], steps: Any) -> list[Any]:
    """``values`` in bfloat16; the draws are those of this count of steps."""
    key = jax.random.key(steps)
    rounded = []
    for place, value in enumerate(values):
        draws = jax.random.bits(jax.random.fold_in(key, place), value.shape, jnp.uint16)
        bits = lax.bitcast_convert_type(value, jnp.int32)
        bits = rounded_by_chance(bits, draws.astype(jnp.int32), jnp.where)
        rounded.append(lax.bitcast_convert_type(bits, jnp.float32).astype(jnp.bfloat16))
    return rounded
