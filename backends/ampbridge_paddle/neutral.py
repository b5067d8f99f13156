"""The part of ``ampbridge.neutral`` that needs Paddle; see ``ampbridge.neutral.native.Native``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ampbridge.neutral.modules import Layers, evaluating
from ampbridge.neutral.weights import BLOCK, Weights, numbered
from ampbridge_paddle._private import private
from ampbridge_paddle.step.gradients import native_array, parameters
from ampbridge_paddle.step.hybrid_groups import without_wrappers
from ampbridge_paddle.training_state import own_rate

# -- models


class Transformer(nn.Layer):
    def __init__(self, weights: Weights, heads: int, causal: bool) -> None:
        super().__init__()
        self.embedding = embedding(weights)
        self.positions = None
        if "positions" in weights:
            self.positions = self.create_parameter(list(weights["positions"].shape))
            self.positions.set_value(weights["positions"])
        blocks = range(1, len(numbered(weights, "query")) + 1)
        self.blocks = nn.LayerList([Block(weights, number, heads, causal) for number in blocks])
        self.norm = nn.LayerNorm(weights["embedding"].shape[1])
        self.head = linear(weights, "head")
        self.causal = causal

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x if self.causal else x.mean(axis=1)))


class Block(nn.Layer):
    def __init__(self, weights: Weights, number: int, heads: int, causal: bool) -> None:
        super().__init__()
        width = weights["embedding"].shape[1]
        query, key, value, output, widen, narrow = (
            linear(weights, f"{name}{number}") for name in BLOCK
        )
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiHeadAttention(width, heads)
        self.attention.q_proj, self.attention.k_proj = query, key
        self.attention.v_proj, self.attention.out_proj = value, output
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(widen, nn.GELU(), narrow)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, attn_mask=later_tokens(y) if self.causal else None)
        return x + self.feed_forward(self.norm2(x))


def later_tokens(x: Tensor) -> Tensor:
    """A mask with -inf where a token of (batch, tokens, width) would attend to a later one."""
    return paddle.triu(paddle.full([x.shape[1], x.shape[1]], -math.inf), 1)


def linear(weights: Weights, name: str) -> nn.Linear:
    weight = weights[f"{name}.weight"]
    layer = nn.Linear(*weight.shape)
    layer.weight.set_value(weight)
    layer.bias.set_value(weights[f"{name}.bias"])
    return layer


def conv2d(weights: Weights, name: str, **geometry: int) -> nn.Conv2D:
    weight = weights[f"{name}.weight"]
    outputs, inputs, *kernel = weight.shape
    layer = nn.Conv2D(inputs, outputs, kernel, bias_attr=False, **geometry)
    layer.weight.set_value(weight)
    return layer


_LAYERS = Layers(nn, linear, conv2d, nn.BatchNorm2D)
mlp, convnet, transformer = _LAYERS.mlp, _LAYERS.convnet, Transformer


def embedding(weights: Weights) -> nn.Embedding:
    layer = nn.Embedding(*weights["embedding"].shape)
    layer.weight.set_value(weights["embedding"])
    return layer


def forward(model: nn.Layer, inputs: Sequence[Any]) -> Any:
    if paddle.in_dynamic_mode():
        return model(*inputs)
    # In a traced program control flow of the model's own becomes the program's.
    return private("paddle.jit.dy2static.convert_call_func.convert_call")(model)(*inputs)


def inference(model: nn.Layer, x: Any) -> Any:
    with evaluating(model, model.sublayers(include_self=True)), paddle.no_grad():
        return model(native_array(x, model.parameters()))


# -- optimizers


def optimizer(
    name: str, model: nn.Layer, settings: Mapping[str, Any]
) -> paddle.optimizer.Optimizer:
    rate, trained = settings["lr"], parameters(model)
    if name == "sgd":
        decay = settings["weight_decay"] or None
        if not settings["momentum"]:
            return paddle.optimizer.SGD(rate, parameters=trained, weight_decay=decay)
        return paddle.optimizer.Momentum(
            rate,
            settings["momentum"],
            parameters=trained,
            use_nesterov=settings["nesterov"],
            weight_decay=decay,
        )
    first, second = settings["betas"]
    adam = {"beta1": first, "beta2": second, "epsilon": settings["eps"], "parameters": trained}
    if name == "adam":
        return paddle.optimizer.Adam(rate, **adam)
    return paddle.optimizer.AdamW(rate, weight_decay=settings["weight_decay"], **adam)


def rates(optimizer: Any) -> list[float] | None:
    rate = own_rate(without_wrappers(optimizer))
    return None if rate is None else [rate]


def set_rates(optimizer: Any, rates: Sequence[float]) -> None:
    (rate,) = rates
    without_wrappers(optimizer).set_lr(rate)


# -- tensors and losses


def tensor(x: Any, like: Tensor) -> Tensor:
    return native_array(np.asarray(x) if isinstance(x, (list, tuple)) else x, [like])


def is_integer(x: Tensor) -> bool:
    return "int" in str(x.dtype)


def at_hand(x: Tensor) -> np.ndarray | None:
    return host(x) if paddle.in_dynamic_mode() and x.place.is_cpu_place() else None


def host(x: Any) -> np.ndarray:
    return np.asarray(x)


def rows(x: Tensor, indices: np.ndarray) -> Tensor:
    return paddle.index_select(x, native_array(indices, ()))


def cross_entropy(logits: Tensor, labels: Tensor, axis: int, ignore_index: int) -> Tensor:
    labels = labels.astype("int64")
    # "mean" would wait for the device, and be 0 where no label counts.
    losses = F.cross_entropy(logits, labels, ignore_index=ignore_index, reduction="none", axis=axis)
    return losses.sum() / (labels != ignore_index).astype(losses.dtype).sum()


def mse_loss(prediction: Tensor, target: Tensor) -> Tensor:
    if not target.is_floating_point():
        target = target.astype(prediction.dtype)
    return F.mse_loss(prediction, target)
