"""For adapters whose layers are modules with torch's names: what their module ``neutral`` has alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ampbridge.adapters.backend import Model
from ampbridge.neutral.weights import Weights, numbered

_ACTIVATIONS = {"gelu": "GELU", "relu": "ReLU", "tanh": "Tanh"}


class Layers(NamedTuple):
    """A framework's layers, and the models that are sequences of them.

    Attributes:
        nn: has the classes of layers without weights, and ``Sequential``.
        linear, conv2d: make a layer of ``weights`` by its name; the latter with ``padding`` or ``stride``.
        batch_norm: makes one for images of so many channels.
    """

    nn: Any
    linear: Callable[[Weights, str], Any]
    conv2d: Callable[..., Any]
    batch_norm: Callable[[int], Any]

    def mlp(self, weights: Weights, inputs: Sequence[int], activation: str) -> Model:
        layers = [self.nn.Flatten()]
        for name in numbered(weights, "hidden"):
            layers += [self.linear(weights, name), self._activation(activation)]
        return self.nn.Sequential(*layers, self.linear(weights, "head"))

    def convnet(self, weights: Weights, inputs: Sequence[int], activation: str) -> Model:
        layers: list[Any] = []
        geometry = {"padding": 1}
        for name in numbered(weights, "conv"):
            channels = weights[f"{name}.weight"].shape[0]
            layers += [self.conv2d(weights, name, **geometry), self.batch_norm(channels)]
            layers.append(self._activation(activation))
            geometry = {"stride": 2}
        return self.nn.Sequential(*layers, self.nn.Flatten(), self.linear(weights, "head"))

    def _activation(self, name: str) -> Any:
        return getattr(self.nn, _ACTIVATIONS[name])()


@contextmanager
def evaluating(
    model: Any, layers: Iterable[Any], attributes: Sequence[str] = ("training",)
) -> Iterator[None]:
    """Evaluation mode for a block. Afterwards each of ``layers``, all of the model's, has its own again.

    Args:
        attributes: which say the mode of a layer; a layer need not have each of them.
    """
    modes = [
        (layer, name, getattr(layer, name))
        for layer in layers
        for name in attributes
        if hasattr(layer, name)
    ]
    model.eval()
    try:
        yield
    finally:
        for layer, name, mode in modes:
            setattr(layer, name, mode)
