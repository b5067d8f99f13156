"""Census: which ops a model runs, in which dtype, and by which rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from ampbridge.adapters.backend import Backend, LossFn, Model
from ampbridge.adapters.observation import Kernel, OpCall, Operand
from ampbridge.errors.flags import checked_count
from ampbridge.errors.foreign_names import told_of
from ampbridge.policies import op_table
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single
from ampbridge.reports.printing import Table, TabularReport, shortened
from ampbridge.training.decorate import kept_layers
from ampbridge_lens.subject import Subject, ended


class CensusRow(NamedTuple):
    """The calls of one op by one layer in one dtype.

    Attributes:
        op: the canonical name, or the framework's own name with its prefix if the op table lacks it.
        layer: the dotted name; empty for the model itself, and for ops outside of it.
        calls: the number of calls.
        dtype: the dtype in which they computed.
        rule: the rule that chose the dtype: "O1 allow", "O1 deny", "promote" (the widest input), "your
            allow", "your deny", "kept layer", "float32" at O0, or "native" for the framework's own
            lists.
        kernels: the kernels that ran, as ``(Kernel(name, dtype), times)``.
        share: the fraction of the time of all ops, 0 to 1, from the medians of several passes; None if
            the device computes asynchronously.
    """

    op: str
    layer: str
    calls: int
    dtype: str
    rule: str
    kernels: tuple[tuple[Kernel, int], ...]
    share: float | None


@dataclass(frozen=True)
class Census(TabularReport):
    """The ops of one forward pass, in the order of their first calls; prints as a table.

    Attributes:
        passes: the number of passes in which they were timed; 0 if the device computes asynchronously.
        raised: the exception that ended the pass under the policy; empty if none did.
    """

    policy: Policy
    backend: str
    execution: str
    rows: tuple[CensusRow, ...]
    passes: int
    raised: str = ""

    def dtypes(self, op: str) -> dict[str, int]:
        """The dtypes in which an op ran, and how often; empty if it did not run."""
        counted: Counter[str] = Counter()
        for row in self.rows:
            if row.op == op:
                counted[row.dtype] += row.calls
        return dict(counted)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        rows = [
            {
                **row._asdict(),
                "kernels": [{**kernel._asdict(), "times": n} for kernel, n in row.kernels],
            }
            for row in self.rows
        ]
        return super().to_dict() | {"rows": rows}

    def table(self) -> Table:
        """As it is printed."""
        counted: Counter[str] = Counter()
        for row in self.rows:
            counted[row.dtype] += row.calls
        totals = ", ".join(f"{calls} {dtype}" for dtype, calls in counted.most_common())
        shared = self.passes > 0
        of = "one pass" if self.passes == 1 else f"the median of {self.passes} passes"
        return Table(
            f"{self.policy!r} on {self.backend} ({self.execution}): {totals or 'no op was seen'}",
            ("op", "layer", "calls", "dtype", "rule", *(("time",) if shared else ())),
            tuple(
                (row.op, row.layer, str(row.calls), row.dtype, row.rule)
                + (("" if row.share is None else f"{row.share:.1%}",) if shared else ())
                for row in self.rows
            ),
            (
                *((ended(self.raised),) if self.raised else ()),
                *((f"Times are the forward pass's, as the lens saw it: {of}.",) if shared else ()),
            ),
        )

    def short(self) -> Table:
        """Of a long census, the rows that take longest; without times, those with the most calls."""
        costs = [row.calls if row.share is None else row.share for row in self.rows]
        order = sorted(range(len(costs)), key=costs.__getitem__, reverse=True)
        what = "that take longest" if self.passes else "with the most calls"
        return shortened(self.table(), order, what)


@told_of("lens.census")
def census(
    loss_fn: LossFn, model: Model, *batch: Any, policy: str | Policy = "O1", passes: int = 5
) -> Census:
    """Run one forward and backward pass under ``policy`` and list the ops of the forward pass.

        print(lens.census(loss_fn, model, x, y, policy="O1"))

    Args:
        passes: the number of forward passes that are timed; the first is that of the list. On a device
            that computes asynchronously there is only the one, and no time.

    Raises:
        ArgumentError: if ``passes`` is not a whole number from 1.
        CallOrderError: if the model is decorated already.
        UnsupportedError: for a policy that this backend refuses, or a backend that cannot observe ops.
    """
    parsed, subject = single(policy), Subject(loss_fn, model)
    checked_count("passes", passes, "lens.census(..., passes=5)")
    first = Calls()
    raised = subject.run(batch, parsed, observer=first, gradients=False).raised
    timed = [first.seen] if any(call.seconds is not None for call in first.seen) else []
    while timed and len(timed) < passes:
        again = Calls()
        subject.forward(batch, parsed, again)
        timed.append(again.seen)
    return Census(
        parsed,
        subject.backend.name,
        subject.backend.execution(parsed),
        _rows(first.seen, timed, RulesInForce(subject.backend, model, parsed)),
        len(timed),
        raised,
    )


class Calls:
    """An observer that records which ops ran."""

    def __init__(self) -> None:
        self.seen: list[OpCall] = []

    def op_ran(self, call: OpCall, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> None:
        self.seen.append(call)

    def gradient_arrived(self, call: OpCall, output: int, gradient: Operand) -> None:
        """Does nothing: only the calls are recorded."""

    def gradient_left(self, call: OpCall, input: int, gradient: Operand) -> None:
        """Does nothing: only the calls are recorded."""


class RulesInForce:
    """Tells which rule chose the dtype of an op, from the rules that the backend uses."""

    def __init__(self, backend: Backend, model: Model, policy: Policy) -> None:
        self._policy = policy
        self._explained = backend.explain(policy).ops
        layers = backend.layers(model)
        kept = {id(layer) for layer in kept_layers(backend, model, policy)}
        self._kept = [layer.name for layer in layers if id(layer.layer) in kept]

    def rule(self, op: str, layer: str) -> str:
        """The rule that chose the dtype of a call; see ``CensusRow.rule``."""
        policy = self._policy
        if policy.level == "O0":
            return "float32"
        if any(is_within(layer, kept) for kept in self._kept):
            return "kept layer"
        if op in policy.allow:
            return "your allow"
        if op in policy.deny:
            return "your deny"
        treatment = self._explained.get(op)
        if treatment is not None and policy.lists == "native":
            return "native"
        if treatment is not None:
            category = treatment.category
        elif op in op_table.ops():
            category = policy.category(op)
        else:  # what becomes of all unlisted ones
            is_denied = policy.lists != "native" and policy.op_list.unlisted == "full"
            category = "deny" if is_denied else "promote"
        return "promote" if category in (None, "promote") else f"{policy.level} {category}"


def is_within(layer: str, outer: str) -> bool:
    """Whether a layer is ``outer`` or below it, by their dotted names; the model's own is empty."""
    return outer == "" or layer == outer or layer.startswith(outer + ".")


def _grouped(calls: Sequence[OpCall]) -> dict[tuple[str, str, str], list[OpCall]]:
    """The calls by op, layer and dtype, in the order of their first calls."""
    groups: dict[tuple[str, str, str], list[OpCall]] = {}
    for call in calls:
        groups.setdefault((call.op, call.layer, call.dtype), []).append(call)
    return groups


def _rows(
    calls: Sequence[OpCall], timed: Sequence[Sequence[OpCall]], rules: RulesInForce
) -> tuple[CensusRow, ...]:
    """The rows of ``calls``; their times are the medians over all of ``timed``."""
    groups, passes = _grouped(calls), list(map(_grouped, timed))
    times = {
        key: median(sum(c.seconds or 0.0 for c in each.get(key, ())) for each in passes)
        if passes
        else 0.0
        for key in groups
    }
    total = sum(times.values())
    return tuple(
        CensusRow(
            op,
            layer,
            len(group),
            dtype,
            rules.rule(op, layer),
            tuple(Counter(kernel for call in group for kernel in call.kernels).items()),
            times[op, layer, dtype] / total if total else None,
        )
        for (op, layer, dtype), group in groups.items()
    )
