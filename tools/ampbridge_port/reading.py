"""The result of reading a file: its recipes, their conditions, and unknown values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

from ampbridge.errors import SourceError
from ampbridge.training.recipe import Recipe
from ampbridge_port import choosing

LONGEST_EXCERPT = 100
LONGEST_ORIGIN = 60

OF_A_RULE = (
    *("scaler.init_scale", "scaler.growth_factor", "scaler.backoff_factor"),
    *("scaler.growth_interval", "scaler.backoff_interval"),
)
"""What a library's loss scaler has defaults for."""

FindingKind = Literal["unknown", "ignored", "lost", "note"]


@dataclass(frozen=True, order=True)
class Place:
    """A place in a file: lines from 1, columns from 0, and the text there."""

    file: str
    line: int
    column: int
    text: str
    cell: int = 0
    """Of a notebook: which of its cells, from 1, ``line`` is a line of."""

    def __str__(self) -> str:
        return f"{self.file}, {self.where}" if self.cell else f"{self.file}:{self.line}"

    @property
    def where(self) -> str:
        """Where it stands in its file."""
        return f"cell {self.cell}, line {self.line}" if self.cell else f"line {self.line}"

    def seen_from(self, other: Place) -> str:
        """Where it stands, for who looks at ``other``."""
        return self.where if self.file == other.file else str(self)

    @property
    def excerpt(self) -> str:
        """The text on one line, shortened if it is long."""
        return shorten(self.text, LONGEST_EXCERPT, placeholder=" ...")


@dataclass(frozen=True)
class Origin:
    """Where the value of a key was read: in a call, by its name. ``is_default``: what it does unasked."""

    place: Place
    call: str = ""
    is_default: bool = False

    def said(self, words: str) -> str:
        """``train.py:77 init_loss_scaling=1024``, given the words of the source for the key."""
        if self.is_default:
            return f"default of {self.call}"
        words = shorten(words or self.call or self.place.text, LONGEST_ORIGIN, placeholder=" ...")
        return f"{Path(self.place.file).name}:{self.place.line} {words}"


@dataclass(frozen=True)
class Finding:
    """A note on what was read.

    ``kind``: "unknown", a value that only a run of the file would show; "ignored", a setting that the
    source framework silently ignores; "lost", a setting that a recipe cannot express; "note".
    ``key``: of the recipe, where it is the value of one that is unknown.
    """

    kind: FindingKind
    place: Place
    message: str
    hint: str = ""
    key: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" + (f"\n  Hint: {self.hint}" if self.hint else "")


@dataclass(frozen=True)
class Alternative:
    """One possible recipe of a file, with its conditions.

    ``settings`` has the keys of a recipe file, such as ``"policy.level"``. ``unknown`` has the keys
    whose values are unknown, with the places in the source; these keys are not in ``settings``.
    """

    conditions: tuple[str, ...]
    settings: Mapping[str, Any]
    unknown: Mapping[str, Place]
    comments: Mapping[str, str]
    """The source text for each key, in the source framework's words."""
    departures: tuple[str, ...] = ()
    """The conditions under which something has not the default that stands in the file."""
    findings: tuple[Finding, ...] = ()
    """What was found on the way to this one; ``Reading.findings`` has all of them."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Where the value of each key was read, as far as that is one place."""

    @property
    def said(self) -> Mapping[str, str]:
        """``comments`` with the file and the line, and whose defaults the rest are; for a module."""
        origins = dict(self.origins)
        rule = origins.get("scaler.like")
        if rule is not None and rule.is_default:
            origins |= {k: rule for k in OF_A_RULE if k not in {**origins, **self.settings}}
        told = {key: at.said(self.comments.get(key, "")) for key, at in origins.items()}
        return {**self.comments, **told}

    @property
    def recipe(self) -> Recipe:
        """The recipe.

        Raises:
            SourceError: if a value is unknown.
        """
        return self.recipe_with({})

    def recipe_with(self, known: Mapping[str, Any]) -> Recipe:
        """The recipe with unknown values filled in from ``known``: ``{"scaler.init_scale": 1024.0}``.

        Raises:
            SourceError: if a value is still unknown.
        """
        missing = what_is_unknown(self, known)
        if missing:
            key = next(key for key in self.unknown if key not in known)
            raise SourceError(
                missing + f"Hint: pass the value, --set {key}=..., recipe_with({{{key!r}: ...}})"
            )
        sections: dict[str, dict[str, Any]] = {}
        for name, value in {**self.settings, **known}.items():
            section, _, key = name.partition(".")
            sections.setdefault(section, {})[key] = value
        return Recipe.from_dict(sections)


def what_is_unknown(alternative: Alternative, known: Mapping[str, Any]) -> str:
    """A line that says what is unknown besides ``known``, and where; "" if nothing is."""
    missing = {key: place for key, place in alternative.unknown.items() if key not in known}
    shown = "; ".join(f"{key} is {p.excerpt!r} ({p})" for key, p in missing.items())
    return f"Some values are unknown without running the file: {shown}.\n" if missing else ""


@dataclass(frozen=True)
class Reading:
    """A file's use of mixed precision: ``alternatives`` has every recipe that it may stand for.

    ``framework``: the library of its settings ("paddle", "torch", "tensorflow", "apex",
    "deepspeed", "accelerate", "lightning"); None without mixed precision. ``ops``: those that a script
    names; None where it is no script. ``modules``: other files of its folder in which such calls stand.
    ``trains``: whether it takes steps.
    """

    file: str
    framework: str | None
    alternatives: tuple[Alternative, ...]
    findings: tuple[Finding, ...]
    ops: frozenset[str] | None = None
    modules: frozenset[str] = frozenset()
    trains: bool = True

    @property
    def recipe(self) -> Recipe:
        """The recipe that trains in mixed precision on an accelerator, by the defaults in the file.

        Raises:
            SourceError: if there is no recipe, if there are several, or if a value is unknown.
        """
        if not self.alternatives:
            msg = f"{self.file} uses no mixed precision that is known here.\n"
            raise SourceError(msg + "Hint: amp.Recipe(...).save('recipe.toml') writes one by hand.")
        candidates = choosing.choose(self.alternatives).candidates
        if len(candidates) == 1:
            return candidates[0].recipe
        msg = choosing.several(self.file, candidates)
        raise SourceError(msg + "Hint: reading.alternatives[0].recipe, or --pick 1")
