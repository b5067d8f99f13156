"""Tables as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def aligned(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """``rows`` under ``header``, columns side by side and as wide as what they hold."""
    cells = [tuple(header), *map(tuple, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    cells.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )
