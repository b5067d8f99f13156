"""Monitor: the ranges of a model while it is trained.

before every k-th step:  rows <- lens.ranges' of the present weights on the step's batch
step
after it:                rows at the step's loss scale, by layer, to files and loggers

A look restores all that it touches, so the training is the same to the bit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from math import floor, log2
from typing import Any, NamedTuple

from ampbridge.adapters.backend import Model
from ampbridge.errors import ArgumentTypeError
from ampbridge.errors.flags import checked_count
from ampbridge.errors.foreign_names import told_of
from ampbridge.policies.policy import Policy
from ampbridge.reports.csv_file import CsvFile
from ampbridge.reports.step_log import Target, numbers_to
from ampbridge.training.decorate import undecorated
from ampbridge.training.result import StepResult
from ampbridge.training.step import TrainStep
from ampbridge_lens.exponents import Exponents
from ampbridge_lens.ranges import Dtypes, Kind, RangeRow, Ranges, dtypes_of, measured_rows
from ampbridge_lens.subject import Subject


class MonitorRow(NamedTuple):
    """The values of one kind in one layer, at one step.

    Attributes:
        step: the number of the step.
        scale: the loss scale that the gradients are multiplied by: the step's, or the next lower power
            of two.
        skipped: the steps that were skipped since the monitor began, this one included unless
            micro-batches of it follow.
        layer: the dotted name; empty for the model itself.
        kind: "output" (of ops), "gradient" (of their outputs) or "parameter" (the gradients of the
            layer's own).
        largest: the largest finite |x|.
        headroom: doublings until the largest overflows in float16; None if all are zero.
        overflowing, flushed, subnormal: fractions in float16: infinite, zero that was not, subnormal.
    """

    step: int
    scale: float
    skipped: int
    layer: str
    kind: Kind
    largest: float
    headroom: int | None
    overflowing: float
    flushed: float
    subnormal: float


_NUMBERS = ("largest", "headroom", "overflowing", "flushed", "subnormal")

Write = Callable[[Sequence[MonitorRow]], None]


class Monitor:
    """A step that looks at the model's ranges; made by ``lens.monitor``. Call it as the step.

    Attributes:
        step: the step itself.
        rows: what was seen so far.
        ranges: the last look, as ``lens.ranges`` reports it, without a safe scale; None before it.
    """

    def __init__(self, step: TrainStep, every: int, writes: Sequence[Write]) -> None:
        self.step = step
        self.rows: list[MonitorRow] = []
        self.ranges: Ranges | None = None
        self._every, self._writes = every, tuple(writes)
        self._dtypes: dict[Policy, Dtypes] = {}
        self._pending: list[StepResult] = []
        self._taken, self._skipped = 0, 0
        self._is_within = False

    def __call__(self, /, *batch: Any, **named: Any) -> StepResult:
        """Run the step, and at every k-th one look first. Waits for the device only then."""
        looks = not self._is_within and self._taken % self._every == 0
        seen = self._look(batch, named) if looks else None
        result = self.step(*batch, **named)
        self._is_within = result.is_accumulating
        if not self._is_within:
            self._taken += 1
            self._pending.append(result.without_aux())
        if seen is not None:
            self._report(seen, result)
        return result

    def _look(self, batch: Sequence[Any], named: Mapping[str, Any]) -> Ranges:
        """The ranges without a loss scale."""
        step, policy, both = self.step, self.step.policy, (batch, named)

        def loss_fn(model: Model, batch: Sequence[Any], named: Mapping[str, Any]) -> Any:
            return step.loss_fn(model, *batch, **named)

        with undecorated(step.model, step.optimizer):
            subject = Subject(loss_fn, step.model)
            if policy not in self._dtypes:
                self._dtypes[policy] = dtypes_of(subject, both, policy)
            rows, _ = measured_rows(subject, both, policy, self._dtypes[policy])
        return Ranges(policy, subject.backend.name, 1.0, None, rows)

    def _report(self, seen: Ranges, result: StepResult) -> None:
        pending, self._pending = self._pending, []
        self._skipped += sum(not each.applied for each in pending)
        self.ranges = seen.at(2.0 ** floor(log2(result.scale)))
        rows = [
            MonitorRow(
                self._taken + int(self._is_within),
                self.ranges.scale,
                self._skipped,
                layer,
                kind,
                *(getattr(values, name) for name in _NUMBERS),
            )
            for (layer, kind), values in _by_layer(self.ranges.rows).items()
        ]
        self.rows += rows
        for write in self._writes:
            write(rows)


@told_of("lens.monitor")
def monitor(
    step: TrainStep, *targets: Target, every: int = 1000, prefix: str = "ranges/"
) -> Monitor:
    """A step that reports the ranges of a model, by layer, while it is trained.

        step = lens.monitor(step, "ranges.csv", SummaryWriter(), every=100)
        for x, y in batches:
            step(x, y)
        step.rows

    Before the first step, and every ``every`` steps, it takes what ``lens.ranges`` takes of the present
    weights on the step's batch, without the safe scale: a pass in float32, and once another for the
    dtypes. Training is the same to the bit. Compiled steps stay compiled; the looks run eagerly. Where
    nothing is monitored, use the step itself.

    Args:
        *targets: as ``amp.StepLog`` takes them: paths of CSV files, objects with
            ``add_scalar(tag, value, step)``, functions of a dictionary and ``step=``. Tags are
            ``prefix``, the layer, the kind and the number: "ranges/encoder.0/gradient/headroom".
        every: the number of steps from one look to the next.
        prefix: of the tags.

    Raises:
        ArgumentError, ArgumentTypeError: for other arguments.
        StateError: for a CSV file that contains something else.
        WriteError: if a CSV file cannot be written.
    """
    if not isinstance(step, TrainStep):
        msg = f"lens.monitor looks at steps by amp.train_step, not at {step!r:.80}.\n"
        raise ArgumentTypeError(
            msg + "Hint: lens.monitor(amp.train_step(loss_fn, model, optimizer))"
        )
    checked_count("every", every, "lens.monitor(step, every=100)")
    if not isinstance(prefix, str):
        msg = f"prefix is a string, not {prefix!r:.80}.\nHint: prefix='ranges/'"
        raise ArgumentTypeError(msg)
    return Monitor(step, every, [_write_to(target, prefix) for target in targets])


def _by_layer(rows: Sequence[RangeRow]) -> dict[tuple[str, Kind], Exponents]:
    parts: dict[tuple[str, Kind], list[Exponents]] = {}
    for row in rows:
        layer = row.name.rpartition(".")[0] if row.kind == "parameter" else row.layer
        parts.setdefault((layer, row.kind), []).append(row.values)
    return {key: Exponents.merged(each) for key, each in parts.items()}


# -- where it goes


def _write_to(target: Target, prefix: str) -> Write:
    if isinstance(target, (str, os.PathLike)):
        file = CsvFile(target, MonitorRow._fields)

        def append(rows: Sequence[MonitorRow]) -> None:
            for row in rows:
                file.append(row)

        return append
    example = "lens.monitor(step, 'ranges.csv', SummaryWriter(), wandb.log)"
    write = numbers_to(target, "A monitor", example)
    return lambda rows: write(_tagged(rows, prefix), rows[0].step)


def _tagged(rows: Sequence[MonitorRow], prefix: str) -> dict[str, float]:
    """The numbers of one look, by their tags."""
    found = {f"{prefix}{name}": float(getattr(rows[0], name)) for name in ("scale", "skipped")}
    for row in rows:
        for name in _NUMBERS:
            if (value := getattr(row, name)) is not None:
                found[f"{prefix}{row.layer or 'model'}/{row.kind}/{name}"] = float(value)
    return found
