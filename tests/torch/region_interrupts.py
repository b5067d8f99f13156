"""Interrupts regions at every bytecode, and mixes those of tasks; prints what torch is left with, as JSON.

torch.autocast itself is left open by either, with its nesting and its cache: hence a process of its own.
"""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from interrupts import bytecodes, dtypes_of_tasks, interrupt, region

import ampbridge as amp
from ampbridge_testing.interruption import without_locks
from ampbridge_torch.autocast.casting import region_on
from ampbridge_torch.testing import TorchHarness


def native_region():
    with torch.autocast("cpu", torch.float16):
        pass


def casts_left_by_interrupts(action):
    """At how many bytecodes of ``action`` an interrupt leaves torch casting; ours never casts then."""
    count = 0
    x = torch.ones(2, 2)
    for point in bytecodes(action):
        interrupt(action, point)
        count += (x @ x).dtype is not torch.float32
        torch.set_autocast_enabled("cpu", False)
        with torch.autocast("cpu", torch.float16):  # where torch.exp is on neither list
            assert torch.exp(x.half()).dtype is torch.float16
        torch.clear_autocast_cache()
        while torch._C._len_torch_function_stack():
            torch._C._pop_torch_function_stack()
    return count


def region_of_a_step(lists):
    """What a step opens, without the region of the core around it."""

    def run():
        with region_on(("cpu",), amp.Policy("O1", "float16", lists=lists)):
            pass

    return run


with without_locks():
    left = {
        "natively": casts_left_by_interrupts(native_region),
        "ours": casts_left_by_interrupts(lambda: region(TorchHarness())),
        "a step's": casts_left_by_interrupts(region_of_a_step("torch")),
        "a step's, without a mode": casts_left_by_interrupts(region_of_a_step("native")),
    }
print(json.dumps({**left, "tasks": dtypes_of_tasks(TorchHarness())}))
