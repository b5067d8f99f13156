"""What programs for torch and for Paddle have in common: a loop in Python, whose numbers are Python's.

The loss scale is a float on the host: a step waits for the device in any case, to know whether its
gradients are finite before the optimizer runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from ampbridge.policy import Policy
from ampbridge.port.targets import Comments
from ampbridge.port.targets import eager_text as text
from ampbridge.port.targets.code import (
    Group,
    constants,
    fill,
    float32_number,
    laid_out,
    literal,
    number,
)
from ampbridge.recipe import Recipe, Scaling

# -- precision


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


def loss_scale_section(scaling: Scaling, comments: Comments) -> str:
    """``class LossScale``: the rule of ``scaling`` and no more of it than it uses."""
    if not scaling.dynamic:
        numbers = {"INIT_SCALE": _number(scaling, "init_scale", comments)}
        return fill(text.STATIC_LOSS_SCALE, constants=constants(numbers))
    section = fill(
        text.LOSS_SCALE,
        constants=_scale_constants(scaling, comments),
        rule=_rule(scaling),
        counters=_counters(scaling),
        finite=_finite(scaling),
        grow=_grow(scaling),
        overflow=_overflow(scaling),
        fall=_fall(scaling),
    )
    return f"{section}\n\n{text.FLOAT32}" if "float32(" in section else section


def _scale_constants(scaling: Scaling, comments: Comments) -> str:
    names = ["init_scale", "growth_factor", "backoff_factor", "growth_interval"]
    names += ["backoff_interval"] if scaling.backoff_interval > 1 else []
    names += ["growth_delay"] if scaling.growth_delay else []
    names += ["min_scale", "max_scale"]
    return constants({name.upper(): _number(scaling, name, comments) for name in names})


def _number(scaling: Scaling, name: str, comments: Comments) -> tuple[str, str]:
    """A number with all the digits that it has in float32, in which the rule computes."""
    value, comment = getattr(scaling, name), comments.get(f"scaler.{name}", "")
    if not isinstance(value, float):
        return literal(value), comment
    short, exact = float32_number(value), number(value)
    return exact, comment or ("" if short == exact else f"{short} in float32")


def _rule(scaling: Scaling) -> str:
    overflows = "at each overflow"
    if scaling.backoff_interval > 1:
        overflows = {
            "consecutive": "after BACKOFF_INTERVAL overflows in a row",
            "until_finite": "at each overflow from the BACKOFF_INTERVAL-th in a row on",
            "until_growth": "at each overflow from the BACKOFF_INTERVAL-th since it last grew on",
        }[scaling.backoff_count]
    delay = ", the first GROWTH_DELAY not counted" if scaling.growth_delay else ""
    return f"It grows after GROWTH_INTERVAL finite steps in a row{delay},\nand shrinks {overflows}."


def _counters(scaling: Scaling) -> str:
    counters = f"self.finite_steps = {_first_count(scaling)}\n"
    return counters + ("self.overflows = 0\n" if scaling.backoff_interval > 1 else "")


def _first_count(scaling: Scaling) -> str:
    return "-GROWTH_DELAY" if scaling.growth_delay else "0"


def _finite(scaling: Scaling) -> str:
    lines = "self.finite_steps += 1\n"
    if scaling.backoff_interval > 1 and scaling.backoff_count != "until_growth":
        lines += "self.overflows = 0\n"
    return lines


def _grow(scaling: Scaling) -> str:
    larger = "self.value * GROWTH_FACTOR"
    if scaling.at_max_scale == "clamp":
        scale = _rounded(f"min({larger}, MAX_SCALE)", scaling.growth_factor)
        lines = [f"self.value = {scale}"]
    else:
        lines = [
            f"if {larger} <= MAX_SCALE:",
            f"    self.value = {_rounded(larger, scaling.growth_factor)}",
        ]
    lines.append("self.finite_steps = 0")
    if scaling.backoff_interval > 1 and scaling.backoff_count == "until_growth":
        lines.append("self.overflows = 0")
    return "\n".join(lines)


def _overflow(scaling: Scaling) -> str:
    lines = f"self.finite_steps = {_first_count(scaling)}\n"
    return lines + ("self.overflows += 1\n" if scaling.backoff_interval > 1 else "")


def _fall(scaling: Scaling) -> str:
    lines = []
    if scaling.at_min_scale == "raise":
        lines += [
            "if self.value == MIN_SCALE:",
            '    raise RuntimeError("overflow at the smallest loss scale")',
        ]
    smaller = _rounded("max(self.value * BACKOFF_FACTOR, MIN_SCALE)", scaling.backoff_factor)
    lines.append(f"self.value = {smaller}")
    if scaling.backoff_interval == 1:
        return "\n".join(lines)
    rest = "0" if scaling.backoff_count == "consecutive" else "BACKOFF_INTERVAL - 1"
    body = "\n".join(f"    {line}" for line in [*lines, f"self.overflows = {rest}"])
    return f"if self.overflows >= BACKOFF_INTERVAL:\n{body}"


def _rounded(scale: str, factor: float) -> str:
    """The scale as float32; a product with a power of two is one as it is."""
    return scale if math.frexp(factor)[0] == 0.5 else f"float32({scale})"


# -- the loop


def drops_microbatches(recipe: Recipe) -> bool:
    """Whether each micro-batch is checked and dropped alone."""
    return recipe.accumulate > 1 and recipe.on_overflow == "drop_microbatch"


def batch_note(recipe: Recipe) -> str:
    """What ``batches`` yields."""
    if recipe.accumulate == 1:
        return "each a batch"
    return f"each one of {recipe.accumulate} micro-batches a step"


def train_section(recipe: Recipe) -> str:
    """``def train(step, batches)``, with the alarms that the recipe has set."""
    scaling = recipe.scaler or Scaling()
    watch = [_watch(recipe)]
    if scaling.warn_after_skips is not None:
        watch.append(fill(text.WARN, steps=str(scaling.warn_after_skips)))
    if scaling.max_consecutive_skips is not None:
        watch.append(fill(text.RAISE, steps=str(scaling.max_consecutive_skips)))
    watched = len(watch) > 1
    scheduled = recipe.schedule is not None
    return fill(
        text.TRAIN,
        before="\n".join(["schedule = Schedule()"] * scheduled + ["skipped = 0"] * watched),
        before_step=text.CHANGE_PRECISION if scheduled else "",
        watch="".join(watch) if watched else "",
        after_step=_after_step(recipe) if scheduled else "",
    )


def _watch(recipe: Recipe) -> str:
    """How skipped steps in a row are counted; micro-batches that wait do not count."""
    waits = recipe.accumulate > 1 and not drops_microbatches(recipe)
    rest = "0 if result.applied else skipped" if waits else "0"
    return f"skipped = skipped + 1 if result.overflowed else {rest}\n"


def _after_step(recipe: Recipe) -> str:
    """A dropped micro-batch is no step: another one is taken in its place."""
    if recipe.on_overflow == "drop_microbatch":
        return "if result.applied:\n    schedule.after(result)"
    if recipe.accumulate == 1:
        return "schedule.after(result)"
    return "if result.applied or result.overflowed:\n    schedule.after(result)"
