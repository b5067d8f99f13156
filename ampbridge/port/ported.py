"""What becomes of a file that is ported: the recipe in it, and the same in other words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampbridge.errors import AmpBridgeError, ArgumentError, SourceError, listed, nearest
from ampbridge.errors.foreign_text import on_one_line
from ampbridge.port.fidelity_report import Report, fidelity
from ampbridge.port.files import Outcome
from ampbridge.port.reading import Alternative, Finding, Reading
from ampbridge.port.rewriting import Rewriting, rewrite
from ampbridge.port.writers import write
from ampbridge.training.recipe import Recipe
from ampbridge.training.recipe_file import SCHEDULE, SECTIONS, text_of

UNKNOWN = "unknown"
"""The value of a key, in a recipe that is shown, that the file does not say. No key allows it."""


@dataclass(frozen=True)
class Wish:
    """What a file is to become.

    Args:
        target, native, demo: as for ``write``; a target of None is what the file says, as TOML.
        known: values that the file does not say, by key.
        where: conditions of the recipe that is meant.
    """

    target: str | None
    native: bool
    known: Mapping[str, Any]
    where: tuple[str, ...]
    demo: bool = False


@dataclass(frozen=True)
class Ported:
    """What became of one file.

    ``text`` is TOML, a module, or the script as it was rewritten. ``recipe`` is None where it was not
    asked for, or is not one.
    """

    file: str
    reading: Reading | None = None
    alternatives: tuple[Alternative, ...] = ()
    recipe: Recipe | None = None
    text: str = ""
    rewriting: Rewriting | None = None
    report: Report | None = None
    findings: tuple[Finding, ...] = ()
    unknown: tuple[str, ...] = ()
    """Keys of the recipes that neither the file nor the wish says."""
    error: AmpBridgeError | None = None

    @property
    def framework(self) -> str | None:
        """Whose words the file was written in."""
        return None if self.reading is None else self.reading.framework

    @property
    def is_whole(self) -> bool:
        """Whether everything is known, and can be expressed in a recipe and on the target."""
        beyond = any(finding.kind == "lost" for finding in self.findings)
        expressed = self.report is None or self.report.can_be_expressed
        return expressed and not beyond and not self.unknown

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "file": self.file,
            "error": None if self.error is None else str(self.error),
            "framework": self.framework,
            "alternatives": [_alternative_as_data(each) for each in self.alternatives],
            "recipe": None if self.recipe is None else self.recipe.to_dict(),
            "findings": [_finding_as_data(finding) for finding in self.findings],
            "text": self.text,
            "difference": None if self.rewriting is None else self.rewriting.difference,
            "fidelity": None if self.report is None else self.report.to_dict(),
        }


def _alternative_as_data(alternative: Alternative) -> dict[str, Any]:
    return {
        "conditions": list(alternative.conditions),
        "settings": dict(alternative.settings),
        "unknown": {
            key: {"file": at.file, "line": at.line, "text": at.text}
            for key, at in alternative.unknown.items()
        },
        "comments": dict(alternative.comments),
    }


def _finding_as_data(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "file": finding.place.file,
        "line": finding.place.line,
        "text": finding.place.text,
        "message": finding.message,
        "hint": finding.hint,
    }


def port(outcome: Outcome, wish: Wish) -> Ported:
    """Make of what was read in a file what is wished for. Errors are part of the result."""
    if outcome.reading is None:
        return Ported(outcome.file, error=outcome.error)
    try:
        return _made(outcome.reading, wish)
    except AmpBridgeError as error:
        found = outcome.reading.findings
        return Ported(outcome.file, outcome.reading, findings=found, error=error)


def _made(reading: Reading, wish: Wish) -> Ported:
    alternatives = _selected(reading, wish.where)
    if wish.target is None:
        text = "\n".join(as_toml(each, wish.known) for each in alternatives)
        unknown = {key for each in alternatives for key in each.unknown} - wish.known.keys()
        found = reading.findings
        return Ported(
            reading.file, reading, alternatives, None, text, findings=found, unknown=(*unknown,)
        )
    if wish.target == "ampbridge" and Path(reading.file).suffix == ".py":
        return _rewritten(reading, alternatives, wish)
    recipe, comments = _the_recipe(reading, alternatives, wish.known)
    return Ported(
        reading.file,
        reading,
        alternatives,
        recipe,
        write(recipe, wish.target, native=wish.native, comments=comments, demo=wish.demo),
        None,
        fidelity(recipe, wish.target, native=wish.native),
        reading.findings,
    )


def _selected(reading: Reading, where: Sequence[str]) -> tuple[Alternative, ...]:
    """The alternatives under the given conditions.

    Raises:
        SourceError: if there is none.
    """
    found = tuple(each for each in reading.alternatives if set(where) <= set(each.conditions))
    if where and not found:
        conditions = dict.fromkeys(c for each in reading.alternatives for c in each.conditions)
        close = nearest(where[0], conditions, 1) or list(conditions)
        known = f"its conditions are {listed(conditions)}" if conditions else "it has no conditions"
        msg = f"{reading.file} has no recipe where {' and '.join(where)}; {known}.\n"
        hint = f"Hint: --where {close[0]!r}" if close else "Hint: leave --where out."
        raise SourceError(msg + hint)
    return found


def _the_recipe(
    reading: Reading, alternatives: Sequence[Alternative], known: Mapping[str, Any]
) -> tuple[Recipe, Mapping[str, str]]:
    """The one recipe, and what its keys were called in the source.

    Raises:
        SourceError: if there is none, or several, or something of it is unknown.
    """
    if len(alternatives) != 1:
        return Reading(reading.file, reading.framework, tuple(alternatives), ()).recipe, {}
    return alternatives[0].recipe_with(known), alternatives[0].comments


def as_toml(alternative: Alternative, known: Mapping[str, Any]) -> str:
    """A recipe as TOML, under its conditions.

    What is unknown of it is ``UNKNOWN``, with its place, so that the file does not load before
    somebody has said it.
    """
    above = "".join(f"# where {on_one_line(condition)}\n" for condition in alternative.conditions)
    missing = {key: at for key, at in alternative.unknown.items() if key not in known}
    if not missing:
        return above + alternative.recipe_with(known).to_toml(alternative.comments)
    settings = {**alternative.settings, **dict.fromkeys(missing, UNKNOWN), **known}
    sections = {
        section: {
            key: settings[f"{section}.{key}"] for key in keys if f"{section}.{key}" in settings
        }
        for section, keys in {**SECTIONS, "schedule": SCHEDULE}.items()
    }
    written = {section: keys for section, keys in sections.items() if keys}
    places = {key: f"say what {at.excerpt} is ({at})" for key, at in missing.items()}
    return above + text_of(written, {**alternative.comments, **places})


# -- scripts that stay scripts


def _rewritten(reading: Reading, alternatives: tuple[Alternative, ...], wish: Wish) -> Ported:
    """The script with its calls replaced; with a report where it stands for one recipe."""
    if wish.where:
        msg = "A script keeps all its conditions when it is rewritten, and --where chooses one.\n"
        raise ArgumentError(msg + f"Hint: --to toml --where {wish.where[0]!r}")
    if wish.known:
        msg = "A script keeps its own expressions when it is rewritten, and --set gives values.\n"
        raise ArgumentError(msg + "Hint: --to toml --set KEY=VALUE, or change the script.")
    if wish.demo:
        msg = "A script that is rewritten runs as it did; --demo adds one to a module.\n"
        raise ArgumentError(msg + "Hint: --to tensorflow --demo, or leave it out.")
    if reading.framework is None:
        return Ported(reading.file, reading)
    rewriting = rewrite(Path(reading.file))
    is_one = len(alternatives) == 1 and not alternatives[0].unknown
    recipe = alternatives[0].recipe if is_one else None
    return Ported(
        reading.file,
        reading,
        alternatives,
        recipe,
        rewriting.text,
        rewriting,
        None if recipe is None else fidelity(recipe, "ampbridge"),
        (*reading.findings, *rewriting.findings),
    )
