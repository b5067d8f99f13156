"""Score `ampbridge port` by programs whose recipes were read off them by hand.

    python scripts/score_port.py                             # every program of tests/port/programs
    python scripts/score_port.py ocr_program gpt_engine      # these two
    python scripts/score_port.py --checkout ../other --json scores.json

Each program is copied to a folder of its own, as a repository is cloned, and ported there by the
``ampbridge`` of ``--checkout``, in a process of its own. Its ``truth.toml`` has the command, the
recipe, what the user would answer (``[answers]``, one key at most), and what has to be told
(``[[told]]``: words, near a line of a file). A program gets one letter:

    R  right at once: the recipe is equal, and all of [[told]] is told
    Q  right after one question: for the key of [answers], or for one of the recipes that are offered
    U  told as unknown: the command refuses, and names each key that it does not know, with its place
    W  wrong, with a note about each wrong key
    S  silently wrong, or right without what has to be told

The scorer reads what a user reads, the output and the errors of the command, so that versions whose
JSON differs are scored alike.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from ampbridge.errors import AmpBridgeError
from ampbridge.training.recipe import Recipe
from ampbridge.training.recipe_file import SECTIONS

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests" / "port" / "programs"
LETTERS = {
    "R": "right at once",
    "Q": "right after one question",
    "U": "told as unknown",
    "W": "wrong, with a note",
    "S": "silently wrong, or not told",
}
LONGEST_RUN = 900
"""Seconds on the clock, which a loaded machine needs; a program that takes longer gets no answer."""
NEAR = 1
"""Lines between the one that a finding has to name and the one that it names."""
UNKNOWN = "unknown"
"""The value of a key that the command does not know, where it prints a recipe all the same."""

Flat = dict[str, Any]
"""``{"scaler.init_scale": 1024.0}``."""

SPELLINGS: Mapping[str, Sequence[str]] = {
    "level": ("amp_level", "opt_level", "level="),
    "dtype": ("amp_dtype", "dtype="),
    "init_scale": ("init_loss_scaling", "scale_loss", "initial_scale", "loss_scale"),
    "growth_interval": ("incr_every_n", "growth_steps", "loss_scale_window"),
    "growth_factor": ("incr_ratio",),
    "backoff_interval": ("decr_every_n", "hysteresis"),
    "backoff_factor": ("decr_ratio",),
    "dynamic": ("dynamic_loss_scaling",),
    "min_scale": ("floor", "min_loss_scale"),
    "accumulate": ("accumul", "micro-batch", "accum_"),
    "clip_norm": ("clip",),
    "clip_each_norm": ("clip",),
    "clip_value": ("clip",),
    "allow": ("white_list",),
    "deny": ("black_list",),
    "keep": ("excluded_layers",),
    "masters": ("masters", "master_weight", "multi_precision"),
    "enabled": ("loss scal", "gradscaler"),
}
"""How else a note may call a key."""
SWITCH = "scaler.enabled"
COMMON = {"level", "dtype", "lists", "allow", "deny", "keep", "enabled", "dynamic"}
"""Keys that are words of any sentence: a note has to name their section too."""
SHOWN = 4
"""So many keys that differ are written out."""


@dataclass(frozen=True)
class Told:
    """What has to be told: words in one finding, which names the file and the line."""

    file: str
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {'+'.join(self.words)}"


@dataclass(frozen=True)
class Truth:
    """What a truth.toml says."""

    command: tuple[str, ...]
    recipe: Recipe
    answers: Flat
    told: tuple[Told, ...]

    @classmethod
    def load(cls, path: Path) -> Truth:
        """The truth of a file.

        Raises:
            SystemExit: if it is none.
        """
        try:
            data = tomlkit.parse(path.read_text()).unwrap()
            told = [Told(t["file"], t["line"], (*t["words"],)) for t in data.get("told", [])]
            recipe = Recipe.from_dict(data["recipe"])
            truth = cls((*data["command"],), recipe, data.get("answers", {}), (*told,))
        except (TOMLKitError, AmpBridgeError, KeyError) as error:
            sys.exit(f"{path}: {type(error).__name__}: {error}")
        wrong = [each for each in told if not _has_line(path.parent / each.file, each.line)]
        if wrong or len(truth.answers) > 1:
            sys.exit(f"{path}: {wrong or 'more than one answer'}")
        return truth


def _has_line(path: Path, line: int) -> bool:
    return path.is_file() and 0 < line <= len(path.read_text().splitlines())


@dataclass
class Score:
    """What became of a program, and what it took."""

    program: str
    letter: str
    differs: str
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of the first call, which is the one that a user waits for."""
    calls: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """What one call of the command printed."""

    code: int
    output: str
    entries: tuple[str, ...]
    """Its errors, each a line with the indented lines under it."""

    @property
    def findings(self) -> tuple[str, ...]:
        """The entries that say something of the program: with a kind, or a place; no rows of tables."""
        return tuple(each for each in self.entries if KIND.match(each) or PLACE.search(each))

    @property
    def last(self) -> str:
        """What it said last, on one line."""
        return " ".join(self.entries[-1].split()) if self.entries else "nothing printed"

    @property
    def recipe(self) -> Recipe | None:
        """The recipe that was printed, if it is whole."""
        try:
            return Recipe.from_dict(_sections(self.flat)) if self.flat else None
        except AmpBridgeError:
            return None

    @property
    def flat(self) -> Flat:
        """The keys that were printed."""
        try:
            return _flat(tomlkit.parse(self.output).unwrap())
        except (TOMLKitError, AttributeError):
            return {}

    @property
    def asked(self) -> set[str]:
        """The keys that the command names as unknown, each with a place in the source.

        They stand in its error, the last entry, or else in findings of their own.
        """
        refused = [each for each in self.entries if "unknown" in each.lower()]
        named = [{*KEY.findall(each)} for each in refused if PLACE.search(each)]
        return next((keys for keys in named[-1:] if keys), set().union(*named))

    @property
    def picks(self) -> tuple[str, ...]:
        """The numbers of the recipes that are offered, each on a line of its own."""
        if self.code == 0:
            return ()
        return tuple(dict.fromkeys(re.findall(r"^\s*--pick (\d+)", "\n".join(self.entries), re.M)))


KEYS = [f"{section}.{key}" for section, keys in SECTIONS.items() for key in keys]
KEY = re.compile(rf"\b({'|'.join(map(re.escape, KEYS))})\b")
KIND = re.compile(r"\w+: ")
PLACE = re.compile(r"([\w./-]+\.\w+):(\d+)")


def _flat(sections: Mapping[str, Any]) -> Flat:
    return {f"{section}.{k}": v for section, keys in sections.items() for k, v in keys.items()}


def _sections(flat: Flat) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {}
    for name, value in flat.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    return sections


# -- calls


class Porter:
    """The command of a checkout, for one program in a folder of its own."""

    def __init__(self, checkout: Path, folder: Path, truth: Truth) -> None:
        self.folder, self.truth = folder, truth
        self.calls: list[str] = []
        paths = (checkout, checkout / "backends", checkout / "tools")
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}

    def __call__(self, *options: str) -> Answer:
        """Port the program.

        Raises:
            subprocess.TimeoutExpired: if it takes too long.
        """
        arguments = [*self.truth.command, *options]
        self.calls.append(" ".join(arguments))
        code, output, errors = self.run(arguments)
        entries = re.split(r"\n(?=\S)", errors.strip()) if errors.strip() else []
        if code != 0 and len(entries) > 1 and entries[-1].startswith("Hint: "):
            entries[-2:] = ["\n".join(entries[-2:])]
        return Answer(code, output, (*entries,))

    def run(self, arguments: Sequence[str]) -> tuple[int, str, str]:
        """Exit code, output and errors of the command, in a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "ampbridge", "port", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_RUN,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def recipe(self, *options: str) -> Answer:
        """Port it to a recipe."""
        return self("--to", "toml", *options)


# -- letters


def judged(porter: Porter, truth: Truth) -> tuple[str, str]:
    """The letter of a program, and what differs.

    Raises:
        subprocess.TimeoutExpired: as ``Porter``.
    """
    first = porter.recipe()
    if "Traceback" in "\n".join(first.entries):
        return "W", f"crashed: {first.last:.100}"
    if first.code == 0:
        return _answered(first, truth)
    if first.picks:
        return _offered(first, porter, truth)
    if not first.asked:
        return "W", f"refused: {first.last:.100}"
    return _asked(first, porter, truth)


def _answered(answer: Answer, truth: Truth, letter: str = "R") -> tuple[str, str]:
    """Of a recipe that was given as whole."""
    recipe = answer.recipe
    if recipe is None:
        return "S", f"no recipe: {answer.last:.100}"
    wrong = differences(recipe, truth.recipe)
    if wrong:
        return _wrong(wrong, answer)
    missing = [each for each in truth.told if not is_told(each, answer.findings)]
    if missing:
        return "S", "not told: " + ", ".join(map(str, missing))
    return letter, ""


def _asked(first: Answer, porter: Porter, truth: Truth, *pick: str) -> tuple[str, str]:
    """Of a recipe in which keys are unknown, which are named."""
    asked = sorted(first.asked)
    if set(asked) == set(truth.answers):
        answers = [f"{key}={_as_toml(value)}" for key, value in truth.answers.items()]
        options = [part for answer in answers for part in ("--set", answer)]
        answer = porter.recipe(*pick, *options)
        if answer.code == 0:
            letter, differs = _answered(answer, truth, "Q")
            return letter, differs or f"asks {', '.join(asked)}"
    shown = porter(*pick)
    wrong = _differences_of_the_known(shown, truth.recipe)
    named = f"unknown: {', '.join(asked)}"
    if not wrong:
        return "U", named
    letter, differs = _wrong(wrong, first)
    return letter, f"{named}; {differs}"


def _wrong(wrong: Mapping[str, str], answer: Answer) -> tuple[str, str]:
    """Of keys that are wrong: whether each is noted, and what differs."""
    silent = [key for key in wrong if not _is_noted(key, answer.findings)]
    more = f", and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    return "S" if silent else "W", ", ".join([*wrong.values()][:SHOWN]) + more


def _offered(first: Answer, porter: Porter, truth: Truth) -> tuple[str, str]:
    """Of several recipes, of which the user picks the one that is meant."""
    results = [_picked(pick, porter, truth) for pick in first.picks]
    best = min(results, key=lambda result: "QUWS".index(result[0]))
    if best[0] in "QU":
        return best
    return best[0], f"{len(results)} offered, none is meant: {best[1]}"


def _picked(pick: str, porter: Porter, truth: Truth) -> tuple[str, str]:
    answer = porter.recipe("--pick", pick)
    if answer.code == 0:
        letter, differs = _answered(answer, truth, "Q")
        return letter, differs or f"asks --pick {pick}"
    letter, differs = _asked(answer, porter, truth, "--pick", pick)
    return ("U" if letter == "Q" else letter), f"--pick {pick}, {differs}"


def _differences_of_the_known(shown: Answer, truth: Recipe) -> dict[str, str]:
    """The wrong keys of a recipe, but for those that are printed as unknown."""
    true = _flat(truth.to_dict())
    known = {key: value for key, value in shown.flat.items() if value != UNKNOWN}
    unknown = shown.flat.keys() - known.keys()
    if not shown.flat:
        return {"policy.level": "no recipe is shown"}
    filled = {**known, **{key: true[key] for key in unknown if key in true}}
    try:
        return differences(Recipe.from_dict(_sections(filled)), truth)
    except AmpBridgeError as error:
        return {"policy.level": str(error).splitlines()[0][:100]}


def differences(recipe: Recipe, truth: Recipe) -> dict[str, str]:
    """Key -> the value that it has and the one that it should have; none for equal recipes."""
    if recipe == truth:
        return {}
    found, true = _spelled(recipe), _spelled(truth)
    if found[SWITCH] != true[SWITCH]:  # that says it all
        found, true = _without_numbers(found), _without_numbers(true)
    return {
        key: f"{key} {_shown(found.get(key))}, not {_shown(true.get(key))}"
        for key in sorted({*found, *true})
        if found.get(key) != true.get(key)
    }


def _without_numbers(spelled: Flat) -> Flat:
    """All but what a scaler has beside its switch."""
    return {k: v for k, v in spelled.items() if k == SWITCH or not k.startswith("scaler.")}


def _spelled(recipe: Recipe) -> Flat:
    """Every setting of a recipe, the defaults too."""
    flat = {f"policy.{key}": value for key, value in recipe.policy.to_dict().items()}
    flat[SWITCH] = recipe.scaler is not None
    if recipe.scaler is not None:
        flat |= {f"scaler.{key}": value for key, value in recipe.scaler.arguments().items()}
    for section in ("step", "decorate"):
        flat |= {f"{section}.{key}": getattr(recipe, key) for key in SECTIONS[section]}
    return flat | {"schedule": recipe.schedule}


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)


def _as_toml(value: Any) -> str:
    return str(tomlkit.item(value).as_string())


def is_told(told: Told, entries: Iterable[str]) -> bool:
    """Whether one finding has all the words, and names the place."""
    return any(
        all(word in entry.lower() for word in told.words)
        and any(_is_there(told, file, int(line)) for file, line in PLACE.findall(entry))
        for entry in entries
    )


def _is_there(told: Told, file: str, line: int) -> bool:
    """Whether a place is the one to name. Its file may be written from another folder."""
    named, meant = Path(file).parts, Path(told.file).parts
    shared = min(len(named), len(meant))
    return named[-shared:] == meant[-shared:] and abs(line - told.line) <= NEAR


def _is_noted(key: str, entries: Iterable[str]) -> bool:
    name = key.rpartition(".")[2]
    words = (key, *(() if name in COMMON else (name,)), *SPELLINGS.get(name, ()))
    return any(word in entry.lower() for entry in entries for word in words)


# -- the whole


def scored(folder: Path, checkout: Path) -> Score:
    """The score of a program."""
    truth = Truth.load(folder / "truth.toml")
    with tempfile.TemporaryDirectory() as place:
        timed = _Timed(checkout, cloned(folder, Path(place)), truth)
        try:
            letter, differs = judged(timed, truth)
        except subprocess.TimeoutExpired:
            letter, differs = "W", f"no answer in {LONGEST_RUN} s"
    return Score(folder.name, letter, differs, *timed.first, timed.calls)


def cloned(folder: Path, place: Path) -> Path:
    """A program in a folder of its own, without its truth, as a repository."""
    clone = place / folder.name
    shutil.copytree(folder, clone, ignore=shutil.ignore_patterns("truth.toml", "__pycache__"))
    (clone / ".git").mkdir()  # which is at its root
    return clone


class _Timed(Porter):
    """A porter that times its first call."""

    first: tuple[float, float] = (float(LONGEST_RUN), float(LONGEST_RUN))

    def __call__(self, *options: str) -> Answer:
        begun, cpu = time.monotonic(), _cpu_of_children()
        is_first = not self.calls
        answer = super().__call__(*options)
        if is_first:
            self.first = time.monotonic() - begun, _cpu_of_children() - cpu
        return answer


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _row(score: Score, width: int) -> str:
    seconds = f"{score.seconds:6.1f} {score.cpu_seconds:6.1f}"
    return f"{score.program:{width}}  {score.letter}  {seconds}  {score.differs}".rstrip()


def _totals(scores: Sequence[Score]) -> str:
    counts = Counter(score.letter for score in scores)
    by_letter = ", ".join(f"{counts[each]} {each} ({says})" for each, says in LETTERS.items())
    cpu = sum(score.cpu_seconds for score in scores)
    slowest = max(score.cpu_seconds for score in scores)
    return f"{len(scores)} programs: {by_letter}; {cpu:.0f} s of CPU, {slowest:.1f} s at most"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 if a program is wrong or silent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="folders of --folder; all")
    parser.add_argument("--folder", type=Path, default=PROGRAMS, help="where the programs are")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="whose port is scored")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the scores to this file")
    options = parser.parse_args(arguments)
    found = sorted(truth.parent for truth in options.folder.glob("*/truth.toml"))
    chosen = [each for each in found if not options.programs or each.name in options.programs]
    unknown = sorted({*options.programs} - {each.name for each in chosen})
    if unknown or not chosen:
        parser.error(f"no program in {options.folder}: {', '.join(unknown) or 'no truth.toml'}")
    scores = []
    width = max(len(each.name) for each in chosen)
    print(f"{'program':{width}}       wall    cpu  what differs")
    for folder in chosen:
        scores.append(scored(folder, options.checkout.resolve()))
        print(_row(scores[-1], width), flush=True)
    print(_totals(scores))
    if options.json:
        options.json.write_text(json.dumps([asdict(score) for score in scores], indent=1) + "\n")
    return int(any(score.letter in "WS" for score in scores))


if __name__ == "__main__":
    sys.exit(main())
