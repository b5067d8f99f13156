"""The part of ``ampbridge.neutral`` that needs torch; see ``ampbridge.neutral.native.Native``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

from ampbridge.neutral import modules
from ampbridge.neutral.weights import Weights
from ampbridge_torch.step.gradients import native_array, parameters

OPTIMIZERS: Mapping[str, Callable[..., optim.Optimizer]] = {
    "adamw": optim.AdamW,
    "adam": optim.Adam,
    "sgd": optim.SGD,
}


class Block(modules.Block, nn.Module):
    """The block, as a module of torch."""

    def attended(self, x: Tensor) -> Tensor:
        mask = None
        if self.causal:  # True where a token would attend to a later one
            tokens = x.shape[1]
            mask = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        options = {"need_weights": False, "attn_mask": mask, "is_causal": self.causal}
        result: Tensor = self.attention(x, x, x, **options)[0]
        return result


class Transformer(modules.Transformer, nn.Module):
    """The model, as a module of torch."""


def from_numpy(array: np.ndarray) -> Tensor:
    return torch.tensor(np.ascontiguousarray(array))


class Native(modules.Native):
    """Modules and optimizers of torch."""

    layers, module_list = nn, nn.ModuleList
    batch_norm, layer_norm = nn.BatchNorm2d, nn.LayerNorm
    block_class, transformer_class = Block, Transformer

    def linear(self, weights: Weights, name: str) -> nn.Linear:
        weight = weights[f"{name}.weight"]
        layer = nn.Linear(*weight.shape)
        bias = from_numpy(weights[f"{name}.bias"])
        layer.load_state_dict({"weight": from_numpy(weight.T), "bias": bias})
        return layer

    def conv2d(self, weights: Weights, name: str, stride: int = 1, padding: int = 0) -> nn.Conv2d:
        weight = weights[f"{name}.weight"]
        outputs, inputs, *kernel = weight.shape
        layer = nn.Conv2d(inputs, outputs, tuple(kernel), stride, padding, bias=False)
        layer.load_state_dict({"weight": from_numpy(weight)})
        return layer

    def embedding(self, weights: Weights) -> nn.Embedding:
        values = from_numpy(weights["embedding"])
        layer: nn.Embedding = nn.Embedding.from_pretrained(values, freeze=False)
        return layer

    def parameter(self, values: np.ndarray) -> nn.Parameter:
        return nn.Parameter(from_numpy(values))

    def attention(self, weights: Weights, number: int, heads: int) -> nn.MultiheadAttention:
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

    def inference(self, model: nn.Module, x: Any) -> Any:
        like = next(model.parameters(), torch.empty(0))
        with modules.evaluating(model, model.modules()), torch.no_grad():
            return model(self.tensor(x, like))

    def optimizer(
        self, name: str, model: nn.Module, settings: Mapping[str, Any]
    ) -> optim.Optimizer:
        return OPTIMIZERS[name](parameters(model), **settings)

    def rates(self, optimizer: optim.Optimizer) -> list[float]:
        return [float(group["lr"]) for group in optimizer.param_groups]

    def set_rates(self, optimizer: optim.Optimizer, rates: Sequence[float]) -> None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def tensor(self, x: Any, like: Tensor) -> Tensor:
        if isinstance(x, Tensor):
            return x
        tensor: Tensor = native_array(np.asarray(x), like)
        return tensor

    def at_hand(self, x: Tensor) -> np.ndarray | None:
        if torch.compiler.is_compiling() or type(x) is not Tensor or x.device.type != "cpu":
            return None
        try:
            return self.host(x)
        except RuntimeError:  # within torch.func's transforms, and of fake tensors
            return None

    def host(self, x: Tensor | np.ndarray) -> np.ndarray:
        values: np.ndarray = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
        return values

    def rows(self, x: Tensor, indices: np.ndarray) -> Tensor:
        return x[torch.from_numpy(indices).to(x.device)]

    def cross_entropy(self, logits: Tensor, labels: Tensor, axis: int, ignore_index: int) -> Tensor:
        if logits.dim() > 1 and axis != 1:
            logits = logits.movedim(axis, 1)
        return F.cross_entropy(logits, labels.long(), ignore_index=ignore_index)

    def mse_loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(prediction, target if target.is_floating_point() else target.float())


native = Native()
