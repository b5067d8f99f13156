"""``Model.fit``: the scaler's rule step by step, what Keras expects of an optimizer, schedules."""

from __future__ import annotations

import contextlib
import csv
import gc
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import ampbridge as amp  # noqa: E402
from ampbridge.errors import (  # noqa: E402
    ArgumentError,
    ArgumentTypeError,
    CallOrderError,
    UnsupportedError,
)
from ampbridge_tensorflow import (  # noqa: E402
    LossScaleOptimizer,
    PolicySchedule,
    ScaleLogs,
    SkipWatch,
)

# Keras' own conversion of its variables to NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

RNG = np.random.default_rng(0)
BATCHES = 24
X = RNG.standard_normal((8 * BATCHES, 8)).astype(np.float32)
Y = (X @ RNG.standard_normal((8, 1))).astype(np.float32)

# Steps that overflow however small the scale is, beside those that do because it is large.
INF_AT = (9, 13, 14)

SETTINGS: dict[str, Any] = {
    "growth_factor": 3.0,
    "backoff_factor": 0.25,
    "growth_interval": 2,
    "backoff_interval": 2,
    "min_scale": 64.0,
    "max_scale": 2.0**20,
    "warn_after_skips": None,
}


def scaler(**settings: Any) -> amp.GradScaler:
    return amp.GradScaler(2.0**20, **{**SETTINGS, **settings})


def made(seed: int = 1) -> keras.Sequential:
    keras.utils.set_random_seed(seed)
    hidden = keras.layers.Dense(16, activation="relu")
    return keras.Sequential([keras.Input((8,)), hidden, keras.layers.Dense(1)])


def data(inf_at: tuple[int, ...] = INF_AT) -> tuple[np.ndarray, np.ndarray]:
    targets = Y.copy()
    for step in inf_at:
        targets[8 * step] = np.inf
    return X, targets


class Trajectory(keras.callbacks.Callback):
    """The scaler's state, and how many steps the inner optimizer has made, after each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[Mapping[str, Any]] = []
        self.iterations: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.states.append(self.model.optimizer.scaler.state_dict())
        self.iterations.append(int(self.model.optimizer.iterations))


def fit(model: keras.Model, callbacks: Any = (), epochs: int = 1, **inputs: Any) -> Trajectory:
    trajectory = Trajectory()
    x, y = data(**inputs)
    model.fit(
        x,
        y,
        batch_size=8,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[*callbacks, trajectory],
    )
    return trajectory


def overflows_of(trajectory: Trajectory) -> list[bool]:
    """Where the inner optimizer stood still."""
    before = [0, *trajectory.iterations[:-1]]
    return [now == then for then, now in zip(before, trajectory.iterations, strict=True)]


def by_hand(overflows: list[bool], start: float, **changed: Any) -> list[tuple[float, int]]:
    """The scale and the skips in a row after each step, from the definition of the rule."""
    rule = {**SETTINGS, **changed}
    scale, good, bad, skips, states = start, 0, 0, 0, []
    for overflow in overflows:
        good, bad, skips = (0, bad + 1, skips + 1) if overflow else (good + 1, 0, 0)
        if good == rule["growth_interval"]:
            scale, good = min(scale * rule["growth_factor"], rule["max_scale"]), 0
        if bad == rule["backoff_interval"]:
            scale, bad = max(scale * rule["backoff_factor"], rule["min_scale"]), 0
        states.append((scale, skips))
    return states


# -- the rule

POLICIES = {
    "O1": amp.Policy("O1", execution="simulated"),
    "O2": amp.Policy("O2", execution="simulated"),
    "O1, native": amp.Policy("O1", execution="native"),
}


@pytest.mark.parametrize("how", ["tf.function", "XLA", "eager"])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_fit_follows_the_rule_and_is_train_step(policy: amp.Policy, how: str) -> None:
    """Step by step, from real overflows; and losses and weights are those of ``train_step``."""
    model, ours = made(), scaler()
    amp.decorate(model, policy=policy)
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.01, momentum=0.9), ours)
    model.compile(optimizer, "mse", jit_compile=how == "XLA", run_eagerly=how == "eager")
    assert model.optimizer is optimizer
    trajectory = fit(model)
    overflows = overflows_of(trajectory)
    assert all(overflows[step] for step in INF_AT)
    assert sum(overflows) > len(INF_AT) + 2  # some are due to the scale alone
    expected = by_hand(overflows, 2.0**20)
    assert [(s["scale"], s["consecutive_skips"]) for s in trajectory.states] == expected
    assert len({scale for scale, _ in expected}) > 3
    assert ours.state_dict() == trajectory.states[-1]

    other, others = made(), scaler()
    step = amp.train_step(
        lambda m, x, y: tf.reduce_mean(tf.square(m(x) - y)),
        other,
        keras.optimizers.SGD(0.01, momentum=0.9),
        policy=policy,
        scaler=others,
    )
    x, y = data()
    results = [step(x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8]) for i in range(BATCHES)]
    assert [r.applied for r in results] == [not overflow for overflow in overflows]
    assert others.state_dict() == ours.state_dict()
    for weight, same in zip(model.get_weights(), other.get_weights(), strict=True):
        # In native float16 fused kernels round otherwise than others.
        simulated = policy.execution != "native"
        np.testing.assert_allclose(weight, same, atol=1e-6 if simulated else 1e-3, rtol=1e-4)


@pytest.mark.parametrize("changed", [{"dynamic": False}, {"min_scale": 2.0**18}])
def test_bounds_and_a_fixed_scale(changed: dict[str, Any]) -> None:
    model = made()
    amp.decorate(model, policy="O1")
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.01), scaler(**changed)), "mse")
    trajectory = fit(model)
    assert {state["scale"] for state in trajectory.states} <= {2.0**18, 3 * 2.0**18, 2.0**20}
    if "dynamic" in changed:
        assert {state["scale"] for state in trajectory.states} == {2.0**20}


def test_in_a_region_around_fit() -> None:
    model = made()
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.01), scaler()), "mse")
    with amp.autocast(amp.Policy("O1"), "tensorflow"):
        trajectory = fit(model)
    overflows = overflows_of(trajectory)
    assert sum(overflows) > len(INF_AT) + 2
    expected = [scale for scale, _ in by_hand(overflows, 2.0**20)]
    assert [state["scale"] for state in trajectory.states] == expected


@pytest.mark.parametrize("how", ["fit", "fit eagerly", "train_on_batch"])
def test_fit_in_a_float16_region_warns_that_no_loss_is_scaled(how: str) -> None:
    model = made()
    model.compile("sgd", "mse", run_eagerly=how == "fit eagerly")
    expected = (
        r"(?s)float16 region, and its SGD scales no loss.*Hint: amp\.decorate\(model, policy="
    )
    warning = pytest.warns(amp.AmpBridgeWarning, match=expected)
    with amp.autocast("O1:float16", "tensorflow"), warning as seen:
        model.train_on_batch(X, Y) if how == "train_on_batch" else fit_plain(model)
    assert [each.filename for each in seen] == [__file__]


@pytest.mark.filterwarnings("error::ampbridge.errors.AmpBridgeWarning")
@pytest.mark.parametrize("case", ["bfloat16", "Keras scales", "decorated", "outside", "evaluates"])
def test_fit_warns_of_no_other_region(case: str) -> None:
    model, sgd = made(), keras.optimizers.SGD(0.01)
    if case == "decorated":
        amp.decorate(model, policy="O1:float16")
    keras_scales = case == "Keras scales"
    model.compile(keras.optimizers.LossScaleOptimizer(sgd) if keras_scales else sgd, "mse")
    with amp.autocast("O1:bfloat16" if case == "bfloat16" else "O1:float16", "tensorflow"):
        if case == "evaluates":
            model.evaluate(X, Y, verbose=0)
        elif case != "outside":
            fit_plain(model)
    fit_plain(model)
    if case == "decorated":
        amp.undecorate(model)


@pytest.mark.usefixtures("graphs_as_traced")
def test_a_disabled_scaler_leaves_all_to_the_inner_optimizer() -> None:
    weights = []
    for wrapped in (True, False):
        model, inner = made(), keras.optimizers.SGD(0.01)
        amp.decorate(model, policy="O1:bfloat16")
        off = amp.GradScaler(enabled=False)
        model.compile(LossScaleOptimizer(inner, off) if wrapped else inner, "mse")
        model.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
        weights.append(model.get_weights())
        assert int(inner.iterations) == BATCHES
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_first_loss_is_not_scaled_in_float16() -> None:
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.01), amp.GradScaler(2.0**20))
    assert float(optimizer.scale_loss(tf.constant(2.0, tf.float16))) == 2.0**21


# -- what Keras does around it

KERAS_OPTIONS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.01),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.01),
    "weight_decay": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1),
    "gradient_accumulation_steps": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=4),
    "use_ema": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=4),
    "use_ema, at the end": lambda: keras.optimizers.SGD(0.1, use_ema=True),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5)
    ),
}


@pytest.mark.parametrize("option", KERAS_OPTIONS)
@pytest.mark.slow
def test_options_of_the_inner_optimizer_see_true_gradients(option: str) -> None:
    """As without scaling, at O0; the scale is a power of two, so that not a bit is lost."""
    weights = []
    for wrapped in (True, False):
        model, inner = made(), KERAS_OPTIONS[option]()
        optimizer = LossScaleOptimizer(inner, amp.GradScaler(2.0**10)) if wrapped else inner
        model.compile(optimizer, "mse")
        model.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
        weights.append(model.get_weights())
        assert optimizer.iterations is inner.iterations or option == "gradient_accumulation_steps"
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def test_callbacks_see_and_set_the_inner_learning_rate() -> None:
    model = made()
    amp.decorate(model, policy="O2")
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.5), amp.GradScaler())
    model.compile(optimizer, "mse", metrics=["mae"])
    rates = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.25 / (epoch + 1))
    history = model.fit(
        X, Y, epochs=2, verbose=0, callbacks=[rates, keras.callbacks.TerminateOnNaN()]
    )
    assert history.history["learning_rate"] == [0.25, 0.125]
    assert float(optimizer.inner_optimizer.learning_rate) == 0.125
    assert set(history.history) == {"loss", "mae", "learning_rate"}


def test_keras_wraps_it_in_no_other() -> None:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, dtype="mixed_float16")])
    model.dtype_policy = "mixed_float16"
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer, "mse", auto_scale_loss=True)
    assert model.optimizer is optimizer
    assert not isinstance(optimizer.inner_optimizer, keras.optimizers.LossScaleOptimizer)


@pytest.mark.slow
def test_an_overflow_on_one_replica_of_several_skips_the_step() -> None:
    """Keras' own optimizer asks the first replica alone, and the weights become NaN."""
    program = """
import warnings
import keras, numpy as np, tensorflow as tf
import ampbridge as amp
from ampbridge_tensorflow import LossScaleOptimizer
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    scaler = amp.GradScaler(4.0, growth_interval=2)
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.1), scaler), "mse")
x = np.ones((64, 8), np.float32)
y = np.zeros((64, 1), np.float32)
y[40] = np.inf  # of the third batch of 16, on the second replica
model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
state = scaler.state_dict()
print([state[key] for key in ("scale", "good_steps", "consecutive_skips")])
print(all(np.isfinite(tf.convert_to_tensor(w.value)).all() for w in model.weights))
y[40], x[4::8] = 0, np.nan  # of every batch, on the second replica
warnings.simplefilter("error", amp.AmpBridgeWarning)
try:
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
except amp.AmpBridgeWarning as warning:
    print(str(warning).split(":")[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    nans = "8 steps in a row had NaN in their gradients and no inf"
    assert done.stdout.split("\n")[:3] == ["[4.0, 1, 0]", "True", nans]


# -- alarms


def fit_on(values: Sequence[float], settings: Mapping[str, Any], **how: Any) -> keras.Model:
    """Fit at O0, one batch for each of ``values``, which is added to its targets."""
    model = made()
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.01), amp.GradScaler(8.0, **settings))
    compiling = {name: how.pop(name) for name in set(how) & {"run_eagerly", "jit_compile"}}
    model.compile(optimizer, "mse", **compiling)
    count = len(values)
    x, y = X[:8].repeat(count, 0).reshape(8, count, 8), Y[:8].repeat(count, 0).reshape(8, count, 1)
    x, y = x.swapaxes(0, 1).reshape(-1, 8), y.swapaxes(0, 1).reshape(-1, 1)
    added = np.repeat(np.array(values, np.float32), 8)[:, None]
    model.fit(x, y + added, batch_size=8, shuffle=False, verbose=0, **how)
    return model


INF, NAN = np.inf, np.nan
# An infinite target makes an infinite gradient, and NaN where zeros meet it; NaN makes NaN alone.
ALARMS: dict[str, tuple[list[float], dict[str, Any], type, str]] = {
    "skips": (
        [0, INF, INF, INF],
        {"warn_after_skips": 3},
        amp.AmpBridgeWarning,
        "3 steps in a row",
    ),
    "a run that has ended": (
        [INF, INF, INF, 0],
        {"warn_after_skips": 3},
        amp.AmpBridgeWarning,
        "3 steps in a row",
    ),
    "stuck": (
        [INF] * 3,
        {"warn_after_skips": None, "max_consecutive_skips": 3},
        amp.OverflowStuckError,
        "3 steps in a row were skipped; the loss scale is 1.0 now",
    ),
    "NaN": ([0, *[NAN] * 8], {}, amp.AmpBridgeWarning, "8 steps in a row had NaN"),
    "minimum": (
        [INF, INF, INF],
        {"min_scale": 2.0, "at_min_scale": "raise"},
        amp.OverflowStuckError,
        "at its minimum, 2.0",
    ),
}
QUIET: dict[str, tuple[list[float], dict[str, Any]]] = {
    "few skips": ([INF, INF], {"warn_after_skips": 3}),
    "one less than is too many": ([INF] * 2, {"max_consecutive_skips": 3}),
    "inf between NaNs": ([*[NAN] * 7, INF, *[NAN] * 7], {}),
    "a finite step between NaNs": ([*[NAN] * 7, 0, *[NAN] * 7], {}),
    "the minimum just reached": ([INF, INF], {"min_scale": 2.0, "at_min_scale": "raise"}),
    "the minimum, and then finite": (
        [INF, INF, 0, 0, 0],
        {"min_scale": 2.0, "at_min_scale": "raise", "growth_interval": 1},
    ),
    "switched off": ([NAN] * 9, {"warn_after_skips": None, "max_consecutive_skips": None}),
}
WAYS: dict[str, dict[str, Any]] = {
    "tf.function": {},
    "XLA": {"jit_compile": True},
    "eager": {"run_eagerly": True},
}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("alarm", ALARMS)
@pytest.mark.slow
def test_fit_sounds_alarms_at_its_end(alarm: str, how: str) -> None:
    values, settings, kind, text = ALARMS[alarm]
    if issubclass(kind, Warning):
        with pytest.warns(kind, match=text) as caught:
            fit_on(values, settings, **WAYS[how])
        assert len(caught) == 1
    else:
        with pytest.raises(kind, match=text):
            fit_on(values, settings, **WAYS[how])


@pytest.mark.parametrize("case", QUIET)
@pytest.mark.slow
def test_fit_sounds_no_other_alarms(case: str) -> None:
    values, settings = QUIET[case]
    fit_on(values, settings)


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_a_watch_sounds_them_on_the_way(steps_per_execution: int) -> None:
    settings = {"warn_after_skips": 3, "max_consecutive_skips": 9}
    model = made()
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.01), amp.GradScaler(8.0, **settings))
    model.compile(optimizer, "mse", steps_per_execution=steps_per_execution)
    looks: list[int] = []
    genuine = optimizer.sound_alarms

    def sound_alarms() -> None:
        looks.append(int(optimizer.scaler.state_dict()["consecutive_skips"]))
        genuine()

    optimizer.sound_alarms = sound_alarms
    x, y = data(inf_at=tuple(range(BATCHES)))
    with (
        pytest.warns(amp.AmpBridgeWarning, match="steps in a row were skipped"),
        pytest.raises(amp.OverflowStuckError, match="steps in a row were skipped"),
    ):
        model.fit(x, y, batch_size=8, verbose=0, shuffle=False, callbacks=[SkipWatch(every=5)])
    assert looks == {1: [5, 10], 4: [8, 16]}[steps_per_execution]


def test_a_watch_looks_at_each_epoch_s_end_and_at_no_batch_s() -> None:
    model = made()
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.01), amp.GradScaler(8.0))
    model.compile(optimizer, "mse")
    looks: list[int] = []
    optimizer.sound_alarms = lambda: looks.append(int(optimizer.iterations))
    watch = SkipWatch(every=10)
    # With one of these, Keras reads its metrics from the device after each batch.
    assert not {"on_batch_end", "on_train_batch_end"} & vars(SkipWatch).keys()
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[watch])
    assert looks == [10, 20, 24, 34, 44, 48, 48]


@pytest.mark.parametrize("every", [0, -1, True, 2.5, None])
def test_a_watch_looks_every_whole_number_of_batches(every: Any) -> None:
    with pytest.raises(ArgumentError, match="every="):
        SkipWatch(every)


def test_a_watch_needs_an_optimizer_that_skips() -> None:
    model = made()
    model.compile("sgd", "mse")
    with pytest.raises(ArgumentTypeError, match="SkipWatch for a SGD"):
        model.fit(X, Y, verbose=0, callbacks=[SkipWatch()])


# -- logs


@pytest.mark.parametrize("steps_per_execution", [1, 5])
def test_logs_have_the_scale_and_the_skipped_steps(
    steps_per_execution: int, tmp_path: Path
) -> None:
    """In the history and in Keras' CSV, as the scaler's state after each batch has them."""
    model = made()
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.01), scaler())
    model.compile(optimizer, "mse", steps_per_execution=steps_per_execution)
    x, y = data()
    callbacks = [ScaleLogs(), keras.callbacks.CSVLogger(tmp_path / "run.csv")]
    history = model.fit(
        x, y, batch_size=8, epochs=3, verbose=0, shuffle=False, callbacks=callbacks
    ).history
    model = made()
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.01), scaler()), "mse")
    watched = fit(model, epochs=3)
    ends = [BATCHES * epoch - 1 for epoch in (1, 2, 3)]
    overflows = overflows_of(watched)
    skipped = [sum(overflows[end + 1 - BATCHES : end + 1]) for end in ends]
    assert history["loss_scale"] == [watched.states[end]["scale"] for end in ends]
    assert history["skipped_steps"] == skipped
    assert skipped == [len(INF_AT)] * 3
    with (tmp_path / "run.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["skipped_steps"]) for row in rows] == skipped
    assert [float(row["loss_scale"]) for row in rows] == history["loss_scale"]


def test_logs_wait_for_no_batch() -> None:
    # With one of these, Keras reads its metrics from the device after each batch.
    assert not {"on_batch_end", "on_train_batch_end"} & vars(ScaleLogs).keys()


def test_logs_need_an_optimizer_that_skips_and_batches_to_count() -> None:
    model = made()
    model.compile("sgd", "mse")
    with pytest.raises(ArgumentTypeError, match="ScaleLogs for a SGD"):
        model.fit(X, Y, verbose=0, callbacks=[ScaleLogs()])
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.01), scaler())
    model.compile(optimizer, "mse", steps_per_execution=5)
    batches = ((X[i : i + 8], Y[i : i + 8]) for i in range(0, len(X), 8))
    with pytest.raises(UnsupportedError, match="steps_per_execution=5 cannot count"):
        model.fit(batches, verbose=0, shuffle=False, callbacks=[ScaleLogs()])


def test_settings_that_a_trace_does_not_know_are_told_of() -> None:
    gc.collect()  # traces belong to all decorated models: none of another test's may end meanwhile
    model = made()
    ours = amp.GradScaler(8.0)
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.01), ours), "mse")
    model.fit(X, Y, batch_size=8, verbose=0)
    ours.load_state_dict({**ours.state_dict(), "growth_interval": 6})
    with pytest.raises(CallOrderError, match=r"make_train_function\(force=True\)"):
        model.fit(X, Y, batch_size=8, verbose=0)
    ours.load_state_dict({**ours.state_dict(), "good_steps": 0})
    model.make_train_function(force=True)
    model.fit(X, Y, batch_size=8, verbose=0)
    assert ours.get_scale() == 8.0 * 2 ** (BATCHES // 6)


def test_eager_loops_of_one_s_own_hear_them_at_once() -> None:
    variable = keras.Variable(1.0)
    settings = {"warn_after_skips": 2}
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.01), amp.GradScaler(8.0, **settings))
    optimizer.apply([tf.constant(np.inf)], [variable])
    with pytest.warns(amp.AmpBridgeWarning, match="2 steps in a row were skipped"):
        optimizer.apply([tf.constant(np.inf)], [variable])
    assert float(optimizer.dynamic_scale) == 2.0


@pytest.mark.parametrize(("gradient", "nans"), [(np.inf, 0), (np.nan, 2)])
def test_the_scaler_tells_nan_from_inf(gradient: float, nans: int) -> None:
    variable = keras.Variable(1.0)
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.01), amp.GradScaler(8.0))
    for _ in range(2):
        optimizer.apply([tf.constant(gradient)], [variable])
    state = optimizer.scaler.state_dict()
    assert (state["consecutive_skips"], state["consecutive_nans"]) == (2, nans)


# -- saving


@pytest.mark.usefixtures("graphs_as_traced")
@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.slow
def test_a_saved_model_goes_on_where_it_was(tmp_path: Path, policy: str) -> None:
    def compiled() -> keras.Model:
        model = made()
        amp.decorate(model, policy=policy)
        inner = keras.optimizers.SGD(0.01, momentum=0.9)
        model.compile(LossScaleOptimizer(inner, scaler()), "mse")
        return model

    through, model = compiled(), compiled()
    expected = fit(through, epochs=2)
    first = fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is LossScaleOptimizer
    assert loaded.optimizer.scaler.state_dict() == first.states[-1]
    amp.decorate(loaded, policy=policy)
    then = fit(loaded)
    assert [*first.states, *then.states] == expected.states
    for weight, same in zip(loaded.get_weights(), through.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, same)


@pytest.mark.slow
def test_another_process_loads_it_once_the_class_is_imported(tmp_path: Path) -> None:
    model = made()
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.01), scaler()), "mse")
    trajectory = fit(model)
    model.save(tmp_path / "model.keras")
    program = f"""
import keras
from ampbridge_tensorflow import LossScaleOptimizer
model = keras.models.load_model({str(tmp_path / "model.keras")!r})
print(model.optimizer.scaler.state_dict())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(trajectory.states[-1])


def test_weights_alone_hold_the_state(tmp_path: Path) -> None:
    """As ``BackupAndRestore`` and ``tf.train.Checkpoint`` save them."""
    model, same = made(), made()
    for each in (model, same):
        each.compile(LossScaleOptimizer(keras.optimizers.Adam(0.01), scaler()), "mse")
        each.optimizer.build(each.trainable_variables)
    trajectory = fit(model)
    saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(tmp_path / "c"))
    tf.train.Checkpoint(model=same, optimizer=same.optimizer).read(saved).assert_consumed()
    assert same.optimizer.scaler.state_dict() == trajectory.states[-1]


def test_config_and_back() -> None:
    ours = scaler()
    optimizer = LossScaleOptimizer(keras.optimizers.Adam(0.25, clipnorm=2.0), ours, name="mine")
    config = keras.optimizers.serialize(optimizer)
    copy = keras.optimizers.deserialize(config)
    assert type(copy) is LossScaleOptimizer
    assert copy.name == "mine"
    assert copy.inner_optimizer.clipnorm == 2.0
    assert copy.scaler is not ours
    assert copy.scaler.state_dict() == ours.state_dict()


# -- a loss scale that nobody has asked for


FLOAT16 = {level: amp.Policy(level, execution="simulated") for level in ("O1", "O2")}
TINY = {"loss": lambda y, predicted: 1e-9 * keras.ops.mean(predicted), "optimizer": "sgd"}


def scales(trajectory: Trajectory) -> list[float]:
    return [state["scale"] for state in trajectory.states]


@pytest.mark.parametrize("order", ["decorate, compile", "compile, decorate", "fit, decorate"])
@pytest.mark.parametrize("level", FLOAT16)
def test_fit_in_float16_scales_the_loss_by_our_rule(level: str, order: str) -> None:
    """As Keras does for its own mixed_float16, which is why nobody writes it; not by Keras' rule."""
    model = made()
    if order == "decorate, compile":
        amp.decorate(model, policy=FLOAT16[level])
    model.compile(**TINY)
    model.optimizer.learning_rate = 1e7
    if order == "fit, decorate":
        fit_plain(model)
    if order != "decorate, compile":
        amp.decorate(model, policy=FLOAT16[level])
    assert type(model.optimizer) is LossScaleOptimizer
    before, iterations = model.get_weights(), int(model.optimizer.iterations)
    trajectory = fit(model, inf_at=())
    moved = [np.abs(a - b).max() for a, b in zip(before, model.get_weights(), strict=True)]
    assert min(moved) > 0.01
    assert int(model.optimizer.iterations) == iterations + BATCHES
    assert model.optimizer.scaler.state_dict() == {
        **amp.GradScaler().state_dict(),
        "good_steps": BATCHES,
    }
    assert scales(trajectory) == [2.0**16] * BATCHES
    inner = model.optimizer.inner_optimizer
    amp.undecorate(model)
    assert model.optimizer is inner
    fit_plain(model)
    assert int(inner.iterations) == iterations + 2 * BATCHES


def test_that_scale_goes_on_where_the_model_is_decorated_once_more() -> None:
    model = made()
    amp.decorate(model, policy=FLOAT16["O1"])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    before = fit(model).states[-1]
    with amp.undecorated(model):
        fit_plain(model)
    assert model.optimizer.scaler.state_dict() == before
    assert fit(model, inf_at=()).states[-1]["good_steps"] == before["good_steps"] + BATCHES
    amp.undecorate(model)


def fit_plain(model: keras.Model) -> None:
    model.fit(X, Y, batch_size=8, verbose=0, shuffle=False)


def test_overflows_lower_that_scale_as_they_do_train_step_s() -> None:
    trajectories = []
    for level in FLOAT16:
        model = made()
        amp.decorate(model, policy=FLOAT16[level])
        model.compile(keras.optimizers.SGD(0.01), "mse")
        trajectories.append(scales(fit(model)))
        amp.undecorate(model)
    step = amp.train_step(
        lambda m, x, y: tf.reduce_mean(tf.square(m(x) - y)),
        made(),
        keras.optimizers.SGD(0.01),
        policy=FLOAT16["O1"],
    )
    x, y = data()
    expected = []
    for i in range(BATCHES):
        step(x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8])
        expected.append(step.scaler.get_scale())
    assert trajectories == [expected, expected]
    assert len(set(expected)) > 3


def test_an_optimizer_that_scales_by_itself_is_the_user_s_choice() -> None:
    chosen = [
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01)),
        LossScaleOptimizer(keras.optimizers.SGD(0.01), scaler()),
        keras.optimizers.SGD(0.01, loss_scale_factor=1024.0),
    ]
    for optimizer in chosen:
        model = made()
        model.compile(optimizer, "mse")
        amp.decorate(model, policy=FLOAT16["O2"])
        assert model.optimizer is optimizer
        model.compile(optimizer, "mse")
        fit_plain(model)
        assert model.optimizer is optimizer
        amp.undecorate(model)
        assert model.optimizer is optimizer


@pytest.mark.parametrize("level", FLOAT16)
def test_who_wants_no_scale_says_so_and_is_warned(level: str) -> None:
    model, optimizer = made(), keras.optimizers.SGD(0.01)
    amp.decorate(model, policy=FLOAT16[level])
    model.compile(optimizer, "mse", auto_scale_loss=False)
    text = r"SGD updates a Sequential .*gradients under 6e-8.*\nHint: optimizer = ampbridge_tensorflow.L"
    with pytest.warns(amp.AmpBridgeWarning, match=text) as caught:
        fit_plain(model)
    fit_plain(model)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert model.optimizer is optimizer
    amp.undecorate(model)


@pytest.mark.parametrize("policy", ["O1:bfloat16", "O2:bfloat16"])
def test_bfloat16_needs_no_scale(policy: str) -> None:
    model, optimizer = made(), keras.optimizers.SGD(0.01)
    amp.decorate(model, policy=policy)
    model.compile(optimizer, "mse")
    fit_plain(model)
    assert model.optimizer is optimizer
    amp.undecorate(model)


def test_loops_by_hand_are_told_only_if_nobody_scales() -> None:
    model = made()
    amp.decorate(model, policy=FLOAT16["O1"])

    def gradients(scale: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = scale(tf.reduce_mean(tf.square(model(X) - Y)))
        return tape.gradient(loss, model.trainable_variables)

    ours, plain = amp.GradScaler(), keras.optimizers.SGD(0.01)
    plain.build(model.trainable_variables)
    ours.step(plain, gradients(ours.scale))
    for wrapping in (LossScaleOptimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = wrapping(keras.optimizers.SGD(0.01))
        optimizer.build(model.trainable_variables)
        optimizer.apply(gradients(optimizer.scale_loss), model.trainable_variables)
    with pytest.warns(amp.AmpBridgeWarning, match="without loss scaling"):
        plain.apply(gradients(lambda loss: loss))
    elsewhere = tf.Variable([1.0])
    keras.optimizers.SGD(0.01).apply([tf.constant([1.0])], [elsewhere])
    amp.undecorate(model)


@pytest.mark.usefixtures("graphs_as_traced")
@pytest.mark.parametrize("level", FLOAT16)
@pytest.mark.slow
def test_a_model_with_that_scale_is_saved_and_goes_on(level: str, tmp_path: Path) -> None:
    model = made()
    amp.decorate(model, policy=FLOAT16[level])
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    fit(model)
    state = model.optimizer.scaler.state_dict()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert {layer.dtype_policy.name for layer in loaded.layers} == {"float32"}
    amp.decorate(loaded, policy=FLOAT16[level])
    assert loaded.optimizer.scaler.state_dict() == state
    for each in (model, loaded):
        fit(each)
        amp.undecorate(each)
    for one, other in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_schedule_in_need_of_a_scale_makes_one() -> None:
    model = made()
    model.compile(keras.optimizers.SGD(0.01), "mse")
    plan = amp.Schedule([(0, "O0"), (4, FLOAT16["O1"]), (8, "O2:bfloat16"), (12, FLOAT16["O2"])])
    trajectory = fit(model, [PolicySchedule(plan)], inf_at=(14,))
    before = [amp.GradScaler().state_dict(), *trajectory.states]
    moved = [step for step in range(BATCHES) if before[step] != before[step + 1]]
    assert moved == [*range(4, 8), *range(12, BATCHES)]
    assert trajectory.states[14]["consecutive_skips"] == 1
    amp.undecorate(model)


# -- schedules


class Dtypes(keras.callbacks.Callback):
    """In which dtype the hidden layer's product comes, as traced, with the step it was traced at."""

    def __init__(self, layer: keras.layers.Layer) -> None:
        super().__init__()
        self.traced: list[tuple[int, str]] = []
        self.step = 0
        activation = layer.activation

        def recording(x: tf.Tensor) -> tf.Tensor:
            self.traced.append((self.step, x.dtype.name))
            return activation(x)

        layer.activation = recording

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.step = batch


def test_a_schedule_changes_what_runs_at_its_steps() -> None:
    gc.collect()  # traces belong to all decorated models: none of another test's may end meanwhile
    model = made()
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.01), scaler())
    model.compile(optimizer, "mse")
    model.evaluate(X, Y, verbose=0)
    dtypes = Dtypes(model.layers[0])
    schedule = amp.Schedule(
        [(0, "O0"), (4, "O1"), (8, "O2:bfloat16"), (12, "O0"), (16, "O1"), (20, "O0")]
    )
    policies = PolicySchedule(schedule)
    trajectory = fit(model, [policies, dtypes], inf_at=())
    assert dtypes.traced == [(0, "float32"), (4, "float16"), (8, "bfloat16")]
    assert policies.state == {"step": BATCHES}
    assert policies.policy == amp.Policy("O0")
    unscaled = [0, 1, 2, 3, *range(8, 16), *range(20, 24)]
    before = [scaler().state_dict(), *trajectory.states]
    assert all(before[step] == before[step + 1] for step in unscaled)
    assert all(before[step] != before[step + 1] for step in (4, 5, 6, 7, 16, 17, 18, 19))


def test_a_schedule_leaves_no_mark_on_other_fits() -> None:
    """Traces of float32 steps with scaling, before and after one without it."""
    model = made()
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.01), scaler()), "mse")
    policies = PolicySchedule(amp.Schedule([(0, "O0")]))
    runs = [fit(model, callbacks).states for callbacks in ([], [policies], [])]
    assert runs[0][-1] == runs[1][0] == runs[1][-1]
    assert runs[2][0] != runs[1][-1]


def test_a_schedule_by_the_loss_sees_each_step_s_own() -> None:
    """Not the mean of the epoch, which Keras logs."""
    model = made()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x, y = X.copy(), np.asarray(model.predict(X, verbose=0))
    y[: 8 * 12] += 3.0  # a loss of 9, then one of 0
    switched = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            switched.append(policies.policy.level)

    when = amp.Schedule.when(loss_below=1.0, use="O1:bfloat16", otherwise="O0")
    policies = PolicySchedule(when)
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False, callbacks=[policies, Watch()])
    assert switched == ["O0"] * 12 + ["O1"] * 12


def test_a_schedule_by_skips() -> None:
    model = made()
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.01), amp.GradScaler()), "mse")
    when = amp.Schedule.when(skips=2, use="O1:bfloat16", otherwise="O1", back_after=3)
    policies = PolicySchedule(when)
    trajectory = fit(model, [policies], inf_at=(9, 13, 14))
    assert trajectory.states[14]["consecutive_skips"] == 2
    assert policies.policy == amp.Policy("O1")
    # Three steps in bfloat16, which leave the scaler alone, and then it goes on.
    frozen = [trajectory.states[step] for step in (14, 15, 16, 17)]
    assert all(state == frozen[0] for state in frozen)
    assert trajectory.states[18]["good_steps"] == 1


def test_another_fit_goes_on() -> None:
    model = made()
    model.compile(keras.optimizers.SGD(0.01), "mse")
    schedule = amp.Schedule([(0, "O0"), (BATCHES, "O1:bfloat16")])
    policies = PolicySchedule(schedule)
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[policies])
    dtypes = Dtypes(model.layers[0])
    again = PolicySchedule(schedule, policies.state)
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[again, dtypes])
    assert {dtype for _, dtype in dtypes.traced} == {"bfloat16"}
    amp.undecorate(model)


# -- what is refused


@pytest.mark.parametrize(
    "arguments",
    [
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),),
        ("sgd",),
        (keras.optimizers.SGD(0.1), 2.0**15),
    ],
)
def test_other_objects_are_refused(arguments: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="Hint: "):
        LossScaleOptimizer(*arguments)


def test_a_scaler_has_one_place_for_its_state() -> None:
    ours = amp.GradScaler()
    LossScaleOptimizer(keras.optimizers.SGD(0.1), ours)
    with pytest.raises(CallOrderError, match="lives elsewhere"):
        LossScaleOptimizer(keras.optimizers.SGD(0.1), ours)


def test_what_has_no_steps_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match=r"Hint: PolicySchedule\(amp.Schedule"):
        PolicySchedule("O1")  # type: ignore[arg-type]
    model = made()
    model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=4)
    with pytest.raises(UnsupportedError, match="steps_per_execution=1"):
        model.fit(X, Y, verbose=0, callbacks=[PolicySchedule(amp.Schedule([(0, "O1")]))])
    with pytest.raises(UnsupportedError, match="JAX"):
        LossScaleOptimizer(keras.optimizers.SGD(0.1)).stateless_apply([], [], [])


def test_importing_the_package_imports_no_framework() -> None:
    program = (
        "import sys, ampbridge_tensorflow as at; print(at.__all__, 'tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (
        done.stdout.strip()
        == "['LossScaleOptimizer', 'PolicySchedule', 'ScaleLogs', 'SkipWatch'] False"
    )
    with contextlib.suppress(AttributeError):
        import ampbridge_tensorflow

        ampbridge_tensorflow.nothing_of_that_name  # noqa: B018
        pytest.fail("an unknown name was found")
