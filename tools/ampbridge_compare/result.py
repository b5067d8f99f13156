"""The result of a comparison in plain sentences: which runs agree, and where the others part.

A run agrees with the first one if

    it skips the same steps at the same loss scales,
    its first loss is at most ``TOLERANCE`` roundings apart, as values that ``lens.align`` calls equal,
    its later losses are at most that or ``LATER`` apart: training amplifies rounding errors.

Losses of single steps jump, so distances are means over ``WINDOW`` steps, as in the figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, log2, log10

import numpy as np
import numpy.typing as npt

from ampbridge_compare.runs import Run
from ampbridge_lens.align import IN_FLOAT32, TOLERANCE
from ampbridge_lens.closeness import EPSILON

WINDOW = 10
"""The steps over which distances are averaged."""

SMALL = 1e-6
"""Smaller distances are not told more exactly."""

LATER = 0.02
"""tests/examples/test_trajectories.py holds the examples to it on all frameworks."""


def sentences(runs: Sequence[Run], failed: Sequence[Run], dtype: str) -> list[str]:
    """The result, a sentence for those that agree and one for each other run; all numbers are measured.

    Args:
        runs: the runs that did not fail. The others are compared with the first.
        failed: the runs that failed.
        dtype: the recipe's low precision; "float32" if it has none.
    """
    said = [_alone(runs[0])] if len(runs) == 1 else _compared(runs, dtype)
    if failed:
        said.append(f"{_and(failed)} failed.")
    return said


def distances(run: Run, base: Run) -> npt.NDArray[np.float64]:
    """The distance of the losses, relative to the base's: for each step the mean over ``WINDOW`` steps.

    The first means are over fewer steps. The distance is 0 where neither loss is finite, and infinite
    where only one is.
    """
    ours, theirs = np.array(run.steps.loss), np.array(base.steps.loss)
    finite = np.isfinite(ours), np.isfinite(theirs)
    with np.errstate(all="ignore"):
        apart = np.abs(ours - theirs) / np.abs(theirs)
    apart[finite[0] != finite[1]] = np.inf
    apart[(ours == theirs) | ~(finite[0] | finite[1])] = 0.0
    return np.array([apart[max(0, i + 1 - WINDOW) : i + 1].mean() for i in range(len(apart))])


def power(scale: float) -> str:
    """``2^16``; as it is, where it is no power of two."""
    exponent = log2(scale)
    return f"2^{exponent:.0f}" if exponent == round(exponent) else f"{scale:g}"


def _alone(run: Run) -> str:
    losses = run.steps.loss
    return (
        f"{_name(run)} skips {len(run.steps.skipped) or 'none'} of {len(losses)} steps, and its loss goes "
        f"from {losses[0]:.4f} to {losses[-1]:.4f}."
    )


def _compared(runs: Sequence[Run], dtype: str) -> list[str]:
    pairs = [_Pair(run, runs[0], dtype) for run in runs[1:]]
    agreeing = [pair for pair in pairs if pair.parting is None]
    differing = [pair.difference for pair in pairs if pair.parting is not None]
    return [_agreement(agreeing), *differing] if agreeing else differing


def _agreement(pairs: Sequence[_Pair]) -> str:
    base = pairs[0].base
    skipped, steps = len(base.steps.skipped), len(base.steps.loss)
    skips = f"the same {skipped} of {steps} steps are" if skipped else f"none of {steps} steps is"
    furthest = max(pair.furthest for pair in pairs)
    apart = f"at most {_percent(max(furthest, SMALL))} apart{_over(steps)}" if furthest else "equal"
    return (
        f"{_and(pair.run for pair in pairs)} agree{'s' * (len(pairs) == 1)} with {_name(base)}: "
        f"{skips} skipped, and the losses are {apart}."
    )


@dataclass(frozen=True)
class _Pair:
    """A run, and the first one."""

    run: Run
    base: Run
    dtype: str

    @cached_property
    def distances(self) -> npt.NDArray[np.float64]:
        return distances(self.run, self.base)

    @property
    def furthest(self) -> float:
        return float(self.distances.max(where=np.isfinite(self.distances), initial=0.0))

    @cached_property
    def parting(self) -> tuple[int, str] | None:
        """The number of the first step that differs, and how it does; None if the runs agree.

        Within a step the loss comes before the skip.
        """
        kinds = (self._not_finite(), self._apart(), self._skip(), self._scale())
        return min(filter(None, kinds), key=lambda parting: parting[0], default=None)

    @property
    def difference(self) -> str:
        assert self.parting is not None  # asked for by who knows
        step, how = self.parting
        return f"{_name(self.run)} first differs from {_name(self.base)} at step {step}: {how}."

    def _not_finite(self) -> tuple[int, str] | None:
        step = _first(np.isinf(self.distances))
        if step is None:
            return None
        ours, theirs = (run.steps.loss[step - 1] for run in (self.run, self.base))
        return step, f"its loss is {ours:.5g}, and {_name(self.base)}'s {theirs:.5g}"

    def _apart(self) -> tuple[int, str] | None:
        rounding = TOLERANCE * max(EPSILON[self.dtype], IN_FLOAT32)
        limits = np.full(len(self.distances), max(rounding, LATER))
        limits[0] = rounding
        step = _first(self.distances > limits)
        if step is None:
            return None
        here, most = _percent(self.distances[step - 1]), _percent(self.furthest)
        later = f", and up to {most} later" if most != here else ""
        return step, (
            f"the losses are {here} apart{_over(step)}, more than {100 * limits[step - 1]:.3g} %{later}"
        )

    def _skip(self) -> tuple[int, str] | None:
        ours, theirs = (set(run.steps.skipped) for run in (self.run, self.base))
        if ours == theirs:
            return None
        step = min(ours ^ theirs)
        does, does_not = ("it", _name(self.base)) if step in ours else (_name(self.base), "it")
        return step, f"{does} skips this step, and {does_not} does not"

    def _scale(self) -> tuple[int, str] | None:
        ours, theirs = (run.steps.scale for run in (self.run, self.base))
        step = _first(np.not_equal(ours, theirs))
        if step is None:
            return None
        its, other = power(ours[step - 1]), power(theirs[step - 1])
        return step, f"its loss scale is {its}, and {_name(self.base)}'s {other}"


def _first(steps: npt.NDArray[np.bool_]) -> int | None:
    """The number, from 1, of the first step that is true."""
    return int(np.argmax(steps)) + 1 if steps.any() else None


def _over(steps: int) -> str:
    return f" on average over {min(steps, WINDOW)} steps" if steps > 1 else ""


def _name(run: Run) -> str:
    return f"{run.backend}'s own AMP" if run.kind == "native" else run.label


def _and(runs: Iterable[Run]) -> str:
    *names, last = map(_name, runs)
    return f"{', '.join(names)} and {last}" if names else last


def _percent(share: float) -> str:
    """Two digits, rounded up, so that what is at most this is so."""
    percent = 100 * share
    if not np.isfinite(percent) or percent == 0:
        return f"{percent:g} %"
    unit = 10.0 ** (floor(log10(percent)) - 1)
    return f"{ceil(round(percent / unit, 6)) * unit:.3g} %"
