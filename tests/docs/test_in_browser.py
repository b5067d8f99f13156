"""The site in Chromium, from the disk, as a reader opens it who has no server and no network."""

import pytest
from browser import Browser
from processes import wait_until

from ampbridge.policies import op_table

pytestmark = pytest.mark.slow

PAGES = (
    "index.html",
    "tutorials/loss_scaling.html",
    "tutorials/o1_and_o2.html",
    "course/dtypes_of_ops.html",
    "course/key.html",
    "gallery/index.html",
    "gallery/images_ema.html",
    "reference/lens.html",
    "porting.html",
    "ops.html",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = Browser(tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def opened(site, browser):
    def opened(page, width=1300, theme="light"):
        browser.open(f"{site.as_uri()}/{page}", width, theme)
        return browser

    return opened


@pytest.mark.parametrize("width, theme", [(1300, "light"), (390, "dark")])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_whole(opened, page, width, theme):
    shown = opened(page, width, theme)
    assert shown.complaints == []
    assert [
        address for address in shown.requests if not address.startswith(("file:", "data:"))
    ] == []
    assert shown.ask("[...document.images].filter((i) => !i.naturalWidth).map((i) => i.src)") == []
    # Wide tables and code scroll by themselves, the page does not.
    assert shown.ask("document.documentElement.scrollWidth - innerWidth") <= 0
    scheme = shown.ask("document.body.dataset.mdColorScheme")
    assert scheme == {"light": "default", "dark": "slate"}[theme]


# Tables that are wider than their place: the rest of them is out of sight.
CUT = """
[...document.querySelectorAll('article .md-typeset__scrollwrap, article .md-typeset__table')]
  .filter((place) => place.scrollWidth > place.clientWidth + 1)
  .map((place) => [place.scrollWidth, place.textContent.trim().slice(0, 60)])
"""


def test_no_table_is_cut_at_1280_pixels(site, opened):
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    assert len(pages) > 30
    cut = {page: found for page in pages if (found := opened(page, 1280).ask(CUT))}
    assert cut == {}


def test_the_search_finds_without_a_server(opened):
    shown = opened("index.html?q=softmax")
    found = "[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)"
    links = wait_until(lambda: shown.ask(found))
    assert any("tutorials/softmax.html" in link for link in links)
    assert shown.complaints == []


def test_ops_can_be_filtered(opened):
    shown = opened("ops.html")
    every, some = "article tbody tr", "article h2 ~ * tbody tr:not([hidden])"
    total = shown.ask(f"document.querySelectorAll('{some}').length")
    assert total == len(op_table.ops())
    assert shown.ask(f"document.querySelectorAll('{every}').length") > total  # the two of the head
    shown.ask(
        "(() => { const field = document.querySelector('.table-filter input');"
        "field.value = 'LayerNormalization'; field.dispatchEvent(new Event('input')) })()"
    )
    ops = shown.ask(
        f"[...document.querySelectorAll('{some}')].map((row) => row.cells[0].textContent.trim())"
    )
    assert ops == ["layer_norm"]
    headings = "[...document.querySelectorAll('article h2:not([hidden])')].map((h) => h.id)"
    assert shown.ask(headings) == ["normalization"]
