"""A tutorial is a script of cells (``# %%``): run as a notebook, and written as a page of the site.

A cell that draws a figure begins with a description for those who cannot see it, in a comment that
starts with ``# Figure:``: the image's text on the page, where the code of such cells is folded. A cell
whose source Jupyter hides (``# %% jupyter={"source_hidden": true}``) asserts what the text says; the page
has all of them at its end, folded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import indent
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

FIGURE = "image/svg+xml"
FIGURE_TEXT = re.compile(r"# Figure: (.*(?:\n# .*)*)\n")
PREPARE = (
    "%config InlineBackend.figure_formats = ['svg']\n"
    "%config InlineBackend.print_figure_kwargs = {'metadata': {'Date': None}, 'bbox_inches': 'tight'}"
)


@cache  # `mkdocs serve` asks again after every change, of whichever page
def executed(script: str) -> nbformat.NotebookNode:
    """The notebook of a script with what its cells printed and drew.

    Raises:
        nbclient.exceptions.CellExecutionError: with the traceback of the cell that failed.
    """
    notebook = jupytext.reads(script, fmt="py:percent")
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    notebook.cells.insert(0, nbformat.v4.new_code_cell(PREPARE))
    with TemporaryDirectory() as folder:
        sockets = {"transport": "ipc", "ip": f"{folder}/kernel"}  # files: nothing listens on a port
        NotebookClient(
            notebook,
            timeout=300,
            kernel_name="python3",
            coalesce_streams=True,
            config=Config({"KernelManager": sockets}),
        ).execute()
    del notebook.cells[0]
    for number, cell in enumerate(_code_cells(notebook), 1):
        cell.execution_count = number
        cell.metadata.pop("execution", None)  # when it ran: nobody's business
    return notebook


def as_notebook(notebook: nbformat.NotebookNode) -> str:
    """What a reader downloads."""
    return nbformat.writes(notebook) + "\n"


def as_page(notebook: nbformat.NotebookNode, name: str) -> tuple[str, dict[str, bytes]]:
    """Markdown, and the figures that it shows, by file name.

    Raises:
        LookupError: for a figure without a description.
    """
    parts: list[str] = []
    checks: list[str] = []
    figures: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        if _is_hidden(cell):
            checks.append(cell.source)
            continue
        shown = [_text(output) for output in cell.outputs if FIGURE not in output.get("data", {})]
        drawn = [output for output in cell.outputs if FIGURE in output.get("data", {})]
        for figure in drawn:
            file = f"{name}-{len(figures) + 1}.svg"
            figures[file] = figure["data"][FIGURE].encode()
            parts.append(f"![{_alt(cell)}]({file}){{ .figure }}")
        code = _fenced(FIGURE_TEXT.sub("", cell.source), "python")
        parts.append(_folded("How it is drawn", code) if drawn else code)
        parts += [_fenced(text, "text { .output }") for text in shown]
    if checks:
        parts.append(_folded("How this page is checked", _fenced("\n\n".join(checks), "python")))
    return "\n\n".join(parts) + "\n", figures


def _code_cells(notebook: nbformat.NotebookNode) -> Iterator[Any]:
    return (cell for cell in notebook.cells if cell.cell_type == "code")


def _is_hidden(cell: Any) -> bool:
    return bool(cell.metadata.get("jupyter", {}).get("source_hidden"))


def _alt(cell: Any) -> str:
    found = FIGURE_TEXT.match(cell.source)
    if found is None:
        raise LookupError(f"a figure without a description (# Figure: ...):\n{cell.source}")
    return " ".join(found[1].replace("\n# ", " ").split())


def _text(output: Any) -> str:
    text = output["text"] if "text" in output else output["data"]["text/plain"]
    return re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip()


def _folded(title: str, markdown: str) -> str:
    return f'??? quote "{title}"\n' + indent(markdown, "    ")


def _fenced(text: str, language: str) -> str:
    return f"````{language}\n{text}\n````"


def tutorials(folder: Path) -> list[Path]:
    """The scripts of ``folder``."""
    return sorted(folder.glob("*.py"))
