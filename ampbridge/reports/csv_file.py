"""A CSV file that rows are appended to while training runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ampbridge.checkpoints import atomic_files
from ampbridge.errors import StateError, WriteError


class CsvFile:
    """Appends rows to a file. Each is one write, so that a run that is cut off leaves whole lines.

    Raises:
        StateError: for a file that has other columns.
        WriteError: if it cannot be written.
    """

    def __init__(self, path: str | PathLike[str], fields: Sequence[str]) -> None:
        self._path = Path(atomic_files.path_of(path, "amp.StepLog('run.csv')"))
        try:
            first = atomic_files.first_line(path) if self._path.exists() else b""
            if not first:
                self._append(fields)
        except OSError as error:
            raise self._not_written(error) from error
        if first and first != ",".join(fields).encode():
            msg = (
                f"{path} begins with {first[:60]!r}: it is not a log of steps.\n"
                "Hint: another path, or remove the file"
            )
            raise StateError(msg)

    def append(self, row: Sequence[Any]) -> None:
        """Add a line."""
        try:
            self._append(row)
        except OSError as error:
            raise self._not_written(error) from error

    def _append(self, values: Sequence[Any]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(values)
        atomic_files.append(self._path, line.getvalue())

    def _not_written(self, error: OSError) -> WriteError:
        return WriteError(
            f"The log {self._path!s:.200} cannot be written: {error.strerror or error}.\n"
            "Hint: a path in a folder that exists and that you may write to"
        )
