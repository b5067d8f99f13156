"""Workloads of torch from outside: models of transformers and diffusers, with random weights; and many
small parameters, whose kernels cost next to nothing, so that a step's time is that of its host code.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import torchvision_ops

_declared = torchvision_ops.declare()  # ahead of what imports torchvision


class Task(NamedTuple):
    """What is trained: ``loss_fn(model, *batch)`` is the loss."""

    model: nn.Module
    loss_fn: Any
    batch: tuple[Tensor, ...]


def bert() -> Task:
    """An encoder of two layers, 41 parameters, that classifies 4 x 32 tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=1000,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        num_labels=4,
    )
    tokens = torch.randint(0, 1000, (4, 32))
    return Task(BertForSequenceClassification(config), labelled_loss, (tokens, tokens[:, 0] % 4))


def llama() -> Task:
    """A decoder of two layers that learns the next token of 4 x 32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    tokens = torch.randint(0, 1000, (4, 32))
    return Task(LlamaForCausalLM(config), labelled_loss, (tokens, tokens))


def unet() -> Task:
    """A UNet with attention that denoises 4 images of 32 x 32."""
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return Task(model, denoising_loss, (torch.randn(4, 3, 32, 32), torch.arange(4)))


class ManyParameters(nn.Module):
    """1,000 parameters of 16 numbers each, of which two ops make the loss."""

    def __init__(self, count: int = 1000) -> None:
        super().__init__()
        self.each = nn.ParameterList([torch.randn(16) for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        return (torch.cat(list(self.each)).reshape(-1, 16) * x).sum()


def many() -> Task:
    return Task(ManyParameters(), lambda model, x: model(x), (torch.randn(16),))


def labelled_loss(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    return model(tokens, labels=labels).loss


def denoising_loss(model: nn.Module, images: Tensor, times: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(images, times).sample, images)


TASKS = {"bert": bert, "llama": llama, "unet": unet, "many": many}
