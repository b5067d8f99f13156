"""The part of ``ampbridge.neutral`` that needs NumPy; see ``ampbridge.neutral.native.Native``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np

from ampbridge.neutral import modules
from ampbridge.neutral.weights import BLOCK, Weights
from ampbridge_numpy import nn, optim
from ampbridge_numpy.autocast.casting import value_of
from ampbridge_numpy.functional import Array
from ampbridge_numpy.step.gradients import parameters


class Block(modules.Block, nn.Module):
    """The block, as a module of ``nn``."""


class Transformer(modules.Transformer, nn.Module):
    """The model, as a module of ``nn``."""


class Native(modules.Native):
    """Models of ``nn``, and optimizers of ``optim``."""

    layers, module_list, parameter = nn, list, nn.Parameter
    batch_norm, layer_norm = nn.BatchNorm2d, nn.LayerNorm
    block_class, transformer_class = Block, Transformer

    def linear(self, weights: Weights, name: str) -> nn.Linear:
        layer = nn.Linear(*weights[f"{name}.weight"].shape)
        layer.weight[...] = weights[f"{name}.weight"]
        layer.bias[...] = weights[f"{name}.bias"]
        return layer

    def conv2d(self, weights: Weights, name: str, stride: int = 1, padding: int = 0) -> nn.Conv2d:
        weight = weights[f"{name}.weight"]
        outputs, inputs, kernel, _ = weight.shape
        layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        layer.weight[...] = weight
        return layer

    def embedding(self, weights: Weights) -> nn.Embedding:
        layer = nn.Embedding(*weights["embedding"].shape)
        layer.weight[...] = weights["embedding"]
        return layer

    def attention(self, weights: Weights, number: int, heads: int) -> nn.MultiHeadAttention:
        layer = nn.MultiHeadAttention(weights["embedding"].shape[1], heads)
        for name in BLOCK[:4]:
            setattr(layer, name, self.linear(weights, f"{name}{number}"))
        return layer

    def inference(self, model: nn.Module, x: Any) -> Any:
        with modules.evaluating(model, [module for _, module in model.named_modules()]):
            return model(x)

    def optimizer(
        self, name: str, model: nn.Module, settings: Mapping[str, Any]
    ) -> optim.Optimizer:
        if name == "sgd":
            return optim.SGD(parameters(model), **settings)
        return optim.AdamW(parameters(model), **{"weight_decay": 0.0, **settings})

    def rates(self, optimizer: optim.Optimizer) -> list[float]:
        return [float(optimizer.lr)]

    def set_rates(self, optimizer: optim.Optimizer, rates: Sequence[float]) -> None:
        (optimizer.lr,) = rates

    def tensor(self, x: Any, like: Array) -> Array:
        return np.asarray(x) if isinstance(x, (list, tuple)) else x

    def at_hand(self, x: Array) -> np.ndarray:
        return self.host(x)

    def host(self, x: Array) -> np.ndarray:
        return np.asarray(value_of(x))

    def cross_entropy(self, logits: Array, labels: Array, axis: int, ignore_index: int) -> Array:
        return nn.cross_entropy(anp.moveaxis(logits, axis, -1), labels, ignore_index)

    def mse_loss(self, prediction: Array, target: Array) -> Array:
        return nn.mse_loss(prediction, target)


native = Native()
