"""Foreign text in messages, tables and files: escaped, on one line, cut short."""

from __future__ import annotations


def printable(text: str, kept: str = "\n") -> str:
    """``text`` with its control characters escaped, so that foreign text does not steer a terminal.

    Those in ``kept`` are left as they are.
    """
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


def on_one_line(text: str) -> str:
    """Foreign text as a comment of a program or a file: nothing of it leads to another line."""
    return " ".join(printable(text).split())


LONGEST_CELL = 96


def shortened(text: str) -> str:
    """``text``, or its beginning if a table would become too wide."""
    return text if len(text) <= LONGEST_CELL else text[:LONGEST_CELL] + "..."


class ShownInNotebooks:
    """What is printed in several lines, and so is shown where a notebook's cell ends with it."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from html import escape  # of use in notebooks alone

        return f"<pre>{escape(str(self))}</pre>"
