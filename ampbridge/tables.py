"""Tables: plain text where they are piped, rich ones on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class Table:
    """Rows under a header, between a title and remarks; ``str`` is its plain form."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = (self.title, aligned(self.header, self.rows) if self.rows else "")
        return "\n".join([*filter(None, parts), *self.remarks])

    def print(self, file: TextIO) -> None:
        """Write it to ``file``: wrapped and ruled on a terminal, elsewhere a line a row."""
        if not file.isatty():
            print(self, file=file)
            return
        from rich.console import Console  # a tenth of a second, for terminals alone
        from rich.table import Table as RichTable
        from rich.text import Text

        console = Console(file=file, highlight=False)
        console.print(Text(self.title, "bold"))
        if self.rows:
            table = RichTable(*self.header)
            for row in self.rows:
                table.add_row(*map(Text, row))
            console.print(table)
        for remark in self.remarks:
            console.print(Text(remark))


def aligned(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """``rows`` under ``header``, columns side by side and as wide as what they hold."""
    cells = [tuple(header), *map(tuple, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    cells.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


LONGEST_CELL = 96


def shortened(text: str) -> str:
    """``text``, or its beginning if a table would become too wide."""
    return text if len(text) <= LONGEST_CELL else text[:LONGEST_CELL] + "..."
