"""Code as text: templates with ``$parts``, and values as literals with their exact numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template
from textwrap import indent, wrap
from typing import TypeAlias

import numpy as np

from ampbridge.training.recipe import Recipe
from ampbridge.training.recipe_file import text_of

LINE_LENGTH = 100
INDENT = " " * 4


def fill(template: str, **parts: str) -> str:
    """``template`` with every ``$part`` replaced.

    A part alone on its line may have several lines, which are indented as it is, or none: then the
    line goes as well. Every part must be used, and every one that the template names be given.
    """
    used = set(re.findall(r"\$(\w+)", template))
    assert used == parts.keys(), used ^ parts.keys()
    lines = []
    for line in template.splitlines():
        block = re.fullmatch(r"( *)\$(\w+)", line)
        if block is None:
            lines.append(Template(line).substitute(parts))
        elif parts[block[2]]:
            lines.append(indent(parts[block[2]].rstrip("\n"), block[1]))
    return "\n".join(lines) + "\n"


def program(*sections: str) -> str:
    """Sections of a module, those that are not empty, two blank lines between them."""
    text = "\n\n".join(section.strip("\n") + "\n" for section in sections if section)
    return re.sub(r"\n\n\n+(?= )", "\n\n", text)  # where parts of an indented block are empty


def number(value: float) -> str:
    """A float as a literal, exact: ``1024.0``, ``2.0**24``, ``0.1``."""
    mantissa, exponent = math.frexp(value)
    if mantissa == 0.5 and not 2**-7 < value < 2**17:
        return f"2.0**{exponent - 1}"
    return repr(float(value))


def float32_number(value: float) -> str:
    """A float of float32 precision as the shortest literal that becomes the same: ``0.8``."""
    return number(value if math.frexp(value)[0] == 0.5 else float(str(np.float32(value))))


def literal(value: object) -> str:
    """A str, bool, number or None, as ruff writes it."""
    if isinstance(value, str):
        return repr(value) if '"' in value else json.dumps(value, ensure_ascii=False)
    return number(value) if isinstance(value, float) else repr(value)


@dataclass(frozen=True)
class Group:
    """Items between brackets: ``Group("amp.Policy(", ('"O1"',))``; ``closed`` ends what ``opened`` began."""

    opened: str
    items: tuple[Item, ...]
    closed: str = ")"


Item: TypeAlias = "str | Group"


def named(name: str, value: object) -> Item:
    """An argument by keyword; a list or tuple as a group."""
    if isinstance(value, (list, tuple)):
        return Group(f"{name}=[", tuple(literal(item) for item in value), "]")
    return f"{name}={literal(value)}"


def laid_out(item: Item, column: int = 0, after: int = 0) -> str:
    """Code on one line where there is room from ``column`` on, else with one item a line.

    ``after``: how many characters follow it on its last line. Further lines are indented from column 0.
    """
    line = _on_one_line(item)
    fits = "\n" not in line and column + len(line) + after <= LINE_LENGTH
    if isinstance(item, str) or fits:
        return line
    lines = [laid_out(each, column + len(INDENT), after=1) + "," for each in item.items]
    return "\n".join([item.opened, *(indent(each, INDENT) for each in lines), item.closed])


def _on_one_line(item: Item) -> str:
    if isinstance(item, str):
        return item
    comma = "," if item.opened.endswith("= (") and len(item.items) == 1 else ""
    return f"{item.opened}{', '.join(map(_on_one_line, item.items))}{comma}{item.closed}"


def words(name: str, names: Sequence[str], column: int = len(INDENT)) -> Item:
    """An argument of an indented call: names without blanks; many of them as text that is split.

    ``column``: where it stands.
    """
    if len(names) <= 4:
        return named(name, names)
    text = " ".join(names)
    line = f"{name}={literal(text)}.split()"
    if column + len(line) + 1 <= LINE_LENGTH:
        return line
    room = LINE_LENGTH - column - len(INDENT) - 2
    lines = [text] if len(text) <= room else [f"{each} " for each in wrap(text, room - 1)]
    lines[-1] = lines[-1].rstrip()
    strings = "\n".join(literal(each) for each in lines)
    return f"{name}=(\n{indent(strings, INDENT)}\n).split()"


def constant_words(name: str, names: Sequence[str]) -> str:
    """``NAME = ...``, a set of names or, as there are many, text that is split."""
    if len(names) <= 4:
        return laid_out(Group(f"{name} = {{", tuple(map(literal, names)), "}"))
    return laid_out(words(f"{name} ", names, column=0)).replace("=", "= ", 1)


def constants(values: Mapping[str, tuple[str, str]]) -> str:
    """``NAME = value  # comment`` lines."""
    return "".join(
        f"{name} = {value}  # {comment}\n" if comment else f"{name} = {value}\n"
        for name, (value, comment) in values.items()
    )


def recipe_comment(
    recipe: Recipe, comments: Mapping[str, str], leave_out: Sequence[str] = ()
) -> str:
    """The recipe as TOML in a block of comments, what keys were called in the source behind them.

    ``leave_out``: sections that stand elsewhere.
    """
    data = {name: keys for name, keys in recipe.to_dict().items() if name not in leave_out}
    keys = [f"{section}.{key}" for section, keys in data.items() for key in keys]
    text = text_of(data, {key: comments.get(key, _NO_COMMENT) for key in keys})
    lines = [line.removesuffix(f" # {_NO_COMMENT}") for line in text.splitlines()[2:]]
    return "\n".join(f"#     {line}".rstrip() for line in lines)


_NO_COMMENT = "-"
