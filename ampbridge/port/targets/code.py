"""Code as text: templates with ``$parts``, and values as literals with their exact numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from string import Template
from textwrap import indent, wrap

import numpy as np

from ampbridge.recipe import Recipe

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
    """A str, bool, number, None or sequence of them, as ruff formats it."""
    if isinstance(value, str):
        return repr(value) if '"' in value else json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, (list, tuple)):
        return sequence(
            [literal(item) for item in value], "[]" if isinstance(value, list) else "()"
        )
    return repr(value)


def sequence(items: Sequence[str], brackets: str = "()") -> str:
    """Items in brackets on one line; a tuple of one gets its comma."""
    comma = "," if brackets == "()" and len(items) == 1 else ""
    return f"{brackets[0]}{', '.join(items)}{comma}{brackets[1]}"


def call(function: str, arguments: Iterable[str], room: int = LINE_LENGTH) -> str:
    """``function(arguments)`` on one line where there is room, else one argument a line."""
    arguments = list(arguments)
    line = f"{function}({', '.join(arguments)})"
    if len(line) <= room and "\n" not in line:
        return line
    return f"{function}(\n{indented(arguments)})"


def indented(items: Iterable[str]) -> str:
    """Items one a line, or more where they have several, each with a comma."""
    return indent("".join(f"{item},\n" for item in items), INDENT)


def exploded(items: Sequence[str], before: str = "") -> str:
    """A tuple on one line after ``before`` where there is room, else one item a line."""
    line = sequence(items)
    if len(before) + len(line) <= LINE_LENGTH:
        return line
    return f"(\n{indented(items)})"


def words(names: Sequence[str]) -> str:
    """A list of names; many of them as one string that is split."""
    if len(names) <= 4:
        return literal(list(names))
    lines = wrap(" ".join(names), LINE_LENGTH - 12, break_long_words=False, break_on_hyphens=False)
    strings = [literal(line + " ") for line in lines[:-1]] + [literal(lines[-1])]
    if len(strings) == 1:
        return f"{strings[0]}.split()"
    return f"(\n{indent(chr(10).join(strings), INDENT)}\n).split()"


def constants(values: Mapping[str, tuple[str, str]]) -> str:
    """``NAME = value  # comment`` lines."""
    return "".join(
        f"{name} = {value}  # {comment}\n" if comment else f"{name} = {value}\n"
        for name, (value, comment) in values.items()
    )


def recipe_comment(recipe: Recipe, comments: Mapping[str, str]) -> str:
    """The recipe as TOML in a block of comments, what keys were called in the source behind them."""
    keys = [f"{section}.{key}" for section, keys in recipe.to_dict().items() for key in keys]
    text = recipe.to_toml({key: comments.get(key, _NO_COMMENT) for key in keys})
    lines = [line.removesuffix(f" # {_NO_COMMENT}") for line in text.splitlines()[2:]]
    return "\n".join(f"#     {line}".rstrip() for line in lines)


_NO_COMMENT = "-"
