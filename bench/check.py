"""How long it takes to see that gradients are finite: by sums, by torch's kernel, by the adapter.

    python bench/check.py

On one thread, in turns; microseconds are the least of seven rounds, as each call waits for nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import ampbridge as amp

torch.set_num_threads(1)
COUNTS, SIZES = (6, 41, 200), (64, 1024, 4096, 16384, 65536)


def by_sums(grads: Sequence[Tensor]) -> bool:
    return all(math.isfinite(grad.sum().item()) for grad in grads)


def by_kernel(grads: Sequence[Tensor]) -> bool:
    not_finite = torch.zeros(())
    torch._amp_foreach_non_finite_check_and_unscale_(list(grads), not_finite, torch.ones(()))
    return not not_finite.item()


def by_adapter(grads: Sequence[Tensor]) -> bool:
    return amp.backend("torch").unscale(grads, None)[1] == 0


WAYS: dict[str, Callable[[Sequence[Tensor]], bool]] = {
    "sums": by_sums,
    "torch's kernel": by_kernel,
    "ampbridge": by_adapter,
}


def microseconds(grads: Sequence[Tensor]) -> dict[str, float]:
    least = dict.fromkeys(WAYS, math.inf)
    calls = max(3, 2_000_000 // sum(3000 + grad.numel() for grad in grads))
    for _ in range(7):
        for name, way in WAYS.items():
            begin = time.perf_counter()
            for _ in range(calls):
                assert way(grads)
            least[name] = min(least[name], (time.perf_counter() - begin) / calls * 1e6)
    return least


def main() -> None:
    table = Table("gradients", "elements of each", *WAYS)
    for count in COUNTS:
        for size in SIZES:
            found = microseconds([torch.randn(size) for _ in range(count)])
            table.add_row(str(count), str(size), *(f"{value:.0f}" for value in found.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
