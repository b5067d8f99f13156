"""Ranges: how large values and gradients are, and what float16 loses of them at which loss scale."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import inf, log2
from typing import Any, Literal, NamedTuple

import numpy as np

from ampbridge.adapters.backend import LossFn, Model
from ampbridge.errors.foreign_names import told_of
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single
from ampbridge.reports.printing import Table, TabularReport, shortened
from ampbridge_lens.exponents import Exponents
from ampbridge_lens.op_arrays import ArrayObserver, OpArray, Side
from ampbridge_lens.subject import FLOAT32, Subject, checked_scale, ended

Kind = Literal["cast", "output", "gradient", "parameter"]

SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, 2.0**127


class RangeRow(NamedTuple):
    """The values of one op in one layer, or of one parameter's gradient.

    Attributes:
        kind: "cast" (what the policy casts to low precision for an op, weights among it), "output" (of an
            op), "gradient" (of its outputs) or "parameter" (the gradient of one).
        name: the op, or the parameter's dotted name.
        layer: the dotted name; empty for a parameter.
        dtype: the dtype in which the op runs under the policy; float32 for a parameter's gradient.
        values: the values in float32; gradients are multiplied by the loss scale.
    """

    kind: Kind
    name: str
    layer: str
    dtype: str
    values: Exponents


@dataclass(frozen=True)
class Ranges(TabularReport):
    """How large a model's values are, and what float16 would lose of them; prints as a table.

    Attributes:
        scale: the loss scale of the gradients in this report.
        safe_scale: the largest power of two at which no parameter's gradient overflowed in a test
            under the policy on this batch. None if the policy needs no loss scale, or no scale is
            safe.
        raised: the exception that ended a pass under the policy, in which the dtypes are looked up;
            empty if none did.
    """

    policy: Policy
    backend: str
    scale: float
    safe_scale: float | None
    rows: tuple[RangeRow, ...]
    raised: str = ""

    def at(self, scale: float) -> Ranges:
        """The same report at another loss scale, a power of two, without another pass."""
        powers = int(log2(checked_scale(scale)) - log2(self.scale))
        return replace(
            self,
            scale=float(scale),
            rows=tuple(
                row
                if row.kind in ("cast", "output")
                else row._replace(values=row.values.shifted(powers))
                for row in self.rows
            ),
        )

    def of(self, kind: Kind) -> Exponents:
        """All values of one kind together."""
        return Exponents.merged(row.values for row in self.rows if row.kind == kind)

    def table(self) -> Table:
        """As it is printed."""
        if not self.policy.needs_scaling:
            safe = f"{self.policy!r} needs no loss scale"
        elif self.safe_scale is not None:
            safe = f"safe up to {power_of_two(self.safe_scale)}"
        else:
            safe = "no scale was tried" if self.raised else "no scale is safe"
        remarks = [
            "overflow, to zero, subnormal: fractions of the values in float16; "
            "headroom: doublings until the largest overflows."
        ]
        if self.raised:
            without = "Ops that come later have no dtype in this report."
            remarks.insert(0, f"{ended(self.raised)} {without}")
        return Table(
            f"{self.backend}, in float32, gradients at a loss scale of {power_of_two(self.scale)}; {safe}",
            (
                *("values", "name", "layer", "runs in", "max |x|"),
                *("overflow", "to zero", "subnormal", "headroom"),
            ),
            tuple(_cells(row) for row in self.rows),
            tuple(remarks),
        )

    def short(self) -> Table:
        """Of long ranges, the rows of which float16 would lose most; those that stay float32 are last."""
        order = sorted(range(len(self.rows)), key=lambda row: _loss(self.rows[row]))
        return shortened(self.table(), order, "of which float16 would lose most")


def _loss(row: RangeRow) -> tuple[float, ...]:
    """A sort key, smallest for the most loss: to inf, to zero, of digits; then by the headroom."""
    values, stays = row.values, row.kind != "parameter" and row.dtype in ("float32", "float64")
    headroom = inf if values.headroom is None else values.headroom
    return stays, -values.overflowing, -values.flushed, -values.subnormal, headroom


def _cells(row: RangeRow) -> tuple[str, ...]:
    values = row.values
    headroom = "" if values.headroom is None else f"{values.headroom:+d}"
    fractions = (values.overflowing, values.flushed, values.subnormal)
    return (
        row.kind, row.name, row.layer, row.dtype, f"{values.largest:.3g}",
        *(_percent(fraction) for fraction in fractions), headroom,
    )  # fmt: skip


def _percent(fraction: float) -> str:
    if fraction == 0:
        return "0"
    return f"{fraction:.1%}" if fraction >= 0.001 else "<0.1%"


def power_of_two(scale: float) -> str:
    """A loss scale in words: ``2^16``."""
    return f"2^{log2(scale):g}"


@told_of("lens.ranges")
def ranges(
    loss_fn: LossFn,
    model: Model,
    *batch: Any,
    policy: str | Policy = "O1",
    scale: float = 2.0**16,
) -> Ranges:
    """Measure what ops take by a cast, return, and get as gradients, and parameters' gradients, in float32.

        found = lens.ranges(loss_fn, model, x, y)
        print(found)
        found.at(2.0**8).of("gradient").flushed     what a loss scale of 256 would lose
        found.safe_scale                            the largest that does not overflow

    The report contains the ops' dtypes under ``policy``, and the safe scale is tested under it. Takes
    about ten passes.

    Raises:
        ArgumentError: for a scale that is not a power of two.
        CallOrderError: if the model is decorated already.
        UnsupportedError: for a policy that this backend refuses, or a backend that cannot observe ops.
    """
    parsed, subject = single(policy), Subject(loss_fn, model)
    checked_scale(scale)
    dtypes = dtypes_of(subject, batch, parsed)
    rows, gradients = measured_rows(subject, batch, parsed, dtypes)
    safe = None if dtypes.raised else safe_scale(subject, batch, parsed, gradients)
    return Ranges(parsed, subject.backend.name, 1.0, safe, rows, dtypes.raised).at(scale)


class Dtypes(NamedTuple):
    """The dtypes of an op in a layer, up to where an exception ended the pass.

    ``cast``: op, layer and place of each input that is cast to low precision for its op.
    """

    found: Mapping[tuple[str, str], str]
    cast: Set[tuple[str, str, int]]
    raised: str


def dtypes_of(subject: Subject, batch: Sequence[Any], policy: Policy) -> Dtypes:
    """The dtypes in which the ops run under ``policy``, by one pass."""
    cast: set[tuple[str, str, int]] = set()

    def see(seen: OpArray) -> None:
        if seen.is_cast_down:
            cast.add((seen.key.op, seen.key.layer, seen.key.place))

    observer = ArrayObserver(subject.backend, see)
    raised = subject.run(batch, policy, observer=observer, gradients=False).raised
    found: dict[tuple[str, str], dict[str, None]] = {}
    for call, _ in observer.calls.values():
        found.setdefault((call.op, call.layer), {})[call.dtype] = None
    return Dtypes({key: ", ".join(dtypes) for key, dtypes in found.items()}, cast, raised)


KINDS: Mapping[Side, Kind] = {"input": "cast", "output": "output", "arrived": "gradient"}
"""What is measured of an op. A gradient that leaves it arrives at another op, or is a parameter's."""


def measured_rows(
    subject: Subject, batch: Sequence[Any], policy: Policy, dtypes: Dtypes
) -> tuple[tuple[RangeRow, ...], Exponents]:
    """The rows of a report without a loss scale, and all parameters' gradients, by one pass."""
    measured: dict[Kind, dict[tuple[str, str], list[Exponents]]] = {
        kind: defaultdict(list) for kind in KINDS.values()
    }

    def see(seen: OpArray) -> None:
        op, layer, _, side, place = seen.key
        if side in KINDS and (side != "input" or (op, layer, place) in dtypes.cast):
            measured[KINDS[side]][op, layer].append(Exponents.of(seen.on_host()))

    observer = ArrayObserver(subject.backend, see)
    found = subject.run(batch, FLOAT32, observer=observer, shown_as_under=policy)
    gradients = {name: Exponents.of(values) for name, values in found.gradients.items()}
    rows = [
        RangeRow(kind, op, layer, dtypes.found.get((op, layer), ""), Exponents.merged(parts))
        for kind, of_kind in measured.items()
        for (op, layer), parts in of_kind.items()
    ]
    rows += [RangeRow("parameter", n, "", "float32", v) for n, v in gradients.items()]
    return tuple(rows), Exponents.merged(gradients.values())


def safe_scale(
    subject: Subject, batch: Sequence[Any], policy: Policy, gradients: Exponents
) -> float | None:
    """The largest power of two at which a pass stays finite, tried.

    scale <- where the largest parameter's gradient just fits into float16
    if the smallest scale overflows:       none is safe, because the forward pass does
    while a pass at scale overflows:       scale <- scale / 2
    while a pass at 2 * scale is finite:   scale <- 2 * scale
    """
    if not policy.needs_scaling or gradients.headroom is None:
        return None

    def is_finite(scale: float) -> bool:
        found = subject.run(batch, policy, scale)
        return not found.raised and all(
            bool(np.isfinite(gradient).all()) for gradient in found.gradients.values()
        )

    scale = min(max(2.0**gradients.headroom, SMALLEST_SCALE), LARGEST_SCALE)
    if is_finite(scale):
        while scale < LARGEST_SCALE and is_finite(2 * scale):
            scale *= 2
        return scale
    if not is_finite(SMALLEST_SCALE):
        return None
    while scale > SMALLEST_SCALE:
        scale /= 2
        if is_finite(scale):
            break
    return scale
