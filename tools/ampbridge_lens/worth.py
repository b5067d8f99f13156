"""Worth it?: time and memory of the user's own step under each policy, all in one interleaved run.

create a model for each policy, and a second one in float32, "again"
warm each up: compile, and find a loss scale that fits
in each round, each policy runs a few steps, in a different order each time
ratio of a policy <- the median over the rounds of (its time / float32's in the same round)
noise             <- the largest distance from 1 in the confidence interval of the median of "again"
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from math import comb
from typing import Any, NamedTuple

from ampbridge.adapters.arguments import backend_of_decorated
from ampbridge.adapters.backend import Backend, LossFn, Model, Optimizer
from ampbridge.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single
from ampbridge.reports.printing import Table, TabularReport
from ampbridge.reports.progress import Progress, Report, reported
from ampbridge.training.result import StepResult
from ampbridge.training.step import TrainStep, train_step
from ampbridge_lens.subject import FLOAT32, in_words

FEWEST_WARM_UP, MOST_WARM_UP = 3, 25
"""The number of steps before timing starts: at least the first, then until a step is applied."""


class Times(NamedTuple):
    """Ratios to float32 in the same rounds.

    Attributes:
        interval: the 95 % confidence interval of the median, for any distribution of the ratios; with
            fewer than six rounds, from the smallest ratio to the largest.
    """

    median: float
    quartiles: tuple[float, float]
    interval: tuple[float, float]

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Times:
        """The statistics of at least two ratios."""
        ordered, count = sorted(ratios), len(ratios)
        low, median, high = statistics.quantiles(ordered, n=4, method="inclusive")
        # Each ratio falls above or below the median: the numbers of ways with k or fewer below it.
        ways = list(accumulate(comb(count, k) for k in range(count // 2)))
        outside = max(0, sum(number <= 0.025 * 2**count for number in ways) - 1)
        return cls(median, (low, high), (ordered[outside], ordered[-1 - outside]))


class WorthRow(NamedTuple):
    """The cost of one policy.

    Attributes:
        name: the printed name; "float32" and "float32, again" are the same.
        execution: "native" kernels or "simulated" rounding; empty if the policy was refused.
        seconds: the time of a step, for each round.
        times: relative to float32; None if the policy was refused.
        memory: the peak of one step in bytes, without memory that was held before it (weights and
            optimizer state); None if the framework does not tell.
        skipped: the number of timed steps that overflowed, so that the optimizer did not step.
        verdict: the result in words.
    """

    name: str
    policy: Policy
    execution: str
    seconds: tuple[float, ...]
    times: Times | None
    memory: int | None
    skipped: int
    verdict: str


@dataclass(frozen=True)
class WorthIt(TabularReport):
    """Time and memory by policy, float32 first; prints as a table.

    ``noise`` is the distance from 1 of the ratio of float32 to itself; smaller differences mean nothing.
    """

    backend: str
    device: str
    steps: int
    rounds: int
    noise: float
    rows: tuple[WorthRow, ...]

    def table(self) -> Table:
        """As it is printed."""
        return Table(
            f"{self.backend} on {self.device}: {self.rounds} rounds of {self.steps} steps, in turns",
            ("policy", "execution", "ms a step", "time", "quartiles", "step's memory", "verdict"),
            tuple(map(_cells, self.rows)),
            (
                "Time is relative to float32 in the same round. Memory is the peak of a step, without "
                "weights and optimizer state.",
            ),
        )


def _cells(row: WorthRow) -> tuple[str, ...]:
    memory = "unknown" if row.memory is None else f"{row.memory / 2**20:.1f} MiB"
    if row.times is None:
        return (row.name, row.execution, "", "", "", "", row.verdict)
    low, high = row.times.quartiles
    milliseconds = f"{1000 * statistics.median(row.seconds):.3f}"
    return (
        row.name, row.execution, milliseconds, f"{row.times.median:.3f}",
        f"{low:.3f} to {high:.3f}", memory, row.verdict,
    )  # fmt: skip


def worth_it(
    loss_fn: LossFn,
    make: Callable[[], tuple[Model, Optimizer]],
    *batch: Any,
    policies: Sequence[str | Policy] = ("O0", "O1", "O2"),
    steps: int = 5,
    rounds: int = 20,
    progress: Progress = None,
) -> WorthIt:
    """Time ``amp.train_step`` under each policy, on your own model and batch.

        def make():
            model = Net()
            return model, torch.optim.AdamW(model.parameters())

        print(lens.worth_it(loss_fn, make, x, y, policies=["O1", "O1:bfloat16"], progress=True))

    Steps are compiled on TensorFlow, and eager on the other frameworks. All models are in memory at
    the same time.

    Args:
        make: creates a new model and its optimizer; called once for each policy, twice for float32.
        policies: the policies to time, in addition to float32.
        steps: the number of steps in one turn.
        rounds: the number of turns of each policy; more rounds reduce the noise.
        progress: True for a bar on a terminal's standard error; or ``progress(done, total, doing)``.

    Raises:
        ArgumentError: for fewer than one step or two rounds.
        ArgumentTypeError: if ``make`` returns something else, or the same model again.
    """
    _check(policies, steps, rounds)
    others = [policy for policy in dict.fromkeys(map(single, policies)) if policy != FLOAT32]
    names = ["float32", "float32, again", *map(_name, others)]
    timed = [FLOAT32, FLOAT32, *others]
    backend, pairs = _created(make, len(timed))
    contestants = [
        Contestant(name, policy, partial(train_step, loss_fn, *pair, policy=policy), batch)
        for name, policy, pair in zip(names, timed, pairs, strict=True)
    ]
    with reported(progress) as report:
        _race(backend, contestants, steps, rounds, report)
    noise = _noise(contestants[1].times(contestants[0]))
    return WorthIt(
        backend.name,
        backend.devices()[0].model,
        steps,
        rounds,
        noise,
        tuple(_row(backend, each, contestants[0], noise, steps) for each in contestants),
    )


def _check(policies: object, steps: int, rounds: int) -> None:
    if isinstance(policies, (str, Policy)):
        msg = f"policies is a list of policies, not {policies!r}.\n"
        raise ArgumentTypeError(msg + f"Hint: policies=[{policies!r}]")
    for name, value, least in (("steps", steps, 1), ("rounds", rounds, 2)):
        if not isinstance(value, int) or value < least:
            msg = f"Passed {name}={value!r}; allowed are whole numbers from {least}.\n"
            raise ArgumentError(msg + f"Hint: {name}={max(least, 5)}")


def _name(policy: Policy) -> str:
    short = str(policy)
    return short if Policy.parse(short) == policy else repr(policy)


def _created(
    make: Callable[[], tuple[Model, Optimizer]], count: int
) -> tuple[Backend, list[tuple[Model, Optimizer]]]:
    """The backend, and ``count`` models with their optimizers, all of them different objects."""
    pairs = [make() for _ in range(count)]
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            msg = f"make() returned {pair!r:.80}; allowed is (model, optimizer).\n"
            raise ArgumentTypeError(msg + "Hint: return model, optimizer")
    if len({id(part) for pair in pairs for part in pair}) < 2 * count:
        msg = "make() returned the same model or optimizer twice; each policy needs its own.\n"
        raise ArgumentTypeError(msg + "Hint: make them inside: def make(): model = Net(); ...")
    return backend_of_decorated(*pairs[0]), pairs


@dataclass
class Contestant:
    """A policy with its own training step, and its measurements."""

    name: str
    policy: Policy
    make_step: Callable[[], TrainStep]
    batch: Sequence[Any]
    step: TrainStep = field(init=False)
    seconds: list[float] = field(default_factory=list, init=False)
    skipped: int = field(default=0, init=False)
    memory: int | None = field(default=None, init=False)
    refusal: str = field(default="", init=False)

    def warm_up(self) -> None:
        """Compile, and find a loss scale that fits; or record that the backend refuses the policy."""
        try:
            self.step = self.make_step()
            for i in range(MOST_WARM_UP):
                applied = self.step(*self.batch).applied
                if applied and i + 1 >= FEWEST_WARM_UP:
                    break
        except UnsupportedError as error:
            self.refusal = "refused: " + str(error).partition("\n")[0]
        except Exception as error:
            if self.policy == FLOAT32:
                raise
            self.refusal = "raised: " + in_words(error)

    def take_turn(self, steps: int) -> None:
        """Run ``steps`` steps and record their mean time."""
        start = time.perf_counter()
        results = [self.step(*self.batch) for _ in range(steps)]
        _wait_for(results[-1])
        self.seconds.append((time.perf_counter() - start) / steps)
        self.skipped += sum(not result.applied for result in results)

    def measure_memory(self, backend: Backend) -> None:
        """Run one more step, to measure its peak memory."""
        self.memory = backend.peak_memory(lambda: _wait_for(self.step(*self.batch)))

    def times(self, baseline: Contestant) -> Times:
        """The times relative to ``baseline`` in the same rounds."""
        pairs = zip(self.seconds, baseline.seconds, strict=True)
        return Times.of([own / its for own, its in pairs])


def _wait_for(result: StepResult) -> None:
    result.loss  # noqa: B018  # reading it waits for all earlier work of the device


def _race(
    backend: Backend, contestants: Sequence[Contestant], steps: int, rounds: int, report: Report
) -> None:
    """Warm up all contestants, run all rounds, and measure memory."""
    total = len(contestants) * (rounds + 2)
    done = 0

    def each(of: Sequence[Contestant], doing: str, action: Callable[[Contestant], None]) -> None:
        nonlocal done
        for contestant in of:
            report(done, total, f"{contestant.name}, {doing}")
            if not contestant.refusal:
                action(contestant)
            done += 1

    each(contestants, "warming up", Contestant.warm_up)
    for i in range(rounds):
        each(_in_turn(contestants, i), f"round {i + 1}", lambda c: c.take_turn(steps))
    each(contestants, "memory", lambda c: c.measure_memory(backend))
    report(total, total, "")


def _in_turn(contestants: Sequence[Contestant], turn: int) -> list[Contestant]:
    """The contestants in rotated order, reversed in every other round.

    So none of them always follows the same one.
    """
    first = turn % len(contestants)
    rotated = [*contestants[first:], *contestants[:first]]
    return rotated[::-1] if turn % 2 else rotated


def _noise(again: Times) -> float:
    return max(abs(1 - bound) for bound in again.interval)


def _row(
    backend: Backend, contestant: Contestant, baseline: Contestant, noise: float, steps: int
) -> WorthRow:
    if contestant.refusal:
        refusal = contestant.refusal
        return WorthRow(contestant.name, contestant.policy, "", (), None, None, 0, refusal)
    low = contestant.policy.level != "O0"
    execution = backend.execution(contestant.policy) if low else "native"
    times = contestant.times(baseline)
    timed = steps * len(contestant.seconds)
    if low:
        verdict = _verdict(times, noise, _share(contestant.memory, baseline.memory), execution)
    else:
        verdict = "the baseline of the others" if contestant is baseline else _noise_in_words(noise)
    if contestant.skipped:
        verdict += f"; {contestant.skipped} of {timed} steps were skipped"
    return WorthRow(
        contestant.name,
        contestant.policy,
        execution,
        tuple(contestant.seconds),
        times,
        contestant.memory,
        contestant.skipped,
        verdict,
    )


def _share(memory: int | None, baseline: int | None) -> float | None:
    return None if memory is None or not baseline else memory / baseline


def _verdict(times: Times, noise: float, memory: float | None, execution: str) -> str:
    """Faster or slower is what is so beyond the noise, by the whole interval of the median."""
    low, high = times.interval
    if times.median < 1 - noise and high < 1:
        said = f"{1 / times.median:.1f}x faster"
    elif times.median > 1 + noise and low > 1:
        said = f"slower: {times.median:.2f} times the time"
    else:
        said = f"no gain here: within {_noise_in_words(noise)}"
    if memory is not None:
        said += f", {memory:.2g} of the memory"
    if execution == "simulated":
        said += "; simulated: its time says nothing of a GPU"
    return said


def _noise_in_words(noise: float) -> str:
    return f"the noise of +-{noise:.1%}"
