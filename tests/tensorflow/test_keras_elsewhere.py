"""Keras on another backend than TensorFlow: each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from ampbridge.testing import import_or_skip

import_or_skip("tensorflow")

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


def run_with(backend: str, program: str) -> list[str]:
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(find_spec("torch") is None, reason="Keras on torch needs torch")
def test_on_torch_a_keras_model_trains_with_torch_s_optimizers_and_with_no_keras_one() -> None:
    refusal = [
        "optimizer is an optimizer of torch, not keras.src.backend.torch.optimizers.torch_adam.Adam.",
        "Hint: optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
    ]
    assert run_with("torch", ON_TORCH) == ["torch True", *refusal, *refusal, "True"] * 2


def test_what_keras_has_on_a_framework_without_an_adapter_is_refused() -> None:
    """JAX: a Keras model and optimizer are of no class of the framework's own then."""
    program = """
import ampbridge as amp
model, optimizer = (
    type(name, (), {"__module__": f"keras.src.{module}"})()
    for name, module in (("Sequential", "models.sequential"), ("Adam", "optimizers.adam"))
)
for refused in (
    lambda: amp.train_step(lambda model, x: x, model, optimizer),
    lambda: amp.decorate(model, policy="O1"),
):
    try:
        refused()
    except amp.BackendNotFoundError as error:
        print(error)
"""
    unknown = "No registered framework knows keras.src.models.sequential.Sequential; registered are"
    lines = run_with("jax", program)
    assert len(lines) == 4
    assert all(line.startswith((unknown, "Hint: ")) for line in lines)
