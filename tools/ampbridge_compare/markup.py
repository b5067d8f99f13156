"""What both pages are made with: escaped text, the style sheet."""

from __future__ import annotations

import html
from importlib.resources import files

from ampbridge.errors.foreign_text import printable
from ampbridge_compare.palette import THEME


def escape(text: str) -> str:
    """Foreign text to stand in the page or in a double-quoted attribute, control characters escaped, too."""
    return html.escape(printable(text))


def style() -> str:
    """The style sheet with the colours of both themes."""
    themes = {
        mark: "\n".join(f"  --{name}: {colours[i]};" for name, colours in THEME.items())
        for i, mark in enumerate(("@LIGHT@", "@DARK@"))
    }
    sheet = files("ampbridge_compare").joinpath("page.css").read_text(encoding="utf-8")
    for mark, colours in themes.items():
        sheet = sheet.replace(mark, colours)
    return sheet
