"""Ctrl-C at any bytecode of a region, and regions of asyncio's tasks: no worse than torch's own."""

from interrupts import bytecodes, dtypes_of_tasks, interrupt, region, without_locks

from ampbridge.testing import import_or_skip

torch = import_or_skip("torch")
from ampbridge_torch.testing import TorchHarness  # noqa: E402


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


def test_an_interrupt_leaves_no_more_than_torch_autocast_does(monkeypatch):
    without_locks(monkeypatch)
    natively = casts_left_by_interrupts(native_region)
    assert natively > 0
    assert casts_left_by_interrupts(lambda: region(TorchHarness())) <= natively


def test_tasks_of_a_thread_share_their_region_as_natively():
    """``torch.autocast`` is of the thread: the task that entered last decides for both."""
    assert dtypes_of_tasks(TorchHarness())[0] != ["float16"] * 3 + ["float32"]
