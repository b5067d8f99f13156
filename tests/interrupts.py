"""Regions cut short at a bytecode, as Ctrl-C may do, and regions of asyncio's tasks."""

import asyncio
import contextlib
import gc
import re
import signal
import sys

from nightly import NIGHTLY

import ampbridge as amp
from ampbridge.adapters.interception import Interception
from ampbridge_testing.interruption import without_locks
from ampbridge_testing.regions import matmul_dtype

OWN_CODE = re.compile(
    r"/ampbridge(_[a-z]+)?/(\w+/)?\w+\.py$|/contextlib\.py$|interrupts\.py$|/autocast_mode\.py$"
)


class Interrupt(BaseException):
    """What is raised."""


def raised():
    raise Interrupt


def ctrl_c():
    """Unlike ``raised`` it waits where the code lets it wait."""
    signal.raise_signal(signal.SIGINT)


def interceptions():
    gc.unfreeze()  # what is frozen is not among the objects
    return [each for each in gc.get_objects() if issubclass(type(each), Interception)]


def replaced_attributes(harness):
    """What a region replaces, as it is outside of it."""
    with amp.autocast("O1:float16", backend=harness.backend):
        sites = [site for each in interceptions() if each._installed for site in each._sites]
    return [(site.owner, site.attribute, held(site.owner, site.attribute)) for site in sites]


def held(owner, name):
    """What is there now under a name, also that of a module's class."""
    return type(owner) if name == "__class__" else vars(owner).get(name)


def region(harness):
    with amp.autocast("O1:float16", backend=harness.backend):
        pass


def bytecodes(action):
    """The steps of ``action`` at which an interrupt may differ: of a loop, the first and the last."""
    action()  # what is made once, is made
    steps = []
    _traced(action, lambda frame: steps.append((frame.f_code, frame.f_lasti)))
    first = {step: number for number, step in reversed([*enumerate(steps)])}
    last = {step: number for number, step in enumerate(steps)}
    return sorted({*first.values(), *last.values()})


def interrupt(action, at, by=raised):
    """Run ``action``, which ``by`` ends before its step number ``at``."""
    left = [at]

    def count(frame):
        left[0] -= 1
        if left[0] == -1:
            by()

    with contextlib.suppress(
        Interrupt, KeyboardInterrupt
    ):  # with the exception go the frames that it held
        _traced(action, count)


def _traced(action, at_bytecode):
    def in_frame(frame, event, argument):
        if event == "opcode":
            at_bytecode(frame)
        return in_frame

    def at_call(frame, event, argument):
        if not OWN_CODE.search(frame.f_code.co_filename):
            return None  # frameworks take locks of their own
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return in_frame

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        action()
    finally:
        sys.settrace(before)


def left_by_interrupts(harness, every):
    """How many points were tried, and what was not as before at which of them.

    Every point in the nightly profile, else each of number ``every``.
    """
    region(harness)  # what is made once, is made
    untouched, attributes, wrong = harness.ambient(), replaced_attributes(harness), {}
    assert attributes
    assert harness.ambient() == untouched
    with without_locks():
        points = bytecodes(lambda: region(harness))[:: 1 if NIGHTLY else every]
        for point in points:
            interrupt(lambda: region(harness), point)
            changed = [n for owner, n, value in attributes if held(owner, n) is not value]
            if changed or matmul_dtype(harness) != "float32":
                wrong[point] = changed[:3]
    assert wrong or harness.ambient() == untouched
    return len(points), wrong


def dtypes_of_tasks(harness):
    """In what two tasks compute that are inside of their regions at the same time, and afterwards."""

    async def work(policy, mine, others):
        seen = []
        with amp.autocast(policy, backend=harness.backend):
            for _ in range(3):
                seen.append(matmul_dtype(harness))
                mine.set()
                await others.wait()
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [*seen, matmul_dtype(harness)]

    async def both():
        a, b = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(work("O1:float16", a, b), work("O1:bfloat16", b, a))

    return asyncio.run(both())
