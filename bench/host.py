"""The host's part of a step on CUDA, on the virtual device: beside torch's own loop.

    python bench/host.py

What the host does ahead of a GPU is the same on the virtual device: Python, autograd, the dispatcher.
Its time is that of a step without that of kernels. Kernels and reads are counted, those of the whole
step, optimizer included. All variants of a model take turns; a ratio is the median of the paired ones.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from functools import partial

from ampbridge_rehearse import virtual_cuda

if not virtual_cuda.is_installed():
    virtual_cuda.install()  # before torch is imported

import numpy as np
import page
import torch
from models_of_others import TASKS, Task
from overhead import SHAPES, Step, batch_of, machine, quartiles
from overhead_torch import DEVICE, POLICIES, bridged, loss_fn, model_of, native
from page import Findings

import ampbridge as amp

Maker = Callable[[Task], Step]


def task(workload: str) -> Task:
    torch.manual_seed(0)
    if workload in TASKS:
        return TASKS[workload]()
    x, y = (torch.from_numpy(array) for array in batch_of(SHAPES[workload]))
    return Task(model_of(SHAPES[workload]), loss_fn, (x, y))


def makers() -> dict[str, Maker]:
    """Of float16 steps with a scaler, as on a GPU."""
    by_policy: dict[str, amp.Policy] = POLICIES
    made: dict[str, Maker] = {"native loop": partial(native, scaled=True)}
    for name, policy in by_policy.items():
        made[f"ampbridge, {name}"] = partial(bridged, policy=policy, scaled=True)
    made["native loop, again"] = made["native loop"]
    return made


def on_device(task: Task) -> Task:
    batch = tuple(each.to(DEVICE) for each in task.batch)
    return Task(copy.deepcopy(task.model).to(DEVICE), task.loss_fn, batch)


def host_seconds(steps: dict[str, Step], rounds: int, turn: int) -> dict[str, list[float]]:
    """Of a step of each variant, round by round; ``turn`` is the number of steps in one."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    order, random = list(steps), np.random.default_rng(0)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            virtual_cuda.forget()
            begin = time.perf_counter()
            for _ in range(turn):
                steps[name]()
            passed = time.perf_counter() - begin
            times[name].append((passed - virtual_cuda.kernel_seconds()) / turn)
    return times


def counted(step: Step) -> tuple[int, int]:
    """Kernels and waits of one step."""
    virtual_cuda.forget()
    virtual_cuda.note_calls()
    step()
    virtual_cuda.note_calls(False)
    kernels = sum(call.count for call in virtual_cuda.calls())
    return kernels, sum(wait.count for wait in virtual_cuda.waits())


def rows(workload: str, options: argparse.Namespace) -> list[tuple[str, ...]]:
    fresh = task(workload)
    steps = {name: make(on_device(fresh)) for name, make in makers().items()}
    for step in steps.values():
        for _ in range(5):
            step()
    times = host_seconds(steps, options.rounds, options.turn)
    baseline = next(iter(times.values()))
    lines = []
    for name, seconds in times.items():
        kernels, waits = counted(steps[name])
        low, median, high = quartiles(seconds, baseline)
        microseconds = f"{1e6 * statistics.median(seconds):.0f}"
        ratio = f"{median:.3f}"
        between = f"{low:.3f} to {high:.3f}"
        lines.append((workload, name, str(kernels), str(waits), microseconds, ratio, between))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    workloads = ("tiny", *TASKS)
    parser.add_argument(
        "--workload", nargs="+", choices=workloads, default=["tiny", "bert", "many"]
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--turn", type=int, default=10, help="steps of one variant in a row")
    page.add_option(parser)
    options = parser.parse_args()
    sections = [rows(workload, options) for workload in options.workload]
    columns = ("model", "variant", "kernels", "waits", "host, us a step", "ratio", "quartiles")
    again = [float(row[-2]) for section in sections for row in section if row[1].endswith("again")]
    page.report(Findings("host", machine("torch"), columns, sections, again), options)


if __name__ == "__main__":
    main()
