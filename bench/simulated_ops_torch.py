"""The torch side of simulated_ops.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1] / "tests" / "virtual_cuda"
sys.path.insert(0, str(HERE))


def runs(gpu: bool, ops: list[str] | None) -> dict[tuple[str, str], Any]:
    """Each list set and dtype; of all ops, or of some."""
    if not gpu:
        from ampbridge_rehearse import virtual_cuda

        virtual_cuda.install()
    import compared
    import torch

    chosen = None if ops is None else frozenset(ops)
    found = {run: compared.findings(*run, chosen) for run in compared.RUNS}
    torch.cuda.synchronize()  # raises if a kernel has failed, after which every op is refused
    return found


def machine(gpu: bool) -> str:
    import torch

    device = torch.cuda.get_device_name() if gpu else "the virtual CUDA device"
    return f"torch {torch.__version__}, {device}"


def reasons() -> dict[str, str]:
    """Op -> why it differs on the virtual device."""
    named = json.loads((HERE / "differing_ops.json").read_text("utf-8"))
    return {op: ", ".join(sorted(set(kinds.values()))) for op, kinds in named["ops"].items()}
