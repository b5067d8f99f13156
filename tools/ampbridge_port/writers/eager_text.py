"""Text that modules for torch and for Paddle have in common; ``eager.py`` says what goes where."""

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

RESULT = """\
Result = namedtuple("Result", "loss scale applied overflowed")
"""

KEPT_FIELD = '''\
kept: Sequence[str] = ()
"""Layers held in float32 with all below them: patterns of their names, or class names."""
'''

STATE_METHODS = '''\
def state_dict(self):
    """What to save after a step, beside the states of model and optimizer."""
    return {"$key": $save}

def load_state_dict(self, state):
    $load(state["$key"])
'''

USAGE = """\
step = amp.TrainStep(model, optimizer, loss)
result = step(x, y)
"""

SCHEDULED_USAGE = """\
step = amp.TrainStep(model, optimizer, loss, amp.Schedule().precision)
for result in amp.train(step, batches): ...
"""

AUTOCAST = '''\
def autocast($parameter):
    """What the model and the loss run in."""
    $region
'''

SCALER = '''\
def scaler():
    """The loss scaling of the recipe."""
    $made
'''

WAIT = """\
self.micro_batches += 1
if self.micro_batches % ACCUMULATE != 0:
    return Result(loss.detach(), $scale, applied=False, overflowed=False)
"""
