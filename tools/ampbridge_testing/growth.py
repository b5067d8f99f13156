"""What is left of steps that are over: how to measure it, and the promise that it is nothing.

Counted are Python's objects, all that the garbage collector knows, and the memory of the process,
in which frameworks keep their tensors and graphs.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import weakref
from collections.abc import Callable
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import pytest

from ampbridge import GradScaler, Schedule, autocast, decorate, undecorate, value_and_grad
from ampbridge.adapters.backend import Array, Backend, Model, Optimizer
from ampbridge.adapters.observation import OpCall, Operand
from ampbridge_testing.decorating import Layered
from ampbridge_testing.harness import NumpyArray

CALLS = int(os.environ.get("AMPBRIDGE_GROWTH_CALLS", "24"))
"""How many calls are measured together."""

_WARM_UP = 8
_ATTEMPTS = 3

Call = Callable[[], object]


class Growth(NamedTuple):
    """What one call left behind, on average."""

    objects: float
    memory: float
    """In bytes."""

    def is_within(self, bound: Growth) -> bool:
        return self.objects <= bound.objects and self.memory <= bound.memory


BOUND = Growth(objects=0.5, memory=16 * 1024)
"""A step that leaks leaves an object at least, or its activations: of this suite's model 300 KiB."""


def growth(call: Call, bound: Growth = BOUND, but_dead_references: bool = False) -> Growth:
    """What ``call`` leaves behind, after some calls that fill caches.

    A cache that is filled later, or an allocator that takes a larger piece, shows in one measurement
    and not in the next one; a leak shows in all of them. So the first within ``bound`` counts.

    Args:
        but_dead_references: whether weak references to what is gone do not count.
    """
    for _ in range(_WARM_UP):
        call()
    gc.collect()
    gc.freeze()  # what the process holds already is looked at no more: a framework's takes a second
    try:
        for _ in range(_ATTEMPTS):
            before = _held(but_dead_references)
            for _ in range(CALLS):
                call()
            after = _held(but_dead_references)
            found = Growth(*((b - a) / CALLS for a, b in zip(before, after, strict=True)))
            if found.is_within(bound):
                break
    finally:
        gc.unfreeze()
    return found


def _held(but_dead_references: bool) -> Growth:
    gc.collect()
    objects = len(gc.get_objects())
    if but_dead_references:
        objects -= sum(type(x) is weakref.ref and x() is None for x in gc.get_objects())
    _give_freed_memory_back()
    return Growth(objects, resident_memory())


def resident_memory() -> int:
    """What the process has in memory, in bytes; where only its peak is known, that."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _give_freed_memory_back() -> None:
    """Or a leak could hide in what earlier work has freed."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc
        trim(0)


_POLICIES = ("O0", "O1", "O2", "O2:bfloat16")
_IN_TURNS = Schedule([(i, _POLICIES[i % 4]) for i in range(4 * CALLS)])

STEPS: dict[str, dict[str, Any]] = {
    **{policy: {"policy": policy} for policy in _POLICIES},
    "scheduled": {"policy": _IN_TURNS},
    "accumulating": {"accumulate": 2, "clip_norm": 1.0, "name_overflows": True},
    "dropping micro-batches": {"accumulate": 2, "on_overflow": "drop_microbatch"},
}
"""Settings of steps, by what is special about them."""


class GrowthConformance(Layered):
    """Promises about what is kept: nothing of a step that is over or of a step that was dropped."""

    def wide(self) -> tuple[Model, Optimizer]:
        """A layered model whose activations take far more memory than what surrounds them."""
        rng = np.random.default_rng(0)
        shapes = ((32, 128), (128,), (128, 16), (16,))
        weights = [rng.normal(0.0, 0.1, shape).astype(np.float32) for shape in shapes]
        model = self.harness.layered(weights)
        return model, self.harness.optimizer(model, "momentum", 2.0**-8)

    def rows(self, count: int = 256, factor: float = 1.0) -> tuple[NumpyArray, ...]:
        rng = np.random.default_rng(count)
        x = rng.normal(0.0, 1.0, (count, 32)).astype(np.float32)
        return x, rng.normal(0.0, 1.0, (count, 16)).astype(np.float32), np.float32(factor)

    def keeps_nothing(self, call: Call, bound: Growth = BOUND) -> None:
        found = growth(call, bound, self.harness.leaves_dead_references)
        assert found.is_within(bound), f"each call leaves {found}"

    # -- steps

    @pytest.mark.parametrize("way", STEPS)
    def test_a_step_keeps_nothing(self, way: str) -> None:
        step, batch = self.step(*self.wide(), compile=False, **STEPS[way]), self.rows()
        self.keeps_nothing(lambda: step(*batch).applied)

    def test_batches_of_changing_size_leave_nothing(self, compiled: bool) -> None:
        step = self.step(*self.wide(), policy="O1", compile=compiled)
        batches = cycle([self.rows(count) for count in (256, 192)])
        # A program's own pools go on filling for some hundred runs, ever more slowly (Paddle's).
        bound = BOUND._replace(memory=8 * BOUND.memory) if compiled else BOUND
        self.keeps_nothing(lambda: step(*next(batches)).applied, bound)

    def test_skipped_steps_leave_nothing(self) -> None:
        step = self.step(*self.wide(), policy="O1", scaler=GradScaler(2.0**10), compile=False)
        batches = cycle([self.rows(), self.rows(factor=np.inf)])
        self.keeps_nothing(lambda: step(*next(batches)).applied)

    def test_dropped_steps_leave_nothing(self) -> None:
        """Model and optimizer go on; what was made for the step is gone."""
        model, optimizer = self.wide()
        batch = self.rows()
        self.keeps_nothing(
            lambda: self.step(model, optimizer, policy="O2", compile=False)(*batch).applied
        )

    def test_a_dropped_step_frees_model_and_optimizer(self, compiled: bool) -> None:
        model, optimizer = self.wide()
        step = self.step(model, optimizer, policy="O2", compile=compiled)
        step(*self.rows())
        held = [weakref.ref(model), weakref.ref(optimizer), weakref.ref(step)]
        del model, optimizer, step
        assert held[2]() is None  # at once: it is part of no cycle
        gc.collect()
        assert [each() for each in held] == [None] * 3

    # -- loops by hand

    def test_value_and_grad_keeps_nothing(self) -> None:
        (model, optimizer), scaler, batch = self.wide(), GradScaler(), self.rows()

        def iterate() -> None:
            _, gradients = value_and_grad(self.loss(), model, *batch, policy="O1", scaler=scaler)
            scaler.step(optimizer, gradients)
            scaler.update()

        self.keeps_nothing(iterate)

    def test_a_loop_by_hand_keeps_nothing(self) -> None:
        h, (model, optimizer), scaler = self.harness, self.wide(), GradScaler()
        batch, loss = [h.array(values) for values in self.rows()], self.loss()

        def in_region(model: Model, *batch: Array) -> Array:
            with autocast("O1", h.backend.name):
                return loss(model, *batch)

        def iterate() -> None:
            grads = h.native_gradients(model, in_region, batch, scaler.scale)
            scaler.step(optimizer, None if h.stores_gradients else grads)
            scaler.update()

        self.keeps_nothing(iterate)

    def test_decorating_in_turns_keeps_nothing(self) -> None:
        model, optimizer = self.wide()
        policies, x = cycle(["O2", "O1", "O2:bfloat16"]), self.harness.array(self.rows()[0])

        def decorate_and_back() -> None:
            decorate(model, optimizer, next(policies))
            model(x)
            undecorate(model, optimizer)

        self.keeps_nothing(decorate_and_back)

    def test_observing_keeps_nothing(self) -> None:
        backend = self.harness.backend
        if type(backend).observe is Backend.observe:
            pytest.skip("this backend cannot be observed")
        model, _ = self.wide()
        batch, loss = self.rows(), self.loss()

        def observe() -> None:
            with backend.observe(model, _Blind(), gradients=True):
                value_and_grad(loss, model, *batch, policy="O1")

        self.keeps_nothing(observe)


class _Blind:
    """An observer that looks at nothing."""

    def op_ran(self, call: OpCall, inputs: Any, outputs: Any) -> None: ...

    def gradient_arrived(self, call: OpCall, output: int, gradient: Operand) -> None: ...

    def gradient_left(self, call: OpCall, input: int, gradient: Operand) -> None: ...
