"""Initial weights, made by NumPy from a seed, so that every framework starts from the same numbers.

Layouts: a linear weight is (in, out), a convolution's (out, in, height, width). Norms start at one
and zero everywhere and need no entry.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ampbridge.workloads.digits import CLASSES, VOCABULARY

Weights = dict[str, npt.NDArray[np.float32]]

WIDTH, HEADS = 32, 4


def make(workload: str, seed: int = 0) -> Weights:
    """The weights of "mlp", "conv" or "transformer", float32."""
    rng = np.random.default_rng(seed)
    return {"mlp": _mlp, "conv": _conv, "transformer": _transformer}[workload](rng)


def _mlp(rng: np.random.Generator) -> Weights:
    return (
        _linear(rng, "hidden1", 64, 128)
        | _linear(rng, "hidden2", 128, 64)
        | _linear(rng, "head", 64, CLASSES)
    )


def _conv(rng: np.random.Generator) -> Weights:
    return (
        _conv2d(rng, "conv1", 1, 8, kernel=3)
        | _conv2d(rng, "conv2", 8, 16, kernel=3)
        | _linear(rng, "head", 16 * 3 * 3, CLASSES)
    )


def _transformer(rng: np.random.Generator) -> Weights:
    embedding = rng.normal(0.0, 0.2, (VOCABULARY, WIDTH)).astype(np.float32)
    return (
        {"embedding": embedding}
        | _linear(rng, "query", WIDTH, WIDTH)
        | _linear(rng, "key", WIDTH, WIDTH)
        | _linear(rng, "value", WIDTH, WIDTH)
        | _linear(rng, "output", WIDTH, WIDTH)
        | _linear(rng, "widen", WIDTH, 2 * WIDTH)
        | _linear(rng, "narrow", 2 * WIDTH, WIDTH)
        | _linear(rng, "head", WIDTH, CLASSES)
    )


def _linear(rng: np.random.Generator, name: str, inputs: int, outputs: int) -> Weights:
    weight = _uniform(rng, (inputs, outputs), fan_in=inputs)
    return {f"{name}.weight": weight, f"{name}.bias": _uniform(rng, (outputs,), fan_in=inputs)}


def _conv2d(rng: np.random.Generator, name: str, inputs: int, outputs: int, kernel: int) -> Weights:
    shape = (outputs, inputs, kernel, kernel)
    return {f"{name}.weight": _uniform(rng, shape, fan_in=inputs * kernel * kernel)}


def _uniform(
    rng: np.random.Generator, shape: tuple[int, ...], fan_in: int
) -> npt.NDArray[np.float32]:
    bound = fan_in**-0.5
    return rng.uniform(-bound, bound, shape).astype(np.float32)
