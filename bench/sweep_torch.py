"""The torch side of sweep.py."""

from __future__ import annotations

import copy
from functools import partial

import torch
import torch.nn.functional as F
from models_of_others import ManyParameters, Task
from overhead_torch import POLICIES, bridged, loss_fn, made_by, native
from sweep import WIDTH, Makers, batch
from torch import nn


class Chain(nn.Module):
    """``count`` ops in a row."""

    def __init__(self, op: str, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(WIDTH))
        self.op, self.count = op, count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        op = {
            "relu": torch.relu,
            "linear": lambda x: F.linear(x, self.weight),
            "softmax": partial(torch.softmax, dim=-1),
        }[self.op]
        x = x * self.weight[0]
        for _ in range(self.count):
            x = op(x)
        return x


def makers(swept: str, count: int) -> Makers:
    """With a scaler, which goes over the parameters, or without."""
    x, y = (torch.from_numpy(array) for array in batch())
    if scaled := swept == "parameters":
        fresh = Task(ManyParameters(count), lambda model, x: model(x), (x[0],))
    else:
        fresh = Task(Chain(swept, count), loss_fn, (x, y))
    made = {"native loop": partial(native, scaled=scaled)}
    for name, policy in POLICIES.items():
        made[f"ampbridge, {name}"] = partial(bridged, policy=policy, scaled=scaled)
    made["native loop, again"] = made["native loop"]
    return {name: partial(made_by, maker, copy.deepcopy(fresh)) for name, maker in made.items()}
