"""``amp.explain``: what a backend does with a policy, for every op or for those that a model uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, overload

from ampbridge.adapters import registry
from ampbridge.adapters.arguments import described
from ampbridge.adapters.backend import Backend, Model
from ampbridge.errors import ArgumentError
from ampbridge.errors.foreign_names import told_of
from ampbridge.policies import op_table
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single
from ampbridge.reports.explain import ExplanationTable
from ampbridge.reports.explain import explain as explain_backend
from ampbridge.reports.printing import Table, TabularReport
from ampbridge_lens.census import Calls, RulesInForce
from ampbridge_lens.subject import Subject, ended


class UsedOp(NamedTuple):
    """The calls of one op in one dtype and by one rule.

    Attributes:
        op: the canonical name, or the framework's own name with its prefix if the op table lacks it.
        calls: the number of calls.
        dtype: the dtype in which they computed.
        rule: the rule that chose the dtype; see ``lens.CensusRow``.
        by: who applies the rule, as in ``OpTreatment``; empty for an op that the op table lacks.
        why: an explanation, if the other fields need one.
    """

    op: str
    calls: int
    dtype: str
    rule: str
    by: str
    why: str


@dataclass(frozen=True)
class ModelExplanation(TabularReport):
    """The ops that a model uses under a policy, in the order of their first calls.

    Attributes:
        others: the number of ops in the op table that it does not use.
        raised: the exception that ended the pass under the policy; empty if none did.
    """

    policy: Policy
    backend: str
    device: str
    model: str
    ops: tuple[UsedOp, ...]
    others: int
    raised: str = ""

    def only(self, ops: Iterable[str]) -> ModelExplanation:
        """The report with only these ops, by any spelling that ``Policy(deny=...)`` takes."""
        wanted = set(map(op_table.resolve, ops))
        return replace(self, ops=tuple(row for row in self.ops if row.op in wanted))

    def table(self) -> Table:
        """As it is printed; the last column is left out if it is empty."""
        header = UsedOp._fields if any(row.why for row in self.ops) else UsedOp._fields[:-1]
        return Table(
            f"{self.policy!r} on {self.backend} ({self.device}): the ops of {self.model}",
            header,
            tuple(tuple(map(str, row))[: len(header)] for row in self.ops),
            (
                *((ended(self.raised),) if self.raised else ()),
                f"The {self.others} other ops, and what else the policy does: "
                f"amp.explain(amp.{self.policy!r}, {self.backend!r})",
            ),
        )


@overload
def explain(policy: str | Policy, backend: str | Backend) -> ExplanationTable: ...


@overload
def explain(
    policy: str | Policy, backend: Model, *inputs: Any, **named: Any
) -> ModelExplanation: ...


@told_of("explain")
def explain(policy: str | Policy, backend: Any, *inputs: Any, **named: Any) -> Any:
    """How a backend treats ``policy`` on its first device: each op and feature, or a model's ops.

        print(amp.explain("O1", "torch"))       # all ops, and features
        print(amp.explain("O1", model, x))      # the ops of model(x), with their dtypes

    "native": the framework does it by itself. "ampbridge": ampbridge does it. "simulated": float32
    kernels run, and ampbridge rounds their values. "refused": it raises an ``UnsupportedError``.
    "absent": the framework has no such op or feature. Imports the framework.

    Args:
        backend: its name or the object; or a model, of which one forward pass is run and observed as
            the lens does. Afterwards the model is as before.
        inputs, named: what the model is called with; native, or NumPy arrays.

    Raises:
        UnsupportedError: if the backend refuses the policy, or cannot observe ops.
        ArgumentError: for a model without inputs, or inputs without a model.
        CallOrderError: for a model that is decorated already.
    """
    chosen = registry.backend(backend)
    if chosen.kind(backend) != "model":
        if inputs or named:
            msg = f"Only a model is explained with inputs, not {described(backend, chosen)}.\n"
            raise ArgumentError(msg + f"Hint: amp.explain({policy!r}, model, x)")
        return explain_backend(policy, backend)
    parsed = single(policy)
    if not (inputs or named):
        msg = "A model is called once to see its ops, and no inputs were passed for that call.\n"
        raise ArgumentError(msg + f"Hint: amp.explain({str(parsed)!r}, model, x)")

    def call(model: Model, inputs: Sequence[Any], named: dict[str, Any]) -> None:
        model(*inputs, **named)

    return of_pass(parsed, call, backend, inputs, named)


def of_pass(
    policy: Policy, forward: Callable[..., Any], model: Model, *batch: Any
) -> ModelExplanation:
    """The ops of ``forward(model, *batch)`` under ``policy``; see ``explain``."""
    subject, calls = Subject(forward, model), Calls()
    raised = subject.forward(batch, policy, calls)
    rules, table = (
        RulesInForce(subject.backend, model, policy),
        explain_backend(policy, subject.backend),
    )
    told = {row.op: row for row in table.ops}
    counted = Counter((call.op, call.dtype, rules.rule(call.op, call.layer)) for call in calls.seen)
    rows = []
    for (op, dtype, rule), number in counted.items():
        by, why = (told[op].by, told[op].why) if op in told else ("", "not in the op table")
        if rule == "kept layer":
            by, why = "ampbridge", ""
        rows.append(UsedOp(op, number, dtype, rule, by, why))
    used = {op for op, _, _ in counted}
    return ModelExplanation(
        policy,
        table.backend,
        table.device,
        type(model).__name__,
        tuple(rows),
        len(op_table.ops().keys() - used),
        raised,
    )
