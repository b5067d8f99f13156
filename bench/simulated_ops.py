"""How many of torch's ops the simulation computes as CUDA's autocast does, bit by bit.

    python bench/simulated_ops.py

On the virtual CUDA device, which is compiled if it has not been. The calls are those of
tests/virtual_cuda, where differing_ops.json names each op that differs, with its reason.
"""

from __future__ import annotations

import argparse
import sys
import warnings

import page
from page import Findings

sys.path.insert(0, str(page.ROOT / "tests" / "virtual_cuda"))


def share(equal: int, total: int) -> str:
    return f"{equal} of {total} ({equal / total:.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    page.add_option(parser)
    options = parser.parse_args()

    from ampbridge_torch import virtual_cuda

    virtual_cuda.install()
    warnings.simplefilter("ignore")  # torch warns of half of what it samples
    import compared
    import torch

    rows = []
    for lists, low in compared.RUNS:
        found = compared.findings(lists, low)
        forward = share(*found.share_equal(compared.FORWARD))
        backward = share(*found.share_equal(compared.KINDS))
        rows.append([lists, low, str(found.calls), forward, backward])
    columns = ["lists", "dtype", "calls", "ops equal in dtypes and values", "and in gradients"]
    machine = f"torch {torch.__version__}, the virtual CUDA device"
    page.report(Findings("simulated ops", machine, columns, [rows]), options)


if __name__ == "__main__":
    main()
