"""The loss scale as a class of TensorFlow: the numbers of a recipe's rule, and the lines that they need."""

from __future__ import annotations

from ampbridge.port.writers import Comments
from ampbridge.port.writers import tensorflow_text as text
from ampbridge.port.writers.code import constants, fill, float32_number, literal
from ampbridge.port.writers.loop import rule_in_words
from ampbridge.training.recipe import Scaling


def loss_scale_class(scaling: Scaling, comments: Comments) -> str:
    """``class LossScale``, with its constants before it."""
    if not scaling.dynamic:
        return fill(text.STATIC_LOSS_SCALE, constants=_scale_constants(scaling, comments))
    return fill(
        text.LOSS_SCALE,
        constants=_scale_constants(scaling, comments),
        rule=rule_in_words(scaling),
        counters=_counters(scaling),
        counting=_counting(scaling),
        growing=_growing(scaling),
        falling=_falling(scaling),
        assigning=_assigning(scaling),
    )


def _scale_constants(scaling: Scaling, comments: Comments) -> str:
    """The numbers of the rule, those that it uses."""
    names = ["init_scale"]
    if scaling.dynamic:
        names += ["growth_factor", "backoff_factor", "growth_interval"]
        names += ["backoff_interval"] if scaling.backoff_interval > 1 else []
        names += ["growth_delay"] if scaling.growth_delay else []
        names += ["min_scale", "max_scale"]
    values = {
        name.upper(): (_scaling_literal(scaling, name), comments.get(f"scaler.{name}", ""))
        for name in names
    }
    return constants(values)


def _scaling_literal(scaling: Scaling, name: str) -> str:
    value = getattr(scaling, name)
    return float32_number(value) if isinstance(value, float) else literal(value)


def _counters(scaling: Scaling) -> str:
    start = "-GROWTH_DELAY" if scaling.growth_delay else "0"
    lines = f"self.finite_steps = tf.Variable({start}, trainable=False)\n"
    if scaling.backoff_interval > 1:
        lines += "self.overflows = tf.Variable(0, trainable=False)\n"
    return lines


def _counting(scaling: Scaling) -> str:
    start = "-GROWTH_DELAY" if scaling.growth_delay else "0"
    lines = [
        f"finite_steps = tf.where(finite, self.finite_steps + 1, {start})",
        "grows = tf.equal(finite_steps, GROWTH_INTERVAL)",
    ]
    if scaling.backoff_interval == 1:
        return "\n".join([*lines, "shrinks = tf.logical_not(finite)"])
    kept = "tf.where(grows, 0, self.overflows)" if scaling.backoff_count == "until_growth" else "0"
    lines += [
        f"overflows = tf.where(finite, {kept}, self.overflows + 1)",
        "shrinks = tf.logical_and(tf.logical_not(finite), overflows >= BACKOFF_INTERVAL)",
    ]
    return "\n".join(lines)


def _growing(scaling: Scaling) -> str:
    lines = "larger = self.value * GROWTH_FACTOR\n"
    if scaling.at_max_scale == "clamp":
        return lines + "larger = tf.minimum(larger, MAX_SCALE)"
    return lines + "larger = tf.where(larger > MAX_SCALE, self.value, larger)"


def _falling(scaling: Scaling) -> str:
    lines = "smaller = tf.maximum(self.value * BACKOFF_FACTOR, MIN_SCALE)\n"
    if scaling.at_min_scale == "raise":
        lines += (
            "stuck = tf.logical_and(shrinks, tf.equal(self.value, MIN_SCALE))\n"
            'tf.debugging.assert_equal(stuck, False, "overflow at the smallest loss scale")\n'
        )
    return lines


def _assigning(scaling: Scaling) -> str:
    lines = [
        "self.value.assign(tf.where(shrinks, smaller, scale))",
        "self.finite_steps.assign(tf.where(grows, 0, finite_steps))",
    ]
    if scaling.backoff_interval > 1:
        rest = "0" if scaling.backoff_count == "consecutive" else "BACKOFF_INTERVAL - 1"
        lines.append(f"self.overflows.assign(tf.where(shrinks, {rest}, overflows))")
    return "\n".join(lines)
