"""Scripts for Accelerate and Lightning, run as they are and as ``port --to ampbridge`` rewrites them.

In bfloat16 both run on this CPU: losses and weights are the same, bit by bit. In float16, which these
libraries refuse on a CPU, the rewritten script trains as ``train_step`` does under its recipe.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn
from torch.nn.functional import mse_loss

import ampbridge as amp
from ampbridge_port import read
from ampbridge_port.rewriting import rewrite

ACCELERATE = """
from accelerate import Accelerator
from torch.nn.functional import mse_loss

accelerator = Accelerator(mixed_precision="bf16", cpu=True)
model, optimizer = accelerator.prepare(model, optimizer)
for x, y in batches:
    loss = mse_loss(model(x), y)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    record(loss.item())
"""

FABRIC = """
from lightning.fabric import Fabric
from torch.nn.functional import mse_loss

fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
model, optimizer = fabric.setup(model, optimizer)
for x, y in batches:
    loss = mse_loss(model(x), y)
    fabric.backward(loss)
    fabric.clip_gradients(model, optimizer, max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad()
    record(loss.item())
"""

TRAINER = """
import lightning.pytorch as pl
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = mse_loss(self.net(x), y)
        record(loss.item())
        return loss

    def configure_optimizers(self):
        return optimizer


trainer = pl.Trainer(
    max_epochs=1,
    accelerator="cpu",
    precision="bf16-mixed",
    gradient_clip_val=0.5,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Module(), DataLoader(batches, batch_size=None))
"""

SCRIPTS = {"accelerate": ACCELERATE, "fabric": FABRIC, "trainer": TRAINER}


def run(script: str, **names: Any) -> tuple[list[float], list[torch.Tensor]]:
    """What ``script`` recorded, and the weights that it came to."""
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()  # its states are the process's
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(7)
    inputs = [torch.randn(8, 16, generator=generator) for _ in range(8)]
    recorded: list[float] = []
    names |= {
        "model": model,
        "optimizer": optimizer,
        "batches": [(x, x[:, :4]) for x in inputs],
        "record": recorded.append,
    }
    exec(compile(script, "<script>", "exec"), names)
    return recorded, [parameter.detach().float() for parameter in model.parameters()]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_rewritten_script_trains_as_before(name: str) -> None:
    rewriting = rewrite(SCRIPTS[name])
    assert not rewriting.findings
    # What runs low on a GPU natively is rounded by us on this CPU, unless kernels are asked for.
    policy = 'ampbridge.Policy("O1", "bfloat16", execution="native")'
    native = "import ampbridge\n" + rewriting.text.replace('"O1:bfloat16"', policy)
    assert policy in native
    before, weights = run(SCRIPTS[name])
    after, same_weights = run(native)
    assert (len(after), after) == (8, before)
    assert all(torch.equal(a, b) for a, b in zip(same_weights, weights, strict=True))


@pytest.mark.parametrize("name", SCRIPTS)
def test_in_float16_it_trains_as_its_recipe_says(name: str) -> None:
    script = SCRIPTS[name].replace("bf16-mixed", "16-mixed").replace('"bf16"', '"fp16"')
    recipe = read(script.replace('"cpu"', '"cuda"').replace("cpu=True", "cpu=False")).recipe
    assert recipe.policy == amp.Policy("O1")
    rewriting = rewrite(script)
    assert not rewriting.findings
    after, weights = run(rewriting.text)
    losses = []

    def train(model: Any, optimizer: Any, batches: Any) -> None:
        step = amp.train_step(
            lambda model, x, y: mse_loss(model(x), y), model, optimizer, recipe=recipe
        )
        losses.extend(float(step(x, y).loss) for x, y in batches)
        amp.undecorate(model, optimizer)

    _, expected = run("train(model, optimizer, batches)", train=train)
    torch.testing.assert_close(after, losses, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(weights, expected, rtol=1e-3, atol=1e-4)
