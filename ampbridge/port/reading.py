"""What was read out of a file: recipes, under which conditions, and what could not be known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import shorten
from typing import Any, Literal

from ampbridge.errors import SourceError
from ampbridge.training.recipe import Recipe

LONGEST_EXCERPT = 100

FindingKind = Literal["unknown", "ignored", "lost", "note"]


@dataclass(frozen=True, order=True)
class Place:
    """Where something stands: lines from 1, columns from 0, and the text there."""

    file: str
    line: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def excerpt(self) -> str:
        """The text there, on one line, cut where it is long."""
        return shorten(self.text, LONGEST_EXCERPT, placeholder=" ...")


@dataclass(frozen=True)
class Finding:
    """Something that a reader of the recipe must be told.

    ``kind``: "unknown", a value that cannot be known without running the file; "ignored", what the
    source framework silently takes no notice of; "lost", what a recipe cannot express; "note".
    """

    kind: FindingKind
    place: Place
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" + (f"\n  Hint: {self.hint}" if self.hint else "")


@dataclass(frozen=True)
class Alternative:
    """One recipe that a file may stand for, and when.

    ``settings`` holds a recipe file's keys as ``"policy.level"``. ``unknown`` says of some of them
    where the value comes from that cannot be known; they are not in ``settings``.
    """

    conditions: tuple[str, ...]
    settings: Mapping[str, Any]
    unknown: Mapping[str, Place]
    comments: Mapping[str, str]
    """What stood in the source for a key, in the source framework's words."""

    @property
    def recipe(self) -> Recipe:
        """The recipe.

        Raises:
            SourceError: if something of it is unknown.
        """
        return self.recipe_with({})

    def recipe_with(self, known: Mapping[str, Any]) -> Recipe:
        """The recipe, ``known`` saying what was unknown: ``{"scaler.init_scale": 1024.0}``.

        Raises:
            SourceError: if something of it is still unknown.
        """
        missing = {key: place for key, place in self.unknown.items() if key not in known}
        if missing:
            shown = "; ".join(f"{key} is {p.excerpt!r} ({p})" for key, p in missing.items())
            key = next(iter(missing))
            msg = f"What the file says cannot be known without running it: {shown}.\n"
            raise SourceError(msg + f"Hint: say it, --set {key}=..., recipe_with({{{key!r}: ...}})")
        sections: dict[str, dict[str, Any]] = {}
        for name, value in {**self.settings, **known}.items():
            section, _, key = name.partition(".")
            sections.setdefault(section, {})[key] = value
        return Recipe.from_dict(sections)


@dataclass(frozen=True)
class Reading:
    """A file's use of mixed precision.

    ``framework``: whose words it was written in ("paddle", "torch", "tensorflow", "apex",
    "deepspeed", "accelerate", "lightning"); None where there is none.
    """

    file: str
    framework: str | None
    alternatives: tuple[Alternative, ...]
    findings: tuple[Finding, ...]

    @property
    def recipe(self) -> Recipe:
        """The one recipe of the file.

        Raises:
            SourceError: if there is none, or several, or something of it is unknown.
        """
        if len(self.alternatives) == 1:
            return self.alternatives[0].recipe
        if not self.alternatives:
            msg = f"{self.file} uses no mixed precision that is known here.\n"
            raise SourceError(msg + "Hint: amp.Recipe(...).save('recipe.toml') writes one by hand.")
        shown = "; ".join(" and ".join(each.conditions) for each in self.alternatives)
        msg = f"{self.file} stands for {len(self.alternatives)} recipes, one each where {shown}.\n"
        raise SourceError(msg + "Hint: reading.alternatives[0].recipe, or --where CONDITION")
