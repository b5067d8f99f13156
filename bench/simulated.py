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
import copy
import os
import statistics
import subprocess
import sys
from typing import Any

import page
from overhead import SHAPES, Figure, Step, batch_of, figures, machine, measure
from page import Findings

WORKLOADS = ("mid", "transformer")
LEVELS = ("O1", "O2")
WITHOUT_FP16 = "AVX512_CORE_BF16"


def steps(workload: str, dtype: str) -> dict[str, Step]:
    """A step of each variant over a copy of the same model, the baseline first."""
    import torch
    from overhead_torch import loss_fn, model_of

    import ampbridge as amp

    shape = SHAPES[workload]
    x, y = (torch.from_numpy(array) for array in batch_of(shape))
    fresh = model_of(shape)

    def step_under(policy: amp.Policy) -> Step:
        model: Any = copy.deepcopy(fresh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        scaler = amp.GradScaler()
        step = amp.train_step(loss_fn, model, optimizer, policy=policy, scaler=scaler)
        return lambda: step(x, y)

    policies = {"float32": amp.Policy("O0")}
    for level in LEVELS:
        for execution in ("native", "simulated"):
            policies[f"{level}, {execution}"] = amp.Policy(level, dtype, execution=execution)
    policies["float32, again"] = policies["float32"]
    return {name: step_under(policy) for name, policy in policies.items()}


def times_of(workload: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds a step, round by round, on several copies of the models."""
    merged: dict[str, list[float]] = {}
    for _ in range(options.copies):
        made = steps(workload, options.dtype)
        for name, seconds in measure(
            made, options.rounds // options.copies, options.seconds
        ).items():
            merged.setdefault(name, []).extend(seconds)
    return merged


def run_here(options: argparse.Namespace) -> None:
    """Measure in this process and print the table."""
    sections = []
    for workload in options.workload:
        times = times_of(workload, options)
        sections.append([row(line, times) for line in figures(workload, options.dtype, times)])
    columns = ("workload", "variant", "ms a step", "over float32", "quartiles", "native over it")
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA")
    where = f"{options.dtype}, {machine('torch')}" + (f", oneDNN up to {isa}" if isa else "")
    name = f"simulated {options.dtype} {options.isa}"
    page.report(Findings(name, where, columns, sections), options)


def row(line: Figure, times: dict[str, list[float]]) -> tuple[str, ...]:
    level, _, execution = line.variant.partition(", ")
    native = times[f"{level}, native"] if execution == "simulated" else None
    ratio = "" if native is None else f"{median_ratio(native, times[line.variant]):.2f}"
    workload, _, *others = line.cells()
    return workload, *others, ratio


def median_ratio(times: list[float], baseline: list[float]) -> float:
    """Of what was measured in the same round."""
    return statistics.median(t / b for t, b in zip(times, baseline, strict=True))


def has_fp16() -> bool:
    """Whether the CPU has AVX512-FP16, as far as Linux says."""
    try:
        with open("/proc/cpuinfo") as file:
            return "avx512_fp16" in file.read()
    except OSError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", help="measure in this process, oneDNN held to this; 'all': not")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--copies", type=int, default=3, help="of every model, among the rounds")
    parser.add_argument("--seconds", type=float, default=0.02, help="one turn of one variant")
    page.add_option(parser)
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
