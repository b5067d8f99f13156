"""The lens on PyTorch: twelve planted faults located and cured, by torch's kernels and simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from planted_faults import FAULTS, Fault, Forward, assert_located_and_cured
from torch import Tensor, nn


class Layer(nn.Module):
    """Weights, parts and a function."""

    def __init__(
        self, function: Forward, weights: Mapping[str, np.ndarray], parts: Mapping[str, nn.Module]
    ) -> None:
        super().__init__()
        self.function = function
        for name, values in weights.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(values)))
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class TorchKit:
    """Functions of torch, and modules."""

    def __init__(self, device: str) -> None:
        self._device = device

    def __getattr__(self, op: str) -> Callable[..., Tensor]:
        return getattr(torch, op)

    def layer(
        self,
        forward: Forward,
        weights: Mapping[str, np.ndarray] = {},
        parts: Mapping[str, Any] = {},
    ) -> Layer:
        return Layer(forward, weights, parts).to(self._device)

    @staticmethod
    def sum(x: Tensor, axis: int | None = None) -> Tensor:
        return torch.sum(x) if axis is None else torch.sum(x, axis, keepdim=True)

    @staticmethod
    def mean(x: Tensor, axis: int | None = None) -> Tensor:
        return torch.mean(x) if axis is None else torch.mean(x, axis, keepdim=True)

    @staticmethod
    def transpose(x: Tensor) -> Tensor:
        return x.T


@pytest.mark.parametrize("execution", ["native", "simulated"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_located_and_cured(fault: Fault, execution: str, device: str) -> None:
    if device == "cuda" and execution == "simulated":
        pytest.skip("CUDA has its kernels")
    fault = fault._replace(policy=fault.policy.replace(execution=execution))
    kit = TorchKit(device)
    assert_located_and_cured(kit, fault)
