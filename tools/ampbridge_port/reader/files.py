"""Reads one file or many, a script with the modules that it imports and its configuration.

A file that cannot be read does not stop the others.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path

from ampbridge.checkpoints.atomic_files import path_of
from ampbridge.errors import ArgumentError, SourceError
from ampbridge_port.reader import formats, notebooks, settings, source
from ampbridge_port.reader.modules import TOO_MUCH, Files, Finder, shown
from ampbridge_port.reader.search import ASK_FOR_IT, Search
from ampbridge_port.reader.settings import Table
from ampbridge_port.reader.source import Module
from ampbridge_port.reading import Finding, Place, Reading
from ampbridge_port.used_ops import used_ops

CONFIGURATIONS = frozenset({".json", ".yaml", ".yml", ".gin"})
SCRIPTS = ("*.py", f"*{notebooks.SUFFIX}")
DEEPEST = 6000
_HINT = "amp.port.read('train.py')"


@dataclass(frozen=True)
class Outcome:
    """The result for a file: its reading, or the error."""

    file: str
    reading: Reading | None
    error: SourceError | None = None


@dataclass(frozen=True)
class Configuration:
    """A configuration with its bases and overrides; ``added``: notes of overrides that it lacks."""

    file: str
    table: Table
    added: tuple[Finding, ...]


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
            too large or too deeply nested; or if PyYAML is not installed.
        ArgumentError: for a configuration of a configuration, and overrides of none.
    """
    if isinstance(path_or_source, str) and "\n" in path_or_source:
        module = source.parse(path_or_source.encode(), source.TEXT)
        return _of_module(module, Files(), _configuration(config, override))
    return _read(path_of(path_or_source, _HINT), Files(), config, override)


def _read(
    file: str,
    files: Files | None,
    config: str | PathLike[str] | None = None,
    override: Sequence[str] = (),
    module: Module | None = None,
) -> Reading:
    if Path(file).suffix.lower() not in CONFIGURATIONS:
        configuration = _configuration(config, override)
        module = module or parsed(file, with_modules=files is not None)
        return _of_module(module, files or Files(), configuration)
    if config is not None:
        other = path_of(config, _HINT)
        msg = f"{file} is a configuration itself, and was passed another, {other}.\n"
        raise ArgumentError(msg + f"Hint: ampbridge port train.py -c {file}")
    table, added = settings.overridden(file, override)
    reading = formats.read(table, file)
    return replace(reading, findings=(*reading.findings, *added))


def parsed(file: str, *, with_modules: bool = True) -> Module:
    """The tree of a script or notebook; without its path, modules that it imports are not found.

    Raises:
        SourceError: as ``read``.
    """
    path = Path(file).absolute() if with_modules else None
    data = source.load(file)
    if Path(file).suffix.lower() == notebooks.SUFFIX:
        return notebooks.parse(data, file, path)
    return source.parse(data, file, path)


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
                yield _outcome(str(file), partial(_read, str(file), None))


def _outcome(file: str, reads: Callable[[], Reading]) -> Outcome:
    try:
        return Outcome(file, reads())
    except SourceError as error:
        return Outcome(file, None, error)


# -- folders

_OF_EVALUATION = re.compile(r"(?:^|_)(?:eval|val|test|infer|predict|export|bench|demo)", re.I)


def _scripts(folder: Path) -> list[Path]:
    return sorted(found for pattern in SCRIPTS for found in folder.rglob(pattern))


def _of_folder(folder: Path, files: Files) -> list[Outcome]:
    """Programs before the modules that they import; a module that has been read with one is a part."""
    scripts = _scripts(folder)
    stems = {path.stem for path in scripts}
    imported: set[str] = set()
    modules = {p: files.module(p.absolute()) if p.suffix == ".py" else None for p in scripts}
    for module in filter(None, modules.values()):
        for node in module.nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [getattr(node, "module", "") or "", *(each.name for each in node.names)]
                imported |= {name.rpartition(".")[2] for name in names} & stems
    parts: set[str] = set()
    outcomes: list[Outcome] = []
    for path in sorted(scripts, key=lambda p: (p.stem in imported or p.stem == "__init__", p)):
        if shown(path.absolute()) in parts:
            outcomes.append(Outcome(str(path), Reading(str(path), None, (), ())))
            continue
        outcome = _outcome(str(path), partial(_read, str(path), files, module=modules[path]))
        if outcome.reading is not None and outcome.reading.framework is not None:
            parts |= files.read_with.get(shown(path.absolute()), frozenset())
        outcomes.append(outcome)
    return sorted(outcomes, key=_rank)


def _rank(outcome: Outcome) -> tuple[bool, bool, str]:
    """Trainings first, then what evaluates, then all without mixed precision."""
    reading = outcome.reading
    if reading is None or reading.framework is None:
        return (True, True, outcome.file)
    trains = reading.trains and not _OF_EVALUATION.search(Path(outcome.file).stem)
    return (False, not trains, outcome.file)


# -- scripts


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
        msg = f"The configuration {file!r} is no JSON, YAML or gin file.\n"
        raise ArgumentError(msg + "Hint: ampbridge port train.py -c config.yml")
    table, added = settings.overridden(file, override)
    return Configuration(file, table, added)


def _of_module(module: Module, files: Files, configuration: Configuration | None) -> Reading:
    with _uncollected():
        table = None if configuration is None else configuration.table
        config_file = "" if configuration is None else configuration.file
        search = Search(module, Finder(module, files), table, config_file)
        try:
            reading = search.read()
        except RecursionError:
            raise source.refused(module.file, "is nested too deeply to be followed") from None
        read_too = [each for run in search.runs[:1] for each in run.machine.modules.values()]
        ops = frozenset().union(*(used_ops(each.nodes) for each in (module, *read_too)))
        told = _not_read(search)
        files.read_with[module.file] = frozenset(e.file for e in read_too if e is not module)
        reading = replace(reading, ops=ops, findings=(*reading.findings, *told))
        if configuration is None:
            return reading
        used = any(run.machine.config_used for run in search.runs)
        alone = formats.read(configuration.table, configuration.file)
        reading = formats.joined(reading, alone, configuration.table)
        of_no_use = [] if used else [_is_of_no_use(module.file, configuration.file)]
        told = (*configuration.added, *(of_no_use if reading.framework is not None else ()))
        return replace(reading, findings=(*reading.findings, *told))


def _not_read(search: Search) -> tuple[Finding, ...]:
    """Of modules that the script imports, and that were too many to be read."""
    for path, why in search.finder.refused.items():
        if why == TOO_MUCH:
            message = "This module was not read: the script imports too many."
            return (Finding("unknown", Place(shown(path), 1, 0, ""), message, ASK_FOR_IT),)
    return ()


def _is_of_no_use(file: str, configuration: str) -> Finding:
    """What is to be told where a program comes to the same with a configuration and without."""
    message = (
        f"The recipe is the same without this file: it sets nothing of it, or where {file} loads "
        "it is not followed."
    )
    hint = "--set KEY=VALUE for what it sets"
    return Finding("note", Place(configuration, 1, 0, ""), message, hint)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's garbage collector, which would look through the whole tree again and again.

    Each call that is followed takes a dozen of Python's own.
    """
    collects, deepest = gc.isenabled(), sys.getrecursionlimit()
    gc.disable()
    sys.setrecursionlimit(max(deepest, DEEPEST))
    try:
        yield
    finally:
        sys.setrecursionlimit(deepest)
        if collects:
            gc.enable()
