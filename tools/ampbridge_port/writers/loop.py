"""What modules for all frameworks have in common: alarms, a schedule of precisions, a demo's loop."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ampbridge.policies.policy import Policy
from ampbridge.training.recipe import Recipe, Scaling
from ampbridge_port.writers import Comments
from ampbridge_port.writers import loop_text as text
from ampbridge_port.writers.code import (
    Group,
    fill,
    laid_out,
    literal,
    number,
    program,
    recipe_comment,
)

# -- numbers


def step_numbers(recipe: Recipe, comments: Comments) -> dict[str, tuple[str, str]]:
    """The constants of accumulation and of clipping, those that it has, with their comments."""
    values: dict[str, tuple[str, str]] = {}
    if recipe.accumulate > 1:
        values["ACCUMULATE"] = (str(recipe.accumulate), comments.get("step.accumulate", ""))
    if recipe.clipping is not None:
        name, limit = recipe.clipping
        values[name.upper()] = (number(limit), comments.get(f"step.{name}", ""))
    return values


# -- schedules


def precision_names(recipe: Recipe) -> Mapping[Policy, str]:
    """The name of each policy's constant: ``O1_FLOAT16``, or ``PRECISION`` where there is one alone."""
    if recipe.schedule is None:
        return {recipe.policy: "PRECISION"}
    names: dict[Policy, str] = {}
    for policy in recipe.policies:
        short = re.sub(r"\W", "_", f"{policy.level} {policy.dtype}").upper()
        taken = [name for name in names.values() if name.startswith(short)]
        names[policy] = f"{short}_{len(taken) + 1}" if taken else short
    return names


def schedule_section(recipe: Recipe) -> str:
    """``class Schedule``, which says in what the next step computes; empty for a policy alone."""
    if recipe.schedule is None:
        return ""
    data, names = recipe.schedule.to_dict(), precision_names(recipe)
    if "steps" in data:
        steps = [f"({first}, {names[Policy.from_dict(policy)]})" for first, policy in data["steps"]]
        group = Group("STEPS = (", tuple(steps))
        return fill(text.SCHEDULE_BY_STEPS, steps=laid_out(group, column=4))
    use, otherwise = (names[Policy.from_dict(data[key])] for key in ("use", "otherwise"))
    if "loss_below" in data:
        return fill(
            text.SCHEDULE_BY_LOSS,
            use=use,
            otherwise=otherwise,
            loss_below=number(data["loss_below"]),
            back_above=number(data["back_above"]),
        )
    return fill(
        text.SCHEDULE_BY_SKIPS,
        use=use,
        otherwise=otherwise,
        skips=str(data["skips"]),
        back_after=literal(data["back_after"]),
    )


# -- loss scaling


def rule_in_words(scaling: Scaling) -> str:
    """When the loss scale grows and when it shrinks."""
    overflows = "at each overflow"
    if scaling.backoff_interval > 1:
        overflows = {
            "consecutive": "after BACKOFF_INTERVAL overflows in a row",
            "until_finite": "at each overflow from the BACKOFF_INTERVAL-th in a row on",
            "until_growth": "at each overflow from the BACKOFF_INTERVAL-th since it last grew on",
        }[scaling.backoff_count]
    delay = ", the first GROWTH_DELAY not counted" if scaling.growth_delay else ""
    return f"It grows after GROWTH_INTERVAL finite steps in a row{delay},\nand shrinks {overflows}."


# -- what is trained


def model_parts(recipe: Recipe, method: str) -> dict[str, str]:
    """Of ``make_model``: layers of the names that the recipe keeps, added by ``method``.

    So the demo runs as it is; of other patterns nobody knows what they name.
    """
    kept = dict.fromkeys(entry for policy in recipe.policies for entry in policy.keep)
    layers = {
        name: "nn.Sequential(nn.Linear(8, 8))" if below else "nn.Linear(8, 8)"
        for name, below in ((entry.removesuffix(".*"), entry.endswith(".*")) for entry in kept)
        if name.isidentifier() and name.islower()
    }
    if not layers:
        return {"model": "return", "kept_layers": ""}
    lines = [f'model.{method}("{name}", {layer})\n' for name, layer in layers.items()]
    return {"model": "model =", "kept_layers": "".join(lines) + "return model"}


# -- the loop


def drops_microbatches(recipe: Recipe) -> bool:
    """Whether each micro-batch is checked and dropped alone."""
    return recipe.accumulate > 1 and recipe.on_overflow == "drop_microbatch"


def batch_note(recipe: Recipe) -> str:
    """What ``batches`` yields."""
    if recipe.accumulate == 1:
        return "each a batch"
    return f"each one of {recipe.accumulate} micro-batches a step"


def alarm_limits(recipe: Recipe) -> tuple[int | None, int | None]:
    """After how many skipped steps in a row to warn, and to raise, where the recipe sets it.

    No framework has the alarms that ampbridge has by default.
    """
    scaling, usual = recipe.scaler or Scaling(), Scaling()
    warn, most = scaling.warn_after_skips, scaling.max_consecutive_skips
    return (
        None if warn == usual.warn_after_skips else warn,
        None if most == usual.max_consecutive_skips else most,
    )


def alarms(recipe: Recipe) -> str:
    """What a step does when too many in a row were skipped, as the recipe has set it."""
    warn, most = alarm_limits(recipe)
    lines = [] if warn is None else [fill(text.WARN, steps=str(warn))]
    lines += [] if most is None else [fill(text.RAISE, steps=str(most))]
    return text.COUNT_SKIPS + "".join(lines) if lines else ""


def train_section(recipe: Recipe) -> str:
    """``def train(step, batches)``, which a schedule needs and a demo has."""
    scheduled = recipe.schedule is not None
    return fill(
        text.TRAIN,
        before="schedule = Schedule()" if scheduled else "",
        before_step=text.CHANGE_PRECISION if scheduled else "",
        after_step=after_step(recipe) if scheduled else "",
    )


def after_step(recipe: Recipe) -> str:
    """A dropped micro-batch is no step: another one is taken in its place."""
    if recipe.on_overflow == "drop_microbatch":
        return "if result.applied:\n    schedule.after(result)"
    if recipe.accumulate == 1:
        return "schedule.after(result)"
    return "if result.applied or result.overflowed:\n    schedule.after(result)"


NUMBERS = ("scaler", "step")
"""Sections of a recipe whose numbers are constants of a module."""


def module(
    header: str,
    parts: Mapping[str, str],
    imports: Callable[[str], str],
    numbers: str,
    sections: Sequence[str],
    recipe: Recipe,
    comments: Comments,
) -> str:
    """The sections under ``header``: imports that they need, the recipe, and its numbers."""
    filled = fill(
        header,
        **parts,
        imports=imports("".join([numbers, *sections])),
        recipe_comment=recipe_comment(recipe, comments, NUMBERS),
        constants=numbers,
    )
    return program(filled, *sections)
