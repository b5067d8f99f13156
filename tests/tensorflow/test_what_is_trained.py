"""What the optimizer holds beside the model, held against loops by hand; keywords on replicas."""

from __future__ import annotations

from collections import UserDict
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ampbridge as amp

RNG = np.random.default_rng(0)
X, LABELS = RNG.standard_normal((16, 12)).astype(np.float32), np.arange(16) % 4


class Temperature(keras.Layer):
    """CLIP's: one number that the logits are multiplied by."""

    def build(self, _: Any) -> None:
        self.log_scale = self.add_weight(initializer=keras.initializers.Constant(1.0))

    def call(self, logits: Any) -> Any:
        return logits * tf.exp(self.log_scale)


def made() -> tuple[keras.Model, Temperature]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(16, "gelu"), keras.layers.Dense(4)])
    model.build((None, 12))
    temperature = Temperature()
    temperature.build((None, 4))
    return model, temperature


def loss_with(temperature: Any) -> Any:
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return lambda model, x, labels: cross_entropy(labels, temperature(model(x, training=True)))


def values(*layers: Any) -> list[np.ndarray]:
    return [v.numpy() for layer in layers for v in layer.trainable_variables]


@pytest.mark.parametrize("compile", [False, True])
def test_a_learnt_temperature_is_trained_as_by_a_plain_loop(compile: bool) -> None:
    model, temperature = made()
    variables = [*model.trainable_variables, *temperature.trainable_variables]
    optimizer = keras.optimizers.Adam(0.01)
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = loss_with(temperature)(model, X, LABELS)
        optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
    expected = values(model, temperature)

    model, temperature = made()
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build([*model.trainable_variables, *temperature.trainable_variables])
    step = amp.train_step(loss_with(temperature), model, optimizer, policy="O0", compile=compile)
    for _ in range(3):
        step(X, LABELS)
    for actual, wanted in zip(values(model, temperature), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", ["O1:float16", "O2:bfloat16"])
def test_it_moves_at_every_level(policy: str) -> None:
    model, temperature = made()
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([*model.trainable_variables, *temperature.trainable_variables])
    step = amp.train_step(loss_with(temperature), model, optimizer, policy=policy)
    losses = [step(X, LABELS).loss for _ in range(10)]
    assert losses[-1] < losses[0]
    assert temperature.log_scale.dtype == "float32"
    assert temperature.log_scale.numpy() != 1.0


@pytest.mark.parametrize("compile", [False, True])
def test_an_optimizer_that_is_not_built_is_built_with_the_model_s(compile: bool) -> None:
    """Also of a model that makes its variables in its first call."""
    model, temperature = made()
    model = keras.Sequential([keras.layers.Dense(16, "gelu"), keras.layers.Dense(4)])
    optimizer = keras.optimizers.SGD(0.1)
    step = amp.train_step(
        loss_with(temperature), model, optimizer, policy="O1:bfloat16", compile=compile
    )
    losses = [step(X, LABELS).loss for _ in range(10)]
    assert losses[-1] < losses[0]
    assert temperature.log_scale.numpy() == 1.0


@tf.custom_gradient
def without_a_derivative(x: Any) -> Any:
    def gradient(_: Any) -> Any:
        msg = "no derivative"
        raise ValueError(msg)

    return x, gradient


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("mistake", ["made outside of the scope", "a loss without a derivative"])
def test_a_step_that_fails_leaves_an_optimizer_that_is_not_built(
    mistake: str, compile: bool
) -> None:
    """It can still be built, for what it is meant for."""
    out_of_scope = mistake == "made outside of the scope"
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope() if out_of_scope else nullcontext():
        model, temperature = made()
    optimizer = keras.optimizers.SGD(0.1)
    seen_through: Any = tf.identity if out_of_scope else without_a_derivative
    step = amp.train_step(
        lambda *batch: seen_through(loss_with(temperature)(*batch)),
        model,
        optimizer,
        compile=compile,
    )
    said = "not made in the scope" if out_of_scope else "no derivative"
    with pytest.raises((amp.CallOrderError, ValueError), match=said):
        step(X, LABELS)
    assert not optimizer.built
    model, _ = made()
    optimizer.build(model.trainable_variables)


def test_a_layer_that_is_frozen_stays() -> None:
    model, temperature = made()
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    model.layers[0].trainable = False
    before = [v.numpy() for v in model.variables]
    step = amp.train_step(loss_with(temperature), model, optimizer, policy="O0")
    step(X, LABELS)
    same = [(v.numpy() == b).all() for v, b in zip(model.variables, before, strict=True)]
    assert same == [True, True, False, False]


@pytest.mark.parametrize("compile", [False, True])
def test_layers_may_be_frozen_and_trained_again_between_steps(compile: bool) -> None:
    """Also the ones that a trace has trained."""
    model, temperature = made()
    first = model.layers[0]
    optimizer = keras.optimizers.SGD(0.1)
    step = amp.train_step(loss_with(temperature), model, optimizer, policy="O0", compile=compile)
    moved = []
    for trainable in (True, False, False, True, False):
        first.trainable = trainable
        before = [v.numpy() for v in model.variables]
        step(X, LABELS)
        moved.append([(v.numpy() != b).any() for v, b in zip(model.variables, before, strict=True)])
    assert moved == [[each, each, True, True] for each in (True, False, False, True, False)]


OWN_WAYS = {
    "loss_scale_factor": (64.0, "loss_scale_factor = None; and scaler=amp.GradScaler(64.0, dyn"),
    "gradient_accumulation_steps": (3, r"train_step(..., accumulate=3)"),
}


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize("option", OWN_WAYS)
def test_an_optimizer_that_scales_or_accumulates_itself_is_refused(
    option: str, built: bool, compile: bool
) -> None:
    value, hint = OWN_WAYS[option]
    model, temperature = made()
    optimizer = keras.optimizers.Adam(0.1, **{option: value})
    if built:
        optimizer.build(model.trainable_variables)
    before = values(model)
    step = amp.train_step(loss_with(temperature), model, optimizer, policy="O0", compile=compile)
    with pytest.raises(amp.UnsupportedError, match=rf"Adam\({option}={value}\)") as raised:
        step(X, LABELS)
    assert hint in str(raised.value)
    assert all(map(np.array_equal, values(model), before))


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("by_keras", [False, True])
def test_what_is_unfrozen_later_needs_another_optimizer(by_keras: bool, compile: bool) -> None:
    model, temperature = made()
    frozen = model.layers[0]
    frozen.trainable = False
    optimizer = keras.optimizers.SGD(0.1)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if by_keras:
        model.compile(optimizer, cross_entropy)
        model.fit(X, LABELS, verbose=0)
    else:
        amp.train_step(loss_with(temperature), model, optimizer, policy="O0")(X, LABELS)
    frozen.trainable = True
    step = amp.train_step(loss_with(temperature), model, optimizer, policy="O0", compile=compile)
    with pytest.raises(amp.UnsupportedError, match=r"SGD was built before 2 of the model.*kernel'"):
        step(X, LABELS)
    before = frozen.kernel.numpy()
    anew = keras.optimizers.SGD(0.1)
    amp.train_step(loss_with(temperature), model, anew, policy="O0", compile=compile)(X, LABELS)
    assert not np.array_equal(frozen.kernel.numpy(), before)


def test_an_optimizer_may_be_built_for_some_of_the_variables() -> None:
    model, temperature = made()
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.layers[1].trainable_variables)
    before = values(model)
    for _ in range(2):
        amp.train_step(loss_with(temperature), model, optimizer, policy="O0")(X, LABELS)
    same = list(map(np.array_equal, values(model), before))
    assert same == [True, True, False, False]


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("change", ["add", "pop"])
def test_layers_that_come_or_go_need_another_step(
    change: str, nested: bool, policy: str, compile: bool
) -> None:
    changing, temperature = made()
    model = changing
    if nested:
        inputs = keras.Input((12,))
        model = keras.Model(inputs, keras.layers.Dense(4)(changing(inputs)))
    optimizer = keras.optimizers.SGD(0.1)
    step = amp.train_step(loss_with(temperature), model, optimizer, policy=policy, compile=compile)
    step(X, LABELS)
    step(X, LABELS)
    if change == "add":
        changing.add(keras.layers.Dense(4))
    else:
        changing.pop()
    with pytest.raises(amp.UnsupportedError, match="had other layers when the step was made"):
        step(X, LABELS)


def test_keywords_and_mappings_on_replicas() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model, temperature = made()
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    step = amp.train_step(
        lambda m, batch, *, labels: loss_with(temperature)(m, batch["x"], labels),
        model,
        optimizer,
        policy="O1:bfloat16",
    )
    losses = [step(UserDict(x=X), labels=LABELS).loss for _ in range(5)]
    assert losses[-1] < losses[0]


REFUSED = {
    "a rate's schedule": (
        lambda m, o: (loss_with(None), m, keras.optimizers.schedules.CosineDecay(0.1, 10)),
        r"not a scheduler \(keras\.",
    ),
    "a loss object": (
        lambda m, o: (keras.losses.MeanSquaredError(), m, o),
        r"return criterion\(y, model\(x, training=True\)\)",
    ),
    "another model's optimizer": (
        lambda m, o: (loss_with(None), made()[0], o),
        "holds none of the model's parameters",
    ),
    "a string": (lambda m, o: (loss_with(None), m, "adam"), "optimizer of tensorflow, not 'adam'"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_mistakes_are_refused_when_the_step_is_made(mistake: str) -> None:
    make, text = REFUSED[mistake]
    model, _ = made()
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    with pytest.raises(amp.AmpBridgeError, match=text):
        amp.train_step(*make(model, optimizer))


@pytest.mark.parametrize("built", [False, True])
def test_decorate_takes_an_optimizer_that_scales(built: bool) -> None:
    """As ``fit`` uses it; a training step, which scales by itself, refuses it."""
    model, _ = made()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    if built:
        optimizer.build(model.trainable_variables)
    assert amp.decorate(model, optimizer, "O1:bfloat16") == (model, optimizer)
    assert amp.undecorate(model, optimizer) == (model, optimizer)
