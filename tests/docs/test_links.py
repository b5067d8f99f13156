"""On a forge, which shows the documents as they are, every link leads somewhere."""

import re
from pathlib import Path

import pytest
from code_blocks import ROOT

DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)|src(?:set)?=\"([^\"]+)\"")
ENTRY = re.compile(r"^- \[`[\w.]+\.(\w+)`\]\(([\w./]+)\)", re.M)
CODE = re.compile(r"^( *)(`{3,}).*?^\1\2$|`[^`\n]+`", re.M | re.S)


def anchors(document: Path) -> set[str]:
    """Of its headings, as forges and the site make them; and of what mkdocstrings documents there."""
    text = document.read_text()
    titles = [re.sub(r"[^\w -]", "", title) for title in re.findall(r"^#+ (.+)$", text, re.M)]
    names = re.findall(r"^- \[`([\w.]+)`\]", text, re.M)
    return {*names, *(title.strip().lower().replace(" ", "-") for title in titles)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document):
    for path, anchor, source in LINK.findall(CODE.sub("`", document.read_text())):
        target = document.parent / (path or source or document.name)
        assert target.exists(), path or source
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_no_document_has_what_only_the_site_understands():
    marks = re.compile(r"^(?::::|===|!!!|\?\?\?) |\]\[[\w.]+\]", re.M)
    found = {str(path): marks.findall(CODE.sub("`", path.read_text())) for path in DOCUMENTS}
    assert {path: marks for path, marks in found.items() if marks} == {}


def test_a_name_of_the_reference_is_defined_where_its_link_leads():
    found = 0
    for page in (ROOT / "docs/reference").glob("*.md"):
        for name, path in ENTRY.findall(page.read_text()):
            source = (page.parent / path).read_text()
            assert re.search(rf"^ *(?:(?:def|class) {name}\b|{name}\b.* = )", source, re.M), name
            found += 1
    assert found > 100
