"""What is Keras' own: its mixed policy and its LossScaleOptimizer, in a loop by hand and in ``fit``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from measuring import Maker, Step
from steps import Fresh, Shape, Task, beside

import ampbridge as amp
from ampbridge_tensorflow import LossScaleOptimizer

Wrap = Callable[[keras.optimizers.Optimizer], keras.optimizers.Optimizer]

# One thread, as on the other frameworks: two shared cores make the ratios of threads meaningless.
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
NAME = "float16" if tf.config.list_physical_devices("GPU") else "bfloat16"
MIXED = f"mixed_{NAME}"
POLICIES = {"ampbridge, default lists": amp.Policy("O1", NAME)}
DENIED = {'ampbridge, deny=["relu"]': amp.Policy("O1", NAME, deny=["relu"])}
BATCHES = 50
"""In one call of ``fit``."""
Module, Tensor, wait = keras.Model, type(tf.constant(0.0)), None
device = "GPU" if NAME == "float16" else "CPU, 1 thread"
own_scaler = keras.optimizers.LossScaleOptimizer


def loss_fn(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Of float32 logits in either policy, as Keras' guide asks."""
    logits = tf.cast(model(x, training=True), tf.float32)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def task(model: keras.Model, x: np.ndarray, y: np.ndarray) -> Task:
    """With Keras' AdamW: neutral's follows torch's formulas, which a loop of Keras' would not."""
    model(x)  # builds what is not built yet
    return Task(
        model, loss_fn, (tf.constant(x), tf.constant(y)), lambda _: keras.optimizers.AdamW(1e-4)
    )


def transformer(shape: Shape) -> keras.Model:
    """An encoder over tokens, pooled and classified."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((shape.tokens, shape.width))
    for _ in range(shape.layers):
        attended = keras.layers.MultiHeadAttention(4, shape.width // 4)(x, x)
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, attended]))
        inner = keras.layers.Dense(4 * shape.width, "relu")(x)
        inner = keras.layers.Dense(shape.width)(inner)
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, inner]))
    pooled = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, keras.layers.Dense(shape.classes)(pooled))


def in_policy(fresh: Fresh, policy: str) -> Task:
    """A task whose layers have a Keras dtype policy."""
    keras.config.set_dtype_policy(policy)
    try:
        return fresh()
    finally:
        keras.config.set_dtype_policy("float32")


def loop(fresh: Fresh, wrap: Wrap | None = None, policy: str = "float32") -> Step:
    """The custom loop of Keras' guide, compiled; ``wrap`` makes the optimizer scale."""
    model, loss_fn, batch, adamw = in_policy(fresh, policy)
    optimizer = adamw(model) if wrap is None else wrap(adamw(model))
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(*batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_fn(model, *batch)
            target = loss if wrap is None else optimizer.scale_loss(loss)
        grads = tape.gradient(target, model.trainable_variables)
        optimizer.apply(grads, model.trainable_variables)
        return loss

    return lambda: step(*batch)


def fitted(fresh: Fresh, wrap: Wrap) -> Step:
    """One epoch of Keras' own loop, with an optimizer that scales."""
    model, _, batch, adamw = in_policy(fresh, MIXED)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(wrap(adamw(model)), loss=loss)
    data = tf.data.Dataset.from_tensors(batch).repeat(BATCHES)
    return lambda: model.fit(data, verbose=0)


def our_scaler(optimizer: keras.optimizers.Optimizer) -> LossScaleOptimizer:
    return LossScaleOptimizer(optimizer, amp.GradScaler())


def compared(
    fresh: Fresh, scaled: bool = False, policies: Mapping[str, amp.Policy] = POLICIES
) -> dict[str, Maker]:
    keras_loop = partial(loop, fresh, own_scaler if scaled else None, MIXED)
    return beside(f"Keras {MIXED}", keras_loop, fresh, policies, scaled)


def cases(fresh: Fresh, workload: str) -> Iterator[tuple[str, Mapping[str, Maker]]]:
    for scaled in (False, True):
        makers = compared(fresh, scaled, {**POLICIES, **DENIED})
        makers["float32, no scaler"] = partial(loop, fresh)
        yield f"{NAME}, {'with' if scaled else 'no'} scaler, compiled", makers
    by_keras, by_ours = partial(fitted, fresh, own_scaler), partial(fitted, fresh, our_scaler)
    yield (
        f"{NAME}, {BATCHES} steps of Model.fit, compiled",
        beside("Keras' LossScaleOptimizer", by_keras, fresh, {}, more={"ampbridge's": by_ours}),
    )


def weight(model: keras.Model, *shape: int) -> Any:
    return model.add_weight(shape=shape)


def add_n(weights: list[Any]) -> tf.Tensor:
    return tf.add_n([tf.convert_to_tensor(each) for each in weights])


def ops(model: Any) -> dict[str, Any]:
    return {
        "relu": tf.nn.relu,
        "linear": lambda x: tf.matmul(x, model.weight),
        "softmax": tf.nn.softmax,
    }
