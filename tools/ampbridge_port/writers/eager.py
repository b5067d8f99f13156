"""What modules for torch and for Paddle have in common: the backward pass, and a loss scale that is a
number of Python's.

It is kept on the host: a step waits for the device in any case, to know whether its gradients are
finite before the optimizer runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ampbridge.training.recipe import Recipe, Scaling
from ampbridge_port.writers import Comments
from ampbridge_port.writers import eager_text as text
from ampbridge_port.writers.code import constants, fill, float32_number, literal, number
from ampbridge_port.writers.loop import rule_in_words, step_numbers


def loss_scale_section(scaling: Scaling) -> str:
    """``class LossScale``: the rule of ``scaling`` and no more of it than it uses."""
    if not scaling.dynamic:
        return text.STATIC_LOSS_SCALE
    section = fill(
        text.LOSS_SCALE,
        rule=rule_in_words(scaling),
        counters=_counters(scaling),
        finite=_finite(scaling),
        grow=_grow(scaling),
        overflow=_overflow(scaling),
        fall=_fall(scaling),
    )
    return f"{section}\n\n{text.FLOAT32}" if "float32(" in section else section


def numbers(recipe: Recipe, comments: Comments, of_scaler: Sequence[str]) -> str:
    """The constants at the top, each with its origin; ``of_scaler`` are those of a native scaler."""
    values = {}
    if recipe.scaler is not None:
        names = of_scaler or _scale_names(recipe.scaler)
        values = {name.upper(): _number(recipe.scaler, name, comments) for name in names}
    return constants(values | step_numbers(recipe, comments))


def _scale_names(scaling: Scaling) -> Sequence[str]:
    if not scaling.dynamic:
        return ("init_scale",)
    names = ["init_scale", "growth_factor", "backoff_factor", "growth_interval"]
    names += ["backoff_interval"] if scaling.backoff_interval > 1 else []
    names += ["growth_delay"] if scaling.growth_delay else []
    return [*names, "min_scale", "max_scale"]


def saved(recipe: Recipe) -> str:
    """What is to be saved, as the end of a sentence."""
    if recipe.scaler is None:
        return "there is nothing to save."
    return "save step.state_dict(), too."


def state_methods(recipe: Recipe, native: bool) -> str:
    """``state_dict`` of a step, and ``load_state_dict``; empty where there is nothing to save."""
    held = {}
    if recipe.scaler is not None:
        scaler = ("self.scaler.state_dict()", "self.scaler.load_state_dict")
        loss_scale = ("dict(vars(self.loss_scale))", "vars(self.loss_scale).update")
        held["scaler" if native else "loss_scale"] = scaler if native else loss_scale
    if not held:
        return ""
    ((key, (save, load)),) = held.items()
    return fill(text.STATE_METHODS, key=key, save=save, load=load)


def _number(scaling: Scaling, name: str, comments: Comments) -> tuple[str, str]:
    """A number with all the digits that it has in float32, in which the rule computes."""
    value, comment = getattr(scaling, name), comments.get(f"scaler.{name}", "")
    if not isinstance(value, float):
        return literal(value), comment
    short, exact = float32_number(value), number(value)
    return exact, comment or ("" if short == exact else f"{short} in float32")


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


# -- the step


def present_scale(recipe: Recipe) -> str:
    """What the loss is multiplied by; under a schedule, where the present precision needs it."""
    scale = "self.loss_scale.value"
    return f"{scale} if self.precision.scales_loss else 1.0" if recipe.schedule else scale


def backward(recipe: Recipe) -> str:
    """Of the loss times its scale, one micro-batch's share of it."""
    accumulates = recipe.accumulate > 1
    if recipe.scaler is None:
        return "(loss / ACCUMULATE).backward()" if accumulates else "loss.backward()"
    factor = "(scale / ACCUMULATE)" if accumulates else "scale"
    return f"(loss * {factor}).backward()"
