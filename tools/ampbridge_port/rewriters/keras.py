"""Keras' policy and LossScaleOptimizer: a decorated model, and our optimizer, which is one of Keras'.

    set_global_policy("mixed_float16")      taken out
    model.compile(opt, loss)                ampbridge.decorate(model, policy=...).compile(ours(opt), loss)
    LossScaleOptimizer(opt)                 ampbridge_tensorflow.LossScaleOptimizer(opt, ...)

These belong together, so a script is looked at as a whole: either all of it can be replaced, or its
lines are told, and what to write there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ampbridge_port.reader.dialects.calls import Call, NotKnown, Object
from ampbridge_port.rewriters import by_hand
from ampbridge_port.rewriters.expressions import (
    KEPT,
    UNKNOWN,
    Part,
    Removed,
    Replacement,
    literal,
    names,
    receiver,
    text,
)

_SET = ("keras.config.set_dtype_policy", "keras.mixed_precision.experimental.set_policy")
_MODELS = ("keras.Model", "keras.Sequential")
_SCALERS = (
    "keras.optimizers.LossScaleOptimizer",
    "keras.mixed_precision.experimental.LossScaleOptimizer",
)
_SCALED, _UNSCALED = "get_scaled_loss", "get_unscaled_gradients"
_OURS = "ampbridge_tensorflow.LossScaleOptimizer"
_MIXED: Mapping[str, str] = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}
_RULE = 'ampbridge.GradScaler.like("keras"'


@dataclass(frozen=True)
class _Training:
    """What a script trains: its dtype, and where its model is decorated.

    That is ``model.compile(...)``, or for a loop of its own the call that makes the model.
    """

    dtype: str
    decorated: Call
    keep: tuple[str, ...]
    rule: str
    has_own_scaler: bool

    @property
    def around(self) -> str:
        """The text around a model."""
        kept = f", keep={names(self.keep)}" if self.keep else ""
        return f"ampbridge.decorate({KEPT}, policy={_policy(self.dtype, kept)})"


def replacements(calls: Sequence[Call]) -> Mapping[str, Replacement]:
    """What replaces Keras' calls in a script that has ``calls``."""
    training = _training(calls)
    if training is None:
        return {name: partial(by_hand.instead, how) for name, how in _how(calls).items()}
    return {
        **dict.fromkeys(_SET, lambda call: Removed),
        **{f"{model}.compile": partial(_compile, training) for model in _MODELS},
        **dict.fromkeys(_MODELS, partial(_make, training)),
        **dict.fromkeys(_SCALERS, partial(_scaler, training.rule)),
        **{f"{each}.{_SCALED}": _scaled_loss for each in _SCALERS},
        **{f"{each}.{_UNSCALED}": _unscaled_gradients for each in _SCALERS},
    }


def _policy(dtype: str, others: str = "") -> str:
    low = "" if dtype == "float16" else f', "{dtype}"'
    return f'ampbridge.Policy("O2"{low}, lists="tensorflow"{others})'


# -- whether all of a script can be replaced


def _training(calls: Sequence[Call]) -> _Training | None:
    """The one training under one policy of Keras', if that is what a script is."""
    settings = [call for call in calls if call.name in _SET]
    keep, decorated = _kept(calls), _decorated(calls)
    if len(settings) != 1 or keep is None or decorated is None or settings[0].unpacked:
        return None
    dtype = _MIXED.get(_policy_name(settings[0]))
    scalers = [call for call in calls if call.name in _SCALERS]
    if dtype is None or not all(map(_is_plain, scalers)):
        return None
    if not scalers and not _can_be_wrapped(decorated, dtype):
        return None
    floor = any(call.name.endswith((_SCALED, _UNSCALED)) for call in calls)
    rule = _RULE + (", min_scale=1.0" if floor else "")  # of Keras 2
    return _Training(dtype, decorated, keep, rule, bool(scalers))


def _policy_name(call: Call) -> str:
    try:
        value: Any = call.value("policy", None)
        if isinstance(value, Object) and "loss_scale" not in value.call.arguments:
            value = value.call.value("name", None)
    except NotKnown:
        return ""
    return value if isinstance(value, str) else ""


def _kept(calls: Sequence[Call]) -> tuple[str, ...] | None:
    """The names of layers in float32; None, where a layer has a dtype that no name goes with."""
    found = []
    for call in calls:
        passed = {**call.arguments, **call.extra}
        if not call.name.startswith("keras.layers.") or "dtype" not in passed:
            continue
        name = literal(passed["name"].place.text) if "name" in passed else UNKNOWN
        if literal(passed["dtype"].place.text) != "float32" or not isinstance(name, str):
            return None
        found.append(name)
    return tuple(found)


def _decorated(calls: Sequence[Call]) -> Call | None:
    """Where the model is decorated: as it is compiled, or as a functional one is made."""
    compiled = [call for call in calls if call.name.endswith(".compile")]
    made = [call for call in calls if call.name == "keras.Model" and {*call.arguments, *call.extra}]
    found = compiled or [call for call in made if not call.overridden]
    return found[0] if len(found) == 1 else None


def _is_plain(call: Call) -> bool:
    """A scaler of which every argument is known, and is Keras 3's or a number."""
    flags = any(literal(each.place.text) in (True, False) for each in call.arguments.values())
    return not (call.extra or call.unpacked or call.overridden or flags)


def _can_be_wrapped(call: Call, dtype: str) -> bool:
    if dtype != "float16" or literal(text(call, "auto_scale_loss")) is False:
        return True
    return call.name.endswith(".compile") and text(call, "optimizer") is not None


# -- what is written


def _compile(training: _Training, call: Call) -> Sequence[Part]:
    parts = [Part(replace(call.place, text=receiver(call)), training.around)]
    scaled = literal(text(call, "auto_scale_loss")) is not False
    if training.dtype == "float16" and scaled and not training.has_own_scaler:
        place = call.place_of("optimizer")
        by_name = isinstance(literal(place.text), str)  # compile("adam", ...)
        made = f"keras.optimizers.get({KEPT})" if by_name else KEPT
        parts.append(Part(place, f"{_OURS}({made}, {training.rule}))"))
    return parts


def _make(training: _Training, call: Call) -> Sequence[Part] | None:
    is_decorated = call.place == training.decorated.place
    return [Part(call.place, training.around)] if is_decorated else None


def _scaler(rule: str, call: Call) -> str:
    inner = text(call, "inner_optimizer") or text(call, "optimizer") or "optimizer"
    ours = {"initial_scale": "init_scale", "dynamic_growth_steps": "growth_interval"}
    given = [f", {ours[name]}={text(call, name)}" for name in ours if text(call, name)]
    return f"{_OURS}({inner}, {rule}{''.join(given)}))"


def _scaled_loss(call: Call) -> str:
    return f"{receiver(call)}.scale_loss({text(call, 'value')})"


def _unscaled_gradients(call: Call) -> str:
    """Ours unscales gradients as it applies them."""
    return text(call, "value") or "grads"


# -- by hand


def _how(calls: Sequence[Call]) -> Mapping[str, Callable[[Call], str | None]]:
    policies = [_policy_name(call) for call in calls if call.name in _SET]
    dtype = next((_MIXED[name] for name in policies if name in _MIXED), "float16")
    low = any(name not in ("float32", "") for name in policies)
    decorate = f"ampbridge.decorate(model, policy={_policy(dtype)})"
    kept = _kept(calls)
    keep = f", with keep={names(kept or ['...'])} for its layers in float32" if kept != () else ""

    def set_policy(call: Call) -> str | None:
        if _policy_name(call) == "float32":
            return None
        return f"take it out; {decorate} once the model is made{keep}."

    def compile_model(call: Call) -> str | None:
        optimizer = text(call, "optimizer") or "optimizer"
        wrapped = f"; {_OURS}({optimizer}, {_RULE})) as its optimizer" if dtype == "float16" else ""
        return f"{decorate} above it{wrapped}." if low else None

    def scaler(call: Call) -> str:
        if call.overridden:
            return f"derive your class from {_OURS}."
        return f"{_scaler(_RULE, call)}." if _is_plain(call) else f"{_OURS}(optimizer, {_RULE}))."

    def layer(call: Call) -> str | None:
        passed = {**call.arguments, **call.extra}
        if not low or "dtype" not in passed or literal(passed["dtype"].place.text) == "float32":
            return None  # the name to keep is told of
        return "take dtype out; keep=[...] in the Policy has the names of layers in float32."

    def set_floatx(call: Call) -> str | None:
        return None if literal(text(call, "floatx")) == "float32" else f"take it out; {decorate}."

    def unscaled(call: Call) -> str:
        gradients = _unscaled_gradients(call)
        return f"{gradients}: apply unscales them, and the inner optimizer clips."

    return {
        **dict.fromkeys(_SET, set_policy),
        **{f"{model}.compile": compile_model for model in _MODELS},
        **{call.name: layer for call in calls if call.name.startswith("keras.layers.")},
        "keras.config.set_floatx": set_floatx,
        **dict.fromkeys(_SCALERS, scaler),
        **{f"{each}.{_SCALED}": lambda call: f"{_scaled_loss(call)}." for each in _SCALERS},
        **{f"{each}.{_UNSCALED}": unscaled for each in _SCALERS},
    }
