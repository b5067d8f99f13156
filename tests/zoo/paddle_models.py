"""Picture models of paddle.vision, as small as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
from paddle.vision import models
from zoo import Batch, Specimen

CLASSES = 5


def pictures(pixels: int, channels: int = 3) -> Callable[[np.random.Generator], Batch]:
    def batch(random: np.random.Generator) -> Batch:
        shape = (8, channels, pixels, pixels)
        return random.standard_normal(shape, np.float32), random.integers(0, CLASSES, 8)

    return batch


def cross_entropy(model: Any, x: Any, y: Any) -> Any:
    return paddle.nn.functional.cross_entropy(model(x), y)


def specimen(
    name: str,
    maker: Callable[..., Any],
    pixels: int = 64,
    channels: int = 3,
    **settings: Any,
) -> Specimen:
    def build() -> Any:
        model = maker(num_classes=CLASSES, **settings)
        model.train()
        return model

    return Specimen(name, build, pictures(pixels, channels), cross_entropy)


# Left out: alexnet and googlenet, which take pictures of 224 pixels alone; vgg, the larger residual ones,
# densenet and inception, for their size.
SPECIMENS = [
    specimen("lenet", models.LeNet, pixels=28, channels=1),
    specimen("mobilenet-v1", models.MobileNetV1, scale=0.1),
    specimen("mobilenet-v2", models.MobileNetV2, scale=0.25),
    specimen("mobilenet-v3-small", models.MobileNetV3Small, scale=0.25),
    specimen("mobilenet-v3-large", models.MobileNetV3Large, scale=0.25),
    specimen("shufflenet-v2", models.shufflenet_v2_x0_25),
    specimen("shufflenet-v2-swish", models.ShuffleNetV2, scale=0.25, act="swish"),
    specimen("squeezenet-1.0", models.squeezenet1_0),
    specimen("squeezenet-1.1", models.squeezenet1_1),
]
