"""Tables: plain text where they are piped, rich ones on a terminal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TextIO

from ampbridge.errors.foreign_text import printable
from ampbridge.reports.plain_data import plain_fields
from ampbridge.reports.tables import aligned


def print_text(text: str, file: TextIO) -> None:
    """Print the text of a file: byte for byte where it is piped, for the eye on a terminal."""
    shown = printable(text.replace("\r\n", "\n"), "\n\t") if file.isatty() else text
    print(shown, end="", file=file)


@dataclass(frozen=True)
class Table:
    """Rows under a header, between a title and remarks; ``str`` is its plain form.

    Control characters of what it shows are escaped.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shown = {
            "title": printable(self.title),
            "header": tuple(map(printable, self.header)),
            "rows": tuple(tuple(map(printable, row)) for row in self.rows),
            "remarks": tuple(map(printable, self.remarks)),
        }
        vars(self).update(shown)  # it is frozen

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


class TabularReport(ABC):
    """A dataclass that prints as a table and converts to plain data; ``str`` is its plain form."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; numbers that are infinite are None."""
        return plain_fields(self)

    @abstractmethod
    def table(self) -> Table:
        """As it is printed."""

    def print(self, file: TextIO) -> None:
        """Write it to ``file``."""
        self.table().print(file)

    def __str__(self) -> str:
        return str(self.table())
