"""The optimizers of modules for Keras: its own LossScaleOptimizer, or subclasses with a recipe's rule.

A rule is written with the settings that it uses, and no others: a bound that no scale of float32 passes
is left out.
"""

from __future__ import annotations

from ampbridge.scaling.scale_rule import LARGEST_SCALE, SMALLEST_SCALE
from ampbridge.training.recipe import Recipe, Scaling
from ampbridge_port.writers.code import ALWAYS, fill

RULE = '''\
@keras.saving.register_keras_serializable()
class LossScaler(keras.optimizers.LossScaleOptimizer):
    """Skips steps whose gradients overflow; $rule."""

    $build

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        finite = self.check_finite(grads)
        grads = [g if g is None else ops.divide(g, self.dynamic_scale) for g in grads]
        ops.cond(
            finite, lambda: self.inner_optimizer.apply(grads, trainable_variables), lambda: None
        )
        $update
'''

BUILD = """\
def build(self, variables):
    super().build(variables)
    $delay
    $overflows
"""

DELAY = "self.step_counter.assign(-GROWTH_DELAY)"
OVERFLOWS = 'self.overflows = self.add_variable((), "zeros", "int32", name="overflows")'

UPDATE = """\
steps = ops.where(finite, self.step_counter + 1, $first)
grows = ops.equal(steps, GROWTH_INTERVAL)
$count
larger = self.dynamic_scale * GROWTH_FACTOR
$ceiling
smaller = self.dynamic_scale * BACKOFF_FACTOR
$floor
scale = ops.where(grows, larger, self.dynamic_scale)
self.dynamic_scale.assign(ops.where($shrinks, smaller, scale))
self.step_counter.assign(ops.where(grows, 0, steps))
$counted
"""

CEILING = {
    "clamp": "larger = ops.minimum(larger, MAX_SCALE)",
    "keep": "larger = ops.where(larger > MAX_SCALE, self.dynamic_scale, larger)",
}

FLOOR = "smaller = ops.maximum(smaller, MIN_SCALE)"
COUNT = {
    "in a row": "overflows = ops.where(finite, 0, self.overflows + 1)\n",
    "until_growth": "overflows = ops.where(grows, 0, self.overflows + ops.where(finite, 0, 1))\n",
}
SHRINKS = "shrinks = ops.equal(overflows, BACKOFF_INTERVAL)"
COUNTED = "self.overflows.assign(ops.where(shrinks, $rest, overflows))"

ACCUMULATING = '''\
@keras.saving.register_keras_serializable()
class Accumulating($base):
    """A step of ACCUMULATE micro-batches; an overflow in one of them drops the whole step."""

    def build(self, variables):
        super().build(variables)
        self.micro_batches = self.add_variable((), "zeros", "int32", name="micro_batches")
        self.totals = [self.add_variable(v.shape, "zeros", "float32") for v in variables]

    def scale_loss(self, loss):
        return super().scale_loss(loss / ACCUMULATE)

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        for total, grad in zip(self.totals, grads):
            if grad is not None:
                total.assign_add(grad)
        self.micro_batches.assign_add(1)
        last = ops.equal(self.micro_batches % ACCUMULATE, 0)
        ops.cond(last, lambda: self.step(trainable_variables), lambda: None)

    def step(self, variables):
        super().apply([ops.convert_to_tensor(total) for total in self.totals], variables)
        for total in self.totals:
            total.assign(ops.zeros_like(total))
'''

OF_KERAS = "keras.optimizers.LossScaleOptimizer"


def numbers(scaling: Scaling | None) -> tuple[str, ...]:
    """The settings that a module has at its top."""
    if scaling is None or not scaling.dynamic:
        return () if scaling is None else ("init_scale",)
    if not has_own_rule(scaling):
        return ("init_scale", "growth_interval")
    return (*ALWAYS, *_others(scaling))


def _others(scaling: Scaling) -> list[str]:
    """The settings that matter for some rules alone."""
    matters = {
        "backoff_interval": scaling.backoff_interval > 1,
        "growth_delay": scaling.growth_delay > 0,
        "min_scale": scaling.min_scale > SMALLEST_SCALE,
        "max_scale": scaling.max_scale < LARGEST_SCALE,
    }
    return [name for name, does in matters.items() if does]


def has_own_rule(scaling: Scaling) -> bool:
    """Whether the rule is another one than that of Keras' LossScaleOptimizer."""
    factors = (scaling.growth_factor, scaling.backoff_factor)
    return not scaling.dynamic or factors != (2.0, 0.5) or bool(_others(scaling))


def adds_up(recipe: Recipe) -> bool:
    """Whether a module adds up micro-batches; Keras' own accumulation drops each that overflows alone."""
    drops_steps = recipe.on_overflow == "drop_step" and recipe.scaler is not None
    return recipe.accumulate > 1 and drops_steps


def classes(recipe: Recipe) -> list[str]:
    """The subclasses that a recipe needs."""
    if recipe.scaler is None:
        return []
    own = has_own_rule(recipe.scaler)
    found = [_rule(recipe.scaler)] if own else []
    adding = fill(ACCUMULATING, base="LossScaler" if own else OF_KERAS)
    return [*found, *[adding] * adds_up(recipe)]


def made(recipe: Recipe) -> str:
    """What makes the optimizer of ``inner``."""
    if recipe.scaler is None:
        return "inner"
    if has_own_rule(recipe.scaler):
        return f"{'Accumulating' if adds_up(recipe) else 'LossScaler'}(inner, INIT_SCALE)"
    name = "Accumulating" if adds_up(recipe) else OF_KERAS
    return f"{name}(inner, INIT_SCALE, GROWTH_INTERVAL)"


def _rule(scaling: Scaling) -> str:
    if not scaling.dynamic:
        return fill(RULE, rule="the loss scale stays", build="", update="")
    others = _others(scaling)
    counts, delays = "backoff_interval" in others, "growth_delay" in others
    count = COUNT.get(scaling.backoff_count, COUNT["in a row"]) + SHRINKS
    rest = "0" if scaling.backoff_count == "consecutive" else "BACKOFF_INTERVAL - 1"
    build = fill(BUILD, delay=DELAY * delays, overflows=OVERFLOWS * counts)
    update = fill(
        UPDATE,
        first="-GROWTH_DELAY" if delays else "0",
        count=count * counts,
        ceiling=CEILING[scaling.at_max_scale] * ("max_scale" in others),
        floor=FLOOR * ("min_scale" in others),
        shrinks="shrinks" if counts else "ops.logical_not(finite)",
        counted=fill(COUNTED, rest=rest) * counts,
    )
    rule = "the loss scale grows and shrinks by the numbers above"
    return fill(RULE, rule=rule, build=build * (counts or delays), update=update)
