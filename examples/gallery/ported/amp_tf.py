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
from functools import wraps

import keras
import tensorflow as tf

# Of this recipe; the rest of it is numbers:
#     [policy]
#     level = "O1" # paddle_train.py:60 level="O1"
#     dtype = "float16" # paddle_train.py:60 dtype="float16"
#     lists = "paddle"
#     deny = ["gelu", "gelu_tanh"] # paddle_train.py:60 custom_black_list: ["gelu"]

INIT_SCALE = 2.0**24  # paddle_train.py:55 init_loss_scaling=2.0**24
GROWTH_FACTOR = 2.0  # default of paddle.amp.GradScaler
BACKOFF_FACTOR = 0.5  # default of paddle.amp.GradScaler
GROWTH_INTERVAL = 100  # paddle_train.py:55 incr_every_n_steps=100
BACKOFF_INTERVAL = 2  # paddle_train.py:55 decr_every_n_nan_or_inf=2
MIN_SCALE = 2.0**-126
MAX_SCALE = 2.0**127
CLIP_NORM = 1.0  # paddle_train.py:52 clip_norm=1.0
DTYPE_POLICY = "mixed_float16"  # paddle_train.py:60 level="O1"
LOW_LAYERS = {"AdaptiveMaxPooling2D", "Dot"}
FLOAT32_LAYERS = (
    "Attention Conv1DTranspose Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM2D DepthwiseConv1D "
    "DepthwiseConv2D Embedding GRU GRUCell GlobalAveragePooling2D GroupNormalization LSTM LSTMCell "
    "LayerNormalization PReLU RMSNormalization Resizing SeparableConv1D SeparableConv2D SimpleRNN "
    "SimpleRNNCell Softmax UpSampling2D"
).split()
FLOAT32_FUNCTIONS = (
    "arccos arcsin arctanh cosh cumprod cumsum erfinv exp expm1 exponential gelu hypot "
    "layer_normalization log log10 log2 log_softmax logaddexp mean power prod reciprocal resize "
    "rsqrt scatter sinh softmax softplus square std sum tan tanh_shrink var"
).split()
LOW_OUTPUT = {"Embedding", "GroupNormalization", "LayerNormalization", "RMSNormalization"}
keras.config.set_dtype_policy(DTYPE_POLICY)  # of layers made from here on


def set_precision(model):
    """Give every layer of ``model``, which has been built, its precision."""
    if not model.built:
        raise ValueError("build the model first, with keras.Input or a call: layers go by weights")
    set_layer(model)


def set_layer(layer, within=None, own=False):
    """Give it its precision, and its parts theirs. ``within``: of a layer whose parts go with it."""
    names = {cls.__name__ for cls in type(layer).__mro__}
    of_keras = type(layer).__module__.startswith("keras.")
    own = own or not of_keras  # code of yours, where x + y of two precisions is an error
    follows = isinstance(layer, keras.Model) or of_keras and not layer.weights
    follows = follows and not names.intersection(LOW_LAYERS)
    denied = names & {*FLOAT32_LAYERS} - (LOW_OUTPUT if own and of_keras else set())
    if denied:
        within = "float32"
    elif of_keras and not follows:  # one op with its parts, as attention is
        within = within or DTYPE_POLICY
    layer.dtype_policy = within or DTYPE_POLICY
    layer.autocast = within is not None or not follows
    if getattr(vars(layer).get("activation"), "__name__", "") in FLOAT32_FUNCTIONS:
        layer.activation = in_float32(layer.activation, own)
    for name in called(layer, FLOAT32_FUNCTIONS):
        warnings.warn(
            f"{type(layer).__name__} runs {name} in low precision, the recipe in float32; "
            f'add x = keras.ops.cast(x, "float32") before keras.ops.{name}(x), and cast back after it'
        )
    lists = [value for value in vars(layer).values() if isinstance(value, list)]
    for part in dict.fromkeys(p for each in lists for p in each if isinstance(p, keras.Layer)):
        set_layer(part, within, own)


def called(layer, functions):
    """Those that a model calls, a Lambda, or a method of a class of yours, unless it also casts."""
    code = {"": vars(layer).get("function")}
    for cls in reversed(type(layer).__mro__):
        code |= {} if cls.__module__.startswith("keras.") else vars(cls)
    names = [set(each.__code__.co_names) for each in code.values() if hasattr(each, "__code__")]
    ops = [type(op) for op in getattr(layer, "operations", ()) if not isinstance(op, keras.Layer)]
    names = [each for each in (*names, {op.__name__.lower() for op in ops}) if "cast" not in each]
    return [each for each in functions if {each, each.replace("_", "")} & set().union(*names)]


def in_float32(function, own):
    """``function``, computed in float32; it keeps its name, by which Keras saves it."""
    return wraps(function)(lambda x: tf.cast(function(float32(x)), x.dtype if own else "float32"))


def float32(x):
    """``x``, in float32 if it is in low precision."""
    return tf.cast(x, "float32") if x.dtype in (tf.float16, tf.bfloat16) else x


def optimizer(inner):
    """``inner``, a Keras optimizer, by the recipe."""
    # By its name, or as it is; the loss is scaled here alone.
    inner = keras.optimizers.get(getattr(inner, "inner_optimizer", inner))
    inner.global_clipnorm = CLIP_NORM
    return AmpOptimizer(inner, initial_scale=INIT_SCALE)


@keras.saving.register_keras_serializable(__name__)
class AmpOptimizer(keras.optimizers.LossScaleOptimizer):
    """Skips steps whose gradients overflow.

    The scale grows after GROWTH_INTERVAL finite steps in a row,
    and shrinks after BACKOFF_INTERVAL overflows in a row.
    """

    def build(self, variables):
        super().build(variables)
        self.skips = self.add_variable((), "zeros", "int32", name="skips")
        self.overflows = self.add_variable((), "zeros", "int32", name="overflows")

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        finite = self.check_finite(grads)
        grads = [g if g is None else keras.ops.divide(g, self.dynamic_scale) for g in grads]
        tf.cond(
            finite,
            lambda: self.inner_optimizer.apply(grads, trainable_variables),
            lambda: None,
        )
        self.skips.assign_add(keras.ops.where(finite, 0, 1))
        finite_steps = keras.ops.where(finite, self.step_counter + 1, 0)
        grows = keras.ops.equal(finite_steps, GROWTH_INTERVAL)
        overflows = keras.ops.where(finite, 0, self.overflows + 1)
        shrinks = tf.logical_and(tf.logical_not(finite), overflows >= BACKOFF_INTERVAL)
        larger = self.dynamic_scale * GROWTH_FACTOR
        larger = keras.ops.where(larger > MAX_SCALE, self.dynamic_scale, larger)
        smaller = keras.ops.maximum(self.dynamic_scale * BACKOFF_FACTOR, MIN_SCALE)
        scale = keras.ops.where(grows, larger, self.dynamic_scale)
        self.dynamic_scale.assign(keras.ops.where(shrinks, smaller, scale))
        self.step_counter.assign(keras.ops.where(grows, 0, finite_steps))
        self.overflows.assign(keras.ops.where(shrinks, 0, overflows))


Result = namedtuple("Result", "loss scale applied overflowed")  # of tensors: looking at one waits


def train_step(model, optimizer, loss_fn):
    """``step(x, y)``, which trains by one batch, for a loop of your own."""
    if not optimizer.built:
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        scale, steps = tf.identity(optimizer.dynamic_scale), tf.identity(optimizer.iterations)
        skips = tf.identity(optimizer.skips)
        with tf.GradientTape() as tape:
            predictions = tf.nest.map_structure(float32, model(x, training=True))
            loss = tf.add_n([float32(each) for each in (loss_fn(y, predictions), *model.losses)])
            scaled_loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return Result(loss, scale, optimizer.iterations > steps, optimizer.skips > skips)

    return step
