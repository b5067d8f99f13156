"""Picture models of timm, made tiny."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import timm
import torch.nn.functional as F
from zoo import Batch, Specimen

PIXELS = 32
CLASSES = 5


def pictures(random: np.random.Generator) -> Batch:
    shape = (4, 3, PIXELS, PIXELS)
    return random.standard_normal(shape, np.float32), random.integers(0, CLASSES, 4)


def cross_entropy(model: Any, x: Any, y: Any) -> Any:
    return F.cross_entropy(model(x), y)


def made(name: str, **settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        return timm.create_model(name, num_classes=CLASSES, **settings).train()

    return build


def specimen(name: str, kind: str, **settings: Any) -> Specimen:
    return Specimen(f"timm-{name}", made(kind, **settings), pictures, cross_entropy)


VIT = {"img_size": PIXELS, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
SWIN = {
    "img_size": PIXELS,
    "patch_size": 4,
    "window_size": 4,
    "embed_dim": 16,
    "depths": (1, 1),
    "num_heads": (2, 4),
}

SPECIMENS = [
    specimen("resnet", "resnet10t", channels=(8, 8, 16, 16), stem_width=8),
    specimen("densenet", "densenet121", growth_rate=8, block_config=(2, 2)),
    specimen("efficientnet", "test_efficientnet"),
    specimen("nfnet", "test_nfnet"),
    specimen("byobnet", "test_byobnet"),
    specimen("convnext", "convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 16, 24)),
    specimen("mambaout", "test_mambaout"),
    specimen("vit", "vit_tiny_patch16_224", **VIT),
    specimen("cait", "cait_xxs24_224", **VIT),
    specimen("eva02", "eva02_tiny_patch14_224", **VIT),
    specimen("xcit", "xcit_nano_12_p16_224", **VIT),
    specimen("coatnet", "test_coatnet", img_size=PIXELS),
    specimen("swinv2", "swinv2_tiny_window8_256", **SWIN),
]
