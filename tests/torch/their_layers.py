"""Functions as a package has them that knows nothing of ampbridge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

PRODUCTS: list[torch.dtype] = []
"""In which dtype each product ran, outside of compiled code."""


def fused_projection(x: Tensor, weight: Tensor) -> Tensor:
    """A product and an exponential, which have other rules by themselves."""
    product = torch.matmul(x, weight)
    if not torch.compiler.is_compiling():
        PRODUCTS.append(product.dtype)
    return torch.exp(product)


class FlashProduct(torch.autograd.Function):
    """With a backward of its own, as fused attention has."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        assert grad.dtype is x.dtype is weight.dtype
        return grad @ weight.T, x.T @ grad


def flash_product(x: Tensor, weight: Tensor) -> Tensor:
    return FlashProduct.apply(x, weight)


class Projection(nn.Module):
    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call, self.weight = call, nn.Parameter(0.1 * torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x, self.weight)
