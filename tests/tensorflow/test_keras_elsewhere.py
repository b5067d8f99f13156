"""Keras on another backend than TensorFlow: each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")

pytestmark = pytest.mark.slow

ON_TORCH = """
import keras, numpy as np, torch
import ampbridge as amp

def loss_fn(model, x, y):
    return torch.mean((model(x) - torch.as_tensor(y)) ** 2)

x = np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32)
for policy in ("O1:bfloat16", "O2:bfloat16"):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = amp.train_step(loss_fn, model, optimizer, policy=policy)
    losses = [step(x, x[:, :1]).loss for _ in range(20)]
    print(amp.backend(model).name, losses[-1] < 0.3 * losses[0])
    amp.undecorate(model, optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    for refused in (amp.train_step, lambda _, *rest, **how: amp.decorate(*rest, **how)):
        try:
            refused(loss_fn, model, keras.optimizers.Adam(), policy=policy)
        except amp.ArgumentTypeError as error:
            print(error)
    print(all(map(torch.equal, before, model.parameters())))
"""


BY_HAND = """
import json
import keras, numpy as np, torch
import ampbridge as amp
from keras import layers

rng = np.random.default_rng(0)
x, y = rng.normal(size=(32, 8, 8, 1)).astype(np.float32), torch.arange(32) % 4

def make():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input((8, 8, 1)), layers.Conv2D(8, 3, activation="relu"), layers.BatchNormalization(),
        layers.Flatten(), layers.Dense(16, activation="gelu"), layers.LayerNormalization(),
        layers.Dense(4),
    ])
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

def loss_fn(model, x, y):
    return torch.nn.functional.cross_entropy(model(x, training=True), y)

def by_hand(dtype):
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == "float16")
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=getattr(torch, dtype)):
            loss = loss_fn(model, x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        yield loss.item()

def by_step(policy):
    model, optimizer = make()
    step = amp.train_step(loss_fn, model, optimizer, policy=policy)
    losses = [step(x, y).loss for _ in range(8)]
    dtypes = {variable.path.split("/", 1)[1]: str(variable.value.dtype) for variable in model.variables}
    amp.undecorate(model, optimizer)
    return losses, dtypes, [variable.numpy().tolist() for variable in model.layers[1].variables]

found = {}
for dtype in ("float16", "bfloat16"):
    native = amp.Policy("O1", dtype, lists="native", execution="native")
    found[dtype] = [*by_hand(dtype)], *by_step(native)
found["O0"], found["O2"] = by_step("O0"), by_step("O2:bfloat16")
found["kept"] = by_step(amp.Policy("O2", "bfloat16", keep=["Conv2D"]))
print(json.dumps(found))
"""

FIT = """
import copy
import keras, numpy as np, torch
import ampbridge as amp
import ampbridge_tensorflow

x = np.ones((8, 4), np.float32)

def make(policy, optimizer=None, late=False):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    if not late:
        amp.decorate(model, policy=policy)
    model.compile(optimizer or keras.optimizers.SGD(0.1), "mse")
    return amp.decorate(model, policy=policy) if late else model

def said(function, *arguments, **named):
    try:
        return function(*arguments, **named)
    except amp.UnsupportedError as error:
        print(error)

for late in (False, True):
    said(make("O1", late=late).fit, x, x[:, :2], verbose=0)
said(make("O2:bfloat16").train_on_batch, x, x[:, :2])
scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
for model in (make("O1", scaled), make("O1:bfloat16"), amp.undecorate(make("O2"))):
    losses = model.fit(x, x[:, :2], epochs=5, verbose=0).history["loss"]
    print(losses[-1] < losses[0])
model = make("O1", keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))
before = [value.copy() for value in model.get_weights()]
model.fit(np.inf * x, x[:, :2], verbose=0)
print(all(map(np.array_equal, before, model.get_weights())))
model = amp.undecorate(make("O1"))
step = amp.train_step(lambda m, x: m(x).mean(), model, torch.optim.SGD(model.parameters(), lr=0.1))
said(copy.deepcopy, step)
said(ampbridge_tensorflow.LossScaleOptimizer, keras.optimizers.SGD(0.1))
schedule = amp.Schedule([(0, "O0"), (2, "O1")])
callbacks = ampbridge_tensorflow.ScaleLogs, ampbridge_tensorflow.SkipWatch
for callback in (*(kind() for kind in callbacks), ampbridge_tensorflow.PolicySchedule(schedule)):
    said(make("O1:bfloat16").fit, x, x[:, :2], verbose=0, callbacks=[callback])
"""


def run_with(backend: str, program: str, *arguments: str) -> list[str]:
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return done.stdout.splitlines()


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="Keras on torch needs torch")


@needs_torch
def test_on_torch_a_keras_model_trains_with_torch_s_optimizers_and_with_no_keras_one() -> None:
    refusal = [
        "optimizer is an optimizer of torch, not keras.src.backend.torch.optimizers.torch_adam.Adam.",
        "Hint: optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
    ]
    assert run_with("torch", ON_TORCH) == ["torch True", *refusal, *refusal, "True"] * 2


@pytest.fixture(scope="module")
def compared() -> Any:
    """Losses, dtypes and batch norm's variables of a Keras model on torch, by hand and by steps."""
    return json.loads(run_with("torch", BY_HAND)[-1])


@needs_torch
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_on_torch_a_step_has_the_bits_of_torch_s_own_autocast(compared: Any, dtype: str) -> None:
    by_hand, losses, dtypes, _ = compared[dtype]
    assert losses == by_hand
    assert losses[-1] < 0.5 * losses[0]
    assert set(dtypes.values()) == {"torch.float32"}
    assert losses != compared["O0"][0]


@needs_torch
def test_on_torch_o2_keeps_the_normalizations_and_their_statistics_in_float32(
    compared: Any,
) -> None:
    """They are parameters of one dictionary there; in bfloat16 a running average would stand still."""
    full, low = compared["O0"], compared["O2"]
    dtypes = {"Normalization": set(), "other": set()}
    for path, dtype in low[1].items():
        dtypes["Normalization" if "normalization" in path else "other"].add(dtype)
    assert dtypes == {"Normalization": {"torch.float32"}, "other": {"torch.bfloat16"}}
    assert low[0] != full[0]
    np.testing.assert_allclose(low[0], full[0], rtol=0.05)
    for one, other in zip(low[2], full[2], strict=True):
        np.testing.assert_allclose(one, other, atol=0.01)


@needs_torch
def test_on_torch_a_kept_layer_stays_float32(compared: Any) -> None:
    losses, dtypes, _ = compared["kept"]
    low = {
        path.partition("/")[0].rstrip("_0123456789") for path in dtypes if "bfloat" in dtypes[path]
    }
    assert low == {"dense"}
    assert losses not in (compared["O2"][0], compared["O0"][0])


@needs_torch
def test_on_torch_keras_own_loop_is_refused_where_its_optimizers_cannot_follow() -> None:
    unscaled = [
        "SGD does not scale the loss, and small gradients become zero in float16.",
        "Hint: model.compile(keras.optimizers.LossScaleOptimizer(optimizer), loss); or "
        "policy='O1:bfloat16'",
    ]
    low = [
        "At O2 the weights are bfloat16, and Keras' SGD on torch updates no float32 masters.",
        "Hint: policy='O1:bfloat16'; or amp.train_step(loss_fn, model, "
        "torch.optim.SGD(model.parameters(), lr=0.1), policy='O2')",
    ]
    names = ("LossScaleOptimizer", "ScaleLogs", "SkipWatch", "PolicySchedule")
    elsewhere = [
        line
        for name in names
        for line in (
            f"{name} is for Keras on TensorFlow, and Keras runs on torch here.",
            "Hint: amp.train_step(loss_fn, model, torch.optim.SGD(model.parameters(), lr=0.1))",
        )
    ]
    trained = ["True"] * 4  # the last of them: a step that overflows changes no weight
    copied = [
        "Keras copies a Sequential on torch with new parameters, which a copy of its optimizer does "
        "not hold.",
        "Hint: make both anew, and step.load(path) what step.save(path) has saved.",
    ]
    expected = [*unscaled, *unscaled, *low, *trained, *copied, *elsewhere]
    assert run_with("torch", FIT) == expected


WITHOUT_ADAPTER = """
import sys
import numpy as np
import ampbridge as amp

if sys.argv[1:] == ["beside"]:
    import tensorflow

model, optimizer = (
    type(name, (), {"__module__": f"keras.src.{module}"})()
    for name, module in (("Sequential", "models.sequential"), ("Adam", "optimizers.adam"))
)
x = np.ones((2, 4), np.float32)
for refused in (
    lambda: amp.train_step(lambda model, x: model(x), model, optimizer),
    lambda: amp.decorate(model, policy="O1"),
    lambda: amp.lens.census(lambda model, x: model(x), model, x),
    lambda: amp.neutral.optimizer("adamw", model, lr=0.1),
    lambda: amp.doctor(model),
):
    try:
        refused()
    except amp.BackendNotFoundError as error:
        print(error)
"""


@pytest.mark.parametrize("arguments", [(), ("beside",)], ids=["alone", "beside TensorFlow"])
def test_keras_on_a_framework_without_an_adapter_is_refused(arguments: Sequence[str]) -> None:
    """NumPy, OpenVINO: a Keras model and optimizer have no base of a framework then."""
    said = [
        "keras.src.models.sequential.Sequential runs here on a framework with which no adapter trains it.",
        "Hint: KERAS_BACKEND=tensorflow, torch or jax, ahead of `import keras`",
    ]
    assert run_with("numpy", WITHOUT_ADAPTER, *arguments) == 5 * said
