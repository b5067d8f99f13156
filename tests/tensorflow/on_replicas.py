"""What replicas of this process come to, as lines of JSON; ``test_distributed.py`` knows what it should be.

Each scenario is a function of a strategy. Overflows are put on one replica alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

import ampbridge as amp
from ampbridge import GradScaler

STEPS = 8
BY_CHANCE = amp.Policy("O2", "bfloat16", masters="stochastic", slots="bfloat16")
OVERFLOWS = {2: np.inf, 5: np.nan}  # by step; on the last replica

Strategy = tf.distribute.Strategy
Values = Sequence[np.ndarray]


def inputs(replicas: int) -> list[tuple[Values, Values]]:
    """For each step and replica: examples, and a factor of the loss that may overflow."""
    generator = np.random.default_rng(0)
    steps = []
    for number in range(STEPS):
        factors = [np.float32(1.0)] * replicas
        factors[-1] = np.float32(OVERFLOWS.get(number, 1.0))
        steps.append((list(generator.normal(size=(replicas, 4, 6)).astype(np.float32)), factors))
    return steps


def loss_fn(model: Any, x: Any, factor: Any) -> Any:
    return tf.reduce_mean(tf.square(tf.cast(model(x), tf.float32) - 1.0)) * factor


def dense() -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(2)]
    )


class Embedding(tf.Module):
    """With a sparse gradient, and variables that no Keras layer casts."""

    def __init__(self) -> None:
        super().__init__()
        values = np.random.default_rng(1)
        self.table = tf.Variable(values.normal(size=(7, 4)).astype(np.float32), name="table")
        self.weight = tf.Variable(values.normal(size=(4, 2)).astype(np.float32), name="weight")
        self.seen: list[str] = []

    def __call__(self, ids: Any) -> Any:
        rows = tf.gather(self.table, ids)
        self.seen = [rows.dtype.name, tf.convert_to_tensor(self.weight).dtype.name]
        return tf.matmul(rows, self.weight)


def distributed(strategy: Strategy, values: Values) -> tf.distribute.DistributedValues:
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(values[context.replica_id_in_sync_group])
    )


def local(strategy: Strategy, value: Any) -> list[Any]:
    """What each replica holds."""
    return [np.asarray(each).tolist() for each in strategy.experimental_local_results(value)]


def held(strategy: Strategy, *owners: Any) -> list[list[Any]]:
    """The variables of models and optimizers, on each replica."""
    variables = [native(variable) for owner in owners for variable in owner.variables]
    return [list(each) for each in zip(*(local(strategy, v) for v in variables), strict=True)]


def native(variable: Any) -> tf.Variable:
    return variable if isinstance(variable, tf.Variable) else variable.value


def scaler_on(strategy: Strategy, scaler: GradScaler) -> list[Any]:
    """The scaler's state as each replica would read it."""
    read = strategy.run(lambda: tf.stack([tf.cast(x, tf.float32) for x in scaler.store.read()]))
    return local(strategy, read)


# -- scenarios


def steps(strategy: Strategy, **arguments: Any) -> dict[str, Any]:
    """A train step, through overflows."""
    with strategy.scope():
        model, optimizer = dense(), keras.optimizers.Adam(0.1)
        scaler = GradScaler(64.0, growth_interval=2)
        step = amp.train_step(loss_fn, model, optimizer, scaler=scaler, **arguments)
    results = [
        step(*(distributed(strategy, values) for values in batch))
        for batch in inputs(strategy.num_replicas_in_sync)
    ]
    return {
        "reasons": [result.reason for result in results],
        "losses": [result.loss for result in results],
        "norms": [result.grad_norm for result in results],
        "scales": [result.scale for result in results],
        "held": held(strategy, model, optimizer),
        "scaler": scaler_on(strategy, scaler),
    }


def fitted(strategy: Strategy, policy: amp.Policy) -> dict[str, Any]:
    """Keras' own loop."""
    x = np.concatenate([np.concatenate(x) for x, _ in inputs(strategy.num_replicas_in_sync)])
    with strategy.scope():
        model, optimizer = dense(), keras.optimizers.Adam(0.1)
        amp.decorate(model, optimizer, policy)
        model.compile(optimizer, "mse")
    model.fit(x, np.ones((len(x), 2), np.float32), batch_size=8, shuffle=False, verbose=0)
    return {"held": held(strategy, model, optimizer)}


def own_loop(strategy: Strategy, in_graph: bool) -> dict[str, Any]:
    """Two models and one scaler, which the replicas' function meets first; one is unscaled early."""
    with strategy.scope():
        models = dense(), dense()
        optimizers = keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.1)
    scaler = GradScaler(64.0, growth_interval=2)

    def on_replica(x: Any, factor: Any) -> Any:
        _, first = amp.value_and_grad(loss_fn, models[0], x, factor, policy="O0", scaler=scaler)
        _, second = amp.value_and_grad(loss_fn, models[1], x, 1.0, policy="O0", scaler=scaler)
        first = scaler.unscale(first)
        applied = scaler.step(optimizers[0], first), scaler.step(optimizers[1], second)
        scaler.update()
        return tf.stack(applied)

    def on_all(*batch: Any) -> Any:
        return strategy.run(on_replica, args=batch)

    run = tf.function(on_all) if in_graph else on_all
    applied = [
        local(strategy, run(*(distributed(strategy, values) for values in batch)))
        for batch in inputs(strategy.num_replicas_in_sync)
    ]
    return {
        "applied": applied,
        "held": held(strategy, *models, *optimizers),
        "scaler": scaler_on(strategy, scaler),
    }


def unscaled_loop(strategy: Strategy) -> dict[str, Any]:
    """A disabled scaler: gradients have to be averaged all the same."""
    with strategy.scope():
        model, optimizer = dense(), keras.optimizers.SGD(0.1)
    scaler = GradScaler(enabled=False)

    def on_replica(x: Any) -> None:
        _, grads = amp.value_and_grad(loss_fn, model, x, 1.0, policy="O0", scaler=scaler)
        scaler.step(optimizer, grads)
        scaler.update()

    run = tf.function(lambda x: strategy.run(on_replica, args=(x,)))
    for x, _ in inputs(strategy.num_replicas_in_sync):
        run(distributed(strategy, x))
    return {"held": held(strategy, model, optimizer)}


def low_module(strategy: Strategy, compile: bool, masters: str) -> dict[str, Any]:
    """A tf.Module at O2, its sparse gradient accumulated; saved and loaded between."""
    with strategy.scope():
        model, optimizer = Embedding(), keras.optimizers.SGD(0.5)
        step = amp.train_step(
            lambda model, ids: tf.reduce_mean(tf.square(model(ids))),
            model,
            optimizer,
            policy=amp.Policy("O2", "bfloat16", masters=masters),
            accumulate=2,
            name_overflows=True,
            compile=compile,
        )
    ids = distributed(strategy, [np.array([0, 1, 1]), np.array([2, 1, 6])])
    results = [step(ids) for _ in range(4)]
    before = held(strategy, model)
    folder = Path(sys.argv[1]) / f"saved-{compile}"
    step.save(folder)
    step(ids), step(ids)
    after = held(strategy, model)
    step.load(folder)
    loaded = held(strategy, model)
    step(ids), step(ids)
    return {
        "rounded": is_rounded(model),
        "seen": model.seen,
        "reasons": [result.reason for result in results],
        "overflows": results[-1].overflows,
        "held": after,
        "loaded": loaded == before and after != before,
        "went on": held(strategy, model) == after,
    }


def dropped_microbatch(strategy: Strategy) -> dict[str, Any]:
    """An overflow leaves out a micro-batch of all replicas."""
    with strategy.scope():
        model, optimizer = dense(), keras.optimizers.SGD(0.1)
        step = amp.train_step(
            loss_fn,
            model,
            optimizer,
            policy="O0",
            scaler=GradScaler(64.0),
            accumulate=2,
            on_overflow="drop_microbatch",
            name_overflows=True,
        )
    reasons, overflows = [], []
    for batch in inputs(strategy.num_replicas_in_sync)[1:4]:
        result = step(*(distributed(strategy, values) for values in batch))
        reasons.append(result.reason)
        overflows.append(result.overflows if result.reason == "inf" else None)
    return {
        "reasons": reasons,
        "overflows": overflows,
        "held": held(strategy, model, optimizer),
    }


def scheduled(strategy: Strategy) -> dict[str, Any]:
    """A policy that changes; without masters from the fourth step on."""
    without_masters = amp.Policy("O2", "bfloat16", masters=None)
    with strategy.scope():
        model, optimizer = dense(), keras.optimizers.Adam(0.1)
        plan = amp.Schedule([(0, "O0"), (1, "O1"), (3, without_masters)])
        step = amp.train_step(loss_fn, model, optimizer, policy=plan, clip_norm=0.5)
    for batch in inputs(strategy.num_replicas_in_sync):
        step(*(distributed(strategy, values) for values in batch))
    return {"held": held(strategy, model, optimizer), "rounded": is_rounded(model)}


def is_rounded(model: Any) -> bool:
    """Whether all weights are numbers of bfloat16."""
    weights = [native(variable).read_value().numpy() for variable in model.trainable_variables]
    return all(np.array_equal(w, w.astype(ml_dtypes.bfloat16).astype(w.dtype)) for w in weights)


def refusals(strategy: Strategy) -> dict[str, str]:
    """What cannot work, and what is said of it."""
    x = distributed(strategy, [np.ones((4, 6), np.float32)] * strategy.num_replicas_in_sync)
    factor = tf.constant(1.0)
    with strategy.scope():
        model, optimizer = dense(), keras.optimizers.SGD(0.1)
        step = amp.train_step(loss_fn, model, optimizer, policy="O0")
    outside, outside_optimizer = dense(), keras.optimizers.SGD(0.1)
    astray = amp.train_step(loss_fn, model, outside_optimizer, policy="O0")

    def on_no_replica() -> None:
        grads = [tf.zeros(variable.shape) for variable in model.trainable_variables]
        scaler = GradScaler()
        scaler.scale(tf.constant(1.0))
        scaler.step(optimizer, amp.Gradients(grads, model.trainable_variables))

    def in_the_scope_alone() -> None:
        with strategy.scope():
            step = amp.train_step(loss_fn, outside, keras.optimizers.SGD(0.1), policy="O0")
        step(np.ones((4, 6), np.float32), factor)

    def another_strategy() -> None:
        with tf.distribute.OneDeviceStrategy("CPU:0").scope():
            amp.train_step(loss_fn, dense(), keras.optimizers.SGD(0.1), policy="O1")

    def of_a_model_outside() -> None:
        def on_replica(x: Any) -> None:
            scaler = GradScaler()
            _, grads = amp.value_and_grad(loss_fn, outside, x, 1.0, scaler=scaler)
            scaler.step(optimizer, grads)

        strategy.run(on_replica, args=(x,))

    return {
        "on a replica": said(lambda: strategy.run(step, args=(x, factor))),
        "the same for all": said(lambda: step(np.ones((4, 6), np.float32), factor)),
        "optimizer outside": said(lambda: astray(x, factor)),
        "model outside": said(of_a_model_outside),
        "no replica at all": said(in_the_scope_alone),
        "on no replica": said(on_no_replica),
        "another strategy": said(another_strategy),
    }


def said(action: Callable[[], Any]) -> str:
    try:
        action()
    except amp.AmpBridgeError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    # In another way than by collectives: TensorFlow keeps to one size of their group in a process.
    to_one = tf.distribute.ReductionToOneDevice()
    three = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"], to_one)
    scenarios: dict[str, Callable[[], Any]] = {
        "compiled 2": lambda: steps(two, policy="O0", clip_norm=0.5),
        "compiled 3": lambda: steps(three, policy="O0", clip_norm=0.5),
        "eager 2": lambda: steps(two, policy="O0", clip_norm=0.5, compile=False),
        "low 3": lambda: steps(three, policy="O2"),
        "by chance, compiled": lambda: steps(two, policy=BY_CHANCE),
        "by chance, eager": lambda: steps(two, policy=BY_CHANCE, compile=False),
        "by chance, fit": lambda: fitted(two, BY_CHANCE),
        "own loop, compiled": lambda: own_loop(three, in_graph=True),
        "own loop, eager": lambda: own_loop(two, in_graph=False),
        "unscaled loop": lambda: unscaled_loop(two),
        "module, compiled": lambda: low_module(two, compile=True, masters="stochastic"),
        "module, eager": lambda: low_module(two, compile=False, masters="float32"),
        "dropped": lambda: dropped_microbatch(two),
        "scheduled": lambda: scheduled(two),
        "refusals": lambda: refusals(two),
    }
    for name, scenario in scenarios.items():
        print(json.dumps([name, scenario()]), flush=True)


if __name__ == "__main__":
    main()
