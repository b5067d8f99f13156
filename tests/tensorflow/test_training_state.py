"""Going on from a checkpoint bit by bit; names that last; weights to and from NumPy's models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402

import ampbridge as amp  # noqa: E402
from ampbridge_tensorflow.backend import TensorflowBackend  # noqa: E402

BACKEND = TensorflowBackend()
RANDOM = np.random.default_rng(3)
BATCHES = [
    (RANDOM.normal(size=(8, 6)).astype(np.float32), RANDOM.integers(0, 3, 8)) for _ in range(6)
]
OVERFLOW = BATCHES[0][0].copy(), BATCHES[0][1]
OVERFLOW[0][0, 0] = 200.0


# -- models with everything that a step may change


def sequential() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.4),
            layers.Dense(3),
        ]
    )


def functional() -> keras.Model:
    x = inputs = keras.Input((6,))
    x = layers.Dense(6, trainable=False)(x)
    x = layers.Add()([layers.Dense(6, "tanh")(x), layers.GaussianNoise(0.1)(x)])
    return keras.Model(inputs, layers.Dense(3)(layers.LayerNormalization()(x)))


class Counting(layers.Layer):
    """Weights of its own making, nameless ones among them, two generators and a raw tf.Variable."""

    def __init__(self) -> None:
        super().__init__()
        self.noise, self.more_noise = keras.random.SeedGenerator(1), keras.random.SeedGenerator(2)
        self.calls = tf.Variable(0)

    def build(self, shape: Any) -> None:
        self.scales = [self.add_weight(shape=shape[-1:], initializer="ones") for _ in range(2)]
        self.shift = self.add_weight(shape=shape[-1:])

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1)
        noise = keras.random.normal(tf.shape(x), seed=self.noise)
        noise *= keras.random.uniform(tf.shape(x), seed=self.more_noise)
        return x * self.scales[0] * self.scales[1] + self.shift + tf.cast(noise, x.dtype) * 0.1


class Subclassed(keras.Model):
    """Attributes, lists, a nested Sequential and a nested functional model."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential([layers.Dense(6, "tanh"), layers.Dropout(0.2)])
        self.blocks = [layers.Dense(6, "tanh") for _ in range(2)]
        self.counting = Counting()
        x = inputs = keras.Input((6,))
        self.head = keras.Model(inputs, layers.Dense(3)(layers.BatchNormalization()(x)))

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.inner(x, training=training)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.counting(x), training=training)


class Module(tf.Module):
    """No Keras at all; a list and a dictionary of variables, one of them not trainable."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(0)
        self.kernels = [
            tf.Variable(random.normal(size=(6, n)) / 3.0, dtype=tf.float32) for n in (6, 3)
        ]
        self.biases = {"inner": tf.Variable(tf.zeros(6)), "outer": tf.Variable(tf.zeros(3))}
        self.mean = tf.Variable(tf.zeros(6), trainable=False)

    def __call__(self, x: Any, training: bool = False) -> Any:
        x = tf.tanh(x @ self.kernels[0] + self.biases["inner"])
        average = tf.cast(tf.reduce_mean(x, 0), tf.float32)
        self.mean.assign(0.9 * self.mean + 0.1 * average)
        return (x - tf.cast(self.mean, x.dtype)) @ self.kernels[1] + self.biases["outer"]


MODELS: dict[str, Callable[[], Any]] = {
    "sequential": sequential,
    "functional": functional,
    "subclassed": Subclassed,
    "module": Module,
}

OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2),
    "amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "adamw": lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.05, 1, 0.7), weight_decay=0.1
    ),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.9, centered=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
}

POLICIES = {
    "O0": amp.Policy("O0"),
    "O1 float16": amp.Policy("O1", "float16", execution="native"),
    "O2 float16": amp.Policy("O2", "float16", execution="native"),
    "O2 bfloat16": amp.Policy("O2", "bfloat16", execution="simulated"),
    "O2 bfloat16, no masters": amp.Policy("O2", "bfloat16", execution="simulated", masters=None),
    "scheduled": amp.Schedule(
        [(0, "O0"), (2, amp.Policy("O1", execution="native")), (4, amp.Policy("O2", "bfloat16"))]
    ),
}


def loss_fn(model: Any, x: Any, y: Any) -> Any:
    """Infinite where the first input says so."""
    logits = tf.cast(model(x, training=True), tf.float32)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
    return loss * tf.where(x[0, 0] > 100.0, np.inf, 1.0)


def made(name: str, seed: int = 0) -> Any:
    keras.utils.set_random_seed(seed)
    model = MODELS[name]()
    if isinstance(model, Subclassed):
        model(BATCHES[0][0])
    return model


def train_step(model: str, optimizer: str, policy: str, compiled: bool, seed: int = 0) -> Any:
    # Layers of the same names as in a new process: TensorFlow's graph optimizer orders and fuses by
    # names, so that two compiled steps may differ in a last bit where "dense_9" stands for "dense_10".
    keras.utils.clear_session()
    plan = POLICIES[policy]
    needs = isinstance(plan, amp.Schedule) or plan.needs_scaling
    return amp.train_step(
        loss_fn,
        made(model, seed),
        OPTIMIZERS[optimizer](),
        policy=plan,
        scaler=amp.GradScaler(2.0**8, growth_interval=2) if needs else None,
        compile=compiled,
    )


def everything(step: Any) -> dict[str, Any]:
    """All that a run goes on with, read without ampbridge's help; and the step's own state."""
    model, optimizer = step.model, step.optimizer
    held = [*model.variables, *optimizer.variables]
    if isinstance(model, Subclassed):
        held.append(model.counting.calls)
    return {
        "variables": [np.array(v.numpy()) for v in held],
        "iterations": int(optimizer.iterations),
        "rate": float(optimizer.learning_rate),
        "state": step.state_dict(),
    }


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["iterations"] == other["iterations"]
    assert one["rate"] == other["rate"]
    assert one["state"] == other["state"]
    for a, b in zip(one["variables"], other["variables"], strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def trained(step: Any, batches: list[Any]) -> list[float]:
    return [step(*batch).loss for batch in batches]


LONGER = pytest.mark.nightly

CASES = [
    pytest.param("sequential", "momentum", "O1 float16", True, marks=LONGER),
    ("sequential", "nadam", "O2 float16", True),
    pytest.param("sequential", "adafactor", "O0", False, marks=LONGER),
    pytest.param("functional", "adam", "O0", True, marks=LONGER),
    ("functional", "adamw", "O2 bfloat16", False),
    pytest.param("functional", "rmsprop", "O1 float16", False, marks=LONGER),
    pytest.param("subclassed", "amsgrad", "O2 float16", False, marks=LONGER),
    pytest.param("subclassed", "adagrad", "O2 bfloat16", True, marks=LONGER),
    ("subclassed", "nadam", "scheduled", False),
    pytest.param("module", "adamw", "O2 float16", True, marks=LONGER),
    ("module", "momentum", "O2 bfloat16, no masters", False),
    ("module", "adagrad", "O0", False),
]


@pytest.mark.parametrize(("model", "optimizer", "policy", "compiled"), CASES)
def test_a_loaded_run_goes_on_bit_by_bit(
    model: str, optimizer: str, policy: str, compiled: bool, tmp_path: Path
) -> None:
    """Into other values, once unbuilt and once used, and back into the very run it was saved from."""
    first = train_step(model, optimizer, policy, compiled)
    trained(first, BATCHES[:2])
    assert not first(*OVERFLOW).applied
    first.save(tmp_path)
    at_save = everything(first)
    losses = trained(first, BATCHES[2:])
    at_end = everything(first)
    fresh = train_step(model, optimizer, policy, compiled, seed=7)
    used = train_step(model, optimizer, policy, compiled, seed=8)
    trained(used, BATCHES[3:4])
    for step in (fresh, used, first):
        step.load(tmp_path)
        assert_same(everything(step), at_save)
        assert trained(step, BATCHES[2:]) == losses
        assert_same(everything(step), at_end)


@pytest.mark.parametrize("optimizer", ["adagrad", "nadam"])
def test_a_run_that_has_not_begun(optimizer: str, tmp_path: Path) -> None:
    """Slots that do not begin at zero, saved before there are any, over used ones."""
    untouched = train_step("sequential", optimizer, "O1 float16", False)
    untouched.save(tmp_path)
    used = train_step("sequential", optimizer, "O1 float16", False, seed=5)
    trained(used, BATCHES[:2])
    used.load(tmp_path)
    assert trained(used, BATCHES) == trained(untouched, BATCHES)
    assert_same(everything(used), everything(untouched))


def test_a_refused_load_leaves_an_optimizer_unbuilt(tmp_path: Path) -> None:
    saved = train_step("sequential", "adam", "O1 float16", False)
    trained(saved, BATCHES[:1])
    saved.save(tmp_path)
    step, twin = (train_step("sequential", "nadam", "O1 float16", False, seed=7) for _ in range(2))
    held = dict(vars(step.optimizer))
    with pytest.raises(amp.StateError):
        step.load(tmp_path)
    assert_unbuilt(step.optimizer, held, tmp_path)
    assert trained(step, BATCHES) == trained(twin, BATCHES)
    assert_same(everything(step), everything(twin))


def test_a_first_step_that_fails_where_its_graph_runs_leaves_an_optimizer_unbuilt(
    tmp_path: Path,
) -> None:
    def checked(model: Any, x: Any, y: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_max(x), 100.0)]):
            return tf.identity(loss_fn(model, x, y))

    def new() -> amp.TrainStep:
        model, optimizer = made("sequential"), keras.optimizers.Adam(0.01)
        return amp.train_step(checked, model, optimizer, policy="O0", compile=True)

    step, twin = new(), new()
    held, (x, y) = dict(vars(step.optimizer)), BATCHES[0]
    with pytest.raises(tf.errors.InvalidArgumentError):
        step(x + np.float32(1000), y)
    assert_unbuilt(step.optimizer, held, tmp_path)
    assert trained(step, BATCHES) == trained(twin, BATCHES)
    with pytest.raises(tf.errors.InvalidArgumentError):
        step(x + np.float32(1000), y)
    assert step.optimizer.built
    assert_same(everything(step), everything(twin))


def test_a_first_step_that_fails_after_its_gradients_leaves_an_optimizer_unbuilt(
    tmp_path: Path,
) -> None:
    step = train_step("sequential", "adam", "O1 float16", False)
    held = dict(vars(step.optimizer))
    with (
        mock.patch.object(TensorflowBackend, "unscale_for", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        step(*BATCHES[0])
    assert_unbuilt(step.optimizer, held, tmp_path)
    assert step(*BATCHES[0]).applied


def assert_unbuilt(optimizer: Any, held: dict[str, Any], folder: Path) -> None:
    """It holds what it ``held``; Keras saves it, and builds it for whatever it is to train."""
    assert not optimizer.built
    now = vars(optimizer)
    assert now.keys() == held.keys()
    assert all(now[name] is value for name, value in held.items())
    assert [v.name for v in optimizer.variables] == ["iteration", "learning_rate"]
    # An id that is noted there would hide the next variable at that place in memory.
    tracker = optimizer._tracker
    for store, (_, tracked) in tracker.config.items():
        assert tracker.stored_ids[store] == {id(each) for each in tracked}
    keras_made = type(optimizer)(0.1)
    for name, value in vars(keras_made).items():
        if isinstance(value, (list, dict)):
            assert len(now[name]) == len(value), name
        if isinstance(value, list):  # TensorFlow's keep their items elsewhere
            assert list.__len__(now[name]) == list.__len__(value), name
    tf.train.Checkpoint(optimizer=optimizer).write(str(folder / "keras"))


def test_a_rate_that_was_changed_by_hand(tmp_path: Path) -> None:
    step = train_step("sequential", "adam", "O0", True)
    step.optimizer.learning_rate = 0.0123
    step.save(tmp_path)
    other = train_step("sequential", "adam", "O0", True)
    other.load(tmp_path)
    assert float(other.optimizer.learning_rate) == float(np.float32(0.0123))


def test_what_is_loaded_into_a_decorated_model_is_what_undecorating_leaves(tmp_path: Path) -> None:
    saved = train_step("subclassed", "momentum", "O0", False)
    saved.save(tmp_path)
    expected = BACKEND.read_weights(saved.model)
    model = made("subclassed", seed=4)
    amp.decorate(model, policy=POLICIES["O2 bfloat16"])
    amp.load_weights(tmp_path, model)
    amp.undecorate(model)
    for name, values in BACKEND.read_weights(model).items():
        np.testing.assert_array_equal(values, expected[name])


# -- names


NAMES = {
    "sequential": [
        *("dense.bias", "dense.kernel"),
        *(f"batch_normalization.{w}" for w in ("gamma", "beta", "moving_mean", "moving_variance")),
        *("dense_1.bias", "dense_1.kernel"),
    ],
    "module": ["kernels.0", "kernels.1", "biases.inner", "biases.outer", "mean"],
    "subclassed": [
        *("inner.dense.bias", "inner.dense.kernel"),
        *("blocks.0.bias", "blocks.0.kernel", "blocks.1.bias", "blocks.1.kernel"),
        *("counting.calls", "counting.scales.0", "counting.scales.1", "counting.shift"),
        *(f"head.batch_normalization.{w}" for w in ("gamma", "beta")),
        *(f"head.batch_normalization.moving_{w}" for w in ("mean", "variance")),
        *("head.dense.bias", "head.dense.kernel"),
    ],
}


@pytest.mark.parametrize("model", NAMES)
def test_names_are_of_the_model_alone(model: str) -> None:
    """However many layers of its kinds the process has made before."""
    made(model)
    second = made(model)
    assert sorted(w.name for w in BACKEND.weights(second)) == sorted(NAMES[model])
    trainable = set(BACKEND.parameter_names(second))
    assert trainable <= set(NAMES[model])
    assert len(trainable) == len(second.trainable_variables)


def test_names_that_the_user_has_given_stay() -> None:
    model = keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(2, name="embed"),
            layers.Dense(2),
            layers.EinsumDense("ab,bc->ac", 2, name="dense"),
        ]
    )
    names = [weight.name for weight in BACKEND.weights(model)]
    assert {name.rpartition(".")[0] for name in names} == {"embed", "dense", "dense_1"}
    assert len(set(names)) == len(names) == 5


def test_an_attribute_may_have_the_name_of_a_layer() -> None:
    inputs = keras.Input((2,))
    model = keras.Model(inputs, layers.Dense(3, name="dense")(inputs))
    model.dense = layers.Dense(4)
    model.dense.build((None, 3))
    found = {weight.name: weight.shape for weight in BACKEND.weights(model)}
    assert sorted(found.values()) == [(2, 3), (3,), (3, 4), (4,)]
    values = {name: value + 1 for name, value in BACKEND.read_weights(model).items()}
    BACKEND.write_weights(model, values)
    for name, value in BACKEND.read_weights(model).items():
        np.testing.assert_array_equal(value, values[name])


def test_a_shared_layer_and_a_hidden_variable_are_listed_once() -> None:
    class Hides(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = self.same = tf.Variable(1.0)
            self.hidden = {("a", "tuple"): {"set": (tf.Variable(2.0, name="deep"),)}}

    names = [weight.name for weight in BACKEND.weights(Hides())]
    assert len(names) == 2
    assert names[0] == "one"


def test_seed_generators_are_no_weights_but_go_on(tmp_path: Path) -> None:
    model = made("subclassed")
    names = [weight.name for weight in BACKEND.weights(model)]
    assert not any("seed" in name for name in names)
    state = BACKEND.read_optimizer(keras.optimizers.SGD(0.1), model)
    assert sorted(name for name in state.slots if name.startswith("random/")) == [
        "random/counting.seed_generator_state",
        "random/counting.seed_generator_state_1",
        "random/inner.dropout.seed_generator_state",
    ]


RESUMED = """
import json, sys
import keras
sys.path.insert(0, sys.argv[1])
import test_training_state as here
here.made("functional"), here.made("sequential")
step = here.train_step("sequential", "adam", "O1 float16", False, seed=9)
step.load(sys.argv[2])
print(json.dumps(here.trained(step, here.BATCHES[2:])))
"""


@pytest.mark.slow
def test_another_process_that_has_made_other_models_before_goes_on(tmp_path: Path) -> None:
    step = train_step("sequential", "adam", "O1 float16", False)
    trained(step, BATCHES[:2])
    step.save(tmp_path)
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RESUMED, here, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == trained(step, BATCHES[2:])


# -- to and from NumPy's models


def keras_net() -> keras.Model:
    image, word = keras.Input((4, 4, 2)), keras.Input((), dtype="int32")
    x = layers.Conv2D(4, 3, padding="same")(image)
    x = layers.ReLU()(layers.BatchNormalization(epsilon=1e-5)(x))
    x = layers.Flatten()(layers.Permute((3, 1, 2))(layers.AveragePooling2D(2)(x)))
    y = layers.LayerNormalization(epsilon=1e-5)(layers.Embedding(10, 5)(word))
    x = layers.ReLU()(layers.Add()([layers.Dense(7)(x), layers.Dense(7)(y)]))
    return keras.Model([image, word], layers.Dense(3)(x))


IMAGES = RANDOM.normal(size=(8, 2, 4, 4)).astype(np.float32)
CHANNELS_LAST = np.ascontiguousarray(IMAGES.transpose(0, 2, 3, 1))
WORDS = RANDOM.integers(0, 10, 8)
LABELS = RANDOM.integers(0, 3, 8)


def numpy_side(action: str, folder: Path) -> None:
    """In a process of its own: where two backends are in use, ``Policy.auto`` asks which is meant."""
    np.savez(folder / "batch.npz", images=IMAGES, words=WORDS, labels=LABELS)
    script = Path(__file__).with_name("numpy_net.py")
    subprocess.run([sys.executable, str(script), action, str(folder)], check=True)


def keras_step(model: keras.Model, rate: float = 0.05) -> Any:
    def loss_fn(model: Any, image: Any, word: Any, labels: Any) -> Any:
        logits = tf.cast(model([image, word], training=True), tf.float32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    sgd = keras.optimizers.SGD(rate)
    policy = amp.Policy("O1", execution="native")
    return amp.train_step(
        loss_fn, model, sgd, policy=policy, scaler=amp.GradScaler(2.0**10), compile=False
    )


def predictions(model: keras.Model) -> np.ndarray:
    return model([CHANNELS_LAST, WORDS], training=False).numpy()


def test_weights_that_numpy_trained(tmp_path: Path) -> None:
    numpy_side("train", tmp_path)
    keras.utils.set_random_seed(1)
    model = keras_net()
    report = amp.load_weights(tmp_path, model)
    expected = np.load(tmp_path / "predictions.npy")
    np.testing.assert_allclose(predictions(model), expected, atol=1e-5, rtol=1e-5)
    turned = next(match for match in report if match.target.role == "conv.kernel")
    assert (turned.source.axes, turned.target.axes) == ("oihw", "hwio")


def test_weights_that_keras_trained(tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    model = keras_net()
    step = keras_step(model)
    for _ in range(4):
        step(CHANNELS_LAST, WORDS, LABELS)
    step.save(tmp_path)
    numpy_side("predict", tmp_path)
    actual = np.load(tmp_path / "predictions.npy")
    np.testing.assert_allclose(actual, predictions(model), atol=1e-5, rtol=1e-5)


def test_layers_of_one_shape_come_there_and_back_in_their_order(tmp_path: Path) -> None:
    def stack() -> keras.Model:
        return keras.Sequential([keras.Input((4,)), *(layers.Dense(4) for _ in range(3))])

    source, target = stack(), stack()
    amp.train_step(loss_fn, source, keras.optimizers.SGD(0.1), policy="O0").save(tmp_path)
    numpy_side("copy", tmp_path)
    amp.load_weights(tmp_path / "copy", target)
    for one, other in zip(source.weights, target.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize(
    ("layer", "shape", "kernel"),
    [
        (lambda: layers.Conv1D(3, 2), (5, 2), ("conv.kernel", "wio")),
        (lambda: layers.Conv3D(3, 1), (4, 4, 4, 2), ("conv.kernel", "dhwio")),
        (lambda: layers.Conv2DTranspose(3, 2), (4, 4, 2), ("conv_transpose.kernel", "hwoi")),
        (lambda: layers.DepthwiseConv2D(2), (4, 4, 3), ("depthwise_conv.kernel", "hwcm")),
        (lambda: layers.LayerNormalization(axis=[1, 2]), (4, 3), ("other.gamma", "ab")),
    ],
)
def test_roles(layer: Any, shape: tuple[int, ...], kernel: tuple[str, str]) -> None:
    model = keras.Sequential([keras.Input(shape), layer()])
    assert kernel in [(weight.role, weight.axes) for weight in BACKEND.weights(model)]


def test_a_layer_of_the_users_own_kind_of_dense_is_a_dense() -> None:
    class Mine(layers.Dense):
        pass

    model = keras.Sequential([keras.Input((2,)), Mine(3)])
    assert {w.role for w in BACKEND.weights(model)} == {"dense.kernel", "dense.bias"}


# -- what does not fit


def saved(tmp_path: Path) -> Path:
    train_step("sequential", "adam", "O0", False).save(tmp_path)
    return tmp_path


@pytest.mark.parametrize("optimizer", ["momentum", "nadam"])
def test_another_optimizer_is_refused_and_nothing_changes(optimizer: str, tmp_path: Path) -> None:
    path = saved(tmp_path)
    step = train_step("sequential", optimizer, "O0", False, seed=3)
    trained(step, BATCHES[:1])
    before = everything(step)
    with pytest.raises(amp.StateError, match="does not fit this optimizer"):
        step.load(path)
    assert_same(everything(step), before)


def test_slots_of_another_dtype_are_refused() -> None:
    model, adam = made("sequential"), keras.optimizers.Adam(0.1)
    state = BACKEND.read_optimizer(adam, model)
    wrong = {**state.slots, "dense.kernel/momentums": np.zeros((6, 8))}
    with pytest.raises(amp.StateError, match=r"dtype float64 and shape \(6, 8\), not float32"):
        BACKEND.write_optimizer(adam, model, state._replace(slots=wrong))
    for settings in ({}, {"learning_rate": True}, {"learning_rate": -1.0}):
        with pytest.raises(amp.StateError, match=r"learning_rate=.* is for another Adam"):
            BACKEND.write_optimizer(adam, model, state._replace(settings=settings))


def test_integers_are_no_floating_point_weights() -> None:
    model = made("sequential")
    values = BACKEND.read_weights(model)
    before = {name: array.copy() for name, array in values.items()}
    values["dense_1.bias"] = np.zeros(3, np.int32)
    values["dense.kernel"] = values["dense.kernel"] + 1
    with pytest.raises(amp.StateError, match=r"'dense_1.bias' is of dtype float32, not int32"):
        BACKEND.write_weights(model, values)
    for name, array in BACKEND.read_weights(model).items():
        np.testing.assert_array_equal(array, before[name])


def test_a_model_that_has_not_been_built() -> None:
    model = keras.Sequential([layers.Dense(2)])
    with pytest.raises(amp.CallOrderError, match="has not been built"):
        BACKEND.weights(model)


def test_an_optimizer_whose_variables_mean_nothing_known() -> None:
    class Odd(keras.optimizers.SGD):
        def build(self, variables: Any) -> None:
            super().build(variables)
            self.pairs = {"a": self.add_variable((), name="odd")}

    with pytest.raises(amp.UnsupportedError, match=r"holds 1 variables neither.*odd"):
        BACKEND.read_optimizer(Odd(0.1), made("sequential"))


@pytest.mark.filterwarnings("ignore:Parameters of the model are in 16 bits")
def test_bfloat16_variables_of_the_users_own_are_saved_exactly(tmp_path: Path) -> None:
    def model() -> keras.Model:
        return keras.Sequential([keras.Input((6,)), layers.Dense(3, dtype="bfloat16")])

    first, second = (
        amp.train_step(loss_fn, model(), keras.optimizers.Adam(0.1), policy="O0", compile=False)
        for _ in range(2)
    )
    trained(first, BATCHES[:2])
    values = BACKEND.read_weights(first.model).values()
    assert {value.dtype.name for value in values} == {"float32"}
    first.save(tmp_path)
    second.load(tmp_path)
    assert_same(everything(second), everything(first))
    assert trained(second, BATCHES[2:]) == trained(first, BATCHES[2:])
