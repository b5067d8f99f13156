"""What a weight and AdamW's two moments take between steps, by torch's own count of its memory."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

import ampbridge as amp

WEIGHTS = 512 * 512


@pytest.mark.parametrize(
    ("masters", "slots", "expected"),
    [
        ("float32", "float32", 6 + 8),
        ("kahan", "float32", 4 + 8),
        ("stochastic", "float32", 2 + 8),
        ("float32", "bfloat16", 6 + 4),
        ("kahan", "bfloat16", 4 + 4),
        ("stochastic", "bfloat16", 2 + 4),
        (None, "bfloat16", 2 + 4),
        (None, "float32", 2 + 4),  # torch's slots are as low as their weights
    ],
)
@pytest.mark.filterwarnings("ignore:masters=None on torch")
def test_bytes_of_a_weight(masters: Any, slots: Any, expected: int) -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    model = nn.Linear(512, 512, bias=False, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    policy = amp.Policy("O2", "bfloat16", masters=masters, slots=slots)
    step = amp.train_step(
        lambda model, x: model(x).square().mean(), model, optimizer, policy=policy
    )
    for _ in range(2):
        step(torch.ones(2, 512, device="cuda"))
    gc.collect()
    taken = (torch.cuda.memory_allocated() - before) / WEIGHTS
    assert taken == pytest.approx(expected, abs=0.05)
