"""How many ops the simulation computes as a GPU does, bit by bit.

    python bench/simulated_ops.py                       torch, on the virtual CUDA device
    python bench/simulated_ops.py --framework paddle    on Paddle's virtual device
    python bench/simulated_ops.py --gpu                 on the GPU that is there

The calls are those of tests/virtual_cuda and tests/virtual_paddle, which name each op that differs on
the virtual device, with its reason. `--by-op` tells of each op; ops that draw random numbers are left
out where the GPU draws others than the CPU.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import page
from page import Findings, Row

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(Path(__file__).parent)]

from shares import Share  # noqa: E402


class Found(Protocol):
    """What the calls of one list set and dtype came to."""

    calls: int
    differing: Mapping[str, frozenset[str]]
    """Op -> how it differs; "gradient" is what differs in the backward pass alone."""
    values: Mapping[str, Share]
    """Op -> elements of its results."""
    gradients: Mapping[str, Share]
    random: frozenset[str]
    """Ops that were left out."""


Runs = Mapping[tuple[str, str], Found]
"""By lists and dtype."""

COLUMNS = ("lists", "dtype", "calls", "ops equal in dtypes and values", "and in gradients")
ELEMENTS = ("elements of results", "of gradients")
BY_OP = ("op", "lists", "dtype", "differs in", *ELEMENTS, "on the virtual device, too")


def row(lists: str, dtype: str, found: Found) -> Row:
    kinds = found.differing.values()
    forward = Share(sum(not kind - {"gradient"} for kind in kinds), len(kinds))
    both = Share(sum(not kind for kind in kinds), len(kinds))
    values, gradients = (total(each) for each in (found.values, found.gradients))
    return [lists, dtype, str(found.calls), *map(str, (forward, both, values, gradients))]


def total(shares: Mapping[str, Share]) -> Share:
    whole = Share()
    for each in shares.values():
        whole = whole.plus(each)
    return whole


def by_op(runs: Runs, why: Mapping[str, str]) -> Iterator[Row]:
    """Of the ops that differ; ``why``: op -> the reason on the virtual device."""
    for op in sorted({op for found in runs.values() for op in found.differing}):
        for (lists, dtype), found in runs.items():
            if kinds := found.differing.get(op):
                shares = found.values.get(op, Share()), found.gradients.get(op, Share())
                yield [
                    *(op, lists, dtype, ", ".join(sorted(kinds))),
                    *map(str, shares),
                    why.get(op, ""),
                ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--framework", choices=("torch", "paddle"), default="torch")
    parser.add_argument("--gpu", action="store_true", help="the one that is there, no virtual one")
    parser.add_argument("--ops", nargs="+", help="these alone")
    parser.add_argument("--by-op", action="store_true", help="also tell of each op that differs")
    page.add_option(parser)
    options = parser.parse_args()

    if options.gpu:
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # float32 is float32; read when CUDA is loaded
    warnings.simplefilter("ignore")  # frameworks warn of half of what is called
    framework = importlib.import_module(f"simulated_ops_{options.framework}")
    runs: Runs = framework.runs(options.gpu, options.ops)
    unknown = set(options.ops or ()) - {op for found in runs.values() for op in found.differing}
    if unknown:
        parser.error(f"no calls of {', '.join(sorted(unknown))}")
    rows = [row(*run, found) for run, found in runs.items()]
    name = "simulated ops" + (", paddle" if options.framework == "paddle" else "")
    findings = Findings(name, framework.machine(options.gpu), (*COLUMNS, *ELEMENTS), [rows])
    page.report(findings, options)
    if options.by_op:
        tell_of_each(page.table(BY_OP, by_op(runs, framework.reasons())), runs, options)


def tell_of_each(table: str, runs: Runs, options: argparse.Namespace) -> None:
    random = sorted({op for found in runs.values() for op in found.random})
    left_out = f"Left out, as they draw random numbers: {', '.join(random)}.\n" if random else ""
    text = f"{table}\n{left_out}"
    print(text)
    if options.markdown:
        with options.markdown.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


if __name__ == "__main__":
    main()
