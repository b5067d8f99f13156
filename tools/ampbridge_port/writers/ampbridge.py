"""A recipe as ampbridge's own code; the demo is on the NumPy backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import Schedule
from ampbridge.training.recipe import Recipe, Scaling
from ampbridge_port.writers import Comments, Form, Loss, Target
from ampbridge_port.writers import loop_text as text
from ampbridge_port.writers.code import (
    Group,
    Item,
    fill,
    float32_number,
    laid_out,
    literal,
    named,
    program,
    recipe_comment,
)


def recipe_code(recipe: Recipe, before: str = "") -> str:
    """``amp.Recipe(...)``, which makes an equal one, as it stands after ``before`` on its line."""
    usual = Recipe(recipe.policy, schedule=recipe.schedule)
    arguments: list[Item] = []
    if recipe.schedule is None:
        arguments.append(_policy(recipe.policy))
    if recipe.scaler != usual.scaler:
        arguments.append(_scaling(recipe.scaler))
    if recipe.schedule is not None:
        arguments.append(_schedule(recipe.schedule))
    others = [f.name for f in fields(recipe) if f.name not in ("policy", "scaler", "schedule")]
    for name in others:
        value = getattr(recipe, name)
        if value != getattr(usual, name):
            arguments.append(named(name, value))
    return laid_out(Group("amp.Recipe(", tuple(arguments)), column=len(before))


def _policy(policy: Policy, name: str = "") -> Group:
    usual = Policy(policy.level, policy.dtype).to_dict()
    placed = [literal(policy.level)] + ([literal(policy.dtype)] if policy.level != "O0" else [])
    changed = {k: v for k, v in policy.to_dict().items() if v != usual[k]}
    return Group(f"{name}amp.Policy(", (*placed, *_named(changed)))


def _scaling(scaling: Scaling | None) -> Item:
    if scaling is None:
        return "scaler=None"
    changes = scaling.changes()
    like = changes.pop("like", None)
    numbers = tuple(
        f"{name}={float32_number(value) if isinstance(value, float) else literal(value)}"
        for name, value in changes.items()
    )
    if like is None:
        return Group("scaler=amp.Scaling(", numbers)
    return Group("scaler=amp.Scaling.like(", (literal(like), *numbers))


def _schedule(schedule: Schedule) -> Group:
    data = schedule.to_dict()
    if "steps" in data:
        steps = [(first, Policy.from_dict(policy)) for first, policy in data["steps"]]
        pairs = tuple(Group("(", (str(first), _policy(policy))) for first, policy in steps)
        return Group("schedule=amp.Schedule(", (Group("[", pairs, "]"),))
    policies = [_policy(Policy.from_dict(data[k]), f"{k}=") for k in ("use", "otherwise")]
    rest = {k: v for k, v in data.items() if k not in ("use", "otherwise") and v is not None}
    return Group("schedule=amp.Schedule.when(", (*policies, *_named(rest)))


def _named(arguments: Mapping[str, Any]) -> list[Item]:
    return [named(name, value) for name, value in arguments.items()]


DEMO = """\
def make_model():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))


def make_optimizer(model):
    return optim.SGD(model.parameters(), lr=0.01)


def make_loss():
    return nn.mse_loss


def batches(count=100, size=16):
    rng = np.random.default_rng(0)
    for _ in range(count):
        x = rng.standard_normal((size, 32), dtype=np.float32)
        yield x, x[:, :8] - x[:, 8:16]
"""


def module_with_ampbridge(
    recipe: Recipe,
    comments: Comments,
    framework: str,
    imports: Sequence[str] = (),
    demo: str = "",
    fit: str = "",
) -> str:
    """A module with ``RECIPE`` and ``train_step``; ``comments`` are those of the recipe that was read.

    ``fit``: the same for a framework's own training loop.
    """
    needed = sorted(("import ampbridge as amp", *imports), key=lambda line: line[:4] == "from")
    return program(
        fill(
            text.WITH_AMPBRIDGE,
            framework=framework,
            imports="\n".join(needed),
            recipe_comment=recipe_comment(recipe, comments),
            recipe=f"RECIPE = {recipe_code(recipe, before='RECIPE = ')}",
            more=program(fit, demo),
        )
    )


def demo_section(trained: str, loss: str, device: str = "", model: str = "model") -> str:
    """What ``trained`` makes, in a loop that runs."""
    return fill(text.DEMO_WITH_AMPBRIDGE, trained=trained, loss=loss, device=device, model=model)


def _module(recipe: Recipe, comments: Comments, demo: bool) -> str:
    if not demo:
        return module_with_ampbridge(recipe, comments, "any framework")
    return module_with_ampbridge(
        recipe,
        comments,
        "NumPy",
        ["import numpy as np", "from ampbridge_numpy import nn, optim"],
        demo_section(DEMO, "make_loss()(model(x), y)"),
    )


def no_losses(recipe: Recipe) -> tuple[Loss, ...]:
    """Ampbridge does what a recipe says."""
    return ()


_FORM = Form(_module, no_losses)
TARGET = Target(native=_FORM, with_ampbridge=_FORM)
