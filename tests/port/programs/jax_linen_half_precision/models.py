"""A small residual net of linen, in the dtype that it is made with."""

from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import linen as nn


class Block(nn.Module):
    filters: int
    conv: Any
    norm: Any

    @nn.compact
    def __call__(self, x):
        y = nn.relu(self.norm()(self.conv(self.filters, (3, 3))(x)))
        y = self.norm(scale_init=nn.initializers.zeros_init())(self.conv(self.filters, (3, 3))(y))
        return nn.relu(x + y)


class ResNet(nn.Module):
    blocks: int
    num_classes: int
    num_filters: int = 64
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, train: bool = True):
        conv = partial(nn.Conv, use_bias=False, dtype=self.dtype)
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9, dtype=self.dtype)
        x = conv(self.num_filters, (7, 7), (2, 2))(x)
        for _ in range(self.blocks):
            x = Block(self.num_filters, conv, norm)(x)
        x = nn.Dense(self.num_classes, dtype=self.dtype)(jnp.mean(x, axis=(1, 2)))
        return jnp.asarray(x, self.dtype)


ResNetS = partial(ResNet, blocks=4)
ResNetL = partial(ResNet, blocks=16)
