"""How long it takes to see that gradients are finite: by sums, by torch's kernel, by the adapter.

    python bench/check.py

On one thread, in turns; microseconds are the least of seven rounds, as each call waits for nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import page
import torch
from measuring import in_turns, machine, seconds_of
from page import Findings
from torch import Tensor

import ampbridge as amp

COUNTS, SIZES = (6, 41, 200), (64, 1024, 4096, 16384, 65536)


def by_sums(grads: Sequence[Tensor]) -> bool:
    return all(math.isfinite(grad.sum().item()) for grad in grads)


def by_kernel(grads: Sequence[Tensor]) -> bool:
    not_finite = torch.zeros(())
    torch._amp_foreach_non_finite_check_and_unscale_(list(grads), not_finite, torch.ones(()))
    return not not_finite.item()


def by_adapter(grads: Sequence[Tensor]) -> bool:
    return amp.backend("torch").unscale(grads, None)[1] == 0


WAYS = {"sums": by_sums, "torch's kernel": by_kernel, "ampbridge": by_adapter}


def row(count: int, size: int) -> list[str]:
    grads = [torch.randn(size) for _ in range(count)]
    assert all(finite(grads) for finite in WAYS.values())
    calls = max(3, 2_000_000 // (count * (3000 + size)))
    timers = {name: partial(seconds_of, partial(way, grads), calls) for name, way in WAYS.items()}
    least = [min(seconds) for seconds in in_turns(timers, 7).values()]
    return [str(count), str(size), *(f"{1e6 * seconds:.0f}" for seconds in least)]


def main() -> None:
    where = machine("torch")  # which also sees to one thread
    rows = [row(count, size) for count in COUNTS for size in SIZES]
    page.show(Findings("check", where, ("gradients", "elements of each", *WAYS), [rows]))


if __name__ == "__main__":
    main()
