"""The page of a comparison: one file of HTML that loads nothing."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from functools import cache

from ampbridge_compare.comparison import HEADER, Comparison, row_of
from ampbridge_compare.figures import NARROW, WIDE, Drawing, Look, drawings
from ampbridge_compare.markup import escape, style
from ampbridge_compare.op_matrix import shown
from ampbridge_compare.palette import THEME
from ampbridge_compare.result import power
from ampbridge_compare.runs import Run

TITLE = "Mixed precision, framework by framework"


def page(comparison: Comparison) -> str:
    """The whole page."""
    figures = {drawing.name: drawing for drawing in drawings(comparison)}
    sections = [
        ("summary", "In one table", _summary(comparison)),
        ("losses", "Loss", _figure(figures, "losses", "No run has a loss to show.")),
        (
            "scales",
            "Loss scale and skipped steps",
            _figure(figures, "scales", _unscaled(comparison)),
        ),
        ("ops", "Which op ran in which dtype", _ops(comparison)),
        ("errors", "Gradient error", _figure(figures, "errors", NOT_SEEN)),
        ("exponents", "How large the gradients are", _figure(figures, "exponents", NOT_SEEN)),
        ("lists", "Default lists beside the recipe's", _lists(comparison)),
        ("recipe", "The recipe", _recipe(comparison)),
        ("made", "How this was made", _made(comparison)),
    ]
    links = "".join(
        f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title, _ in sections
    )
    body = "\n".join(
        f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>\n{content}\n</section>'
        for name, title, content in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="ampbridge">
<link rel="icon" href="data:,">
<title>{escape(_heading(comparison))}</title>
<style>
{style()}
</style>
</head>
<body>
<a class="skip" href="#summary">Skip to the results</a>
<header>
<h1>{TITLE}</h1>
<p class="result">{"<br>".join(map(escape, comparison.result))}</p>
<p class="lead">{_lead(comparison)}</p>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main>
{body}
</main>
</body>
</html>
"""


NOT_SEEN = "No backend showed its gradients."


def _heading(comparison: Comparison) -> str:
    return f"{comparison.workload} under {comparison.policy}: {TITLE.lower()}"


def _lead(comparison: Comparison) -> str:
    names = dict.fromkeys(run.backend for run in comparison.runs)
    steps = f"{comparison.steps} training step{'s' * (comparison.steps != 1)}"
    return (
        f"<code>{escape(comparison.workload)}</code> under <code>{escape(repr(comparison.policy))}</code> on "
        f"{escape(', '.join(names))}: {steps} from the same weights, on the same data."
    )


def _unscaled(comparison: Comparison) -> str:
    if comparison.scale is None:
        return "This recipe needs no loss scale, and no step was skipped."
    return "No run has a loss scale to show."


# -- tables


def _table(
    name: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    says: str,
    numbers: frozenset[str] = frozenset(),
    *,
    as_cards: bool = False,
) -> str:
    """A table below what it says.

    ``rows`` are cells of HTML, the first the row's heading. With ``as_cards`` a row becomes a card
    where the page is narrow; else the table can be scrolled there.
    """
    heads = "".join(
        f'<th scope="col" role="columnheader"{_is_number(column, numbers)}>{escape(column)}</th>'
        for column in header
    )
    identity = re.sub(r"\W+", "-", name.lower())
    kind = "cards" if as_cards else "scroll"
    focus = "" if as_cards else f' tabindex="0" role="region" aria-label="{escape(name)}"'
    return (
        f'<p id="{identity}-says" class="says">{says}</p>\n<div class="{kind}"{focus}>'
        f'<table role="table" aria-describedby="{identity}-says"><caption>{escape(name)}</caption>\n'
        f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead>\n<tbody role="rowgroup">\n'
        + "\n".join(f'<tr role="row">{"".join(row)}</tr>' for row in rows)
        + "\n</tbody></table></div>"
    )


def _heading_cell(text: str) -> str:
    return f'<th scope="row" role="rowheader">{text}</th>'


def _cell(column: str, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<td role="cell" data-column="{escape(column)}"{named}><span>{text}</span></td>'


def _is_number(name: str, numbers: frozenset[str]) -> str:
    return ' class="number"' if name in numbers else ""


NUMBERS = frozenset(
    {"first loss", "last loss", "accuracy", "skipped", "last scale", "gradient error"}
)

SUMMARY = (
    "A row a run. Loss: of the first and of the last batch. Accuracy: on digits that were not learned "
    "from, or as the workload has it. Skipped: steps that overflowed. Gradient error: of the first batch "
    "against float64, relative to its norm. Low precision: by native kernels, simulated by float32 "
    "kernels with rounding, or none."
)


def _summary(comparison: Comparison) -> str:
    rows = [_summary_row(comparison, run) for run in comparison.shown]
    notes = "".join(f"<li>{escape(remark)}</li>" for remark in comparison.remarks())
    listed = f"<h3>What to know of these figures</h3><ul>{notes}</ul>" if notes else ""
    return _table("Runs", HEADER, rows, SUMMARY, NUMBERS, as_cards=True) + listed


def _summary_row(comparison: Comparison, run: Run) -> list[str]:
    if run.error is not None:
        what = escape(run.error).replace("\n", "<br>")
        failed = f'<td role="cell" class="failed" colspan="{len(HEADER) - 1}">Failed: {what}</td>'
        return [_heading_cell(escape(run.label)), failed]
    cells = zip(HEADER[1:], row_of(run, comparison.errors.get(run.label))[1:], strict=True)
    return [
        _heading_cell(escape(run.label)),
        *(
            _cell(column, _powers(text) or _NONE, "number" if column in NUMBERS else "")
            for column, text in cells
        ),
    ]


_NONE = '<span class="nothing">–</span>'


def _powers(text: str) -> str:
    """``2^16`` and ``4.0e-04`` as they are set."""
    text = re.sub(r"\^(-?\d+)", r"<sup>\1</sup>", escape(text))
    return re.sub(
        r"e([+-]\d+)", lambda found: f"&thinsp;×&thinsp;10<sup>{int(found[1])}</sup>", text
    ).replace("<sup>-", "<sup>−")


def _ops(comparison: Comparison) -> str:
    matrix = comparison.matrix
    unseen = "".join(
        f"<li>{escape(label)}: not observed here. {escape(why)}</li>"
        for label, why in matrix.not_observed.items()
    )
    unseen = f"<ul>{unseen}</ul>" if unseen else ""
    if not matrix.columns:
        return f"<p>No backend was observed.</p>{unseen}"
    rows = [
        [
            _heading_cell(_op(op)),
            *(
                _cell(label, escape(shown(row[label])), _differing(matrix.differs(op), row[label]))
                for label in matrix.columns
            ),
        ]
        for op, row in matrix.cells.items()
    ]
    says = (
        f"Ops of one forward pass in the order of their first calls, under "
        f"<code>{escape(repr(comparison.policy))}</code>. {_how_many_differ(comparison)} A dash: this "
        "framework did not call the op, or not by itself."
    )
    return _table("Ops and dtypes", ("op", *matrix.columns), rows, says) + unseen


def _op(name: str) -> str:
    """An op's name, that may be broken where it is long."""
    return f"<code>{escape(name).replace('_', '_<wbr>')}</code>"


def _differing(differs: bool, cell: object) -> str:
    return "differs" if differs and cell else ""


def _how_many_differ(comparison: Comparison) -> str:
    matrix = comparison.matrix
    if len(matrix.columns) < 2:
        return "There is no other framework to compare it with."
    if not matrix.differences:
        return "No op differs between the frameworks that ran it."
    return (
        f"Rows with ≠ differ between the frameworks: {len(matrix.differences)} of "
        f"{len(matrix.cells)} ops."
    )


def _lists(comparison: Comparison) -> str:
    lists = comparison.lists
    if len(lists.columns) < 2:
        return "<p>There are no lists to compare: float32 has none, and NumPy has no defaults of its own.</p>"
    if not lists.rules:
        return "<p>All of them have the same rule for every op.</p>"
    used = [op for op in lists.rules if op in lists.used]
    others = [op for op in lists.rules if op not in lists.used]
    parts = []
    if used:
        parts.append(_rules(comparison, used, "Lists, ops of this model"))
    elif lists.used:
        parts.append("<p>The lists agree on every op that this model was seen to run.</p>")
    if others:
        table = _rules(comparison, others, "Lists, other ops")
        head = f"{len(others)} other ops on which the lists do not agree"
        parts.append(f"<details><summary>{head}</summary>{table}</details>")
    return "".join(parts)


def _rules(comparison: Comparison, ops: Sequence[str], name: str) -> str:
    columns = comparison.lists.columns
    header = ("op", *(name if name == "the recipe" else f"{name}'s own" for name in columns))
    rows = []
    for op in ops:
        rule = comparison.lists.rules[op]
        cells = (
            _cell(column, escape(rule[name]), _unlike(rule[columns[0]], rule[name]))
            for column, name in zip(header[1:], columns, strict=True)
        )
        rows.append([_heading_cell(_op(op)), *cells])
    says = (
        "allow: low precision; deny: float32; promote: the widest dtype of the inputs. In parentheses the "
        "rule for what is on no list: follow, the inputs' dtypes; full, float32. Marked with ≠: another "
        f"rule than in the column “{escape(header[1])}”."
    )
    return _table(name, header, rows, says)


def _unlike(usual: str, rule: str) -> str:
    """Whether another thing becomes of the op; what is promoted and what follows its inputs is alike."""
    meant = {"(promote)": "promote", "(follow)": "promote", "(full)": "deny"}
    return "" if meant.get(usual, usual) == meant.get(rule, rule) else "differs"


def _recipe(comparison: Comparison) -> str:
    text = escape(comparison.recipe.to_toml())
    return f"<pre><code>{text}</code></pre>"


MADE_OF = ("run", "made of", "versions", "device")


def _made(comparison: Comparison) -> str:
    rows = []
    for run in comparison.shown:
        if run.error is None:
            said = ", ".join(f"{name} {version}" for name, version in run.versions.items())
            cells = zip(MADE_OF[1:], (run.described, said, run.device), strict=True)
            rows.append(
                [
                    _heading_cell(escape(run.label)),
                    *(_cell(column, escape(text)) for column, text in cells),
                ]
            )
    says = (
        f"Each framework ran in a process of its own: {comparison.steps} steps of "
        f"<code>{escape(comparison.workload)}</code>, seed {comparison.seed}. Ops and gradients are those "
        f"of the first batch under <code>{escape(repr(comparison.policy))}</code>"
        f"{_scales_of(comparison)}. Times are not compared: they would be the machine's."
    )
    return _table("What ran", MADE_OF, rows, says, as_cards=True)


def _scales_of(comparison: Comparison) -> str:
    scales = {label: each.scale for label, each in comparison.errors.items() if each.scale != 1.0}
    if not scales:
        return ""
    said = "; ".join(f"{escape(label)}: {_powers(power(scale))}" for label, scale in scales.items())
    return f", at the first loss scale that did not overflow, from the recipe's downwards ({said})"


# -- figures


def _figure(figures: dict[str, Drawing], name: str, otherwise: str) -> str:
    if name not in figures:
        return f"<p>{escape(otherwise)}</p>"
    drawing = figures[name]
    drawn = "\n".join(svg(drawing, look) for look in (WIDE, NARROW))
    return f"<figure>\n{drawn}\n<figcaption>{escape(drawing.caption)}</figcaption>\n</figure>"


def svg(drawing: Drawing, look: Look) -> str:
    """The figure as SVG to stand in a page: its text is text, its colours are the page's."""
    file = io.BytesIO()
    drawing.save(look, file, "svg")
    text = file.getvalue().decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    prefix = f"{drawing.name}-{look.name}-"  # ids are those of a page
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    text = re.sub(r"url\(#", f"url(#{prefix}", text)
    text = re.sub(r'href="#', f'href="#{prefix}', text)
    text = _coloured(text)
    box = _attribute(text, "viewBox")
    named = f"{prefix}title {prefix}says"
    head = (
        f'<svg class="{look.name}" role="img" aria-labelledby="{named}" viewBox="{box}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<title id="{prefix}title">{escape(drawing.title)}</title>'
        f'<desc id="{prefix}says">{escape(drawing.says)}</desc>'
    )
    return re.sub(r"<svg[^>]*>", lambda _: head, text, count=1).strip()


def _attribute(text: str, name: str) -> str:
    found = re.search(rf'{name}="([^"]*)"', text)
    assert found is not None  # matplotlib writes it
    return found.group(1)


@cache
def _variables() -> dict[str, str]:
    return {light: f"var(--{name})" for name, (light, _) in THEME.items()}


def _coloured(text: str) -> str:
    """``text`` with each colour of the light theme as its variable."""
    pattern = re.compile("|".join(map(re.escape, _variables())), re.IGNORECASE)
    return pattern.sub(lambda found: _variables()[found.group().lower()], text)
