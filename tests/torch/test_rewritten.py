"""Scripts with torch's own AMP calls, run as they are and as ``port --to ampbridge`` rewrites them.

Both run on this CPU, the first natively: scales, skipped steps and weights are the same, bit by bit.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from torch import nn

import ampbridge as amp
from ampbridge.port import Finding, read
from ampbridge.port.rewriting import rewrite

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


ACCELERATED = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="bf16", cpu=True)
model, optimizer = accelerator.prepare(model, optimizer)
for x, y in batches:
    output = model(x)
    loss = torch.nn.functional.mse_loss(output, y)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    record(loss.item())
"""


def run(script: str, **more: Any) -> tuple[list[Any], list[torch.Tensor]]:
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
        **more,
    }
    if "accelerate" in script:
        AcceleratorState._reset_state(reset_partial_state=True)
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


def by_hand(script: str, finding: Finding) -> str:
    """``script`` with the line of a finding written as its hint says, and a region around the model."""
    new, *others = finding.hint.removesuffix(".").split("; ")
    place = finding.place
    script = script.replace(place.text, new)
    for each in others:
        if each.startswith("with "):
            region = each.partition(": around")[0]
            script = script.replace(
                "    output = model(x)", f"    {region}:\n        output = model(x)"
            )
        elif each.startswith("scaler ="):
            line = next(line for line in script.splitlines() if new in line)
            script = script.replace(line, f"{line}\n{each}")
        elif each.startswith("scaler.step"):
            step = "scaler.step(optimizer); scaler.update()"
            script = script.replace("optimizer.step()", step)
    if new.startswith("scaler.unscale"):
        call = next(x for x in (finding.hint.partition("; ")[2].removesuffix(" stays."),))
        script = script.replace(new, f"scaler.unscale(optimizer)\n    {call}")
    return script


def changed_by_hand(script: str) -> str:
    findings = rewrite(script).findings
    assert findings
    for finding in findings:
        script = by_hand(script, finding)
    return "import ampbridge\n" + script


def test_an_accelerated_script_changed_as_is_told_trains_as_before() -> None:
    changed = changed_by_hand(ACCELERATED).replace(
        '"O1:bfloat16"', 'ampbridge.Policy("O1", "bfloat16", execution="native")'
    )
    before, weights = run(ACCELERATED)
    after, same_weights = run(changed)
    assert after == before
    assert all(torch.equal(a, b) for a, b in zip(same_weights, weights, strict=True))


def test_with_a_scaler_it_trains_as_its_recipe_says() -> None:
    """Accelerate itself refuses float16 on a CPU."""
    script = ACCELERATED.replace('"bf16", cpu=True', '"fp16", cpu=False')
    recipe = read(script).recipe
    assert (recipe.policy, recipe.clip_norm) == (amp.Policy("O1"), 1.0)
    changed = changed_by_hand(script).replace("cpu=False", "cpu=True")
    after, weights = run(changed)
    steps = """
import torch
step = ampbridge.train_step(
    lambda model, x, y: torch.nn.functional.mse_loss(model(x), y), model, optimizer, recipe=recipe
)
for x, y in batches:
    record(float(step(x, y).loss))
"""
    expected, same_weights = run(steps, ampbridge=amp, recipe=recipe)
    torch.testing.assert_close(after, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(weights, same_weights, rtol=1e-3, atol=1e-4)


def test_the_scripts_meet_overflows() -> None:
    recorded, _ = run(GUIDE)
    scales = [scale for (scale,) in recorded]
    assert min(scales) < 2.0**14 < max(scales)
