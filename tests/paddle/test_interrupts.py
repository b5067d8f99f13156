"""Ctrl-C at any bytecode of a region, and regions of asyncio's tasks."""

from interrupts import dtypes_of_tasks, left_by_interrupts

from ampbridge_testing import import_or_skip

import_or_skip("paddle")
from ampbridge_paddle.testing import PaddleHarness  # noqa: E402


def test_an_interrupt_at_any_bytecode_leaves_no_region():
    points, wrong = left_by_interrupts(PaddleHarness(), every=37)
    assert points > 20
    assert wrong == {}


def test_each_task_is_in_its_own_region():
    assert dtypes_of_tasks(PaddleHarness()) == [
        ["float16"] * 3 + ["float32"],
        ["bfloat16"] * 3 + ["float32"],
    ]
