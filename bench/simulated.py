"""What simulated float16 costs on a CPU: its step time over float32's, and beside native float16's.

    python bench/simulated.py                     this CPU, and one without AVX512-FP16
    python bench/simulated.py --isa AVX512_CORE   as oneDNN would run on such a CPU, in this process

How native float16 fares depends on the CPU: with AVX512-FP16 oneDNN has kernels for it, without them
torch falls back to loops. `--isa` takes a value of ONEDNN_MAX_CPU_ISA, by which oneDNN leaves the
newer units alone. One training step of `train_step`, forward, backward and AdamW; all variants take
turns as in overhead.py, on one thread, and "again" is the baseline a second time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

import measuring
import page
from measuring import Maker, machine
from page import Findings, Row
from steps import beside, bridged, task

import ampbridge as amp

WORKLOADS = ("mid", "transformer")
WITHOUT_FP16 = "AVX512_CORE_BF16"


def variants(workload: str, dtype: str) -> dict[str, Maker]:
    fresh = partial(task, "torch", workload)
    policies = {
        f"{level}, {execution}": amp.Policy(level, dtype, execution=execution)
        for level in ("O1", "O2")
        for execution in ("native", "simulated")
    }
    return beside("float32", partial(bridged, fresh, "O0", True), fresh, policies, scaled=True)


def rows(workload: str, options: argparse.Namespace) -> list[Row]:
    """Beside a simulation stands the paired ratio of native steps of its level."""
    times, _ = measuring.measure_copies(variants(workload, options.dtype), options)
    lines = []
    for line in measuring.figures(times):
        level, _, execution = line.variant.partition(", ")
        ratio = ""
        if execution == "simulated":
            pairs = zip(times[f"{level}, native"], times[line.variant], strict=True)
            ratio = f"{statistics.median(native / ours for native, ours in pairs):.2f}"
        lines.append((workload, *line.cells(), ratio))
    return lines


def run_here(options: argparse.Namespace) -> None:
    """Measure in this process and print the table."""
    sections = [rows(workload, options) for workload in options.workload]
    columns = ("workload", "variant", "ms a step", "over float32", "quartiles", "native over it")
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA")
    where = f"{options.dtype}, {machine('torch')}" + (f", oneDNN up to {isa}" if isa else "")
    name = f"simulated {options.dtype} {options.isa}"
    page.report(Findings(name, where, columns, sections), options)


def has_fp16() -> bool:
    """Whether the CPU has AVX512-FP16, as far as Linux says."""
    told = Path("/proc/cpuinfo")
    return told.exists() and "avx512_fp16" in told.read_text()


def main() -> int:
    parser = page.parser(__doc__, rounds=60, copies=3, seconds=0.02)
    parser.add_argument("--isa", help="measure in this process, oneDNN held to this; 'all': not")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    options = parser.parse_args()
    if options.isa:
        if options.isa != "all":
            os.environ["ONEDNN_MAX_CPU_ISA"] = options.isa  # read when torch is imported
        run_here(options)
        return 0
    sets = ["all", WITHOUT_FP16] if has_fp16() else ["all"]
    commands = ([sys.executable, *sys.argv, "--isa", isa] for isa in sets)
    return max(subprocess.run(command, check=False).returncode for command in commands)


if __name__ == "__main__":
    sys.exit(main())
