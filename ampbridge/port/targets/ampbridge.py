"""A recipe as ampbridge's own code; as a program, on the NumPy backend."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent
from typing import Any

from ampbridge.policy import Policy
from ampbridge.port.targets import Comments, Form, Loss, Target
from ampbridge.port.targets.code import (
    INDENT,
    call,
    fill,
    float32_number,
    indented,
    literal,
    recipe_comment,
)
from ampbridge.recipe import Recipe, Scaling
from ampbridge.schedule import Schedule


def recipe_code(recipe: Recipe) -> str:
    """``amp.Recipe(...)``, which makes an equal one."""
    usual = Recipe(recipe.policy)
    first = policy_code(recipe.policy) if recipe.schedule is None else None
    arguments = {
        "scaler": None if recipe.scaler == usual.scaler else _scaling_code(recipe.scaler),
        "schedule": None if recipe.schedule is None else _schedule_code(recipe.schedule),
    }
    for name in ("accumulate", "clip_norm", "on_overflow", "save_dtype", "master_grad"):
        value = getattr(recipe, name)
        arguments[name] = None if value == getattr(usual, name) else literal(value)
    named = [f"{name}={code}" for name, code in arguments.items() if code is not None]
    return call("amp.Recipe", [*([first] if first else []), *named], room=80)


def policy_code(policy: Policy) -> str:
    """``amp.Policy(...)``, which makes an equal one."""
    usual = Policy(policy.level, policy.dtype)
    placed = [literal(policy.level)] + ([literal(policy.dtype)] if policy.level != "O0" else [])
    named = _named(
        {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in policy.to_dict().items()
            if name not in ("level", "dtype") and value != usual.to_dict()[name]
        }
    )
    return call("amp.Policy", [*placed, *named], room=88)


def _scaling_code(scaling: Scaling | None) -> str:
    if scaling is None:
        return "None"
    changes = scaling.changes()
    like = changes.pop("like", None)
    named = [
        f"{name}={float32_number(value) if isinstance(value, float) else literal(value)}"
        for name, value in changes.items()
    ]
    if like is None:
        return call("amp.Scaling", named, room=72)
    return call("amp.Scaling.like", [literal(like), *named], room=72)


def _schedule_code(schedule: Schedule) -> str:
    data = schedule.to_dict()
    if "steps" in data:
        steps = [(first, policy_code(Policy.from_dict(policy))) for first, policy in data["steps"]]
        pairs = [_pair(str(first), code) for first, code in steps]
        return f"amp.Schedule(\n{INDENT}[\n{indent(indented(pairs), INDENT)}{INDENT}]\n)"
    policies = {k: policy_code(Policy.from_dict(data[k])) for k in ("use", "otherwise")}
    rest = {k: v for k, v in data.items() if k not in policies and v is not None}
    named = [f"{k}={code}" for k, code in policies.items()]
    return call("amp.Schedule.when", [*named, *_named(rest)], room=72)


def _pair(first: str, second: str) -> str:
    """A tuple of two, on three lines where the second has several."""
    return f"(\n{indented([first, second])})" if "\n" in second else f"({first}, {second})"


def _named(arguments: Mapping[str, Any]) -> list[str]:
    return [f"{name}={literal(value)}" for name, value in arguments.items()]


PROGRAM = '''\
"""Training in mixed precision with ampbridge, on its NumPy backend."""

import numpy as np

import ampbridge as amp
from ampbridge_numpy import nn, optim

# The recipe, as `ampbridge port --to toml` has it:
#
$recipe_comment
RECIPE = $recipe


# What is trained: put your own in place of these four.


def make_model():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))


def make_optimizer(model):
    return optim.SGD(model.parameters(), lr=0.01)


def loss_fn(model, x, y):
    return nn.mse_loss(model(x), y)


def batches(count=100, size=16):
    rng = np.random.default_rng(0)
    for _ in range(count):
        x = rng.standard_normal((size, 32), dtype=np.float32)
        yield x, x[:, :8] - x[:, 8:16]


def main():
    model = make_model()
    step = amp.train_step(loss_fn, model, make_optimizer(model), recipe=RECIPE)
    for x, y in batches():
        print(step(x, y))


if __name__ == "__main__":
    main()
'''


def _program(recipe: Recipe, comments: Comments) -> str:
    return fill(
        PROGRAM, recipe_comment=recipe_comment(recipe, comments), recipe=recipe_code(recipe)
    )


def no_losses(recipe: Recipe) -> tuple[Loss, ...]:
    """Ampbridge does what a recipe says."""
    return ()


_FORM = Form(_program, no_losses)
TARGET = Target(native=_FORM, with_ampbridge=_FORM)
