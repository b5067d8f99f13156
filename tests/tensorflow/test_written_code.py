"""Modules written for TensorFlow beside modules written by hand, and beside ampbridge's own GradScaler.

Batches with infinite targets overflow. Scales, skipped steps and weights are compared over 50 steps.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from written_programs import SCALINGS, SPIKES, STEPS, Run, batches, by_ampbridge, spikes_for

import ampbridge as amp
from ampbridge_port.writers import write

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomlkit as tomllib

BY_HAND = Path(__file__).parent / "by_hand"
PROGRAMS = Path(__file__).parents[1] / "port" / "programs"


def paddle(**settings: Any) -> amp.Scaling:
    return amp.Scaling.like("paddle", **{"init_scale": 1024.0, **settings})


O1, O2 = amp.Policy("O1", lists="paddle"), amp.Policy("O2", lists="paddle")

PAIRS = {
    "accumulate_clip": amp.Recipe(O1, paddle(), 4, clip_each_norm=0.02),
    "attention": amp.Recipe(
        amp.Policy("O1", deny=["softmax"], keep=["head"]),
        amp.Scaling.like("torch"),
        clip_value=0.01,
    ),
    "bfloat16": amp.Recipe(O1.replace(dtype="bfloat16"), None, 2, clip_norm=0.05),
    "deny_mean": amp.Recipe(O1.replace(deny=["mean"]), paddle()),
    "drop_micro_batches": amp.Recipe(
        O1, paddle(growth_interval=4), 3, on_overflow="drop_microbatch"
    ),
    "fit_o2": amp.Recipe(O2, paddle(growth_interval=4)),
    "large_model": amp.Recipe(O2.replace(masters=None), paddle(init_scale=32768.0), clip_norm=0.05),
    "lists_clip": amp.Recipe(
        O1.replace(allow=["add", "batch_norm"], deny=["interpolate_bilinear"]),
        paddle(),
        clip_each_norm=0.01,
    ),
    "static_scale": amp.Recipe(O1, paddle(init_scale=128.0, dynamic=False)),
    "two_overflows": amp.Recipe(
        O1, paddle(init_scale=128.0, backoff_factor=0.8, growth_interval=4, backoff_interval=2)
    ),
}
"""The recipe of each module in by_hand/."""


@pytest.fixture(autouse=True)
def _unchanged_settings() -> Iterator[None]:
    yield
    keras.config.set_dtype_policy("float32")
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": False})


def loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(recipe: amp.Recipe, folder: Path) -> ModuleType:
    file = folder / "amp_tf.py"
    file.write_text(write(recipe, "tensorflow"), encoding="utf-8")
    return loaded(file)


def trained(optimizer: Any, model: keras.Model, spikes: tuple[int, ...]) -> Run:
    """A loop of one's own, not compiled, as the modules say it."""
    run, weights = Run([], [], []), model.trainable_variables
    optimizer.build(weights)
    for x, y in batches(model.input_shape[1:], model.output_shape[-1], spikes):
        before = [value.numpy() for value in weights]
        run.scales.append(float(getattr(optimizer, "dynamic_scale", 1.0)))
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError()(y, model(x, training=True))
            scaled_loss = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled_loss, weights), weights)
        changed = [(a != b.numpy()).any() for a, b in zip(before, weights, strict=True)]
        run.applied.append(bool(any(changed)))
    run.weights.extend(value.numpy() for value in weights)
    return run


# -- beside modules by hand


def layered() -> keras.Model:
    """A model of layers that the recipes deny and keep."""
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((3, 3, 5))
    x = keras.layers.UpSampling2D(interpolation="bilinear")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    x = keras.layers.Softmax()(keras.layers.Dense(6, activation="relu")(x))
    return keras.Model(inputs, keras.layers.Dense(4, name="head")(x))


def run_of(module: ModuleType, recipe: amp.Recipe) -> Run:
    model = layered()
    if hasattr(module, "set_precision"):
        module.set_precision(model)
    return trained(module.optimizer(keras.optimizers.SGD(0.05)), model, spikes_for(recipe))


@pytest.mark.parametrize("name", PAIRS)
def test_it_trains_as_the_module_by_hand(name: str, tmp_path: Path) -> None:
    """Scales, skips, and weights to the last bit."""
    recipe = PAIRS[name]
    run = run_of(written(recipe, tmp_path), recipe)
    expected = run_of(loaded(BY_HAND / f"{name}.py"), recipe)
    oracle = by_ampbridge(recipe)
    assert run.scales == expected.scales == oracle.scales
    assert run.applied == expected.applied == oracle.applied
    for value, wanted in zip(run.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(value, wanted)


def test_each_module_by_hand_is_compared() -> None:
    assert {file.stem for file in BY_HAND.glob("*.py")} == PAIRS.keys()


def lines_of_code(code: str) -> int:
    """None that are empty, comments or docstrings."""
    tree = ast.parse(code)
    texts = [
        range(node.lineno, (node.end_lineno or 0) + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    explained = {number for each in texts for number in each}
    return sum(
        number not in explained and bool(line.strip()) and not line.lstrip().startswith("#")
        for number, line in enumerate(code.splitlines(), 1)
    )


@pytest.mark.parametrize("name", PAIRS)
def test_it_is_at_most_twice_as_long(name: str) -> None:
    """``pytest -rP`` prints both numbers of lines."""
    by_hand = lines_of_code((BY_HAND / f"{name}.py").read_text("utf-8"))
    lines = lines_of_code(write(PAIRS[name], "tensorflow"))
    print(f"{name}: {lines} lines, {by_hand} by hand")
    assert lines <= 2 * by_hand


# -- beside ampbridge


def truths() -> dict[str, amp.Recipe]:
    """The recipes of the programs in tests/port/programs."""
    return {
        file.parent.name: amp.Recipe.from_dict(tomllib.loads(file.read_text("utf-8"))["recipe"])
        for file in sorted(PROGRAMS.glob("*/truth.toml"))
    }


CASES = {
    **truths(),
    **{name: amp.Recipe(O1, scaling) for name, scaling in SCALINGS.items()},
    "dropping fleet": amp.Recipe(O1, SCALINGS["fleet"], 3, on_overflow="drop_microbatch"),
}


def quick(recipe: amp.Recipe) -> amp.Recipe:
    """With numbers that 50 batches reach."""
    scaler = recipe.scaler
    if scaler is not None:
        scaler = replace(scaler, growth_interval=min(scaler.growth_interval, 7))
    return recipe.replace(scaler=scaler, accumulate=min(recipe.accumulate, 4))


@cache
def run_of_code(code: str, file: Path, spikes: tuple[int, ...]) -> Run:
    """Of a module; several recipes have the same."""
    file.write_text(code, encoding="utf-8")
    module = loaded(file)
    keras.config.set_dtype_policy("float32")  # where nothing overflows but the spikes
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(4, activation="relu"), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    return trained(module.optimizer(keras.optimizers.SGD(0.05)), model, spikes)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if number % 4 else [])
        for number, name in enumerate(CASES)
    ],
)
def test_scales_and_skips_are_ampbridge_s(name: str, tmp_path_factory: Any) -> None:
    recipe = quick(CASES[name])
    file = tmp_path_factory.getbasetemp() / "amp_tf.py"
    run = run_of_code(write(recipe, "tensorflow"), file, spikes_for(recipe))
    expected = by_ampbridge(recipe)
    assert len(run.scales) == STEPS
    assert run.scales == expected.scales
    assert run.applied == expected.applied
    assert recipe.scaler is None or not any(run.applied[spike] for spike in SPIKES)
