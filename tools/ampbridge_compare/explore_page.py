"""The page of a grid: one file of HTML that loads nothing, and draws the run of the reader's settings."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.resources import files

from ampbridge_compare.explore import HEADER, NO_EFFECT, Explored, Grid, loss_text, percent
from ampbridge_compare.markup import escape, style
from ampbridge_compare.result import power

CONTROLS = HEADER[:5]
"""The columns that a reader chooses: two by buttons, the others by sliders."""

BUTTONS = CONTROLS[:2]
FIRST = ("O1:float16", "2^24", "2000", "× 1")
"""What the page shows at first, of the first framework: steps are skipped."""


def page(grid: Grid) -> str:
    """The whole page."""
    rows = [run.row() for run in grid.runs]
    columns = [dict.fromkeys(row[i] for row in rows) for i in range(len(CONTROLS))]
    axes = [[label for label in column if label != NO_EFFECT] for column in columns]
    runs = [
        {
            "at": row[: len(CONTROLS)],
            "says": sentence(run, grid.steps),
            **{name: getattr(run, name) for name in ("loss", "scale", "skipped", "lost")},
        }
        for run, row in zip(grid.runs, rows, strict=True)
    ]
    remarks = "".join(f"<li>{escape(remark)}</li>" for remark in grid.remarks)
    data = json.dumps({"steps": grid.steps, "axes": axes, "runs": runs}, separators=(",", ":"))
    parts = {
        "STYLE": style(),
        "ABOUT": f"<code>{escape(grid.workload)}</code>, {grid.steps} steps, seed {grid.seed}",
        "CONTROLS": "\n".join(map(_control, CONTROLS, axes, (axes[0][0], *FIRST))),
        "HEADER": "".join(f'<th scope="col">{escape(name)}' for name in HEADER),
        "ROWS": "\n".join(map(_row, rows)),
        "REMARKS": f"<ul>{remarks}</ul>" if remarks else "",
        "VERSIONS": escape(", ".join(map(" ".join, grid.versions.items()))),
        "DATA": data.replace("<", "\\u003c"),
    }
    template = files("ampbridge_compare").joinpath("explore.html").read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda mark: parts[mark[1]], template)


def _row(cells: Sequence[str]) -> str:
    return f'<tr><th scope="row">{escape(cells[0])}' + "".join(
        f"<td>{escape(cell)}" for cell in cells[1:]
    )


def _control(name: str, labels: Sequence[str], first: str) -> str:
    title, at = escape(name.capitalize()), labels.index(first) if first in labels else 0
    if name not in BUTTONS:
        return (
            f'<label>{title}: <span></span><input type="range" name="{name}" min="0" '
            f'max="{max(len(labels) - 1, 0)}" value="{at}"></label>'
        )
    buttons = (
        f'<label><input type="radio" name="{name}" value="{i}"{" checked" * (i == at)}>'
        f"{escape(label)}</label>"
        for i, label in enumerate(labels)
    )
    return f"<fieldset><legend>{title}</legend>{''.join(buttons)}</fieldset>"


def sentence(run: Explored, steps: int) -> str:
    """What a reader is told of a run."""
    if run.error is not None:
        return f"There is no such run. {run.error}"
    first, last = (
        f"{'a value that is ' * (loss is None)}{loss_text(loss)}"
        for loss in (run.loss[0], run.loss[-1])
    )
    said = [_skips(run, steps), f"The loss went from {first} to {last}"]
    if run.accuracy is not None:
        said[-1] += f", and the accuracy is {run.accuracy:.1%}"
    if run.lost is None:
        said.append("This framework does not show how many gradients were lost")
    else:
        at = f" at a loss scale of {power(run.lost_at)}" * (run.setting.init_scale is not None)
        share = percent(run.lost) if run.lost else "None"
        said.append(f"{share} of the first batch's gradients became zero{at}")
    return ". ".join(said) + "."


def _skips(run: Explored, steps: int) -> str:
    if run.setting.init_scale is None:
        return f"There is no loss scale, and none of {steps} steps was skipped"
    count, scales = len(run.skipped), [scale for _, scale in run.scale]
    skips = f"{count or 'None'} of {steps} steps {'was' if count < 2 else 'were'} skipped while the scale"
    first, last, low, high = map(power, (scales[0], scales[-1], min(scales), max(scales)))
    if len(scales) == 1:
        return f"{skips} stayed at {first}"
    if scales in (sorted(scales), sorted(scales, reverse=True)):
        return f"{skips} {'rose' if last == high else 'fell'} from {first} to {last}"
    return f"{skips} went up and down between {low} and {high}, from {first} to {last}"
