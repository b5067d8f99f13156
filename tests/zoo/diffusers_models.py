"""Models of diffusers, made tiny: what denoises and what encodes."""

from __future__ import annotations

from typing import Any

import diffusers
import numpy as np
import torch.nn.functional as F
from zoo import Batch, Specimen

PIXELS = 16
BLOCKS = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}


def noisy(random: np.random.Generator, *, channels: int = 3) -> Batch:
    shape = (2, channels, PIXELS, PIXELS)
    noise = random.standard_normal(shape, np.float32)
    return random.standard_normal(shape, np.float32), noise, random.integers(0, 100, 2)


def described_noise(random: np.random.Generator) -> Batch:
    return *noisy(random), random.standard_normal((2, 6, 16), np.float32)


def pictures(random: np.random.Generator) -> Batch:
    return noisy(random)[:1]


def denoising(model: Any, x: Any, noise: Any, when: Any) -> Any:
    return F.mse_loss(model(x, when).sample, noise)


def conditional_denoising(model: Any, x: Any, noise: Any, when: Any, words: Any) -> Any:
    return F.mse_loss(model(x, when, encoder_hidden_states=words).sample, noise)


def reconstruction(model: Any, x: Any) -> Any:
    return F.mse_loss(model(x, sample_posterior=False).sample, x)


def quantized(model: Any, x: Any) -> Any:
    output = model(x)
    return F.mse_loss(output.sample, x) + output.commit_loss.mean()


def unet() -> Any:
    return diffusers.UNet2DModel(
        sample_size=PIXELS,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        **BLOCKS,
    ).train()


def conditional_unet() -> Any:
    return diffusers.UNet2DConditionModel(
        sample_size=PIXELS,
        in_channels=3,
        out_channels=3,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        **BLOCKS,
    ).train()


def autoencoder() -> Any:
    return diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        sample_size=PIXELS,
        **BLOCKS,
    ).train()


def quantizer() -> Any:
    return diffusers.VQModel(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        num_vq_embeddings=16,
        **BLOCKS,
    ).train()


def transformer() -> Any:
    return diffusers.DiTTransformer2DModel(
        sample_size=PIXELS,
        in_channels=3,
        out_channels=3,
        num_layers=1,
        num_attention_heads=2,
        attention_head_dim=8,
        patch_size=4,
        norm_num_groups=4,
    ).train()


def denoising_a_class(model: Any, x: Any, noise: Any, when: Any) -> Any:
    return F.mse_loss(model(x, timestep=when, class_labels=when % 3).sample, noise)


SPECIMENS = [
    Specimen("unet", unet, noisy, denoising),
    Specimen("conditional-unet", conditional_unet, described_noise, conditional_denoising),
    Specimen("autoencoder-kl", autoencoder, pictures, reconstruction),
    Specimen("vq-autoencoder", quantizer, pictures, quantized),
    Specimen("dit", transformer, noisy, denoising_a_class),
]
