"""The fidelity report: which settings of a recipe a target keeps exactly, changes, or loses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Literal, NamedTuple

import numpy as np

from ampbridge.errors.foreign_text import ShownInNotebooks
from ampbridge.policies import op_table
from ampbridge.policies.native_lists import own_policy, own_rules, paddle_rules, wanted_rules
from ampbridge.policies.op_table import Category
from ampbridge.policies.policy import Policy
from ampbridge.reports.plain_data import plain
from ampbridge.reports.printing import Table
from ampbridge.scaling.native_scaler import NATIVE as NATIVE_SCALERS
from ampbridge.training.recipe import Recipe, Scaling
from ampbridge.training.recipe_file import SECTIONS
from ampbridge_port.lines_by_hand import line_by_hand
from ampbridge_port.writers import Loss, losses

Kind = Literal["kept", "changes", "lost"]
WIDEST = 88
"""Longer lists of ops are wrapped."""

_ORDER: Mapping[Kind, int] = {"kept": 0, "changes": 1, "lost": 2}


class Row(NamedTuple):
    """A setting of a recipe on a target; ``key`` as in a recipe file.

    ``by_hand``: the line to add to the code so that it is kept, where one can be.
    """

    key: str
    kind: Kind
    value: str
    message: str
    by_hand: str = ""


class OpRow(NamedTuple):
    """The dtypes of an op: by the recipe, by the target's own lists, and in the code; not all equal."""

    policy: str
    op: str
    recipe: str
    by_default: str
    code: str

    @property
    def is_kept(self) -> bool:
        """Whether it runs in the code as in the recipe."""
        return self.code == self.recipe


@dataclass(frozen=True)
class Report(ShownInNotebooks):
    """The result of ``fidelity``; prints as two tables. ``used``: the ops that the second one shows."""

    recipe: Recipe
    target: str
    native: bool
    rows: tuple[Row, ...]
    ops: tuple[OpRow, ...]
    remarks: tuple[str, ...]
    used: frozenset[str] | None = None

    def of(self, kind: Kind) -> tuple[Row, ...]:
        """The settings that are kept, or change, or are lost."""
        return tuple(row for row in self.rows if row.kind == kind)

    @property
    def can_be_expressed(self) -> bool:
        """Whether no setting is lost; ``--strict`` requires it."""
        return not self.of("lost")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "target": self.target,
            "native": self.native,
            "can_be_expressed": self.can_be_expressed,
            "settings": plain(self.rows),
            "ops": plain(self.ops),
            "remarks": plain(self.remarks),
        }

    def tables(self) -> tuple[Table, ...]:
        """The settings; the lines to add by hand, and the ops, if there are any."""
        counts = ", ".join(f"{len(self.of(kind))} {_SAID[kind]}" for kind in _ORDER)
        settings = Table(
            f"Fidelity ({self._form()}): {counts}",
            ("setting", "value", "", "why"),
            tuple((row.key, row.value, row.kind, row.message) for row in self.rows),
            self.remarks,
        )
        lines = dict.fromkeys((row.key, row.by_hand) for row in self.rows if row.by_hand)
        by_hand = Table("By hand, where it matters", ("setting", "line to add"), tuple(lines))
        tables = (settings, by_hand) if lines else (settings,)
        return (*tables, self._ops_table()) if self.ops else tables

    def _form(self) -> str:
        if self.target not in NATIVE_SCALERS:
            return self.target
        return f"{self.target}, {'native code' if self.native else 'with ampbridge'}"

    def _ops_table(self) -> Table:
        shown = [row for row in self.ops if self.used is None or row.op in self.used]
        kept = sum(row.is_kept for row in shown)
        several = len({row.policy for row in shown}) > 1
        header = ("recipe", f"{self.target} by default", "here", "ops")
        return Table(
            f"Ops: {len(shown) - kept} run in a different dtype than in the recipe; {kept} run as "
            f"in the recipe, unlike {self.target}'s own lists",
            ("policy", *header) if several else header,
            tuple(_groups(shown, several)),
            tuple(self._about_others(len(shown))),
        )

    def _about_others(self, shown: int) -> Iterator[str]:
        if shown < len(self.ops):
            changed = sum(not row.is_kept and row.op not in (self.used or ()) for row in self.ops)
            yield (
                f"Of ops that the script does not name, {changed} change and "
                f"{len(self.ops) - shown - changed} are kept: --json lists them."
            )

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables()))


def _groups(rows: Iterable[OpRow], several: bool) -> Iterator[tuple[str, ...]]:
    """Ops that differ in the same way share a row; those that change come first."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in sorted(rows, key=lambda row: (row.is_kept, row.policy)):
        key = (row.recipe, row.by_default, row.code)
        groups.setdefault((row.policy, *key) if several else key, []).append(row.op)
    for cells, ops in groups.items():
        first, *others = wrap(", ".join(ops), WIDEST)
        yield (*cells, first)
        yield from ((*("" for _ in cells), line) for line in others)


_SAID: Mapping[Kind, str] = {
    "kept": "kept exactly",
    "changes": "changed",
    "lost": "that cannot be expressed",
}


def fidelity(
    recipe: Recipe, target: str, *, native: bool = True, used: Collection[str] | None = None
) -> Report:
    """Report what ``write(recipe, target, native=native)`` keeps of ``recipe``, and what it does not.

    Args:
        used: the ops that its table shows, as ``Reading.ops``; None for all that differ.

    Raises:
        ArgumentError: for an unknown target.
    """
    found = losses(recipe, target, native=native)
    rows = [_row_of(loss, recipe, target) for loss in found]
    by_casting = native and target in NATIVE_SCALERS
    how = _CLIPPING[target] if by_casting else {}
    rows += _kept(recipe, target, {loss.key for loss in found}, how)
    return Report(
        recipe,
        target,
        native,
        tuple(sorted(rows, key=lambda row: _ORDER[row.kind])),
        tuple(_op_rows(recipe, target)) if by_casting else (),
        tuple(_remarks(recipe, target, native)),
        None if used is None else frozenset(used).union(*_listed(recipe)),
    )


def _listed(recipe: Recipe) -> Iterator[frozenset[str]]:
    """The ops that the recipe itself lists."""
    for policy in recipe.policies:
        yield frozenset((*policy.allow, *policy.deny))


# -- settings


def _row_of(loss: Loss, recipe: Recipe, target: str) -> Row:
    value = _shown(_settings(recipe).get(loss.key, ""))
    return Row(loss.key, loss.kind, value, loss.message, line_by_hand(loss, recipe, target))


_CLIPPING: Mapping[str, Mapping[str, str]] = {
    "tensorflow": {
        "step.clip_norm": "global_clipnorm of the optimizer: the joint norm of all gradients",
        "step.clip_each_norm": "clipnorm of the optimizer: each variable's own norm",
        "step.clip_value": "clipvalue of the optimizer: each number",
    },
    "torch": {
        "step.clip_norm": "clip_grad_norm_ of all parameters together",
        "step.clip_each_norm": "clip_grad_norm_ of each parameter",
        "step.clip_value": "clip_grad_value_",
    },
    "paddle": {
        "step.clip_norm": "ClipGradByGlobalNorm",
        "step.clip_each_norm": "ClipGradByNorm",
        "step.clip_value": "ClipGradByValue",
    },
}
"""How native code clips."""


def _kept(recipe: Recipe, target: str, lost: set[str], how: Mapping[str, str]) -> Iterator[Row]:
    """Every setting that the recipe has or that the target would have otherwise by itself.

    ``how``: what does it in the code, by key.
    """
    written = {f"{section}.{key}" for section, keys in recipe.to_dict().items() for key in keys}
    defaults = _own_scaling(target) if recipe.scaler is not None else {}
    for key, value in _settings(recipe).items():
        differs = key in defaults and defaults[key] != value
        if key not in lost and (key in written or differs):
            default = f"written out: {_shown(defaults[key])} by default there" if differs else ""
            said = how.get(key, default)
            yield Row(key, "kept", _shown(value), said)


def _settings(recipe: Recipe) -> dict[str, Any]:
    """The settings under the keys of a recipe file; of the scaler those that its preset stands for."""
    found = {
        f"{section}.{key}": value
        for section, keys in recipe.to_dict().items()
        for key, value in keys.items()
        if section != "scaler"
    }
    if recipe.scaler is None:
        return {**found, "scaler.enabled": False}
    arguments = recipe.scaler.arguments()
    return found | {
        f"scaler.{key}": arguments[key] for key in SECTIONS["scaler"] if key in arguments
    }


def _own_scaling(target: str) -> dict[str, Any]:
    """What the target's own scaler does by default."""
    if target not in NATIVE_SCALERS:
        return {}
    usual = Scaling.like(NATIVE_SCALERS[target][0]).arguments()
    alarms = ("warn_after_skips", "max_consecutive_skips")  # ours alone
    return {f"scaler.{key}": value for key, value in usual.items() if key not in alarms}


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "never"}[value]
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float) and np.float32(value) == value:
        return repr(float(str(np.float32(value))))  # 0.8, as it was before it was rounded
    return str(value)


# -- ops


def _op_rows(recipe: Recipe, target: str) -> Iterator[OpRow]:
    for policy in recipe.policies:
        if policy.level == "O0" or policy.lists == "native":
            continue
        wanted, own = wanted_rules(target, policy), own_rules(target, policy)
        code = _rules_of_code(target, policy)
        for op, rule in wanted.items():
            if not rule == own[op] == code[op]:
                rules = (rule, own[op], code[op])
                yield OpRow(str(policy), op, *(_dtype(each, policy) for each in rules))


def _rules_of_code(target: str, policy: Policy) -> Mapping[str, Category]:
    """What the native code makes of every op."""
    if target == "paddle":
        return paddle_rules(policy)
    if target == "tensorflow":
        return _rules_of_layers(policy)
    return _rules_of_functions(policy)


def _rules_of_functions(policy: Policy) -> Mapping[str, Category]:
    """Functions of torch have the rule that goes by their name; others that of its own lists."""
    own, by_name = own_rules("torch", policy), policy.native_rules("torch")
    names = {op: op_table.ops()[op].names.get("torch", ()) for op in own}
    return {op: by_name[names[op][0]] if names[op] else rule for op, rule in own.items()}


def _rules_of_layers(policy: Policy) -> Mapping[str, Category]:
    """Layers and their activations have the precision of their op; functions take what arrives."""
    from ampbridge_port.writers.tensorflow_precision import ACTIVATIONS, FLOAT32_INSIDE

    wanted = wanted_rules("tensorflow", policy)
    if policy == own_policy("tensorflow", policy) and str(policy) == "O1:float16":
        return wanted  # by TensorFlow's graph optimizer
    ops = op_table.ops()
    layers = {op for op in wanted if op in ACTIVATIONS or ops[op].names.get("keras_layers")}
    followed = {op: rule if op in layers else "promote" for op, rule in wanted.items()}
    return followed | dict.fromkeys(FLOAT32_INSIDE & wanted.keys(), "deny")


def _dtype(rule: Category, policy: Policy) -> str:
    return {"allow": policy.dtype, "deny": "float32", "promote": "its inputs'"}[rule]


# -- remarks


# Backend -> how it runs low precision, where the policy leaves it the choice.
_RUNS = {
    "torch": "run by native kernels on GPUs; on CPUs simulated where those are slow",
    "tensorflow": "run by native kernels on GPUs; on CPUs simulated where those are slow",
    "paddle": "run by native kernels on GPUs; simulated on CPUs, where it has none",
    "numpy": "stored in 16 bits, computed in float32",
}


def _remarks(recipe: Recipe, target: str, native: bool) -> Iterator[str]:
    """What backends simulate, of code that uses ampbridge."""
    policies = [policy for policy in recipe.policies if policy.level != "O0"]
    if (native and target != "ampbridge") or target == "toml" or not policies:
        return
    policy, backends = policies[0], list(_RUNS) if target == "ampbridge" else [target]
    for backend in backends:
        if policy.execution == "auto":
            yield f"{backend}: low precision is {_RUNS[backend]}."
        else:
            yield f"{backend}: {policy.execution}, as the recipe says, or refused with a hint."
    yield f"Op by op: ampbridge explain {policy} {' or '.join(backends)}"
