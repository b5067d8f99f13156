"""Worth it?: time and memory of the user's own step under each policy, all in one interleaved run.

create a model for each policy, and a second one in float32, "again"
warm each up: compile, and find a loss scale that fits
in each round, each policy runs a few steps, in a different order each time
ratio of a policy <- the median over the rounds of (its time / float32's in the same round)
noise             <- the largest distance from 1 of the quartiles of "again"
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isroutine
from itertools import count
from operator import truediv
from typing import Any

from ampbridge.adapters.arguments import backend_of_model, described
from ampbridge.adapters.backend import LossFn, Model, Optimizer
from ampbridge.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from ampbridge.errors.foreign_names import told_of
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single
from ampbridge.reports.printing import Table, TabularReport
from ampbridge.reports.progress import Progress, reported
from ampbridge.training.result import StepResult
from ampbridge.training.step import train_step
from ampbridge_lens.subject import FLOAT32, in_words

FEWEST_WARM_UP, MOST_WARM_UP = 3, 25
"""The number of steps before timing starts: at least the first, then until a step is applied."""


@dataclass
class WorthRow:
    """The cost of one policy. What the backend refused has a verdict alone.

    Attributes:
        name: the printed name; "float32" and "float32, again" are the same.
        execution: "native" kernels or "simulated" rounding.
        seconds: the time of a step, for each round.
        ratio: the median of the ratios to float32 in the same rounds, or None.
        quartiles: those of the same ratios.
        memory: the peak of one step in bytes, without memory that was held before it (weights and
            optimizer state); None if the framework does not tell.
        skipped: the number of timed steps that overflowed, so that the optimizer did not step.
        verdict: the result in words.
    """

    name: str
    policy: Policy
    execution: str = ""
    seconds: tuple[float, ...] = ()
    ratio: float | None = None
    quartiles: tuple[float, ...] = ()
    memory: int | None = None
    skipped: int = 0
    verdict: str = ""


@dataclass(frozen=True)
class WorthIt(TabularReport):
    """Time and memory by policy, float32 first; prints as a table.

    ``noise`` is how far half of the ratios of float32 to itself lie from 1; smaller differences mean
    nothing.
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
            if row.ratio is not None:
                measured = (
                    f"{1000 * statistics.median(row.seconds):.3f}",
                    f"{row.ratio:.3f}",
                    " to ".join(f"{each:.3f}" for each in row.quartiles),
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


@told_of("lens.worth_it")
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
    float32, again = WorthRow("float32", FLOAT32), WorthRow("float32, again", FLOAT32)
    rows = [float32, again, *(WorthRow(str(policy), policy) for policy in others)]
    pairs = _made(make, len(rows))
    backend = backend_of_model(*pairs[0])
    racing: list[tuple[WorthRow, Callable[[], StepResult]]] = []
    with reported(progress) as report:
        done, total = count(), len(rows) * (rounds + 2)
        for row, pair in zip(rows, pairs, strict=True):
            report(next(done), total, f"{row.name}, warming up")
            step = _warmed_up(row, loss_fn, pair, batch)
            if step is not None:
                racing.append((row, step))
        for i in range(rounds):
            # Rotated, and reversed in every other round: none of them always follows the same one.
            order = racing[i % len(racing) :] + racing[: i % len(racing)]
            for row, step in order[::-1] if i % 2 else order:
                report(next(done), total, f"{row.name}, round {i + 1}")
                start = time.perf_counter()
                results = [step() for _ in range(steps)]
                _wait_for(results[-1])
                row.seconds += ((time.perf_counter() - start) / steps,)
                row.skipped += sum(not result.applied for result in results)
        for row, step in racing:
            report(next(done), total, f"{row.name}, memory")
            row.memory = backend.peak_memory(partial(_finish, step))
        report(total, total, "")
    for row, _ in racing:
        ratios = list(map(truediv, row.seconds, float32.seconds))
        low, row.ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
        row.quartiles = low, high
    noise = max(abs(1 - bound) for bound in again.quartiles)
    for row, _ in racing:
        row.execution = "native" if row.policy == FLOAT32 else backend.execution(row.policy)
        row.verdict = _verdict(row, float32, noise, steps * rounds)
    return WorthIt(backend.name, backend.devices()[0].model, steps, rounds, noise, tuple(rows))


def _check(policies: object, steps: int, rounds: int) -> None:
    if isinstance(policies, (str, Policy)):
        msg = f"policies is a list of policies, not {policies!r}.\n"
        raise ArgumentTypeError(msg + f"Hint: policies=[{policies!r}]")
    for name, value, least in (("steps", steps, 1), ("rounds", rounds, 2)):
        if not isinstance(value, int) or value < least:
            msg = f"Passed {name}={value!r}; allowed are whole numbers from {least}.\n"
            raise ArgumentError(msg + f"Hint: {name}={max(least, 5)}")


def _made(
    make: Callable[[], tuple[Model, Optimizer]], number: int
) -> list[tuple[Model, Optimizer]]:
    """Make that many models with their optimizers, and check that all are different objects."""
    if not (isroutine(make) or isinstance(make, partial)):
        msg = f"make is a function that makes a model and its optimizer anew, not {described(make)}.\n"
        raise ArgumentTypeError(msg + "Hint: def make(): model = Net(); return model, optimizer")
    pairs = [make() for _ in range(number)]
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            msg = f"make() returned {pair!r:.80}; allowed is (model, optimizer).\n"
            raise ArgumentTypeError(msg + "Hint: return model, optimizer")
    if len({id(part) for pair in pairs for part in pair}) < 2 * number:
        msg = "make() returned the same model or optimizer twice; each policy needs its own.\n"
        raise ArgumentTypeError(msg + "Hint: make them inside: def make(): model = Net(); ...")
    return pairs


def _warmed_up(
    row: WorthRow, loss_fn: LossFn, pair: tuple[Model, Optimizer], batch: Sequence[Any]
) -> Callable[[], StepResult] | None:
    """A step that is compiled and has a loss scale that fits; or None, with the reason as the verdict."""
    try:
        step = partial(train_step(loss_fn, *pair, policy=row.policy), *batch)
        for i in range(MOST_WARM_UP):
            applied = step().applied
            if applied and i + 1 >= FEWEST_WARM_UP:
                break
    except UnsupportedError as error:
        row.verdict = "refused: " + str(error).partition("\n")[0]
    except Exception as error:
        if row.policy == FLOAT32:
            raise
        row.verdict = "raised: " + in_words(error)
    else:
        return step
    return None


def _finish(step: Callable[[], StepResult]) -> None:
    _wait_for(step())


def _wait_for(result: StepResult) -> None:
    result.loss  # noqa: B018  # reading it waits for all earlier work of the device


def _verdict(row: WorthRow, float32: WorthRow, noise: float, steps: int) -> str:
    """Whether a policy is faster or slower, beyond the noise and in three of four rounds."""
    assert row.ratio is not None
    if row is float32:
        said = ["the baseline of the others"]
    elif row.policy == FLOAT32:
        said = [f"the noise of +-{noise:.1%}"]
    elif row.ratio < 1 - noise and row.quartiles[1] < 1:
        said = [f"{1 / row.ratio:.1f}x faster"]
    elif row.ratio > 1 + noise and row.quartiles[0] > 1:
        said = [f"slower: {row.ratio:.2f} times the time"]
    else:
        said = [f"no gain here: within the noise of +-{noise:.1%}"]
    if row.policy != FLOAT32 and row.memory is not None and float32.memory:
        said[0] += f", {row.memory / float32.memory:.2g} of the memory"
    if row.execution == "simulated":
        said.append("simulated: its time says nothing of a GPU")
    if row.skipped:
        said.append(f"{row.skipped} of {steps} steps were skipped")
    return "; ".join(said)
