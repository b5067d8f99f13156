"""What becomes of a file that is ported: the recipe in it, and the same in other words."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ampbridge.errors import AmpBridgeError, ArgumentError, SourceError, listed
from ampbridge.errors.foreign_text import on_one_line
from ampbridge.training.recipe import Recipe
from ampbridge.training.recipe_file import SCHEDULE, SECTIONS, text_of
from ampbridge_port import choosing
from ampbridge_port.choosing import Chosen
from ampbridge_port.fidelity_report import Report, fidelity
from ampbridge_port.reader.files import Outcome
from ampbridge_port.reading import Alternative, Finding, Place, Reading, what_is_unknown
from ampbridge_port.rewriting import Rewriting, kept, rewrite
from ampbridge_port.rewriting_calls import ANOTHER_FILES
from ampbridge_port.writers import write

UNKNOWN = "unknown"
"""The value of a key, in a recipe that is shown, that the file does not say. No key allows it."""


@dataclass(frozen=True)
class Wish:
    """What a file is to become.

    Args:
        target, native, demo: as for ``write``; a target of None is what the file says, as TOML.
        known: values that the file does not say, by key.
        pick: the number of the recipe that is meant among those of a file, from 1.
        config, override: the configuration that the file is read with, and what is changed of it.
    """

    target: str | None
    native: bool
    known: Mapping[str, Any]
    pick: int | None = None
    demo: bool = False
    config: str | None = None
    override: tuple[str, ...] = ()

    def command(self, file: str, *options: str) -> str:
        """The command that wishes this for ``file``, with further options."""
        said = ["-c", self.config] if self.config else []
        said += ["-o", *self.override] if self.override else []
        said += ["--to", self.target] if self.target else []
        said += [] if self.native else ["--ampbridge"]
        said += ["--demo"] if self.demo else []
        if self.pick is not None:
            said += ["--pick", str(self.pick)]
        for key, value in self.known.items():
            said += ["--set", f"{key}={value}"]
        return " ".join([shlex.join(["ampbridge", "port", file, *said]), *options])


@dataclass(frozen=True)
class Ported:
    """What became of one file.

    ``text`` is TOML, a module, or the script as it was rewritten. ``recipe`` is None where it was not
    asked for, or is not one. ``candidates`` are the alternatives that may be meant.
    """

    file: str
    reading: Reading | None = None
    alternatives: tuple[Alternative, ...] = ()
    candidates: tuple[Alternative, ...] = ()
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

    @property
    def needs_another(self) -> bool:
        """Whether a script stays as it is, and does not run with the scaler of another that is changed."""
        return any(ANOTHER_FILES in finding.message for finding in self.findings)

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
            key: {**_place_as_data(at), "text": at.text} for key, at in alternative.unknown.items()
        },
        "comments": dict(alternative.comments),
    }


def _place_as_data(place: Place) -> dict[str, Any]:
    """``cell`` is there for notebooks."""
    cell = {"cell": place.cell} if place.cell else {}
    return {"file": place.file, **cell, "line": place.line}


def _finding_as_data(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        **_place_as_data(finding.place),
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
    alternatives = reading.alternatives
    chosen = choosing.choose(alternatives)
    candidates = chosen.candidates if wish.pick is None else (_picked(reading, chosen, wish.pick),)
    found = [each for each in _of_candidates(reading, candidates) if each.key not in wish.known]
    findings = (*found, *_taken(reading, chosen, candidates, wish))
    read = reading.file, reading, alternatives, candidates
    if wish.target is None:
        unknown = {key for each in candidates for key in each.unknown} - wish.known.keys()
        text = _listed(candidates, wish.known)
        return Ported(*read, text=text, findings=findings, unknown=(*unknown,))
    if wish.target == "ampbridge" and Path(reading.file).suffix in (".py", ".ipynb"):
        return _rewritten(reading, alternatives, candidates, wish)
    recipe, comments = _the_recipe(reading, candidates, wish)
    report = fidelity(recipe, wish.target, native=wish.native, used=reading.ops)
    findings = (*findings, *_kept_by_ampbridge(reading, report, wish))
    text = write(recipe, wish.target, native=wish.native, comments=comments, demo=wish.demo)
    return Ported(*read, recipe, text, None, report, findings)


def _kept_by_ampbridge(reading: Reading, report: Report, wish: Wish) -> Iterator[Finding]:
    """What native code loses of the recipe, where code with ampbridge does not."""
    ours = fidelity(report.recipe, report.target, native=False)
    lost = {row.key for row in report.of("lost")} - {row.key for row in ours.of("lost")}
    if lost:
        message = f"Code with ampbridge keeps {listed(sorted(lost))}; native code loses that."
        hint = replace(wish, native=False).command(reading.file)
        yield Finding("note", Place(reading.file, 1, 0, ""), message, hint)


def _picked(reading: Reading, chosen: Chosen, number: int) -> Alternative:
    """The recipe with a number.

    Raises:
        SourceError: if there is none.
    """
    if not 1 <= number <= len(chosen.all):
        msg = f"{reading.file} has no recipe {number}; it has {len(chosen.all)}.\n"
        raise SourceError(msg + "Hint: --pick 1" if chosen.all else msg + "Hint: leave --pick out.")
    return chosen.all[number - 1]


MOST_TOLD = 4


def _taken(
    reading: Reading, chosen: Chosen, candidates: Sequence[Alternative], wish: Wish
) -> tuple[Finding, ...]:
    """Under which conditions the recipe holds, if the file has others."""
    if wish.pick is not None or len(candidates) != 1 or not chosen.others:
        return ()
    others = choosing.numbered(chosen.all)[1:]
    count = len(others)
    more = [f"and {count - MOST_TOLD} more, to --pick {count + 1}"] if count > MOST_TOLD else []
    told = "".join(f"\n  {line}" for line in (*others[:MOST_TOLD], *more))
    taken = f"{choosing.in_short(candidates[0])}{choosing.where(candidates[0])}"
    message = f"The recipe is {taken}; there are others:{told}"
    place = Place(reading.file, 1, 0, "")
    return (Finding("note", place, message, wish.command(reading.file, "--pick 2")),)


def _of_candidates(reading: Reading, candidates: Sequence[Alternative]) -> tuple[Finding, ...]:
    """Without what is found under other alternatives alone."""
    own = {found for each in candidates for found in each.findings}
    idle = {found for each in reading.alternatives for found in each.findings} - own
    return tuple(found for found in reading.findings if found not in idle)


def _listed(candidates: Sequence[Alternative], known: Mapping[str, Any]) -> str:
    """The recipes as TOML; several with their numbers."""
    texts = [as_toml(each, known) for each in candidates]
    if len(texts) > 1:
        texts = [f"# --pick {number}\n{text}" for number, text in enumerate(texts, 1)]
    return "\n".join(texts)


def _the_recipe(
    reading: Reading, candidates: Sequence[Alternative], wish: Wish
) -> tuple[Recipe, Mapping[str, str]]:
    """The one recipe, and what its keys were called in the source.

    Raises:
        SourceError: if there is none, or several, or something of it is unknown.
    """
    if not candidates:
        return reading.recipe, {}
    if len(candidates) > 1:
        msg = choosing.several(reading.file, candidates)
        raise SourceError(msg + f"Hint: {wish.command(reading.file, '--pick 1')}")
    (only,) = candidates
    missing = [key for key in only.unknown if key not in wish.known]
    if missing:
        msg = what_is_unknown(only, wish.known)
        values = [f"--set {key}=..." for key in missing]
        raise SourceError(
            f"{msg}Hint: pass the value, {' '.join(values)}: {wish.command(reading.file, *values)}"
        )
    said = only.comments if wish.target == "toml" else only.said
    return only.recipe_with(wish.known), {**said, **dict.fromkeys(wish.known, "--set")}


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


def _rewritten(
    reading: Reading,
    alternatives: tuple[Alternative, ...],
    candidates: tuple[Alternative, ...],
    wish: Wish,
) -> Ported:
    """The script with its calls replaced; with a report where it stands for one recipe."""
    if wish.pick is not None:
        msg = "A script keeps all its conditions when it is rewritten, and --pick chooses one.\n"
        raise ArgumentError(msg + f"Hint: --to toml --pick {wish.pick}")
    if wish.known:
        msg = "A script keeps its own expressions when it is rewritten, and --set gives values.\n"
        raise ArgumentError(msg + "Hint: --to toml --set KEY=VALUE, or change the script.")
    if wish.demo:
        msg = "A script that is rewritten runs as it did; --demo adds one to a module.\n"
        raise ArgumentError(msg + "Hint: --to tensorflow --demo, or leave it out.")
    if wish.config is not None:
        msg = "A script stays one for any configuration when it is rewritten, and -c is one.\n"
        raise ArgumentError(msg + f"Hint: --to toml -c {wish.config}, or leave it out.")
    is_notebook = Path(reading.file).suffix == ".ipynb"
    rewriting = None if is_notebook else rewrite(Path(reading.file))
    if reading.framework is None and (rewriting is None or not rewriting.findings):
        return Ported(reading.file, reading)
    if rewriting is None:
        msg = f"{reading.file} is a notebook, and --to ampbridge rewrites scripts.\n"
        hint = f"Hint: jupyter nbconvert --to script {reading.file}; or --to torch --out amp.py"
        raise ArgumentError(msg + hint)
    error = _not_rewritten(reading, rewriting)
    is_one = len(candidates) == 1 and not candidates[0].unknown
    recipe = candidates[0].recipe if is_one else None
    report = None if recipe is None else fidelity(recipe, "ampbridge")
    read = reading.file, reading, alternatives, candidates
    told = *kept(_of_candidates(reading, candidates)), *rewriting.findings, *_in_modules(reading)
    return Ported(*read, recipe, rewriting.text, rewriting, report, told, error=error)


def _not_rewritten(reading: Reading, rewriting: Rewriting) -> SourceError | None:
    """Why a script that trains in mixed precision is left as it was, if it is."""
    hint = f"Hint: ampbridge port {shlex.quote(reading.file)}"
    others = ("paddle", "tensorflow", "jax")
    framework = reading.framework if reading.framework in others else "torch"
    module = f"{hint} --to {framework} --ampbridge writes a module to import instead."
    if rewriting.findings:
        lines = dict.fromkeys(str(found.place.line) for found in rewriting.findings)
        where = f"line {next(iter(lines))}" if len(lines) == 1 else f"lines {', '.join(lines)}"
        msg = f"{reading.file} is unchanged: {where} must be written by hand, as is said above.\n"
        return SourceError(msg + module)
    low = [a for a in reading.alternatives if a.settings.get("policy.level") != "O0" or a.unknown]
    if low and not rewriting.replaced and reading.modules:
        files = shlex.join(sorted(reading.modules))
        msg = f"{reading.file} is unchanged: the calls of mixed precision are in modules of it.\n"
        return SourceError(f"{msg}Hint: ampbridge port {files} --to ampbridge")
    if low and not rewriting.replaced:
        msg = f"{reading.file} is unchanged: none of its calls has a replacement.\n"
        return SourceError(msg + module)
    return None


def _in_modules(reading: Reading) -> list[Finding]:
    """Which other files have calls of the same training, and stay as they are."""
    message = (
        f"This module of {reading.file} has calls of mixed precision, too, and stays as it is."
    )
    commands = {
        file: shlex.join(["ampbridge", "port", file, "--to", "ampbridge"])
        for file in sorted(reading.modules)
    }
    return [Finding("note", Place(f, 1, 0, ""), message, hint) for f, hint in commands.items()]
