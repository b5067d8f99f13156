"""The classifier in NumPy, with the layers that come with ampbridge."""

from __future__ import annotations

from collections.abc import Mapping

import autograd.numpy as anp
import numpy as np

from ampbridge_numpy import nn, optim


class Softmax(nn.Module):
    """A layer of its own, so that it can be kept."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        return nn.softmax(x)


class Classifier(nn.Module):
    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self.dense_1 = linear(weights["dense_1"])
        self.dense_2 = linear(weights["dense_2"])
        self.dense_logits = linear(weights["dense_logits"])
        self.predictions = Softmax()

    def forward(self, x: np.ndarray) -> np.ndarray:
        x = nn.relu(self.dense_1(x))
        x = nn.relu(self.dense_2(x))
        return self.predictions(self.dense_logits(x))


def classifier(weights: Mapping[str, np.ndarray]) -> nn.Module:
    return Classifier(weights)


def linear(weight: np.ndarray) -> nn.Linear:
    layer = nn.Linear(*weight.shape)
    layer.weight[...] = weight
    layer.bias[...] = 0.0
    return layer


def optimizer(model: nn.Module) -> optim.Optimizer:
    return optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9, eps=1e-7)


def loss(model: nn.Module, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    of_the_label = model(x)[np.arange(len(y)), y]
    return -anp.mean(anp.log(anp.clip(of_the_label, 1e-7, 1.0)))


def predict(model: nn.Module, x: np.ndarray) -> np.ndarray:
    return model(x)
