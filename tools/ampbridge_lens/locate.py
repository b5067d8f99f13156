"""Locate: find the op and the layer where inf or NaN begins, or values are lost, and a tested cure.

reference <- a pass in float32, unscaled        infinities here, such as masks, are intended
trial     <- a pass under the policy, scaled
the problem begins at the first event that is bad in trial and good in reference
    also where later ops swallow it: x / inf is zero, and the loss is finite and wrong
    where zeros made it (0/0, log 0): at the op that lost the values
for each possible cure, the likeliest first:
    if a pass with it is sound, it is the patch
    if the problem begins later with it, keep it and continue from there
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from ampbridge.adapters.backend import Backend, LossFn, Model
from ampbridge.adapters.observation import OpCall
from ampbridge.errors.foreign_names import told_of
from ampbridge.policies import op_table
from ampbridge.policies.policy import LOW_DTYPES, Policy, as_argument
from ampbridge.policies.schedule import single
from ampbridge.reports.printing import Table, TabularReport
from ampbridge_lens.census import is_within
from ampbridge_lens.closeness import EPSILON, apart, root_mean_square
from ampbridge_lens.exponents import Bin, Exponents
from ampbridge_lens.op_arrays import ArrayObserver, Key, OpArray, Side
from ampbridge_lens.ranges import power_of_two, safe_scale
from ampbridge_lens.subject import FLOAT32, Pass, Subject, checked_scale, in_layer

Kind = Literal["overflow", "nan", "underflow", "inexact", "raised", "scale"]
Direction = Literal["forward", "backward"]

SELECTING = ("where", "masked_fill")
"""Ops that typically introduce masks of -inf."""

MOST_TRIALS = 24
"""The most passes to look for a cure; after them the finding has no patch."""

STARVED = 0.5
"""A gradient underflows if more than this fraction of its elements, nonzero in float32, is zero."""

ROUNDINGS = 16.0
"""A loss that differs from float32's by more than these roundings to the policy's dtype is a problem."""

SCALED_ALIKE = 1e-3
"""Gradients at two loss scales differ if their error, or the part of other exponents, is larger."""

SHOWN = 6
"""How many other values a report prints; the attribute has all."""

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


class Other(NamedTuple):
    """An op whose values are inf, NaN or zero under the policy alone, though its inputs are not.

    Attributes:
        what: "inf", "NaN" or "zero".
        number, total: how many of its values are, and how many it has.
    """

    what: str
    op: str
    layer: str
    direction: Direction
    number: int
    total: int

    def __str__(self) -> str:
        where = in_layer(self.op, self.layer)
        return f"{where}, {self.direction}: {self.number} of {self.total} {self.what}"


@dataclass(frozen=True)
class Finding(TabularReport):
    """Where the problem begins; prints as a report. It is false if there is no problem.

    Attributes:
        kind: "overflow" (inf), "nan", "underflow" (values that are zero under the policy but not in
            float32), "inexact" (a loss that is off by more than its rounding, though nothing is inf or
            lost), "raised" (an exception that float32 does not raise), "scale" (gradients that depend
            on the loss scale); None if there is no problem.
        direction: "forward" or "backward".
        op, layer, dtype: those of the call; ``op`` is empty if no observed op caused the problem, and
            "cast" where the cast of an op's input, or of the model's, did.
        operands: the inputs of the op in the forward pass, or the gradients of its outputs in the
            backward pass.
        in_float32: whether the problem also occurs in float32, so that no policy avoids it.
        patch: a tested change that cures the problem; None if none was found.
        advice: a recommendation in words.
        loss_error: how far the loss is from float32's, over the larger one; infinite for inf and NaN.
        others: the other values that are inf, NaN or lost under the policy alone.
        raised: the exception that ended the pass under the policy; empty if none did.
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
    loss_error: float = 0.0
    others: tuple[Other, ...] = ()
    raised: str = ""

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
        others = [("also", str(other)) for other in self.others[:SHOWN]]
        if len(self.others) > SHOWN:
            others.append(("also", f"{len(self.others) - SHOWN} more"))
        if not self:
            header = ("", "found") if others else ()
            return Table(f"{under}: no problem", header, tuple(others), (self.advice,))
        operands = "inputs" if self.direction == "forward" else "gradient of its outputs"
        rows = (
            ("what", f"{self.kind}, {self.direction}"),
            *((("exception", self.raised),) if self.raised else ()),
            ("op", self.op or "not observed"),
            ("layer", self.layer or "the model itself"),
            ("dtype", self.dtype),
            *((operands, _range(operand)) for operand in self.operands),
            ("patch", "none found" if self.patch is None else f"{self.patch}  (tested: it cures)"),
            *others,
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


@told_of("lens.locate")
def locate(
    loss_fn: LossFn,
    model: Model,
    *batch: Any,
    policy: str | Policy = "O1",
    scale: float = 2.0**16,
) -> Finding:
    """Find the first op that returns inf or NaN under ``policy``, or loses values, and a cure.

        found = lens.locate(loss_fn, model, x, y, policy="O1", scale=scaler.get_scale())
        if found:
            print(found)
            policy = found.cured_policy

    Compares a pass under the policy with one in float32. A value that is inf or NaN under the policy
    alone is a problem also where later ops swallow it, so that the loss is finite; and so is a loss that
    is off by more than 16 roundings. Where values became zero and made inf or NaN later, it names the op
    that lost them. If there is none, a pass in float32 with the loss scale shows whether gradients depend
    on it (a hook or a backward function that has an absolute threshold). If there is a problem, up to 24
    more passes look for a patch. An exception that only the policy brings about is in the report.

    Raises:
        ArgumentError: for a scale that is not a power of two.
        CallOrderError: if the model is decorated already.
        UnsupportedError: for a policy that this backend refuses, or a backend that cannot observe ops.
    """
    parsed, subject = single(policy), Subject(loss_fn, model)
    checked_scale(scale)
    diagnosis = Diagnosis(subject, batch, parsed)
    trial = diagnosis.trial(Patch(scale=scale))
    if trial.sound:
        return _scale_finding(diagnosis, scale, trial) or _finding(diagnosis, scale, trial)
    beginning = diagnosis.beginning(trial)
    patch = None if beginning.in_float32 else diagnosis.cure(trial, beginning)
    return _finding(diagnosis, scale, trial, beginning, patch)


# -- one pass


class Event(NamedTuple):
    """The values of one observed array; those of an input are as the op casts them.

    Attributes:
        operands: the inputs of its op, or the gradients of the op's outputs; of an input, what was cast.
        expected: the values in float32; None if that pass has no such array, or is this one.
    """

    key: Key
    call: OpCall
    values: Exponents
    operands: tuple[Exponents, ...]
    expected: Exponents | None

    @property
    def is_finite(self) -> bool:
        return not _has_inf_or_nan(self.values)

    @property
    def is_bad(self) -> bool:
        """Whether it is inf or NaN, and is not in float32."""
        expected = self.expected
        return not self.is_finite and (expected is None or not _has_inf_or_nan(expected))

    @property
    def operands_had_it(self) -> bool:
        """Whether an operand was inf or NaN already."""
        return any(map(_has_inf_or_nan, self.operands))

    @property
    def constant(self) -> float | None:
        """The number that was handed to the op as inf and is finite in float32, if it is a single one."""
        is_one = self.key.side == "input" and self.values.total == 1 and self.is_bad
        is_inf = self.operands_had_it and self.values.infinities
        return self.expected.largest if is_one and is_inf and self.expected is not None else None

    @property
    def lost(self) -> int:
        """How many more zeros it has than in float32."""
        return 0 if self.expected is None else self.values.zeros - self.expected.zeros

    @property
    def has_lost_most(self) -> bool:
        return self.lost / max(self.values.total, 1) > STARVED

    @property
    def direction(self) -> Direction:
        return "backward" if self.key.is_gradient else "forward"


def _has_inf_or_nan(values: Exponents) -> bool:
    return bool(values.infinities or values.nans)


class Events(ArrayObserver):
    """An observer that records the exponents of all arrays, in order, beside those in float32."""

    def __init__(self, backend: Backend, expected: Mapping[Key, Exponents]) -> None:
        super().__init__(backend, self._note)
        self._expected = expected
        self._operands: dict[tuple[int, Side], list[Exponents]] = defaultdict(list)
        self.events: list[Event] = []

    def _note(self, seen: OpArray) -> None:
        side, call, handed = seen.key.side, seen.call, seen.on_host()
        values = Exponents.of(seen.as_cast(handed))
        if side in ("input", "arrived"):
            operands = [Exponents.of(handed) if seen.is_cast_down else values]
            self._operands[call.number, side].append(values)
        else:
            operands = self._operands[call.number, "input" if side == "output" else "arrived"]
        expected = self._expected.get(seen.key)
        self.events.append(Event(seen.key, call, values, tuple(operands), expected))


class Beginning(NamedTuple):
    """Where the problem begins: the event, or None if no observed op caused it.

    ``led_to``: the event that became inf or NaN because values were lost in ``event``. ``in_float32``:
    whether the problem also occurs in float32.
    """

    kind: Kind
    direction: Direction
    event: Event | None
    led_to: Event | None = None
    in_float32: bool = False


@dataclass(frozen=True)
class PatchedPass:
    """A pass under the policy with a patch.

    Attributes:
        starved: gradients underflow.
        loss_error: how far the loss is from float32's.
        sound: it ended, all is finite that is so in float32, no gradient underflows, and the loss is off
            by no more than its rounding.
    """

    patch: Patch
    passed: Pass
    events: Sequence[Event]
    starved: bool
    loss_error: float
    sound: bool


@dataclass
class Diagnosis:
    """Passes of one subject on one batch, compared with its pass in float32."""

    subject: Subject
    batch: Sequence[Any]
    policy: Policy
    trials: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        recorded = Events(self.subject.backend, {})
        self.reference = self.subject.run(
            self.batch, FLOAT32, observer=recorded, shown_as_under=self.policy
        )
        self.expected = {event.key: event.values for event in recorded.events}
        self.reference_events = recorded.events

    def trial(self, patch: Patch) -> PatchedPass:
        """Run a pass with ``patch``, at the loss scale in it."""
        self.trials += 1
        recorded = Events(self.subject.backend, self.expected)
        scale = 1.0 if patch.scale is None else patch.scale
        policy = patch.applied_to(self.policy)
        passed = self.subject.run(self.batch, policy, scale, recorded)
        starved = policy.needs_scaling and _is_starved(passed, self.reference)
        loss_error = apart(np.asarray(passed.loss), np.asarray(self.reference.loss))
        sound = (
            _is_finite(passed)
            and not starved
            and loss_error <= self.rounding
            and not any(event.is_bad for event in recorded.events)
        )
        return PatchedPass(patch, passed, recorded.events, starved, loss_error, sound)

    @property
    def rounding(self) -> float:
        """How far rounding may bring the loss from float32's."""
        return ROUNDINGS * EPSILON[self.policy.dtype if self.policy.level != "O0" else "float32"]

    def beginning(self, trial: PatchedPass) -> Beginning:
        """Where the problem of a pass that is not sound begins."""
        bad = next((event for event in trial.events if event.is_bad), None)
        if bad is not None:
            origin = self._lost_before(bad, trial)
            if origin is not None:
                return Beginning("underflow", "forward", origin, bad)
            return _beginning(bad)
        if trial.passed.raised:
            last = trial.events[-1] if trial.events else None
            return Beginning("raised", "forward" if last is None else last.direction, last)
        if _is_finite(trial.passed) and trial.loss_error > self.rounding:
            lost = self._first_lost(trial, "forward")
            return Beginning("inexact" if lost is None else "underflow", "forward", lost)
        if trial.starved:
            return Beginning("underflow", "backward", self._first_lost(trial, "backward"))
        if _is_finite(self.reference):
            direction: Direction = "backward" if np.isfinite(trial.passed.loss) else "forward"
            return Beginning(_kind_of(trial.passed), direction, None)
        return self._beginning_in_float32()._replace(in_float32=True)

    def _first_lost(self, trial: PatchedPass, direction: Direction) -> Event | None:
        """The first array in one direction that is zero where float32's is not."""
        lost = (e for e in trial.events if e.direction == direction and e.has_lost_most)
        return next(lost, None)

    def _lost_before(self, bad: Event, trial: PatchedPass) -> Event | None:
        """The event that made the zeros because of which ``bad`` is inf or NaN; None if none did.

        A quotient or a logarithm is inf, although float32's fits into the dtype, because an operand is
        zero. The search goes back to the op, or the cast, whose operands were not zero yet.
        """
        if bad.key.side != "output" or bad.expected is None or bad.operands_had_it:
            return None
        if bad.call.dtype == "float16" and bad.expected.overflowing:
            return None
        outputs = [e for e in trial.events if e.key.side == "output"]
        origin, number = None, bad.call.number
        while True:
            inputs = [e for e in trial.events if e.key.side == "input" and e.call.number == number]
            lost = next((e for e in inputs if e.lost > 0), None)
            if lost is None:
                return origin
            if lost.operands[0].zeros < lost.values.zeros:
                return lost
            earlier = [e for e in outputs if e.call.number < number and e.lost > 0]
            same = [e for e in earlier if e.values == lost.operands[0]]
            if not earlier:
                return origin
            origin = (same or earlier)[-1]
            number = origin.call.number

    def others(self, trial: PatchedPass, beginning: Event | None) -> tuple[Other, ...]:
        """What else is inf, NaN or lost under the policy alone, though the op's inputs are not."""
        found: dict[tuple[str, str, str, str], Other] = {}
        losing: set[int] = set()
        for event in trial.events:
            values = event.values
            if event.is_bad and not event.operands_had_it:
                what, count = (
                    ("inf", values.infinities) if values.infinities else ("NaN", values.nans)
                )
            elif event.has_lost_most and not event.key.is_gradient:
                is_first = event.call.number not in losing and (
                    event.key.side == "output" or event.operands[0].zeros < values.zeros
                )
                losing.add(event.call.number)
                if not is_first:
                    continue
                what, count = "zero", event.lost
            else:
                continue
            op = "cast" if event.key.side == "input" else event.call.op
            other = Other(what, op, event.call.layer, event.direction, count, values.total)
            if event is not beginning:
                found.setdefault(other[:4], other)
        return tuple(found.values())

    def cast_at(self, beginning: Beginning, trial: PatchedPass) -> tuple[str, Exponents] | None:
        """The layer of the cast that made a problem, and what it cast; None if no cast made it.

        Where an op was handed inf already, the cast is of an input of the model's, or of an earlier
        output in a wider dtype, with as many values that float16 does not hold. If there are no such
        values, an op made the inf that is not observed.
        """
        event = beginning.event
        if event is None or event.key.side != "input" or beginning.kind == "raised":
            return None
        handed = event.operands[0]
        if not event.operands_had_it:
            return event.call.layer, handed
        inputs = (("", Exponents.of(each)) for each in self.subject.float_inputs(self.batch))
        outputs = ((e.call.layer, e.values) for e in trial.events if e.key.side == "output")
        for layer, values in (*inputs, *outputs):
            overflowing = round(values.overflowing * values.total)
            fits = values.total == handed.total and not _has_inf_or_nan(values)
            if fits and overflowing and overflowing == handed.infinities:
                return layer, values
        return None

    def depending_on_scale(self, scale: float) -> tuple[list[str], Event | None]:
        """Parameters to whose gradients, in float32, the loss scale does more than multiply them.

        With the event at which that begins; None if no op's gradient is so.
        """
        recorded = Events(self.subject.backend, self.expected)
        scaled = self.subject.run(self.batch, FLOAT32, scale, recorded, shown_as_under=self.policy)
        names = [
            name
            for name, expected in self.reference.gradients.items()
            if np.isfinite(found := scaled.gradients.get(name, expected)).all()
            and apart(found / found.dtype.type(scale), expected) > SCALED_ALIKE
        ]
        powers = int(np.log2(scale))
        for event in recorded.events if names else ():
            if event.expected is None or not event.key.is_gradient:
                continue
            if _mass_apart(event.expected.shifted(powers), event.values) > SCALED_ALIKE:
                return names, event
        return names, None

    def _beginning_in_float32(self) -> Beginning:
        """The likeliest origin: an op with finite operands; NaN first, because inf may be intended."""
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

    def cure(self, trial: PatchedPass, beginning: Beginning) -> Patch | None:
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
            reached = self.beginning(changed)
            if not reached.in_float32 and _is_later(reached.event, beginning.event):
                trial, beginning = changed, reached
                untried = self._cures(trial, beginning)
        return None

    def _cures(self, trial: PatchedPass, beginning: Beginning) -> Iterator[Patch]:
        """Possible cures, the likeliest first."""
        is_backward, scale = beginning.direction == "backward", trial.patch.scale or 1.0
        if is_backward and beginning.kind == "underflow":
            safe = self._safe_scale(trial)
            if safe is not None and safe / 4 > scale:  # other batches may have larger gradients
                yield Patch(scale=safe / 4)
        overflows = is_backward and beginning.kind in ("overflow", "nan")
        if overflows and _is_finite(trial.passed):  # what overflows is swallowed
            while scale > 1.0:
                scale = max(scale / 16, 1.0)
                yield Patch(scale=scale)
            return
        safe = self._safe_scale(trial) if overflows else None
        if safe is not None and safe >= 1:
            yield Patch(scale=safe)
            return
        yield from self._wider(trial, beginning.event)
        if safe is not None:  # below 1 it is the last resort
            yield Patch(scale=safe)

    def _safe_scale(self, trial: PatchedPass) -> float | None:
        gradients = Exponents.merged(map(Exponents.of, self.reference.gradients.values()))
        policy = trial.patch.applied_to(self.policy)
        return safe_scale(self.subject, self.batch, policy, gradients)

    def _wider(self, trial: PatchedPass, event: Event | None) -> Iterator[Patch]:
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
        deny, keep, has_scale = patch.deny, patch.keep, patch.scale != start.scale
        smaller = [replace(patch, deny=tuple(o for o in deny if o != op)) for op in deny]
        smaller += [replace(patch, keep=tuple(k for k in keep if k != layer)) for layer in keep]
        smaller += [replace(patch, scale=start.scale)] if has_scale else []
        for each in smaller if len(smaller) > 1 else ():
            if self.trial(each).sound:
                return self._minimal(each, start)
        return Patch(patch.deny, patch.keep, None if patch.scale == start.scale else patch.scale)


def _in_float32(call: OpCall, low: Sequence[OpCall], policy: Policy) -> list[Patch]:
    """Ways to run one call in float32; first the one that changes the fewest of the ``low`` calls."""
    ways: list[tuple[int, Patch]] = []
    if call.op in op_table.ops() and call.op not in policy.deny:
        ways.append((sum(c.op == call.op for c in low), Patch(deny=(call.op,))))
    if call.layer and call.layer not in policy.keep:
        inside = sum(is_within(c.layer, call.layer) for c in low)
        ways.append((inside, Patch(keep=(call.layer,))))
    return [patch for _, patch in sorted(ways, key=lambda way: way[0])]


def _is_later(reached: Event | None, before: Event | None) -> bool:
    """Whether one event is later in the pass than the other; the backward pass reverses the calls."""
    if reached is None or before is None:
        return False

    def place(event: Event) -> tuple[bool, int]:
        forward = event.direction == "forward"
        return (not forward, event.call.number if forward else -event.call.number)

    return place(reached) > place(before)


def _beginning(event: Event) -> Beginning:
    kind: Kind = "nan" if event.values.nans and not event.values.infinities else "overflow"
    return Beginning(kind, event.direction, event)


def _mass_apart(a: Exponents, b: Exponents) -> float:
    """The fraction of values that are in other bins in the other histogram."""
    bins = a.bins.keys() | b.bins.keys()
    none = Bin(0, 0, 0)
    moved = sum(abs(a.bins.get(e, none).values - b.bins.get(e, none).values) for e in bins)
    return (moved + abs(a.zeros - b.zeros)) / max(a.total, 1)


def _kind_of(passed: Pass) -> Kind:
    return "overflow" if any(bool(np.isinf(a).any()) for a in passed.arrays) else "nan"


def _is_finite(passed: Pass) -> bool:
    return all(bool(np.isfinite(array).all()) for array in passed.arrays)


def _is_starved(passed: Pass, reference: Pass) -> bool:
    """Whether a checked parameter has lost more than ``STARVED`` of its gradient's elements."""
    sizes = {name: root_mean_square(g) for name, g in reference.gradients.items()}
    counting = COUNTS * max(sizes.values(), default=0.0)
    for name, expected in reference.gradients.items():
        if sizes[name] > counting and name in passed.gradients:
            is_lost = passed.gradients[name][expected != 0] == 0
            if is_lost.size and np.mean(is_lost) > STARVED:
                return True
    return False


# -- in words


def _finding(
    diagnosis: Diagnosis,
    scale: float,
    trial: PatchedPass,
    beginning: Beginning | None = None,
    patch: Patch | None = None,
) -> Finding:
    event = None if beginning is None else beginning.event
    found = Finding(
        diagnosis.policy,
        diagnosis.subject.backend.name,
        scale,
        patch=patch,
        loss_error=trial.loss_error,
        others=diagnosis.others(trial, event),
        raised=trial.passed.raised,
    )
    if beginning is None:
        return found
    cast = diagnosis.cast_at(beginning, trial)
    advice = " ".join(_advice(diagnosis, trial, beginning, cast is not None, patch))
    found = replace(
        found,
        kind=beginning.kind,
        direction=beginning.direction,
        in_float32=beginning.in_float32,
        advice=advice,
    )
    if event is None:
        return found
    op, layer, operands = event.call.op, event.call.layer, event.operands
    if cast is not None:
        op, layer, operands = "cast", cast[0], (cast[1],)
    return replace(found, op=op, layer=layer, dtype=event.call.dtype, operands=operands)


def _scale_finding(diagnosis: Diagnosis, scale: float, trial: PatchedPass) -> Finding | None:
    """The finding if gradients depend on the loss scale, though the policy makes no problem."""
    if not diagnosis.policy.needs_scaling or scale == 1.0:
        return None
    names, event = diagnosis.depending_on_scale(scale)
    if not names:
        return None
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    advice = (
        f"The gradients of {', '.join(names[:SHOWN])}{more} depend on the loss scale, in float32 as well: "
        "a hook or a backward function of your own does something else with gradients that are scaled, "
        "as one with a threshold. Multiply its constants by scaler.get_scale(), call it after the "
        "gradients are unscaled, or take bfloat16, which needs no scale."
    )
    found = replace(
        _finding(diagnosis, scale, trial), kind="scale", direction="backward", advice=advice
    )
    if event is None:
        return replace(found, layer=names[-1].rpartition(".")[0])
    call = event.call
    return replace(found, op=call.op, layer=call.layer, dtype=call.dtype, operands=event.operands)


def _advice(
    diagnosis: Diagnosis,
    trial: PatchedPass,
    beginning: Beginning,
    is_cast: bool,
    patch: Patch | None,
) -> Iterator[str]:
    event, led_to = beginning.event, beginning.led_to
    has_raised = beginning.kind == "raised"
    sides = ("output",) if has_raised else ("input", "output")
    if event is not None and is_cast:
        yield f"A cast to {event.call.dtype} makes it, of what {event.call.op} takes."
    elif event is not None and event.constant is not None and not has_raised:
        yield (
            f"It takes one number that is {event.constant:g} in float32 and inf in "
            f"{event.call.dtype} already: a constant of the code. Compute there in float32, or with a "
            "smaller number."
        )
    elif event is not None and event.operands_had_it and event.key.side in sides:
        yield "Its inputs were inf or NaN already: from the batch, or from an op not observed."
    if led_to is not None:
        made = "inf" if led_to.values.infinities else "NaN"
        where = in_layer(led_to.call.op, led_to.call.layer)
        yield f"The values that are lost there make {made} in {where}."
    if event is not None and has_raised:
        yield "It is the last op that was seen before the exception."
    if np.isfinite(trial.loss_error) and trial.loss_error > diagnosis.rounding:
        loss, expected = trial.passed.loss, diagnosis.reference.loss
        roundings = trial.loss_error / diagnosis.rounding * ROUNDINGS
        policy = as_argument(diagnosis.policy)
        yield (
            f"The loss is {loss:.6g}, in float32 {expected:.6g}: off by {trial.loss_error:.2g} of it, "
            f"{roundings:.0f} roundings. lens.ranges(loss_fn, model, *batch) shows how large each value "
            f"is, lens.align((loss_fn, model, 'O0'), (loss_fn, model, {policy}), *batch) where they "
            "differ first."
        )
    if beginning.in_float32:
        yield "It also occurs in float32, so no policy cures it. Fix the model, or the batch."
    elif patch is None:
        yield "No patch cured it. lens.bisect looks for a set of ops and layers."
    elif patch.scale is None or patch.deny or patch.keep:
        yield "Keep the ops and layers of the patch in float32."
    elif beginning.kind == "underflow":
        yield "Raise the loss scale: the gradients are too small for float16."
    else:
        yield "Lower the loss scale; a dynamic scaler does so by itself."
