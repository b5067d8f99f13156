"""Which op ran in which dtype where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampbridge_compare.runs import Run


@dataclass(frozen=True)
class OpMatrix:
    """A row an op, a column a run that was observed.

    Attributes:
        columns: labels of the runs.
        cells: op -> label -> dtype -> calls; no dtype where a run did not call the op.
        not_observed: label -> why, of runs that could not be.
    """

    columns: tuple[str, ...]
    cells: Mapping[str, Mapping[str, Mapping[str, int]]]
    not_observed: Mapping[str, str]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> OpMatrix:
        """Of the runs by the recipe; ops in the order in which they were first called."""
        observed = {run.label: _dtypes(run) for run in runs if run.census is not None}
        ops = dict.fromkeys(op for found in observed.values() for op in found)
        return cls(
            tuple(observed),
            {op: {label: found.get(op, {}) for label, found in observed.items()} for op in ops},
            {run.label: run.not_observed for run in runs if run.not_observed is not None},
        )

    def differs(self, op: str) -> bool:
        """Whether two of the runs that called ``op`` did so in other dtypes."""
        return len({frozenset(cell) for cell in self.cells[op].values() if cell}) > 1

    @property
    def differences(self) -> tuple[str, ...]:
        """The ops that differ."""
        return tuple(op for op in self.cells if self.differs(op))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "columns": list(self.columns),
            "ops": {
                op: {"dtypes": {label: dict(cell) for label, cell in row.items()}}
                | {"differs": self.differs(op)}
                for op, row in self.cells.items()
            },
            "not_observed": dict(self.not_observed),
        }


def _dtypes(run: Run) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for row in run.census or ():
        found.setdefault(row["op"], Counter())[row["dtype"]] += row["calls"]
    return found


def shown(cell: Mapping[str, int]) -> str:
    """``float16``, or ``float16 ×2, float32 ×1`` where calls differ; a dash for no call."""
    if len(cell) < 2:
        return next(iter(cell), "–")
    return ", ".join(f"{dtype} ×{calls}" for dtype, calls in sorted(cell.items()))
