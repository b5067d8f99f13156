"""What the loss scaler costs: its share of a step, its ratio to the framework's own, host syncs.

    python bench/scaler.py                      every framework, one process each
    python bench/scaler.py --framework torch    one of them, in this process

A step is a float32 loop by hand over an MLP of overhead.py, forward, backward and AdamW, without a
scaler, with the framework's own and with ours. Measured as there: all variants take turns, a figure is
the median of the paired ratios, "again" is the baseline a second time.

A host sync is counted where Python reads a tensor, which on a device it would wait for. Shown are the
scaler's: without those of the same loop that has none. (Torch's fused optimizers need none on CUDA.)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import measuring
import page
from measuring import FRAMEWORKS, Maker, Step, machine
from page import Findings, Row
from steps import Fresh, Task, task

import ampbridge as amp

WITHOUT, NATIVE, OURS, AGAIN = "without", "the framework's own", "ampbridge", "without, again"

READS = ("item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__")
"""The methods of tensors that hand values to Python."""


def cases(framework: str, fresh: Fresh) -> dict[str, Fresh]:
    """On torch AdamW ``fused=True``, whose kernel takes part in the scaling, and ``foreach=True``."""
    if framework == "torch":
        return {f"{way}=True": partial(with_adamw, fresh, way) for way in ("fused", "foreach")}
    return {"compiled" if framework == "tensorflow" else "eager": fresh}


def with_adamw(fresh: Fresh, way: str) -> Task:
    import torch

    def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-4, **{way: True})

    return fresh()._replace(adamw=adamw)


def variants(native: Any, fresh: Fresh) -> dict[str, Maker]:
    """NumPy has no scaler of its own."""
    ours = getattr(native, "our_scaler", amp.GradScaler)
    scalers = {WITHOUT: None, NATIVE: native.own_scaler, OURS: ours, AGAIN: None}
    if native.own_scaler is None:
        del scalers[NATIVE]
    return {name: partial(native.loop, fresh, scaler) for name, scaler in scalers.items()}


def reads_of(native: Any, step: Step, steps: int = 10) -> float:
    """How often a step, which has run before, reads a tensor."""
    with counted_reads(native.Tensor) as reads:
        for _ in range(steps):
            step()
    return len(reads) / steps


@contextmanager
def counted_reads(tensors: type) -> Iterator[list[str]]:
    """A list of the reads of tensors; a read that is made of others is one."""
    reads: list[str] = []
    under_way: list[str] = []

    def counting(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if not under_way:
                reads.append(name)
            under_way.append(name)
            try:
                return read(*args, **kwargs)
            finally:
                under_way.pop()

        return counted

    with ExitStack() as patches:
        for name in READS:
            if hasattr(tensors, name):
                read = counting(name, getattr(tensors, name))
                patches.enter_context(mock.patch.object(tensors, name, read))
        yield reads


def rows(framework: str, case: str, fresh: Fresh, options: argparse.Namespace) -> list[Row]:
    """Of one table, a line for each variant."""
    native = measuring.native(framework)
    times, steps = measuring.measure_copies(variants(native, fresh), options, native.wait)
    reads = {name: reads_of(native, step) for name, step in steps.items()}
    lines = []
    for name, milliseconds, ratio, *_ in measuring.figures(times):
        share, over_native, syncs = "", "", ""
        if name in (NATIVE, OURS):
            share = f"{100 * (1 - 1 / ratio):.1f} %"
            syncs = f"{reads[name] - reads[WITHOUT]:g}"
        if name == OURS and NATIVE in times:
            low, median, high = measuring.quartiles(times[OURS], times[NATIVE])
            over_native = f"{median:.3f} ({low:.3f} to {high:.3f})"
        lines.append((case, name, f"{milliseconds:.3f}", f"{ratio:.3f}", share, over_native, syncs))
    return lines


COLUMNS = (
    "case",
    "variant",
    "ms a step",
    "over without",
    "its share",
    "over theirs (quartiles)",
    "host syncs",
)


def run_here(framework: str, options: argparse.Namespace) -> None:
    """Measure one framework in this process and print its table."""
    fresh = partial(task, framework, options.workload)
    sections = [rows(framework, *case, options) for case in cases(framework, fresh).items()]
    name, where = f"scaler {framework} {options.workload}", machine(framework)
    page.report(Findings(name, f"{where}, {options.workload}", COLUMNS, sections), options)


def main() -> int:
    parser = page.parser(__doc__, FRAMEWORKS, rounds=120, copies=4, seconds=0.02)
    parser.add_argument("--workload", choices=("tiny", "mid"), default="mid")
    return measuring.in_one_process_each(parser.parse_args(), run_here)


if __name__ == "__main__":
    sys.exit(main())
