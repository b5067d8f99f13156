"""Mixed precision for TensorFlow and Keras 3, which needs nothing else.

    import amp_tf as amp  # this file, before the model is made
    amp.set_precision(model)  # once it has been built, or loaded
    optimizer = amp.optimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer, loss)  # and fit; or in a loop of your own:
    step = amp.train_step(model, optimizer, loss)
    result = step(x, y)

The loss scale is one of optimizer.variables: model.save and tf.train.Checkpoint save it.
"""

import warnings
from collections import namedtuple

import keras
import tensorflow as tf

# Of this recipe; the rest of it is numbers:
#     [policy]
#     level = "O1"
#     dtype = "float16"
#     lists = "paddle"

INIT_SCALE = 2.0**24
GROWTH_FACTOR = 2.0
BACKOFF_FACTOR = 0.5
GROWTH_INTERVAL = 1000
MIN_SCALE = 2.0**-126
MAX_SCALE = 2.0**127
ACCUMULATE = 2
CLIP_NORM = 1.0
DTYPE_POLICY = "mixed_float16"
LOW_LAYERS = {"AdaptiveMaxPooling2D", "Attention", "Dot"}
FLOAT32_LAYERS = (
    "Conv1DTranspose Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM2D DepthwiseConv1D "
    "DepthwiseConv2D Embedding GRU GRUCell GlobalAveragePooling2D GroupNormalization LSTM LSTMCell "
    "LayerNormalization PReLU RMSNormalization Resizing SeparableConv1D SeparableConv2D SimpleRNN "
    "SimpleRNNCell Softmax UpSampling2D"
).split()
FLOAT32_FUNCTIONS = (
    "arccos arcsin arctanh cosh cumprod cumsum erfinv exp expm1 exponential hypot "
    "layer_normalization log log10 log2 log_softmax logaddexp mean power prod reciprocal resize "
    "rsqrt scatter sinh softmax softplus square std sum tan tanh_shrink var"
).split()
keras.config.set_dtype_policy(DTYPE_POLICY)  # of layers made from here on


def set_precision(model):
    """Give every layer of ``model``, which has been built, its precision."""
    if not model.built:
        raise ValueError("build the model first, with keras.Input or a call: layers go by weights")
    for layer in layers_of(model):
        layer.dtype_policy, layer.autocast = DTYPE_POLICY, not follows(layer)
        function = vars(layer).get("activation")
        if getattr(function, "__name__", None) in FLOAT32_FUNCTIONS:
            layer.activation = InFloat32(function)
        for name in called(layer, FLOAT32_FUNCTIONS):
            warnings.warn(
                f"{type(layer).__name__} runs {name} in low precision, the recipe in float32; "
                f'add x = keras.ops.cast(x, "float32") before keras.ops.{name}(x)'
            )
    for layer in layers_of(model):
        if is_of_keras(type(layer)) and not follows(layer):
            for part in layers_of(layer):  # one op with the layer, as in attention
                part.autocast = True
        if is_a(layer, FLOAT32_LAYERS):
            for part in layers_of(layer):
                part.dtype_policy, part.autocast = "float32", True


def follows(layer):
    """Whether it takes values as they arrive: a model, or a layer of Keras without weights."""
    weightless = is_of_keras(type(layer)) and not layer.weights
    return isinstance(layer, keras.Model) or weightless and not is_a(layer, LOW_LAYERS)


def layers_of(model):
    """The model, and all layers in it: a layer has those of its attributes in a list of Keras'."""
    found, rest = {}, [model]
    while rest:
        value = rest.pop()
        if isinstance(value, keras.Layer) and id(value) not in found:
            found[id(value)] = value
            rest += vars(value).values()
        elif isinstance(value, (list, tuple)):
            rest += value
    return list(found.values())


def is_a(layer, names):
    """Whether one of ``names`` is that of the layer's class, or of one from which it derives."""
    return any(base.__name__ in names for base in type(layer).__mro__)


def is_of_keras(cls):
    return cls.__module__.startswith("keras.")


def called(layer, functions):
    """Those that a model calls, a Lambda, or a method of a class of yours, unless it also casts."""
    own = [cls for cls in reversed(type(layer).__mro__) if not is_of_keras(cls)]
    found = {"": vars(layer).get("function"), **{n: f for cls in own for n, f in vars(cls).items()}}
    names = [set(f.__code__.co_names) for f in found.values() if hasattr(f, "__code__")]
    ops = [each for each in getattr(layer, "operations", ()) if not isinstance(each, keras.Layer)]
    names = [*names, {type(op).__name__.lower() for op in ops}]
    names = set().union(*(each for each in names if "cast" not in each))
    return [each for each in functions if {each, each.replace("_", "")} & names]


@keras.saving.register_keras_serializable(__name__)
class InFloat32:
    """An activation, computed in float32 whatever it is given."""

    def __init__(self, function):
        self.function = keras.activations.get(function)

    def __call__(self, x):
        return self.function(cast(x, "float32"))

    def get_config(self):
        return {"function": keras.activations.serialize(self.function)}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


def cast(values, dtype):
    """Floats of up to 32 bits in ``dtype``, everything else as it is."""
    floats = (tf.float16, tf.bfloat16, tf.float32)
    return tf.nest.map_structure(
        lambda v: tf.cast(v, dtype) if getattr(v, "dtype", None) in floats else v, values
    )


def optimizer(inner):
    """``inner``, a Keras optimizer, by the recipe."""
    inner.global_clipnorm = CLIP_NORM
    return AmpOptimizer(inner, initial_scale=INIT_SCALE)


@keras.saving.register_keras_serializable(__name__)
class AmpOptimizer(keras.optimizers.LossScaleOptimizer):
    """Skips steps whose gradients overflow.

    The scale grows after GROWTH_INTERVAL finite steps in a row,
    and shrinks at each overflow.
    """

    def build(self, variables):
        super().build(variables)
        self.skips = self.add_variable((), "zeros", "int32", name="skips")
        self.micro_batches = self.add_variable((), "zeros", "int32", name="micro_batches")
        self.totals = [self.add_variable(v.shape, "zeros", "float32") for v in variables]

    def scale_loss(self, loss):
        return super().scale_loss(loss / ACCUMULATE)

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        for total, grad in zip(self.totals, grads):
            if grad is not None:
                total.assign_add(tf.convert_to_tensor(grad))
        self.micro_batches.assign_add(1)
        last = tf.equal(self.micro_batches % ACCUMULATE, 0)
        tf.cond(last, lambda: self.finish(trainable_variables), lambda: None)

    def finish(self, variables):
        """The step of all micro-batches; an overflow in one drops it."""
        grads = [tf.identity(total) for total in self.totals]
        finite = self.check_finite(grads)
        grads = [g if g is None else keras.ops.divide(g, self.dynamic_scale) for g in grads]
        tf.cond(finite, lambda: self.inner_optimizer.apply(grads, variables), lambda: None)
        self.skips.assign_add(keras.ops.where(finite, 0, 1))
        finite_steps = keras.ops.where(finite, self.step_counter + 1, 0)
        grows = keras.ops.equal(finite_steps, GROWTH_INTERVAL)
        shrinks = tf.logical_not(finite)
        larger = self.dynamic_scale * GROWTH_FACTOR
        larger = keras.ops.where(larger > MAX_SCALE, self.dynamic_scale, larger)
        smaller = keras.ops.maximum(self.dynamic_scale * BACKOFF_FACTOR, MIN_SCALE)
        scale = keras.ops.where(grows, larger, self.dynamic_scale)
        self.dynamic_scale.assign(keras.ops.where(shrinks, smaller, scale))
        self.step_counter.assign(keras.ops.where(grows, 0, finite_steps))
        for total in self.totals:
            total.assign(tf.zeros_like(total))


Result = namedtuple("Result", "loss scale applied overflowed")  # of tensors: looking at one waits


def train_step(model, optimizer, loss_fn):
    """``step(x, y)``, which trains by one micro-batch, for a loop of your own."""
    if not optimizer.built:
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        scale, steps = tf.identity(optimizer.dynamic_scale), tf.identity(optimizer.iterations)
        skips = tf.identity(optimizer.skips)
        with tf.GradientTape() as tape:
            predictions = cast(model(x, training=True), "float32")
            loss = tf.add_n(cast([loss_fn(y, predictions), *model.losses], "float32"))
            scaled_loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return Result(loss, scale, optimizer.iterations > steps, optimizer.skips > skips)

    return step
