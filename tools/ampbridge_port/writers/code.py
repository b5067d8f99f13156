"""Code as text: templates with ``$parts``, and values as literals with their exact numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from string import Template
from textwrap import indent

import numpy as np

from ampbridge.training.recipe import Recipe

LINE_LENGTH = 100

Comments = Mapping[str, str]
"""Where the value of a key was read: ``{"scaler.init_scale": "train.py:7 init_loss_scaling=1024"}``."""

ALWAYS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
"""The settings that change every dynamic loss scale."""

BATCHES = '''\
def batches(count=100, size=16):
    """Random inputs, and targets that can be learned from them."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        x = rng.standard_normal((size, 32), dtype=np.float32)
        yield x, x[:, :8] - x[:, 8:16]
'''

MAIN = """\
def main():
    $body


if __name__ == "__main__":
    main()
"""


def fill(template: str, **parts: str) -> str:
    """``template`` with every ``$part`` replaced.

    A part alone on its line may have several lines, which are indented as it is, or none: then the
    line goes as well.
    """
    lines = []
    for line in template.splitlines():
        block = re.fullmatch(r"( *)\$(\w+)", line)
        if block is None:
            lines.append(Template(line).substitute(parts))
        elif parts[block[2]]:
            lines.append(indent(parts[block[2]].rstrip("\n"), block[1]))
    return "\n".join(lines) + "\n"


def program(*sections: str) -> str:
    """Sections of a module, those that are not empty, with two blank lines between them."""
    text = "\n\n".join(section.strip("\n") + "\n" for section in sections if section.strip())
    return re.sub(r"\n\n\n+(?= )", "\n\n", text)  # where a part of an indented block is empty


def demo(*sections: str, body: str) -> str:
    """A program that ends a module, with a ``main``."""
    return program("# -- A demo", *sections, fill(MAIN, body=body))


def literal(value: object) -> str:
    """A str, number, bool or None as ruff formats it: ``1024.0``, ``2.0**24``, ``0.8``."""
    if isinstance(value, str):
        return repr(value) if '"' in value else json.dumps(value, ensure_ascii=False)
    if not isinstance(value, float):
        return repr(value)
    mantissa, exponent = math.frexp(value)
    if mantissa == 0.5:
        return repr(value) if 2**-7 < value < 2**17 else f"2.0**{exponent - 1}"
    short = float(str(np.float32(value)))  # of a number that was rounded to float32
    return repr(short if float(np.float32(value)) == value else value)


def laid_out(opening: str, values: Sequence[str], closing: str = ")", column: int = 0) -> str:
    """Values between brackets: on one line if it fits from ``column`` on, else one value a line."""
    line = f"{opening}{', '.join(values)}{closing}"
    if column + len(line) <= LINE_LENGTH:
        return line
    return "\n".join([opening, *(f"    {value}," for value in values), closing])


def commented(line: str, comment: str) -> str:
    """``line`` with a comment behind it, if there is one."""
    return f"{line}  # {comment}\n" if comment else f"{line}\n"


def constants(recipe: Recipe, comments: Comments, of_scaler: Sequence[str]) -> str:
    """The numbers of the scaler that a module uses, and of the step, each with its origin."""
    found = {f"scaler.{name}": getattr(recipe.scaler, name) for name in of_scaler}
    if recipe.accumulate > 1:
        found["step.accumulate"] = recipe.accumulate
    if recipe.clipping:
        found[f"step.{recipe.clipping.name}"] = recipe.clipping.limit
    lines = {key: f"{key.partition('.')[2].upper()} = {literal(found[key])}" for key in found}
    return "".join(commented(line, comments.get(key, "")) for key, line in lines.items())
