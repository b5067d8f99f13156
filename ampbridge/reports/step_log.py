"""Results of steps for loggers: TensorBoard, functions of a dictionary, CSV, a line on the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from os import PathLike
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from ampbridge.errors import ArgumentTypeError
from ampbridge.errors.flags import checked_count, checked_flag
from ampbridge.reports.csv_file import CsvFile
from ampbridge.training.result import StepResult


class Row(NamedTuple):
    """What is logged of the steps since the last row.

    Attributes:
        step, loss, scale, grad_norm: of the last step; ``grad_norm`` is None without ``clip_norm``.
        skipped: the skipped steps and dropped micro-batches since the log began.
        reason: why the last of the skipped steps was skipped, "inf" or "nan"; None if this row has none.
    """

    step: int
    loss: float
    scale: float
    grad_norm: float | None
    skipped: int
    reason: str | None

    def numbers(self) -> dict[str, float]:
        """The numbers by name, those that there are, without the step."""
        every = {name: getattr(self, name) for name in ("loss", "scale", "grad_norm", "skipped")}
        return {name: value for name, value in every.items() if value is not None}


@runtime_checkable
class Writer(Protocol):
    """What TensorBoard's ``SummaryWriter`` is, and VisualDL's ``LogWriter``."""

    def add_scalar(self, tag: str, value: Any, step: int, /) -> Any:
        """Log ``value`` under ``tag``."""


Target: TypeAlias = str | PathLike[str] | Writer | Callable[..., Any]


class StepLog:
    """Logs the results of a step: ``log(step(x, y))``.

        log = amp.StepLog("run.csv", SummaryWriter(), wandb.log, every=100)
        for x, y in batches:
            log(step(x, y))

    A row is written at every ``every``-th step. Results are read from the device only then; the skipped
    steps in between are counted all the same. A micro-batch that others of its step follow is not logged.

    Args:
        *targets: paths of CSV files, which are appended to; objects with ``add_scalar(tag, value, step)``;
            functions that are called with a dictionary and ``step=``, such as ``wandb.log`` and
            ``mlflow.log_metrics``. A dictionary also has ``reason``, 0 for none, 1 for inf, 2 for NaN.
        every: the number of steps from one row to the next.
        prefix: of the names that ``add_scalar`` and the dictionaries get.
        progress: also show the last row as a line on standard error, if that is a terminal.

    Raises:
        ArgumentError, ArgumentTypeError: for other arguments.
        StateError: for a CSV file that contains something else.
        WriteError: if a CSV file cannot be written.
    """

    def __init__(
        self, *targets: Target, every: int = 1, prefix: str = "amp/", progress: bool = False
    ) -> None:
        checked_count("every", every, "StepLog('run.csv', every=100)")
        if not isinstance(prefix, str):
            msg = f"prefix is a string, not {prefix!r:.80}.\nHint: StepLog(writer, prefix='amp/')"
            raise ArgumentTypeError(msg)
        self._every, self._prefix = every, prefix
        shown = checked_flag("progress", progress) and sys.stderr.isatty()
        self._writes = [self._write_to(target) for target in targets]
        self._writes += [_show] if shown else []
        self._ends_line = shown
        self._pending: list[StepResult] = []
        self._written = 0
        """The step of the last row."""
        self._skipped = 0

    def __call__(self, result: StepResult) -> StepResult:
        """Log ``result``, and return it.

        Waits for the device at every ``every``-th step.
        """
        if not isinstance(result, StepResult):
            msg = f"A StepLog logs results of steps, not {type(result).__name__}.\n"
            raise ArgumentTypeError(msg + "Hint: log(step(x, y))")
        if not result.is_accumulating:
            self._pending.append(result.without_aux())
            if result.step % self._every == 0 and result.step != self._written:
                self.flush()
        return result

    @property
    def skipped(self) -> int:
        """The skipped steps and dropped micro-batches since the log began. Waits for the device."""
        return self._skipped + sum(not result.applied for result in self._pending)

    def flush(self) -> None:
        """Write a row of the steps since the last one, if there are any. Waits for the device."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        reasons = [result.reason for result in pending if not result.applied]
        self._skipped += len(reasons)
        last = pending[-1]
        row = Row(
            last.step,
            last.loss,
            last.scale,
            last.grad_norm,
            self._skipped,
            reasons[-1] if reasons else None,
        )
        self._written = last.step
        for write in self._writes:
            write(row)

    def __enter__(self) -> StepLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.flush()
        if self._ends_line:
            print(file=sys.stderr)

    def _write_to(self, target: Target) -> Callable[[Row], None]:
        if isinstance(target, (str, os.PathLike)):
            return CsvFile(target, Row._fields).append
        write = numbers_to(target, "A StepLog", "StepLog('run.csv', SummaryWriter(), wandb.log)")
        return lambda row: write(_tagged(row, self._prefix), row.step)


def numbers_to(target: Target, who: str, example: str) -> Callable[[Mapping[str, float], int], Any]:
    """A function that gives numbers by tag, and their step, to a writer or a function.

    Raises:
        ArgumentTypeError: for what is neither; ``who`` writes, as in the code ``example``.
    """
    if isinstance(target, Writer) and not isinstance(target, type):
        return lambda numbers, step: _add_scalars(target, numbers, step)
    if callable(target) and not isinstance(target, type):
        return lambda numbers, step: target(numbers, step=step)
    msg = (
        f"{who} writes to paths of CSV files, to objects with add_scalar(tag, value, step), and to "
        f"functions of a dictionary; {target!r:.80} is none of these.\nHint: {example}"
    )
    raise ArgumentTypeError(msg)


def _add_scalars(writer: Writer, numbers: Mapping[str, float], step: int) -> None:
    for tag, value in numbers.items():
        writer.add_scalar(tag, value, step)


_REASONS: Mapping[str | None, float] = {None: 0, "inf": 1, "nan": 2}


def _tagged(row: Row, prefix: str) -> dict[str, float]:
    numbers = {**row.numbers(), "reason": _REASONS[row.reason]}
    return {f"{prefix}{name}": value for name, value in numbers.items()}


def _show(row: Row) -> None:
    """The row on a line of the terminal that the next one is written over."""
    norm = "" if row.grad_norm is None else f"  norm {row.grad_norm:.3g}"
    why = f", last by {row.reason}" if row.reason else ""
    text = f"step {row.step}  loss {row.loss:.5g}  scale {row.scale:g}{norm}  skipped {row.skipped}{why}"
    print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
