"""The TensorFlow side of overhead.py: Keras' mixed policy in a hand-written loop, and ampbridge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import keras
import tensorflow as tf
from overhead import Case, Shape, Step, batch_of

import ampbridge as amp
from ampbridge_tensorflow import LossScaleOptimizer

Wrap = Callable[[keras.optimizers.Optimizer], keras.optimizers.Optimizer]

# One thread, as on the other frameworks: two shared cores make the ratios of threads meaningless.
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
BATCHES = 50
"""In one call of ``fit``."""

NAME = "float16" if tf.config.list_physical_devices("GPU") else "bfloat16"


def device() -> str:
    return "GPU" if NAME == "float16" else "CPU, 1 thread"


def model_of(shape: Shape, policy: str) -> keras.Model:
    """Float32 logits in either policy, as Keras' guide asks."""
    keras.utils.set_random_seed(0)
    low = {"dtype": policy}
    if not shape.tokens:
        hidden = [keras.layers.Dense(shape.width, "relu", **low) for _ in range(shape.layers)]
        head = keras.layers.Dense(shape.classes, **low)
        return keras.Sequential([keras.Input((shape.features,)), *hidden, head])
    x = inputs = keras.Input((shape.tokens, shape.width))
    for _ in range(shape.layers):
        attended = keras.layers.MultiHeadAttention(4, shape.width // 4, **low)(x, x)
        x = keras.layers.LayerNormalization(**low)(keras.layers.Add(**low)([x, attended]))
        inner = keras.layers.Dense(4 * shape.width, "relu", **low)(x)
        inner = keras.layers.Dense(shape.width, **low)(inner)
        x = keras.layers.LayerNormalization(**low)(keras.layers.Add(**low)([x, inner]))
    pooled = keras.layers.GlobalAveragePooling1D(**low)(x)
    return keras.Model(inputs, keras.layers.Dense(shape.classes, **low)(pooled))


def loss_fn(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    logits = tf.cast(model(x, training=True), tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
    return tf.reduce_mean(losses)


Model = Callable[[str], keras.Model]
"""Made in a Keras dtype policy."""


def native(made_in: Model, x: tf.Tensor, y: tf.Tensor, scaled: bool, policy: str) -> Step:
    """A custom training loop of Keras' guide, with its LossScaleOptimizer."""
    model = made_in(policy)
    optimizer = keras.optimizers.AdamW(1e-4)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_fn(model, x, y)
            target = optimizer.scale_loss(loss) if scaled else loss
        grads = tape.gradient(target, model.trainable_variables)
        optimizer.apply(grads, model.trainable_variables)
        return loss

    return lambda: step(x, y)


def bridged(made_in: Model, x: tf.Tensor, y: tf.Tensor, scaled: bool, policy: amp.Policy) -> Step:
    model = made_in("float32")
    scaler = amp.GradScaler(enabled=scaled)
    step = amp.train_step(
        loss_fn, model, keras.optimizers.AdamW(1e-4), policy=policy, scaler=scaler
    )
    return lambda: step(x, y)


def fitted(shape: Shape, x: tf.Tensor, y: tf.Tensor, wrap: Wrap, policy: str) -> Step:
    """One epoch of Keras' own loop, with an optimizer that scales."""
    model = model_of(shape, policy)
    model.compile(
        wrap(keras.optimizers.AdamW(1e-4)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    data = tf.data.Dataset.from_tensors((x, y)).repeat(BATCHES)
    return lambda: model.fit(data, verbose=0)


def cases(shape: Shape, workload: str) -> Iterator[Case]:
    x, y = map(tf.constant, batch_of(shape))
    model = partial(model_of, shape)
    default, deny = amp.Policy("O1", NAME), amp.Policy("O1", NAME, deny=["relu"])
    for scaled in (False, True):
        keras_loop = partial(native, model, x, y, scaled, f"mixed_{NAME}")
        yield Case(
            f"{NAME}, {'with' if scaled else 'no'} scaler, compiled",
            {
                f"Keras mixed_{NAME}": keras_loop,
                "ampbridge, default lists": partial(bridged, model, x, y, scaled, default),
                'ampbridge, deny=["relu"]': partial(bridged, model, x, y, scaled, deny),
                f"Keras mixed_{NAME}, again": keras_loop,
                "float32, no scaler": partial(native, model, x, y, False, "float32"),
            },
        )
    by_keras = partial(fitted, shape, x, y, keras.optimizers.LossScaleOptimizer, f"mixed_{NAME}")
    yield Case(
        f"{NAME}, {BATCHES} steps of Model.fit, compiled",
        {
            "Keras' LossScaleOptimizer": by_keras,
            "ampbridge's": partial(fitted, shape, x, y, LossScaleOptimizer, f"mixed_{NAME}"),
            "Keras' LossScaleOptimizer, again": by_keras,
        },
    )
