"""What a backend does with a policy, op by op and beyond ops, told by the rules that it uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Any, NamedTuple

from ampbridge.adapters import registry
from ampbridge.adapters.backend import Backend
from ampbridge.adapters.process_setting import rounds_to_tf32
from ampbridge.adapters.roles.probing import FeatureTreatment, OpTreatment
from ampbridge.errors import ArgumentError, UnsupportedError, listed, slips
from ampbridge.errors.slips import did_you_mean
from ampbridge.policies import op_table
from ampbridge.policies.policy import LOW_DTYPES, Policy
from ampbridge.reports.plain_data import plain_fields
from ampbridge.reports.printing import LONG, Table, shortened
from ampbridge.reports.text_report import TextReport


class OpRow(NamedTuple):
    """One op, canonical or listed by the policy; see ``OpTreatment``."""

    op: str
    category: str
    dtype: str
    by: str
    why: str


class FeatureRow(NamedTuple):
    """One feature; see ``FeatureTreatment``."""

    feature: str
    by: str
    why: str


@dataclass(frozen=True)
class ExplanationTable(TextReport):
    """``explain``'s answer; prints as two tables, of which that of ops is shortened if it is long."""

    policy: Policy
    backend: str
    device: str
    ops: tuple[OpRow, ...]
    features: tuple[FeatureRow, ...]

    def op(self, name: str) -> OpRow:
        """The row of an op, by its canonical name or any spelling that ``Policy(deny=...)`` takes.

        Raises:
            PolicyError: for a name that is none.
            ArgumentError: for an op that neither the op table nor the policy has.
        """
        resolved = op_table.resolve(name)
        for row in self.ops:
            if row.op == resolved:
                return row
        msg = f"{name!r} is not in the op table, and {self.policy!r} does not list it.\n"
        raise ArgumentError(msg + f"Hint: explain(policy.replace(deny=[{name!r}]), ...)")

    def feature(self, name: str) -> FeatureRow:
        """The row of a feature.

        Raises:
            ArgumentError: for an unknown feature.
        """
        rows = {row.feature: row for row in self.features}
        if name not in rows:
            msg = f"No feature {name!r}; allowed are {listed(rows)}.\n"
            raise ArgumentError(msg + did_you_mean(name, rows, slips.KEYS, "print(explanation)"))
        return rows[name]

    def only(self, ops: Iterable[str]) -> ExplanationTable:
        """The table with only these ops, in the given order."""
        return replace(self, ops=tuple(self.op(name) for name in ops))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return plain_fields(self)

    def table(self) -> Table:
        """All ops."""
        title = f"{self.policy!r} on {self.backend} ({self.device})"
        result = f"\n{self._result()}" if len(self.ops) > LONG else ""
        return Table(title + result, OpRow._fields, self.ops)

    def feature_table(self) -> Table:
        """All features."""
        return Table("", FeatureRow._fields, self.features)

    def text(self, width: int | None) -> str:
        order = sorted(range(len(self.ops)), key=lambda row: self._rank(self.ops[row]))
        ops = shortened(self.table(), order, "that depart most from what the lists say")
        return f"{ops.text(width)}\n\n{self.feature_table().text(width)}"

    def _result(self) -> str:
        """How many ops run in which dtype, and which of them in the low one."""
        places = Counter(_PLACES.get(row.dtype, f"in {row.dtype}") for row in self.ops if row.dtype)
        others = Counter(row.by for row in self.ops if not row.dtype)
        counts = (f"{number} {what}" for what, number in (places + others).most_common())
        low = ", ".join(row.op for row in self.ops if row.dtype in LOW_DTYPES) or "none"
        some = shorten(low, 600, placeholder=" ...")
        return f"{len(self.ops)} ops: {', '.join(counts)}.\nIn 16 bits: {some}"

    def _rank(self, row: OpRow) -> int:
        """Lower for what a reader of the lists would not expect, and for what the policy itself names."""
        if row.by == "refused":
            return 0
        if row.op in {*self.policy.allow, *self.policy.deny}:
            return 1
        if not row.why or row.dtype == PARTS_DTYPE:
            return 4
        return 3 if row.by == "absent" else 2


def explain(policy: str | Policy, backend: str | Backend) -> ExplanationTable:
    """How ``backend`` treats ``policy`` on its first device, for each op and feature.

    "native": the framework does it by itself. "ampbridge": ampbridge does it. "simulated": float32
    kernels run, and ampbridge rounds their values. "refused": it raises an ``UnsupportedError``.
    "absent": the framework has no such op or feature. Imports the framework.

    Raises:
        UnsupportedError: if the backend refuses the policy.
    """
    parsed, chosen = Policy.parse(policy), registry.backend(backend)
    explanation = chosen.explain(parsed)
    listed = sorted({*parsed.allow, *parsed.deny} - op_table.ops().keys())
    functions = {
        name: _of_function(parsed.category(name), parsed, chosen)
        for name in listed
        if op_table.is_function(name)
    }
    return ExplanationTable(
        parsed,
        chosen.name,
        explanation.device,
        tuple(
            _op_row(name, {**explanation.ops, **functions}.get(name, _ABSENT))
            for name in [*op_table.ops(), *listed]
        ),
        (
            *(
                FeatureRow(name, *explanation.features[name])
                for name in FEATURES
                if name in explanation.features
            ),
            *_float32(parsed, chosen),
        ),
    )


def _of_function(rule: op_table.Category, policy: Policy, backend: Backend) -> OpTreatment:
    """The treatment of a Python function in the policy's lists: ampbridge casts it on every backend."""
    if policy.level == "O0":
        return OpTreatment("native", "deny", "float32")
    simulated = rule == "allow" and backend.execution(policy) == "simulated"
    why = "a Python function, one op as a whole"
    return OpTreatment("simulated" if simulated else "ampbridge", rule, dtype_of(rule, policy), why)


def _float32(policy: Policy, backend: Backend) -> Iterator[FeatureRow]:
    """The row of a policy that says what float32 means."""
    if policy.float32 != "default":
        how = FeatureTreatment("native", backend.float32_switch)
        if rounds_to_tf32(policy):
            how = FeatureTreatment("simulated", "inputs of products rounded to 10 bits of fraction")
        how = unless_refused(lambda: backend.float32(policy), how)
        yield FeatureRow(f"float32={policy.float32!r}", *how)


_ABSENT = OpTreatment("absent", None, "", "an op of another framework")


def _op_row(name: str, treatment: OpTreatment) -> OpRow:
    return OpRow(name, treatment.category or "", treatment.dtype, treatment.by, treatment.why)


# -- for adapters

FEATURES = (
    "O1",
    "O2",
    "keep",
    "output_dtype",
    "masters='float32'",
    "masters='kahan'",
    "masters='stochastic'",
    "masters=None",
    "slots='bfloat16'",
    "save_dtype",
    "master_grad",
    "lists='native'",
    "execution='native'",
    "execution='simulated'",
    "loss scaling",
    "schedules",
    "compile=True",
    "fit",
    "recomputation",
)
"""The features that an adapter explains."""

INPUTS_DTYPE = "inputs'"
"""The dtype of an op that follows its inputs."""

PARTS_DTYPE = "its parts'"
"""The dtype of a function that consists of ops with rules of their own."""

_PLACES = {INPUTS_DTYPE: "in the dtype of their inputs", PARTS_DTYPE: "by the rules of their parts"}


def dtype_of(category: op_table.Category, policy: Policy) -> str:
    """The dtype that a rule gives."""
    return {"allow": policy.compute_dtype, "deny": "float32"}.get(category, INPUTS_DTYPE)


def sharing(
    policy: Policy, op: str, category: op_table.Category, namespace: str, spelling: str
) -> str:
    """Why ``op`` has another category here than the policy's: who else has its spelling."""
    if category == policy.category(op):
        return ""
    others = [
        other
        for other in op_table.native_names(namespace).get(spelling, ())
        if other != op and policy.category(other) == category
    ]
    return (
        f"one with {', '.join(others)} ({spelling})" if others else f"{spelling} has its own rule"
    )


def unless_refused(call: Callable[[], object], treatment: FeatureTreatment) -> FeatureTreatment:
    """``treatment``, or "refused" with the message where ``call`` is not supported."""
    try:
        call()
    except UnsupportedError as error:
        first_line = str(error).partition("\n")[0]
        return FeatureTreatment("refused", first_line.rpartition("): ")[2])  # without the policy
    return treatment
