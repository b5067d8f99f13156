"""A grid of trainings that differ in policy, loss scale and learning rate: ``ampbridge compare --explore``.

Each is the run that ``compare`` would make with the same settings. The runs of a framework share a process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product, starmap
from math import isfinite
from typing import Any, NamedTuple

from ampbridge import workloads
from ampbridge.errors import AmpBridgeError, ArgumentError
from ampbridge.policies.policy import Policy
from ampbridge.reports.printing import Table, TabularReport
from ampbridge.training.recipe import Recipe, Scaling
from ampbridge_compare import check
from ampbridge_compare.comparison import first_line
from ampbridge_compare.gradients import lost_share
from ampbridge_compare.processes import run_groups
from ampbridge_compare.progress import bars
from ampbridge_compare.result import power
from ampbridge_compare.runs import Job, Run

POLICIES = ("O0", "O1:float16", "O1:bfloat16", "O2:float16", "O2:bfloat16")
INIT_SCALES = (2.0**-16, 2.0**-8, 2.0**16, 2.0**24)
"""At the first two gradients underflow, at the last they overflow."""

GROWTH_INTERVALS = (5, 2000)
RATES = (0.25, 1.0, 4.0)
"""Factors of the workload's own learning rates."""

STEPS = 60

NO_EFFECT = "–"
"""What a table shows of a setting without effect."""


class Setting(NamedTuple):
    """A point of the grid. None is what has no effect: all of the scale without one, or its growth."""

    policy: str
    init_scale: float | None
    growth_interval: int | None
    rate: float

    def recipe(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """The recipe ``base`` with these settings, as data; the learning rate is not a recipe's."""
        level, _, dtype = self.policy.partition(":")
        policy = {**base["policy"], "level": level, "dtype": dtype} if dtype else {"level": level}
        sections = {**base, "policy": policy, "scaler": dict(base.get("scaler", {}))}
        if self.init_scale is None:
            del sections["scaler"]
            return sections
        sections["scaler"].pop("enabled", None)
        sections["scaler"]["init_scale"] = self.init_scale
        if self.growth_interval is not None:
            sections["scaler"]["growth_interval"] = self.growth_interval
        return sections


class Explored(NamedTuple):
    """A run of the grid.

    Attributes:
        error: as a run's; the recipe may refuse the policy.
        loss: of each step; None where it is not finite. This and the shares have four digits.
        scale: step and loss scale, where the scale is not that of the step before.
        skipped: the numbers, from 1, of the skipped steps.
        lost: the share of the first batch's gradients that underflow; None if the backend shows none.
        lost_at: the loss scale of these gradients.
    """

    backend: str
    setting: Setting
    error: str | None = None
    loss: Sequence[float | None] = ()
    scale: Sequence[Sequence[float]] = ()
    skipped: Sequence[int] = ()
    accuracy: float | None = None
    lost: float | None = None
    lost_at: float = 1.0

    @classmethod
    def of(cls, run: Run, setting: Setting) -> Explored:
        """What the page needs of ``run``."""
        return cls(
            run.backend,
            setting,
            run.error,
            loss=[_rounded(loss) if isfinite(loss) else None for loss in run.steps.loss],
            scale=[
                (step, scale)
                for step, (before, scale) in enumerate(pairwise((0.0, *run.steps.scale)), 1)
                if scale != before
            ],
            skipped=run.steps.skipped,
            accuracy=_rounded(run.accuracy),
            lost=_rounded(lost_share(run)),
            lost_at=run.gradient_scale,
        )

    def row(self) -> tuple[str, ...]:
        """The cells under ``HEADER``."""
        policy, init_scale, interval, rate = self.setting
        named = (
            self.backend,
            policy,
            _scale(init_scale),
            str(interval or NO_EFFECT),
            f"× {rate:g}",
        )
        if self.error is not None:
            return (*named, "failed", *[""] * (len(HEADER) - len(named) - 1))
        return (
            *named,
            loss_text(self.loss[-1]),
            "" if self.accuracy is None else f"{self.accuracy:.1%}",
            str(len(self.skipped)),
            _scale(init_scale and self.scale[-1][1]),
            "" if self.lost is None else percent(self.lost),
        )


HEADER = (
    *("framework", "policy", "initial scale", "growth interval", "learning rate"),
    *("last loss", "accuracy", "skipped", "last scale", "lost gradients"),
)


def _scale(scale: float | None) -> str:
    return NO_EFFECT if scale is None else power(scale)


def percent(share: float) -> str:
    """Two digits."""
    return f"{100 * share:.2g}%"


def loss_text(loss: float | None) -> str:
    """Three digits."""
    return "not finite" if loss is None else f"{loss:.3g}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


@dataclass(frozen=True)
class Grid(TabularReport):
    """All runs of a grid.

    Attributes:
        workload: the name of the workload, or of its file.
        versions: of what ran.
        remarks: frameworks that were left out, and what the runs warned of.
    """

    workload: str
    steps: int
    seed: int
    versions: Mapping[str, str]
    remarks: Sequence[str]
    runs: Sequence[Explored]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Grid:
        """The grid from the result of ``to_dict()``."""
        runs = [Explored(**{**run, "setting": Setting(**run["setting"])}) for run in data["runs"]]
        return cls(**{**data, "runs": runs})

    def table(self) -> Table:
        """A row a run."""
        title = f"{self.workload}, {self.steps} steps, seed {self.seed}"
        return Table(title, HEADER, tuple(run.row() for run in self.runs), tuple(self.remarks))


def explore(
    recipe: Recipe,
    backends: Sequence[str],
    *,
    absent: Sequence[str] = (),
    workload: str = "digits-mlp",
    steps: int = STEPS,
    seed: int = 0,
    quiet: bool = True,
) -> Grid:
    """Train ``workload`` at each setting of the grid on each of ``backends``.

    Args:
        recipe: what the grid leaves as it is: op lists, clipping, the other numbers of the scaler.
        absent: frameworks of which the page says that they are not installed.
        workload, steps, seed, quiet: as in ``compare``.

    Raises:
        ArgumentError: for invalid backends or steps, or a recipe with a schedule.
        BackendNotFoundError: for an unknown backend.
        AmpBridgeError: if no run succeeds. A framework of which all runs fail is left out.
    """
    check(backends, steps)
    workloads.find(workload)
    if recipe.schedule is not None:
        msg = "--explore moves the policy, and this recipe has a schedule of policies.\n"
        raise ArgumentError(msg + "Hint: a recipe with [policy] in place of [schedule]")
    settings, base = list(_settings(recipe)), recipe.to_dict()
    groups = [
        [
            Job(name, "ampbridge", workload, each.recipe(base), steps, seed, each.rate)
            for each in settings
        ]
        for name in backends
    ]
    runs, versions = list[Explored](), dict[str, str]()
    remarks = [f"{name} is not installed, and left out." for name in absent]
    for name, done in zip(backends, _trained(groups, quiet), strict=True):
        good = [run for run in done if run.error is None]
        if not good:
            remarks.append(f"{name} is left out: {(done[0].error or '').replace(chr(10), ' ')}")
            continue
        versions |= good[0].versions
        remarks += dict.fromkeys(
            f"{name}: {first_line(each)}" for run in good for each in run.notes
        )
        runs += map(Explored.of, done, settings)
    if not runs:
        raise AmpBridgeError("\n".join(remarks))
    return Grid(workload, steps, seed, versions, remarks, runs)


def _settings(recipe: Recipe) -> Iterator[Setting]:
    grows = (recipe.scaler or Scaling()).dynamic
    for policy in POLICIES:
        scaled = Policy.parse(policy).needs_scaling
        scales = INIT_SCALES if scaled else (None,)
        intervals = GROWTH_INTERVALS if scaled and grows else (None,)
        yield from starmap(Setting, product((policy,), scales, intervals, RATES))


def _trained(groups: Sequence[Sequence[Job]], quiet: bool) -> list[list[Run]]:
    """The runs of each group; a bar counts those that have begun."""
    begun = Counter[str]()
    with bars({group[0].label: len(group) for group in groups}, quiet=quiet) as tell:

        def count(job: Job, doing: str) -> None:
            if doing == "starting":
                begun[job.label] += 1
                tell(job, f"step {begun[job.label]}")

        return run_groups(groups, count)
