"""The Paddle side of simulated_ops.py: beside ``paddle.amp.auto_cast`` at O1."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / "virtual_paddle"), str(TESTS / "paddle")]

RUNS = (("paddle", "float16"), ("paddle", "bfloat16"))


def runs(gpu: bool, ops: list[str] | None) -> dict[tuple[str, str], Any]:
    """Each dtype; of all cases, or of some."""
    if not gpu:
        import virtual_gpu  # noqa: F401
    import comparing

    chosen = None if ops is None else frozenset(ops)
    device = "gpu:0" if gpu else "virtual_gpu"
    return {(lists, low): comparing.findings(device, low, chosen) for lists, low in RUNS}


def machine(gpu: bool) -> str:
    import paddle

    device = paddle.device.cuda.get_device_name() if gpu else "the virtual Paddle device"
    return f"paddle {paddle.__version__}, {device}"


def reasons() -> dict[str, str]:
    """Case -> why it differs on the virtual device."""
    from test_simulation import KNOWN

    return {case: known.why for case, known in KNOWN.items()}
