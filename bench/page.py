"""What a benchmark found: a table on the terminal, and on request its place in docs/performance.md.

    python bench/overhead.py --write    keeps its tables in bench/figures.json, and writes the page anew
    python bench/page.py                writes the page anew from what is kept

A kept table has a line that says how it was made: the command, the machine and the frameworks'
versions, the commit, the day, how busy the machine was, and what the baseline differed by from
itself. tests/docs/test_performance.py sees to it that no figure stands on the page in another way.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
FIGURES = ROOT / "bench" / "figures.json"
BEGIN, END = "<!-- measured: {name} -->\n", "<!-- end of {name} -->\n"

Row = Sequence[str]
KeptTable = Mapping[str, Any]
"""How it was "made", the heads of its "columns", its "rows"."""


class Findings(NamedTuple):
    """A table.

    Attributes:
        name: of its place on the page.
        machine: what it was measured on.
        columns: their heads.
        sections: rows that belong together.
        again: ratios of baselines to themselves.
    """

    name: str
    machine: str
    columns: Row
    sections: Sequence[Sequence[Row]]
    again: Sequence[float] = ()


HELP = {
    "copies": "of every model, among the rounds",
    "seconds": "one turn of one variant",
    "turn": "steps of one variant in a row",
}


def parser(
    doc: str = "", frameworks: Sequence[str] = (), **defaults: int | float
) -> argparse.ArgumentParser:
    """The options of a benchmark: where the table goes, and one for each default."""
    made = argparse.ArgumentParser(description=doc.partition("\n")[0], allow_abbrev=False)
    made.add_argument("--write", action="store_true", help="keep the table for the page, too")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="append the table to FILE, too")
    if frameworks:
        made.add_argument("--framework", choices=frameworks, help="measure it in this process")
    for name, default in defaults.items():
        made.add_argument(f"--{name}", type=type(default), default=default, help=HELP.get(name))
    return made


def report(findings: Findings, options: argparse.Namespace) -> None:
    """Print the table; write it, if that was asked for."""
    show(findings)
    if options.markdown:
        with options.markdown.open("a", encoding="utf-8") as file:
            file.write(markdown(kept_form(findings)))
    if options.write:
        keep(findings)


def show(findings: Findings) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(*findings.columns)
    for section in findings.sections:
        for row in section:
            shown.add_row(*row)
        shown.add_section()
    console = Console(width=120)
    console.print(findings.machine)
    console.print(shown)


def keep(findings: Findings) -> None:
    """Put the table in the place of the one of its name, among what is kept and on the page."""
    figures = {**read_figures(), findings.name: kept_form(findings)}
    FIGURES.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", "utf-8")
    write_page()


def kept_form(findings: Findings) -> KeptTable:
    rows = [row for section in findings.sections for row in section]
    made = provenance(findings.machine, findings.again)
    return {"made": made, "columns": findings.columns, "rows": rows}


def read_figures() -> dict[str, KeptTable]:
    """The tables that are kept, by name."""
    figures: dict[str, KeptTable] = json.loads(FIGURES.read_text("utf-8"))
    return figures


def write_page() -> None:
    PAGE.write_text(with_figures(PAGE.read_text("utf-8"), read_figures()), "utf-8")


def with_figures(text: str, figures: Mapping[str, KeptTable]) -> str:
    """The page with each table in its place."""
    for name, kept in figures.items():
        text = placed(text, name, markdown(kept))
    return text


def markdown(kept: KeptTable) -> str:
    return f"\n{kept['made']}\n\n{table(kept['columns'], kept['rows'])}\n"


def table(columns: Row, rows: Iterable[Row]) -> str:
    """In Markdown; a bar in a cell is not the end of it."""
    lines = [columns, ["---"] * len(columns), *rows]
    escaped = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def provenance(machine: str, again: Sequence[float] = ()) -> str:
    """How the figures came about, in one line."""
    script, *arguments = sys.argv
    _, words = parser().parse_known_args(arguments)  # all but where the table goes
    command = shlex.join(["python", f"bench/{Path(script).name}", *words])
    made = f"`{command}`: {machine}; commit {commit()}, {today()}, load {load():.1f}"
    noise = f"; baselines against themselves {min(again):.3f} to {max(again):.3f}" if again else ""
    return f"{made}{noise}."


def today() -> str:
    return datetime.date.today().isoformat()


def load() -> float:
    """How busy the machine was in the last five minutes; one process that computes is 1."""
    return os.getloadavg()[1] if hasattr(os, "getloadavg") else float("nan")


def commit() -> str:
    """The present one, with "and changes" where tracked files differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    outside = (":!docs", ":!bench/*.json")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *outside)
    return git("rev-parse", "--short=9", "HEAD") + (" and changes" if changed else "")


def placed(text: str, name: str, content: str) -> str:
    """``text`` with ``content`` between the marks of ``name``.

    Raises:
        SystemExit: if the page has no place for it.
    """
    begin, end = BEGIN.format(name=name), END.format(name=name)
    if begin not in text or end not in text:
        raise SystemExit(f"The page has no place for {name!r}: write {begin}{end}")
    before, rest = text.split(begin, 1)
    _, after = rest.split(end, 1)
    return f"{before}{begin}{content}{end}{after}"


if __name__ == "__main__":
    write_page()
