"""What ampbridge costs: the time of `train_step` over that of a hand-written native loop.

    python bench/overhead.py                      every framework, one process each
    python bench/overhead.py --framework torch    one of them, in this process

Measured as measuring.py says. `--json FILE` keeps every round; `--without deny compile` leaves out what
has one of these words in its name.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import measuring
import page
from measuring import FRAMEWORKS, machine
from page import Findings
from steps import FOR_GPUS, OF_OTHERS, SHAPES, task


def run_here(framework: str, options: argparse.Namespace) -> None:
    """Measure one framework in this process and print its table."""
    native = measuring.native(framework)
    kept, sections, again = [], [], []
    for workload in options.workload:
        for case, makers in native.cases(partial(task, framework, workload), workload):
            if left_out(case, options):
                continue
            asked = {name: make for name, make in makers.items() if not left_out(name, options)}
            times, _ = measuring.measure_copies(asked, options, native.wait)
            lines = measuring.figures(times)
            sections.append([(workload, case, *line.cells()) for line in lines])
            again += [line.ratio for line in lines if line.variant.endswith(", again")]
            kept += [
                {
                    "workload": workload,
                    "case": case,
                    **line._asdict(),
                    "rounds": times[line.variant],
                }
                for line in lines
            ]
    columns = ("workload", "case", "variant", "ms a step", "ratio", "quartiles")
    of_others = not set(OF_OTHERS).isdisjoint(options.workload)
    name = f"overhead {framework}, models of others" if of_others else f"overhead {framework}"
    page.report(Findings(name, machine(framework), columns, sections, again), options)
    if options.json:
        head = {"machine": machine(framework), "figures": kept}
        Path(f"{options.json}.{framework}.json").write_text(json.dumps(head, indent=1))


def left_out(name: str, options: argparse.Namespace) -> bool:
    return any(word in name for word in options.without)


def main() -> int:
    parser = page.parser(__doc__, FRAMEWORKS, rounds=120, copies=4, seconds=0.02)
    workloads = (*SHAPES, *FOR_GPUS, *OF_OTHERS)
    parser.add_argument("--workload", nargs="+", choices=workloads, default=list(SHAPES))
    parser.add_argument("--without", nargs="+", default=[], metavar="WORD", help="in a name")
    parser.add_argument("--json", help="keep every round in FILE.<framework>.json")
    options = parser.parse_args()
    if options.framework != "torch" and not set(OF_OTHERS).isdisjoint(options.workload):
        parser.error(f"{', '.join(OF_OTHERS)} are torch's: --framework torch")
    return measuring.in_one_process_each(options, run_here)


if __name__ == "__main__":
    sys.exit(main())
