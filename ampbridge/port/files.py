"""Reads one file or many. A file that cannot be read does not stop the others."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from ampbridge.errors import SourceError
from ampbridge.port import python, source
from ampbridge.port.interpreter.following import Exhausted
from ampbridge.port.reading import Reading

CONFIGURATIONS = frozenset({".json", ".yaml", ".yml"})
TEXT = "<source>"
"""The name, in places and messages, of a source that was passed as text."""


@dataclass(frozen=True)
class Outcome:
    """The result for a file: its reading, or the error."""

    file: str
    reading: Reading | None
    error: SourceError | None = None


def read(path_or_source: str | PathLike[str]) -> Reading:
    """Read the mixed-precision settings of a script or configuration file, without running it.

        reading = amp.port.read("train.py")
        reading.recipe.save("recipe.toml", comments=reading.alternatives[0].comments)

    Args:
        path_or_source: a file (``.py``, or DeepSpeed's, Accelerate's, ... JSON and YAML), or Python
            source as a text of several lines.

    Raises:
        SourceError: if it cannot be read: the file does not exist, is not text, is not Python 3, is
            too large or too deeply nested; or if LibCST or PyYAML is not installed.
    """
    if isinstance(path_or_source, str) and "\n" in path_or_source:
        return _read_python(path_or_source.encode(), TEXT)
    file = fspath(path_or_source)
    if Path(file).suffix.lower() in CONFIGURATIONS:
        from ampbridge.port.configs import read_config

        return read_config(source.decoded(source.load(file), file), file)
    return _read_python(source.load(file), file)


def parsed(path_or_source: str | PathLike[str]) -> source.Source:
    """The tree of a Python file, or of source passed as text.

    Raises:
        SourceError: as ``read``.
    """
    if isinstance(path_or_source, str) and "\n" in path_or_source:
        return source.parse(path_or_source.encode(), TEXT)
    file = fspath(path_or_source)
    return source.parse(source.load(file), file)


def read_many(paths: Iterable[str | PathLike[str]]) -> Iterator[Outcome]:
    """``read`` for each file, and for each ``.py`` file under a folder, in order."""
    for path in paths:
        for file in _files(Path(path)):
            try:
                yield Outcome(str(file), read(file))
            except SourceError as error:
                yield Outcome(str(file), None, error)


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _read_python(data: bytes, file: str) -> Reading:
    if not python.concerns(data):
        source.check(data, file)
        return Reading(file, None, (), ())
    with _uncollected():
        parsed = source.parse(data, file)
        try:
            return python.read_module(parsed)
        except RecursionError as error:
            raise source.too_deep(file) from error
        except Exhausted as error:
            raise source.too_long(file) from error


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
