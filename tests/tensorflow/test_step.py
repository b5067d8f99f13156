"""Training: skipped steps, the scaler in traced code, accumulation, clipping, sparse gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

import ampbridge as amp  # noqa: E402
from ampbridge.adapters.backend import FINITE, INF, NAN, StepOutput  # noqa: E402
from ampbridge.scaling.scale_rule import ScaleState  # noqa: E402
from ampbridge_tensorflow.backend import TensorflowBackend  # noqa: E402
from ampbridge_tensorflow.step import ranks  # noqa: E402
from ampbridge_tensorflow.step.scaling import variable_store  # noqa: E402

BACKEND = TensorflowBackend()
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(16, 6)).astype(np.float32)
Y = RANDOM.integers(0, 3, 16)


def small_model(built: bool = True) -> keras.Model:
    keras.utils.set_random_seed(0)
    dense = [keras.layers.Dense(8, "relu"), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((6,)), *dense] if built else dense)


def loss_fn(model: Any, x: Any, y: Any) -> Any:
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
    )


def overflowing(model: Any, x: Any, y: Any) -> Any:
    """A loss whose gradients are infinite where the first input says so."""
    return loss_fn(model, x, y) * tf.where(x[0, 0] > 100.0, np.inf, 1.0)


OVERFLOW = X.copy()
OVERFLOW[0, 0] = 200.0

OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "adam, clipnorm": lambda: keras.optimizers.Adam(0.01, clipnorm=1.0),
    "adamw, global_clipnorm": lambda: keras.optimizers.AdamW(0.01, global_clipnorm=1.0),
    "adam, moving average": lambda: keras.optimizers.Adam(0.01, use_ema=True),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    ),
}


def everything(model: Any, optimizer: Any) -> list[np.ndarray]:
    return [v.numpy() for v in (*model.variables, *optimizer.variables)]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_skipped_step_changes_nothing(kind: str, compiled: bool) -> None:
    model, optimizer = small_model(), OPTIMIZERS[kind]()
    scaler = amp.GradScaler(2.0**8)
    step = amp.train_step(
        overflowing, model, optimizer, policy="O1", scaler=scaler, compile=compiled
    )
    assert step(X, Y).applied
    before, rate = everything(model, optimizer), float(optimizer.learning_rate)
    result = step(OVERFLOW, Y)
    assert (result.applied, result.consecutive_skips) == (False, 1)
    assert result.reason in ("inf", "nan")  # both signs of infinity add up to NaN
    for a, b in zip(everything(model, optimizer), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(optimizer.iterations) == 1
    assert float(optimizer.learning_rate) == rate
    assert scaler.get_scale() == 2.0**7
    assert step(X, Y).applied
    assert int(optimizer.iterations) == 2


@pytest.mark.parametrize("compiled", [False, True])
def test_the_optimizers_own_clipping_sees_true_gradients(compiled: bool) -> None:
    """clipnorm=1 on the gradient (3, 4) steps by (0.6, 0.8), whatever the scale."""
    model = tf.Module()
    model.w = tf.Variable([0.0, 0.0])
    step = amp.train_step(
        lambda m, g: tf.reduce_sum(m.w * g),
        model,
        keras.optimizers.SGD(1.0, clipnorm=1.0),
        policy="O1",
        compile=compiled,
    )
    assert step(np.array([3.0, 4.0], np.float32)).applied
    np.testing.assert_allclose(model.w, [-0.6, -0.8], rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "clipping, native",
    [
        ({"clip_norm": 0.1}, {"global_clipnorm": 0.1}),
        ({"clip_each_norm": 0.05}, {"clipnorm": 0.05}),
        ({"clip_value": 0.01}, {"clipvalue": 0.01}),
    ],
)
def test_clipping_is_that_of_keras_optimizers(
    clipping: dict[str, float], native: dict[str, float], compiled: bool
) -> None:
    weights = []
    for settings, options in (({}, native), (clipping, {})):
        keras.utils.set_random_seed(0)
        model, optimizer = small_model(), keras.optimizers.SGD(0.5, momentum=0.9, **options)
        step = amp.train_step(loss_fn, model, optimizer, policy="O0", compile=compiled, **settings)
        for _ in range(20):
            assert step(X, Y).applied
        weights.append(model.get_weights())
    for theirs, ours in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("policy", ["O0", "O1", "O1:bfloat16"])
def test_unbuilt_models_and_optimizers_train(policy: str, compiled: bool) -> None:
    model, optimizer = small_model(built=False), keras.optimizers.Adam(0.02)
    step = amp.train_step(loss_fn, model, optimizer, policy=policy, compile=compiled)
    losses = [step(X, Y).loss for _ in range(20)]
    assert losses[-1] < 0.8 * losses[0]
    assert {v.dtype for v in model.variables} == {"float32"}


def test_numpy_batches_are_traced_once_and_a_smaller_last_one_once_more() -> None:
    traces = []

    def counted(model: Any, x: Any, y: Any) -> Any:
        traces.append(x.shape)
        return loss_fn(model, x, y)

    step = amp.train_step(counted, small_model(), keras.optimizers.SGD(0.1), policy="O1")
    for size in (16, 16, 16, 8, 8, 4):
        step(X[:size] + np.float32(size), Y[:size])
    assert len(traces) == 2


def test_the_first_traces_of_many_steps_are_no_retracing(caplog: pytest.LogCaptureFixture) -> None:
    tf.get_logger().addHandler(caplog.handler)
    for _ in range(7):
        step = amp.train_step(loss_fn, small_model(), keras.optimizers.SGD(0.1), policy="O0")
        step(X, Y)
    tf.get_logger().removeHandler(caplog.handler)
    assert "retracing" not in caplog.text


def test_float64_batches_become_floatx() -> None:
    seen = []

    def loss(model: Any, x: Any, y: Any) -> Any:
        seen.append((x.dtype, y.dtype))
        return loss_fn(model, x, y)

    step = amp.train_step(loss, small_model(), keras.optimizers.SGD(0.1), policy="O1")
    step(X.astype(np.float64), Y)
    assert seen == [(tf.float32, tf.int64)]


def test_python_control_flow_on_tensors_in_a_compiled_loss() -> None:
    def loss(model: Any, x: Any, y: Any) -> Any:
        value = loss_fn(model, x, y)
        for _ in tf.range(2):
            value = value * 2.0
        if value > 1e9:
            value = value * 0.0
        return value

    step = amp.train_step(loss, small_model(), keras.optimizers.SGD(0.0), policy="O0")
    assert step(X, Y).loss == pytest.approx(4 * float(loss_fn(small_model(), X, Y)), rel=1e-6)


def test_a_compiled_program_follows_the_policy_of_each_call() -> None:
    seen = []

    def build(loss: Any) -> Any:
        def program(policy: Any, final: bool, total: Any, batch: Any) -> Any:
            value, aux, _ = BACKEND.gradients(loss, model, batch, policy, None, total)
            return StepOutput(value, aux, applied=True)

        return program

    def loss(model: Any, x: Any, y: Any) -> Any:
        seen.append(model.layers[0](x).dtype)
        return loss_fn(model, x, y), None

    model = small_model()
    program = BACKEND.compile(build, loss)
    for policy in ("O1", "O1:bfloat16", "O1", "O0"):
        program(amp.Policy.parse(policy), True, None, (X, Y))
    assert seen == [tf.float16, tf.bfloat16, tf.float32]


# -- gradients of every kind


class WithEmbedding(tf.Module):
    """A sparse gradient with repeated rows, a dense one, and a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(tf.ones((5, 2)))
        self.dense = tf.Variable([1.0, 2.0])
        self.unused = tf.Variable([3.0])

    def __call__(self, rows: Any) -> Any:
        return tf.reduce_sum(tf.gather(self.table, rows) * self.dense)


@pytest.mark.parametrize("mode", ["eager", "tf.function", "XLA"])
def test_sparse_dense_and_missing_gradients(mode: str) -> None:
    """By hand: row 1 is used twice, so the table's gradient is (1, 2) * 2 there; the norm sees it."""
    model, optimizer = WithEmbedding(), keras.optimizers.SGD(1.0)
    parameters = BACKEND.parameters(model)
    optimizer.build(parameters)

    def run(rows: Any) -> Any:
        loss = lambda m, r: (m(r), None)  # noqa: E731
        _, _, grads = BACKEND.gradients(loss, model, (rows,), amp.Policy("O0"), 8.0, None)
        grads, found = BACKEND.unscale(grads, 8.0)
        grads, norm = BACKEND.clip(grads, 2.0)
        return found, norm, BACKEND.step_unless(optimizer, parameters, grads, found)

    if mode != "eager":
        run = tf.function(run, jit_compile=mode == "XLA", autograph=False)
    found, norm, applied = run(tf.constant([1, 1, 3]))
    table = np.array([[0, 0], [2, 4], [0, 0], [1, 2], [0, 0]], np.float32)
    exact = np.sqrt((table**2).sum() + 2 * 3.0**2)
    assert (int(found), bool(applied)) == (FINITE, True)
    assert float(norm) == pytest.approx(exact, rel=1e-6)
    np.testing.assert_allclose(model.table.numpy(), 1.0 - table * 2 / exact, rtol=1e-5)
    np.testing.assert_allclose(model.dense.numpy(), [1 - 6 / exact, 2 - 6 / exact], rtol=1e-5)
    assert model.unused.numpy() == [3.0]


def test_gradients_are_averaged_over_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two replicas; the other one has the same gradients. A sum of the largest would be inf."""

    class Replica:
        num_replicas_in_sync = 2

        def all_reduce(self, how: Any, grads: list[tf.Tensor]) -> list[tf.Tensor]:
            assert how == tf.distribute.ReduceOp.SUM
            return [gradient + gradient for gradient in grads]

    monkeypatch.setattr(tf.distribute, "get_replica_context", Replica)
    averaged = ranks.averaged([tf.constant([1.0, 3.0]), None, tf.constant(3e38)])
    assert averaged[1] is None
    np.testing.assert_array_equal(averaged[0], [1.0, 3.0])
    assert averaged[2] == np.float32(3e38)


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_that_repeat_are_clipped_by_their_sum(compiled: bool) -> None:
    """By hand: row 1 is used twice, so the table's gradient is (1, 2) * 2 there."""
    model = WithEmbedding()
    loss = lambda m, r: m(r)  # noqa: E731
    sgd = keras.optimizers.SGD(1.0)
    step = amp.train_step(loss, model, sgd, policy="O0", compile=compiled, clip_value=1.5)
    assert step(np.array([1, 1, 3])).applied
    table = np.array([[0, 0], [1.5, 1.5], [0, 0], [1, 1.5], [0, 0]], np.float32)
    np.testing.assert_array_equal(model.table.numpy(), 1 - table)
    np.testing.assert_array_equal(model.dense.numpy(), [-0.5, 0.5])


@pytest.mark.parametrize("compiled", [False, True])
def test_accumulated_sparse_gradients(compiled: bool) -> None:
    """Micro-batches of several lengths, whose sparse gradients differ in shape."""
    model = tf.Module()
    model.table = tf.Variable(tf.ones((5, 2)))

    def loss(model: Any, rows: Any) -> Any:
        return tf.reduce_sum(tf.gather(model.table, rows) * [1.0, 2.0])

    optimizer = keras.optimizers.SGD(1.0)
    step = amp.train_step(loss, model, optimizer, policy="O0", accumulate=3, compile=compiled)
    for rows in ([1, 1], [1, 3, 3], [0, 4]):
        step(np.array(rows))
    expected = 1.0 - np.array([[1], [3], [0], [2], [1]]) * np.array([1.0, 2.0]) / 3
    np.testing.assert_allclose(model.table.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1.0, 2.0], FINITE),
        ([1.0, np.nan], NAN),
        ([np.inf, 1.0], INF),
        ([np.nan, -np.inf], INF),
        # sums of squares that are infinite themselves
        ([1e30, 1.0], FINITE),
        ([1e30, np.nan], NAN),
        ([1e30, -np.inf], INF),
    ],
)
@pytest.mark.parametrize("mode", ["eager", "tf.function", "XLA"])
def test_what_unscale_finds(mode: str, values: list[float], kind: int) -> None:
    def run(g: Any) -> Any:
        return BACKEND.unscale([tf.ones(3), None, g], 4.0)

    if mode != "eager":
        run = tf.function(run, jit_compile=mode == "XLA", autograph=False)
    (ones, none, _), found = run(tf.constant(values))
    assert (int(found), none) == (kind, None)
    np.testing.assert_array_equal(ones, [0.25] * 3)


def test_scaling_does_not_follow_a_region() -> None:
    """A user who allows ``multiply`` and steps inside of the region: 2**24 * 2 is no float16."""
    store = variable_store(ScaleState(2.0**23, 0, 0, 0))
    config = amp.GradScaler(growth_interval=1).config
    with BACKEND.autocast(amp.Policy(allow=["multiply", "where", "divide"])):
        store.update(tf.constant(FINITE), config)
        (small,), found = BACKEND.unscale([tf.constant([1e-3])], 2.0**20)
    assert float(store.read().scale) == 2.0**24
    assert int(found) == FINITE
    assert float(small[0]) == pytest.approx(1e-3 / 2**20)


# -- GradScaler in a loop of one's own


@pytest.mark.parametrize("mode", ["eager", "tf.function", "XLA"])
def test_the_scaler_in_a_step_of_ones_own(mode: str) -> None:
    model, optimizer = small_model(), keras.optimizers.SGD(0.1, momentum=0.9)
    variables = model.trainable_variables
    optimizer.build(variables)
    scaler = amp.GradScaler(2.0**10, growth_interval=2)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            with amp.autocast("O1", backend="tensorflow"):
                loss = overflowing(model, x, y)
            scaled = scaler.scale(loss)
        grads = scaler.unscale(tape.gradient(scaled, [v.value for v in variables]))
        applied = scaler.step(optimizer, grads)
        scaler.update()
        return loss, applied

    if mode != "eager":
        step = tf.function(step, jit_compile=mode == "XLA", autograph=False)
    scales, applied = [], []
    for x in (X, X, OVERFLOW, OVERFLOW, X, X):
        applied.append(bool(step(tf.constant(x), tf.constant(Y))[1]))
        scales.append(scaler.get_scale())
    assert applied == [True, True, False, False, True, True]
    assert scales == [1024, 2048, 1024, 512, 512, 1024]
    assert int(optimizer.iterations) == 4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("compiled", [False, True])
def test_in_lockstep_with_keras(seed: int, compiled: bool) -> None:
    """Keras' LossScaleOptimizer has the same rule with factors 2 and 1/2, and no bounds."""
    random = np.random.default_rng(seed)
    interval = int(random.integers(1, 4))
    weight = keras.Variable(np.ones(2, np.float32))
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.0), 2.0**10, interval)
    theirs.build([weight])
    store = variable_store(ScaleState(2.0**10, 0, 0, 0))
    config = amp.GradScaler(growth_interval=interval).config

    def update(bad: Any) -> None:
        gradient = tf.where(bad, np.inf, 1.0) * tf.ones(2)
        theirs.apply([gradient], [weight])
        _, found = BACKEND.unscale([gradient], store.read().scale)
        store.update(found, config)

    if compiled:
        update = tf.function(update, autograph=False)
    for bad in random.random(40) < 0.3:
        update(tf.constant(bool(bad)))
        assert float(store.read().scale) == float(theirs.dynamic_scale)
        assert int(store.read().good) == int(theirs.step_counter)


# -- refusals


def test_an_optimizer_that_scales_by_itself_is_refused() -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    step = amp.train_step(loss_fn, small_model(), optimizer, policy="O1", compile=False)
    with pytest.raises(
        amp.ArgumentTypeError, match=r"Hint: optimizer = optimizer\.inner_optimizer"
    ):
        step(X, Y)


def test_the_parameters_of_an_unbuilt_optimizer_are_not_known() -> None:
    optimizer = keras.optimizers.SGD(0.1)
    with pytest.raises(amp.CallOrderError, match=r"Hint: optimizer\.build"):
        BACKEND.parameters(optimizer)
    model = small_model()
    optimizer.build(model.trainable_variables)
    assert BACKEND.parameters(optimizer) == BACKEND.parameters(model)


def test_gradients_are_not_stored() -> None:
    with pytest.raises(amp.UnsupportedError, match=r"Hint: loss, grads = amp\.value_and_grad"):
        amp.GradScaler().unscale(keras.optimizers.SGD(0.1))


def test_ctrl_c_between_layers_leaves_no_variables_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the scope begins to end in which Keras casts the variables of a layer."""

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    dense = keras.layers.Dense(3, dtype="mixed_bfloat16")
    model = keras.Sequential([keras.Input((6,)), dense])
    monkeypatch.setattr("keras.src.backend.AutocastScope.__exit__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        amp.value_and_grad(loss_fn, model, X, Y, policy="O0")
    assert dense.kernel.value.dtype == tf.float32
