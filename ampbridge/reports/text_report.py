"""Reports as text: folded to a width, or a line a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TextIO

from ampbridge.errors.foreign_text import ShownInNotebooks
from ampbridge.reports.tables import WIDTH


class TextReport(ShownInNotebooks, ABC):
    """A report that prints as text; ``str`` has at most 80 columns."""

    @abstractmethod
    def text(self, width: int | None) -> str:
        """The report folded to ``width`` columns; None for a line a row, as long as they are."""

    def print(self, file: TextIO) -> None:
        """Write it to ``file``: folded to the width of a terminal, a line a row elsewhere."""
        print(self.text(width_of(file)), file=file)

    def __str__(self) -> str:
        return self.text(WIDTH)


def width_of(file: TextIO) -> int | None:
    """The columns of a terminal; None for a pipe or a file, where lines may be as long as they are."""
    if not file.isatty():
        return None
    from rich.console import Console  # a tenth of a second, for terminals alone

    return Console(file=file).width
