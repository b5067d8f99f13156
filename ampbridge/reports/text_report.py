"""Reports of several tables, as text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TextIO


class TextReport(ABC):
    """A report of several tables; ``str`` is its plain form."""

    @abstractmethod
    def text(self, width: int | None) -> str:
        """The report, its tables folded to ``width`` columns; None for a line a row."""

    def print(self, file: TextIO) -> None:
        """Write it to ``file``."""
        from ampbridge.reports.printing import width_of  # by who prints, not by every import

        print(self.text(width_of(file)), file=file)

    def __str__(self) -> str:
        return self.text(None)
