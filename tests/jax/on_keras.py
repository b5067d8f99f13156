"""Models of Keras on JAX, in a process in which Keras runs on it; ``test_keras.py`` runs this."""

import copy
import json
import re

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from flax import nnx
from processes import run_python

import ampbridge as amp
import ampbridge_jax

# Keras copies arrays as NumPy 1 did.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

compiled = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
low = pytest.mark.parametrize("policy", ["O1:bfloat16", "O1:float16", "O2:bfloat16", "O2:float16"])

BATCHES = np.random.default_rng(0).normal(size=(8, 32, 4)).astype(np.float32)


def sequential(dropout=0.5):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(dropout, seed=3),
            keras.layers.Dense(1),
        ]
    )


def functional():
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((4,))
    x = keras.layers.Dense(16, activation="gelu")(x)
    x = keras.layers.Add()([x, keras.layers.Dense(16)(x)])
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.LayerNormalization()(x)))


def adam():
    return keras.optimizers.Adam(1e-2)


def scaling():
    return keras.optimizers.LossScaleOptimizer(adam(), initial_scale=256.0)


def momentum():
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 4, 0.5)
    return keras.optimizers.SGD(rate, momentum=0.9, clipnorm=1.0)


def loss_fn(model, x, y):
    return jnp.mean(jnp.square(model(x, training=True) - y))


def train(step, batches=BATCHES):
    return [step(x, x[:, :1]) for x in batches]


def losses(results):
    return [float(result.loss) for result in results]


def values(variables):
    return [np.asarray(v.value) for v in variables]


def same(some, others):
    return all(map(np.array_equal, some, others))


def by_hand(model, optimizer):
    """The losses and all variables of the loop that Keras' guide for JAX writes."""
    optimizer.build(model.trainable_variables)

    def loss(trained, others, x, y):
        prediction, others = model.stateless_call(trained, others, x, training=True)
        return jnp.mean(jnp.square(prediction - y)), others

    @jax.jit
    def step(state, x, y):
        trained, others, slots = state
        (value, others), grads = jax.value_and_grad(loss, has_aux=True)(trained, others, x, y)
        trained, slots = optimizer.stateless_apply(slots, grads, trained)
        return value, (trained, others, slots)

    parts = model.trainable_variables, model.non_trainable_variables, optimizer.variables
    state = tuple([v.value for v in part] for part in parts)
    found = []
    for x in BATCHES:
        value, state = step(state, x, x[:, :1])
        found.append(float(value))
    return found, [np.asarray(value) for part in state for value in part]


@pytest.mark.parametrize("make", [sequential, functional])
@pytest.mark.parametrize("optimizer", [adam, momentum])
def test_a_step_in_float32_has_the_bits_of_keras_own_loop(make, optimizer):
    theirs, after = by_hand(make(), optimizer())
    model, ours = make(), optimizer()
    assert losses(train(amp.train_step(loss_fn, model, ours, policy="O0"))) == theirs
    parts = [*model.trainable_variables, *model.non_trainable_variables, *ours.variables]
    assert same(values(parts), after)


@low
@compiled
def test_a_low_step_trains_as_keras_own_mixed_precision(policy, compiled):
    keras.config.set_dtype_policy(f"mixed_{policy[3:]}")
    try:
        mixed = functional()
    finally:
        keras.config.set_dtype_policy("float32")
    theirs, _ = by_hand(mixed, adam())
    full, _ = by_hand(functional(), adam())
    model, optimizer = functional(), adam()
    scaler = amp.GradScaler(256.0) if policy.endswith(":float16") else None
    step = amp.train_step(loss_fn, model, optimizer, policy=policy, scaler=scaler, compile=compiled)
    ours = losses(train(step))
    np.testing.assert_allclose(ours, theirs, rtol=0.03)
    assert ours != full
    assert {v.value.dtype for v in model.variables} == {jnp.dtype("float32")}


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_products_are_low_and_normalizations_are_not(level):
    model = sequential()
    seen = {}

    def loss(model, x, y):
        dense, norm = model.layers[:2]
        seen["product"] = keras.ops.matmul(x, dense.kernel).dtype
        seen["kernel"], seen["scale"] = dense.kernel.value.dtype, norm.gamma.value.dtype
        return loss_fn(model, x, y)

    if level == "O2":  # outside of the model's call its variables are its masters

        class Looks(keras.layers.Dense):
            def call(self, x):
                seen["kernel"] = self.kernel.value.dtype
                return super().call(x)

        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), Looks(4), keras.layers.BatchNormalization()])
    train(amp.train_step(loss, model, adam(), policy=f"{level}:bfloat16"))
    kernel = "bfloat16" if level == "O2" else "float32"
    assert seen == {"product": "bfloat16", "kernel": kernel, "scale": "float32"}


@compiled
def test_an_overflow_changes_neither_weights_nor_slots(compiled):
    model, optimizer = functional(), adam()
    step = amp.train_step(
        loss_fn,
        model,
        optimizer,
        policy="O1:float16",
        scaler=amp.GradScaler(16.0),
        compile=compiled,
    )
    train(step, BATCHES[:2])
    parts = [*model.variables, *optimizer.variables]
    before = values(parts)
    result = step(np.full((32, 4), 1e30, np.float32), BATCHES[0][:, :1])
    assert not result.applied
    assert same(values(parts), before)
    assert float(step(BATCHES[0], BATCHES[0][:, :1]).scale) == 8.0


def test_what_a_step_reads_may_change_between_steps():
    model, optimizer = sequential(), adam()
    step = amp.train_step(loss_fn, model, optimizer, policy="O0")
    train(step, BATCHES[:1])
    model.layers[2].rate = 0.0
    undropped = float(loss_fn(model, BATCHES[1], BATCHES[1][:, :1]))
    assert losses(train(step, BATCHES[1:2])) == pytest.approx([undropped], rel=1e-5)
    model.layers[0].trainable = False
    frozen = values(model.layers[0].variables)
    optimizer.learning_rate = 0.5
    before = values(model.layers[3].variables)
    train(step, BATCHES[:1])
    assert same(values(model.layers[0].variables), frozen)
    model.layers[3].kernel.trainable = False
    frozen = np.asarray(model.layers[3].kernel.value)
    moved = np.abs(np.asarray(model.layers[3].kernel.value) - before[0]).max()
    assert moved > 0.05  # a step of Adam at that rate, and not at 0.01
    train(step, BATCHES[:1])
    np.testing.assert_array_equal(model.layers[3].kernel.value, frozen)


class Residual(keras.Model):
    """Built by ``build``, and called for the first time by a step."""

    def __init__(self):
        super().__init__()
        self.blocks = [keras.layers.Dense(4, activation="relu") for _ in range(2)]
        self.head = keras.layers.Dense(1)

    def build(self, shape):
        for layer in (*self.blocks, self.head):
            layer.build(shape)

    def call(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


@pytest.mark.parametrize("make", [sequential, functional, Residual])
def test_a_step_is_traced_once(make):
    model, traced = make(), []
    model.build((None, 4))

    def loss(model, x, y):
        traced.append(x)
        return jnp.mean(jnp.square(model(x) - y))

    step = amp.train_step(loss, model, adam(), policy="O2:bfloat16")
    train(step, BATCHES[:1])
    once = len(traced)
    train(step)
    assert len(traced) == once
    names = [layer.name for layer in amp.backend(model).layers(model)]
    assert make is not Residual or names == ["", "blocks.0", "blocks.1", "head"]


def test_losses_that_layers_add_are_there_and_leave_no_trace():
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Dense(3, kernel_regularizer="l2"),
        keras.layers.ActivityRegularization(l2=0.5),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers])

    def loss(model, x, y):
        model(x, training=True)
        return sum(model.losses)

    model(BATCHES[0], training=True)
    before = float(sum(model.losses))
    (result,) = train(amp.train_step(loss, model, adam(), policy="O0"), BATCHES[:1])
    assert float(result.loss) == pytest.approx(before, rel=1e-6)
    assert not any(isinstance(x, jax.core.Tracer) for x in model.losses)


def test_gradients_by_hand_and_the_scaler_s_step():
    model, optimizer = functional(), adam()
    optimizer.build(model.trainable_variables)
    scaler = amp.GradScaler(256.0)
    found = []
    for x in BATCHES:
        loss, grads = amp.value_and_grad(
            loss_fn, model, x, x[:, :1], policy="O1:float16", scaler=scaler
        )
        assert [g.shape for g in grads] == [v.shape for v in model.trainable_variables]
        scaler.step(optimizer, grads)
        scaler.update()
        found.append(float(loss))
    step = amp.train_step(
        loss_fn, functional(), adam(), policy="O1:float16", scaler=amp.GradScaler(256.0)
    )
    np.testing.assert_allclose(found, losses(train(step)), rtol=1e-3)


@compiled
def test_a_copy_goes_on_alike(compiled):
    step = amp.train_step(loss_fn, sequential(), adam(), policy="O2:bfloat16", compile=compiled)
    train(step, BATCHES[:3])
    twin = copy.deepcopy(step)
    assert losses(train(step)) == losses(train(twin))


def test_a_step_is_a_function_of_a_state():
    step = amp.train_step(loss_fn, sequential(), adam(), policy="O1:bfloat16")
    function, state = ampbridge_jax.pure(step)
    batches = jnp.asarray(BATCHES), jnp.asarray(BATCHES[..., :1])
    state, results = jax.jit(
        lambda state: jax.lax.scan(lambda state, batch: function(state, *batch), state, batches)
    )(state)
    twin = amp.train_step(loss_fn, sequential(), adam(), policy="O1:bfloat16")
    np.testing.assert_allclose(np.asarray(results.loss), losses(train(twin)), rtol=1e-3)
    ampbridge_jax.take(step, state)
    for one, other in zip(step.model.variables, twin.model.variables, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=2e-2, atol=1e-2)


def test_a_loaded_run_goes_on_alike(tmp_path):
    step = amp.train_step(loss_fn, sequential(), adam(), policy="O2:float16")
    train(step, BATCHES[:3])
    step.save(tmp_path / "run")
    after = losses(train(step))
    step.load(tmp_path / "run")
    assert losses(train(step)) == after
    other = amp.train_step(loss_fn, sequential(), adam(), policy="O2:float16")
    other.load(tmp_path / "run")
    assert losses(train(other)) == after


ON_TENSORFLOW = """
import json, sys
import keras, numpy as np
import ampbridge as amp

x = np.load(sys.argv[1] + "/x.npy")
keras.utils.set_random_seed(1)
model = keras.Sequential([
    keras.Input((4,)),
    keras.layers.Dense(16, activation="relu"),
    keras.layers.BatchNormalization(),
    keras.layers.Dropout(0.5, seed=3),
    keras.layers.Dense(1),
])
optimizer = keras.optimizers.Adam(1e-2)

def loss_fn(model, x, y):
    return keras.ops.mean(keras.ops.square(model(x, training=True) - y))

step = amp.train_step(loss_fn, model, optimizer, policy="O1:bfloat16")
step(x, x[:, :1])
step.save(sys.argv[1] + "/run")
backend = amp.backend(model)
told = [list(weight) for weight in backend.weights(model)]
slots = sorted(backend.read_optimizer(optimizer, model).slots)
print(json.dumps([told, backend.parameter_names(model), slots, model(x).numpy().tolist()]))
"""


def test_a_run_on_tensorflow_has_the_same_names_and_goes_on_here(tmp_path):
    np.save(tmp_path / "x.npy", BATCHES[0])
    environment = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    said = run_python("-c", ON_TENSORFLOW, tmp_path, environment=environment)
    told, names, slots, predictions = json.loads(said.splitlines()[-1])
    sequential()  # Keras counts its layers over all models
    model, optimizer = sequential(), adam()
    step = amp.train_step(loss_fn, model, optimizer, policy="O1:bfloat16")
    step.adopt(tmp_path / "run")
    backend = amp.backend(model)
    assert json.loads(json.dumps(backend.weights(model))) == told
    assert backend.parameter_names(model) == names
    assert sorted(backend.read_optimizer(optimizer, model).slots) == slots
    np.testing.assert_allclose(model(BATCHES[0]), predictions, rtol=1e-4, atol=1e-5)
    assert step.state_dict()["step"] == 1
    assert np.isfinite(losses(train(step))).all()


def test_the_lens_names_layers_and_gives_everything_back():
    model = sequential()
    before = values(model.variables)
    rows = {
        (row.op, row.layer.rstrip("_0123456789")): row.dtype
        for row in amp.lens.census(
            loss_fn, model, BATCHES[0], BATCHES[0][:, :1], policy="O1:float16"
        ).rows
    }
    assert rows["matmul", "dense"] == "float16"
    assert rows["rsqrt", "batch_normalization"] == "float32"
    assert same(values(model.variables), before)


# -- fit


def fitted(policy, optimizer=adam, model=None):
    model = functional() if model is None else model
    if policy is not None:
        amp.decorate(model, policy=policy)
    model.compile(optimizer(), loss="mse")
    x = BATCHES.reshape(-1, 4)
    return model, model.fit(x, x[:, :1], shuffle=False, epochs=3, verbose=0).history["loss"]


@pytest.mark.parametrize("policy", ["O1:bfloat16", "O2:bfloat16"])
def test_fit_of_a_decorated_model_trains_in_its_policy(policy):
    model, kernels = functional(), set()
    layer = model.layers[1]

    def activation(x):
        kernels.add(str(layer.kernel.value.dtype))
        return keras.activations.gelu(x)

    layer.activation = activation
    full, low = fitted(None)[1], fitted(policy, model=model)[1]
    assert low != full
    assert kernels == {"bfloat16" if policy.startswith("O2") else "float32"}
    assert {v.value.dtype for v in model.variables} == {jnp.dtype("float32")}
    np.testing.assert_allclose(low, full, rtol=0.05)


def test_fit_compiles_anew_for_another_policy():
    twin, model = functional(), functional()
    for each in (twin, model):
        each.compile(adam(), loss="mse")
    x = BATCHES[0]
    for each in (twin, model):
        each.train_on_batch(x, x[:, :1])
    amp.decorate(model, policy="O1:bfloat16")
    low = model.train_on_batch(x, x[:, :1]), model.evaluate(x, x[:, :1], verbose=0)
    amp.undecorate(model)
    full = twin.train_on_batch(x, x[:, :1]), twin.evaluate(x, x[:, :1], verbose=0)
    assert low != full
    np.testing.assert_allclose(low, full, rtol=0.05)
    twin.set_weights(model.get_weights())
    assert model.evaluate(x, x[:, :1], verbose=0) == twin.evaluate(x, x[:, :1], verbose=0)


def test_fit_in_float16_asks_for_an_optimizer_that_scales():
    with pytest.raises(amp.UnsupportedError) as refused:
        fitted("O1:float16")
    assert str(refused.value) == (
        "Adam does not scale the loss, and small gradients become zero in float16.\n"
        "Hint: model.compile(keras.optimizers.LossScaleOptimizer(optimizer), loss), where amp.decorate "
        "got the model alone, or optimizer itself; or "
        "policy='O1:bfloat16'; or amp.train_step(loss_fn, model, optimizer)"
    )
    model, low = fitted("O1:float16", scaling)
    np.testing.assert_allclose(low, fitted(None)[1], rtol=0.05)
    before = model.get_weights()
    model.train_on_batch(np.full((32, 4), 1e30, np.float32), BATCHES[0][:, :1])
    assert same(model.get_weights(), before)


def test_a_decorated_model_is_saved_as_keras_has_it(tmp_path):
    model, _ = fitted("O2:bfloat16")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    amp.undecorate(model)
    np.testing.assert_array_equal(loaded(BATCHES[0]), model(BATCHES[0]))


def test_a_kept_layer_reads_and_computes_in_float32():
    model, seen = functional(), {}
    policy = amp.Policy("O2", "bfloat16", keep=(model.layers[1].name,))
    amp.decorate(model, policy=policy)
    kept, other = model.layers[1], model.layers[2]
    for name, layer in (("kept", kept), ("other", other)):
        activation = layer.activation

        def spy(x, name=name, layer=layer, activation=activation):
            seen[name] = x.dtype, layer.kernel.value.dtype
            return activation(x)

        layer.activation = spy
    model(BATCHES[0])
    assert seen == {
        "kept": (jnp.dtype("float32"), jnp.dtype("float32")),
        "other": (jnp.dtype("bfloat16"), jnp.dtype("bfloat16")),
    }
    amp.undecorate(model)
    assert type(model) is keras.Model or type(model).__name__ == "Functional"
    assert "ampbridge" not in repr(vars(model))


# -- what is refused


def test_hints_about_an_optimizer_that_scales_lead_out_of_each_other():
    model, outer, inner = functional(), scaling(), adam()
    with pytest.raises(amp.ArgumentTypeError) as refused:
        amp.decorate(model, outer, policy="O1:float16")
    assert str(refused.value).partition("Hint: ")[2] == (
        "optimizer = optimizer.inner_optimizer; or, for fit: amp.decorate(model, policy=policy), and "
        "this optimizer in model.compile(optimizer, loss)"
    )
    _, alone = fitted("O1:float16", lambda: outer)
    amp.decorate(model, inner, policy="O1:float16")
    wrapped = keras.optimizers.LossScaleOptimizer(inner, initial_scale=256.0)
    assert fitted(None, lambda: wrapped, model)[1] == alone


@pytest.mark.parametrize("role", ["model", "optimizer", "float32 model", "loss_fn"])
def test_examples_in_hints_of_the_core_name_keras_too(role):
    own, other = amp.backend(functional()).examples[role].split("; of Keras: ")
    assert ("optax" if role == "loss_fn" else "nnx") in own
    assert not {"optax", "nnx"}.intersection(re.findall(r"\w+", other))


def test_a_model_of_frozen_layers_is_told_how_layers_of_keras_train():
    model = functional()
    model.trainable = False
    with pytest.raises(amp.ArgumentError, match=r"Hint: layer\.trainable = True, for what"):
        amp.value_and_grad(loss_fn, model, BATCHES[0], BATCHES[0][:, :1], policy="O0")


@pytest.mark.parametrize(
    "model, optimizer, said",
    [
        (sequential, scaling, "divides gradients by a scale of its own"),
        (
            sequential,
            lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
            "holds gradients back",
        ),
        (
            sequential,
            lambda: nnx.Optimizer(
                nnx.Linear(4, 1, rngs=nnx.Rngs(0)), optax.sgd(0.1), wrt=nnx.Param
            ),
            "Hint: optimizer = keras.optimizers.SGD",
        ),
        (lambda: nnx.Linear(4, 1, rngs=nnx.Rngs(0)), adam, "Hint: optimizer = nnx.Optimizer"),
        (lambda: keras.Sequential([keras.layers.Dense(1)]), adam, "has not been built"),
    ],
    ids=["scales", "accumulates", "of optax", "of flax", "not built"],
)
def test_what_does_not_fit_is_refused(model, optimizer, said):
    with pytest.raises(amp.AmpBridgeError, match=said):
        amp.train_step(loss_fn, model(), optimizer())


@pytest.mark.parametrize("choice", [{"masters": None}, {"slots": "bfloat16"}])
def test_low_storage_is_refused_and_nothing_is_decorated(choice):
    model, optimizer = sequential(), adam()
    with pytest.raises(amp.UnsupportedError, match="of Keras' models on jax"):
        amp.decorate(model, optimizer, policy=amp.Policy("O2", "bfloat16", **choice))
    assert type(model) is keras.Sequential


def test_a_step_inside_of_somebodys_jit_is_refused():
    model, optimizer = sequential(), adam()

    def by_hand(x):
        return amp.value_and_grad(loss_fn, model, x, x[:, :1], policy="O0")[0]

    with pytest.raises(amp.UnsupportedError, match=r"outside of this jax\.jit"):
        jax.jit(by_hand)(BATCHES[0])
    step = amp.train_step(loss_fn, model, optimizer, policy="O0")
    with pytest.raises(amp.UnsupportedError, match=r"outside of this jax\.jit"):
        jax.jit(lambda x: step(x, x[:, :1]).loss)(BATCHES[0])
    every = [*model.variables, *optimizer.variables]
    assert not any(isinstance(v.value, jax.core.Tracer) for v in every)


def test_a_precision_of_keras_own_is_told():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = sequential()
    finally:
        keras.config.set_dtype_policy("float32")
    step = amp.train_step(loss_fn, model, adam(), policy="O1:float16")
    with pytest.warns(UserWarning, match=r"set_dtype_policy\('mixed_bfloat16'\), under which"):
        train(step, BATCHES[:1])
