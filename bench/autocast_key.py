"""What Python kernels at torch's autocast key would cost, instead of a function mode.

    python bench/autocast_key.py

Such kernels see listed ops alone, where a mode sees each call of torch. But registering them takes long,
and as long as they are registered, the process' own ``torch.autocast`` runs through them, too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import page
import torch
from measuring import machine, seconds_of
from page import Findings
from torch.library import Library

aten = torch.ops.aten
# Of CUDA's float32 list some that the CPU's autocast has no kernel for: nothing is overridden.
LISTED = [
    aten.softmax.int,
    aten.log_softmax.int,
    aten.layer_norm.default,
    aten.exp.default,
    aten.log.default,
    aten.sum.default,
    aten.sum.dim_IntList,
    aten.pow.Tensor_Scalar,
    aten.rsqrt.default,
    aten.reciprocal.default,
]
KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


def kernel(op: Any) -> Callable[..., Any]:
    """One that only passes on, as outside of a region of ours."""

    def passing_on(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(KEY):
            return op(*args, **kwargs)

    return passing_on


def in_plain_autocast(call: Callable[[], Any], calls: int) -> float:
    """Microseconds of a call, the median of nine rounds."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return 1e6 * statistics.median(seconds_of(call, calls) for _ in range(9))


def main() -> None:
    options = page.parser(__doc__, calls=5000).parse_args()
    where = machine("torch")  # which also sees to one thread
    exp = partial(torch.exp, torch.randn(16, 48))
    before = in_plain_autocast(exp, options.calls)
    begin = time.perf_counter()
    library = Library("aten", "IMPL", "AutocastCPU")
    for op in LISTED:
        library.impl(op, kernel(op))
    registering = (time.perf_counter() - begin) / len(LISTED) * 1e6
    meanwhile = in_plain_autocast(exp, options.calls)
    library._destroy()
    after = in_plain_autocast(exp, options.calls)
    values = [f"{each:.1f}" for each in (registering, before, meanwhile, after)]
    columns = ("us of", "registering, an op", "exp before", "exp meanwhile", "exp after")
    rows = [["plain torch.autocast", *values]]
    page.report(Findings("autocast key", where, columns, [rows]), options)


if __name__ == "__main__":
    main()
