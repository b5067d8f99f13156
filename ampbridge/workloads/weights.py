"""Initial weights of the digits' models, made by NumPy from a seed."""

from __future__ import annotations

import numpy as np

from ampbridge.neutral import weights
from ampbridge.neutral.weights import Weights
from ampbridge.workloads.digits import CLASSES, VOCABULARY


def make(workload: str, seed: int = 0) -> Weights:
    """The weights of "mlp", "conv" or "transformer", float32."""
    rng = np.random.default_rng(seed)
    if workload == "mlp":
        return weights.mlp(rng, 64, [128, 64], CLASSES)
    if workload == "conv":
        return weights.convnet(rng, (1, 8, 8), [8, 16], CLASSES)
    return weights.transformer(rng, VOCABULARY, CLASSES, width=32, depth=1, length=None)
