"""Picture models of keras.applications, by the functions that make them of any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import applications
from keras.src.applications import (  # the public names are of one size each
    densenet,
    efficientnet,
    efficientnet_v2,
    resnet,
)
from zoo import Batch, Specimen

CLASSES = 5
PIXELS = 32

cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def pictures(random: np.random.Generator) -> Batch:
    shape = (8, PIXELS, PIXELS, 3)
    return 64 * random.standard_normal(shape, np.float32) + 128, random.integers(0, CLASSES, 8)


def loss(model: Any, x: Any, y: Any) -> Any:
    return cross_entropy(y, model(x, training=True))


def specimen(called: str, maker: Callable[..., Any], **settings: Any) -> Specimen:
    def build() -> Any:
        return maker(
            weights=None,
            classes=CLASSES,
            input_shape=(PIXELS, PIXELS, 3),
            classifier_activation=None,
            **settings,
        )

    return Specimen(called, build, pictures, loss)


def residual(x: Any) -> Any:
    x = resnet.stack_residual_blocks_v1(x, 8, 1, stride1=1, name="conv2")
    return resnet.stack_residual_blocks_v1(x, 16, 1, name="conv3")


def residual_v2(x: Any) -> Any:
    x = resnet.stack_residual_blocks_v2(x, 8, 2, name="conv2")
    return resnet.stack_residual_blocks_v2(x, 16, 2, stride1=1, name="conv3")


SMALL = {"width_coefficient": 0.25, "depth_coefficient": 0.25, "default_size": PIXELS}

# Left out: vgg, xception and the two inceptions, which come in one size, of some 20 million weights;
# convnext, whose grouped convolutions Keras compiles anew in each eager call, and whose StochasticDepth
# fails under mixed_float16 by itself; the large mobilenet-v3, of the parts of the small one; nasnet, the
# smallest of which has hundreds of layers.
SPECIMENS = [
    specimen("mobilenet", applications.MobileNet, alpha=0.25),
    specimen("mobilenet-v2", applications.MobileNetV2, alpha=0.35),
    # A step that is skipped has dropped other units, and on JAX the steps that are not are compared.
    specimen("mobilenet-v3", applications.MobileNetV3Small, alpha=0.35, dropout_rate=0.0),
    specimen("efficientnet", efficientnet.EfficientNet, **SMALL),
    specimen("efficientnet-v2", efficientnet_v2.EfficientNetV2, **SMALL, name="efficientnetv2-b0"),
    specimen("densenet", densenet.DenseNet, blocks=[1, 2, 1, 1]),
    specimen("resnet", resnet.ResNet, stack_fn=residual, preact=False, use_bias=True),
    specimen("resnet-v2", resnet.ResNet, stack_fn=residual_v2, preact=True, use_bias=True),
]
