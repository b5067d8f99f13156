"""The environment of a process that runs a workload for us: one for each framework."""

from __future__ import annotations

import os


def environment(at_once: int) -> dict[str, str]:
    """Ours, with fewer threads: ``at_once`` processes share the cores."""
    threads = str(max(1, (os.cpu_count() or 1) // at_once))
    usual = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    return {**usual, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONIOENCODING": "utf-8", **os.environ}
