"""Loops of other libraries with a fused optimizer, whose kernel decides on the device whether to step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import accelerate
import pytest
import torch
import torchvision_ops
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import Tensor, optim

import ampbridge as amp
from ampbridge_torch.accelerate import Accelerator

declared = torchvision_ops.declare()  # ahead of Lightning, which imports torchvision
L = pytest.importorskip("lightning")

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    # Lightning 2.6 with torch 2.13
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
]

STEPS, OVERFLOW = 5, 2


@pytest.fixture(autouse=True)
def accelerate_starts_anew() -> Iterator[None]:
    """Its states are the process's, and other tests have an Accelerator on another device."""
    yield
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()


def trained(accelerator: Any) -> tuple[list[bool], float]:
    """Which steps were reported as skipped, and how far the schedule has moved."""
    model = torch.nn.Linear(8, 2)
    optimizer = optim.AdamW(model.parameters(), 0.1, fused=True)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    x = torch.randn(4, 8, device=accelerator.device)
    skipped = []
    for number in range(STEPS):
        loss = model(x).square().mean() * (math.inf if number == OVERFLOW else 1.0)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        skipped.append(accelerator.optimizer_step_was_skipped)
    return skipped, scheduler.scheduler.last_epoch


def test_accelerate_tells_the_skip_of_a_fused_kernel() -> None:
    """accelerate#4242, which is open with the version that is pinned."""
    kwargs = [accelerate.utils.GradScalerKwargs(init_scale=1024.0)]
    theirs = accelerate.Accelerator(mixed_precision="fp16", kwargs_handlers=kwargs)
    assert theirs.device.type == "cuda"
    assert trained(theirs) == ([False] * STEPS, STEPS)
    for state in (
        accelerate.state.AcceleratorState,
        accelerate.state.PartialState,
        accelerate.state.GradientState,
    ):
        state._shared_state.clear()
    ours = Accelerator("O1", scaler=amp.GradScaler(1024.0))
    assert trained(ours) == ([number == OVERFLOW for number in range(STEPS)], STEPS - 1)
    assert ours.scaler.loss_scale == 512.0


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_the_trainer_counts_what_a_fused_kernel_skips(policy: str) -> None:
    from lightning.pytorch.demos.boring_classes import BoringModel

    from ampbridge_torch.lightning import AmpBridge, ScaleLogs

    class Overflows(BoringModel):
        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            return self.step(batch) * (math.inf if batch_idx == OVERFLOW else 1.0)

        def configure_optimizers(self) -> Any:
            optimizer = optim.AdamW(self.parameters(), 0.1, fused=True)
            scheduler = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    model, plugin = Overflows(), AmpBridge(policy, scaler=amp.GradScaler(1024.0))
    trainer = L.Trainer(
        plugins=[plugin],
        callbacks=[ScaleLogs()],
        gradient_clip_val=0.1,
        accelerator="gpu",
        devices=1,
        max_epochs=1,
        limit_train_batches=STEPS,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model)
    assert isinstance(plugin._last_applied, Tensor)  # the host was not told
    assert (plugin.steps, plugin.skipped_steps) == (STEPS, 1)
    assert trainer.callback_metrics["loss_scale"].item() == 512.0
    assert model.lr_schedulers().last_epoch == STEPS - 1
