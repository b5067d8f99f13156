"""Scripts with torch's own AMP calls, run as they are and as ``port --to ampbridge`` rewrites them.

Both run on this CPU, the first natively: scales, skipped steps and weights are the same, bit by bit.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ampbridge_port.rewriting import rewrite

GUIDE = """
import torch
import torch.nn.functional as F

scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=4)
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast(device_type="cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    record(scaler.get_scale())
"""

CLIPPED = """
from torch import amp
import torch

class Trainer:
    def __init__(self, use_amp=True):
        self.scaler = amp.GradScaler("cpu", 2.0**14, 2.0, 0.5, 4, enabled=use_amp)
        self.use_amp = use_amp

    def autocast(self):
        return amp.autocast("cpu", torch.float16, enabled=self.use_amp)

    def step(self, x, y):
        with self.autocast():
            loss = torch.nn.functional.mse_loss(model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if self.scaler.is_enabled():
            record(self.scaler.get_scale(), self.scaler.get_growth_factor())

trainer = Trainer()
for x, y in batches:
    trainer.step(x, y)
"""

ACCUMULATED = """
from torch.amp import GradScaler, autocast
import torch

scaler = GradScaler("cpu", init_scale=2.0**14, growth_interval=3)
for i, (x, y) in enumerate(batches):
    with autocast("cpu", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(model(x), y) / 3
    scaler.scale(loss).backward()
    if (i + 1) % 3 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        record(scaler.get_scale())
"""

# Batches whose gradients overflow float16. Without a scaler's check the weights would, too.
SPIKES = (3, 4, 17)

SCRIPTS = {"guide": GUIDE, "clipped": CLIPPED, "accumulated": ACCUMULATED}


def run(script: str) -> tuple[list[Any], list[torch.Tensor]]:
    """What ``script`` recorded, and the weights that it came to."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(7)
    batches = []
    for number in range(30):
        x = torch.randn(8, 16, generator=generator)
        batches.append((x, x[:, :4] * (1e6 if number in SPIKES else 1.0)))
    recorded: list[Any] = []
    names = {
        "model": model,
        "optimizer": optimizer,
        "batches": batches,
        "record": lambda *values: recorded.append(values),
    }
    exec(compile(script, "<script>", "exec"), names)
    return recorded, [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_rewritten_script_trains_as_before(script: str) -> None:
    rewriting = rewrite(script)
    assert not rewriting.findings
    assert "torch.amp" not in rewriting.text.replace("from torch.amp import", "")
    before, weights = run(script)
    # What runs low on a GPU natively is rounded by us on this CPU, unless kernels are asked for.
    native = rewriting.text.replace(
        "ampbridge.Policy(", 'partial(ampbridge.Policy, execution="native")('
    )
    after, same_weights = run("from functools import partial\n" + native)
    assert after == before
    assert all(torch.equal(a, b) for a, b in zip(same_weights, weights, strict=True))


def test_the_scripts_meet_overflows() -> None:
    recorded, _ = run(GUIDE)
    scales = [scale for (scale,) in recorded]
    assert min(scales) < 2.0**14 < max(scales)
