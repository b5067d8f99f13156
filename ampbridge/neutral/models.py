"""Models of the frameworks' own layers, with the same initial weights everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ampbridge.adapters.backend import Backend, Model
from ampbridge.adapters.tracing import called_as_it_is
from ampbridge.errors import ArgumentError
from ampbridge.errors.flags import checked_flag
from ampbridge.errors.foreign_names import told_of
from ampbridge.neutral import checks, weights
from ampbridge.neutral.native import native_of, native_of_backend

ACTIVATIONS = ("gelu", "relu", "tanh")


@told_of("neutral.mlp")
def mlp(
    backend: str | Backend,
    inputs: int | Sequence[int],
    hidden: Sequence[int],
    outputs: int,
    *,
    activation: str = "gelu",
    seed: int = 0,
) -> Model:
    """Linear layers with an activation between them: a ``torch.nn.Module``, a ``keras.Model``, ...

    Args:
        backend: the framework: "torch", "tensorflow", "paddle", "jax" or "numpy".
        inputs: the number of features, or the shape of one input, which is flattened.
        hidden: the widths of the hidden layers; there may be none.
        outputs: the number of outputs. They are logits: no softmax follows.
        activation: "gelu" (exact, not the approximation by tanh), "relu" or "tanh".
        seed: of NumPy's generator, which makes the weights.

    Raises:
        ArgumentError: for a value that is not allowed.
        UnsupportedError: if the backend's adapter has no models.
    """
    native = native_of_backend(backend)
    shape = [inputs] if isinstance(inputs, int) else inputs
    shape = checks.sizes("inputs", shape, None, (64,))
    hidden = checks.sizes("hidden", hidden, None, [128, 64])
    outputs = checks.whole("outputs", outputs, 1, 10)
    activation = checks.one_of("activation", activation, ACTIVATIONS)
    values = weights.mlp(_generator(seed), math.prod(shape), hidden, outputs)
    return native.mlp(values, shape, activation)


@told_of("neutral.convnet")
def convnet(
    backend: str | Backend,
    inputs: Sequence[int],
    channels: Sequence[int],
    outputs: int,
    *,
    activation: str = "gelu",
    seed: int = 0,
) -> Model:
    """Convolutions of 3 x 3, each with batch norm and an activation, and a linear layer.

    The first convolution keeps the size of the image. Each further one has stride 2 and no padding.

    Args:
        backend, outputs, activation, seed: as of ``mlp``.
        inputs: (channels, height, width) of one image. Channels come first on every framework; the
            Keras model turns the images around itself.
        channels: the number of channels after each convolution.

    Raises:
        ArgumentError: for a value that is not allowed, such as an image that is too small.
        UnsupportedError: if the backend's adapter has no models.
    """
    native = native_of_backend(backend)
    inputs = checks.sizes("inputs", inputs, 3, (1, 8, 8))
    channels = checks.sizes("channels", channels, None, [8, 16])
    outputs = checks.whole("outputs", outputs, 1, 10)
    activation = checks.one_of("activation", activation, ACTIVATIONS)
    smallest = min(inputs[1:])
    for _ in channels[1:]:
        smallest = weights.halved(smallest)
    if smallest < 1 or not channels:
        msg = f"Passed {len(channels)} channels for images of {inputs[1]} x {inputs[2]}: "
        msg += "nothing is left of them.\n" if channels else "there is no convolution.\n"
        raise ArgumentError(msg + "Hint: channels=[8]")
    values = weights.convnet(_generator(seed), inputs, channels, outputs)
    return native.convnet(values, inputs, activation)


@told_of("neutral.transformer")
def transformer(
    backend: str | Backend,
    vocabulary: int,
    outputs: int,
    *,
    width: int = 32,
    heads: int = 4,
    depth: int = 1,
    length: int | None = None,
    causal: bool = False,
    seed: int = 0,
) -> Model:
    """Pre-norm encoder blocks (attention, then a GELU layer of twice the width) over token ids.

    Args:
        backend, seed: as of ``mlp``.
        vocabulary: the number of token ids. The model takes integers of shape (batch, tokens).
        outputs: the number of logits: for each sequence, by the mean of its tokens; with ``causal`` for
            each token, as in a language model.
        width: of the embedding and of the blocks; a multiple of ``heads``.
        heads: of each attention.
        depth: the number of blocks.
        length: the number of tokens in a sequence, each position with a learned vector that is added to
            the embedding. Without it the model does not see in which order tokens come, and sequences
            may have any length.
        causal: a token attends to those before it, and to itself.

    Raises:
        ArgumentError: for a value that is not allowed.
        UnsupportedError: if the backend's adapter has no models.
    """
    native = native_of_backend(backend)
    vocabulary = checks.whole("vocabulary", vocabulary, 1, 256)
    outputs = checks.whole("outputs", outputs, 1, 10)
    heads = checks.whole("heads", heads, 1, 4)
    width = checks.whole("width", width, 1, 8 * heads)
    if width % heads:
        msg = f"Passed width={width} and heads={heads}; heads must divide the width.\n"
        raise ArgumentError(msg + f"Hint: width={heads * (width // heads + 1)}, heads={heads}")
    depth = checks.whole("depth", depth, 1, 2)
    length = None if length is None else checks.whole("length", length, 1, 16)
    causal = checked_flag("causal", causal)
    values = weights.transformer(_generator(seed), vocabulary, outputs, width, depth, length)
    return native.transformer(values, heads, causal)


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(checks.whole("seed", seed, 0, 0))


@called_as_it_is
def forward(model: Model, *inputs: Any) -> Any:
    """Call ``model`` in the mode in which it is trained; for a ``loss_fn``.

    A Keras layer is called with ``training=True``, without which dropout and batch norm would run as in
    evaluation. Models of other frameworks know their mode (``model.train()``, ``model.eval()``) and are
    called as they are.
    """
    return native_of(model).forward(model, inputs)
