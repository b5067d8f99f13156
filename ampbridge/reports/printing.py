"""Tables: a line a row where they are piped, folded to the width of a terminal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from ampbridge.errors.foreign_text import ShownInNotebooks, printable
from ampbridge.reports.plain_data import plain_fields
from ampbridge.reports.tables import aligned, paragraph
from ampbridge.reports.text_report import TextReport


def print_text(text: str, file: TextIO) -> None:
    """Print the text of a file: byte for byte where it is piped, for the eye on a terminal."""
    shown = printable(text.replace("\r\n", "\n"), "\n\t") if file.isatty() else text
    print(shown, end="", file=file)


@dataclass(frozen=True)
class Table(TextReport):
    """Rows under a header, between a title and remarks; ``str`` has at most 80 columns.

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

    def text(self, width: int | None) -> str:
        parts = (self.title, *self.remarks)
        title, *remarks = (paragraph(part, width) for part in parts)
        rows = [aligned(self.header, self.rows, width)] if self.rows else []
        return "\n".join([*filter(None, [title]), *rows, *remarks])


class TabularReport(ShownInNotebooks, ABC):
    """A dataclass that prints as a table and converts to plain data; ``str`` has at most 80 columns."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; numbers that are infinite are None."""
        return plain_fields(self)

    @abstractmethod
    def table(self) -> Table:
        """All rows."""

    def short(self) -> Table:
        """What ``print`` shows: all rows, unless a report that may be long shows those that matter most."""
        return self.table()

    def print(self, file: TextIO) -> None:
        """Write it to ``file``."""
        self.short().print(file)

    def __str__(self) -> str:
        return str(self.short())


LONG = 20
"""Rows of a report that is still shown whole."""

SHORT = 10


def shortened(table: Table, order: Sequence[int], what: str) -> Table:
    """``table``, if it is long with only the first rows in ``order``, and a remark.

    Args:
        what: what puts the rows in this order.
    """
    if len(table.rows) <= LONG:
        return table
    remark = (
        f"The {SHORT} of {len(table.rows)} rows {what}. All rows: print(report.table()), or --all on "
        "the command line."
    )
    rows = tuple(table.rows[row] for row in order[:SHORT])
    return replace(table, rows=rows, remarks=(*table.remarks, remark))
