"""How often a step waits for the device, held against the table in docs/performance.md."""

from __future__ import annotations

import paddle
import pytest
import virtual_gpu
from waiting import CASES, DOCUMENT, FINITE, row, trained


@pytest.mark.parametrize("case", CASES)
def test_the_documented_table_is_what_is_counted(case: str) -> None:
    counted = row(case)
    assert counted in DOCUMENT.read_text(encoding="utf-8").splitlines()


def test_the_scale_costs_no_copy() -> None:
    """Neither on the way to the device."""
    step = trained()(FINITE)
    x, y = paddle.ones([4, 8]), paddle.zeros([4], "int64")
    step(x, y)
    with virtual_gpu.watched() as seen:
        step(x, y)
    assert (seen.reads, seen.writes) == (1, 0)
