"""Reads one file or many, a script with the modules that it imports and its configuration.

A file that cannot be read does not stop the others.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ampbridge.checkpoints.atomic_files import path_of
from ampbridge.errors import ArgumentError, SourceError
from ampbridge_port import notebooks, python, source
from ampbridge_port.interpreter.following import Exhausted
from ampbridge_port.modules import Files, Modules, shown
from ampbridge_port.reading import Finding, Place, Reading

if TYPE_CHECKING:
    from ampbridge_port.source import Source
    from ampbridge_port.table import Table

CONFIGURATIONS = frozenset({".json", ".yaml", ".yml"})
SCRIPTS = ("*.py", f"*{notebooks.SUFFIX}")
TEXT = "<source>"
"""The name, in places and messages, of a source that was passed as text."""

_HINT = "amp.port.read('train.py')"


@dataclass(frozen=True)
class Outcome:
    """The result for a file: its reading, or the error."""

    file: str
    reading: Reading | None
    error: SourceError | None = None


def read(
    path_or_source: str | PathLike[str],
    *,
    config: str | PathLike[str] | None = None,
    override: Sequence[str] = (),
) -> Reading:
    """Read the mixed-precision settings of a script or configuration file, without running it.

        reading = amp.port.read("train.py")
        reading = amp.port.read("tools/train.py", config="configs/x.yml", override=["AMP.level=O2"])
        reading.recipe.save("recipe.toml", comments=reading.alternatives[0].comments)

    Modules of the script's folder and of its repository that it imports are read, too, and base files
    of a configuration (``_BASE_``).

    Args:
        path_or_source: a file (``.py``, ``.ipynb``, or DeepSpeed's, Accelerate's, ... JSON and YAML),
            or Python source as a text of several lines.
        config: the configuration that the script is started with.
        override: what is changed of the configuration: ``KEY=VALUE``, with ``.`` between keys.

    Raises:
        SourceError: if it cannot be read: the file does not exist, is not text, is not Python 3, is
            too large or too deeply nested; or if LibCST or PyYAML is not installed.
        ArgumentError: for a configuration of a configuration, and overrides of none.
    """
    if isinstance(path_or_source, str) and "\n" in path_or_source:
        return _read_python(path_or_source.encode(), TEXT, None, _configuration(config, override))
    return _read(path_of(path_or_source, _HINT), Files(), config, override)


def _read(
    file: str,
    files: Files,
    config: str | PathLike[str] | None = None,
    override: Sequence[str] = (),
) -> Reading:
    if Path(file).suffix.lower() not in CONFIGURATIONS:
        return _read_script(file, files, _configuration(config, override))
    if config is not None:
        msg = (
            f"{file} is a configuration itself, and was passed another, {path_of(config, _HINT)}.\n"
        )
        raise ArgumentError(msg + f"Hint: ampbridge port train.py -c {file}")
    return _read_configuration(file, override)


def parsed(path_or_source: str | PathLike[str]) -> Source:
    """The tree of a Python file, or of source passed as text.

    Raises:
        SourceError: as ``read``.
    """
    if isinstance(path_or_source, str) and "\n" in path_or_source:
        return source.parse(path_or_source.encode(), TEXT)
    file = path_of(path_or_source, _HINT)
    return source.parse(source.load(file), file)


def read_many(paths: Iterable[str | PathLike[str]], *, together: bool = True) -> Iterator[Outcome]:
    """``read`` for each file, and for each script under a folder.

    Those of a folder that train come first, and modules whose calls are part of one that was read are
    not read once more; unless ``together`` is false: then each file is read alone, in order.
    """
    files = Files()
    for path in map(Path, paths):
        if not path.is_dir():
            yield _outcome(str(path), partial(_read, str(path), files))
        elif together:
            yield from _of_folder(path, files)
        else:
            for file in _scripts(path):
                yield _outcome(str(file), partial(_read_script, str(file), None, None))


def _outcome(file: str, reads: Callable[[], Reading]) -> Outcome:
    try:
        return Outcome(file, reads())
    except SourceError as error:
        return Outcome(file, None, error)


def _scripts(folder: Path) -> list[Path]:
    return sorted(found for pattern in SCRIPTS for found in folder.rglob(pattern))


# -- folders

_OF_EVALUATION = re.compile(r"(?:^|_)(?:eval|val|test|infer|predict|export|bench|demo)", re.I)


def _of_folder(folder: Path, files: Files) -> list[Outcome]:
    """Programs before the modules that they import; a module that has been read with one is a part."""
    scripts = _scripts(folder)
    modules = {file: Modules(str(file), files, python.concerns) for file in scripts}
    imported = {
        each
        for file, its in modules.items()
        if file.suffix == ".py"
        for each in its.imported(its.script)
    }
    parts: set[str] = set()
    within: set[Path] = set()  # modules of a program that has a recipe
    outcomes: list[Outcome] = []
    for file in sorted(scripts, key=lambda each: (each.absolute() in imported, each)):
        nothing = Reading(str(file), None, (), ())
        if shown(file.absolute()) in parts:
            outcomes.append(Outcome(str(file), nothing))
            continue
        outcome = _outcome(str(file), partial(_read_script, str(file), files, None))
        reading = outcome.reading
        if reading is not None and reading.framework is not None:
            parts |= reading.modules
            within |= modules[file].reached
        elif reading is not None and file.absolute() in within:
            outcome = Outcome(str(file), nothing)  # what is not known here is the program's
        outcomes.append(outcome)
    return sorted(outcomes, key=_rank)


def _rank(outcome: Outcome) -> tuple[bool, bool, str]:
    """Trainings first, then what evaluates, then all without mixed precision."""
    reading = outcome.reading
    if reading is None or reading.framework is None:
        return (True, True, outcome.file)
    trains = reading.trains and not _OF_EVALUATION.search(Path(outcome.file).stem)
    return (False, not trains, outcome.file)


# -- configurations


class Configuration(NamedTuple):
    """A file with its bases and overrides; ``added``: notes of overrides of no key that these have."""

    file: str
    table: Table
    added: tuple[Finding, ...]


def _configuration(
    config: str | PathLike[str] | None, override: Sequence[str]
) -> Configuration | None:
    if config is None:
        if override:
            msg = f"{override[0]!r} overrides a configuration, and none was passed.\n"
            raise ArgumentError(msg + "Hint: ampbridge port train.py -c config.yml -o KEY=VALUE")
        return None
    file = path_of(config, _HINT)
    if Path(file).suffix.lower() not in CONFIGURATIONS:
        msg = f"The configuration {file!r} is no JSON and no YAML.\n"
        raise ArgumentError(msg + "Hint: ampbridge port train.py -c config.yml")
    return _overridden(file, override)


def _overridden(file: str, override: Sequence[str]) -> Configuration:
    from ampbridge_port.configs import bases

    table = bases.read(file, _text)
    return Configuration(file, bases.overridden(table, override), bases.added(table, override))


def _text(file: str) -> str:
    return source.decoded(source.load(file), file)


def _read_configuration(file: str, override: Sequence[str]) -> Reading:
    from ampbridge_port.configs import read_table

    configuration = _overridden(file, override)
    reading = read_table(configuration.table, file)
    return replace(reading, findings=(*reading.findings, *configuration.added))


# -- scripts

_PROGRAM = re.compile(
    rb"^if __name__|^[A-Za-z_][\w.]*\(|\.(?:fit|train|backward|minimize|step)\(", re.M
)
"""What a file has that does something itself, not only defines what others import."""


def _read_script(file: str, files: Files | None, configuration: Configuration | None) -> Reading:
    data = source.load(file)
    if Path(file).suffix.lower() == notebooks.SUFFIX:
        return _read_notebook(notebooks.read(data, file), files, configuration)
    modules = None if files is None else Modules(file, files, python.concerns)
    return _read_python(data, file, modules, configuration)


def _read_notebook(
    notebook: notebooks.Notebook, files: Files | None, configuration: Configuration | None
) -> Reading:
    modules = None
    if files is not None:
        files.know(Path(notebook.file).absolute(), notebook.text.encode())
        modules = Modules(notebook.file, files, python.concerns)
    data = notebook.text.encode()
    return _read_python(data, notebook.file, modules, configuration, notebook.parsed)


def _read_python(
    data: bytes,
    file: str,
    modules: Modules | None,
    configuration: Configuration | None,
    parse: Callable[[], Source] | None = None,
) -> Reading:
    from ampbridge_port.configs import read_table
    from ampbridge_port.joining import joined

    parse = parse or (lambda: source.parse(data, file))
    reading = _followed(data, file, parse, modules, configuration and configuration.table)
    if configuration is None:
        return reading
    reading = joined(reading, read_table(configuration.table, configuration.file))
    reading = replace(reading, findings=(*reading.findings, *configuration.added))
    without = _followed(data, file, parse, modules, None)
    if reading.framework is None or reading.alternatives != without.alternatives:
        return reading
    return replace(reading, findings=(*reading.findings, _is_of_no_use(file, configuration.file)))


def _is_of_no_use(file: str, configuration: str) -> Finding:
    """What is to be told where a program comes to the same with a configuration and without."""
    message = (
        f"The recipe is the same without this file: it sets nothing of it, or where {file} loads it "
        "is not followed."
    )
    return Finding(
        "note", Place(configuration, 1, 0, ""), message, "--set KEY=VALUE for what it sets"
    )


def _followed(
    data: bytes,
    file: str,
    parse: Callable[[], Source],
    modules: Modules | None,
    configuration: Table | None,
) -> Reading:
    if not python.concerns(data) and not (
        modules is not None and _PROGRAM.search(data) and modules.concern
    ):
        source.check(data, file)
        return Reading(file, None, (), ())
    with _uncollected():
        tree = parse()
        try:
            return python.read_module(tree, modules=modules, configuration=configuration)
        except (RecursionError, Exhausted) as error:
            if tree.others:
                return _without_modules(data, file, parse, configuration)
            too_much = source.too_deep if isinstance(error, RecursionError) else source.too_long
            raise too_much(file) from error


def _without_modules(
    data: bytes, file: str, parse: Callable[[], Source], configuration: Table | None
) -> Reading:
    """A script whose modules are too many to be followed."""
    reading = _followed(data, file, parse, None, configuration)
    message = "The modules that it imports are too long to be followed; this is the script alone."
    found = Finding(
        "unknown", Place(file, 1, 0, ""), message, "ampbridge port the module that trains"
    )
    return replace(reading, findings=(*reading.findings, found))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's garbage collector, which would look through the whole tree again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
