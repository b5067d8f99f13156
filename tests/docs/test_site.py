"""The site is built without a warning, is whole, and asks nothing of any other."""

import html
import json
import re
import zlib
from pathlib import Path

import nbformat
import pytest

import ampbridge as amp
from ampbridge import lens, port, testing

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted(path.stem for path in (ROOT / "docs/tutorials").glob("*.py"))
LESSONS = sorted(path.stem for path in (ROOT / "docs/course").glob("*.py"))
EXECUTED = [*(f"tutorials/{name}" for name in TUTORIALS), *(f"course/{name}" for name in LESSONS)]
GALLERY = ROOT / "examples" / "gallery"
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*?\ssrc=["']?(?:https?:)?//
    |<link\s(?![^>]*rel=["']?canonical)[^>]*?href=["']?(?:https?:)?//
    |@import\s+(?:url\()?["']?(?:https?:)?//
    |url\(["']?(?:https?:)?//""",
    re.X,
)


def test_no_page_fetches_anything_from_elsewhere(site):
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(files) > 20
    found = {
        str(path.relative_to(site)): match[0]
        for path in files
        if (match := FETCHED.search(path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://unpkg.com/iframe-worker/shim"></script>',
        '<link rel="stylesheet" href="https://fonts.googleapis.com/css">',
        '<img alt="x" src="//elsewhere.org/x.png">',
        "@import url(https://fonts.example/f.css)",
        "src: url(https://fonts.example/f.woff2)",
    ],
)
def test_that_check_finds_what_is_fetched(text):
    assert FETCHED.search(text)


def documented(site: Path) -> set[str]:
    """The dotted names in the site's inventory of objects."""
    raw = (site / "objects.inv").read_bytes()
    for _ in range(4):  # lines of its head
        raw = raw.partition(b"\n")[2]
    return {line.split(" ")[0] for line in zlib.decompress(raw).decode().splitlines()}


@pytest.mark.parametrize("module", [amp, lens, port, testing], ids=lambda module: module.__name__)
def test_the_reference_has_every_public_name(site, module):
    names = documented(site)
    missing = []
    for name in module.__all__:
        value = getattr(module, name)
        own = f"{value.__module__}.{value.__qualname__}"
        if not names & {f"{module.__name__}.{name}", own}:
            missing.append(name)
    assert missing == [], "write its name, a link to its source, into a page of docs/reference"


@pytest.mark.parametrize("name", TUTORIALS)
def test_what_a_tutorial_asserts_is_folded_on_its_page(site, name):
    page = (site / "tutorials" / f"{name}.html").read_text()
    folded = "".join(re.findall(r"<details.*?</details>", page, re.S))
    asserts = page.count('<span class="k">assert</span>')
    assert asserts == folded.count('<span class="k">assert</span>') > 2


@pytest.mark.parametrize("name", EXECUTED)
def test_a_tutorial_or_lesson_can_be_downloaded_as_it_was_run(site, name):
    notebook = nbformat.read(site / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    assert outputs
    assert not [out for out in outputs if out.output_type == "error"]
    page = (site / f"{name}.html").read_text()
    figures = re.findall(r'<img alt="([^"]{20,})"[^>]* src="([^"]+\.svg)"', page)
    assert len(figures) == len([out for out in outputs if "image/svg+xml" in out.get("data", {})])
    assert all((site / name).with_name(file).read_text().startswith("<?xml") for _, file in figures)


@pytest.mark.parametrize("name", sorted(path.stem for path in GALLERY.glob("*.py")))
def test_a_script_of_the_gallery_is_shown_whole_and_can_be_downloaded(site, name):
    script = (GALLERY / f"{name}.py").read_text()
    assert (site / "gallery" / f"{name}.script").read_text() == script
    page = (site / "gallery" / f"{name}.html").read_text()
    blocks = [
        html.unescape(re.sub("<[^>]+>", "", b))
        for b in re.findall("<code>(.*?)</code>", page, re.S)
    ]
    assert script in blocks
    assert page.count('<span class="hll">') >= script.count("  # ampbridge\n") > 0


def test_the_search_knows_all_pages(site):
    index = (site / "search" / "search_index.js").read_text().removeprefix("var __index = ")
    found = {entry["location"].partition("#")[0] for entry in json.loads(index)["docs"]}
    pages = {str(path.relative_to(site)) for path in site.rglob("*.html")} - {
        "404.html",
        "explore.html",
    }
    assert pages <= found
