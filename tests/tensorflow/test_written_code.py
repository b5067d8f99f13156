"""Programs written for TensorFlow: run, read back from native objects, compared with ampbridge on NumPy."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import written_programs
from written_programs import (
    CLIPPINGS,
    GUIDE,
    SPIKES,
    STEPS,
    WIDTH,
    Run,
    batches,
    scales_by_the_rule,
)

import ampbridge as amp
from ampbridge_numpy import nn, optim
from ampbridge_port.writers import losses, write

pytestmark = pytest.mark.slow

CLOSE = 1e-5
"""Between simulations, of the losses of an MLP; from float32's these are 5e-5 away."""

ONE_ROUNDING = 2.0**-11
"""Of float16. TensorFlow's own kernels add up in it on some CPUs, and in float32 on others."""

SCALINGS = {
    **written_programs.SCALINGS,
    "counting on": amp.Scaling(
        init_scale=2.0**10, backoff_interval=2, backoff_count="until_growth", growth_interval=50
    ),
}

Load = Callable[..., ModuleType]


@pytest.fixture(autouse=True)
def _unchanged_settings() -> Iterator[None]:
    yield
    keras.config.set_dtype_policy("float32")
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": False})


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Imports the module written for a recipe, with its demo, from a file: AutoGraph reads its source."""
    numbers = itertools.count()

    def load(recipe: amp.Recipe, native: bool = True) -> ModuleType:
        file = tmp_path / f"written_{next(numbers)}.py"
        file.write_text(write(recipe, "tensorflow", native=native, demo=True), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


# -- the model of the guide, small, in both frameworks


def weights() -> list[np.ndarray]:
    """Kernels and biases of three dense layers."""
    random = np.random.default_rng(7)
    shapes = [(WIDTH, WIDTH), (WIDTH,)] * 3
    return [random.normal(0, WIDTH**-0.5, shape).astype(np.float32) for shape in shapes]


def simple_net() -> keras.Model:
    layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers, keras.layers.Dense(WIDTH)])
    model.set_weights(weights())
    return model


def numpy_net() -> nn.Module:
    linears = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    values = iter(weights())
    for linear in linears:
        linear.weight[...], linear.bias[...] = next(values), next(values)
    return nn.Sequential(linears[0], nn.ReLU(), linears[1], nn.ReLU(), linears[2])


def native_run(module: ModuleType, data: Callable[[], Iterator[Any]] = batches) -> Run:
    """Module and demo as they stand, but for the model and the data."""
    results, models = [], []
    train = module.train

    def watched(model: Any, *arguments: Any) -> Iterator[Any]:
        models.append(model)
        for result in train(model, *arguments):
            results.append(result)
            yield result

    module.make_model, module.batches, module.train = simple_net, data, watched
    module.main()
    return Run(
        [float(result.loss) for result in results],
        [float(result.scale) for result in results],
        [bool(result.applied) for result in results],
        [bool(result.overflowed) for result in results],
        models[0].get_weights(),
    )


def ampbridge_run(
    model: Any, optimizer: Any, loss_fn: Any, recipe: amp.Recipe, data: Any = batches
) -> Run:
    step = amp.train_step(loss_fn, model, optimizer, recipe=recipe)
    results = [step(x, y) for x, y in data()]
    values = model.get_weights() if hasattr(model, "get_weights") else model.parameters()
    return Run(
        [result.loss for result in results],
        [result.scale for result in results],
        [result.applied for result in results],
        [result.reason in ("inf", "nan") for result in results],
        [np.array(value) for value in values],
    )


def numpy_run(recipe: amp.Recipe, data: Any = batches) -> Run:
    model = numpy_net()
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    return ampbridge_run(model, optimizer, lambda m, x, y: nn.mse_loss(m(x), y), recipe, data)


# -- Paddle's guide


def guide_data(level: str) -> Callable[[], Iterator[Any]]:
    """Enough micro-batches for a dozen steps, two of which overflow."""
    return (lambda: batches(120, (3, 64))) if level == "accumulation" else batches


@pytest.mark.parametrize("level", GUIDE)
def test_the_guide_s_recipes_train_as_on_numpy(load: Load, level: str) -> None:
    recipe, data = GUIDE[level], guide_data(level)
    run, expected = native_run(load(recipe), data), numpy_run(recipe, data)
    assert run.scale == scales_by_the_rule(recipe, run) == expected.scale
    assert run.applied == expected.applied
    assert run.overflowed == expected.overflowed
    assert any(run.overflowed)
    assert run.loss == pytest.approx(expected.loss, rel=ONE_ROUNDING)
    for value, wanted, first in zip(run.weights, expected.weights, weights(), strict=True):
        moved = np.linalg.norm(wanted - first)
        assert np.linalg.norm(value - wanted) <= 0.01 * moved


@pytest.mark.parametrize("level", GUIDE)
def test_the_guide_s_recipes_train_with_ampbridge_as_on_numpy(load: Load, level: str) -> None:
    module, data = load(GUIDE[level], native=False), guide_data(level)
    run = ampbridge_run(simple_net(), module.make_optimizer(), module.loss_fn, module.RECIPE, data)
    expected = numpy_run(GUIDE[level], data)
    assert GUIDE[level] == module.RECIPE
    assert (run.scale, run.applied) == (expected.scale, expected.applied)
    assert run.loss == pytest.approx(expected.loss, rel=CLOSE)


def test_the_program_with_ampbridge_runs(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    load(GUIDE["O1"], native=False).main()
    assert capsys.readouterr().out.count("applied=True") == 100


# -- the scale


@pytest.mark.parametrize("name", SCALINGS)
def test_scales_and_skips_follow_the_rule(load: Load, name: str) -> None:
    recipe = amp.Recipe("O1", SCALINGS[name])
    run, expected = native_run(load(recipe)), numpy_run(recipe)
    assert run.scale == scales_by_the_rule(recipe, run)
    assert (run.scale, run.applied) == (expected.scale, expected.applied)
    assert True in run.overflowed


@pytest.mark.parametrize("on_overflow", ("drop_step", "drop_microbatch"))
@pytest.mark.parametrize("scaling", ("keras", "torch", "fleet"))
def test_accumulation_drops_what_the_recipe_says(
    load: Load, on_overflow: Any, scaling: str
) -> None:
    recipe = amp.Recipe(
        amp.Policy("O1", lists="paddle"), SCALINGS[scaling], accumulate=3, on_overflow=on_overflow
    )
    run, expected = native_run(load(recipe)), numpy_run(recipe)
    assert run.scale == scales_by_the_rule(recipe, run)
    assert (run.scale, run.applied) == (expected.scale, expected.applied)
    assert run.loss == pytest.approx(expected.loss, rel=1e-3)


@pytest.mark.filterwarnings("ignore:.*without loss scaling")
def test_without_scaling_overflow_is_skipped_as_well(load: Load) -> None:
    recipe = amp.Recipe("O1", None)
    run, expected = native_run(load(recipe)), numpy_run(recipe)
    assert set(run.scale) == {1.0}
    assert run.applied == expected.applied
    assert run.applied.count(False) == len(SPIKES)


@pytest.mark.parametrize(
    "clipping, scaling",
    (
        ("clip_norm", "keras"),
        ("clip_norm", "torch"),
        ("clip_each_norm", "torch"),
        ("clip_value", "keras"),
    ),
)
@pytest.mark.parametrize("accumulate", (1, 3))
def test_gradients_are_clipped_unscaled(
    load: Load, clipping: str, scaling: str, accumulate: int
) -> None:
    limit: dict[str, Any] = {clipping: CLIPPINGS[clipping]}
    recipe = amp.Recipe(
        "O1", SCALINGS[scaling], accumulate=accumulate, on_overflow="drop_microbatch", **limit
    )
    run, expected = native_run(load(recipe)), numpy_run(recipe)
    assert run.applied == expected.applied
    start = weights()
    for value, wanted, first in zip(run.weights, expected.weights, start, strict=True):
        np.testing.assert_allclose(value - first, wanted - first, rtol=0.05, atol=1e-5)


def test_a_run_that_only_skips_warns_and_stops(load: Load) -> None:
    stuck = amp.Scaling(warn_after_skips=5, max_consecutive_skips=8)
    module = load(amp.Recipe("O1", stuck))

    def data() -> Iterator[Any]:
        return batches(spikes=tuple(range(10, STEPS)))

    with (
        pytest.warns(UserWarning, match="5 steps in a row were skipped"),
        pytest.raises(RuntimeError, match="8 steps in a row"),
    ):
        native_run(module, data)


def test_overflow_at_the_smallest_scale_stops_where_the_recipe_says_so(load: Load) -> None:
    recipe = amp.Recipe("O1", amp.Scaling.like("deepspeed", init_scale=1.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="overflow at the smallest loss scale"):
        native_run(load(recipe), lambda: batches(spikes=tuple(range(10))))


# -- what native objects say


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("level", ("O0", "O1", "O2"))
def test_the_policy_is_that_of_keras_layers(load: Load, level: Any, dtype: str) -> None:
    load(amp.Recipe(amp.Policy(level, dtype, lists="paddle")))
    expected = "float32" if level == "O0" else f"mixed_{dtype}"
    assert keras.config.dtype_policy().name == expected
    assert keras.layers.Dense(2).compute_dtype == ("float32" if level == "O0" else dtype)


def test_keras_own_scaler_has_the_recipe_s_numbers(load: Load) -> None:
    scaling = amp.Scaling.like("keras", init_scale=2.0**12, growth_interval=123)
    recipe = amp.Recipe("O2", scaling, 4, 0.5, on_overflow="drop_microbatch")
    module = load(recipe)
    native = module.optimizer(module.make_optimizer())
    assert isinstance(native, keras.optimizers.LossScaleOptimizer)
    assert (native.initial_scale, native.dynamic_growth_steps) == (2.0**12, 123)
    assert native.inner_optimizer.global_clipnorm == 0.5
    assert native.inner_optimizer.gradient_accumulation_steps == 4


def test_the_graph_optimizer_is_switched_on(load: Load) -> None:
    load(amp.Recipe(amp.Policy("O1", lists="tensorflow"), amp.Scaling.like("keras")))
    assert tf.config.optimizer.get_experimental_options()["auto_mixed_precision"] is True
    assert keras.config.dtype_policy().name == "float32"


# -- layers


def layered() -> keras.Model:
    """Layers whose ops the lists allow, deny, and leave to what arrives."""
    x = inputs = keras.Input((8, 16))
    x = keras.layers.Add(name="sum_of_inputs")([x, x])
    y = keras.layers.LayerNormalization(name="norm")(x)
    y = keras.layers.MultiHeadAttention(2, 8, name="attention")(y, y)
    x = keras.layers.Add(name="residual")([x, y])
    x = keras.layers.Dense(16, activation="softmax", name="gate")(x)
    x = keras.layers.ReLU(name="relu")(x)
    x = keras.layers.Conv1D(4, 3, name="convolution")(x)
    return keras.Model(inputs, keras.layers.Softmax(name="softmax")(x))


def dtypes_of(module: ModuleType, policy: amp.Policy) -> dict[str, str]:
    """The dtype of what each layer returns."""
    model = layered()
    module.set_precision(model)
    outputs = keras.Model(model.inputs[0], [layer.output for layer in model.layers[1:]])
    outputs.autocast = policy.level == "O2"
    values = outputs(np.ones((2, 8, 16), np.float32))
    return {
        layer.name: value.dtype.name for layer, value in zip(model.layers[1:], values, strict=True)
    }


def test_layers_follow_the_lists_at_o1(load: Load) -> None:
    """As torch's CUDA autocast would: softmax and layer_norm float32, the rest as it arrives."""
    policy = amp.Policy("O1")
    assert dtypes_of(load(amp.Recipe(policy)), policy) == {
        "sum_of_inputs": "float32",
        "norm": "float32",
        "attention": "float16",
        "residual": "float32",
        "gate": "float32",  # its softmax
        "relu": "float32",
        "convolution": "float16",
        "softmax": "float32",
    }


def test_layers_follow_the_lists_at_o2(load: Load) -> None:
    """Paddle's lists deny no more than embeddings and interpolation there."""
    policy = amp.Policy("O2", lists="paddle", deny=["relu"], keep=["conv*"])
    assert dtypes_of(load(amp.Recipe(policy)), policy) == {
        "sum_of_inputs": "float16",
        "norm": "float16",
        "attention": "float16",
        "residual": "float16",
        "gate": "float16",
        "relu": "float32",
        "convolution": "float32",
        "softmax": "float16",
    }


@pytest.mark.parametrize("native", (True, False))
def test_a_program_has_layers_of_the_names_that_are_kept(
    load: Load, native: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = amp.Recipe(amp.Policy("O2", keep=["predictions", "gate", "stem", "first"]))
    module = load(recipe, native)
    module.main()
    assert capsys.readouterr().out.count("applied") == 100
    if native:
        model = module.make_model()
        module.set_precision(model)
        assert [layer.compute_dtype for layer in model.layers] == ["float32"] * 4


def test_a_kept_layer_that_is_not_there_is_an_error(load: Load) -> None:
    module = load(amp.Recipe(amp.Policy("O2", keep=["head"])))
    with pytest.raises(ValueError, match="'head' names no layer"):
        module.set_precision(simple_net())


def test_the_parts_of_attention_go_with_it_but_for_its_softmax(load: Load) -> None:
    """Dropout follows softmax, and would hand float32 on to what is float16 in the recipe."""
    module = load(amp.Recipe("O1"))
    inputs = keras.Input((8, 16))
    attention = keras.layers.MultiHeadAttention(2, 8, dropout=0.5, name="attention")
    model = keras.Model(inputs, attention(inputs, inputs))
    module.set_precision(model)
    computed = {type(part).__name__: part.compute_dtype for part in attention._flatten_layers()}
    assert computed.pop("Softmax") == "float32"
    assert set(computed.values()) == {"float16"}
    assert {part.autocast for part in attention._flatten_layers()} == {True}


def test_attention_is_kept_with_all_its_parts(load: Load) -> None:
    module = load(amp.Recipe(amp.Policy("O2", keep=["MultiHeadAttention"])))
    model = layered()
    module.set_precision(model)
    attention = model.get_layer("attention")
    assert {part.compute_dtype for part in attention._flatten_layers()} == {"float32"}


# -- schedules


def test_a_schedule_by_steps(load: Load) -> None:
    recipe = amp.Recipe(schedule=amp.Schedule([(0, "O0"), (20, "O1"), (40, "O1:bfloat16")]))

    def data() -> Iterator[Any]:
        return batches(spikes=(25, 30))

    run, expected = native_run(load(recipe), data), numpy_run(recipe, data)
    assert run.scale == expected.scale
    assert run.scale[10] == run.scale[50] == 1.0
    assert run.applied == expected.applied
    # Equal to the last digits in float32, to those of the low precision after.
    assert run.loss[:20] == pytest.approx(expected.loss[:20], rel=1e-5)
    assert run.loss == pytest.approx(expected.loss, rel=5e-3)


def test_a_schedule_by_skips(load: Load) -> None:
    schedule = amp.Schedule.when(skips=2, use="O1:bfloat16", otherwise="O1", back_after=5)
    recipe = amp.Recipe(schedule=schedule)
    run, expected = native_run(load(recipe)), numpy_run(recipe)
    assert (run.scale, run.applied) == (expected.scale, expected.applied)
    assert run.scale[10] != 1.0 == run.scale[6]


def test_a_schedule_by_the_loss(load: Load) -> None:
    schedule = amp.Schedule.when(loss_below=10.0, use="O2", otherwise="O0", back_above=1e6)
    recipe = amp.Recipe(schedule=schedule, accumulate=2)

    def data() -> Iterator[Any]:
        return batches(spikes=(9,))

    run, expected = native_run(load(recipe), data), numpy_run(recipe, data)
    assert (run.scale, run.applied) == (expected.scale, expected.applied)
    assert [scale == 1.0 for scale in run.scale[:14:2]] == [True] + 4 * [False] + [True, False]


# -- what is said to be lost


def test_what_keras_expresses_loses_nothing() -> None:
    recipe = amp.Recipe(amp.Policy("O2", lists="tensorflow"), amp.Scaling.like("keras"), 4, 1.0)
    assert losses(recipe, "tensorflow") == ()
    assert losses(recipe.replace(scaler=amp.Scaling()), "tensorflow") == ()
    assert losses(recipe, "tensorflow", native=False) == ()


@pytest.mark.parametrize(
    "recipe, key, kind",
    (
        (amp.Recipe("O1"), "policy.level", "changes"),
        (amp.Recipe(amp.Policy("O2", lists="paddle")), "policy.lists", "changes"),
        (amp.Recipe(amp.Policy("O2", deny=["sum"])), "policy.deny", "changes"),
        (amp.Recipe(amp.Policy("O2", keep=["head"])), "policy.keep", "changes"),
        (amp.Recipe(amp.Policy("O2", master_weights=False)), "policy.master_weights", "changes"),
        (amp.Recipe(amp.Policy("O2", execution="simulated")), "policy.execution", "lost"),
        (amp.Recipe("O2", save_dtype="float16"), "decorate.save_dtype", "lost"),
        (amp.Recipe(accumulate=2, on_overflow="drop_microbatch"), "step.accumulate", "changes"),
        (amp.Recipe("O2", amp.Scaling.like("deepspeed")), "scaler.at_min_scale", "changes"),
    ),
)
def test_what_keras_cannot_express_is_said(recipe: amp.Recipe, key: str, kind: str) -> None:
    assert (key, kind) in {(loss.key, loss.kind) for loss in losses(recipe, "tensorflow")}
