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
import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import page
from page import Findings, Row

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from shares import Share  # noqa: E402

Runs = Mapping[tuple[str, str], Any]
"""By lists and dtype, the findings of the tests' ``compared`` or ``comparing``."""

COLUMNS = ("lists", "dtype", "calls", "ops equal in dtypes and values", "and in gradients")
ELEMENTS = ("elements of results", "of gradients")
BY_OP = ("op", "lists", "dtype", "differs in", *ELEMENTS, "on the virtual device, too")


def of_torch(gpu: bool, ops: frozenset[str] | None) -> tuple[Runs, str, dict[str, str]]:
    """What was found, on which device, and why ops differ on the virtual one."""
    if not gpu:
        from ampbridge_rehearse import virtual_cuda

        virtual_cuda.install()
    sys.path.insert(0, str(TESTS / "virtual_cuda"))
    import compared
    import torch

    runs = {run: compared.findings(*run, ops) for run in compared.RUNS}
    torch.cuda.synchronize()  # raises if a kernel has failed, after which every op is refused
    device = torch.cuda.get_device_name() if gpu else "the virtual CUDA device"
    named = json.loads((TESTS / "virtual_cuda" / "differing_ops.json").read_text("utf-8"))
    why = {op: ", ".join(sorted(set(kinds.values()))) for op, kinds in named["ops"].items()}
    return runs, f"torch {torch.__version__}, {device}", why


def of_paddle(gpu: bool, ops: frozenset[str] | None) -> tuple[Runs, str, dict[str, str]]:
    """The same, beside ``paddle.amp.auto_cast`` at O1."""
    sys.path[:0] = [str(TESTS / "virtual_paddle"), str(TESTS / "paddle")]
    if not gpu:
        import virtual_gpu  # noqa: F401
    import comparing
    import paddle

    place = "gpu:0" if gpu else "virtual_gpu"
    runs = {("paddle", low): comparing.findings(place, low, ops) for low in ("float16", "bfloat16")}
    from test_simulation import KNOWN

    device = paddle.device.cuda.get_device_name() if gpu else "the virtual Paddle device"
    why = {case: known.why for case, known in KNOWN.items()}
    return runs, f"paddle {paddle.__version__}, {device}", why


def row(lists: str, dtype: str, found: Any) -> Row:
    kinds = found.differing.values()
    forward = Share(sum(not kind - {"gradient"} for kind in kinds), len(kinds))
    both = Share(sum(not kind for kind in kinds), len(kinds))
    elements = (reduce(Share.plus, of.values(), Share()) for of in (found.values, found.gradients))
    return [lists, dtype, str(found.calls), *map(str, (forward, both, *elements))]


def by_op(runs: Runs, why: Mapping[str, str]) -> Iterator[Row]:
    """Of the ops that differ; ``why``: op -> the reason on the virtual device."""
    for op in sorted({op for found in runs.values() for op in found.differing}):
        for (lists, dtype), found in runs.items():
            if kinds := found.differing.get(op):
                equal = [str(of.get(op, Share())) for of in (found.values, found.gradients)]
                yield [op, lists, dtype, ", ".join(sorted(kinds)), *equal, why.get(op, "")]


def main() -> None:
    parser = page.parser(__doc__)
    parser.add_argument("--framework", choices=("torch", "paddle"), default="torch")
    parser.add_argument("--gpu", action="store_true", help="the one that is there, no virtual one")
    parser.add_argument("--ops", nargs="+", help="these alone")
    parser.add_argument("--by-op", action="store_true", help="also tell of each op that differs")
    options = parser.parse_args()

    if options.gpu:
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # float32 is float32; read when CUDA is loaded
    warnings.simplefilter("ignore")  # frameworks warn of half of what is called
    found_in = of_torch if options.framework == "torch" else of_paddle
    runs, machine, why = found_in(options.gpu, options.ops and frozenset(options.ops))
    unknown = set(options.ops or ()) - {op for found in runs.values() for op in found.differing}
    if unknown:
        parser.error(f"no calls of {', '.join(sorted(unknown))}")
    rows = [row(*run, found) for run, found in runs.items()]
    name = "simulated ops" + (", paddle" if options.framework == "paddle" else "")
    page.report(Findings(name, machine, (*COLUMNS, *ELEMENTS), [rows]), options)
    if options.by_op:
        tell_of_each(runs, why, options)


def tell_of_each(runs: Runs, why: Mapping[str, str], options: argparse.Namespace) -> None:
    random = sorted({op for found in runs.values() for op in found.random})
    left_out = f"Left out, as they draw random numbers: {', '.join(random)}.\n" if random else ""
    text = f"{page.table(BY_OP, by_op(runs, why))}\n{left_out}"
    print(text)
    if options.markdown:
        with options.markdown.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


if __name__ == "__main__":
    main()
