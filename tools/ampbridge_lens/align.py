"""Align: the first op whose value or gradient differs in two passes beyond its rounding.

for the passes in float32, then for those under the policies:
    for each pair of ops, in forward order:      compare their outputs
    for each pair of gradients, as they came:    compare them

    error     max |a - b| over the largest magnitude of both
    expected  the largest noise so far, of either side; at least a rounding to the lowest dtype so far
    differs   if error > tolerance * expected
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ampbridge.checkpoints.weights import Match, Weight, match_weights
from ampbridge.errors import ArgumentError, ArgumentTypeError, listed
from ampbridge.errors.foreign_names import told_of
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single
from ampbridge.reports.printing import Table, TabularReport
from ampbridge_lens.closeness import (
    AS_IT_IS,
    EPSILON,
    Arrangement,
    NumpyArray,
    arranged,
    arrangement_of,
    error,
    is_reordered,
    largest,
    nearest,
    rounding,
)
from ampbridge_lens.pairing import paired_ops, unpaired_ops
from ampbridge_lens.recording import RecordedOp, Recording, Values, fitting, record
from ampbridge_lens.subject import FLOAT32, Subject, ended, in_layer

Side: TypeAlias = Recording | Sequence[Any]
"""A recording, or ``(loss_fn, model)``, or ``(loss_fn, model, policy)``."""

Weights = Literal["restored", "kept", "own"]
WEIGHTS: tuple[Weights, ...] = ("restored", "kept", "own")

TOLERANCE = 16.0
"""How often the expected rounding is allowed, by default."""

IN_FLOAT32 = 4 * EPSILON["float32"]
"""The least that is expected: sums of many terms are summed in another order everywhere."""

MOST = 0.1
"""The largest error at which values count as transposed or reordered, and inputs as equal."""

SHOWN = 6
"""How many names of one kind a report prints; the attributes have all."""


class Place(NamedTuple):
    """An op of one side, with the dtype that it computed in."""

    op: str
    layer: str
    dtype: str

    def __str__(self) -> str:
        return f"{in_layer(self.op, self.layer)}, {self.dtype}"


class Difference(NamedTuple):
    """The first difference in one direction.

    Attributes:
        what: "output", "gradient of an output", "gradient of an input", "loss" or "parameter".
        name: of a parameter, that of ``a``; else empty.
        a, b: the ops.
        error: the largest difference over the largest magnitude; infinite for inf and NaN that only
            one side has.
        expected: what rounding explains of it.
        in_float32: whether the passes in float32 differ there as well: then it is no matter of
            precision, but another computation.
        how: how the values are related: "they differ", "equal after transposing axes 0 and 1", "the
            same values in another order", or the two shapes.
        cause: what is known of the op's inputs.
        between: ops without a partner since the last pair, "b: transpose, permute".
    """

    what: str
    name: str
    a: Place
    b: Place
    error: float
    expected: float
    in_float32: bool
    how: str
    cause: str
    between: tuple[str, ...]

    @property
    def times(self) -> float:
        """How often the expected rounding the error is."""
        return self.error / self.expected


class OtherDtype(NamedTuple):
    """A pair of ops that computed in other dtypes, or returned them."""

    a: Place
    b: Place
    returned: tuple[str, str]


class OtherWeight(NamedTuple):
    """A pair of weights whose values are not the same."""

    a: str
    b: str
    error: float
    how: str


@dataclass(frozen=True)
class Alignment(TabularReport):
    """Where two passes differ; prints as a report. It is false if they do not.

    Attributes:
        a, b: the backends.
        policies: those of both sides.
        tolerance: how often the expected rounding was allowed.
        pairs: the number of paired ops.
        forward: the first output that differs.
        backward: the first gradient that differs. After a difference in the forward pass it may be
            that one's consequence.
        dtypes: paired ops that ran in other dtypes; expected under two policies, a difference under
            one.
        weights: paired weights with other values.
        unpaired: what found no partner and was not compared, as "a: einsum, attention".
        unpaired_weights: weights without a partner, as "a: attention.in_proj_weight".
        turned: outputs that are equal with their axes in another order, as channels last and channels
            first, and behind which the outputs are equal as they are.
        unjudged: arrays of which rounding may explain any difference.
        largest: the largest error that was found equal, in expected roundings.
        raised: the exceptions that ended the passes under the policies of both; empty if none did. Then
            what came before them is compared.
    """

    a: str
    b: str
    policies: tuple[Policy, Policy]
    tolerance: float
    pairs: int
    forward: Difference | None
    backward: Difference | None
    dtypes: tuple[OtherDtype, ...]
    weights: tuple[OtherWeight, ...]
    unpaired: tuple[str, ...]
    unpaired_weights: tuple[str, ...]
    turned: tuple[str, ...]
    unjudged: int
    largest: float
    raised: tuple[str, str] = ("", "")

    def __bool__(self) -> bool:
        other_dtypes = bool(self.dtypes) and self.policies[0] == self.policies[1]
        differs = self.forward or self.backward or self.weights
        return bool(differs or other_dtypes or self.raised[0] != self.raised[1])

    def table(self) -> Table:
        """As it is printed: what differs first; the rest is counted, and is in the attributes."""
        rows = [
            *_rows_of("forward", self.forward),
            *_rows_of("backward", self.backward),
            *_rows_of_dtypes(self.dtypes, self.policies),
            *(("weight", f"{w.a}: {w.how}") for w in self.weights[:SHOWN]),
        ]
        return Table(
            f"a: {self.a}, {self.policies[0]!r}\nb: {self.b}, {self.policies[1]!r}\n"
            + ("They differ." if self else "They agree up to rounding."),
            ("", "found"),
            tuple(rows),
            tuple(self._remarks()),
        )

    def _remarks(self) -> Iterator[str]:
        for side, raised in zip("ab", self.raised, strict=True):
            if raised:
                yield f"{side}: {ended(raised)}"
        yield (
            f"{self.pairs} ops paired; equal ones differ by up to {self.largest:.2g} of the expected "
            f"rounding, {self.tolerance:g} allowed."
        )
        for kind, names in (("Ops", self.unpaired), ("Weights", self.unpaired_weights)):
            if names:
                yield without_partner(kind, names)
        if self.turned:
            yield f"Equal with axes in another order, and as they are behind it: {_first(self.turned)}."
        if self.unjudged:
            yield f"Arrays of which rounding may explain any difference: {self.unjudged}."


@told_of("lens.align")
def align(
    a: Side,
    b: Side,
    *batch: Any,
    weights: Weights = "restored",
    mapping: Mapping[str, str] | None = None,
    tolerance: float = TOLERANCE,
) -> Alignment:
    """Find the first op whose value or gradient differs on two sides beyond its rounding.

        print(lens.align((loss_fn, model, "O1"), (loss_fn, model, "O2"), x, y))
        print(lens.align(Recording.load("torch.npz"), (loss_fn, keras_model, "O1"), x, y))

    A side is ``(loss_fn, model)``, ``(loss_fn, model, policy)`` (O1 by default), or a recording by
    ``lens.record``, which may come from another process: TensorFlow and Paddle cannot share one.

    Ops are paired by canonical name, size of the outputs, layer and order. An op without a partner is
    named and not compared. Outputs with their axes in another order (channels last, channels first)
    are equal if the next ones are equal as they are. The passes in float32 are compared first, then
    those under the policies. The report says in both directions where the first difference is, how
    large against the rounding that is expected there, and whether axes are transposed.

    Args:
        weights: "restored": ``b``, unless it is a recording, has the weights of ``a`` during the
            passes, and its own afterwards; "kept": it keeps those of ``a``; "own": both have their
            own, and weights with other values are reported.
        mapping: pairs of weights that names and order do not tell, names in ``b`` -> names in ``a``.
        tolerance: how often the expected rounding is allowed.

    Raises:
        ArgumentError, ArgumentTypeError: for something else than these.
        CallOrderError: if a model is decorated already.
        StateError: if a weight has no partner, unless each side has its own.
        UnsupportedError: for a policy that a backend refuses, or a backend that cannot observe ops.
    """
    _check(a, b, batch, weights, tolerance)
    first = _recorded(a, batch)
    second = _recorded(b, batch, weights, first, mapping)
    report = match_weights(first.weights, second.weights, mapping, all_needed=False)
    matched, sides = list(report), (first, second)
    pairs = paired_ops(first.ops, second.ops, matched)
    also_under_policies = any(side.policy != FLOAT32 for side in sides)
    comparisons = [
        _Comparison(first, second, matched, pairs, tolerance, in_float32)
        for in_float32 in ((True, False) if also_under_policies else (True,))
    ]
    forward = next(filter(None, (each.forward() for each in comparisons)), None)
    backward = next(filter(None, (each.backward() for each in comparisons)), None)
    unpaired_weights = [
        f"{name}: {weight.name}"
        for name, left in (("a", report.unused), ("b", report.kept))
        for weight in left
    ]
    turned: dict[int, str] = {}
    for each in comparisons:
        turned |= each.turned
    return Alignment(
        first.backend,
        second.backend,
        (first.policy, second.policy),
        tolerance,
        len(pairs),
        forward,
        backward,
        tuple(_other_dtypes(first, second, pairs)),
        tuple(_other_weights(first, second, matched)),
        tuple(unpaired_ops(first.ops, second.ops, pairs)),
        tuple(unpaired_weights),
        tuple(turned.values()),
        sum(each.unjudged for each in comparisons),
        max(each.largest for each in comparisons),
        (first.raised, second.raised),
    )


def _check(a: Any, b: Any, batch: Sequence[Any], weights: str, tolerance: float) -> None:
    for name, side in (("a", a), ("b", b)):
        live = isinstance(side, (tuple, list)) and len(side) in (2, 3)
        if not live and not isinstance(side, Recording):
            msg = f"{name} is a recording or (loss_fn, model, policy), not {side!r:.80}.\n"
            raise ArgumentTypeError(msg + "Hint: lens.align((loss_fn, model), recording, x, y)")
    if isinstance(a, Recording) and isinstance(b, Recording) and batch:
        msg = f"Passed two recordings and {len(batch)} inputs; each recording has its own.\n"
        raise ArgumentError(msg + "Hint: lens.align(recording_a, recording_b)")
    check_weights(weights)
    if not tolerance > 0 or not isfinite(tolerance):
        msg = f"Passed tolerance={tolerance!r}; allowed are numbers above 0.\n"
        raise ArgumentError(msg + f"Hint: tolerance={TOLERANCE}")


def check_weights(weights: str) -> None:
    if weights not in WEIGHTS:
        msg = f"Passed weights={weights!r}; allowed are {listed(WEIGHTS)}.\n"
        raise ArgumentError(msg + "Hint: weights='restored'")


@contextmanager
def lent(
    described: Sequence[Weight],
    values: Mapping[str, NumpyArray],
    subject: Subject,
    weights: Weights,
    mapping: Mapping[str, str] | None,
) -> Iterator[None]:
    """Give a model the weights of another inside, unless it has its own; it may keep them afterwards."""
    if weights == "own":
        yield
        return
    given = fitting(described, values, subject, mapping)
    with subject.with_weights(given):
        yield
    if weights == "kept":
        present = subject.backend.read_weights(subject.model)
        subject.backend.write_weights(subject.model, {**present, **given})


def _recorded(
    side: Side,
    batch: Sequence[Any],
    weights: Weights = "own",
    first: Recording | None = None,
    mapping: Mapping[str, str] | None = None,
) -> Recording:
    """The recording of a side, with the weights of ``first`` unless it has its own."""
    if isinstance(side, Recording):
        return side
    loss_fn, model, *given = side
    policy = single(*given) if given else Policy("O1")
    subject = Subject(loss_fn, model)
    with (
        nullcontext()
        if first is None
        else lent(first.weights, first.values, subject, weights, mapping)
    ):
        return record(loss_fn, model, *batch, policy=policy)


# -- comparing

Way = tuple[int, str, int]
"""A gradient, as ``Arrival`` has it: op, side and place."""


class _Found(NamedTuple):
    """Two arrays that differ. ``how`` is their arrangement if nothing else differs."""

    error: float
    expected: float
    how: Arrangement | None
    related: str

    @property
    def moves_channels(self) -> bool:
        return self.how is not None and self.how.moves_channels


class _Comparison:
    """Compares the passes of both sides in float32, or those under the policies.

    Attributes:
        outputs: the error that is expected of each op's outputs, for each side.
        gradients: the same of each gradient.
    """

    def __init__(
        self,
        a: Recording,
        b: Recording,
        weights: Sequence[Match],
        pairs: Sequence[tuple[int, int]],
        tolerance: float,
        in_float32: bool,
    ) -> None:
        self.a, self.b, self.weights, self.pairs = a, b, weights, pairs
        self.tolerance, self.in_float32 = tolerance, in_float32
        self.largest, self.unjudged = 0.0, 0
        self.turned: dict[int, str] = {}
        self.outputs = self._expected_of_outputs(a), self._expected_of_outputs(b)
        at_the_end = [max(each, default=IN_FLOAT32) for each in self.outputs]
        self.gradients = (
            self._expected_of_gradients(a, at_the_end[0]),
            self._expected_of_gradients(b, at_the_end[1]),
        )

    def _array(self, values: Values) -> NumpyArray | None:
        return values.full if self.in_float32 else values.low

    # what is expected

    def _expected(self, values: Values, scale: float, *dtypes: str) -> float:
        """The error that is expected of an array: its noise, or the rounding to the lowest dtype."""
        found = self._array(values)
        if found is None:
            return 0.0
        lower = ("float32",) if self.in_float32 else dtypes
        roundings = (rounding(found, dtype, scale) for dtype in lower)
        return max(self._noise(values), IN_FLOAT32, *roundings)

    def _noise(self, values: Values) -> float:
        return values.full_noise if self.in_float32 else values.low_noise

    def _expected_of_outputs(self, side: Recording) -> list[float]:
        own = (
            max((self._expected(v, 1.0, op.dtype, v.dtype) for v in op.outputs), default=0.0)
            * self._cancellation(op)
            for op in side.ops
        )
        return list(accumulate(own, max))

    def _cancellation(self, op: RecordedOp) -> float:
        """How many times larger the inputs of a sum are than the sum, which has their roundings.

        The noise does not contain this: adding a large number hides the disturbance of a small one.
        """
        if op.op not in ("add", "subtract"):
            return 1.0
        inputs, outputs = (
            max((largest(x) for v in values if (x := self._array(v)) is not None), default=0.0)
            for values in (op.inputs, op.outputs)
        )
        return max(inputs / outputs, 1.0) if outputs else 1.0

    def _expected_of_gradients(self, side: Recording, so_far: float) -> dict[Way, float]:
        """The error grows from one op to the next by the gradients that arrive.

        A gradient that leaves an op is a part of one that arrives at another, or it ends there.
        """
        found: dict[Way, float] = {}
        for i, which, place in side.backward:
            values = getattr(side.ops[i], which)[place]
            own = self._expected(values, side.scale, values.dtype, side.ops[i].dtype)
            found[i, which, place] = max(so_far, own)
            if which == "arrived":
                so_far = found[i, which, place]
        return found

    def _expected_of_pair(self, i: int, j: int) -> float:
        return max(self.outputs[0][i], self.outputs[1][j])

    # two arrays

    def _compared(
        self, x: Values, y: Values, expected: float, usual: Arrangement = AS_IT_IS
    ) -> _Found | None:
        """How two arrays differ; None if they are equal, or one of them is missing."""
        one, other = self._array(x), self._array(y)
        if one is None or other is None:
            return None
        limit = self.tolerance * expected
        if limit >= 1:
            self.unjudged += 1
        wrong = error(one, other, usual)
        if wrong <= limit:
            self.largest = max(self.largest, wrong / expected)
            return None
        limit = min(limit, MOST)
        how = arrangement_of(one, other, limit)
        if how is None:
            wrong = min(wrong, nearest(one, other))
            return _Found(wrong, expected, None, _related(one, other, limit))
        return _Found(wrong, expected, how, str(how))

    def _arrangement(self, x: Values, y: Values, expected: float) -> Arrangement | None:
        """The arrangement in which two arrays are equal; None if they are not."""
        one, other = self._array(x), self._array(y)
        if one is None or other is None or one.size != other.size:
            return None
        return arrangement_of(one, other, min(self.tolerance * expected, MOST))

    def _equal_outputs(self, i: int, j: int) -> Iterator[tuple[int, int, Arrangement]]:
        """The places of equal outputs on both sides, and how they are arranged."""
        outputs = zip(self.a.ops[i].outputs, self.b.ops[j].outputs, strict=False)
        for place, (x, y) in enumerate(outputs):
            how = self._arrangement(x, y, self._expected_of_pair(i, j))
            if how is not None:
                yield place, place, how

    def _equal_inputs(self, i: int, j: int) -> Iterator[tuple[int, int, Arrangement]]:
        """The same of equal inputs; those with gradients come first."""
        one, other = self.a.ops[i], self.b.ops[j]
        left = sorted(range(len(other.inputs)), key=lambda place: place not in other.left)
        for place in sorted(range(len(one.inputs)), key=lambda place: place not in one.left):
            for partner in left:
                x, y = one.inputs[place], other.inputs[partner]
                how = self._arrangement(x, y, self._expected_of_pair(i, j))
                if how is not None:
                    left.remove(partner)
                    yield place, partner, how
                    break

    # forward

    def forward(self) -> Difference | None:
        """The first output that differs, or the loss.

        Outputs whose axes are turned are no difference if the next ones are as they are. If the next
        difference comes before that, it began with them, unless only the channels are moved.
        """
        turned: dict[int, _Found] = {}
        for number, found in self._compared_outputs():
            if found is None:
                self.turned |= {n: self._turned(n, each) for n, each in turned.items()}
                turned = {}
            elif found.how is not None:
                turned[number] = found
            else:
                began = [n for n, each in turned.items() if not each.moves_channels]
                if began:
                    number, found = began[0], turned[began[0]]
                cause = self._cause(number, not began and number - 1 in turned)
                what = "loss" if number == len(self.pairs) else "output"
                return self._difference(what, number, found, cause)
        return None

    def _compared_outputs(self) -> Iterator[tuple[int, _Found | None]]:
        """How the outputs of each pair differ, with the number of the pair; then the loss."""
        for number, (i, j) in enumerate(self.pairs):
            outputs = zip(self.a.ops[i].outputs, self.b.ops[j].outputs, strict=False)
            found = [self._compared(x, y, self._expected_of_pair(i, j)) for x, y in outputs]
            yield number, next(filter(None, found), None)
        if self.a.raised or self.b.raised:
            return
        last = [each[-1] for each in self.outputs if each]
        expected = max(last, default=IN_FLOAT32)
        yield len(self.pairs), self._compared(self.a.loss, self.b.loss, expected)

    def _turned(self, number: int, found: _Found) -> str:
        op = self.a.ops[self.pairs[number][0]]
        how = "channels moved" if found.moves_channels else found.related
        return f"{in_layer(op.op, op.layer)} ({how})"

    def _cause(self, number: int, moved_before: bool) -> str:
        """What is known of the inputs of a pair that are no weights.

        ``moved_before``: whether the channels of the pair before it are moved.
        """
        if number == len(self.pairs):
            return "All paired outputs are equal."
        i, j = self.pairs[number]
        one, other = self.a.ops[i], self.b.ops[j]
        for x, y in zip(one.inputs, other.inputs, strict=False):
            for side, op, ours, theirs in (("a", one, x, y), ("b", other, y, x)):
                if _is_finite(self._array(theirs)) and not _is_finite(self._array(ours)):
                    # In float32; without that pass, of the sides that are finite.
                    most = max(largest(v.low if v.full is None else v.full) for v in (x, y))
                    return (
                        f"A cast to {op.dtype} makes inf of an input on side {side}, for "
                        f"{in_layer(op.op, op.layer)}; its largest value was {most:.3g}."
                    )
        usual = moved_before or any(word in one.op for word in ("conv", "pool"))
        found = {place: how for place, _, how in self._equal_inputs(i, j)}
        # A recording has each array once.
        names = {id(values): name for name, values in self.a.values.items()}
        given = {p: how for p, how in found.items() if id(one.inputs[p].full) not in names}
        for place, how in given.items():
            moved = how.moves_channels and (usual or len(how.of) > 3)
            if how.axes is not None and not moved:
                return f"Input {place} is {how}."
        differing = [x for place, x in enumerate(one.inputs) if place not in found]
        if len(found) < min(len(one.inputs), len(other.inputs)):
            weights = [names.get(id(x.full), "") for x in differing]
            if all(weights):
                return f"Its weights differ: {', '.join(weights)}."
            return "An input differs already: what made it has no partner, or is not seen as an op."
        where = ", with the channels moved" if any(how.axes for how in given.values()) else ""
        return f"Its inputs are equal{where}: the op itself computes something else."

    # backward

    def backward(self) -> Difference | None:
        """The first gradient that differs, in the order of ``a``; else the first of a parameter.

        A gradient has the arrangement of its array, if that array is equal on both sides.
        """
        numbers = {i: number for number, (i, _) in enumerate(self.pairs)}
        arrangements: dict[tuple[int, str], dict[int, tuple[int, Arrangement]]] = {}
        for i, side, place in self.a.backward:
            if i not in numbers:
                continue
            j = self.pairs[numbers[i]][1]
            if (i, side) not in arrangements:
                equal = self._equal_inputs(i, j) if side == "left" else self._equal_outputs(i, j)
                arrangements[i, side] = {x: (y, how) for x, y, how in equal}
            partner, how = arrangements[i, side].get(place, (None, AS_IT_IS))
            theirs = None if partner is None else getattr(self.b.ops[j], side).get(partner)
            if theirs is None:
                continue
            expected = max(
                self.gradients[0].get((i, side, place), 0.0),
                self.gradients[1].get((j, side, partner or 0), 0.0),
            )
            own = getattr(self.a.ops[i], side)[place]
            found = self._compared(own, theirs, expected, how)
            if found is not None:
                inputs = min(len(self.a.ops[i].inputs), len(self.b.ops[j].inputs))
                are_equal = len([*self._equal_inputs(i, j)]) == inputs
                cause = _CAUSES[side] if are_equal else _CONSEQUENCE
                return self._difference(_SIDES[side], numbers[i], found, cause)
        return self._parameters()

    def _parameters(self) -> Difference | None:
        """The last parameter whose gradient differs, which is the first in the backward pass."""
        expected = max(
            (each for way in self.gradients for key, each in way.items() if key[1] == "arrived"),
            default=IN_FLOAT32,
        )
        for match in reversed(self.weights):
            x = self.a.gradients.get(match.source.name)
            y = self.b.gradients.get(match.target.name)
            if x is None or y is None:
                continue
            full = None if x.full is None else match.converted(x.full)
            turned = x._replace(low=match.converted(x.low), full=full)
            own = max(self._noise(x), self._noise(y))
            found = self._compared(turned, y, max(expected, own))
            if found is not None:
                cause = "All paired gradients of ops are equal."
                place, name = len(self.pairs), match.source.name
                return self._difference("parameter", place, found, cause, name)
        return None

    def _difference(
        self, what: str, number: int, found: _Found, cause: str, name: str = ""
    ) -> Difference:
        i, j = len(self.a.ops), len(self.b.ops)
        places = Place(what, "", "float32"), Place(what, "", "float32")
        if number < len(self.pairs):
            i, j = self.pairs[number]
            places = _place(self.a.ops[i]), _place(self.b.ops[j])
        between: list[str] = []
        if what in ("output", "loss"):
            before = self.pairs[number - 1] if number else (-1, -1)
            for side, ops in (
                ("a", self.a.ops[before[0] + 1 : i]),
                ("b", self.b.ops[before[1] + 1 : j]),
            ):
                between += [f"{side}: {in_layer(op.op, op.layer)}" for op in ops]
        return Difference(
            what,
            name,
            *places,
            found.error,
            found.expected,
            self.in_float32,
            found.related,
            cause,
            tuple(between),
        )


_SIDES = {"arrived": "gradient of an output", "left": "gradient of an input"}
_CAUSES = {
    "arrived": "No paired op's backward pass is seen to make it: an op without a partner does.",
    "left": "What arrived at the op is equal: its backward pass computes something else.",
}
_CONSEQUENCE = "The op's inputs differ in the forward pass already."


def _is_finite(values: NumpyArray | None) -> bool:
    return values is None or bool(np.isfinite(values).all())


def _place(op: RecordedOp) -> Place:
    return Place(op.op, op.layer, op.dtype)


def _related(one: NumpyArray, other: NumpyArray, limit: float) -> str:
    if is_reordered(one, other, limit):
        return "the same values in another order"
    if arranged(one, other, AS_IT_IS) is None:
        return f"shapes {one.shape} and {other.shape}"
    return "they differ"


def _other_dtypes(
    a: Recording, b: Recording, pairs: Sequence[tuple[int, int]]
) -> Iterator[OtherDtype]:
    for i, j in pairs:
        one, other = a.ops[i], b.ops[j]
        returned = one.outputs[0].dtype, other.outputs[0].dtype
        if one.dtype != other.dtype or returned[0] != returned[1]:
            yield OtherDtype(_place(one), _place(other), returned)


def _other_weights(a: Recording, b: Recording, weights: Sequence[Match]) -> Iterator[OtherWeight]:
    for match in weights:
        own, other = a.values[match.source.name], b.values[match.target.name]
        turned = match.converted(own)
        limit = max(
            float(np.finfo(v.dtype).eps) if v.dtype.kind == "f" else 0.0 for v in (own, other)
        )
        wrong = error(turned, other)
        if wrong > limit:
            found = arrangement_of(turned, other, limit)
            how = _related(turned, other, limit) if found is None else str(found)
            yield OtherWeight(match.source.name, match.target.name, wrong, how)


# -- printing


def without_partner(kind: str, names: Sequence[str]) -> str:
    """A report's remark about what found no partner."""
    return f"{kind} without a partner, not compared: {_first(names)}."


def _first(names: Sequence[str]) -> str:
    counted = [name if n == 1 else f"{name}, {n} times" for name, n in Counter(names).items()]
    more = f"; {len(counted) - SHOWN} more" if len(counted) > SHOWN else ""
    return "; ".join(counted[:SHOWN]) + more


def _rows_of(direction: str, found: Difference | None) -> list[tuple[str, str]]:
    if found is None:
        return [(direction, "equal up to rounding")]
    what = f"{found.what} {found.name}".rstrip()
    also = "in float32 as well" if found.in_float32 else "only under the policies"
    rows = [(direction, f"{what}: {found.how}, {also}")]
    if found.what not in ("loss", "parameter"):
        rows += [("  a", str(found.a)), ("  b", str(found.b))]
    rows += [
        (
            "  error",
            f"{found.error:.2g} of the largest value, {found.times:.2g} times the rounding",
        ),
        ("  cause", found.cause),
    ]
    return rows + ([("  between", _first(found.between))] if found.between else [])


def _rows_of_dtypes(
    found: Sequence[OtherDtype], policies: tuple[Policy, Policy]
) -> list[tuple[str, str]]:
    if not found:
        return []
    first = found[0]
    expected = "" if policies[0] == policies[1] else ", as is usual under two policies"
    return [
        ("dtypes", f"other ones in {len(found)} ops{expected}; the first:"),
        ("  a", f"{first.a} -> {first.returned[0]}"),
        ("  b", f"{first.b} -> {first.returned[1]}"),
    ]
