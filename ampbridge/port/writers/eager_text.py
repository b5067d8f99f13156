"""Text that programs for torch and for Paddle have in common; ``eager.py`` says what goes where."""

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

KEPT_FIELD = '''\
kept: Sequence[str] = ()
"""Layers held in float32 with all below them: patterns of their names, or class names."""
'''

WAIT = """\
self.micro_batches += 1
if self.micro_batches % ACCUMULATE != 0:
    return Result(loss.detach(), $scale, applied=False, overflowed=False)
"""
