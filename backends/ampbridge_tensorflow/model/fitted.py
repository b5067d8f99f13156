"""What is decorated now: where the hooks at calls, reads, traces and gradients look.

Each mark stands on the object that it is about, a model, a layer, a variable or a Keras dtype
policy, and no copy takes it along: copies and saved files are of the model as it was.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import chain
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ampbridge.adapters.backend import Decoration
from ampbridge.adapters.interception import Interception
from ampbridge.adapters.low_storage import keeps_low
from ampbridge.adapters.nested import leaves, map_leaves
from ampbridge.adapters.scoped import Scoped
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast.regions import outside_of_regions
from ampbridge_tensorflow.autocast.rules import FLOATS, Rules, cast_with_mask, float_dtype
from ampbridge_tensorflow.model.model_layers import layers, own_variables
from ampbridge_tensorflow.native_values import (
    copies,
    moments,
    native_variable,
    rounded_by_chance,
    rounded_to,
    with_tensors,
)


class Mark:
    """What is written on an object of the user's; a copy of the object has None in its place."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class Fitted(Mark):
    """The decoration of one model, and what it has marked."""

    def __init__(self, model: Any, decoration: Decoration, rules: Rules) -> None:
        self._model = weakref.ref(model)
        self.decoration = decoration
        self.rules = rules
        self.kept: list[Any] = []
        self.layers: list[keras.Layer] = []
        """The layers that get a low dtype policy."""
        self.variables: list[tf.Variable] = []
        """The variables that are read in low precision without the help of a dtype policy."""
        self.full_variables: list[keras.Variable] = []
        """The variables of kept layers, and buffers: float32 also where a low layer reads them."""
        self.parts: dict[int, weakref.ref[Any]] = {}
        """By their ids, the layers that run under the policy also if another model calls them."""
        self.low: list[Any] | None = None
        """What ``low_variables`` returns; None until all is built."""
        self.scaled: Any = None
        """The optimizer of the model, where it has been wrapped so that it scales the loss."""
        self.unscaled: weakref.WeakSet[Any] = weakref.WeakSet()
        """The optimizers that have updated the model without a loss scale."""
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        """Those that were decorated with the model, or with which it has been compiled since."""
        self.looked_at: weakref.WeakSet[Any] = weakref.WeakSet()
        """The optimizers of whose update it is known whether it has made moments that are to be low."""
        self.hands_on: set[int] = set()
        """The ids of the low layers that take the model's inputs as they are: see ``taken``."""
        self._unbuilt: list[keras.Sequential] = []
        self.release: Callable[[], None] = lambda: None
        """Takes the hooks of the model's calls back."""

    @property
    def model(self) -> Any:
        """None if it is gone."""
        return self._model()

    @property
    def scales(self) -> bool:
        """Whether training outside of a ``train_step`` needs a loss scale."""
        return self.decoration.standalone and self.decoration.policy.needs_scaling

    @property
    def rounds(self) -> bool:
        """Whether the low variables themselves, or their moments, are kept in low precision."""
        return keeps_low(self.decoration.policy)

    def trace_key(self, calls: frozenset[Interception[None]]) -> TraceKey:
        """The key of the traces that are made under this decoration."""
        kept, standalone = frozenset(map(id, self.kept)), self.decoration.standalone
        return TraceKey(id(self.model), self.rules, kept, standalone, calls, bool(self.variables))

    def mark(self, model: Any) -> None:
        """Write this decoration on the model and on all that it lists."""
        # Not by their own __setattr__: these are no parts of a model that Keras should track.
        object.__setattr__(model, _FITTED, self)
        for layer in self.kept:
            object.__setattr__(layer, _KEPT, self)
        for variable in self._read_low():
            setattr(variable, _READ_LOW, self)
        for variable in self.full_variables:
            _private.set_autocast(variable, False)
        for layer in self.layers:
            self.leave_buffers_full(layer)
        self._unbuilt = [x for x in self.layers if isinstance(x, keras.Sequential) and not x.built]
        for layer in self.layers:
            # Sublayers that a layer makes while it is decorated take over this very object.
            policy = keras.DTypePolicy(f"mixed_{self.decoration.policy.dtype}")
            setattr(policy, _REPLACED, Replaced(layer.dtype_policy, self))
            _private.set_dtype_policy(layer, policy)
        self.hands_on.update(id(layer) for layer in self.layers if _hands_inputs_on(layer))

    def leave_buffers_full(self, layer: keras.Layer) -> None:
        """Let the low ``layer`` read its buffers, such as a table or statistics, in float32."""
        for variable in _private.buffers(layer):
            if _private.is_autocast(variable):
                _private.set_autocast(variable, False)
                self.full_variables.append(variable)

    def unmark(self, model: Any, present: Sequence[Any]) -> None:
        """Take ``mark`` back, from all layers that are ``present``: some were made since."""
        for layer in (*self.layers, *present):
            before = replaced(layer) if isinstance(layer, keras.Layer) else None
            if before is not None and before.by is self:
                _private.set_dtype_policy(layer, before.policy)
        for sequential in self._unbuilt:
            _private.rebuild(sequential)  # its InputLayer took over a low dtype
        for variable in self.full_variables:
            _private.set_autocast(variable, True)
        for variable in self._read_low():
            delattr(variable, _READ_LOW)
        for layer in self.kept:
            object.__delattr__(layer, _KEPT)
        object.__delattr__(model, _FITTED)

    def slots_of(self, optimizer: Any) -> list[Any]:
        """The optimizer's moments that are to be low."""
        if self.decoration.policy.slots == "float32":
            return []
        found, low = moments(optimizer), low_variables(self.model)
        return [slot for each in low for slot in found.get(id(native_variable(each)), ())]

    def weights_to_nearest(self) -> None:
        """Round the low variables themselves, unless they are masters."""
        if self.decoration.policy.variable_dtype != "float32":
            round_to_nearest(low_variables(self.model), self.decoration.policy.dtype)

    @outside_of_regions
    def round(self, updated: Container[int], optimizer: Any) -> None:
        """Round the low variables whose ids are ``updated``, unless they are masters, and low moments.

        The count of updates and a place, of the low variables and then of their moments, seed draws.
        """
        policy = self.decoration.policy
        low = low_variables(self.model) if self.rounds else []
        slots = moments(optimizer) if policy.slots != "float32" else {}
        for place, variable in enumerate(low):
            key = id(native_variable(variable))
            if key not in updated:
                continue
            if policy.masters is None:
                variable.assign(rounded_to(policy.dtype, tf.convert_to_tensor(variable)))
            for number, kept in enumerate([variable, *slots.get(key, ())]):
                if number or policy.masters == "stochastic":
                    updates = tf.cast(optimizer.iterations, tf.int64)
                    seed = tf.stack([updates, place + number * len(low)])
                    kept.assign(rounded_by_chance(tf.convert_to_tensor(kept), seed))

    def _read_low(self) -> Iterator[tf.Variable]:
        """``variables`` as they are read: a replica reads the one on its device."""
        return (copy for variable in self.variables for copy in copies(variable))


def round_to_nearest(variables: Sequence[Any], dtype: str) -> None:
    """Let float32 ``variables`` hold numbers of ``dtype``."""
    for variable in variables:
        variable.assign(rounded_to(dtype, tf.convert_to_tensor(variable)))


# -- marks

_FITTED = "_ampbridge_fitted"
_KEPT = "_ampbridge_kept_by"
_READ_LOW = "_ampbridge_read_low_by"
_REPLACED = "_ampbridge_replaced"


def fitted(model: Any) -> Fitted | None:
    """What ``model`` is decorated with."""
    found = getattr(model, _FITTED, None)
    # A shallow copy has taken along what is another model's.
    return found if isinstance(found, Fitted) and found.model is model else None


def kept_by(layer: Any) -> Fitted | None:
    """The decoration under which ``layer`` is kept in float32."""
    return getattr(layer, _KEPT, None)


def read_low_by(variable: Any) -> Fitted | None:
    """The decoration under which ``variable``, of no Keras layer, is read in low precision."""
    return getattr(variable, _READ_LOW, None)


def low_value(value: Any) -> Any:
    """``value`` with a tensor for each variable that is read in low precision, also in a list."""
    return with_tensors(value, lambda each: read_low_by(native_variable(each)) is not None)


class Replaced(NamedTuple):
    """The policy that a low dtype policy of ours replaced, and the decoration that did so."""

    policy: keras.DTypePolicy
    by: Fitted


def replaced(layer: Any) -> Replaced | None:
    """What the dtype policy of a decorated Keras layer replaced; None if it is not one of ours."""
    return getattr(layer.dtype_policy, _REPLACED, None)


def note_built(layer: keras.Layer) -> None:
    """``layer`` has made its variables, and those of layers below it, after it was decorated."""
    for part in layers(layer):
        found = replaced(part.layer) if isinstance(part.layer, keras.Layer) else None
        if found is not None:
            found.by.leave_buffers_full(part.layer)
            if _hands_inputs_on(part.layer):
                found.by.hands_on.add(id(part.layer))


def is_ours(policy: Any) -> bool:
    """Whether a Keras dtype policy is one of a decorated layer."""
    return hasattr(policy, _REPLACED)


# -- the inputs of a model

_inputs: Scoped[Mapping[int, Any]] = Scoped("ampbridge_tensorflow inputs", {})


def inputs_known(inputs: Any) -> AbstractContextManager[None]:
    """A block in which a model that is decorated at O2 is called with ``inputs``."""
    floats = {id(leaf): leaf for leaf in leaves(inputs) if float_dtype(leaf) in FLOATS}
    return _inputs.during(floats)


def taken(inputs: Any, layer: keras.Layer) -> Any:
    """``inputs`` as ``layer`` takes them: a low layer casts what the model itself was given.

    As Keras' own mixed policies do, but for models and for layers with a part in float32. These hand
    the inputs on, so that the part sees them unrounded. What a layer has computed follows the rules.
    """
    known, own = _inputs.get(), replaced(layer)
    if not known or own is None or not layer.autocast or id(layer) in own.by.hands_on:
        return inputs
    low = own.by.rules.low
    return map_leaves(lambda x: cast_with_mask(x, low) if id(x) in known else x, inputs)


def _hands_inputs_on(layer: keras.Layer) -> bool:
    if isinstance(layer, keras.Model):
        return True
    return any(
        replaced(part) is None or not part.autocast
        for part in _private.sublayers(layer, recursive=True)
        if not isinstance(part, keras.layers.InputLayer)
    )


def low_variables(model: Any) -> list[Any]:
    """The variables of a decorated model, Keras' and TensorFlow's, that are read in low precision."""
    found = fitted(model)
    if found is None or found.decoration.policy.level != "O2":
        return []
    if found.low is not None:
        return found.low
    parts = [part.layer for part in layers(model) if isinstance(part.layer, keras.Layer)]
    held = [own_variables(part).values() for part in parts if replaced(part) is not None]
    low = [*filter(is_cast_by_keras, chain.from_iterable(held)), *found.variables]
    if all(layer.built for layer in found.layers):
        found.low = low
    return low


def is_cast_by_keras(variable: Any) -> bool:
    """Whether a layer with a low dtype policy reads ``variable`` in low precision."""
    is_float32 = _private.is_keras_variable(variable) and variable.dtype == "float32"
    return is_float32 and _private.is_autocast(variable)


# -- what holds for the whole process


class TraceKey(NamedTuple):
    """What tells a decoration from others in the keys under which tf.function keeps traces.

    Made of values, so that a model that is decorated again finds its old traces. ``calls`` are the
    interceptions that it needs; ``has_variables``, that some are read in low precision by our doing.
    """

    model: int
    rules: Rules
    kept: frozenset[int]
    standalone: bool
    calls: frozenset[Interception[None]]
    has_variables: bool


_present: frozenset[TraceKey] = frozenset()
_standing: dict[TraceKey, weakref.ref[Fitted]] = {}


def register(key: TraceKey, found: Fitted) -> None:
    """From now on traces belong to ``found``, too, which has this ``key``."""
    global _present
    _present |= {key}
    _standing[key] = weakref.ref(found)


def forget(key: TraceKey) -> None:
    """Take ``register`` back. Takes no lock: the garbage collector may call it anywhere."""
    global _present
    _present -= {key}
    _standing.pop(key, None)


def standing() -> list[Fitted]:
    """The decorations of models that run under their policy wherever they are called."""
    found = [reference() for reference in list(_standing.values())]
    return [each for each in found if each is not None and each.decoration.standalone]


def part_of(layer: Any) -> Fitted | None:
    """The standing decoration of a model that ``layer`` is a part of; the last, if of several."""
    for found in reversed(standing()):
        reference = found.parts.get(id(layer))
        if reference is not None and reference() is layer:
            return found
    return None


_keyed_otherwise: Scoped[bool] = Scoped("ampbridge_tensorflow traces", False)


def trace_key() -> frozenset[TraceKey] | None:
    """The decorations that a trace made now would see; None if there are none or they do not count."""
    return None if _keyed_otherwise.get() else _present or None


def traces_keyed_otherwise() -> AbstractContextManager[None]:
    """A block whose traces are kept by their decoration in another way."""
    return _keyed_otherwise.during(True)


def some_variables_are_low() -> bool:
    """Whether any model's variables are read in low precision without the help of a dtype policy."""
    return bool(_present) and any(key.has_variables for key in _present)


@contextmanager
def calls_seen() -> Iterator[None]:
    """A block in which models that are not standalone notice their calls: a region."""
    with ExitStack() as stack:
        for calls in {c for key in _present if not key.standalone for c in key.calls}:
            stack.enter_context(calls.region(None))
        yield


def gradient_rules() -> Rules | None:
    """The rules for gradients that are taken outside of regions while models are decorated.

    They hold for the gradients of low-precision ops and change nothing for others.
    """
    standing = [key.rules for key in _present if key.standalone]
    simulated = [rules for rules in standing if rules.simulated]
    return next((rules.gradients for rules in simulated + standing), None)
