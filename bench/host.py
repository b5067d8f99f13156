"""The host's part of a step on CUDA, on the virtual device: beside torch's own loop.

    python bench/host.py

What the host does ahead of a GPU is the same on the virtual device: Python, autograd, the dispatcher.
Its time is that of a step without that of kernels. Kernels and reads are counted, those of the whole
step, optimizer included. All variants of a model take turns; a ratio is the median of the paired ones.
"""

from __future__ import annotations

import argparse
from functools import partial

from ampbridge_rehearse import virtual_cuda

if not virtual_cuda.is_installed():
    virtual_cuda.install()  # before torch is imported

import measuring
import native_torch
import page
from measuring import Step, machine
from page import Findings, Row
from steps import OF_OTHERS, task


def host_seconds(step: Step, turn: int) -> float:
    """Of a step, of so many in a row: without its kernels."""
    virtual_cuda.forget()
    return measuring.seconds_of(step, turn) - virtual_cuda.kernel_seconds() / turn


def counted(step: Step) -> tuple[int, int]:
    """Kernels and waits of one step."""
    virtual_cuda.forget()
    virtual_cuda.note_calls()
    step()
    virtual_cuda.note_calls(False)
    kernels = sum(call.count for call in virtual_cuda.calls())
    return kernels, sum(wait.count for wait in virtual_cuda.waits())


def rows(workload: str, options: argparse.Namespace) -> list[Row]:
    """Of float16 steps with a scaler, as on a GPU."""
    makers = native_torch.compared(partial(task, "torch", workload), scaled=True)
    steps = {name: make() for name, make in makers.items()}
    for step in steps.values():
        for _ in range(5):
            step()
    timers = {name: partial(host_seconds, step, options.turn) for name, step in steps.items()}
    lines = []
    for line in measuring.figures(measuring.in_turns(timers, options.rounds)):
        kernels, waits = counted(steps[line.variant])
        name, _, *ratios = line.cells()
        microseconds = f"{1000 * line.milliseconds:.0f}"
        lines.append((workload, name, str(kernels), str(waits), microseconds, *ratios))
    return lines


def main() -> None:
    parser = page.parser(__doc__, rounds=30, turn=10)
    parser.add_argument(
        "--workload", nargs="+", choices=("tiny", *OF_OTHERS), default=["tiny", "bert", "many"]
    )
    options = parser.parse_args()
    sections = [rows(workload, options) for workload in options.workload]
    columns = ("model", "variant", "kernels", "waits", "host, us a step", "ratio", "quartiles")
    again = [float(row[-2]) for section in sections for row in section if row[1].endswith("again")]
    page.report(Findings("host", machine("torch"), columns, sections, again), options)


if __name__ == "__main__":
    main()
