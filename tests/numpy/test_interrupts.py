"""Ctrl-C at any bytecode of a region, and regions of asyncio's tasks."""

from interrupts import dtypes_of_tasks, left_by_interrupts

from ampbridge_testing import import_or_skip

import_or_skip("numpy")
from ampbridge_numpy.testing import NumpyHarness  # noqa: E402


def test_an_interrupt_at_any_bytecode_leaves_no_region():
    points, wrong = left_by_interrupts(NumpyHarness(), every=11)
    assert points > 30
    assert wrong == {}


def test_each_task_is_in_its_own_region():
    assert dtypes_of_tasks(NumpyHarness()) == [
        ["float16"] * 3 + ["float32"],
        ["bfloat16"] * 3 + ["float32"],
    ]
