"""Text that modules for all frameworks have in common; ``loop.py`` says what goes where."""

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

# -- the loop

TRAIN = '''\
def train(step, batches):
    """Run all batches; yields each step's result."""
    $before
    for x, y in batches:
        $before_step
        result = step(x, y)
        yield result
        $after_step
'''

COUNT_SKIPS = """\
self.skipped = 0 if finite else self.skipped + 1
"""

WARN = """\
if self.skipped == $steps:
    warnings.warn("$steps steps in a row were skipped: nothing is being trained")
"""

RAISE = """\
if self.skipped >= $steps:
    raise RuntimeError("$steps steps in a row were skipped")
"""

CHANGE_PRECISION = """\
if step.precision is not schedule.precision:
    step.set_precision(schedule.precision)
"""

# -- with ampbridge

WITH_AMPBRIDGE = '''\
"""Training in mixed precision with $framework and ampbridge."""

$imports

# The recipe, as `ampbridge port --to toml` has it:
#
$recipe_comment
$recipe


def train_step(loss_fn, model, optimizer):
    """``step(x, y)`` trains by one batch; ``loss_fn(model, x, y)`` is the loss."""
    return amp.train_step(loss_fn, model, optimizer, recipe=RECIPE)


$more
'''

DEMO_WITH_AMPBRIDGE = """\
$trained


def loss_fn(model, x, y):
    return $loss


def main():
    model = make_model()$device
    step = train_step(loss_fn, model, make_optimizer($model))
    for x, y in batches():
        print(step(x, y))


if __name__ == "__main__":
    main()
"""
