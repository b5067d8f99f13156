"""NumPy's side of a checkpoint, in a process of its own: ``numpy_net.py train|predict|copy FOLDER``.

``train`` saves a checkpoint, ``predict`` loads one; both write what the model predicts for
``batch.npz``. ``copy`` loads the checkpoint of a stack of square dense layers and saves it again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import ampbridge as amp
from ampbridge_numpy import nn, optim


class NumpyNet(nn.Module):
    """Convolution, batch norm, layer norm, embedding, dense; not in the order in which Keras has them."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.last = nn.Linear(7, 3, rng=random)
        self.of_words = nn.Linear(5, 7, rng=random)
        self.of_image = nn.Linear(16, 7, rng=random)
        self.within = nn.LayerNorm(5)
        self.table = nn.Embedding(10, 5, rng=random)
        self.across_batch = nn.BatchNorm2d(4)
        self.convolution = nn.Conv2d(2, 4, 3, padding=1, rng=random)

    def forward(self, image: Any, words: Any) -> Any:
        x = nn.relu(self.across_batch(self.convolution(image)))
        x = self.of_image(nn.flatten(nn.avg_pool2d(x, 2)))
        y = self.of_words(self.within(self.table(words)))
        return self.last(nn.relu(x + y))


def loss_fn(model: Any, image: Any, words: Any, labels: Any) -> Any:
    return nn.cross_entropy(model(image, words), labels)


def train_step(model: nn.Module) -> amp.TrainStep:
    sgd = optim.SGD(model.parameters(), lr=0.05)
    return amp.train_step(loss_fn, model, sgd, policy="O1", scaler=amp.GradScaler(2.0**10))


def main(action: str, folder: Path) -> None:
    if action == "copy":
        stack = nn.Sequential(*(nn.Linear(4, 4, rng=7) for _ in range(3)))
        amp.load_weights(folder, stack)
        train_step(stack).save(folder / "copy")
        return
    model, batch = NumpyNet(), np.load(folder / "batch.npz")
    images, words, labels = batch["images"], batch["words"], batch["labels"]
    if action == "train":
        step = train_step(model)
        for _ in range(4):
            step(images, words, labels)
        step.save(folder)
    else:
        amp.load_weights(folder, model)
    np.save(folder / "predictions.npy", model.eval()(images, words))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
