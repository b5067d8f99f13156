"""Colours, markers and dashes: Okabe and Ito's palette, and never a colour alone.

A figure is drawn once, in the light colours. On the page each of them is a CSS variable, which the
dark theme sets to another value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ampbridge_compare.runs import Run

# CSS variable -> its value in the light and in the dark theme. No two light values are equal: a figure's
# colours are found by them.
THEME: Mapping[str, tuple[str, str]] = {
    "surface": ("#ffffff", "#15181c"),
    "ink": ("#1b1f24", "#e8eaed"),
    "muted": ("#59626c", "#a3abb5"),
    "rule": ("#d3d8de", "#3b424b"),
    "band-lost": ("#f6dccb", "#4a2a17"),
    "band-coarse": ("#fbf0d2", "#413818"),
    "band-kept": ("#e2f0ea", "#173a2e"),
    "run-1": ("#0072b2", "#56b4e9"),
    "run-2": ("#d55e00", "#f0883e"),
    "run-3": ("#00845f", "#2fc79a"),
    "run-4": ("#b0568c", "#e09cc3"),
    "run-5": ("#4c3600", "#f0e442"),
}
INK, MUTED, RULE, SURFACE = (THEME[name][0] for name in ("ink", "muted", "rule", "surface"))
COLOURS = tuple(light for name, (light, _) in THEME.items() if name.startswith("run-"))
MARKERS = ("o", "s", "^", "D", "v")
DASHES: Sequence[tuple[float, tuple[float, ...]]] = (
    (0, ()),
    (0, (6, 2)),
    (0, (2, 1.5)),
    (0, (7, 2, 1.5, 2)),
    (0, (4, 1.5, 1.5, 1.5, 1.5, 1.5)),
)


class Style(NamedTuple):
    """How a run is drawn in every figure.

    Of lines that lie on each other each is seen: the widest is drawn first, and their markers take turns.

    Attributes:
        width: in points.
        turn: the place of the line's markers between two markers of the first line, from 0 to 1.
    """

    colour: str
    marker: str
    dashes: tuple[float, tuple[float, ...]]
    filled: bool
    width: float
    turn: float


def styles(runs: Sequence[Run]) -> dict[str, Style]:
    """By label: a colour and a marker for each backend; a framework's own way has hollow markers."""
    marked = [run for run in runs if run.kind != "reference"]
    names = list(dict.fromkeys(run.backend for run in marked))
    turns = {run.label: turn / len(marked) for turn, run in enumerate(marked)}
    return {
        run.label: _style(run, names, turns[run.label]) if run.label in turns else REFERENCE
        for run in runs
    }


REFERENCE = Style(MUTED, "", (0, (1, 1)), True, 1.6, 0.0)


def _style(run: Run, names: Sequence[str], turn: float) -> Style:
    at = names.index(run.backend)
    i = at % len(COLOURS)
    own = run.kind == "native"
    width = 1.4 if own else max(5.0 - 0.9 * at, 1.4)
    return Style(COLOURS[i], MARKERS[i], DASHES[i], not own, width, turn)
