"""The rule of a loss scale in a subclass of Keras' LossScaleOptimizer: its numbers and lines."""

from __future__ import annotations

from ampbridge.training.recipe import Scaling
from ampbridge_port.writers import Comments
from ampbridge_port.writers import tensorflow_text as text
from ampbridge_port.writers.code import fill, float32_number, literal


def scale_numbers(scaling: Scaling | None, comments: Comments) -> dict[str, tuple[str, str]]:
    """The constants of the rule, those that it uses, with their comments."""
    if scaling is None:
        return {}
    names = ["init_scale"]
    if scaling.dynamic:
        names += ["growth_factor", "backoff_factor", "growth_interval"]
        names += ["backoff_interval"] if scaling.backoff_interval > 1 else []
        names += ["growth_delay"] if scaling.growth_delay else []
        names += ["min_scale", "max_scale"]
    return {
        name.upper(): (_scaling_literal(scaling, name), comments.get(f"scaler.{name}", ""))
        for name in names
    }


def update_lines(scaling: Scaling) -> str:
    """What changes the scale after a step, ``finite`` or not; nothing of a static one."""
    if not scaling.dynamic:
        return ""
    return fill(
        text.UPDATE,
        counting=_counting(scaling),
        growing=_growing(scaling),
        falling=_falling(scaling),
        assigning=_assigning(scaling),
    )


def build_lines(scaling: Scaling) -> str:
    """What the optimizer's variables begin with, beyond those of Keras."""
    if not scaling.dynamic:
        return ""
    lines = "self.step_counter.assign(-GROWTH_DELAY)\n" if scaling.growth_delay else ""
    if scaling.backoff_interval > 1:
        lines += 'self.overflows = self.add_variable((), "zeros", "int32", name="overflows")\n'
    return lines


def _scaling_literal(scaling: Scaling, name: str) -> str:
    value = getattr(scaling, name)
    return float32_number(value) if isinstance(value, float) else literal(value)


def _counting(scaling: Scaling) -> str:
    start = "-GROWTH_DELAY" if scaling.growth_delay else "0"
    lines = [
        f"finite_steps = keras.ops.where(finite, self.step_counter + 1, {start})",
        "grows = keras.ops.equal(finite_steps, GROWTH_INTERVAL)",
    ]
    if scaling.backoff_interval == 1:
        return "\n".join([*lines, "shrinks = tf.logical_not(finite)"])
    counted = "0"
    if scaling.backoff_count == "until_growth":
        lines.append("counted = keras.ops.where(grows, 0, self.overflows)")
        counted = "counted"
    lines += [
        f"overflows = keras.ops.where(finite, {counted}, self.overflows + 1)",
        "shrinks = tf.logical_and(tf.logical_not(finite), overflows >= BACKOFF_INTERVAL)",
    ]
    return "\n".join(lines)


def _growing(scaling: Scaling) -> str:
    lines = "larger = self.dynamic_scale * GROWTH_FACTOR\n"
    if scaling.at_max_scale == "clamp":
        return lines + "larger = keras.ops.minimum(larger, MAX_SCALE)"
    return lines + "larger = keras.ops.where(larger > MAX_SCALE, self.dynamic_scale, larger)"


def _falling(scaling: Scaling) -> str:
    lines = "smaller = keras.ops.maximum(self.dynamic_scale * BACKOFF_FACTOR, MIN_SCALE)\n"
    if scaling.at_min_scale == "raise":
        lines += (
            "stuck = tf.logical_and(shrinks, keras.ops.equal(self.dynamic_scale, MIN_SCALE))\n"
            'tf.debugging.assert_equal(stuck, False, "overflow at the smallest loss scale")\n'
        )
    return lines


def _assigning(scaling: Scaling) -> str:
    lines = [
        "self.dynamic_scale.assign(keras.ops.where(shrinks, smaller, scale))",
        "self.step_counter.assign(keras.ops.where(grows, 0, finite_steps))",
    ]
    if scaling.backoff_interval > 1:
        rest = "0" if scaling.backoff_count == "consecutive" else "BACKOFF_INTERVAL - 1"
        lines.append(f"self.overflows.assign(keras.ops.where(shrinks, {rest}, overflows))")
    return "\n".join(lines)
