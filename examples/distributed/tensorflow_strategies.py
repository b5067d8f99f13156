"""Data parallel training in mixed precision on TensorFlow, an overflow on one replica included.

    python examples/distributed/tensorflow_strategies.py --replicas 2

runs a ``MirroredStrategy`` on this machine's GPUs, or on as many parts of its CPU. Where ``TF_CONFIG``
is set, as a cluster's scheduler does it for each process, it is a ``MultiWorkerMirroredStrategy``.

Model, optimizer and step are made in the strategy's scope. A step runs on all replicas by itself, each on
its part of the batch, and averages their gradients before it looks at them: so all replicas find the
same and take the same decision. With ``--own-loop`` the replicas' function is written by hand.

For each replica of this process a line is printed, all of them alike: its steps ("s" is a skipped one),
the scale, and what its weights hash to.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ampbridge as amp


def chosen_strategy(replicas: int) -> tf.distribute.Strategy:
    if "TF_CONFIG" in os.environ:
        # A worker that stops answering is an error on the others after that time, not a hang.
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=60.0)
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    if tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(cpu, parts)
    return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])


def batches(strategy: tf.distribute.Strategy, steps: int) -> Iterator[tuple[Any, Any, Any]]:
    """Random ones. Those of a dataset: ``strategy.experimental_distribute_dataset(dataset)``."""
    replicas = strategy.num_replicas_in_sync
    generators = [np.random.default_rng(replica) for replica in range(replicas)]

    def distributed(values: list[np.ndarray]) -> tf.distribute.DistributedValues:
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(values[context.replica_id_in_sync_group])
        )

    for number in range(steps):
        x = [g.standard_normal((8, 16)).astype(np.float32) for g in generators]
        y = [g.integers(0, 4, 8) for g in generators]
        factor = np.ones(replicas, np.float32)
        if number % 4 == 1:  # one replica after the other overflows, and that one alone
            factor[number // 4 % replicas] = np.inf
        yield distributed(x), distributed(y), distributed(list(factor))


def loss_fn(model: keras.Model, x: tf.Tensor, y: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """The mean over the replica's own examples."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x))
    return tf.reduce_mean(losses) * factor


def own_step(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    policy: str,
    scaler: amp.GradScaler,
) -> Callable[..., bool]:
    """What ``amp.train_step`` does, in the loop that TensorFlow's guide has."""
    if policy.startswith("O2"):
        amp.decorate(model, optimizer, policy)

    def on_replica(*batch: tf.Tensor) -> tf.Tensor:
        _, grads = amp.value_and_grad(loss_fn, model, *batch, policy=policy, scaler=scaler)
        applied = scaler.step(optimizer, grads)
        scaler.update()
        return applied

    @tf.function
    def on_all(*batch: Any) -> Any:
        return strategy.run(on_replica, args=batch)

    return lambda *batch: bool(strategy.experimental_local_results(on_all(*batch))[0])


def train(
    strategy: tf.distribute.Strategy,
    policy: str,
    steps: int,
    own_loop: bool = False,
    save: str | None = None,
) -> list[str]:
    """A line for each replica of this process."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((16,)), keras.layers.Dense(32, "gelu"), keras.layers.Dense(4)]
        )
        optimizer = keras.optimizers.AdamW(0.01)
        scaler = amp.GradScaler(1024.0, growth_interval=3)
        if own_loop:
            step = own_step(strategy, model, optimizer, policy, scaler)
        else:
            step = amp.train_step(loss_fn, model, optimizer, policy=policy, scaler=scaler)

    history = ""
    for batch in batches(strategy, steps):
        result = step(*batch)
        applied = result if own_loop else result.applied
        history += "." if applied else "s"

    if save is not None and not own_loop:
        step.save(save)  # every process calls it, one writes
    copies = [strategy.experimental_local_results(v.value) for v in model.trainable_variables]
    lines = []
    for weights in zip(*copies, strict=True):
        digest = hashlib.blake2b(digest_size=8)
        for weight in weights:
            digest.update(weight.numpy().tobytes())
        lines.append(f"{history} scale={scaler.get_scale():g} weights={digest.hexdigest()}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=2, help="on a CPU, without TF_CONFIG")
    parser.add_argument("--policy", default="O1")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--own-loop", action="store_true")
    parser.add_argument("--save", help="a folder for a checkpoint")
    given = parser.parse_args()
    if given.save and given.own_loop:
        parser.error("--save is for amp.train_step; a loop of one's own saves as it likes")
    strategy = chosen_strategy(given.replicas)
    lines = train(strategy, given.policy, given.steps, given.own_loop, given.save)
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
