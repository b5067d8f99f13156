"""The page in a real browser: wide and narrow, light and dark."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import ampbridge as amp
from ampbridge_compare import compare
from ampbridge_compare.comparison import Comparison
from ampbridge_compare.page import page
from ampbridge_compare.pictures import png
from ampbridge_compare.runs import Job, Run

pytestmark = pytest.mark.slow

FIGURES = ["errors", "exponents", "losses", "scales"]
WIDTHS, THEMES = (360, 768, 900, 1280), ("light", "dark")
every_width = pytest.mark.parametrize("width", WIDTHS)
every_theme = pytest.mark.parametrize("theme", THEMES)


@cache
def failed_and_unscaled() -> Comparison:
    """NumPy in bfloat16, which needs no scale; a framework that is missing, and one that crashed."""
    recipe = amp.Recipe("O2:bfloat16")
    done = compare(recipe, ["numpy"], workload="digits-conv", steps=3)
    lost = Job("torch", "ampbridge", "digits-conv", recipe.to_dict(), 3, 0)
    message = "torch is not installed.\nHint: pip install 'ampbridge[torch]'"
    crash = "The process ended with -6: " + "free(): invalid pointer " * 12
    runs = [*done.runs, Run.failed(lost, message), Run.failed(replace(lost, backend="x"), crash)]
    return replace(done, runs=tuple(runs))


HOSTILE = (
    "</title></style></script><script>alert(1)</script>\"'><img src=x onerror=alert(2)> "
    r"\1 \g<x> $x^2$ $\frac " + "\x1b[31m \u202e \x00 \udcff &amp; \n<b>"
)
LAYER = "<b>$\\1\x1b$"


def hostile() -> Comparison:
    """What comes from outside is hostile: files, layers, versions, errors."""
    done = failed_and_unscaled()

    def renamed(run: Run) -> Run:
        run = replace(run, described=HOSTILE, device=HOSTILE, versions={HOSTILE: HOSTILE})
        weights = tuple(each._replace(name=each.name + LAYER) for each in run.weights)
        gradients, wide = (
            {name + LAYER: each for name, each in arrays.items()}
            for arrays in (run.gradients, run.float32_gradients)
        )
        return replace(run, weights=weights, gradients=gradients, float32_gradients=wide)

    ran, *failed = done.runs
    runs = [renamed(ran), *(replace(each, error=HOSTILE) for each in failed)]
    assert done.reference is not None
    return replace(done, workload=HOSTILE, runs=tuple(runs), reference=renamed(done.reference))


def tags(text: str) -> set[str]:
    return set(re.findall(r"<[^\s>]+", text))


def test_what_comes_from_outside_is_text():
    text = page(hostile())
    assert text.count("&lt;script&gt;alert(1)") > 3
    assert tags(text) <= tags(page(failed_and_unscaled()))
    assert {c for c in text if not c.isprintable()} == {"\n"}


def test_a_picture_shows_what_comes_from_outside_as_it_is():
    assert png(hostile()).startswith(b"\x89PNG")


@pytest.fixture(scope="session", params=["every framework", "failed and unscaled"])
def address(request, tmp_path_factory) -> str:
    if request.param == "every framework":
        return (request.getfixturevalue("ran")[1] / "comparison.html").as_uri()
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(page(failed_and_unscaled()), encoding="utf-8")
    return file.as_uri()


@every_width
@every_theme
def test_it_loads_nothing_and_complains_of_nothing(browser, address, width, theme):
    browser.open(address, width, theme)
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [address]


# What is drawn: svg elements that are shown, with their size, their marks and their texts.
SHOWN = """
[...document.querySelectorAll('figure svg')].filter(svg => svg.checkVisibility()).map(svg => {
  const box = svg.getBoundingClientRect();
  const marks = [...svg.querySelectorAll('g[id*="line2d"] path, g[id*="patch"] path')]
    .filter(mark => mark.getBoundingClientRect().width > 2);
  return {
    name: svg.querySelector('title').id.split('-')[0],
    width: box.width, height: box.height, left: box.left, right: box.right, marks: marks.length,
    texts: [...svg.querySelectorAll('text')].filter(t => t.textContent.trim()).map(t => {
      const r = t.getBoundingClientRect();
      return {text: t.textContent.trim(), left: r.left, right: r.right, top: r.top, bottom: r.bottom};
    }),
  };
})
"""


@every_width
def test_every_figure_is_there(browser, address, width, request):
    browser.open(address, width, "light")
    shown = {figure["name"]: figure for figure in browser.ask(SHOWN)}
    unscaled = "unscaled" in request.node.callspec.id
    assert sorted(shown) == [name for name in FIGURES if not (unscaled and name == "scales")]
    for figure in shown.values():
        assert figure["width"] > 0.75 * min(width, 480)
        assert figure["height"] > 150
        assert figure["marks"] > 5
        assert len(figure["texts"]) > 8


@every_width
def test_texts_of_figures_overlap_nowhere_and_stay_inside(browser, address, width):
    browser.open(address, width, "light")
    for figure in browser.ask(SHOWN):
        texts = figure["texts"]
        for i, one in enumerate(texts):
            assert figure["left"] - 1 <= one["left"] < one["right"] <= figure["right"] + 1, one
            for other in texts[:i]:
                across = min(one["right"], other["right"]) - max(one["left"], other["left"])
                down = min(one["bottom"], other["bottom"]) - max(one["top"], other["top"])
                assert min(across, down) < 1.5, (figure["name"], one, other)


@every_width
def test_figures_have_letters_of_a_size_to_read(browser, address, width):
    browser.open(address, width, "light")
    for figure in browser.ask(SHOWN):
        heights = [t["bottom"] - t["top"] for t in figure["texts"] if len(t["text"]) > 2]
        assert min(heights) > 10, figure["name"]


# Elements that reach beyond the window, but for what lies in a region that scrolls by itself.
TOO_WIDE = """
[...document.querySelectorAll('body *')].filter(element =>
  element.checkVisibility() && !element.closest('.scroll *') && !element.closest('svg *')
  && !element.closest('.skip') && !element.closest('.cards thead')
  && (element.getBoundingClientRect().right > innerWidth + 1
      || (element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0
          && !element.matches('.scroll, svg'))))
.map(element => element.outerHTML.slice(0, 120))
"""


@every_width
@pytest.mark.parametrize("opened", [False, True], ids=["closed", "with all details"])
def test_nothing_is_wider_than_the_window(browser, address, width, opened):
    browser.open(address, width, "light")
    browser.ask(
        f"document.querySelectorAll('details').forEach(d => d.open = {str(opened).lower()})"
    )
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(TOO_WIDE) == []


# Each text with its colour, and the colours that lie behind it, the nearest first.
COLOURS = """
(() => {
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return getComputedStyle(document.documentElement).backgroundColor;
  };
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
    if (element.closest('style, title, desc')) continue;
    const style = getComputedStyle(element);
    const drawn = element.closest('svg');
    texts.push([walker.currentNode.textContent.trim().slice(0, 40),
      drawn ? style.fill : style.color, behind(element)]);
  }
  return texts;
})()
"""


@every_theme
@pytest.mark.parametrize("width", [360, 1280])
def test_text_stands_out(browser, address, width, theme):
    """WCAG's contrast for text, 4.5 to 1."""
    browser.open(address, width, theme)
    texts = browser.ask(COLOURS)
    assert len(texts) > 100
    weak = {(text, *pair) for text, *pair in texts if contrast(*pair) < 4.5}
    assert weak == set()


@every_theme
def test_lines_stand_out(browser, address, theme):
    """WCAG's contrast for what must be told apart, 3 to 1, on the page and on the bands."""
    browser.open(address, 1280, theme)
    value = "getComputedStyle(document.documentElement).getPropertyValue('--{}').trim()"
    colour = {
        name: browser.ask(value.format(name))
        for name in ("surface", "ink", "muted", "band-lost", "band-coarse", "band-kept")
    }
    lines = [browser.ask(value.format(f"run-{i}")) for i in range(1, 6)]
    for line in lines:
        assert contrast(line, colour["surface"]) >= 3.0, line
    for band in ("band-lost", "band-coarse", "band-kept"):
        assert contrast(colour["ink"], colour[band]) >= 4.5
        for line in lines:
            assert contrast(line, colour[band]) >= 2.4, (line, band)
    drawn = "getComputedStyle(document.querySelector('#losses ~ figure g[id*=line2d] path')).stroke"
    assert browser.ask(drawn) != ""


def test_the_dark_theme_is_dark_and_its_figures_with_it(browser, address):
    luminances = {}
    for theme in THEMES:
        browser.open(address, 1280, theme)
        page_colour = browser.ask("getComputedStyle(document.body).backgroundColor")
        patch = "document.querySelector('figure svg.wide g[id$=patch_1] path')"
        figure_colour = browser.ask(f"getComputedStyle({patch}).fill")
        assert figure_colour == page_colour
        luminances[theme] = luminance(page_colour)
    assert luminances["light"] > 0.9
    assert luminances["dark"] < 0.02


def test_it_prints_light_without_links(browser, address):
    browser.open(address, 768, "dark", media="print")
    assert luminance(browser.ask("getComputedStyle(document.body).backgroundColor")) > 0.9
    assert browser.ask("document.querySelector('nav').checkVisibility()") is False


def test_the_keyboard_reaches_results_and_tables(browser, address):
    browser.open(address, 360, "light")
    browser.press("Tab")
    assert browser.ask("document.activeElement.textContent") == "Skip to the results"
    assert browser.ask("document.activeElement.getBoundingClientRect().left >= 0") is True
    stuck = (
        "[...document.querySelectorAll('.scroll')].filter(e => e.tabIndex !== 0 || !e.ariaLabel)"
    )
    assert browser.ask(f"{stuck}.length") == 0


REFERENCES = """
[...document.querySelectorAll('[aria-labelledby], [aria-describedby], a[href^="#"]')].flatMap(e =>
  [e.getAttribute('aria-labelledby'), e.getAttribute('aria-describedby'),
   (e.getAttribute('href') || '').slice(1)].join(' ').split(' ').filter(id => id && id !== 'null'))
.filter(id => !document.getElementById(id))
"""


def test_it_can_be_read_aloud(browser, address):
    browser.open(address, 1280, "light")
    assert browser.ask("document.documentElement.lang") == "en"
    assert browser.ask("document.title").startswith("digits-")
    ids = browser.ask("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert browser.ask(REFERENCES) == []
    unnamed = (
        "[...document.querySelectorAll('figure svg')].filter(s => s.getAttribute('role') !== 'img'"
    )
    unnamed += " || s.querySelector('title').textContent < 'A' || s.querySelector('desc').textContent < 'A')"
    assert browser.ask(f"{unnamed}.length") == 0
    tables = browser.ask(
        "[...document.querySelectorAll('table')].map(t => [t.caption?.textContent,"
        " [...t.querySelectorAll('th')].every(h => h.scope)])"
    )
    assert all(caption and scoped for caption, scoped in tables)
    # On a phone cards are no tables to look at; they stay tables to listen to.
    roles = "[...document.querySelectorAll('td')].every(c => c.getAttribute('role') === 'cell')"
    assert browser.ask(roles) is True


# -- WCAG 2's arithmetic


def luminance(colour: str) -> float:
    if colour.startswith("#"):
        channels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    else:
        channels = [float(c) for c in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (channel / 255 for channel in channels)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_wcags():
    assert contrast("#ffffff", "rgb(0, 0, 0)") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_the_folder_has_all_three_files(ran):
    folder: Path = ran[1]
    assert sorted(file.name for file in folder.iterdir()) == [
        "comparison.html",
        "comparison.json",
        "comparison.png",
    ]
