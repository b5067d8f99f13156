"""The fidelity report: which settings of a recipe a target changes or loses. It says nothing of the rest."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ampbridge.errors.foreign_text import ShownInNotebooks
from ampbridge.reports.plain_data import plain
from ampbridge.reports.printing import Table
from ampbridge.scaling.native_scaler import NATIVE
from ampbridge.scaling.scale_rule import as_written
from ampbridge.training.recipe import Recipe
from ampbridge_port.writers import Loss, LossKind, lacks, losses

SAID = {"changes": "in part", "lost": "lost"}


@dataclass(frozen=True)
class Report(ShownInNotebooks):
    """The result of ``fidelity``; prints as a table.

    ``native``: whether the code uses the target's own API. ``lacks``: the keys of the recipe for which
    that has nothing, so that the code uses ampbridge although native code was asked for.
    """

    recipe: Recipe
    target: str
    native: bool
    rows: tuple[Loss, ...]
    lacks: tuple[str, ...] = ()

    def of(self, kind: LossKind) -> tuple[Loss, ...]:
        """The settings that change, or are lost."""
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
            "settings": [{**plain(row), "value": self._value(row.key)} for row in self.rows],
            "lacks": list(self.lacks),
        }

    def tables(self) -> tuple[Table, ...]:
        """The settings that are not kept, and why."""
        counts = [(len(self.of("changes")), "changed"), (len(self.of("lost")), "lost")]
        said = " and ".join(f"{count} {word}" for count, word in counts if count)
        form = "native code" if self.native else "with ampbridge"
        code = f"{self.target}, {form}" if self.target in NATIVE else self.target
        because = f"{self.target} itself has nothing for {', '.join(self.lacks)}."
        title = f"Fidelity ({code}): {said or 'every setting is kept'}"
        rows = ((row.key, self._value(row.key), SAID[row.kind], row.message) for row in self.rows)
        notes = (because,) if self.lacks else ()
        return (Table(title, ("setting", "value", "", "why"), tuple(rows), notes),)

    def _value(self, key: str) -> str:
        """A setting as it stands in a recipe file; of a scaler also what its preset stands for."""
        section, _, name = key.partition(".")
        values = dict(self.recipe.to_dict().get(section, {}))
        if section == "scaler" and self.recipe.scaler is not None:
            values = self.recipe.scaler.arguments()
        value = as_written(values.get(name, ""))
        if isinstance(value, list):
            return ", ".join(map(str, value))
        return str(value).lower() if isinstance(value, bool) else str(value)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables()))


def fidelity(
    recipe: Recipe, target: str, *, native: bool = True, used: Collection[str] | None = None
) -> Report:
    """Report what ``write(recipe, target, native=native)`` does not keep of ``recipe``.

    Args:
        used: the ops that the ported script names, as ``Reading.ops``; no other op is mentioned.

    Raises:
        ArgumentError: for an unknown target.
    """
    found = losses(recipe, target, native=native, used=used)
    lacking = lacks(recipe, target) if native else ()
    order = sorted(found, key=lambda loss: loss.kind == "lost")
    return Report(recipe, target, native and not lacking, tuple(order), lacking)
