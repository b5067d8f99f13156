"""Promises of a step that an exception or Ctrl-C ends: it has not happened, or has happened wholly."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest

import ampbridge
from ampbridge import GradScaler, Schedule, StateError, train_step
from ampbridge.adapters.backend import Array, LossFn, Model
from ampbridge.adapters.interception import Interception
from ampbridge.training import micro_batch
from ampbridge_testing.decorating import Layered
from ampbridge_testing.gradients import same_bits

IN_GRADIENTS = ("forward", "loss", "backward", "amid backward")
"""In the model's call, after it, at the start of the backward pass, and after some parameters have
gradients."""

POINTS = (*IN_GRADIENTS, "unscale_for", "clip", "step_or_skip")
"""The others are before a method of the backend, and before the core's function."""

POLICIES = ("O0", "O1:float16", "O2:bfloat16")

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
LINES_APART = 1 if NIGHTLY else 150
"""Ctrl-C comes at every line of a step in the nightly profile, and else at one of so many."""


class Interrupted(Exception):
    """What is raised, as a full memory would; Paddle's backward pass makes an OSError of it."""


ENDED = KeyboardInterrupt, OSError
"""What a call ends with that Ctrl-C ended; the second is again Paddle's."""

SCHEDULE = ("O1:float16", "O2:bfloat16", "O0")

_IsOurs = Callable[[CodeType], bool]

policies = pytest.mark.parametrize("policy", POLICIES)
accumulations = pytest.mark.parametrize("accumulate", [1, 4])


class InterruptionConformance(Layered):
    """Whatever ends a call of a step leaves everything as it was before it, or as it is after it."""

    @accumulations
    @policies
    @pytest.mark.parametrize("point", POINTS)
    def test_an_interrupted_step_has_not_happened(
        self, point: str, policy: str, accumulate: int
    ) -> None:
        """It is tried again, and all goes on as in a run that nothing interrupted."""
        undisturbed = self.run_of_steps(policy, accumulate, None)
        assert same_bits(self.run_of_steps(policy, accumulate, point), undisturbed)

    def run_of_steps(self, policy: str, accumulate: int, point: str | None) -> list[Any]:
        """Weights, slots, losses and scales of four steps; each call from the third on is interrupted
        at ``point``, if it comes there.
        """
        h = self.harness
        model, optimizer = self.trainable("adam")
        raising: list[str] = []

        def raise_at(here: str) -> None:
            if here in raising:
                raise Interrupted(here)

        def loss_fn(model: Model, x: Array, target: Array, factor: Array) -> Array:
            raise_at("forward")
            first = h.on_backward(model(x), lambda: raise_at("amid backward"))
            # Backward passes begin with the call that came last.
            outputs = h.on_backward(0.5 * (first + model(x)), lambda: raise_at("backward"))
            raise_at("loss")
            return h.mean_squared_error(outputs, target) * factor

        step = self.step_of(loss_fn, model, optimizer, policy=policy, accumulate=accumulate)
        seen: list[Any] = []
        for number in range(4 * accumulate):
            last_of_step = (number + 1) % accumulate == 0
            comes_there = last_of_step or point in IN_GRADIENTS
            if number >= 2 and point is not None and comes_there:
                raising.append(point)
                with self.interrupted_at(point), pytest.raises((Interrupted, OSError)):
                    step(*self.batch(1.0 + number))
                raising.clear()
            result = step(*self.batch(1.0 + number))
            seen += [h.array(value) for value in (result.loss, result.scale, result.step)]
        numbers = [h.numpy(value) for value in seen]
        return [*numbers, *self.values(model), *h.slots(optimizer)]

    def step_of(self, loss_fn: LossFn, model: Model, optimizer: Any, **settings: Any) -> Any:
        scaler = GradScaler(2.0**6, growth_interval=2)
        settings = {"scaler": scaler, "clip_norm": 1.0, "compile": False, **settings}
        return train_step(loss_fn, model, optimizer, **settings)

    def interrupted_at(self, point: str) -> AbstractContextManager[Any]:
        """What has that name raises; elsewhere ``loss_fn`` does it itself."""
        for owner in (type(self.harness.backend), micro_batch):
            if hasattr(owner, point):
                return mock.patch.object(owner, point, side_effect=Interrupted(point))
        return nullcontext()

    def test_what_becomes_of_a_sum_leaves_its_parts(self) -> None:
        """Sums of gradients are unscaled and clipped in place, and the step may yet be tried again."""
        h, backend = self.harness, self.harness.backend
        total = [h.array([1.0, 2.0]), h.array([3.0, 4.0])]
        sums = backend.add(total, [h.array([1.0, 1.0]), None])
        unscaled, _ = backend.unscale(sums, 4.0)
        backend.clip(unscaled, 0.1)
        assert [h.numpy(part).tolist() for part in total] == [[1.0, 2.0], [3.0, 4.0]]

    # -- an accumulation that is not to be ended

    @policies
    def test_what_is_reset_leaves_no_gradients(self, policy: str) -> None:
        h = self.harness
        runs = []
        for dropped in (0, 2):
            model, optimizer = self.trainable("adam")
            step = self.step_of(self.loss(), model, optimizer, policy=policy, accumulate=3)
            for _ in range(dropped):
                step(*self.batch(5.0))
            if dropped:
                with pytest.raises(StateError, match=r"step\.reset\(\)"):
                    step.state_dict()
            step.reset()
            results = [step(*self.batch()) for _ in range(6)]
            losses = [h.numpy(h.array(result.loss)) for result in results]
            runs.append([*losses, *self.values(model), *h.slots(optimizer)])
        assert [result.reason for result in results] == ["accumulating", "accumulating", None] * 2
        assert same_bits(*runs)

    # -- Ctrl-C

    @accumulations
    @policies
    def test_ctrl_c_leaves_no_half_of_a_step(
        self, policy: str, accumulate: int, compiled: bool
    ) -> None:
        """At one line after the other of all that a step runs of ours, the loss function's too.

        A call that it ended is made again. Losses are those of a run that nothing ended, bit by bit.
        """
        if compiled and not (NIGHTLY and self.harness.backend.compiles_by_default):
            pytest.skip("takes long to compile")
        run = _InterruptedRun(self, policy, accumulate, compiled)
        run.sweep()
        print(f"{policy}, accumulate={accumulate}: Ctrl-C at {len(run.points)} points")
        undisturbed = _InterruptedRun(self, policy, accumulate, compiled)
        for _ in run.losses:
            undisturbed.call()
        pairs = enumerate(zip(run.losses, undisturbed.losses, strict=True))
        wrong = [number for number, (x, wanted) in pairs if x is not None and x != wanted]
        ahead = [point for number, point in run.points if wrong and number <= wrong[0]]
        assert not wrong, f"losses differ from call {wrong[0]} on, after {ahead[-2:]}"
        assert run.leaves_all_as_it_was

    @pytest.mark.parametrize("number", range(len(SCHEDULE)), ids=SCHEDULE)
    def test_ctrl_c_leaves_no_half_of_a_change_of_policy(self, number: int) -> None:
        """In the first call of a step, which decorates, and where a schedule has it decorate anew."""
        lines: Counter[tuple[CodeType, int]] = Counter()
        is_ours = _is_ours(self, self.loss())
        undisturbed = self.scheduled_run(number, _lines_counted(lines, is_ours))
        points = _sampled(lines, number)
        print(f"to {SCHEDULE[number]}: Ctrl-C at {len(points)} points")
        with without_locks():
            for point in points:
                found = self.scheduled_run(number, _ctrl_c_at(point))
                assert same_bits(found, undisturbed), point

    def scheduled_run(self, number: int, around: AbstractContextManager[Any]) -> list[Any]:
        """Weights, slots and counters after a step of each policy; ``around`` is about one of them.

        A call that was interrupted is made again, unless it has happened.
        """
        h = self.harness
        model, optimizer = self.trainable("adam")
        policy = Schedule([*enumerate(SCHEDULE)])
        step = self.step_of(self.loss(), model, optimizer, policy=policy)
        for place in range(len(SCHEDULE) + 1):
            if place == number:
                with around, suppress(*ENDED):
                    step(*self.batch(1.0 + place))
            if step.state_dict()["step"] == place:
                result = step(*self.batch(1.0 + place))
        state = step.state_dict()
        counts = [float(result.loss), state["step"], state["scaler"]["scale"]]
        return [np.array(counts), *self.values(model), *h.slots(optimizer)]


class _Point(NamedTuple):
    """A line of ours, and which time it is run in one call of a step."""

    code: CodeType
    line: int
    time: int

    def __repr__(self) -> str:
        return f"{self.code.co_filename}:{self.line} ({self.code.co_name}), time {self.time}"


class _InterruptedRun:
    """A training, each call of which Ctrl-C ends once, or tries to."""

    def __init__(
        self, suite: InterruptionConformance, policy: str, accumulate: int, compiled: bool
    ) -> None:
        self._suite, self._accumulate = suite, accumulate
        model, optimizer = suite.trainable("adam")
        loss_fn = suite.loss()
        self._is_ours = _is_ours(suite, loss_fn)
        self._step = suite.step_of(
            loss_fn, model, optimizer, policy=policy, accumulate=accumulate, compile=compiled
        )
        self.losses: list[float | None] = []
        self.points: list[tuple[int, _Point]] = []
        """Where Ctrl-C came, with the number of the call."""
        self.leaves_all_as_it_was = True

    def call(self) -> None:
        """One more; its loss is None if Ctrl-C came when it had happened."""
        before = self._counters()
        loss = None
        try:
            loss = self._step(*self._suite.batch(1.0 + len(self.losses) % 5)).loss
        except ENDED:
            if self._counters() == before:
                raise
        self.losses.append(loss)

    def _counters(self) -> tuple[int, int]:
        return self._step._steps, self._step._micro_steps

    def sweep(self) -> None:
        """Have each call of a step interrupted, the first micro-batch, the second and so on."""
        for _ in range(2 * self._accumulate):  # what the first ones do alone is not repeated
            self.call()
        waiting = self._points()
        ambient = self._suite.harness.ambient()
        with without_locks():
            while any(waiting):
                for points in waiting:
                    if points:
                        self._interrupt_at(points.pop())
                    else:
                        self.call()
        self.leaves_all_as_it_was = self._suite.harness.ambient() == ambient

    def _interrupt_at(self, point: _Point) -> None:
        number = len(self.losses)
        with _ctrl_c_at(point) as came, suppress(*ENDED):
            self.call()
        if came:
            self.points.append((number, point))
        if len(self.losses) == number:
            self.call()

    def _points(self) -> list[list[_Point]]:
        """For each call of a step the lines that it runs, their first time and their last."""
        found: list[Counter[tuple[CodeType, int]]] = [Counter() for _ in range(self._accumulate)]
        for _ in range(4):  # steps that are applied, and steps that are skipped
            for times in found:
                here: Counter[tuple[CodeType, int]] = Counter()
                with _lines_counted(here, self._is_ours):
                    self.call()
                times |= here
        return [_sampled(times, place) for place, times in enumerate(found)]


def _is_ours(suite: InterruptionConformance, loss_fn: LossFn) -> _IsOurs:
    """Whether code is the core's, the adapter's, or that of the loss function."""
    adapter = Path(inspect.getfile(type(suite.harness.backend))).parent
    ours = (f"{Path(ampbridge.__file__).parent}{os.sep}", f"{adapter}{os.sep}")
    loss_code = inspect.unwrap(loss_fn).__code__

    def is_ours(code: CodeType) -> bool:
        file = code.co_filename
        return code is loss_code or (file.startswith(ours) and f"{os.sep}testing" not in file)

    return is_ours


def _sampled(times: Counter[tuple[CodeType, int]], offset: int) -> list[_Point]:
    points = [_Point(code, line, 1) for code, line in times]
    points += [_Point(code, line, count) for (code, line), count in times.items() if count > 1]
    return points[offset % LINES_APART :: LINES_APART]


class _NoLock(nullcontext[None]):
    """Python looks for signals after calls, never between taking a lock and the block; a trace does."""

    def locked(self) -> bool:
        return False


@contextmanager
def without_locks() -> Iterator[None]:
    """Regions open and close without a lock, in a block that traces them in one thread."""
    gc.unfreeze()  # what is frozen is not among the objects
    with ExitStack() as patches:
        for each in gc.get_objects():
            if issubclass(type(each), Interception):
                patches.enter_context(mock.patch.object(each, "_lock", _NoLock()))
        patches.enter_context(mock.patch("ampbridge.adapters.interception.Lock", _NoLock))
        yield


@contextmanager
def _lines_counted(
    times: Counter[tuple[CodeType, int]], is_counted: Callable[[CodeType], bool]
) -> Iterator[None]:
    """How often each line is run in the block."""

    def at_line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            times[frame.f_code, frame.f_lineno] += 1
        return at_line

    with _traced(lambda frame, *_: at_line if is_counted(frame.f_code) else None):
        yield


@contextmanager
def _ctrl_c_at(point: _Point) -> Iterator[list[_Point]]:
    """SIGINT ahead of a line; yields what holds the point once it came."""
    came: list[_Point] = []
    times = 0

    def at_line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal times
        if event == "line" and frame.f_lineno == point.line:
            times += 1
            if times == point.time:
                came.append(point)
                signal.raise_signal(signal.SIGINT)
        return at_line

    with _traced(lambda frame, *_: at_line if frame.f_code is point.code else None):
        yield came


@contextmanager
def _traced(at_call: Any) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        yield
    finally:
        sys.settrace(before)
