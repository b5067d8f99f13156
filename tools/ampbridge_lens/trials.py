"""Passes under several policies, each compared with float32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np

from ampbridge.errors import ArgumentError
from ampbridge.policies.policy import LOW_DTYPES, Policy
from ampbridge.reports.progress import Report
from ampbridge_lens.census import Calls
from ampbridge_lens.subject import FLOAT32, Pass, Subject


class Errors(NamedTuple):
    """The relative errors against float32, on the worst batch; inf for inf and NaN.

    Attributes:
        loss: |loss - loss32| / |loss32|.
        gradients: ||g - g32|| / ||g32||, the 2-norm over all parameters together.
    """

    loss: float
    gradients: float

    @property
    def worst(self) -> float:
        """The larger one."""
        return max(self)

    def to_dict(self) -> dict[str, float | None]:
        """Plain JSON values; None where infinite."""
        return {name: e if isfinite(e) else None for name, e in self._asdict().items()}


class Trial(NamedTuple):
    """The result of a policy on all batches.

    Attributes:
        low: the calls in low precision, counted by op and layer, in the order of their first calls.
        raised: the first exception that ended a pass; empty if none did.
    """

    errors: Errors
    low: Counter[tuple[str, str]]
    raised: str = ""


@dataclass
class Trials:
    """Passes of one subject over the same batches; each policy runs once.

    ``runs`` counts passes over all batches, float32's included; ``expected`` is their expected total
    number, for the progress bar.

    Raises:
        ArgumentError: if float32 itself gives inf or NaN.
    """

    subject: Subject
    batches: Sequence[Sequence[Any]]
    scale: float
    report: Report
    runs: int = field(default=0, init=False)
    expected: int = field(default=3, init=False)
    _known: dict[Policy, Trial] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._reference = self._passes(FLOAT32, 1.0, "float32")
        errors = _largest(map(_errors, self._reference, self._reference))
        if not isfinite(errors.worst):
            msg = "Loss or gradients are inf or NaN in float32 already: there is nothing to compare with.\n"
            raise ArgumentError(msg + "Hint: print(lens.locate(loss_fn, model, *batch))")

    def noise(self) -> Errors:
        """The errors of a second run in float32."""
        again = self._passes(FLOAT32, 1.0, "float32, again")
        return _largest(map(_errors, again, self._reference))

    def run(self, policy: Policy, doing: str = "") -> Trial:
        """Run ``policy`` on all batches, unless that has been done."""
        if policy not in self._known:
            calls = Calls()
            found = self._passes(policy, self.scale, doing, calls)
            errors = _largest(map(_errors, found, self._reference))
            raised = next((each.raised for each in found if each.raised), "")
            low = Counter((c.op, c.layer) for c in calls.seen if c.dtype in LOW_DTYPES)
            self._known[policy] = Trial(errors, low, raised)
        return self._known[policy]

    def lower_scale(self, policy: Policy) -> None:
        """Halve the loss scale until the gradients are finite; keep it if none from 1 on is low enough."""
        given, self._known = self.scale, {}
        while self.scale > 1:
            self.scale /= 2
            if isfinite(self.run(policy, "a lower loss scale").errors.gradients):
                return
            self._known.clear()
        self.scale = given

    def _passes(
        self, policy: Policy, scale: float, doing: str, calls: Calls | None = None
    ) -> list[Pass]:
        self.report(self.runs, max(self.expected, self.runs + 1), doing)
        # Inf and NaN are what is looked for; NumPy would warn of each.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            found = [
                self.subject.run(batch, policy, scale, calls, gradients=False)
                for batch in self.batches
            ]
        self.runs += 1
        return [
            each._replace(
                gradients={n: g.astype(np.float64) / scale for n, g in each.gradients.items()}
            )
            for each in found
        ]


@np.errstate(over="ignore", invalid="ignore")
def _errors(found: Pass, reference: Pass) -> Errors:
    """The errors of one pass. A gradient that only one of the two has is compared with zero."""
    names = found.gradients.keys() | reference.gradients.keys()
    difference = _norm(
        found.gradients.get(name, 0.0) - reference.gradients.get(name, 0.0) for name in names
    )
    return Errors(
        _relative(abs(found.loss - reference.loss), abs(reference.loss)),
        _relative(difference, _norm(reference.gradients.values())),
    )


def _norm(arrays: Iterable[Any]) -> float:
    return float(np.sqrt(sum(float(np.sum(np.square(array))) for array in arrays)))


def _relative(difference: float, size: float) -> float:
    if difference == 0:
        return 0.0
    return difference / size if isfinite(difference) and size > 0 else inf


def _largest(errors: Iterable[Errors]) -> Errors:
    return Errors(*map(max, zip(*errors, strict=True)))
