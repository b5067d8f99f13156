"""Training loops of other libraries, in a process of their own: they import much, torchvision too."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import required

sys.path.insert(0, str(Path(__file__).parent))  # for what stands beside the tests
sys.path.insert(0, str(Path(__file__).parents[1] / "torch"))  # for same_bits.py
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))  # for code_blocks.py

os.environ["HF_HUB_OFFLINE"] = "1"  # every model is made from a configuration

PACKAGES = ("torch", "lightning", "accelerate", "transformers")
if "torch" not in required() and not all(map(importlib.util.find_spec, PACKAGES)):
    collect_ignore_glob = ["test_*.py"]
else:
    import torch
    import torchvision_ops

    declared = torchvision_ops.declare()  # ahead of what imports torchvision

    @pytest.fixture(autouse=True)
    def accelerate_starts_anew() -> Iterator[None]:
        """Its states are the process's."""
        yield
        from accelerate.state import AcceleratorState, GradientState, PartialState

        for state in (AcceleratorState, PartialState, GradientState):
            state._shared_state.clear()

    @pytest.fixture(autouse=True)
    def one_thread() -> Iterator[None]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        torch.manual_seed(0)
        yield
        torch.set_num_threads(threads)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore::ampbridge.errors.SimulationWarning")
    for ignored in (
        "The '\\w+_dataloader' does not have many workers",  # Lightning's advice
        "The number of training batches",
        "`isinstance\\(treespec, LeafSpec\\)` is deprecated",  # Lightning 2.6 with torch 2.13
    ):
        config.addinivalue_line("filterwarnings", f"ignore:{ignored}")
