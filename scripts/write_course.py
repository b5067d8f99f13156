"""Write the course's key for instructors, docs/course/key.md, and its slides; both from the lessons.

    python scripts/write_course.py                         writes the key
    python scripts/write_course.py --check                 exits with 1 if it is not what stands there
    python scripts/write_course.py --slides slides.html    writes the slides: one file that needs no other

The lessons run for it, on NumPy. Arrow keys turn the slides; a browser prints one to a page.
"""

from __future__ import annotations

import argparse
import html
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ampbridge_course as course
from ampbridge.checkpoints import atomic_files

FOLDER = Path(__file__).parents[1] / "docs" / "course"
KEY = FOLDER / "key.md"
HEAD = """\
# Key for instructors

What each lesson finds on NumPy, why, where to look it up, and what `check` says of wrong answers. The other
frameworks find the same. `python scripts/write_course.py` has written this page.
"""
PAGE = """\
<!doctype html><html lang="en"><meta charset="utf-8"><title>Mixed precision in an hour</title><style>
body { font: 1.5rem/1.4 system-ui, sans-serif; margin: 0; color: #222 }
section { max-width: 56rem; margin: 0 auto; padding: 3rem 2rem }
.answer { color: #0b5394 }
code { font-size: 0.9em; background: #f1f1f1 }
pre { background: #f1f1f1; padding: 1rem; font-size: 1.1rem; white-space: pre-wrap }
@media screen { section:not(.shown) { display: none } }
@media print { section { break-after: page } }
</style>
%s
<script>
const slides = [...document.querySelectorAll('section')]
let now = 0
const turn = (by) => {
  now = Math.min(Math.max(now + by, 0), slides.length - 1)
  slides.forEach((slide, number) => slide.classList.toggle('shown', number === now))
}
addEventListener('keydown', (event) => turn({ ArrowRight: 1, ArrowLeft: -1 }[event.key] || 0))
turn(0)
</script></html>
"""


def scripts() -> list[Path]:
    """The lessons, in the order of the numbers in their titles."""
    return sorted(FOLDER.glob("*.py"), key=Path.read_text)


def found_in(script: Path) -> dict[str, Any]:
    """What a lesson computes, by question."""
    found: dict[str, Any] = {}

    def check(question: str, prediction: object, value: object) -> None:
        found[question] = value

    with patch.object(course, "check", check), redirect_stdout(StringIO()):
        runpy.run_path(str(script))
    return found


def cells(script: Path) -> Iterator[tuple[bool, str]]:
    """Whether a cell is text, and what stands in it."""
    _, *rest = re.split(r"^# %%(.*)\n", script.read_text("utf-8"), flags=re.M)
    for kind, source in zip(rest[::2], rest[1::2], strict=True):
        text = "markdown" in kind
        yield text, re.sub(r"^# ?", "", source, flags=re.M) if text else source.strip()


def answer(question: str, found: object) -> str:
    return " ".join(course.check(question, ..., found, reveal=True).split())


def key() -> str:
    parts = [HEAD]
    for script in scripts():
        found = found_in(script)
        titles = re.findall(r"^# #+ (.+)$", script.read_text("utf-8"), re.M)
        parts.append(f"## {titles[0]}\n")
        for title in titles:
            number = title.split()[0]
            if number in found:
                about = course.questions()[number]
                parts.append(
                    f"**{title}** {answer(number, found[number])} *Source:* {about['source']}.\n"
                )
                parts.append(
                    "".join(f"- `{wrong}`: {words}\n" for wrong, words in about["wrong"].items())
                )
    return "\n".join(parts)


def slides() -> str:
    made: list[str] = []
    for script in scripts():
        found = found_in(script)
        for text, source in cells(script):
            if text:
                made.append(as_html(source))
                questions = re.findall(r"^## (\d\.\d) ", source, re.M)
            elif re.search(r"[=:] \.\.\.", source):
                made[-1] += f"<pre>{html.escape(source)}</pre>"
                (number,) = questions
                made.append(
                    f'<h2>{number}</h2><p class="answer">{inline(answer(number, found[number]))}</p>'
                )
    return PAGE % "\n".join(f"<section>{slide}</section>" for slide in made)


def as_html(text: str) -> str:
    """Of Markdown, what the lessons use: titles, paragraphs, lists of one-line entries."""
    made: list[str] = []
    for block in text.strip().split("\n\n"):
        marks, _, rest = block.partition(" ")
        if marks.strip("#") == "":
            made.append(f"<h{len(marks)}>{inline(rest)}</h{len(marks)}>")
        elif marks == "-":
            entries = [f"<li>{inline(line[2:])}</li>" for line in block.split("\n")]
            made.append(f"<ul>{''.join(entries)}</ul>")
        else:
            made.append(f"<p>{inline(block)}</p>")
    return "".join(made)


def inline(text: str) -> str:
    """Code is marked; a link is its text."""
    plain = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(plain))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    parser.add_argument(
        "--slides", type=Path, metavar="FILE", help="write the slides to FILE instead"
    )
    options = parser.parse_args()
    if options.check:
        sys.exit(int(KEY.read_text("utf-8") != key()))
    file, text = (options.slides, slides()) if options.slides else (KEY, key())
    atomic_files.write(file, text.encode())


if __name__ == "__main__":
    main()
