"""Text that programs for torch and for Paddle have in common; ``eager.py`` says what goes where."""

# -- schedule

SCHEDULE_BY_STEPS = '''\
class Schedule:
    """The precision of the next step: from these steps on, that one."""

    $steps

    def __init__(self):
        self.steps = 0

    @property
    def precision(self):
        return [precision for first, precision in self.STEPS if first <= self.steps][-1]

    def after(self, result):
        self.steps += 1
'''

SCHEDULE_BY_LOSS = '''\
class Schedule:
    """The precision of the next step: another one while the loss is low."""

    def __init__(self):
        self.precision = $otherwise

    def after(self, result):
        if self.precision is $use:
            self.precision = $otherwise if result.loss > $back_above else $use
        elif result.loss < $loss_below:
            self.precision = $use
'''

SCHEDULE_BY_SKIPS = '''\
class Schedule:
    """The precision of the next step: another one after steps that were skipped in a row."""

    SKIPS, BACK_AFTER = $skips, $back_after

    def __init__(self):
        self.precision, self.skipped, self.applied = $otherwise, 0, 0

    def after(self, result):
        if self.precision is $use:
            self.applied += int(result.applied)
            if self.BACK_AFTER is not None and self.applied >= self.BACK_AFTER:
                self.__init__()
            return
        self.skipped = 0 if result.applied else self.skipped + 1
        if self.skipped >= self.SKIPS:
            self.precision, self.applied = $use, 0
'''

# -- layers

KEPT_LAYERS = '''\
def kept_layers(model, patterns):
    """The layers that ``patterns`` name, and all below them."""
    layers, kept = list($named_layers), []
    for pattern in patterns:
        found = [layer for name, layer in layers if is_named(name, layer, pattern)]
        if not found:
            raise ValueError(f"{pattern!r} names no layer of this model")
        kept += [part for layer in found for part in $parts]
    return kept


def is_named(name, layer, pattern):
    """Whether ``pattern`` is the layer's class, or matches its dotted name."""
    return pattern == type(layer).__name__ or (name != "" and fnmatchcase(name, pattern))
'''

# -- loss scaling

LOSS_SCALE = '''\
# -- Loss scaling

$constants


class LossScale:
    """What the loss is multiplied by, so that small gradients do not become zero in float16.

    $rule
    """

    def __init__(self):
        self.value = INIT_SCALE
        $counters

    def update(self, finite):
        """After each step: whether its gradients were all finite."""
        if finite:
            $finite
            if self.finite_steps == GROWTH_INTERVAL:
                $grow
        else:
            $overflow
            $fall
'''

STATIC_LOSS_SCALE = '''\
# -- Loss scaling

$constants


class LossScale:
    """What the loss is multiplied by, so that small gradients do not become zero in float16."""

    def __init__(self):
        self.value = INIT_SCALE

    def update(self, finite):
        """It stays; a step whose gradients are not finite is skipped."""
'''

FLOAT32 = '''\
def float32(value):
    """``value`` rounded to float32, in which a scale multiplies a loss."""
    return float(np.float32(value))
'''

# -- the step

RESULT = '''\
class Result(NamedTuple):
    """What a step did."""

    loss: $tensor
    scale: float
    """What the loss was multiplied by."""
    applied: bool
    """Whether the optimizer ran."""
    overflowed: bool
    """Whether the gradients held inf or NaN, which are dropped."""
'''

# -- the loop

TRAIN = '''\
def train(step, batches):
    """Run all batches; yields each step's result."""
    $before
    for x, y in batches:
        $before_step
        result = step(x, y)
        $watch
        yield result
        $after_step
'''

WARN = """\
if skipped == $steps:
    warnings.warn("$steps steps in a row were skipped: nothing is being trained")
"""

RAISE = """\
if skipped > $steps:
    raise RuntimeError("more than $steps steps in a row were skipped")
"""

CHANGE_PRECISION = """\
if step.precision is not schedule.precision:
    step.set_precision(schedule.precision)
"""
