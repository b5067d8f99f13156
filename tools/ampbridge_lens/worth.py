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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, count
from math import comb
from operator import truediv
from typing import Any, NamedTuple

from ampbridge.adapters.arguments import backend_of_model
from ampbridge.adapters.backend import Backend, LossFn, Model, Optimizer
from ampbridge.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single
from ampbridge.reports.printing import Table, TabularReport
from ampbridge.reports.progress import Progress, reported
from ampbridge.training.result import StepResult
from ampbridge.training.step import train_step
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
        ordered, number = sorted(ratios), len(ratios)
        low, median, high = statistics.quantiles(ordered, n=4, method="inclusive")
        # Each ratio falls above or below the median: the numbers of ways with k or fewer below it.
        ways = accumulate(comb(number, k) for k in range(number // 2))
        outside = max(0, sum(each <= 0.025 * 2**number for each in ways) - 1)
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
        rows = []
        for row in self.rows:
            measured = ("", "", "", "")
            if row.times is not None:
                low, high = row.times.quartiles
                measured = (
                    f"{1000 * statistics.median(row.seconds):.3f}",
                    f"{row.times.median:.3f}",
                    f"{low:.3f} to {high:.3f}",
                    "unknown" if row.memory is None else f"{row.memory / 2**20:.1f} MiB",
                )
            rows.append((row.name, row.execution, *measured, row.verdict))
        return Table(
            f"{self.backend} on {self.device}: {self.rounds} rounds of {self.steps} steps, in turns",
            ("policy", "execution", "ms a step", "time", "quartiles", "step's memory", "verdict"),
            tuple(rows),
            (
                "Time is relative to float32 in the same round. Memory is the peak of a step, without "
                "weights and optimizer state.",
            ),
        )


@dataclass
class _Timed:
    """A policy with a training step of its own, and what was measured of it."""

    name: str
    policy: Policy
    step: Callable[[], StepResult] = field(init=False)
    seconds: list[float] = field(default_factory=list)
    skipped: int = 0
    memory: int | None = None
    refusal: str = ""

    def measure_memory(self, backend: Backend) -> None:
        self.memory = backend.peak_memory(lambda: _wait_for(self.step()))

    def times_relative_to(self, baseline: _Timed) -> Times:
        return Times.of(list(map(truediv, self.seconds, baseline.seconds)))


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
    float32, again = _Timed("float32", FLOAT32), _Timed("float32, again", FLOAT32)
    timed = [float32, again, *(_Timed(_name(policy), policy) for policy in others)]
    pairs = _made(make, len(timed))
    backend = backend_of_model(*pairs[0])
    with reported(progress) as report:
        done, total = count(), len(timed) * (rounds + 2)

        def each(order: Sequence[_Timed], doing: str) -> Iterator[_Timed]:
            for one in order:
                report(next(done), total, f"{one.name}, {doing}")
                if not one.refusal:
                    yield one

        for one, pair in zip(each(timed, "warming up"), pairs, strict=True):
            _warm_up(one, loss_fn, pair, batch)
        for i in range(rounds):
            # Rotated, and reversed in every other round: none of them always follows the same one.
            order = timed[i % len(timed) :] + timed[: i % len(timed)]
            for one in each(order[::-1] if i % 2 else order, f"round {i + 1}"):
                start = time.perf_counter()
                results = [one.step() for _ in range(steps)]
                _wait_for(results[-1])
                one.seconds.append((time.perf_counter() - start) / steps)
                one.skipped += sum(not result.applied for result in results)
        for one in each(timed, "memory"):
            one.measure_memory(backend)
        report(total, total, "")
    noise = max(abs(1 - bound) for bound in again.times_relative_to(float32).interval)
    rows = tuple(_row(backend, one, float32, noise, steps * rounds) for one in timed)
    return WorthIt(backend.name, backend.devices()[0].model, steps, rounds, noise, rows)


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


def _made(
    make: Callable[[], tuple[Model, Optimizer]], number: int
) -> list[tuple[Model, Optimizer]]:
    """Make that many models with their optimizers, and check that all are different objects."""
    pairs = [make() for _ in range(number)]
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            msg = f"make() returned {pair!r:.80}; allowed is (model, optimizer).\n"
            raise ArgumentTypeError(msg + "Hint: return model, optimizer")
    if len({id(part) for pair in pairs for part in pair}) < 2 * number:
        msg = "make() returned the same model or optimizer twice; each policy needs its own.\n"
        raise ArgumentTypeError(msg + "Hint: make them inside: def make(): model = Net(); ...")
    return pairs


def _warm_up(
    timed: _Timed, loss_fn: LossFn, pair: tuple[Model, Optimizer], batch: Sequence[Any]
) -> None:
    """Compile, and find a loss scale that fits; or note why the policy cannot be timed."""
    try:
        timed.step = partial(train_step(loss_fn, *pair, policy=timed.policy), *batch)
        for i in range(MOST_WARM_UP):
            applied = timed.step().applied
            if applied and i + 1 >= FEWEST_WARM_UP:
                break
    except UnsupportedError as error:
        timed.refusal = "refused: " + str(error).partition("\n")[0]
    except Exception as error:
        if timed.policy == FLOAT32:
            raise
        timed.refusal = "raised: " + in_words(error)


def _wait_for(result: StepResult) -> None:
    result.loss  # noqa: B018  # reading it waits for all earlier work of the device


def _row(backend: Backend, timed: _Timed, float32: _Timed, noise: float, steps: int) -> WorthRow:
    if timed.refusal:
        return WorthRow(timed.name, timed.policy, "", (), None, None, 0, timed.refusal)
    times, execution = timed.times_relative_to(float32), "native"
    if timed.policy.level != "O0":
        execution = backend.execution(timed.policy)
        verdict = _verdict(times, noise)
        if timed.memory is not None and float32.memory:
            verdict += f", {timed.memory / float32.memory:.2g} of the memory"
        if execution == "simulated":
            verdict += "; simulated: its time says nothing of a GPU"
    elif timed is float32:
        verdict = "the baseline of the others"
    else:
        verdict = f"the noise of +-{noise:.1%}"
    if timed.skipped:
        verdict += f"; {timed.skipped} of {steps} steps were skipped"
    return WorthRow(
        timed.name,
        timed.policy,
        execution,
        tuple(timed.seconds),
        times,
        timed.memory,
        timed.skipped,
        verdict,
    )


def _verdict(times: Times, noise: float) -> str:
    """Whether a policy is faster or slower, beyond the noise and by the whole interval."""
    low, high = times.interval
    if times.median < 1 - noise and high < 1:
        return f"{1 / times.median:.1f}x faster"
    if times.median > 1 + noise and low > 1:
        return f"slower: {times.median:.2f} times the time"
    return f"no gain here: within the noise of +-{noise:.1%}"
