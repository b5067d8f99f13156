"""A run that saves after every step and goes on from what it finds saved; see test_interruption.py.

Each run is a process of its own, which imports nothing of the tests.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import ampbridge as amp


def model() -> keras.Model:
    x = inputs = keras.Input((6,))
    x = layers.Dropout(0.3)(layers.BatchNormalization()(layers.Dense(8, "relu")(x)))
    return keras.Model(inputs, layers.Dense(3)(x))


def loss_fn(net: Any, x: Any, y: Any, factor: Any) -> Any:
    logits = tf.cast(net(x, training=True), tf.float32)
    return factor * tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def batch(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(number)
    factor = np.float32(np.inf if number % 9 in (3, 4) else 1.0)
    return random.normal(size=(8, 6)).astype(np.float32), random.integers(0, 3, 8), factor


def train_step(compiled: bool) -> amp.TrainStep:
    keras.utils.set_random_seed(0)
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.9)
    o1, o2 = (amp.Policy(level, "float16", execution="simulated") for level in ("O1", "O2"))
    return amp.train_step(
        loss_fn,
        model(),
        keras.optimizers.Nadam(rate),
        policy=amp.Schedule([(0, o1), (6, o2), (10, "O0"), (14, o2)]),
        scaler=amp.GradScaler(2.0**8, growth_interval=2),
        compile=compiled,
    )


def digest(step: amp.TrainStep) -> str:
    """Of weights, slots, counters, seeds, and the step's own state; none of it by ampbridge's reading."""
    held = [*step.model.variables, *step.optimizer.variables]
    digest = hashlib.sha256(json.dumps(step.state_dict(), sort_keys=True).encode())
    for variable in held:
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return digest.hexdigest()


def run(folder: Path, last: int, result: Path | None, compiled: bool) -> None:
    """Train up to step ``last``; a digest of all that the run has come to goes to ``result``."""
    step = train_step(compiled)
    if (folder / "state.json").exists():
        step.load(folder)
    for number in range(step.state_dict()["step"], last):
        step(*batch(number))
        step.save(folder)
    if result is not None:
        result.write_text(digest(step))
