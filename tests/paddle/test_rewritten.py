"""The scripts of Paddle's guide, rewritten to ampbridge and run on a CPU, where their own AMP is off.

They are compared with ``train_step`` under the recipe that is read out of the scripts as they were.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn

import ampbridge as amp
from ampbridge_port import read
from ampbridge_port.rewriting import rewrite

pytestmark = pytest.mark.slow

CORPUS = Path(__file__).parents[1] / "port" / "corpus"

SIZE, BATCH, BATCHES, EPOCHS = 32, 8, 30, 6

# A scale that overflows at first and grows again soon, seen at each batch.
CHANGES = {
    "init_loss_scaling=1024": "init_loss_scaling=2.0**24, incr_every_n_steps=3",
    "learning_rate=0.0001": "learning_rate=1e-4",
    "scaled.backward()": "scaled.backward(); scales.append(scaler.get_scale())",
}


class SimpleNet(nn.Layer):
    """The guide's, two layers less."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(input_size, output_size)
        self.linear2 = nn.Linear(output_size, output_size)

    def forward(self, x: Any) -> Any:
        return self.linear2(nn.functional.relu(self.linear1(x)))


def guide(name: str) -> str:
    text = CORPUS.joinpath(f"paddle_guide_{name}.py").read_text("utf-8")
    for before, after in CHANGES.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


def training() -> dict[str, Any]:
    """What the scripts of the guide take for granted."""
    paddle.seed(11)
    return {
        "SimpleNet": SimpleNet,
        "input_size": SIZE,
        "output_size": SIZE,
        "epochs": EPOCHS,
        "train_data": [paddle.randn((BATCH, SIZE)) for _ in range(BATCHES)],
        "labels": [1000.0 * paddle.randn((BATCH, SIZE)) for _ in range(BATCHES)],
        "mse": nn.MSELoss(),
        "scales": [],
    }


def weights(model: Any, optimizer: Any) -> list[np.ndarray]:
    amp.undecorate(model, optimizer)
    return [parameter.numpy() for parameter in model.parameters()]


def by_train_step(recipe: amp.Recipe) -> tuple[list[float], list[np.ndarray]]:
    """The same training by the loop's one call."""
    names = training()
    paddle.seed(100)
    model = SimpleNet(SIZE, SIZE)
    optimizer = paddle.optimizer.SGD(1e-4, parameters=model.parameters())
    step = amp.train_step(
        lambda model, x, y: names["mse"](model(x), y), model, optimizer, recipe=recipe
    )
    batches = list(zip(names["train_data"], names["labels"], strict=True)) * EPOCHS
    scales = [step(x, y).scale for x, y in batches]
    return scales, weights(model, optimizer)


@pytest.mark.parametrize("name", ["o1", "o2", "accumulation"])
def test_a_rewritten_guide_trains_as_its_recipe_says(name: str) -> None:
    text = guide(name).replace("import paddle\n", "import paddle\npaddle.seed(100)\n", 1)
    if name == "accumulation":  # the guide adds up what a recipe averages
        text = text.replace("loss = mse(output, label)", "loss = mse(output, label) / 10")
        text = text.replace("2.0**24", "2.0**20")
    recipe = read(text).recipe
    assert recipe.accumulate == (10 if name == "accumulation" else 1)
    rewriting = rewrite(text)
    assert not rewriting.findings
    names = training()
    exec(compile(rewriting.text, "script.py", "exec"), names)
    scales, expected = by_train_step(recipe)
    assert names["scales"] == scales
    assert min(scales) < scales[0]
    assert any(later > earlier for earlier, later in pairwise(scales))
    ours = weights(names["model"], names["optimizer"])
    for weight, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-6, atol=1e-7)
