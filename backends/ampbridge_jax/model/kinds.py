"""The modules of a model and their Variables, of whichever kind they are: found, and named.

``Flax`` is what is asked of modules of flax nnx, which ``stateful`` makes of Equinox' models and of linen's
parameters too. ``keras_models`` says what is otherwise of Keras. ``kind_of`` alone chooses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flax import nnx

from ampbridge.adapters.backend import Model, OwnPrecisionNotice
from ampbridge.checkpoints.held import Held, Roles
from ampbridge.policies.policy import Policy

_NORMALIZATION: Roles = {
    "scale": ("norm.scale", "c"),
    "bias": ("norm.offset", "c"),
    "mean": ("norm.mean", "c"),
    "var": ("norm.variance", "c"),
}


class Flax:
    """Modules of flax nnx; other kinds say what is otherwise.

    Attributes:
        module, node: the classes of modules, and of all objects that hold Variables.
        call: the method that is a call of a module.
        modes: the attributes of layers that ``eval`` sets; none where a call says it.
        products: layers that multiply matrices.
        roles: what layers call their Variables -> role and axes; ``hides_attributes`` as in ``role_of``.
        examples: see ``Backend.examples``.
        unfreeze: the code that makes parameters trainable.
    """

    module: type = nnx.Module
    node: type = nnx.Pytree
    call = "__call__"
    modes: Sequence[str] = ("deterministic", "use_running_average")
    products: Any = (nnx.Linear, nnx.Conv)
    roles: Mapping[type, Roles] = {
        nnx.Linear: {"kernel": ("dense.kernel", "io"), "bias": ("dense.bias", "o")},
        nnx.Conv: {"kernel": ("conv.kernel", "hwio"), "bias": ("conv.bias", "o")},
        nnx.Embed: {"embedding": ("embedding.table", "no")},
        **dict.fromkeys((nnx.LayerNorm, nnx.RMSNorm, nnx.GroupNorm, nnx.BatchNorm), _NORMALIZATION),
    }
    hides_attributes = False
    examples: Mapping[str, str] = {
        "model": (
            "model = nnx.Linear(4, 2, rngs=nnx.Rngs(0))  # of Equinox, linen, ...: ampbridge_jax.Stateful"
        ),
        "optimizer": "optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)",
        "float32 model": "model = nnx.Linear(4, 2, param_dtype=jnp.float32, rngs=nnx.Rngs(0))",
        "loss_fn": "def loss_fn(model, x, y): return optax.l2_loss(model(x), y).mean()",
    }

    unfreeze = examples["optimizer"]

    # -- what is in a module

    def items(self, value: Any, lasting: bool = False) -> list[tuple[str, Any]]:
        """What is in a module or a container, with its names.

        Args:
            lasting: whether names are of the model alone, and not of the process.
        """
        if isinstance(value, nnx.Variable):
            return []
        if isinstance(value, nnx.Pytree):
            own = vars(value).items()
            return [(str(key), item) for key, item in own if not str(key).startswith("_pytree__")]
        if isinstance(value, Mapping):
            return [(str(key), item) for key, item in value.items()]
        if isinstance(value, (list, tuple)):
            return [(str(key), item) for key, item in enumerate(value)]
        return []

    def own_variables(self, module: Model) -> list[tuple[str, Any]]:
        """See the function of that name."""
        return [pair for key, value in self.items(module) for pair in _variables(key, value)]

    def own_parameters(self, module: Model) -> list[tuple[str, Any]]:
        """See the function of that name."""
        return [(name, v) for name, v in self.own_variables(module) if isinstance(v, nnx.Param)]

    def parameters(self, model: Model) -> list[Any]:
        """See ``Backend.parameters``."""
        return [v for _, v in named_variables(model) if isinstance(v, nnx.Param)]

    def weights_among(self, held: Sequence[Held], model: Model) -> list[Held]:
        """Those of a model's Variables that are saved as its weights."""
        return [each for each in held if not isinstance(each.tensor, nnx.RngState)]

    def has_own_precision(self, layer: Model) -> bool:
        """Whether a layer casts by itself, so that its parameters stay as they are."""
        return False

    def content(self, part: Any) -> Mapping[str, Any]:
        """What code may read of a module or an optimizer, or of another object."""
        found: dict[str, Any] = vars(part)
        return found

    # -- what has to be done where a model is decorated and called

    def notice_own_precision(self, model: Model, notice: OwnPrecisionNotice) -> None:
        """Give ``notice`` of layers that cast by themselves."""

    def methods(self, cls: type) -> dict[str, Callable[..., Any]]:
        """What a decorated module of this class has another one of, beside its call."""
        return {}

    def check_built(self, model: Model) -> None:
        """Refuse a model that has no Variables yet."""

    def check_policy(self, policy: Policy) -> None:
        """Refuse to decorate for what such models cannot do."""

    def check_for_optax(self, model: Model) -> None:
        """Refuse a model that optax does not train."""

    def forget_traces(self, module: Model) -> None:
        """Have a module compile anew what it has compiled by itself."""

    def clear_losses(self, module: Model) -> None:
        """Drop what a traced call has left in a module."""


FLAX = Flax()


def keras() -> Any:
    """The module ``keras_models``, if this process has imported Keras, and it runs on JAX."""
    found: Any = sys.modules.get("keras")
    if not hasattr(found, "Layer") or found.config.backend() != "jax":
        return None
    from ampbridge_jax.model import keras_models  # which imports Keras

    return keras_models


def kind_of(value: object) -> Flax:
    """The kind of a module, or of an optimizer; of all else, containers too, that of flax."""
    of_keras = keras()
    if of_keras is not None and isinstance(value, of_keras.PARTS):
        found: Flax = of_keras.KERAS
        return found
    return FLAX


# -- all modules and Variables


def nodes(root: Any, lasting: bool = False) -> list[tuple[str, Any]]:
    """Every object that holds Variables, with its dotted name; outer before inner, each once.

    Args:
        lasting: see ``Flax.items``.
    """
    found: dict[int, tuple[str, Any]] = {}
    _find_nodes("", root, lasting, found)
    return list(found.values())


def _find_nodes(name: str, value: Any, lasting: bool, found: dict[int, tuple[str, Any]]) -> None:
    # No function inside of another: one that calls itself is a cycle, which holds what it has found.
    kind = kind_of(value)
    if isinstance(value, kind.node):
        if id(value) in found:
            return
        found[id(value)] = (name, value)
    for key, item in kind.items(value, lasting):
        _find_nodes(f"{name}.{key}".lstrip("."), item, lasting, found)


def named_modules(root: Any, lasting: bool = False) -> list[tuple[str, Any]]:
    """Every module, with its dotted name; outer before inner, each once."""
    return [(name, node) for name, node in nodes(root, lasting) if _is_module(node)]


def _is_module(value: Any) -> bool:
    return isinstance(value, kind_of(value).module)


def own_variables(module: Model) -> list[tuple[str, Any]]:
    """The Variables of a module that no module below it has, in the order of their definition."""
    return kind_of(module).own_variables(module)


def _variables(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, nnx.Variable):
        yield name, value
    elif not _is_module(value):
        for key, item in kind_of(value).items(value):
            yield from _variables(f"{name}.{key}", item)


def own_parameters(module: Model) -> list[tuple[str, Any]]:
    """Those of ``own_variables`` that are parameters."""
    return kind_of(module).own_parameters(module)


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
