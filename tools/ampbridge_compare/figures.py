"""The figures of a comparison, drawn by matplotlib in a wide and in a narrow form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, log10
from textwrap import wrap
from typing import IO, Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ampbridge.errors.foreign_text import printable
from ampbridge_compare.comparison import Comparison, first_line
from ampbridge_compare.gradients import GradientError, ParameterError
from ampbridge_compare.op_matrix import shown
from ampbridge_compare.palette import INK, MUTED, RULE, SURFACE, THEME, Style, styles
from ampbridge_compare.result import WINDOW, distances
from ampbridge_compare.runs import Run
from ampbridge_lens.exponents import LARGEST, SMALLEST, SMALLEST_NORMAL, Exponents

ROUNDOFF = {"float16": -11, "bfloat16": -8, "float32": -24}
"""Half a unit in the last place of 1, as a power of two: what one rounding costs at most."""

TURNS = "Where lines lie on each other, their markers take turns."
SAME_SCALE = (
    "All runs have the same scale at every step: their lines lie on each other, and their markers take "
    "turns."
)

DOTS_PER_INCH = 150  # of a picture
CHARACTERS = 110  # of a line in a picture's heading

MOST_PARAMETERS = 24  # rows that a phone's reader scrolls through

SETTINGS: dict[Any, Any] = {
    "axes.edgecolor": RULE,
    "axes.facecolor": SURFACE,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.unicode_minus": True,
    "figure.facecolor": SURFACE,
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "ampbridge",  # the same figures are the same file
    "text.color": INK,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
}


class Look(NamedTuple):
    """A form of a figure: its width in inches, the size of its text in points."""

    name: str
    width: float
    text: float
    legend_columns: int

    @property
    def is_narrow(self) -> bool:
        return self.name == "narrow"


WIDE = Look("wide", 9.0, 9.0, 4)
NARROW = Look("narrow", 4.3, 10.5, 2)


@dataclass(frozen=True)
class Drawing:
    """A figure that can be drawn in each look.

    Attributes:
        name: for ids and files.
        title: what it shows.
        caption: how to read it.
        says: what is to be seen, for who does not see it.
        draw: draws it.
    """

    name: str
    title: str
    caption: str
    says: str
    draw: Callable[[Look], Figure]

    def save(self, look: Look, file: IO[bytes], kind: Literal["svg", "png"]) -> None:
        """Write the figure to ``file``, in the light colours."""
        sizes: dict[Any, Any] = {"font.size": look.text, "axes.titlesize": look.text + 1}
        sizes |= {"legend.fontsize": look.text, "axes.labelsize": look.text}
        sizes |= {"xtick.labelsize": look.text - 0.5, "ytick.labelsize": look.text - 0.5}
        undated: dict[str, Any] = {"Date": None} if kind == "svg" else {}
        with mpl.rc_context({**SETTINGS, **sizes}):
            self.draw(look).savefig(file, format=kind, metadata=undated, dpi=DOTS_PER_INCH)


def drawings(comparison: Comparison) -> list[Drawing]:
    """The figures for which there is something to draw."""
    runs = [run for run in comparison.shown if run.error is None]
    if not runs:
        return []
    makers = (_losses, _scales, _errors, _exponents)
    made = (make(comparison, runs, styles(runs)) for make in makers)
    return [drawing for drawing in made if drawing is not None]


# -- losses


def _losses(
    comparison: Comparison, runs: Sequence[Run], looks: Mapping[str, Style]
) -> Drawing | None:
    base = next(iter(comparison.by_recipe), None)
    others = [run for run in runs if base is not None and run is not base]

    def draw(look: Look) -> Figure:
        panels = 2 if others and base else 1
        figure, axes = _panels(look, heights=[1.25, 1.0][:panels], inch=2.5)
        _title(axes[0], "Loss of each step")
        for run in runs:
            _line(axes[0], run.steps.loss, looks[run.label])
        axes[0].set_ylabel("loss")
        if base and others:
            _title(axes[1], f"Distance from {base.label}")
            for run in others:
                _line(axes[1], _distance(run, base), looks[run.label])
            axes[1].set_yscale("log")
            axes[1].yaxis.set_major_formatter(FuncFormatter(_percent))
            axes[1].yaxis.set_major_locator(LogLocator(numticks=5))
            axes[1].yaxis.set_minor_locator(NullLocator())
            axes[1].set_ylabel("of the loss")
        _steps_axis(axes, comparison.steps)
        _legend(figure, runs, looks, look)
        return figure

    last = ", ".join(f"{run.label} {run.steps.loss[-1]:.4f}" for run in runs)
    caption = (
        "Above: the loss of each batch, before the step. A skipped step changes no weight, so that a run "
        f"that skips lags behind. {TURNS} "
    )
    if base and others:
        caption += (
            f"Below: how far each run's loss is from that of {base.label}, in percent, as a mean over "
            f"{WINDOW} steps; the axis is logarithmic."
        )
    return Drawing("losses", "Loss", caption, f"Losses of the last step: {last}.", draw)


def _distance(run: Run, base: Run) -> list[float]:
    """The distance of the losses in percent; NaN where it is zero, which has no place on this axis."""
    return [float(100 * each) if each > 0 else np.nan for each in distances(run, base)]


def _percent(value: float, _: object) -> str:
    """``0.1 %``, ``10⁻⁴ %``."""
    return f"{value:g} %" if value >= 0.01 else f"10{superscript(round(log10(value)))} %"


# -- loss scale and skips


def _scales(
    comparison: Comparison, runs: Sequence[Run], looks: Mapping[str, Style]
) -> Drawing | None:
    scaled = [run for run in runs if set(run.steps.scale) != {1.0} or run.steps.skipped]
    if not scaled:
        return None

    def draw(look: Look) -> Figure:
        lines = max(_wrapped(run.label, look).count("\n") + 1 for run in scaled)
        rows = max(0.12 * len(scaled) * lines * look.text / 9, 0.3)
        figure, axes = _panels(look, heights=[1.4, rows + 0.25], inch=2.0)
        _title(axes[0], "Loss scale")
        for run in scaled:
            exponents = np.log2(np.array(run.steps.scale))
            _line(axes[0], list(exponents), looks[run.label], steps=True)
        axes[0].set_ylabel("scale")
        axes[0].yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: power_of_two(value)))
        _title(axes[1], "Skipped steps")
        for row, run in enumerate(scaled):
            style = looks[run.label]
            axes[1].plot(
                run.steps.skipped,
                [row] * len(run.steps.skipped),
                linestyle="",
                marker=style.marker or "|",
                markersize=5,
                color=style.colour,
                markerfacecolor=style.colour if style.filled else SURFACE,
            )
        axes[1].set_yticks(range(len(scaled)), [_wrapped(run.label, look) for run in scaled])
        axes[1].set_ylim(len(scaled) - 0.5, -0.5)
        _steps_axis(axes, comparison.steps)
        _legend(figure, scaled, looks, look)
        return figure

    skips = ", ".join(f"{run.label} {len(run.steps.skipped)}" for run in scaled)
    same = len({run.steps.scale for run in scaled}) == 1 < len(scaled)
    return Drawing(
        "scales",
        "Loss scale and skipped steps",
        "Above: the factor that each step's loss was multiplied by. An overflow halves it, unless the "
        "recipe says otherwise, and the step is skipped: no weight changes. Enough good steps in a row "
        f"double it. {SAME_SCALE if same else TURNS} Below: a mark for each skipped step.",
        f"Skipped steps: {skips}.",
        draw,
    )


# -- gradient errors


def _errors(
    comparison: Comparison, runs: Sequence[Run], looks: Mapping[str, Style]
) -> Drawing | None:
    errors = [comparison.errors[run.label] for run in runs if run.label in comparison.errors]
    errors = [each for each in errors if looks[each.label].marker]
    if not errors:
        return None
    worst = _worst_of_rows(errors)
    shown = sorted(worst, key=lambda name: -worst[name])[:MOST_PARAMETERS]
    dtype = comparison.policy.compute_dtype
    unit = 2.0 ** ROUNDOFF[dtype]
    panels = _ErrorPanels(
        errors, [name for name in worst if name in shown], unit, _limits(errors, unit), runs, looks
    )
    totals = ", ".join(f"{each.label} {each.total:.1e}" for each in errors)
    return Drawing(
        "errors",
        "Gradient error",
        "Gradients of the first batch, without the loss scale, against float64 on NumPy (or, marked with "
        "*, the same framework's float32): the distance relative to the norm, on a "
        "logarithmic axis. The dashed "
        f"line is {dtype}'s unit roundoff, 2{superscript(ROUNDOFF[dtype])}: what one rounding costs at "
        f"most.{_left_out(errors, len(panels.names), len(worst))}",
        f"Errors of all parameters together: {totals}.",
        panels.draw,
    )


def _worst_of_rows(errors: Sequence[GradientError]) -> dict[str, float]:
    worst: dict[str, float] = {}
    for each in errors:
        for parameter in (p for p in each.parameters if not p.vanishes):
            row = _row_name(parameter)
            worst[row] = max(worst.get(row, 0.0), parameter.error)
    return worst


def _limits(errors: Sequence[GradientError], unit: float) -> tuple[float, float]:
    """The powers of ten between which all errors and ``unit`` lie."""
    values = [p.error for each in errors for p in each.parameters if not p.vanishes]
    values += [each.total for each in errors]
    finite = [value for value in values if np.isfinite(value) and value > 0]
    low, high = min([unit, *finite]), max([unit, *finite])
    return 10.0 ** floor(np.log10(low) - 0.15), 10.0 ** ceil(np.log10(high) + 0.35)


def _left_out(errors: Sequence[GradientError], drawn: int, known: int) -> str:
    vanishing = dict.fromkeys(_row_name(p) for e in errors for p in e.parameters if p.vanishes)
    text = ""
    if known > drawn:
        text += f" The {drawn} parameters with the largest errors; {known - drawn} are left out."
    if vanishing:
        text += f" Not drawn, as the exact gradient is zero: {', '.join(vanishing)}."
    return text


@dataclass(frozen=True)
class _ErrorPanels:
    """Above a bar for each run, below a row for each parameter."""

    errors: Sequence[GradientError]
    names: Sequence[str]
    unit: float
    limits: tuple[float, float]
    runs: Sequence[Run]
    looks: Mapping[str, Style]

    def draw(self, look: Look) -> Figure:
        line = look.text / 72 * 1.75
        lines = max(_wrapped(each.label, look).count("\n") + 1 for each in self.errors)
        heights = [line * (len(self.errors) * lines + 2), line * (len(self.names) + 3)]
        figure, (above, below) = _panels(look, heights=heights, inch=1.0)
        self._totals(above, look)
        self._parameters(below, look)
        for axes in (above, below):
            axes.set_xscale("log")
            axes.set_xlim(*self.limits)
            axes.axvline(self.unit, color=INK, linewidth=1.0, linestyle=(0, (3, 2)))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.grid(False, axis="y")
        above.tick_params(labelbottom=False)
        drawn = {each.label for each in self.errors}
        _legend(figure, [run for run in self.runs if run.label in drawn], self.looks, look)
        return figure

    def _totals(self, axes: Axes, look: Look) -> None:
        _title(axes, "All together")
        for row, each in enumerate(self.errors):
            style = self.looks[each.label]
            end = each.total if np.isfinite(each.total) else self.limits[1]
            axes.barh(
                row,
                end - self.limits[0],
                left=self.limits[0],
                height=0.6,
                color=style.colour if style.filled else SURFACE,
                edgecolor=style.colour,
                linewidth=1.4,
            )
            beside = axes.get_yaxis_transform()
            axes.text(1.01, row, f"{each.total:.1e}", va="center", color=INK, transform=beside)
        _rows(axes, [each.label for each in self.errors], look)

    def _parameters(self, axes: Axes, look: Look) -> None:
        _title(axes, "Each parameter")
        # Marks that would coincide stand side by side.
        for each, aside in zip(self.errors, _aside(len(self.errors)), strict=True):
            style = self.looks[each.label]
            at = {_row_name(p): p.error for p in each.parameters}
            rows = [row for row, name in enumerate(self.names) if np.isfinite(at.get(name, np.inf))]
            axes.plot(
                [max(at[self.names[row]], self.limits[0]) for row in rows],
                [row + aside for row in rows],
                linestyle="",
                marker=style.marker,
                markersize=5,
                color=style.colour,
                markerfacecolor=style.colour if style.filled else "none",
                alpha=0.9,
            )
        _rows(axes, self.names, look)
        axes.set_xlabel("relative error")


def _rows(axes: Axes, labels: Sequence[str], look: Look) -> None:
    """A row for each label, from top to bottom."""
    axes.set_yticks(range(len(labels)), [_wrapped(label, look) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)


def _aside(count: int) -> list[float]:
    """A place for each of ``count`` marks around the middle of a row of height 1."""
    return [0.0] if count == 1 else [float(place) for place in np.linspace(-0.3, 0.3, count)]


def _row_name(parameter: ParameterError) -> str:
    return parameter.partner + ("" if parameter.against == "float64" else " *")


# -- exponents


def _exponents(
    comparison: Comparison, runs: Sequence[Run], looks: Mapping[str, Style]
) -> Drawing | None:
    found = comparison.exponents
    if not any(each.bins for each in found.values()):
        return None
    scale = comparison.scale
    shifts = [(0, "Without a loss scale")]
    if scale is not None and scale != 1.0:
        shift = round(log2(scale))
        shifts.append((shift, f"Times {power_of_two(shift)}, the recipe's first loss scale"))
    bins = [e + shift for each in found.values() for e in each.bins for shift, _ in shifts]
    limits = min(-40, *bins) - 1, max(24, *bins) + 1

    def draw(look: Look) -> Figure:
        figure, axes = _panels(look, heights=[1.0] * len(shifts), inch=2.3)
        for panel, (shift, title) in zip(axes, shifts, strict=True):
            _title(panel, title)
            _histogram(panel, found, shift, looks, limits)
            _bands(panel, limits, look)
            panel.set_ylabel("share of gradients")
        axes[-1].set_xlabel("magnitude, by its power of two")
        _legend(figure, [run for run in runs if run.label in found], looks, look)
        return figure

    facts = "; ".join(
        f"{label}: {_lost(each, shift)} {'without scale' if not shift else 'scaled'}"
        for label, each in found.items()
        for shift, _ in shifts
    )
    zeros = ", ".join(
        f"{label} {each.zeros / each.total:.1%}" for label, each in found.items() if each.total
    )
    return Drawing(
        "exponents",
        "Exponents of the gradients",
        "The float32 gradients of the first batch, each counted at its power of two, over what float16 "
        "makes of such a number: zero below 2⁻²⁵, subnormal (fewer digits) below 2⁻¹⁴, infinity above "
        f"65504. A loss scale moves all of them to the right. Exact zeros are not drawn: {zeros}.",
        f"In float16: {facts}.",
        draw,
    )


def _lost(exponents: Exponents, shift: int) -> str:
    moved = exponents.shifted(shift)
    return (
        f"{moved.flushed:.1%} flushed to zero, {moved.subnormal:.1%} subnormal, "
        f"{moved.overflowing:.1%} overflowing"
    )


def _histogram(
    axes: Axes,
    found: Mapping[str, Exponents],
    shift: int,
    looks: Mapping[str, Style],
    limits: tuple[int, int],
) -> None:
    edges = list(range(limits[0], limits[1] + 1))
    for label, each in found.items():
        moved = each.shifted(shift)
        share = [moved.bins[e].values / moved.total if e in moved.bins else 0.0 for e in edges]
        style = looks[label]
        axes.step(
            edges,
            np.array(share) * 100,
            where="post",
            color=style.colour,
            linestyle=style.dashes,
            linewidth=style.width,
        )
    axes.set_xlim(limits[0], limits[1])
    axes.set_ylim(0, axes.get_ylim()[1] * 1.25)  # room for the names of the bands
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    ticks = [-48, -40, -32, -24, -14, 0, 16, 24, 32]
    axes.set_xticks([t for t in ticks if limits[0] <= t <= limits[1]])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: power_of_two(value)))
    axes.grid(False, axis="x")


def _bands(axes: Axes, limits: tuple[int, int], look: Look) -> None:
    """float16's range, drawn in behind the values and named above them."""
    bands = (
        (limits[0], SMALLEST - 1, "band-lost", "zero"),
        (
            SMALLEST - 1,
            SMALLEST_NORMAL,
            "band-coarse",
            "sub-\nnormal" if look.is_narrow else "subnormal",
        ),
        (SMALLEST_NORMAL, LARGEST + 1, "band-kept", "normal"),
        (LARGEST + 1, limits[1], "band-lost", "infinity" if not look.is_narrow else "inf"),
    )
    top = axes.get_ylim()[1]
    for begin, end, colour, name in bands:
        axes.axvspan(begin, end, color=THEME[colour][0], linewidth=0, zorder=0)
        axes.axvline(end, color=MUTED, linewidth=0.8, zorder=1)
        axes.text((begin + end) / 2, top * 0.97, name, ha="center", va="top", color=INK)


# -- common


def _panels(look: Look, heights: Sequence[float], inch: float) -> tuple[Figure, list[Axes]]:
    """A figure of panels below each other, ``heights`` in units of ``inch`` inches."""
    figure = Figure(figsize=(look.width, sum(heights) * inch + 1.2), layout="constrained")
    grid = figure.add_gridspec(len(heights), 1, height_ratios=list(heights))
    return figure, [figure.add_subplot(grid[i]) for i in range(len(heights))]


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left")


def _line(axes: Axes, values: Sequence[float], style: Style, *, steps: bool = False) -> None:
    numbers = np.arange(1, len(values) + 1)
    axes.plot(
        numbers,
        values,
        drawstyle="steps-mid" if steps else "default",
        color=style.colour,
        linestyle=style.dashes,
        linewidth=style.width,
    )
    if style.marker:
        every = max(len(values) // 8, 1)
        axes.plot(
            numbers,
            values,
            linestyle="",
            markevery=(int(style.turn * every), every),
            zorder=3,  # above all lines
            **_marker(style),
        )


def _marker(style: Style) -> dict[str, Any]:
    """With an edge, so that it is seen on lines of its own colour."""
    return {
        "marker": style.marker,
        "markersize": 7,
        "markerfacecolor": style.colour if style.filled else SURFACE,
        "markeredgecolor": SURFACE if style.filled else style.colour,
        "markeredgewidth": 1.0,
    }


def _steps_axis(axes: Sequence[Axes], steps: int) -> None:
    """One axis of steps for all panels, named below the last."""
    for panel in axes:
        panel.set_xlim(0.5, steps + 0.5)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
        if panel is not axes[-1]:
            panel.tick_params(labelbottom=False)
    axes[-1].set_xlabel("training step")


def _legend(figure: Figure, runs: Sequence[Run], looks: Mapping[str, Style], look: Look) -> None:
    handles = [_sample(looks[run.label]) for run in runs]
    figure.legend(
        handles,
        [_wrapped(run.label, look) for run in runs],
        loc="outside upper left",
        ncols=min(look.legend_columns, len(runs)),
        handlelength=3.2,
    )


def _sample(style: Style) -> Line2D:
    return Line2D(
        [],
        [],
        color=style.colour,
        linestyle=style.dashes,
        linewidth=min(style.width, 2.2),
        **(_marker(style) if style.marker else {}),
    )


def _wrapped(label: str, look: Look) -> str:
    """``label``, broken where a narrow figure would have no room beside it."""
    label = _verbatim(label)
    return label.replace(", ", ",\n") if look.is_narrow else label


SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def superscript(exponent: int) -> str:
    """``⁻²⁴``."""
    return str(exponent).translate(SUPERSCRIPTS)


def power_of_two(exponent: float) -> str:
    """``2⁻²⁴``."""
    return f"2{superscript(round(exponent))}"


# -- for pictures without a page around them


def heading(comparison: Comparison) -> Drawing:
    """What is compared, the result, and the ops that differ, as a figure."""
    matrix = comparison.matrix
    lines = [
        f"{op}: "
        + ", ".join(f"{shown(cell)} in {run}" for run, cell in matrix.cells[op].items() if cell)
        for op in matrix.differences
    ]
    lines += [f"{run.label}: failed. {first_line(run.error or '')}" for run in comparison.failed]
    result = [line for said in comparison.result for line in wrap(said, CHARACTERS)]
    lines = [_verbatim(line) for line in (*result, *map(_shortened, lines))]
    says = f"{comparison.policy!r}: {_verbatim(comparison.workload)}, {comparison.steps} steps"

    def draw(look: Look) -> Figure:
        inch = look.text * 1.6 / 72
        figure = Figure(figsize=(look.width, inch * (len(lines) + 2.5)))
        height = len(lines) + 2.5
        figure.text(0.02, 1 - 1 / height, says, weight="bold", va="top", size=look.text + 2)
        for i, line in enumerate(lines):
            figure.text(0.02, 1 - (i + 2.3) / height, line, va="top", color=MUTED)
        return figure

    return Drawing("heading", "What is compared", "", says, draw)


def _verbatim(text: str) -> str:
    """Foreign text as it is: dollars begin no formula, control characters are escaped."""
    return printable(text, "").replace("$", r"\$")


def _shortened(line: str) -> str:
    return line if len(line) <= CHARACTERS else line[:CHARACTERS] + "..."
