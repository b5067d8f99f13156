"""The results of all runs, as one value; prints as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ampbridge.policies.policy import Policy
from ampbridge.reports.printing import Table, TabularReport
from ampbridge.training.recipe import Recipe
from ampbridge_compare.gradients import GradientError, error_of, exponents_of
from ampbridge_compare.op_lists import OpLists
from ampbridge_compare.op_matrix import OpMatrix, shown
from ampbridge_compare.result import power, sentences
from ampbridge_compare.runs import Run, Steps, observed_policy
from ampbridge_lens.exponents import Exponents

SAME_START = 1e-5  # norms of weights; a framework may keep them in another layout and order
NO_REFERENCE = "There is no float64 reference: "


@dataclass(frozen=True)
class Comparison(TabularReport):
    """One recipe on several frameworks, from the same weights on the same data.

    Attributes:
        workload: the name of the workload, or of its file.
        runs: the runs with the recipe, then those with a framework's own AMP; a failed run has ``error``.
        reference: float32 training and float64 gradients on NumPy.
    """

    recipe: Recipe
    workload: str
    steps: int
    seed: int
    runs: tuple[Run, ...]
    reference: Run

    @property
    def failed(self) -> tuple[Run, ...]:
        """The runs that failed, without the reference: a workload need not support NumPy."""
        return tuple(run for run in self.runs if run.error is not None)

    @property
    def good(self) -> tuple[Run, ...]:
        """The runs that did not fail."""
        return tuple(run for run in self.runs if run.error is None)

    @property
    def by_recipe(self) -> tuple[Run, ...]:
        """The good runs with the recipe."""
        return tuple(run for run in self.good if run.kind == "ampbridge")

    @property
    def policy(self) -> Policy:
        """The policy under which ops and gradients were observed."""
        return observed_policy(self.recipe)

    @property
    def exact(self) -> Run | None:
        """The reference; None if it failed."""
        return self.reference if self.reference.error is None else None

    @cached_property
    def result(self) -> list[str]:
        """Which runs agree, and where the others differ, in plain sentences."""
        return sentences(self.good, self.failed, self.policy.compute_dtype)

    @cached_property
    def matrix(self) -> OpMatrix:
        """Ops and their dtypes."""
        return OpMatrix.of(self.by_recipe)

    @cached_property
    def lists(self) -> OpLists:
        """A comparison of op lists."""
        backends = dict.fromkeys(run.backend for run in self.runs)
        return OpLists.of(self.policy, backends, self.matrix.cells)

    @cached_property
    def errors(self) -> Mapping[str, GradientError]:
        """The gradient errors by the labels of the runs that have gradients."""
        own = {run.backend: run.float32_gradients for run in self.by_recipe}
        found = [error_of(run, self.exact, own.get(run.backend, {})) for run in self.good]
        return {each.label: each for each in found if each is not None}

    @cached_property
    def exponents(self) -> Mapping[str, Exponents]:
        """The exponents of the first batch's float32 gradients, without a loss scale, by label."""
        return {
            run.label: exponents_of(run.float32_gradients)
            for run in self.by_recipe
            if run.float32_gradients
        }

    @property
    def scale(self) -> float | None:
        """The recipe's initial loss scale; None if the policy needs none."""
        scaler = self.recipe.scaler
        return scaler.init_scale if scaler and self.policy.needs_scaling else None

    def remarks(self) -> list[str]:
        """Notes for a reader of the figures."""
        notes = [f"{run.label}: {note}" for run in self.good for note in map(first_line, run.notes)]
        if self.reference.error is not None:
            notes.append(NO_REFERENCE + first_line(self.reference.error))
        notes += [
            f"{each.label}: {each.own} of {len(each.parameters)} gradients have a different layout than "
            "NumPy's, and are compared with float32 of the same framework."
            for each in self.errors.values()
            if self.exact is not None and each.own
        ]
        notes += [
            f"{each.label}: {len(each.missing)} of its gradients have a different layout than NumPy's, and "
            "are not compared."
            for each in self.errors.values()
            if each.missing
        ]
        notes += [f"{label}: ops were not observed. {why}" for label, why in self._unseen()]
        return [*notes, *self._unlike_starts()]

    def _unseen(self) -> list[tuple[str, str]]:
        return list(self.matrix.not_observed.items())

    def _unlike_starts(self) -> list[str]:
        """Somebody's ``build`` is at fault where models do not start from the same weights."""
        starts = {run.label: run.starts for run in self.shown if run.starts}
        norms = [norm for each in starts.values() for norm in each]
        if not norms or max(norms) - min(norms) <= SAME_START * max(norms):
            return []
        norms_by_label = ", ".join(
            " and ".join(dict.fromkeys(f"{norm:.6g}" for norm in each)) + f" ({label})"
            for label, each in starts.items()
        )
        return [
            f"Not all runs start from the same weights; the norms of their weights: {norms_by_label}. "
            "build() must create its weights from the seed only."
        ]

    # -- as data

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; a loss that is not finite is None."""
        return {
            "result": self.result,
            "recipe": self.recipe.to_dict(),
            "policy": self.policy.to_dict(),
            "workload": self.workload,
            "steps": self.steps,
            "seed": self.seed,
            "reference": self._run(self.reference),
            "runs": [self._run(run) for run in self.runs],
            "ops": self.matrix.to_dict(),
            "lists": self.lists.to_dict(),
            "loss_scale": self.scale,
            "remarks": self.remarks(),
        }

    def _run(self, run: Run) -> dict[str, Any]:
        error, exponents = self.errors.get(run.label), self.exponents.get(run.label)
        return {
            "label": run.label,
            "backend": run.backend,
            "kind": run.kind,
            "error": run.error,
            "described": run.described,
            "execution": run.execution,
            "device": run.device,
            "versions": dict(run.versions),
            "notes": list(run.notes),
            "loss": [loss if np.isfinite(loss) else None for loss in run.steps.loss],
            "scale": list(run.steps.scale),
            "applied": [reason is None for reason in run.steps.reason],
            "reason": list(run.steps.reason),
            "accuracy": run.accuracy,
            "census": None if run.census is None else list(run.census),
            "gradient_error": None if error is None else error.to_dict(),
            "gradient_exponents": None if exponents is None else exponents.to_dict(),
        }

    # -- as a table

    def table(self) -> Table:
        """As it is printed: a row a run."""
        rows = [row_of(run, self.errors.get(run.label)) for run in self.shown]
        remarks = [
            f"{op}: " + ", ".join(f"{shown(c)} in {label}" for label, c in row.items() if c)
            for op, row in self.matrix.cells.items()
            if self.matrix.differs(op)
        ]
        same = "Every op ran in the same dtype on each framework that called it."
        if self.matrix.columns and not remarks and len(self.matrix.columns) > 1:
            remarks = [same]
        about = f"{self.policy!r}: {self.workload}, {self.steps} steps, seed {self.seed}"
        return Table(
            "\n".join([*self.result, about]),
            HEADER,
            tuple(rows),
            (*self._failures(), *remarks, *self.remarks()),
        )

    def _failures(self) -> list[str]:
        """What went wrong, and what to do about it, a line for each run."""
        return [
            f"{run.label} failed: " + (run.error or "").replace("\n", " ") for run in self.failed
        ]

    @property
    def shown(self) -> tuple[Run, ...]:
        """All runs, the reference first where there is one."""
        return (*filter(None, [self.exact]), *self.runs)


HEADER = (
    "run",
    "first loss",
    "last loss",
    "accuracy",
    "skipped",
    "last scale",
    "gradient error",
    "low precision",
)


def row_of(run: Run, error: GradientError | None) -> tuple[str, ...]:
    """The cells of a run, under ``HEADER``."""
    if run.error is not None:
        return (run.label, "failed", *[""] * (len(HEADER) - 2))
    steps = run.steps
    return (
        run.label,
        f"{steps.loss[0]:.4f}",
        f"{steps.loss[-1]:.4f}",
        "" if run.accuracy is None else f"{run.accuracy:.1%}",
        str(len(steps.skipped)),
        last_scale(steps),
        "" if error is None else f"{error.total:.1e}",
        run.execution,
    )


def last_scale(steps: Steps) -> str:
    """The last loss scale of a training; "none" if it had none."""
    return "none" if set(steps.scale) == {1.0} else power(steps.scale[-1])


def first_line(text: str) -> str:
    """``text`` without hint and the like."""
    return text.partition("\n")[0]
