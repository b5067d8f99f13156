"""Worth it?: time and memory of the user's own step under each policy, all in one interleaved run.

make a model of its own for each policy, and a second one in float32, "again"
warm each up: compilation, a loss scale that fits
round after round, each takes a turn of a few steps, in another order each time
ratio of a policy <- the median over the rounds of (its time / float32's in the same round)
noise             <- how far from 1 "again" may come: the interval that its median lies in
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
from ampbridge.lens.progress import Progress, Report, reported
from ampbridge.lens.subject import FLOAT32
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single
from ampbridge.reports.printing import Table, TabularReport
from ampbridge.training.result import StepResult
from ampbridge.training.step import TrainStep, train_step

FEWEST_WARM_UP, MOST_WARM_UP = 3, 25
"""Steps before the clock runs: at least so many, and then until one was not skipped."""


class Times(NamedTuple):
    """Ratios to float32 in the same rounds.

    Attributes:
        interval: where the median lies with 95 % confidence, whatever the distribution of the ratios;
            of fewer than six rounds, all there are.
    """

    median: float
    quartiles: tuple[float, float]
    interval: tuple[float, float]

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Times:
        """Those of at least two ratios."""
        ordered, count = sorted(ratios), len(ratios)
        low, median, high = statistics.quantiles(ordered, n=4, method="inclusive")
        # Of all ways in which ratios fall above or below the median, those with k or fewer below it.
        ways = list(accumulate(comb(count, k) for k in range(count // 2)))
        outside = max(0, sum(number <= 0.025 * 2**count for number in ways) - 1)
        return cls(median, (low, high), (ordered[outside], ordered[-1 - outside]))


class WorthRow(NamedTuple):
    """What one policy costs.

    Attributes:
        name: as it is printed; "float32" and "float32, again" are the same.
        execution: "native" kernels or "simulated" rounding; empty where it was refused.
        seconds: a step, round by round.
        times: against float32; None where it was refused.
        memory: peak of one step in bytes, beyond what was held before it (weights and what the
            optimizer keeps); None: not told.
        skipped: how many of the timed steps overflowed, so that the optimizer did not step.
        verdict: in words.
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

    ``noise`` is how far from 1 the ratio of float32 to itself came: what this run cannot tell apart.
    """

    backend: str
    device: str
    steps: int
    rounds: int
    noise: float
    rows: tuple[WorthRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "backend": self.backend,
            "device": self.device,
            "steps": self.steps,
            "rounds": self.rounds,
            "noise": self.noise,
            "rows": [
                {
                    **row._asdict(),
                    "policy": row.policy.to_dict(),
                    "seconds": list(row.seconds),
                    "times": None if row.times is None else row.times._asdict(),
                }
                for row in self.rows
            ],
        }

    def table(self) -> Table:
        """As it is printed."""
        return Table(
            f"{self.backend} on {self.device}: {self.rounds} rounds of {self.steps} steps, in turns",
            ("policy", "execution", "ms a step", "time", "quartiles", "step's memory", "verdict"),
            tuple(map(_cells, self.rows)),
            (
                "Time is over float32's in the same round. Memory is the peak of a step, beyond weights "
                "and what the optimizer keeps.",
            ),
        )


def _cells(row: WorthRow) -> tuple[str, ...]:
    memory = "not told" if row.memory is None else f"{row.memory / 2**20:.1f} MiB"
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

    Steps are compiled where the framework's users expect it. All models are held at once.

    Args:
        make: makes a new model and its optimizer; called once for each policy, and twice for float32.
        policies: float32 is timed in any case.
        steps: of one turn.
        rounds: how many turns each takes; more of them narrow the noise.
        progress: True for a bar on a terminal's standard error; or ``progress(done, total, doing)``.

    Raises:
        ArgumentError: for fewer than one step or two rounds.
        ArgumentTypeError: if ``make`` makes something else, or the same model again.
    """
    _check(policies, steps, rounds)
    others = [policy for policy in dict.fromkeys(map(single, policies)) if policy != FLOAT32]
    names = ["float32", "float32, again", *map(_name, others)]
    tried = [FLOAT32, FLOAT32, *others]
    backend, made = _made(make, len(tried))
    contestants = [
        Contestant(name, policy, partial(train_step, loss_fn, *each, policy=policy), batch)
        for name, policy, each in zip(names, tried, made, strict=True)
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


def _made(
    make: Callable[[], tuple[Model, Optimizer]], count: int
) -> tuple[Backend, list[tuple[Model, Optimizer]]]:
    """So many models with their optimizers, no two of them the same, and their backend."""
    made = [make() for _ in range(count)]
    for each in made:
        if not isinstance(each, tuple) or len(each) != 2:
            msg = f"make() returned {each!r:.80}; allowed is (model, optimizer).\n"
            raise ArgumentTypeError(msg + "Hint: return model, optimizer")
    if len({id(part) for each in made for part in each}) < 2 * count:
        msg = "make() returned the same model or optimizer twice; each policy trains one of its own.\n"
        raise ArgumentTypeError(msg + "Hint: make them inside: def make(): model = Net(); ...")
    return backend_of_decorated(*made[0]), made


@dataclass
class Contestant:
    """A policy with a step of its own, and how it did."""

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
        """Compile, and find a loss scale that fits; or learn that the backend refuses the policy."""
        try:
            self.step = self.make_step()
            for i in range(MOST_WARM_UP):
                applied = self.step(*self.batch).applied
                if applied and i + 1 >= FEWEST_WARM_UP:
                    break
        except UnsupportedError as error:
            self.refusal = str(error).partition("\n")[0]

    def take_turn(self, steps: int) -> None:
        """Run so many steps and note their mean time."""
        start = time.perf_counter()
        results = [self.step(*self.batch) for _ in range(steps)]
        _wait_for(results[-1])
        self.seconds.append((time.perf_counter() - start) / steps)
        self.skipped += sum(not result.applied for result in results)

    def measure_memory(self, backend: Backend) -> None:
        """Run one more step, for its peak."""
        self.memory = backend.peak_memory(lambda: _wait_for(self.step(*self.batch)))

    def times(self, baseline: Contestant) -> Times:
        """Against ``baseline`` in the same rounds."""
        pairs = zip(self.seconds, baseline.seconds, strict=True)
        return Times.of([own / its for own, its in pairs])


def _wait_for(result: StepResult) -> None:
    result.loss  # noqa: B018  # it is there when all that was asked of the device before is done


def _race(
    backend: Backend, contestants: Sequence[Contestant], steps: int, rounds: int, report: Report
) -> None:
    """Everybody warms up, takes all turns, and shows its memory."""
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
    """Another one begins each time, and every other time it goes round the other way, so that
    nobody always follows the same neighbour."""
    first = turn % len(contestants)
    rotated = [*contestants[first:], *contestants[:first]]
    return rotated[::-1] if turn % 2 else rotated


def _noise(again: Times) -> float:
    return max(abs(1 - bound) for bound in again.interval)


def _row(
    backend: Backend, contestant: Contestant, baseline: Contestant, noise: float, steps: int
) -> WorthRow:
    if contestant.refusal:
        said = f"refused: {contestant.refusal}"
        return WorthRow(contestant.name, contestant.policy, "", (), None, None, 0, said)
    low = contestant.policy.level != "O0"
    execution = backend.execution(contestant.policy) if low else "native"
    times = contestant.times(baseline)
    timed = steps * len(contestant.seconds)
    if low:
        verdict = _verdict(times, noise, _share(contestant.memory, baseline.memory), execution)
    else:
        verdict = (
            "what the others are held against" if contestant is baseline else _noise_in_words(noise)
        )
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
