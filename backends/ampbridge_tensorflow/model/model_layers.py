"""The layers of a model, Keras' and tf.Modules, under the names that a user would write.

A layer is named as the attribute that holds it: ``encoder.blocks.0`` for an item of a list. Where no
attribute does, as in Sequential and functional models and inside of Keras' own layers, it has its
Keras name: ``dense_1``, ``mha.query``. An InputLayer holds no computation and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ampbridge.adapters.backend import Layer
from ampbridge.checkpoints.held import dotted, unique
from ampbridge.errors import ArgumentTypeError
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.native_values import is_variable


def layers(model: Any) -> list[Layer]:
    """See ``Backend.layers``.

    Raises:
        ArgumentTypeError: for what is neither a model nor a layer.
    """
    return _layers(model, lasting=False)


def lasting_layers(model: Any) -> list[Layer]:
    """The same under names that are of the model alone, so that another process finds them again.

    Keras numbers its layers over the whole process: the first Dense of a second model is ``dense_5``.
    Here such layers are numbered anew within the layer that holds them: ``dense``, ``dense_1``.
    """
    return _layers(model, lasting=True)


def _layers(model: Any, lasting: bool) -> list[Layer]:
    if not hasattr(model, "trainable_variables"):
        msg = (
            f"A model is a keras.Model or a tf.Module, not {type(model).__name__}: it has no "
            "trainable_variables.\nHint: class Model(tf.Module): ..."
        )
        raise ArgumentTypeError(msg)
    found: dict[int, Layer] = {}

    def collect(name: str, layer: Any) -> None:
        if id(layer) in found:
            return
        trainable = {n: v for n, v in own_variables(layer).items() if v.trainable}
        shapes = {n: tuple(v.shape) for n, v in trainable.items()}
        found[id(layer)] = Layer(name, type(layer).__name__, layer, shapes)
        for part_name, part in _parts(layer, lasting):
            collect(f"{name}.{part_name}" if name else part_name, part)

    collect("", model)
    return list(found.values())


def below(roots: Iterable[Any]) -> set[int]:
    """The ids of ``roots`` and of every layer below them."""
    return {id(part.layer) for root in roots for part in layers(root)}


def own_variables(layer: Any) -> dict[str, Any]:
    """The Keras and TensorFlow variables that ``layer`` holds itself, not by its parts.

    In the order in which Keras lists them, or in which they became attributes.
    """
    held = {name: value for name, value in _attributes(layer) if is_variable(value)}
    if not isinstance(layer, keras.Layer):
        return held
    known = {id(v) for v in held.values()}
    parts = _parts(layer, lasting=False)
    known |= {id(v) for _, part in parts for v in getattr(part, "variables", ())}
    others = [v for v in layer.variables if id(v) not in known]
    names = unique([*held, *map(_without_number, others)])[len(held) :]
    held.update(zip(names, others, strict=True))
    places = {id(v): place for place, v in enumerate(layer.variables)}
    return dict(sorted(held.items(), key=lambda item: places.get(id(item[1]), len(places))))


def _parts(layer: Any, lasting: bool) -> list[tuple[str, Any]]:
    """The layers directly below; one that several attributes hold is there several times."""

    def is_part(value: Any) -> bool:
        is_input = isinstance(value, keras.layers.InputLayer)
        return isinstance(value, (keras.Layer, tf.Module)) and not is_input

    parts = [(name, value) for name, value in _attributes(layer) if is_part(value)]
    if isinstance(layer, keras.Layer):
        held = {id(part) for _, part in parts}
        others = [x for x in _private.sublayers(layer) if is_part(x) and id(x) not in held]
        names = unique(map(_without_number, others)) if lasting else [part.name for part in others]
        parts += zip(names, others, strict=True)
    return parts


def _without_number(named: Any) -> str:
    """The name of a layer or a variable, without the number if Keras has made it up."""
    name: str = named.name
    snake_case = _private.value(_private.SNAKE_CASE)
    if snake_case is None:
        return name
    of_class: str = snake_case(type(named).__name__)
    return of_class if re.fullmatch(rf"{re.escape(of_class)}(_\d+)?", name) else name


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    """Attributes and the items of containers among them, dotted.

    Keras' own classes are asked for their public ones only: the others are their machinery.
    """
    hides = type(owner).__module__.partition(".")[0] == "keras"
    for name, value in vars(owner).items():
        if not (_private.is_machinery(name) or (hides and name.startswith("_"))):
            yield from dotted(name, value)
