"""Bisect: find a minimal set of ops and layers to keep in float32 for errors below a tolerance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil, isfinite, log2
from typing import Any, Literal, NamedTuple

from ampbridge.adapters.backend import Backend, LossFn, Model
from ampbridge.errors import ArgumentError, ArgumentTypeError
from ampbridge.errors.foreign_names import told_of
from ampbridge.policies import op_table
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single
from ampbridge.reports.printing import Table, TabularReport
from ampbridge.reports.progress import Progress, reported
from ampbridge_lens.census import is_within
from ampbridge_lens.locate import Patch
from ampbridge_lens.ranges import power_of_two
from ampbridge_lens.search import culprits, without_spare
from ampbridge_lens.subject import FLOAT32, Subject, checked_scale, ended
from ampbridge_lens.trials import Errors, Trial, Trials

REPEATABLE = 0.1
"""Two float32 runs may differ by this fraction of the tolerance."""


class Entry(NamedTuple):
    """An op or a layer that is kept in float32.

    Attributes:
        kind: "op" (denied wherever it is called) or "layer" (kept, with its sublayers).
        name: canonical name of the op, or dotted name of the layer.
        calls: how many calls it moves from low precision to float32, on all batches together.
        errors_without: the errors with all other entries, but without this one.
    """

    kind: Literal["op", "layer"]
    name: str
    calls: int
    errors_without: Errors


@dataclass(frozen=True)
class Bisection(TabularReport):
    """The ops and layers to keep in float32, and why; prints as a table.

    Attributes:
        policy: the given policy with the entries; its errors are below ``tolerance``.
        scale: the loss scale of the runs: the given one or, if only gradients overflow at that, a lower
            one at which they do not.
        given_scale: the one that was passed.
        entries: a minimal set: without any one of them, the errors exceed the tolerance.
        errors_before, errors_after: the errors under the given policy, and under ``policy``.
        runs: the number of passes over all batches, those in float32 included.
        raised: the exception that ended a pass under the given policy; empty if none did.
    """

    policy: Policy
    given: Policy
    backend: str
    scale: float
    tolerance: float
    entries: tuple[Entry, ...]
    errors_before: Errors
    errors_after: Errors
    runs: int
    given_scale: float
    raised: str = ""

    def table(self) -> Table:
        """As it is printed."""
        under = f"{self.given!r} on {self.backend}, loss scale {power_of_two(self.scale)}"
        return Table(
            f"{under}: " + (f"keep {len(self.entries)}" if self.entries else "nothing to keep"),
            ("in float32", "name", "calls", "loss off without it", "gradients off without it"),
            tuple(
                (entry.kind, entry.name, str(entry.calls), *map(_off, entry.errors_without))
                for entry in self.entries
            ),
            tuple(self._remarks()),
        )

    def _remarks(self) -> list[str]:
        before, after = self.errors_before, self.errors_after
        remarks = [ended(self.raised)] if self.raised else []
        remarks.append(f"{self.runs} runs; tolerance {_off(self.tolerance)}.")
        remarks.append(
            f"Loss off by {_off(before.loss)}, gradients by {_off(before.gradients)} as given."
        )
        if self.entries:
            remarks.append(f"With all: loss {_off(after.loss)}, gradients {_off(after.gradients)}.")
            remarks.append(f"{self.policy!r}")
        if self.scale != self.given_scale:
            enough = "is enough" if not self.entries else "is not, and what follows is at that one"
            remarks.append(
                f"Only gradients were inf or NaN at a loss scale of {power_of_two(self.given_scale)}: "
                f"{power_of_two(self.scale)} {enough}."
            )
        return remarks


def _off(error: float) -> str:
    return f"{error:.2g}"


@told_of("lens.bisect")
def bisect(
    loss_fn: LossFn,
    model: Model,
    batches: Sequence[Sequence[Any]],
    policy: str | Policy = "O1",
    *,
    scale: float = 2.0**16,
    tolerance: float = 1e-2,
    progress: Progress = None,
) -> Bisection:
    """Find a minimal set of ops and layers to keep in float32.

        found = lens.bisect(loss_fn, model, [(x, y)], policy="O1", progress=True)
        print(found)
        step = amp.train_step(loss_fn, model, optimizer, policy=found.policy)

    With this set, loss and gradients differ from those of float32 by less than ``tolerance``. An op
    is denied everywhere, unless it is enough to keep some of the layers that call it, and that leaves
    more calls in low precision. The set is minimal: it needs each of its entries. A quite different
    set may still be smaller. Takes about log2(number of ops) runs for each entry. If only gradients are
    inf or NaN, it lowers the loss scale first, and looks for what is needed at that one.

    Args:
        batches: a list of batches, each a tuple of the arguments of ``loss_fn`` after the model.
        scale: the loss scale, a power of two.
        progress: True for a bar on a terminal's standard error; or ``progress(done, total, doing)``.

    Raises:
        ArgumentError: if float32 gives inf or NaN, or a different result each time; if the errors
            exceed the tolerance with all ops in float32.
        CallOrderError: if the model is decorated already.
        UnsupportedError: for a policy that this backend refuses, or a backend that cannot observe ops.
    """
    given, subject = single(policy), Subject(loss_fn, model)
    _check(batches, tolerance)
    with reported(progress) as report:
        trials = Trials(subject, batches, checked_scale(scale), report)
        _check_repeatable(trials.noise(), tolerance)
        search = Search(trials, given, tolerance)
        kept = search.minimal()
        entries = search.explained(kept)
        report(trials.runs, trials.runs, "")
    return Bisection(
        search.policy(kept),
        given,
        subject.backend.name,
        trials.scale,
        float(tolerance),
        entries,
        search.before.errors,
        search.trial(kept).errors,
        trials.runs,
        float(scale),
        search.before.raised,
    )


def _check(batches: Sequence[Sequence[Any]], tolerance: float) -> None:
    if not isinstance(batches, Sequence) or not batches or isinstance(batches, str):
        msg = f"batches is a list of at least one batch, not {batches!r:.80}.\n"
        raise ArgumentTypeError(msg + "Hint: batches=[(x, y)]")
    for batch in batches:
        if not isinstance(batch, (tuple, list)):
            msg = f"A batch is a tuple of what loss_fn takes, not {type(batch).__name__}.\n"
            raise ArgumentTypeError(msg + "Hint: batches=[(x, y)]")
    if not (isinstance(tolerance, (int, float)) and tolerance > 0 and isfinite(tolerance)):
        msg = f"Passed tolerance={tolerance!r}; allowed is a number above 0.\n"
        raise ArgumentError(msg + "Hint: tolerance=1e-2")


def _check_repeatable(noise: Errors, tolerance: float) -> None:
    if noise.worst > REPEATABLE * tolerance:
        msg = (
            f"In float32, run twice, the loss differs by {_off(noise.loss)} and gradients by "
            f"{_off(noise.gradients)}; allowed is a tenth of the tolerance, {tolerance:g}.\n"
            "Hint: model.eval() where there is dropout, or set the seed inside of loss_fn."
        )
        raise ArgumentError(msg)


class Kept(NamedTuple):
    """A candidate; see ``Entry``."""

    kind: Literal["op", "layer"]
    name: str


class Search:
    """Finds a minimal set of candidates with which a policy's errors are below the tolerance."""

    def __init__(self, trials: Trials, given: Policy, tolerance: float) -> None:
        self._trials, self._given, self._tolerance = trials, given, tolerance
        self.before = self.start = self.trial([])
        errors = self.before.errors
        if given.needs_scaling and isfinite(errors.loss) and not isfinite(errors.gradients):
            trials.lower_scale(given)
            self.start = self.trial([])
        backend, model = trials.subject.backend, trials.subject.model
        self._layers = [layer.name for layer in backend.layers(model) if layer.name]
        self._candidates = candidates(backend, model, given, self.start.low)

    def policy(self, kept: Collection[Kept]) -> Policy:
        """The given policy with ``kept`` in float32."""
        patch = Patch(
            deny=tuple(name for kind, name in kept if kind == "op"),
            keep=tuple(name for kind, name in kept if kind == "layer"),
        )
        return patch.applied_to(self._given)

    def trial(self, kept: Collection[Kept]) -> Trial:
        """A trial with ``kept`` in float32."""
        return self._trials.run(self.policy(kept), f"{len(kept)} in float32")

    def passes(self, kept: Collection[Kept]) -> bool:
        """Whether the errors with ``kept`` in float32 are below the tolerance."""
        return self.trial(kept).errors.worst < self._tolerance

    def minimal(self) -> list[Kept]:
        """A minimal set: ops, or layers that call them if these are enough."""
        if self.passes([]):
            return []
        self._expect(len(self._candidates))
        if not self.passes(self._candidates):
            raise ArgumentError(self._out_of_reach())
        found: list[Kept] = []
        for culprit in culprits(self._candidates, self.passes):
            found.append(culprit)
            self._expect(self._candidates.index(culprit), len(found))
        for culprit in tuple(found):
            others = [kept for kept in found if kept != culprit]
            found = [*others, *self._in_fewer_layers(culprit, others)]
        return without_spare(found, self.passes)

    def explained(self, kept: Sequence[Kept]) -> tuple[Entry, ...]:
        """The entries, each with its cost and the errors without it."""
        low = self.trial(kept).low.total()
        without = {each: self.trial([k for k in kept if k != each]) for each in kept}
        return tuple(
            Entry(*each, trial.low.total() - low, trial.errors) for each, trial in without.items()
        )

    def _expect(self, candidates: int, found: int = 0) -> None:
        """Expect one more search among ``candidates``, then a check of each of the ``found`` ones."""
        halvings = ceil(log2(candidates)) if candidates > 1 else 0
        self._trials.expected = self._trials.runs + halvings + 1 + found

    def _in_fewer_layers(self, culprit: Kept, others: Sequence[Kept]) -> list[Kept]:
        """The layers to keep instead of denying an op everywhere, or just ``culprit``.

        The layers must move fewer calls to float32 than denying the op does.
        """
        low = self.start.low
        denied = sum(calls for (op, _), calls in low.items() if op == culprit.name)
        calling = [name for name in self._layers if low[culprit.name, name]]
        costs = {Kept("layer", name): _calls_within(low, [name]) for name in calling}
        affordable = sorted((k for k in costs if costs[k] < denied), key=costs.__getitem__)
        if culprit.kind == "layer" or not affordable or not self.passes([*others, *affordable]):
            return [culprit]
        chosen: list[Kept] = []
        for layer in culprits(affordable, lambda layers: self.passes([*others, *layers])):
            chosen.append(layer)
            if _calls_within(low, [name for _, name in chosen]) >= denied:
                return [culprit]
        left_low = self.trial([*others, *chosen]).low.total()
        return chosen if left_low > self.trial([*others, culprit]).low.total() else [culprit]

    def _out_of_reach(self) -> str:
        errors = self.trial(self._candidates).errors
        return (
            f"With all {len(self._candidates)} candidates in float32 the loss is off by "
            f"{_off(errors.loss)}, gradients by {_off(errors.gradients)}; asked for is less than "
            f"{self._tolerance:g}.\nHint: {self._what_else()}"
        )

    def _what_else(self) -> str:
        """What to try where no set of candidates is enough."""
        given, trials = self._given, self._trials
        if given.needs_scaling and trials.run(FLOAT32).errors.worst >= self._tolerance:
            return (
                f"print(lens.locate(loss_fn, model, *batch, scale={trials.scale!r})): in float32 as well, "
                "the gradients depend on the loss scale."
            )
        if given.output_dtype != "float32":
            return f"Policy(output_dtype='float32'): the model's output is rounded to {given.output_dtype}."
        if not self._candidates:
            return "Policy(lists='torch') for ops that can be denied by name; or layers with names."
        if given.level == "O2":
            return f"policy='O1': at O2 the model's own parameters, outside of its layers, are {given.dtype}."
        return "a larger tolerance; float32's own rounding may be above this one."


def candidates(
    backend: Backend, model: Model, policy: Policy, low: Counter[tuple[str, str]]
) -> list[Kept]:
    """The ops and layers that can run in float32. The search prefers the first of equal candidates.

    Ops come first, ordered by their numbers of calls, because fewer calls cost less; matrix products
    come last among them, because they gain most from low precision. Then come layers that no op can
    replace: those whose parameters are rounded at O2, and those that call ops that cannot be denied.
    """
    listed = op_table.ops() if policy.lists != "native" else {}
    calls: Counter[str] = Counter()
    for (op, _), count in low.items():
        calls[op] += count
    ops = sorted(
        (op for op in calls if op in listed),
        key=lambda op: (listed[op].category == "allow", calls[op]),
    )
    not_deniable = {layer for op, layer in low if op not in listed}
    layers = [
        layer.name
        for layer in backend.layers(model)
        if layer.name and (layer.name in not_deniable or (layer.shapes and policy.level == "O2"))
    ]
    layers.sort(key=lambda name: _calls_within(low, [name]))
    return [*(Kept("op", op) for op in ops), *(Kept("layer", name) for name in layers)]


def _calls_within(low: Counter[tuple[str, str]], layers: Sequence[str]) -> int:
    """The number of calls in low precision that ``layers`` and their sublayers make."""
    return sum(
        calls for (_, layer), calls in low.items() if any(is_within(layer, name) for name in layers)
    )
