"""Whole trainings: what is simulated on the CPU and what runs on the device are one, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn

import ampbridge as amp

pytestmark = pytest.mark.slow


class Attention(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(self.table(x)).mean(1))


def perceptron() -> nn.Layer:
    return nn.Sequential(
        *(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)),
        nn.Linear(64, 10),
    )


def convolutional() -> nn.Layer:
    return nn.Sequential(
        *(nn.Conv2D(3, 8, 3, padding=1), nn.BatchNorm2D(8), nn.ReLU(), nn.MaxPool2D(2)),
        *(nn.Conv2D(8, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2D(1), nn.Flatten()),
        nn.Linear(8, 10),
    )


RNG = np.random.default_rng(0)
MODELS = {
    "perceptron": (perceptron, RNG.standard_normal((64, 32)).astype(np.float32)),
    "convolutional": (convolutional, RNG.standard_normal((16, 3, 8, 8)).astype(np.float32)),
    "attention": (Attention, RNG.integers(0, 20, (16, 6))),
}

# Where several ops read one 16-bit tensor, as in residual connections, a device rounds each sum of their
# gradients, and the simulation the last alone (test_simulation.py, SUMS): an ulp here and there.
CLOSE = {("attention", "O2:float16")}

# Model, policy, lists, optimizer. Each one's scale starts where gradients overflow, and grows again.
TRAININGS = [
    ("perceptron", "O1:float16", "torch", "SGD"),
    ("perceptron", "O1:bfloat16", "paddle", "AdamW"),
    ("perceptron", "O2:float16", "torch", "AdamW"),
    ("perceptron", "O2:bfloat16", "torch", "SGD"),
    ("convolutional", "O1:float16", "paddle", "Momentum"),
    ("convolutional", "O2:bfloat16", "paddle", "SGD"),
    ("attention", "O1:float16", "torch", "AdamW"),
    ("attention", "O2:float16", "torch", "Momentum"),
]

History = list[tuple[float, float, bool]]


def history(device: str, model: str, policy: str, lists: Any, optimizer: str) -> History:
    """Loss, scale, and whether it was applied, of 20 steps."""
    build, x = MODELS[model]
    paddle.set_device(device)
    weights, net = np.random.default_rng(1), build()
    for parameter in net.parameters():
        if parameter.ndim > 1:  # not the normalizations'
            drawn = 0.2 * weights.standard_normal(parameter.shape)
            parameter.set_value(drawn.astype(np.float32))
    rate = 0.01 if optimizer == "AdamW" else 0.05
    step = amp.train_step(
        lambda net, x, y: nn.functional.cross_entropy(net(x), y),
        net,
        getattr(paddle.optimizer, optimizer)(rate, parameters=net.parameters()),
        policy=amp.Policy.parse(policy).replace(lists=lists),
        scaler=amp.GradScaler(2.0**24, growth_interval=5),
    )
    paddle.seed(0)  # of the dropout
    y = np.random.default_rng(2).integers(0, 10, len(x))
    results = [step(x, y) for _ in range(20)]
    return [(float(r.loss), float(r.scale), bool(r.applied)) for r in results]


@pytest.mark.parametrize("model, policy, lists, optimizer", TRAININGS)
def test_a_simulated_training_is_that_of_the_device(
    model: str, policy: str, lists: str, optimizer: str
) -> None:
    simulated = history("cpu", model, policy, lists, optimizer)
    native = history("virtual_gpu", model, policy, lists, optimizer)
    if (model, policy) in CLOSE:
        losses, expected = ([loss for loss, *_ in run] for run in (simulated, native))
        assert losses != expected
        assert np.allclose(losses, expected, rtol=1e-3)
        simulated, native = ([(0.0, *state) for _, *state in run] for run in (simulated, native))
    assert simulated == native
    skipped = [not applied for _, _, applied in native]
    assert any(skipped) == ("bfloat16" not in policy)
    assert not all(skipped)
