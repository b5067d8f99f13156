"""Recipes as ampbridge's own code, for one framework or any; the demo of the latter is on NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill as paragraph
from typing import Any

from ampbridge.training.recipe import Recipe
from ampbridge_port.writers import Target, code
from ampbridge_port.writers.code import BATCHES, LINE_LENGTH, Comments, fill, program

MODULE = '''\
"""Mixed precision with $framework and ampbridge.$why"""

$imports

RECIPE = amp.Recipe.from_toml(r"""
$recipe
""")


def train_step(loss_fn, model, optimizer):
    """``step(x, y)`` trains by one $batch; ``loss_fn(model, x, y)`` is the loss."""
    return amp.train_step(loss_fn, model, optimizer, recipe=RECIPE)
'''

DEMO = """\
$made

def loss_fn(model, x, y):
    return $loss

$step
for x, y in batches():
    print(step(x, y))
"""

STEP = "step = train_step(loss_fn, model, optimizer)"

WITHOUT_KEPT_LAYERS = """\
# This model does not have the layers that the recipe keeps in float32.
recipe = RECIPE.replace(schedule=None, policy=RECIPE.policy.replace(keep=[]))
step = amp.train_step(loss_fn, model, optimizer, recipe=recipe)
"""

NUMPY = """\
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = optim.SGD(model.parameters(), lr=0.01)
"""


def module(
    recipe: Recipe,
    comments: Comments,
    framework: str,
    *sections: str,
    imports: Sequence[str] = (),
    lacks: Sequence[str] = (),
) -> str:
    """A module with ``RECIPE``, ``train_step`` and further sections."""
    needed = ["import ampbridge as amp", *imports]
    needed += ["import numpy as np"] if "np." in "".join(sections) else []
    why = paragraph(f"{framework} itself has nothing for {', '.join(lacks)}.", LINE_LENGTH)
    toml = recipe.to_toml({key: said.replace('"""', "'''") for key, said in comments.items()})
    head = fill(
        MODULE,
        framework=framework,
        why=f"\n\n{why}\n" if lacks else "",
        imports="\n".join(sorted(needed, key=lambda line: (line[:4] == "from", line))),
        recipe=toml.partition("\n\n")[2],  # without the line that tells what it is
        batch="batch" if recipe.accumulate == 1 else "micro-batch",
    )
    return program(head, *sections)


def exchanged(recipe: Recipe, changes: Mapping[tuple[str, str], str]) -> Recipe:
    """``recipe`` with other values for some pairs of a key and a value, in each of its policies."""

    def changed(data: Any) -> Any:
        if isinstance(data, dict):
            pairs = data.items()
            return {
                k: changes.get((k, x), x) if isinstance(x, str) else changed(x) for k, x in pairs
            }
        return [changed(each) for each in data] if isinstance(data, list) else data

    return Recipe.from_dict(changed(recipe.to_dict()))


def demo(recipe: Recipe, made: str, loss: str) -> str:
    """A program that trains what ``made`` makes; ``loss`` is that of ``model``, ``x`` and ``y``."""
    keeps = any(policy.keep for policy in recipe.policies)
    step = WITHOUT_KEPT_LAYERS if keeps else STEP
    return code.demo(BATCHES, body=fill(DEMO, made=made, step=step, loss=loss))


def _code(recipe: Recipe, comments: Comments, with_demo: bool) -> str:
    if not with_demo:
        return module(recipe, comments, "any framework")
    shown = demo(recipe, NUMPY, "nn.mse_loss(model(x), y)")
    imports = ["from ampbridge_numpy import nn, optim"]
    return module(recipe, comments, "NumPy", shown, imports=imports)


TARGET = Target(_code, _code)
