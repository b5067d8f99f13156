"""What mkdocs makes of the pages in docs/, which a forge shows as they are.

It adds the tutorials and the course, executed, the gallery's scripts, the explorer, and documents of
examples. Links to sources become what these say: docstrings, and pages of tutorials. Blocks of code for
several frameworks become tabs.

A hook of mkdocs (``hooks`` in mkdocs.yml), which calls the functions named ``on_...``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import indent

import gallery
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebooks import as_notebook, as_page, executed, tutorials

from ampbridge_compare.explore import Grid
from ampbridge_compare.explore_page import page as page_of_grid

ROOT = Path(__file__).parents[1]
EXECUTED = (ROOT / "docs" / "tutorials", ROOT / "docs" / "course")
OUTSIDE = re.compile(r"\]\(\.\./((?:[\w-]+/)+[\w-]+\.md)\)")
"""A link from a page in docs/ to a document elsewhere in the repository."""

DOCUMENTED = re.compile(r"^- \[`([\w.]+)`\]\([\w./]+\.py\)(?: <!-- (options: .+) -->)?$", re.M)
"""A public name in the reference, as a link to its source; and how mkdocstrings is to show it."""

TUTORIAL = re.compile(r"(\]\((?:(?:\.\./)?(?:tutorials|course)/)?\w+)\.py\)")

FOR_ONE_FRAMEWORK = re.compile(r"^\*\*(\w+)\*\*\n\n(```python\n.*?^```)$", re.M | re.S)
"""A title and a script, of which the first page has several."""

DOWNLOADS = """\
[Notebook]({name}.ipynb){{ .md-button download="{name}.ipynb" }}
[Script]({name}.script){{ .md-button download="{name}.py" }}
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is made, and the documents that lie outside of docs/."""
    for file in (*_tutorials(config), *_scripts(config), *_documents(config)):
        files.append(file)
    grid = Grid.from_dict(json.loads((ROOT / "docs" / "explore.json").read_text()))
    files.append(File.generated(config, "explore.html", content=page_of_grid(grid)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links to sources, and to documents out of docs/, into what the site has in their place."""
    folder = page.file.src_uri.rpartition("/")[0]
    if folder == "gallery":
        return gallery.with_scripts(markdown)
    if folder == "reference":
        markdown = DOCUMENTED.sub(_docstring, markdown)
    elif page.file.src_uri == "index.md":
        markdown = FOR_ONE_FRAMEWORK.sub(_tab, markdown)
    markdown = TUTORIAL.sub(r"\1.md)", markdown).replace("](explore.json)", "](explore.html)")
    return markdown if folder else OUTSIDE.sub(lambda found: f"]({found[1]})", markdown)


def _docstring(found: re.Match[str]) -> str:
    return f"\n::: {found[1]}\n    {found[2] or ''}\n"


def _tab(found: re.Match[str]) -> str:
    return f'=== "{found[1]}"\n\n{indent(found[2], "    ")}'


def _tutorials(config: MkDocsConfig) -> Iterator[File]:
    scripts = [script for folder in EXECUTED for script in tutorials(folder)]
    with ThreadPoolExecutor(2) as pool:  # each runs in a process of its own
        notebooks = list(pool.map(lambda path: executed(path.read_text()), scripts))
    for script, notebook in zip(scripts, notebooks, strict=True):
        name = script.stem
        page, figures = as_page(notebook, name)
        title, _, rest = page.partition("\n")
        page = f"{title}\n\n{DOWNLOADS.format(name=name)}{rest}"
        contents: dict[str, str | bytes] = {
            f"{name}.md": page,
            f"{name}.ipynb": as_notebook(notebook),
            f"{name}.script": script.read_text(),
            **figures,
        }
        for file, content in contents.items():
            yield File.generated(config, f"{script.parent.name}/{file}", content=content)


def _scripts(config: MkDocsConfig) -> Iterator[File]:
    """The gallery's, to be downloaded."""
    for name in gallery.names():
        yield File.generated(config, f"gallery/{name}.script", content=gallery.source(name))


def _documents(config: MkDocsConfig) -> Iterator[File]:
    """Every document outside of docs/ that a page links to, under the same path."""
    links = {
        link for page in (ROOT / "docs").glob("*.md") for link in OUTSIDE.findall(page.read_text())
    }
    for path in sorted(links):
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"docs/ links to {path}, which is not there")
        yield File.generated(config, path, content=(ROOT / path).read_text())


os.environ.setdefault("OMP_NUM_THREADS", "1")  # matrices of tutorials are too small to share
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
