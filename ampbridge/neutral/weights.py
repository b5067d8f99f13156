"""Initial weights, made by NumPy from a seed, so that every framework starts from the same numbers.

Layouts: a linear weight is (in, out), a convolution's (out, in, height, width). Norms start at one
and zero everywhere and need no entry. Layers of the same kind are numbered from 1: "hidden1".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Weights = dict[str, npt.NDArray[np.float32]]

KERNEL = 3


def mlp(rng: np.random.Generator, inputs: int, hidden: Sequence[int], outputs: int) -> Weights:
    """ "hidden1", "hidden2", ... and "head"."""
    weights: Weights = {}
    for number, width in enumerate(hidden, 1):
        weights |= linear(rng, f"hidden{number}", inputs, width)
        inputs = width
    return weights | linear(rng, "head", inputs, outputs)


def convnet(
    rng: np.random.Generator, inputs: Sequence[int], channels: Sequence[int], outputs: int
) -> Weights:
    """ "conv1", "conv2", ... without biases, for a norm follows each; and "head"."""
    before, *size = inputs
    weights: Weights = {}
    for number, after in enumerate(channels, 1):
        shape = (after, before, KERNEL, KERNEL)
        fan_in = before * KERNEL * KERNEL
        weights[f"conv{number}.weight"] = _uniform(rng, shape, fan_in)
        before = after
        size = size if number == 1 else [halved(each) for each in size]
    return weights | linear(rng, "head", before * size[0] * size[1], outputs)


def halved(size: int) -> int:
    """The rows or columns after a convolution of stride 2 without padding."""
    return (size - KERNEL) // 2 + 1


def transformer(
    rng: np.random.Generator,
    vocabulary: int,
    outputs: int,
    width: int,
    depth: int,
    length: int | None,
) -> Weights:
    """ "embedding", "positions" if there is a ``length``, and for each block the layers of ``BLOCK``."""
    weights: Weights = {"embedding": _normal(rng, (vocabulary, width))}
    if length is not None:
        weights["positions"] = _normal(rng, (length, width))
    for number in range(1, depth + 1):
        for name in BLOCK[:4]:
            weights |= linear(rng, f"{name}{number}", width, width)
        weights |= linear(rng, f"widen{number}", width, 2 * width)
        weights |= linear(rng, f"narrow{number}", 2 * width, width)
    return weights | linear(rng, "head", width, outputs)


BLOCK = ("query", "key", "value", "output", "widen", "narrow")


def numbered(weights: Weights, name: str) -> list[str]:
    """The layers "name1", "name2", ... that have a weight."""
    number, found = 1, list[str]()
    while f"{name}{number}.weight" in weights:
        found.append(f"{name}{number}")
        number += 1
    return found


def linear(rng: np.random.Generator, name: str, inputs: int, outputs: int) -> Weights:
    """Weight and bias, uniform in +-1/sqrt(inputs)."""
    weight = _uniform(rng, (inputs, outputs), inputs)
    return {f"{name}.weight": weight, f"{name}.bias": _uniform(rng, (outputs,), inputs)}


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    return rng.normal(0.0, 0.2, shape).astype(np.float32)


def _uniform(
    rng: np.random.Generator, shape: tuple[int, ...], fan_in: int
) -> npt.NDArray[np.float32]:
    bound = fan_in**-0.5
    return rng.uniform(-bound, bound, shape).astype(np.float32)
