"""Locate: find the op and the layer where inf or NaN begins, or gradients vanish, and a tested cure.

reference <- a pass in float32, unscaled        infinities here, such as masks, are intended
trial     <- a pass under the policy, scaled
the problem begins at the first event that is bad in trial and good in reference
for each possible cure, the likeliest first:
    if a pass with it is sound, it is the patch
    if the problem begins later with it, keep it and continue from there
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from ampbridge.adapters.backend import Backend, LossFn, Model
from ampbridge.adapters.observation import OpCall, Operand
from ampbridge.lens.census import is_within
from ampbridge.lens.exponents import Exponents
from ampbridge.lens.ranges import power_of_two, safe_scale
from ampbridge.lens.subject import FLOAT32, Pass, Subject, checked_scale
from ampbridge.policies import op_table
from ampbridge.policies.policy import LOW_DTYPES, Policy
from ampbridge.policies.schedule import single
from ampbridge.reports.printing import Table, TabularReport

Kind = Literal["overflow", "nan", "underflow"]
Direction = Literal["forward", "backward"]

SELECTING = ("where", "masked_fill")
"""Ops that typically introduce masks of -inf."""

MOST_TRIALS = 24
"""The most passes to look for a cure; after them the finding has no patch."""

STARVED = 0.5
"""A gradient underflows if more than this fraction of its elements, nonzero in float32, is zero."""

COUNTS = 1e-6
"""A fraction of the largest gradient's root mean square. Parameters below it are not checked for
underflow: the gradient of a bias before a normalization, for example, is only rounding noise."""


@dataclass(frozen=True)
class Patch:
    """A change of the recipe: ops to deny, layers to keep, another loss scale."""

    deny: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    scale: float | None = None

    def applied_to(self, policy: Policy) -> Policy:
        """``policy`` with the ops and layers added."""
        return policy.replace(
            allow=[op for op in policy.allow if op not in self.deny],
            deny=[*policy.deny, *(op for op in self.deny if op not in policy.deny)],
            keep=[*policy.keep, *self.keep],
        )

    def __add__(self, other: Patch) -> Patch:
        scale = self.scale if other.scale is None else other.scale
        return Patch(self.deny + other.deny, self.keep + other.keep, scale)

    def __str__(self) -> str:
        parts = [
            f"{name} += {{{', '.join(map(repr, entries))}}}"
            for name, entries in (("deny", self.deny), ("keep", self.keep))
            if entries
        ]
        if self.scale is not None:
            parts.append(f"init_scale = {power_of_two(self.scale)}")
        return ", ".join(parts) or "nothing"


@dataclass(frozen=True)
class Finding(TabularReport):
    """Where the problem begins; prints as a report. It is false if there is no problem.

    Attributes:
        kind: "overflow" (inf), "nan", or "underflow" (gradients that are zero under the policy but not
            in float32); None if there is no problem.
        direction: "forward" or "backward".
        op, layer, dtype: those of the call; ``op`` is empty if no observed op caused the problem.
        operands: the inputs of the op in the forward pass, or the gradients of its outputs in the
            backward pass.
        in_float32: whether the problem also occurs in float32, so that no policy avoids it.
        patch: a tested change that cures the problem; None if none was found.
        advice: a recommendation in words.
    """

    policy: Policy
    backend: str
    scale: float
    kind: Kind | None = None
    direction: Direction = "forward"
    op: str = ""
    layer: str = ""
    dtype: str = ""
    operands: tuple[Exponents, ...] = ()
    in_float32: bool = False
    patch: Patch | None = None
    advice: str = "Loss and gradients are finite, and none is lost."

    def __bool__(self) -> bool:
        return self.kind is not None

    @property
    def cured_policy(self) -> Policy:
        """The policy with the patch."""
        return self.policy if self.patch is None else self.patch.applied_to(self.policy)

    @property
    def cured_scale(self) -> float:
        """The loss scale with the patch."""
        changed = None if self.patch is None else self.patch.scale
        return self.scale if changed is None else changed

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return super().to_dict() | {"direction": self.direction if self else None}

    def table(self) -> Table:
        """As it is printed."""
        under = f"{self.policy!r} on {self.backend}, loss scale {power_of_two(self.scale)}"
        if not self:
            return Table(f"{under}: no problem", (), (), (self.advice,))
        operands = "inputs" if self.direction == "forward" else "gradient of its outputs"
        rows = (
            ("what", f"{self.kind}, {self.direction}"),
            ("op", self.op or "not observed"),
            ("layer", self.layer or "the model itself"),
            ("dtype", self.dtype),
            *((operands, _range(operand)) for operand in self.operands),
            ("patch", "none found" if self.patch is None else f"{self.patch}  (tested: it cures)"),
        )
        return Table(under, ("", "found"), rows, (self.advice,))


def _range(values: Exponents) -> str:
    lost = [
        f"{count} {name}"
        for count, name in (
            (values.infinities, "inf"),
            (values.nans, "NaN"),
            (values.zeros, "zero"),
        )
        if count
    ]
    headroom = "" if values.headroom is None else f", headroom {values.headroom:+d}"
    return f"max |x| {values.largest:.3g}{headroom}" + "".join(f", {part}" for part in lost)


def locate(
    loss_fn: LossFn,
    model: Model,
    *batch: Any,
    policy: str | Policy = "O1",
    scale: float = 2.0**16,
) -> Finding:
    """Find the first op that returns inf or NaN under ``policy``, or loses the gradients, and a cure.

        found = lens.locate(loss_fn, model, x, y, policy="O1", scale=scaler.get_scale())
        if found:
            print(found)
            policy = found.cured_policy

    Takes one pass in float32 and one under the policy. If there is a problem, up to 24 more passes
    look for a patch.

    Raises:
        ArgumentError: for a scale that is not a power of two.
        CallOrderError: if the model is decorated already.
        UnsupportedError: for a policy that this backend refuses, or a backend that cannot observe ops.
    """
    parsed, subject = single(policy), Subject(loss_fn, model)
    checked_scale(scale)
    search = Search(subject, batch, parsed)
    trial = search.trial(Patch(scale=scale))
    if trial.sound:
        return Finding(parsed, subject.backend.name, scale)
    beginning, in_float32 = search.beginning(trial)
    patch = None if in_float32 else search.cure(trial, beginning)
    return _finding(search, scale, beginning, in_float32, patch)


# -- one pass


class Key(NamedTuple):
    """Identifies an event in every pass: the n-th call of an op in a layer, and which of its arrays."""

    op: str
    layer: str
    occurrence: int
    side: Literal["output", "arrived", "left"]
    place: int


class Event(NamedTuple):
    """The values of one observed array.

    ``operands`` are the inputs of its op, or the gradients of the op's outputs.
    """

    key: Key
    call: OpCall
    values: Exponents
    operands: tuple[Exponents, ...]

    @property
    def is_finite(self) -> bool:
        return not self.values.infinities and not self.values.nans

    @property
    def operands_had_it(self) -> bool:
        """Whether an operand was inf or NaN already."""
        return any(operand.infinities or operand.nans for operand in self.operands)

    @property
    def zero_fraction(self) -> float:
        return self.values.zeros / max(self.values.total, 1)


class Events:
    """An observer that records the exponents of all arrays, in order."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._counts: dict[tuple[str, str], int] = {}
        self._occurrences: dict[int, int] = {}
        self._arrived: dict[int, list[Exponents]] = {}
        self.events: list[Event] = []

    def op_ran(self, call: OpCall, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> None:
        occurrence = self._counts.get((call.op, call.layer), 0)
        self._counts[call.op, call.layer] = occurrence + 1
        self._occurrences[call.number] = occurrence
        operands = tuple(map(self._exponents, inputs))
        for place, output in enumerate(outputs):
            self._note(call, "output", place, self._exponents(output), operands)

    def gradient_arrived(self, call: OpCall, output: int, gradient: Operand) -> None:
        values = self._exponents(gradient)
        self._arrived.setdefault(call.number, []).append(values)
        self._note(call, "arrived", output, values, (values,))

    def gradient_left(self, call: OpCall, input: int, gradient: Operand) -> None:
        operands = tuple(self._arrived.get(call.number, ()))
        self._note(call, "left", input, self._exponents(gradient), operands)

    def _exponents(self, operand: Operand) -> Exponents:
        return Exponents.of(self._backend.to_numpy(operand.values))

    def _note(
        self,
        call: OpCall,
        side: Literal["output", "arrived", "left"],
        place: int,
        values: Exponents,
        operands: tuple[Exponents, ...],
    ) -> None:
        key = Key(call.op, call.layer, self._occurrences[call.number], side, place)
        self.events.append(Event(key, call, values, operands))


class Beginning(NamedTuple):
    """Where the problem begins: the event, or None if no observed op caused it."""

    kind: Kind
    direction: Direction
    event: Event | None


@dataclass(frozen=True)
class Trial:
    """A pass under the policy with a patch.

    ``starved``: gradients underflow. ``sound``: all values are finite, and no gradient underflows.
    """

    patch: Patch
    passed: Pass
    events: Sequence[Event]
    starved: bool
    sound: bool


@dataclass
class Search:
    """Passes of one subject on one batch, compared with its pass in float32."""

    subject: Subject
    batch: Sequence[Any]
    policy: Policy
    trials: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        recorded = Events(self.subject.backend)
        self.reference = self.subject.run(
            self.batch, FLOAT32, observer=recorded, shown_as_under=self.policy
        )
        self.expected = {event.key: event for event in recorded.events}
        self.reference_events = recorded.events

    def trial(self, patch: Patch) -> Trial:
        """A pass with ``patch``, and the loss scale in it."""
        self.trials += 1
        recorded = Events(self.subject.backend)
        scale = 1.0 if patch.scale is None else patch.scale
        policy = patch.applied_to(self.policy)
        passed = self.subject.run(self.batch, policy, scale, recorded)
        starved = policy.needs_scaling and _is_starved(passed, self.reference)
        return Trial(patch, passed, recorded.events, starved, _is_finite(passed) and not starved)

    def beginning(self, trial: Trial) -> tuple[Beginning, bool]:
        """Where the problem of an unsound trial begins, and whether it also occurs in float32."""
        for event in trial.events:
            expected = self.expected.get(event.key)
            if not event.is_finite and (expected is None or expected.is_finite):
                return _beginning(event), False
        if trial.starved:
            return Beginning("underflow", "backward", self._first_lost(trial)), False
        if _is_finite(self.reference):
            direction: Direction = "backward" if np.isfinite(trial.passed.loss) else "forward"
            return Beginning(_kind_of(trial.passed), direction, None), False
        return self._beginning_in_float32(), True

    def _first_lost(self, trial: Trial) -> Event | None:
        """The first gradient that is zero where float32's is not."""
        for event in trial.events:
            expected = self.expected.get(event.key)
            if event.key.side == "output" or expected is None:
                continue
            if event.zero_fraction - expected.zero_fraction > STARVED:
                return event
        return None

    def _beginning_in_float32(self) -> Beginning:
        """The likeliest origin: an op with finite operands; NaN before inf, which may be intended."""
        bad = [event for event in self.reference_events if not event.is_finite]
        origins = [event for event in bad if not event.operands_had_it]
        likely = [
            *(event for event in origins if event.values.nans),
            *(event for event in origins if event.call.op not in SELECTING),
            *bad,
        ]
        return (
            _beginning(likely[0])
            if likely
            else Beginning(_kind_of(self.reference), "forward", None)
        )

    # -- cures

    def cure(self, trial: Trial, beginning: Beginning) -> Patch | None:
        """A patch with which a pass is sound; None if there is none after ``MOST_TRIALS`` passes."""
        start = trial.patch
        untried = self._cures(trial, beginning)
        while self.trials < MOST_TRIALS:
            change = next(untried, None)
            if change is None:
                return None
            changed = self.trial(trial.patch + change)
            if changed.sound:
                return self._minimal(changed.patch, start)
            reached, in_float32 = self.beginning(changed)
            if not in_float32 and _is_further(reached, beginning, changed, trial):
                trial, beginning = changed, reached
                untried = self._cures(trial, beginning)
        return None

    def _cures(self, trial: Trial, beginning: Beginning) -> Iterator[Patch]:
        """Possible cures, the likeliest first."""
        if beginning.kind == "underflow":
            yield from self._higher_scale(trial)
        overflows_backward = beginning.direction == "backward" and beginning.kind != "underflow"
        scale = self._safe_scale(trial) if overflows_backward else None
        if scale is not None and scale >= 1:
            yield Patch(scale=scale)
            return
        yield from self._wider(trial, beginning.event)
        if scale is not None:  # below 1 it is the last resort
            yield Patch(scale=scale)

    def _higher_scale(self, trial: Trial) -> Iterator[Patch]:
        """A quarter of the largest safe scale, because other batches may have larger gradients."""
        safe = self._safe_scale(trial)
        if safe is not None and safe / 4 > (trial.patch.scale or 1.0):
            yield Patch(scale=safe / 4)

    def _safe_scale(self, trial: Trial) -> float | None:
        gradients = Exponents.merged(map(Exponents.of, self.reference.gradients.values()))
        policy = trial.patch.applied_to(self.policy)
        return safe_scale(self.subject, self.batch, policy, gradients)

    def _wider(self, trial: Trial, event: Event | None) -> Iterator[Patch]:
        """Ops and layers to run in float32: first where the problem begins, then those before it."""
        calls = list({e.call.number: e.call for e in trial.events}.values())
        last = max((call.number for call in calls), default=0)
        number = last if event is None else event.call.number
        low = [call for call in calls if call.dtype in LOW_DTYPES]
        leading = [call for call in reversed(low) if call.number <= number]
        policy = trial.patch.applied_to(self.policy)
        yield from dict.fromkeys(c for call in leading for c in _in_float32(call, low, policy))

    def _minimal(self, patch: Patch, start: Patch) -> Patch:
        """``patch`` without the entries that are not needed."""
        for smaller in _one_entry_less(patch):
            if self.trials < MOST_TRIALS and self.trial(smaller).sound:
                return self._minimal(smaller, start)
        return Patch(patch.deny, patch.keep, None if patch.scale == start.scale else patch.scale)


def _one_entry_less(patch: Patch) -> Iterator[Patch]:
    if len(patch.deny) + len(patch.keep) < 2:
        return
    for op in patch.deny:
        yield Patch(tuple(o for o in patch.deny if o != op), patch.keep, patch.scale)
    for layer in patch.keep:
        yield Patch(patch.deny, tuple(k for k in patch.keep if k != layer), patch.scale)


def _in_float32(call: OpCall, low: Sequence[OpCall], policy: Policy) -> list[Patch]:
    """Ways to run one call in float32; first the one that changes the fewest of the ``low`` calls."""
    ways: list[tuple[int, Patch]] = []
    if call.op in op_table.ops() and call.op not in policy.deny:
        ways.append((sum(c.op == call.op for c in low), Patch(deny=(call.op,))))
    if call.layer and call.layer not in policy.keep:
        inside = sum(is_within(c.layer, call.layer) for c in low)
        ways.append((inside, Patch(keep=(call.layer,))))
    return [patch for _, patch in sorted(ways, key=lambda way: way[0])]


def _is_further(reached: Beginning, before: Beginning, now: Trial, then: Trial) -> bool:
    """Whether the problem begins later in the pass than before."""
    if reached.event is None or before.event is None:
        return False
    return _place(reached.event, now) > _place(before.event, then)


def _place(event: Event, trial: Trial) -> tuple[bool, int]:
    """A sort key: the forward pass in the order of calls, then the backward pass in reverse."""
    forward = event.key.side == "output"
    return (not forward, event.call.number if forward else -event.call.number)


def _beginning(event: Event) -> Beginning:
    kind: Kind = "nan" if event.values.nans and not event.values.infinities else "overflow"
    return Beginning(kind, "forward" if event.key.side == "output" else "backward", event)


def _kind_of(passed: Pass) -> Kind:
    return "overflow" if any(bool(np.isinf(a).any()) for a in passed.arrays) else "nan"


def _is_finite(passed: Pass) -> bool:
    return all(bool(np.isfinite(array).all()) for array in passed.arrays)


def _is_starved(passed: Pass, reference: Pass) -> bool:
    """Whether a checked parameter has lost more than ``STARVED`` of its gradient's elements."""
    sizes = {name: _root_mean_square(g) for name, g in reference.gradients.items()}
    counting = COUNTS * max(sizes.values(), default=0.0)
    return any(
        _lost_fraction(passed.gradients[name], expected) > STARVED
        for name, expected in reference.gradients.items()
        if sizes[name] > counting and name in passed.gradients
    )


def _root_mean_square(values: Any) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) if values.size else 0.0


def _lost_fraction(values: Any, expected: Any) -> float:
    there = expected != 0
    return float(np.mean(values[there] == 0)) if there.any() else 0.0


# -- in words


def _finding(
    search: Search, scale: float, beginning: Beginning, in_float32: bool, patch: Patch | None
) -> Finding:
    event = beginning.event
    located = partial(
        Finding,
        search.policy,
        search.subject.backend.name,
        scale,
        beginning.kind,
        beginning.direction,
        in_float32=in_float32,
        patch=patch,
        advice=_advice(beginning, in_float32, patch),
    )
    if event is None:
        return located()
    return located(event.call.op, event.call.layer, event.call.dtype, event.operands)


def _advice(beginning: Beginning, in_float32: bool, patch: Patch | None) -> str:
    event = beginning.event
    if event is not None and event.key.side == "output" and event.operands_had_it:
        origin = "Its inputs were inf or NaN already: from the batch, or from an op not observed."
        return f"{origin} {_advice_on_patch(beginning, in_float32, patch)}"
    return _advice_on_patch(beginning, in_float32, patch)


def _advice_on_patch(beginning: Beginning, in_float32: bool, patch: Patch | None) -> str:
    if in_float32:
        return "It also occurs in float32, so no policy cures it. Fix the model, or the batch."
    if patch is None:
        return "No patch cured it. lens.bisect looks for a set of ops and layers."
    if patch.scale is not None and not patch.deny and not patch.keep:
        if beginning.kind == "underflow":
            return "Raise the loss scale: the gradients are too small for float16."
        return "Lower the loss scale; a dynamic scaler does so by itself."
    return "Keep the ops and layers of the patch in float32."
