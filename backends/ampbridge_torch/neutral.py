"""The part of ``ampbridge.neutral`` that needs torch; see ``ampbridge.neutral.native.Native``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

from ampbridge.neutral.modules import Layers, evaluating
from ampbridge.neutral.weights import Weights, numbered
from ampbridge_torch.step.gradients import native_array, parameters

OPTIMIZERS: Mapping[str, Callable[..., optim.Optimizer]] = {
    "adamw": optim.AdamW,
    "adam": optim.Adam,
    "sgd": optim.SGD,
}


# -- models


class Transformer(nn.Module):
    def __init__(self, weights: Weights, heads: int, causal: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(from_numpy(weights["embedding"]), False)
        self.positions = None
        if "positions" in weights:
            self.positions = nn.Parameter(from_numpy(weights["positions"]))
        blocks = range(1, len(numbered(weights, "query")) + 1)
        self.blocks = nn.ModuleList(Block(weights, number, heads, causal) for number in blocks)
        self.norm = nn.LayerNorm(weights["embedding"].shape[1])
        self.head = linear(weights, "head")
        self.causal = causal

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x if self.causal else x.mean(dim=1)))
        return logits


class Block(nn.Module):
    def __init__(self, weights: Weights, number: int, heads: int, causal: bool) -> None:
        super().__init__()
        width = weights["embedding"].shape[1]
        self.norm1 = nn.LayerNorm(width)
        self.attention = attention(weights, number, heads)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            linear(weights, f"widen{number}"), nn.GELU(), linear(weights, f"narrow{number}")
        )
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        mask = None
        if self.causal:  # True where a token of (batch, tokens, width) would attend to a later one
            tokens = y.shape[1]
            mask = torch.ones(tokens, tokens, dtype=torch.bool, device=y.device).triu(1)
        y = self.attention(y, y, y, need_weights=False, attn_mask=mask, is_causal=self.causal)[0]
        x = x + y
        result: Tensor = x + self.feed_forward(self.norm2(x))
        return result


def linear(weights: Weights, name: str) -> nn.Linear:
    weight = weights[f"{name}.weight"]
    layer = nn.Linear(*weight.shape)
    bias = from_numpy(weights[f"{name}.bias"])
    layer.load_state_dict({"weight": from_numpy(weight.T), "bias": bias})
    return layer


def conv2d(weights: Weights, name: str, *, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    weight = weights[f"{name}.weight"]
    outputs, inputs, *kernel = weight.shape
    layer = nn.Conv2d(inputs, outputs, tuple(kernel), stride, padding, bias=False)
    layer.load_state_dict({"weight": from_numpy(weight)})
    return layer


_LAYERS = Layers(nn, linear, conv2d, nn.BatchNorm2d)
mlp, convnet, transformer = _LAYERS.mlp, _LAYERS.convnet, Transformer


def attention(weights: Weights, number: int, heads: int) -> nn.MultiheadAttention:
    layer = nn.MultiheadAttention(weights["embedding"].shape[1], heads, batch_first=True)
    inputs = [f"{name}{number}" for name in ("query", "key", "value")]  # one matrix in PyTorch
    output = f"output{number}"
    arrays = {
        "in_proj_weight": np.concatenate([weights[f"{n}.weight"].T for n in inputs]),
        "in_proj_bias": np.concatenate([weights[f"{n}.bias"] for n in inputs]),
        "out_proj.weight": weights[f"{output}.weight"].T,
        "out_proj.bias": weights[f"{output}.bias"],
    }
    layer.load_state_dict({name: from_numpy(array) for name, array in arrays.items()})
    return layer


def from_numpy(array: np.ndarray) -> Tensor:
    return torch.tensor(np.ascontiguousarray(array))


def forward(model: nn.Module, inputs: Sequence[Any]) -> Any:
    return model(*inputs)


def inference(model: nn.Module, x: Any) -> Any:
    like = next(model.parameters(), torch.empty(0))
    with evaluating(model, model.modules()), torch.no_grad():
        return model(tensor(x, like))


# -- optimizers


def optimizer(name: str, model: nn.Module, settings: Mapping[str, Any]) -> optim.Optimizer:
    return OPTIMIZERS[name](parameters(model), **settings)


def rates(optimizer: optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def set_rates(optimizer: optim.Optimizer, rates: Sequence[float]) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


# -- tensors and losses


def tensor(x: Any, like: Tensor) -> Tensor:
    if isinstance(x, Tensor):
        return x
    tensor: Tensor = native_array(np.asarray(x), like)
    return tensor


def is_integer(x: Tensor) -> bool:
    return not (x.dtype.is_floating_point or x.dtype.is_complex or x.dtype == torch.bool)


def at_hand(x: Tensor) -> np.ndarray | None:
    if torch.compiler.is_compiling() or type(x) is not Tensor or x.device.type != "cpu":
        return None
    try:
        return host(x)
    except RuntimeError:  # within torch.func's transforms, and of fake tensors
        return None


def host(x: Tensor | np.ndarray) -> np.ndarray:
    values: np.ndarray = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
    return values


def rows(x: Tensor, indices: np.ndarray) -> Tensor:
    return x[torch.from_numpy(indices).to(x.device)]


def cross_entropy(logits: Tensor, labels: Tensor, axis: int, ignore_index: int) -> Tensor:
    if logits.dim() > 1 and axis != 1:
        logits = logits.movedim(axis, 1)
    return F.cross_entropy(logits, labels.long(), ignore_index=ignore_index)


def mse_loss(prediction: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(prediction, target if target.is_floating_point() else target.float())
