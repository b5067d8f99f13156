"""The gallery's scripts: which of their statements are ampbridge's, and how the pages show them.

A script is examples/gallery/NAME.py, and its page docs/gallery/NAME.md. The page has a block of
``diff``: from a loop without ampbridge to the script. Its hunks begin with a line ``@@ ... @@``.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SCRIPTS, PAGES = ROOT / "examples" / "gallery", ROOT / "docs" / "gallery"
MARK = "  # ampbridge"
"""At the end of the first line of each statement that ampbridge adds."""

LINK = re.compile(r"^\[.+\]\(\.\./\.\./examples/gallery/(\w+)\.py\)$", re.M)
"""A line of a page that is a link to a script, and nothing else."""

WHOLE = """\
[Script]({name}.script){{ .md-button download="{name}.py" }}

````python hl_lines="{lines}"
{source}````
"""


class Hunk(NamedTuple):
    """A part of a script without ampbridge, and the same part with it."""

    before: str
    after: str


def names() -> list[str]:
    """Of the scripts, in the order of the alphabet."""
    return sorted(path.stem for path in SCRIPTS.glob("*.py"))


def source(name: str) -> str:
    """The script of that name."""
    return (SCRIPTS / f"{name}.py").read_text("utf-8")


def page(name: str) -> Path:
    """The page of that name."""
    return PAGES / f"{name}.md"


def added(script: str) -> list[range]:
    """The numbers of the lines of each marked statement; of a ``with`` or an ``if`` those of its head."""
    marked = {number for number, line in enumerate(script.splitlines(), 1) if line.endswith(MARK)}
    statements = [node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.stmt)]
    found = [range(each.lineno, _end(each)) for each in statements if each.lineno in marked]
    return sorted(found, key=lambda lines: lines.start)


def _end(statement: ast.stmt) -> int:
    """The number of the line behind a statement, or behind its head."""
    body = getattr(statement, "body", None)
    return body[0].lineno if body else (statement.end_lineno or statement.lineno) + 1


def with_scripts(markdown: str) -> str:
    """A page with each script, its marked statements highlighted, in the place of the link to it."""
    return LINK.sub(lambda found: _whole(found[1]), markdown)


def _whole(name: str) -> str:
    script = source(name)
    lines = " ".join(f"{each.start}-{each.stop - 1}" for each in added(script))
    return WHOLE.format(name=name, lines=lines, source=script)


def hunks(markdown: str) -> list[Hunk]:
    """What the page's block of ``diff`` says."""
    (block,) = re.findall(r"^```diff\n(.*?)^```$", markdown, re.M | re.S)
    parts = re.split(r"^@@.*\n", block, flags=re.M)
    return [Hunk(_side(part, " -"), _side(part, " +")) for part in parts if part]


def _side(part: str, signs: str) -> str:
    lines = part.splitlines()
    return "".join(f"{line[1:]}\n" for line in lines if line[:1] in signs or not line)


def native(script: str, markdown: str) -> str:
    """``script`` as it would be without ampbridge, by its page's diff.

    Raises:
        LookupError: if the script does not have a part that the diff shows, or has it twice.
    """
    script = script.replace(f"{MARK}\n", "\n")
    for before, after in hunks(markdown):
        if script.count(after) != 1:
            raise LookupError(f"not a part of the script, or more than one:\n{after}")
        script = script.replace(after, before)
    return script
