"""For adapters whose models are modules: what their module ``neutral`` has alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ampbridge.adapters.backend import Model
from ampbridge.neutral import native
from ampbridge.neutral.weights import BLOCK, Weights, numbered

_ACTIVATIONS = {"gelu": "GELU", "relu": "ReLU", "tanh": "Tanh"}


class Native(native.Native):
    """Models of a framework's layers.

    Attributes:
        layers: has the classes of layers without weights by torch's names, and ``Sequential``.
        linear, conv2d: make a layer of ``weights`` by its name; the latter with ``padding`` or ``stride``.
        embedding, attention: make the layer of token ids, and that of a block's number and so many heads.
        batch_norm, layer_norm: make one for so many channels, and one of such a width.
        parameter: makes one of an array.
        module_list: makes the framework's list of a list of modules.
        block_class, transformer_class: the two of this module, mixed into the framework's modules.
    """

    layers: Any
    linear: Callable[[Weights, str], Any]
    conv2d: Callable[..., Any]
    embedding: Callable[[Weights], Any]
    attention: Callable[[Weights, int, int], Any]
    batch_norm: Callable[[int], Any]
    layer_norm: Callable[[int], Any]
    parameter: Callable[[Any], Any]
    module_list: Callable[[Any], Any]
    block_class: type[Block]
    transformer_class: type[Transformer]

    def mlp(self, weights: Weights, inputs: Sequence[int], activation: str) -> Model:
        layers = [self.layers.Flatten()]
        for name in numbered(weights, "hidden"):
            layers += [self.linear(weights, name), self._activation(activation)]
        return self.layers.Sequential(*layers, self.linear(weights, "head"))

    def convnet(self, weights: Weights, inputs: Sequence[int], activation: str) -> Model:
        layers: list[Any] = []
        geometry = {"padding": 1}
        for name in numbered(weights, "conv"):
            channels = weights[f"{name}.weight"].shape[0]
            layers += [self.conv2d(weights, name, **geometry), self.batch_norm(channels)]
            layers.append(self._activation(activation))
            geometry = {"stride": 2}
        layers = [*self.turned(layers), self.layers.Flatten(), self.linear(weights, "head")]
        return self.layers.Sequential(*layers)

    def turned(self, layers: list[Any]) -> list[Any]:
        """``layers`` between those that turn images to the framework's axes and back, if it has others."""
        return layers

    def _activation(self, name: str) -> Any:
        return getattr(self.layers, _ACTIVATIONS[name])()

    def transformer(self, weights: Weights, heads: int, causal: bool) -> Model:
        return self.transformer_class(self, weights, heads, causal)


class Block:
    """A block of a transformer."""

    def __init__(
        self, make: Native, weights: Weights, number: int, heads: int, causal: bool
    ) -> None:
        super().__init__()
        width = weights["embedding"].shape[1]
        widen, narrow = (make.linear(weights, f"{name}{number}") for name in BLOCK[4:])
        self.norm1 = make.layer_norm(width)
        self.attention = make.attention(weights, number, heads)
        self.norm2 = make.layer_norm(width)
        self.feed_forward = make.layers.Sequential(widen, make.layers.GELU(), narrow)
        self.causal = causal

    def forward(self, x: Any) -> Any:
        x = x + self.attended(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))

    def attended(self, x: Any) -> Any:
        """What the attention makes of (batch, tokens, width)."""
        return self.attention(x, is_causal=self.causal)


class Transformer:
    """The model of ``neutral.transformer``."""

    def __init__(self, make: Native, weights: Weights, heads: int, causal: bool) -> None:
        super().__init__()
        self.embedding = make.embedding(weights)
        placed = "positions" in weights
        self.positions = make.parameter(weights["positions"]) if placed else None
        numbers = range(1, len(numbered(weights, "query")) + 1)
        blocks = [make.block_class(make, weights, number, heads, causal) for number in numbers]
        self.blocks = make.module_list(blocks)
        self.norm = make.layer_norm(weights["embedding"].shape[1])
        self.head = make.linear(weights, "head")
        self.causal = causal

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x if self.causal else x.mean(1)))


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
