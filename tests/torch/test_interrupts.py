"""Ctrl-C at any bytecode of a region, and regions of asyncio's tasks: no worse than torch's own."""

import json
from pathlib import Path

import pytest
from processes import run_python

import ampbridge as amp
from ampbridge.testing import import_or_skip

torch = import_or_skip("torch")


@pytest.fixture(scope="module")
def left():
    return json.loads(run_python(Path(__file__).with_name("region_interrupts.py")))


def test_an_interrupt_leaves_no_more_than_torch_autocast_does(left):
    assert left["natively"] > 0
    assert left["ours"] <= left["natively"]


@pytest.mark.parametrize("lists", ["torch", "native"])
def test_a_region_whose_end_never_came_is_closed_with_its_frame(lists):
    """Ctrl-C between a ``with`` block and its ``__exit__``; with torch's own lists it is torch's region."""
    region = amp.backend("torch").autocast(amp.Policy("O1", "bfloat16", lists=lists))
    region.__enter__()
    assert torch.is_autocast_enabled("cpu")
    del region
    assert not torch.is_autocast_enabled("cpu")


def test_tasks_of_a_thread_share_their_region_as_natively(left):
    """``torch.autocast`` is of the thread: the task that entered last decides for both."""
    assert left["tasks"][0] != ["float16"] * 3 + ["float32"]
