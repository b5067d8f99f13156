"""The part of ``ampbridge.neutral`` that needs Paddle; see ``ampbridge.neutral.native.Native``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ampbridge.neutral import modules
from ampbridge.neutral.weights import BLOCK, Weights
from ampbridge_paddle._private import private
from ampbridge_paddle.step.gradients import native_array, parameters
from ampbridge_paddle.step.hybrid_groups import without_wrappers
from ampbridge_paddle.training_state import own_rate


class Block(modules.Block, nn.Layer):
    """The block, as a layer of Paddle."""

    def attended(self, x: Tensor) -> Tensor:
        mask = None
        if self.causal:  # -inf where a token would attend to a later one
            mask = paddle.triu(paddle.full([x.shape[1], x.shape[1]], -math.inf), 1)
        return self.attention(x, attn_mask=mask)


class Transformer(modules.Transformer, nn.Layer):
    """The model, as a layer of Paddle."""


class Native(modules.Native):
    """Layers and optimizers of Paddle."""

    layers, module_list = nn, nn.LayerList
    batch_norm, layer_norm = nn.BatchNorm2D, nn.LayerNorm
    block_class, transformer_class = Block, Transformer

    def linear(self, weights: Weights, name: str) -> nn.Linear:
        weight = weights[f"{name}.weight"]
        layer = nn.Linear(*weight.shape)
        layer.weight.set_value(weight)
        layer.bias.set_value(weights[f"{name}.bias"])
        return layer

    def conv2d(self, weights: Weights, name: str, stride: int = 1, padding: int = 0) -> nn.Conv2D:
        weight = weights[f"{name}.weight"]
        outputs, inputs, *kernel = weight.shape
        layer = nn.Conv2D(inputs, outputs, kernel, stride, padding, bias_attr=False)
        layer.weight.set_value(weight)
        return layer

    def embedding(self, weights: Weights) -> nn.Embedding:
        layer = nn.Embedding(*weights["embedding"].shape)
        layer.weight.set_value(weights["embedding"])
        return layer

    def parameter(self, values: np.ndarray) -> Tensor:
        initial = nn.initializer.Assign(values)
        return paddle.create_parameter(values.shape, "float32", default_initializer=initial)

    def attention(self, weights: Weights, number: int, heads: int) -> nn.MultiHeadAttention:
        layer = nn.MultiHeadAttention(weights["embedding"].shape[1], heads)
        parts = ("q_proj", "k_proj", "v_proj", "out_proj")
        for part, name in zip(parts, BLOCK[:4], strict=True):
            setattr(layer, part, self.linear(weights, f"{name}{number}"))
        return layer

    def forward(self, model: nn.Layer, inputs: Sequence[Any]) -> Any:
        if paddle.in_dynamic_mode():
            return model(*inputs)
        # In a traced program control flow of the model's own becomes the program's.
        return private("paddle.jit.dy2static.convert_call_func.convert_call")(model)(*inputs)

    def inference(self, model: nn.Layer, x: Any) -> Any:
        with modules.evaluating(model, model.sublayers(include_self=True)), paddle.no_grad():
            return model(native_array(x, model.parameters()))

    def optimizer(
        self, name: str, model: nn.Layer, settings: Mapping[str, Any]
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

    def rates(self, optimizer: Any) -> list[float] | None:
        rate = own_rate(without_wrappers(optimizer))
        return None if rate is None else [rate]

    def set_rates(self, optimizer: Any, rates: Sequence[float]) -> None:
        (rate,) = rates
        without_wrappers(optimizer).set_lr(rate)

    def tensor(self, x: Any, like: Tensor) -> Tensor:
        return native_array(np.asarray(x) if isinstance(x, (list, tuple)) else x, [like])

    def at_hand(self, x: Tensor) -> np.ndarray | None:
        return self.host(x) if paddle.in_dynamic_mode() and x.place.is_cpu_place() else None

    def rows(self, x: Tensor, indices: np.ndarray) -> Tensor:
        return paddle.index_select(x, native_array(indices, ()))

    def cross_entropy(self, logits: Tensor, labels: Tensor, axis: int, ignore_index: int) -> Tensor:
        labels = labels.astype("int64")
        # "mean" would wait for the device, and be 0 where no label counts.
        losses = F.cross_entropy(
            logits, labels, ignore_index=ignore_index, reduction="none", axis=axis
        )
        return losses.sum() / (labels != ignore_index).astype(losses.dtype).sum()

    def mse_loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        if not target.is_floating_point():
            target = target.astype(prediction.dtype)
        return F.mse_loss(prediction, target)


native = Native()
