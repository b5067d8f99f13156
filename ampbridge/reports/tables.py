"""Tables and sentences as plain text, folded to a width."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from textwrap import wrap

Row = Sequence[str]

WIDTH = 80
"""Columns of what is printed where no terminal tells its own."""

_WORD = re.compile(r"\S+\s*")
_LONG_NAME = 12
_PART_OF_NAME = re.compile(r".+?(?:[./_:,=](?=[^\W\d])|$)")
"""Up to a separator within a dotted name, path or list; dtypes and numbers have none."""


def aligned(header: Row, rows: Iterable[Row], width: int | None = None) -> str:
    """``rows`` under ``header``, columns side by side and as wide as what they hold.

    Args:
        width: of the terminal. If the table is wider, its widest columns are folded between words and
            parts of names: a dtype or a number stays whole, and nothing is left out.
    """
    cells = [tuple(header), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    gap = 2
    if width is not None and _total(widths, gap) > width:
        least = [max(map(_longest_part, column)) for column in zip(*cells, strict=True)]
        gap = 2 if _total(least, 2) <= width else 1
        _narrow(widths, least, _total(widths, gap) - width)
    heading, *content = [_lines(row, widths, gap) for row in cells]
    rule = _line(["-" * each for each in widths], widths, gap)
    return "\n".join([*heading, rule, *(line for row in content for line in row)])


def paragraph(text: str, width: int | None) -> str:
    """``text``, each of its lines folded between words if there is a ``width``."""
    if width is None:
        return text
    lines = text.split("\n")
    folded = (
        wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""] for line in lines
    )
    return "\n".join(line for each in folded for line in each)


def _total(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _narrow(widths: list[int], least: Sequence[int], excess: int) -> None:
    """Take ``excess`` from ``widths``, always from the widest that can give."""
    columns = range(len(widths))
    while excess > 0:
        giving = [column for column in columns if widths[column] > least[column]]
        if not giving:
            return
        widest = max(giving, key=widths.__getitem__)
        widths[widest] -= 1
        excess -= 1


def _parts(cell: str) -> list[str]:
    """Where a cell may be folded: after words, and within long names."""
    return [
        part
        for word in _WORD.findall(cell)
        for part in (_PART_OF_NAME.findall(word) if len(word.rstrip()) > _LONG_NAME else [word])
    ]


def _longest_part(cell: str) -> int:
    return max((len(part.rstrip()) for part in _parts(cell)), default=0)


def _folded(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    lines = [""]
    for part in _parts(cell):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]


def _lines(row: Row, widths: Sequence[int], gap: int) -> list[str]:
    folded = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
    return [_line(cells, widths, gap) for cells in zip_longest(*folded, fillvalue="")]


def _line(cells: Row, widths: Sequence[int], gap: int) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return (" " * gap).join(padded).rstrip()
