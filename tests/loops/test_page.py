"""The blocks of docs/adopters.md run as they stand, in a process that has imported their libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import transformers
from code_blocks import BLOCKS, Block
from lightning.pytorch.demos.boring_classes import BoringModel
from torch import nn
from torch.nn.functional import mse_loss, softplus
from torch.optim import AdamW
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from ampbridge_torch.lightning import AmpBridge

PAGE = [block for block in BLOCKS if block.document == "docs/adopters.md"]


def taken_for_granted() -> dict[str, Any]:
    """The reader's own names."""
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 1))
    optimizer = AdamW(model.parameters(), 0.01)
    x = torch.randn(16, 6)
    y = x.sum(1, keepdim=True)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": StepLR(optimizer, 1, 0.5),
        "x": x,
        "y": y,
        "loader": DataLoader(TensorDataset(x, y), batch_size=4),
        "mse_loss": mse_loss,
    }


def of_the_gan() -> dict[str, Any]:
    return {
        "L": L,
        "torch": torch,
        "softplus": softplus,
        "AdamW": AdamW,
        "StepLR": StepLR,
        "AmpBridge": AmpBridge,
        "make_generator": lambda: nn.Linear(6, 6),
        "make_critic": lambda: nn.Linear(6, 1),
        "images": DataLoader(torch.randn(16, 6), batch_size=4),
    }


def of_the_fabric() -> dict[str, Any]:
    return {**taken_for_granted(), "L": L}


def of_the_language_model() -> dict[str, Any]:
    sizes = {"vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    tokens = torch.randint(32, (24, 8))
    return {
        "model": transformers.GPT2LMHeadModel(config),
        "dataset": [{"input_ids": row, "labels": row} for row in tokens],
    }


NAMES = {
    "import lightning as L": lambda: {"module": BoringModel()},
    "class Gan(L.LightningModule):": of_the_gan,
    "from ampbridge_torch.lightning import AmpBridge": of_the_fabric,
    "from ampbridge_torch.accelerate import Accelerator": taken_for_granted,
    "from transformers import TrainingArguments": of_the_language_model,
    "import torch": taken_for_granted,
}


@pytest.mark.parametrize("block", PAGE, ids=lambda block: block.key[1])
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
@pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX`")
def test_it_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block.code, block.document, "exec"), NAMES[block.key[1]]())


def test_the_names_are_those_of_blocks_that_are_there() -> None:
    assert NAMES.keys() == {block.key[1] for block in PAGE}
