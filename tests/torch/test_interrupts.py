"""Ctrl-C at any bytecode of a region, and regions of asyncio's tasks: no worse than torch's own."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from processes import run_python

import ampbridge as amp
from ampbridge_testing import import_or_skip, interruption

torch = import_or_skip("torch")

from ampbridge_torch.autocast import merging  # noqa: E402
from ampbridge_torch.autocast.casting import Region  # noqa: E402
from ampbridge_torch.step import gradients  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def left():
    return json.loads(run_python(Path(__file__).with_name("region_interrupts.py")))


@pytest.mark.parametrize("region", ["ours", "a step's", "a step's, without a mode"])
def test_an_interrupt_leaves_no_more_than_torch_autocast_does(left, region):
    assert left["natively"] > 0
    assert left[region] <= left["natively"]


@pytest.mark.parametrize("lists", ["native", "torch"])
@pytest.mark.parametrize("time", [1, 2])
def test_ctrl_c_at_each_line_of_the_forward_pass_leaves_no_region(time, lists):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    policy = amp.Policy("O1", "bfloat16", lists=lists, execution="native")
    step = amp.train_step(lambda m, x: m(x).sum(), model, optimizer, policy=policy)
    step(torch.ones(1, 2))
    interrupted = 0
    for function in (gradients.Bound.__call__, Region.run, Region.open, Region.close):
        code = function.__code__
        for line in sorted({line for *_, line in code.co_lines() if line}):
            point = interruption._Point(code, line, time)
            with interruption._ctrl_c_at(point) as came, suppress(KeyboardInterrupt):
                step(torch.ones(1, 2))
            interrupted += len(came)
            assert not torch.is_autocast_enabled("cpu"), (function, line)
            assert not torch.overrides._get_current_function_mode_stack(), (function, line)
            assert torch.get_autocast_dtype("cpu") is torch.bfloat16
            assert not merging.here.merges
            assert torch.autocast_increment_nesting() == 1  # else its cache of weights stays
            torch.autocast_decrement_nesting()
    assert interrupted > (40 if time == 1 else 0)


def test_tasks_of_a_thread_share_their_region_as_natively(left):
    """``torch.autocast`` is of the thread: the task that entered last decides for both."""
    assert left["tasks"][0] != ["float16"] * 3 + ["float32"]
