"""What a benchmark found: a table on the terminal, and on request its place in docs/performance.md.

`--write` puts the table between the marks of its name, under a line that says how it was made: the
command, the machine and the frameworks' versions, the commit, the day and how busy the machine was.
tests/docs/test_performance.py sees to it that no figure stands on the page in another way.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- measured: {name} -->\n", "<!-- end of {name} -->\n"

Row = Sequence[str]


class Findings(NamedTuple):
    """A table: ``sections`` are rows that belong together, ``machine`` what they were measured on."""

    name: str
    machine: str
    columns: Row
    sections: Sequence[Sequence[Row]]


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", action="store_true", help="put the table into the page, too")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="append the table to FILE, too"
    )


def report(findings: Findings, options: argparse.Namespace) -> None:
    """Print the table; write it, if that was asked for."""
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
    if options.markdown:
        with options.markdown.open("a", encoding="utf-8") as file:
            file.write(markdown(findings))
    if options.write:
        PAGE.write_text(placed(PAGE.read_text("utf-8"), findings.name, markdown(findings)), "utf-8")


def markdown(findings: Findings) -> str:
    rows = [row for section in findings.sections for row in section]
    return f"\n{provenance(findings.machine)}\n\n{table(findings.columns, rows)}\n"


def table(columns: Row, rows: Iterable[Row]) -> str:
    """In Markdown; a bar in a cell is not the end of it."""
    lines = [columns, ["---"] * len(columns), *rows]
    escaped = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def provenance(machine: str) -> str:
    """How the figures came about, in one line."""
    script, *arguments = sys.argv
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_option(options)
    _, words = options.parse_known_args(arguments)  # all but where the table goes
    command = shlex.join(["python", f"bench/{Path(script).name}", *words])
    return f"`{command}`: {machine}; commit {commit()}, {today()}, load {load():.1f}."


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

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return git("rev-parse", "--short=9", "HEAD") + (" and changes" if changed else "")


def placed(text: str, name: str, content: str) -> str:
    """``text`` with ``content`` between the marks of ``name``.

    Raises:
        SystemExit: if the page has no place for it.
    """
    begin, end = BEGIN.format(name=name), END.format(name=name)
    if begin not in text or end not in text:
        raise SystemExit(f"{PAGE.name} has no place for {name!r}: write {begin}{end}")
    before, rest = text.split(begin, 1)
    _, after = rest.split(end, 1)
    return f"{before}{begin}{content}{end}{after}"
