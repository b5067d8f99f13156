"""What happens around a call of a decorated model, and of a layer that it keeps in float32.

A module of such a model is given a subclass of its class, with another ``__call__`` and nothing else. One
of Keras gets another ``call``, which its own functions of a state call, those of ``fit`` too.
What the call does is a static attribute of the module, so that nnx carries both into its own copies:
those of ``nnx.jit``, ``nnx.scan`` and ``nnx.remat``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any
from weakref import WeakValueDictionary, ref

import jax
import jax.numpy as jnp
from flax import nnx

from ampbridge.adapters import kept_calls
from ampbridge.adapters.backend import (
    Decoration,
    Layer,
    Model,
    OwnPrecisionNotice,
    is_normalization,
)
from ampbridge.adapters.interrupts import LAST_OF_SEVERAL, put_back_after
from ampbridge.adapters.low_storage import warn_of_rounded_weights
from ampbridge.adapters.nested import map_leaves
from ampbridge.adapters.outputs import warn_of_low_values_inside
from ampbridge.policies.policy import Policy
from ampbridge_jax._private import fill, is_traced, value_of
from ampbridge_jax.autocast.casting import region
from ampbridge_jax.autocast.rules import ALL_FLOAT32, FLOAT32, cast, is_castable
from ampbridge_jax.autocast.whole_ops import casts_here, under_rules
from ampbridge_jax.model.kinds import (
    Flax,
    kind_of,
    named_modules,
    named_parameters,
    own_parameters,
)
from ampbridge_jax.model.variables import CALL, LOWERED, holding

NORMALIZATIONS = (nnx.BatchNorm, nnx.LayerNorm, nnx.RMSNorm, nnx.GroupNorm, nnx.InstanceNorm)


@dataclass(frozen=True)
class ModelCall:
    """What a call of a module does around its own ``__call__``. Traces are found by it.

    Attributes:
        decoration: of a model that is decorated itself.
        key: what of the decoration tells it from others.
        kept_by: how many of the decorated models around it keep the layer in float32.
        of: the module itself, of which nnx may have made the one that is called.
    """

    decoration: Decoration | None = field(compare=False)
    key: tuple[Policy, bool] | None
    kept_by: int
    of: ref[Any]


def call_of(module: Model) -> ModelCall | None:
    """What happens around the calls of a module; None if nothing does."""
    call: ModelCall | None = vars(module).get(CALL)
    return call


def decoration_of(module: Model) -> Decoration | None:
    """The decoration of a module that is decorated itself."""
    call = call_of(module)
    return None if call is None else call.decoration


def kept_by(module: Model) -> int:
    """How many decorated models keep this layer in float32."""
    call = call_of(module)
    return 0 if call is None else call.kept_by


_decorated: WeakValueDictionary[int, Model] = WeakValueDictionary()
"""The modules of which calls do something, by their ids: those of users may be without a hash."""


def around(variables: Sequence[Any]) -> list[Model]:
    """The decorated models that hold any of ``variables``: a part of one does not know it."""
    ids = set(map(id, variables))
    models = [module for module in list(_decorated.values()) if decoration_of(module) is not None]
    return [m for m in models if any(id(p) in ids for _, p in named_parameters(m))]


def set_call(module: Model, decoration: Decoration | None, kept_by: int) -> None:
    """Have the calls of a module do this; ``None`` and 0 give the module its own class again."""
    cls = type(module).__mro__[1] if call_of(module) is not None else type(module)
    held: Any = vars(module)
    held.pop(CALL, None)
    if decoration is not None or kept_by:
        key = None if decoration is None else (decoration.policy, decoration.standalone)
        held[CALL] = ModelCall(decoration, key, kept_by, ref(module))
        _decorated[id(module)] = module
        cls = _calling(cls, kind_of(module))
    object.__setattr__(module, "__class__", cls)
    kind_of(module).forget_traces(module)


@lru_cache(256)
def _calling(cls: type, kind: Flax) -> type:
    name = kind.call

    @wraps(getattr(cls, name))
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        call, forward = call_of(self), getattr(cls, name)  # a region may have replaced it
        if call is None:
            return forward(self, *args, **kwargs)
        return _called(self, call, forward, args, kwargs)

    methods: dict[str, Any] = {name: called, **kind.methods(cls)}
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls)(cls.__name__, (cls,), methods | names)


def _called(
    module: Any,
    call: ModelCall,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    kept = call.kept_by > 0
    if kept:
        kept_calls.note(call.of())
    decoration = decoration_of(module)
    if decoration is not None and (decoration.standalone or casts_here()):
        policy = decoration.policy
        with region(policy) if decoration.standalone else nullcontext():
            if kept:
                outputs = _in_float32(module, forward, args, kwargs)
            else:
                with reading(module):
                    outputs = forward(module, *args, **kwargs)
            outputs = _all_in(outputs, policy.output_dtype)
        warn_of_low_values_inside(outputs, policy.output_dtype, _dtype_name)
        return outputs
    if kept and casts_here():
        return _in_float32(module, forward, args, kwargs)
    return forward(module, *args, **kwargs)


def _in_float32(
    module: Any, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    args, kwargs = _all_in((args, kwargs), "float32")
    with under_rules(ALL_FLOAT32):
        return _all_in(forward(module, *args, **kwargs), "float32")


def _all_in(tree: Any, dtype: str) -> Any:
    return map_leaves(lambda x: cast(x, dtype) if is_castable(x) else x, tree)


def _dtype_name(value: Any) -> str | None:
    return str(value.dtype) if is_castable(value) else None


def noticing_own_precision(
    model: Model, notice: OwnPrecisionNotice
) -> AbstractContextManager[None]:
    """See ``Backend.noticing_own_precision``. Layers keep that under which they were made."""
    kind_of(model).notice_own_precision(model, notice)
    return nullcontext()


# -- parameters that are read in low precision


def layers(model: Model) -> list[Layer]:
    """See ``Backend.layers``."""
    return [
        Layer(
            name, type(module).__name__, module, {key: v.shape for key, v in own_parameters(module)}
        )
        for name, module in named_modules(model)
    ]


def low_parameters(model: Model, kept: Sequence[Model]) -> list[Any]:
    """The parameters outside of normalizations and kept layers."""
    wide = {id(v) for layer in kept for _, v in named_parameters(layer)}
    for layer in layers(model):
        own_precision = kind_of(layer.layer).has_own_precision(layer.layer)
        if own_precision or is_normalization(layer, NORMALIZATIONS):
            wide |= {id(v) for _, v in own_parameters(layer.layer)}
    return [v for _, v in named_parameters(model) if id(v) not in wide]


def keep_low(model: Model, *, were_low: bool = True) -> None:
    """Have the parameters be low that a decoration without masters says are, and no others.

    ``nnx.update`` may undo it: it puts the arrays and the metadata of another model's Variables into those
    of this one. A warning says so if that rounds them; in a trace, where the values are not known, if it may.

    Args:
        were_low: false for a model that is just being decorated: the core has looked at its weights.
    """
    decoration = decoration_of(model)
    if decoration is None or decoration.policy.variable_dtype == "float32":
        _forget_marks(model)
        return
    policy, low = decoration.policy, _read_low(model)
    wide = [x for x in map(value_of, low) if were_low and x.dtype == FLOAT32]
    if any(isinstance(x, jax.core.Tracer) or (cast(x, policy.dtype) != x).any() for x in wide):
        hint = repr(policy.replace(masters="float32"))
        warn_of_rounded_weights(policy, "put into the Variables in float32", hint)
    mark = policy.masters or "none"
    for parameter in low:
        fill(parameter, cast(value_of(parameter), policy.dtype))
        if parameter.get_metadata(LOWERED, None) != mark:
            parameter.set_metadata(LOWERED, mark)


def _forget_marks(model: Model) -> None:
    """Have the parameters be float32 that are low only in another model, whose state was put here.

    In a trace they are as they were outside of it.
    """
    marked = [p for _, p in named_parameters(model) if p.get_metadata(LOWERED, None)]
    if not marked or is_traced(marked[0]):
        return
    low = {id(p) for m in around(marked) if m is not model for p in _read_low(m)}
    for parameter in marked:
        if id(parameter) not in low:
            fill(parameter, cast(value_of(parameter), "float32"))
            parameter.del_metadata(LOWERED)


def _read_low(model: Model) -> list[Any]:
    """The low parameters of a decorated model, also if nnx has copied it."""
    return low_parameters(model, [m for _, m in named_modules(model) if kept_by(m)])


@contextmanager
def reading(model: Model) -> Iterator[None]:
    """A block in which the parameters of a model that is decorated for O2 are read in low precision."""
    decoration = decoration_of(model)
    if decoration is None or decoration.policy.level != "O2":
        yield
        return
    modules = [module for _, module in named_modules(model)]
    low = low_parameters(model, list(filter(kept_by, modules)))
    values = [cast(value_of(p), decoration.policy.dtype) for p in low]
    with holding(low, values), _embedding_in_low(modules, low), LAST_OF_SEVERAL:
        yield


@contextmanager
def _embedding_in_low(modules: Sequence[Any], low: Sequence[Any]) -> Iterator[None]:
    """A block in which an ``nnx.Embed`` with one of the parameters ``low`` returns its table's dtype.

    By default it does, but takes that dtype, float32, when it is made; another one was asked for.
    """
    ids = set(map(id, low))
    tables = [
        (vars(m), m.dtype)
        for m in modules
        if isinstance(m, nnx.Embed) and id(m.embedding) in ids and m.dtype == jnp.float32
    ]

    def put_back() -> None:
        for attributes, dtype in tables:
            attributes["dtype"] = dtype

    with put_back_after(put_back):
        for attributes, _ in tables:
            attributes["dtype"] = None
        yield
