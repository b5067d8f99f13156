"""Ctrl-C at any bytecode of a region, and regions of asyncio's tasks: no worse than torch's own."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from processes import run_python

import ampbridge as amp
from ampbridge.testing import import_or_skip, interruption

torch = import_or_skip("torch")

from ampbridge_torch.step import gradients  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def left():
    return json.loads(run_python(Path(__file__).with_name("region_interrupts.py")))


@pytest.mark.parametrize("region", ["ours", "a step's", "a step's, without a mode"])
def test_an_interrupt_leaves_no_more_than_torch_autocast_does(left, region):
    assert left["natively"] > 0
    assert left[region] <= left["natively"]


@pytest.mark.parametrize("time", [1, 2])
def test_ctrl_c_at_each_line_of_the_forward_pass_leaves_no_region(time):
    """With torch's own lists the region is torch.autocast alone, which closes by its ``__exit__``."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    policy = amp.Policy("O1", "bfloat16", lists="native")
    step = amp.train_step(lambda m, x: m(x).sum(), model, optimizer, policy=policy)
    code, interrupted = gradients.gradients.__code__, 0
    for line in sorted({line for *_, line in code.co_lines() if line}):
        point = interruption._Point(code, line, time)
        with interruption._ctrl_c_at(point) as came, suppress(KeyboardInterrupt):
            step(torch.ones(1, 2))
        interrupted += len(came)
        assert not torch.is_autocast_enabled("cpu"), line
    assert interrupted > (10 if time == 1 else 0)


def test_tasks_of_a_thread_share_their_region_as_natively(left):
    """``torch.autocast`` is of the thread: the task that entered last decides for both."""
    assert left["tasks"][0] != ["float16"] * 3 + ["float32"]
