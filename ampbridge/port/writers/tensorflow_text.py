"""The text of programs for TensorFlow and Keras 3; ``tensorflow.py`` says what goes where."""

HEADER = '''\
"""Training in mixed precision with TensorFlow and Keras 3; it needs nothing else.

Put your own model, optimizer, loss and batches in place of those under "What is trained".
"""

$imports

# Written from this recipe:
#
$recipe_comment
'''

# -- precision

FLOAT32_POLICY = """\
# -- Precision

keras.config.set_dtype_policy("float32")
"""

GRAPH_OPTIMIZER = """\
# -- Precision

# TensorFlow's graph optimizer casts op by op, by its own lists. It sees what runs in tf.function on
# a GPU; it does not see eager code, nor what is compiled by XLA.
tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
"""

PRECISION = '''\
# -- Precision

# Layers made from here on compute in $dtype and hold float32 variables.
keras.config.set_dtype_policy($policy)


class Precision(NamedTuple):
    """What a model computes in. Layers are named by class, which names those that derive from it."""

    dtype_policy: str
    """Of every layer but the following."""
    float32_layers: Sequence[str] = ()
    """Layers whose op must not run in low precision."""
    following_layers: Sequence[str] = ()
    """Layers that take the precision in which values arrive: nothing is cast for them."""
    float32_activations: Sequence[str] = ()
    kept: Sequence[str] = ()
    """Layers held in float32 with all below them: patterns of their names, or class names."""
    $scaling_field


$precisions
'''

SCALING_FIELD = '''\
scales_loss: bool = False
"""Steps in other precisions leave the loss scale as it is."""
'''

SET_PRECISION = '''\
def set_precision(model, precision):
    """Give every layer of ``model``, which has been built, its precision.

    Functions that are called by a layer of your own are up to you: InFloat32(keras.ops.softmax)(x).
    """
    layers = model._flatten_layers()  # with nested ones: Keras has no public name for it
    # Attention is one op to Keras: its parts go with it.
    parts = {id(part) for layer in layers if is_a(layer, ATTENTIONS) for part in below(layer)}
    for layer in layers:
        own = id(layer) not in parts
        denied = own and is_a(layer, precision.float32_layers)
        layer.dtype_policy = "float32" if denied else precision.dtype_policy
        layer.autocast = not (own and is_a(layer, precision.following_layers))
        if "activation" in vars(layer):
            layer.activation = activation_in(layer.activation, precision)
    for layer in kept_layers(layers, precision.kept):
        layer.dtype_policy, layer.autocast = "float32", True


ATTENTIONS = ("MultiHeadAttention", "GroupQueryAttention")


def is_a(layer, names):
    """Whether one of ``names`` is that of the layer's class, or of one from which it derives."""
    return any(base.__name__ in names for base in type(layer).__mro__)


def below(layer):
    """All that ``layer`` is made of."""
    return layer._flatten_layers(include_self=False)


def kept_layers(layers, patterns):
    """The layers that ``patterns`` name, and all below them."""
    kept = []
    for pattern in patterns:
        found = [layer for layer in layers if is_named(layer, pattern)]
        if not found:
            raise ValueError(f"{pattern!r} names no layer of this model")
        kept += [part for layer in found for part in (layer, *below(layer))]
    return kept


def is_named(layer, pattern):
    """Whether ``pattern`` is the layer's class, or matches its name or its dotted path."""
    names = (layer.name, (layer.path or "").replace("/", "."))
    return pattern == type(layer).__name__ or any(fnmatchcase(name, pattern) for name in names)


class InFloat32:
    """``function``, computed in float32 whatever it is given."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args, **kwargs):
        return self.function(*cast(args, tf.float32), **cast(kwargs, tf.float32))


def activation_in(function, precision):
    """A layer's activation, in float32 where the precision says so."""
    function = getattr(function, "function", function)
    denied = getattr(function, "__name__", None) in precision.float32_activations
    return InFloat32(function) if denied else function
'''

CAST = '''\
def cast(values, dtype):
    """Tensors of up to 32 bits in ``dtype``, everything else as it is."""

    def one(value):
        floating = getattr(value, "dtype", None) in (tf.float16, tf.bfloat16, tf.float32)
        return tf.cast(value, dtype) if floating else value

    return tf.nest.map_structure(one, values)
'''

# -- loss scaling

LOSS_SCALE = '''\
# -- Loss scaling

$constants


class LossScale(tf.Module):
    """What the loss is multiplied by, so that small gradients do not become zero in float16.

    $rule
    """

    def __init__(self):
        super().__init__()
        self.value = tf.Variable(INIT_SCALE, trainable=False, dtype=tf.float32)
        $counters

    def update(self, finite):
        """After each step: whether its gradients were all finite."""
        $counting
        $growing
        $falling
        scale = tf.where(grows, larger, self.value)
        $assigning
'''

STATIC_LOSS_SCALE = '''\
# -- Loss scaling

$constants


class LossScale(tf.Module):
    """What the loss is multiplied by, so that small gradients do not become zero in float16."""

    def __init__(self):
        super().__init__()
        self.value = tf.Variable(INIT_SCALE, trainable=False, dtype=tf.float32)

    def update(self, finite):
        """It stays; a step whose gradients are not finite is skipped."""
'''

# -- what is trained

TRAINED = '''\
# -- What is trained


def make_model():
    return keras.Sequential(
        [
            keras.Input((32,)),
            $layers
        ]
    )


def make_optimizer(learning_rate=0.01):
    $optimizer


def make_loss():
    return keras.losses.MeanSquaredError()


def batches(count=100, size=16):
    """NumPy arrays or tensors; $batch_note."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        x = rng.standard_normal((size, 32), dtype=np.float32)
        yield x, x[:, :8] - x[:, 8:16]
'''

# -- the step

RESULT = '''\
class Result(NamedTuple):
    """What a step did, as tensors: looking at one waits for the device."""

    loss: tf.Tensor
    scale: tf.Tensor
    """What the loss was multiplied by."""
    applied: tf.Tensor
    """Whether the optimizer ran."""
    overflowed: tf.Tensor
    """Whether the gradients held inf or NaN, which are dropped."""
'''

KERAS_STEP = '''\
class TrainStep:
    """``result = step(x, y)`` trains ``model``, which has been built, by one batch.

    Keras' own optimizer scales the loss: it halves the scale and skips the step where gradients
    overflow, and doubles it after $growth_interval finite steps in a row.
    """

    def __init__(self, model, optimizer, loss):
        self.model, self.loss = model, loss
        self.optimizer = keras.optimizers.LossScaleOptimizer(
            optimizer,
            initial_scale=$init_scale,
            dynamic_growth_steps=$growth_interval,
        )
        self.optimizer.build(model.trainable_variables)

    @tf.function
    def __call__(self, x, y):
        optimizer, variables = self.optimizer, self.model.trainable_variables
        with tf.GradientTape() as tape:
            predictions = cast(self.model(x, training=True), $output_dtype)
            loss = tf.cast(self.loss(y, predictions), tf.float32)
            scaled_loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, variables)
        scale, steps = tf.identity(optimizer.dynamic_scale), tf.identity(optimizer.iterations)
        optimizer.apply(gradients, variables)
        applied = optimizer.iterations > steps
        return Result(loss, scale, applied, overflowed=optimizer.dynamic_scale < scale)
'''

STEP = '''\
class TrainStep:
    """``result = step(x, y)`` trains ``model``, which has been built, by one $batch."""

    def __init__(self, model, optimizer, loss$more_parameters):
        self.model, self.optimizer, self.loss = model, optimizer, loss
        $state
        optimizer.build(model.trainable_variables)
        $set_precision

    $set_precision_method

    $call

    def scaled_gradients(self, x, y):
        """The loss, and the gradients of the loss times the scale$share."""
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            predictions = cast(self.model(x, training=True), $output_dtype)
            loss = tf.cast(self.loss(y, predictions), tf.float32)
            scaled_loss = $scaled_loss
        gradients = tape.gradient(scaled_loss, variables, unconnected_gradients="zero")
        return loss, [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients]

    $present_scale
'''

SET_PRECISION_METHOD = '''\
def set_precision(self, precision):
    """From the next step on; it is traced anew, since a trace holds the precision it began with."""
    self.precision = precision
    set_precision(self.model, precision)
    $retrace
'''

CALL = """\
$decorator
def $name(self, x, y):
    loss, gradients = self.scaled_gradients(x, y)
    $scale
    finite = all_finite(gradients)
    $before
    if finite:
        self.optimizer.apply(gradients, self.model.trainable_variables)
    $update
    $after
    return Result(loss, scale, $applied, overflowed=tf.logical_not(finite))
"""

ACCUMULATING_CALL = '''\
def __call__(self, x, y):
    """Adds up gradients; the optimizer runs with the last of ``ACCUMULATE`` micro-batches."""
    self.micro_batches += 1
    if self.micro_batches % ACCUMULATE == 0:
        return self.last(x, y)
    return self.add(x, y)

$decorator
def $add_name(self, x, y):
    loss, gradients = self.scaled_gradients(x, y)
    for total, gradient in zip(self.totals, gradients):
        total.assign_add(gradient)
    scale, no = $present_scale, tf.constant(False)
    return Result(loss, scale, applied=no, overflowed=no)

$decorator
def $last_name(self, x, y):
    loss, gradients = self.scaled_gradients(x, y)
    gradients = [total + gradient for total, gradient in zip(self.totals, gradients)]
    $scale
    finite = all_finite(gradients)  # an overflow in one micro-batch drops the whole step
    if finite:
        self.optimizer.apply(gradients, self.model.trainable_variables)
    for total in self.totals:
        total.assign(tf.zeros_like(total))
    $update
    return Result(loss, scale, applied=finite, overflowed=tf.logical_not(finite))
'''

SCHEDULED_CALL = """\
def __call__(self, x, y):
    return self.run(x, y)
"""

PRESENT_SCALE = '''\
def present_scale(self):
    """What the loss is multiplied by in this precision."""
    scaled = self.precision.scales_loss
    return tf.identity(self.loss_scale.value) if scaled else tf.constant(1.0)
'''

ALL_FINITE = '''\
def all_finite(tensors):
    """Whether no element is inf or NaN."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors])
'''

# -- all of it

MAIN = """\
def main():
    model = make_model()
    $set_precision
    step = TrainStep(model, make_optimizer(), make_loss()$more)
    for number, result in enumerate(train(step, batches())):
        print(f"{number}: loss {result.loss:.6f}, scale {result.scale:g}, applied {result.applied}")


if __name__ == "__main__":
    main()
"""

# -- with ampbridge

WITH_AMPBRIDGE = '''\
"""Training in mixed precision with TensorFlow, Keras 3 and ampbridge."""

import keras
import numpy as np

import ampbridge as amp

# The recipe, as `ampbridge port --to toml` has it:
#
$recipe_comment
$recipe


$trained


def loss_fn(model, x, y):
    return make_loss()(y, model(x, training=True))


def main():
    model = make_model()
    step = amp.train_step(loss_fn, model, make_optimizer(), recipe=RECIPE)
    for x, y in batches():
        print(step(x, y))


if __name__ == "__main__":
    main()
'''
