"""Promises of an adapter's module ``neutral``: the same numbers, and the same words, as elsewhere.

    class TestNeutral(NeutralConformance):
        harness = MyHarness()

The expected values are formulas in float64; ``tests/torch/test_neutral.py`` compares them with torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampbridge import AmpBridgeError, ArgumentError, ArgumentTypeError, neutral, train_step
from ampbridge.adapters import registry
from ampbridge.adapters.backend import Model
from ampbridge.neutral import weights as initial
from ampbridge.neutral.native import native_of_backend
from ampbridge_testing.harness import Harness, NumpyArray

RNG = np.random.default_rng

OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "adamw": ("adamw", {}),
    "adamw, all set": ("adamw", {"betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 0.2}),
    "adam": ("adam", {}),
    "sgd": ("sgd", {}),
    "nesterov": ("sgd", {"nesterov": True, "weight_decay": 0.1}),
    "plain sgd": ("sgd", {"momentum": 0.0, "weight_decay": 0.1}),
}

SCHEDULES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "cosine": ("cosine", {"steps": 10}),
    "cosine, warm": ("cosine", {"steps": 10, "warmup": 4, "end": 0.1}),
    "linear": ("linear", {"steps": 10, "end": 0.25}),
    "linear, warm": ("linear", {"steps": 10, "warmup": 3}),
    "constant": ("constant", {"warmup": 5}),
}

LABELS = ("int8", "int16", "int32", "int64", "uint8", "uint16")

WRONG_LOSSES: Mapping[str, tuple[Callable[[Any], Any], type[AmpBridgeError], str]] = {
    "floating labels": (
        lambda logits: neutral.cross_entropy(logits, np.zeros(4, np.float32)),
        ArgumentTypeError,
        "The labels are of dtype float32; allowed is any integer dtype.\n"
        "Hint: class numbers of an integer dtype; for floating-point targets "
        "neutral.mse_loss(prediction, target)",
    ),
    "labels of one column": (
        lambda logits: neutral.cross_entropy(logits, np.zeros((4, 1), np.int64)),
        ArgumentError,
        "The labels have shape (4, 1), and the logits (4, 3) have their classes along axis 1; allowed "
        "is the shape (4,).\n"
        "Hint: labels[..., 0], which drops the axis of length 1",
    ),
    "probabilities": (
        lambda logits: neutral.cross_entropy(logits, np.zeros((4, 3), np.float32)),
        ArgumentTypeError,
        "The labels are of dtype float32; allowed is any integer dtype.\n"
        "Hint: labels.argmax(1), if they are probabilities of the classes",
    ),
    "a negative label": (
        lambda logits: neutral.cross_entropy(logits, np.array([0, 1, 2, -1])),
        ArgumentError,
        "The label -1 is no class of logits with 3 classes; allowed are 0 to 2, and ignore_index=-100 "
        "for a label that does not count.\n"
        "Hint: ignore_index=-1, if it marks what does not count",
    ),
    "one-hot labels": (
        lambda logits: neutral.cross_entropy(logits, np.zeros((4, 3), np.int64)),
        ArgumentError,
        "The labels have shape (4, 3), and the logits (4, 3) have their classes along axis 1; allowed "
        "is the shape (4,).\n"
        "Hint: labels.argmax(1)",
    ),
    "labels of another batch": (
        lambda logits: neutral.cross_entropy(logits, np.zeros(5, np.int64)),
        ArgumentError,
        "The labels have shape (5,), and the logits (4, 3) have their classes along axis 1; allowed "
        "is the shape (4,).\n"
        "Hint: axis=, the axis of the classes; one class number for each place",
    ),
    "another axis": (
        lambda logits: neutral.cross_entropy(logits, np.zeros(4, np.int64), axis=2),
        ArgumentError,
        "Passed axis=2 for logits of 2 dimensions; allowed is -2 to 1.\nHint: axis=-1",
    ),
    "a label that is too large": (
        lambda logits: neutral.cross_entropy(logits, np.array([0, 1, 2, 3])),
        ArgumentError,
        "The label 3 is no class of logits with 3 classes; allowed are 0 to 2, and ignore_index=-100 "
        "for a label that does not count.\n"
        "Hint: a model with as many outputs as there are classes",
    ),
    "shapes": (
        lambda logits: neutral.mse_loss(logits, np.zeros((4, 1), np.float32)),
        ArgumentError,
        "The prediction has shape (4, 3) and the target (4, 1); they must be equal.\n"
        "Hint: neutral.mse_loss(prediction, target.reshape(prediction.shape))",
    ),
}

WRONG_OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "name": (
        "adamax",
        {},
        "Passed name='adamax'; allowed are 'adamw', 'adam' or 'sgd'.\nHint: help(amp.neutral)",
    ),
    "negative rate": (
        "adam",
        {"lr": -0.1},
        "Passed lr=-0.1; allowed is a finite number from 0.\nHint: lr=0.001",
    ),
    "no number": (
        "adam",
        {"lr": "0.1"},
        "Passed lr='0.1'; allowed is a finite number from 0.\nHint: lr=0.001",
    ),
    "a setting of another": (
        "adam",
        {"weight_decay": 0.1},
        "'adam' has no weight_decay; allowed are 'lr', 'betas' or 'eps'.\n"
        "Hint: neutral.optimizer('adamw', model, lr=lr, weight_decay=...)",
    ),
    "betas": (
        "adamw",
        {"betas": (0.9, 1.0)},
        "Passed betas=1.0; allowed is a number in [0, 1).\nHint: betas=0.9",
    ),
    "nesterov": (
        "sgd",
        {"momentum": 0.0, "nesterov": True},
        "nesterov=True looks ahead along the momentum, and momentum is 0.\n"
        "Hint: momentum=0.9, nesterov=True",
    ),
}

WRONG_SCHEDULES: Mapping[str, tuple[Any, Mapping[str, Any], str]] = {
    "kind": (
        "cosin",
        {"steps": 5},
        "Passed kind='cosin'; allowed are 'cosine', 'linear' or 'constant'.\nHint: kind='cosine'",
    ),
    "no steps": (
        "linear",
        {"warmup": 5},
        "Passed steps=None; allowed is a whole number from 6.\nHint: steps=60",
    ),
    "an end of a constant rate": (
        "constant",
        {"end": 0.5},
        "A constant rate does not end; steps and end have no effect on it.\n"
        "Hint: neutral.schedule('constant', optimizer, warmup=10)",
    ),
}


class NeutralConformance:
    """What ``ampbridge.neutral`` promises of every framework."""

    harness: Harness

    @pytest.fixture(autouse=True)
    def _backend_under_test(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The public functions find the harness's backend."""
        monkeypatch.setitem(registry._loaded, self.name, self.harness.backend)

    @property
    def name(self) -> str:
        """The backend's."""
        return self.harness.backend.name

    # -- losses

    @pytest.mark.parametrize("dtype", LABELS)
    @pytest.mark.parametrize("native", [True, False], ids=["native", "NumPy's"])
    def test_labels_may_be_of_any_integer_dtype(self, dtype: str, native: bool) -> None:
        values, labels = logits_and_labels((6, 5), -1)
        logits, given = self.harness.array(values), labels.astype(dtype)
        if native:
            given = native_of_backend(self.name).tensor(given, logits)
        loss = neutral.cross_entropy(logits, given)
        assert self.number(loss) == pytest.approx(cross_entropy(values, labels), rel=1e-6)

    @pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
    def test_the_classes_are_along_the_axis_that_is_named(self, axis: int) -> None:
        values, labels = logits_and_labels((4, 3, 5), axis)
        loss = neutral.cross_entropy(self.harness.array(values), labels, axis=axis)
        expected = cross_entropy(np.moveaxis(values, axis, -1), labels)
        assert self.number(loss) == pytest.approx(expected, rel=1e-6)

    @pytest.mark.parametrize("ignored", [-100, 2])
    def test_ignored_labels_do_not_count(self, ignored: int) -> None:
        values, labels = logits_and_labels((6, 5), -1)
        labels[[1, 4]] = ignored
        counts = labels != ignored
        loss = neutral.cross_entropy(self.harness.array(values), labels, ignore_index=ignored)
        expected = cross_entropy(values[counts], labels[counts])
        assert self.number(loss) == pytest.approx(expected, rel=1e-6)

    def test_without_a_label_that_counts_it_is_nan(self) -> None:
        values, labels = logits_and_labels((6, 5), -1)
        loss = neutral.cross_entropy(self.harness.array(values), np.full_like(labels, -100))
        assert math.isnan(self.number(loss))

    def test_the_gradient_of_cross_entropy(self) -> None:
        """By one step of plain SGD with a rate of 1; an ignored label pulls at nothing."""
        _, labels = logits_and_labels((8, 4), -1)
        x = RNG(3).standard_normal((8, 6)).astype(np.float32)
        labels[2] = -100
        model = neutral.mlp(self.name, 6, [], 4)
        kernel, bias = self.linear(model)
        step = self.step(classify, model, neutral.optimizer("sgd", model, lr=1.0, momentum=0.0))
        step(x, labels)
        logits = x.astype(np.float64) @ kernel + bias
        error = softmax(logits) - (labels[:, None] == np.arange(4))
        error[2] = 0
        after, bias_after = self.linear(model)
        np.testing.assert_allclose(kernel - after, x.T @ error / 7, atol=2e-7)
        np.testing.assert_allclose(bias - bias_after, error.sum(axis=0) / 7, atol=2e-7)

    @pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
    def test_mse_loss(self, dtype: str) -> None:
        prediction = RNG(0).standard_normal((4, 3)).astype(np.float32)
        target = (3 * RNG(1).standard_normal((4, 3))).astype(dtype)
        loss = neutral.mse_loss(self.harness.array(prediction), target)
        expected = np.square(prediction - target.astype(np.float64)).mean()
        assert self.number(loss) == pytest.approx(expected, rel=1e-6)

    @pytest.mark.parametrize("wrong", WRONG_LOSSES)
    def test_a_wrong_call_of_a_loss_is_refused(self, wrong: str) -> None:
        call, kind, words = WRONG_LOSSES[wrong]
        with pytest.raises(kind) as caught:
            call(self.harness.array(np.zeros((4, 3))))
        assert str(caught.value) == words

    def test_labels_on_the_host_are_compared_wherever_the_logits_lie(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        logits, labels = self.harness.array(np.zeros((4, 3))), np.array([0, 1, 2, 3])
        native = native_of_backend(self.name)
        if native.at_hand(logits) is not None:
            with pytest.raises(ArgumentError, match="label 3 is no class"):
                neutral.cross_entropy(logits, native.tensor(labels, logits))
        monkeypatch.setattr(native, "at_hand", lambda x: None)  # as on a GPU
        with pytest.raises(ArgumentError, match="label 3 is no class"):
            neutral.cross_entropy(logits, labels)

    # -- optimizers

    @pytest.mark.parametrize("case", OPTIMIZERS)
    def test_an_optimizer_follows_the_formula(self, case: str, compiled: bool) -> None:
        """Over 20 steps with rates that change, and gradients of 1 down to 1e-6."""
        name, settings = OPTIMIZERS[case]
        model = neutral.mlp(self.name, 6, [], 4)
        optimizer = neutral.optimizer(name, model, lr=0.01, **settings)
        assert self.harness.backend.kind(optimizer) == "optimizer"
        scheduler = neutral.schedule(falling, optimizer)
        step = self.step(regress, model, optimizer, scheduler=scheduler, compile=compiled)
        kernel, bias = self.linear(model)
        expected = optimized(name, settings, [kernel, bias], falling)
        for x, y in regression():
            assert step(x, y).applied
        for actual, wanted in zip(self.linear(model), expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("wrong", WRONG_OPTIMIZERS)
    def test_a_wrong_optimizer_is_refused(self, wrong: str) -> None:
        name, settings, words = WRONG_OPTIMIZERS[wrong]
        with pytest.raises(ArgumentError) as caught:
            neutral.optimizer(name, neutral.mlp(self.name, 6, [], 4), **{"lr": 0.1, **settings})
        assert str(caught.value) == words

    def test_what_is_no_model_has_no_optimizer(self) -> None:
        model = neutral.mlp(self.name, 6, [], 4)
        with pytest.raises(ArgumentTypeError, match=f"model is a model of {self.name}, not "):
            neutral.optimizer("sgd", neutral.optimizer("sgd", model, lr=0.1), lr=0.1)

    # -- rates

    @pytest.mark.parametrize("case", SCHEDULES)
    def test_a_schedule_follows_the_formula(self, case: str) -> None:
        kind, settings = SCHEDULES[case]
        model = neutral.mlp(self.name, 2, [], 1)
        optimizer = neutral.optimizer("sgd", model, lr=0.5)
        schedule = neutral.schedule(kind, optimizer, **settings)
        native = native_of_backend(self.name)
        for step in range(13):
            (rate,) = native.rates(optimizer) or [math.nan]
            assert rate == pytest.approx(0.5 * factor(kind, step, **settings), rel=1e-6)
            assert schedule.rates == pytest.approx([rate], rel=1e-6)
            schedule.step()

    def test_a_skipped_step_does_not_advance_it(self) -> None:
        step, schedule = self.scheduled()
        x, y = regression()[0]
        before = schedule.rates
        assert not step(x, np.full_like(y, np.nan)).applied
        assert schedule.rates == before
        assert step(x, y).applied
        assert schedule.rates < before

    def test_it_is_saved_with_the_step(self, tmp_path: Path) -> None:
        """What goes on from the checkpoint has the same rates and the same bits."""
        step, schedule = self.scheduled()
        examples = regression()
        for x, y in examples[:4]:
            step(x, y)
        step.save(tmp_path / "run")
        other, again = self.scheduled()
        other.load(tmp_path / "run")
        assert again.state_dict() == schedule.state_dict()
        assert again.rates == schedule.rates
        for x, y in examples[4:8]:
            assert float(step(x, y).loss) == float(other(x, y).loss)

    @pytest.mark.parametrize("wrong", WRONG_SCHEDULES)
    def test_a_wrong_schedule_is_refused(self, wrong: str) -> None:
        kind, settings, words = WRONG_SCHEDULES[wrong]
        optimizer = neutral.optimizer("sgd", neutral.mlp(self.name, 2, [], 1), lr=0.5)
        with pytest.raises(ArgumentError) as caught:
            neutral.schedule(kind, optimizer, **settings)
        assert str(caught.value) == words

    # -- models

    @pytest.mark.parametrize("activation", ["gelu", "relu", "tanh"])
    def test_mlp(self, activation: str) -> None:
        model = neutral.mlp(self.name, (2, 3), [7, 4], 5, activation=activation, seed=3)
        assert self.harness.backend.kind(model) == "model"
        x = RNG(0).standard_normal((4, 2, 3)).astype(np.float32)
        own = initial.mlp(RNG(3), 6, [7, 4], 5)
        hidden = x.reshape(4, 6).astype(np.float64)
        for layer in ("hidden1", "hidden2"):
            hidden = ACTIVATIONS[activation](linear(own, layer, hidden))
        expected = linear(own, "head", hidden)
        np.testing.assert_allclose(neutral.predict(model, x), expected, atol=2e-6)

    @pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
    def test_convnet(self, training: bool) -> None:
        model = neutral.convnet(self.name, (2, 7, 8), [3, 4], 5, seed=4)
        x = RNG(0).standard_normal((6, 2, 7, 8)).astype(np.float32)
        if training:
            found = self.harness.numpy(neutral.forward(model, self.harness.array(x)))
        else:
            found = neutral.predict(model, x)
        expected = convolved(initial.convnet(RNG(4), (2, 7, 8), [3, 4], 5), x, training)
        np.testing.assert_allclose(found, expected, atol=1e-5)

    @pytest.mark.parametrize("causal", [True, False], ids=["causal", "pooled"])
    def test_transformer(self, causal: bool) -> None:
        shape = {"width": 8, "depth": 2, "length": 5}
        model = neutral.transformer(self.name, 11, 7, heads=2, causal=causal, seed=5, **shape)
        tokens = RNG(0).integers(0, 11, (3, 5))
        expected = attended(initial.transformer(RNG(5), 11, 7, **shape), tokens, 2, causal)
        np.testing.assert_allclose(neutral.predict(model, tokens), expected, atol=1e-5)

    def test_a_seed_decides_the_weights(self) -> None:
        x = np.ones((1, 6), np.float32)
        one, same, other = (
            neutral.predict(neutral.mlp(self.name, 6, [3], 2, seed=seed), x) for seed in (0, 0, 1)
        )
        np.testing.assert_array_equal(one, same)
        assert (one != other).all()

    # -- data and evaluation

    def test_batches_of_native_tensors_are_those_of_arrays(self) -> None:
        x, y = np.arange(20, dtype=np.float32).reshape(10, 2), np.arange(10)
        native = self.harness.array(x), self.harness.array(y, "int64")
        pairs = zip(
            neutral.batches(x, y, 4, seed=1, steps=5),
            neutral.batches(*native, 4, seed=1, steps=5),
            strict=True,
        )
        for (one, labels), (other, others) in pairs:
            np.testing.assert_array_equal(one, self.harness.numpy(other))
            np.testing.assert_array_equal(labels, self.harness.numpy(others))

    @pytest.mark.parametrize("native", [True, False], ids=["native", "NumPy's"])
    def test_evaluate(self, native: bool) -> None:
        values, labels = logits_and_labels((9, 4), -1)
        x = RNG(2).standard_normal((9, 6)).astype(np.float32)
        labels[3] = -100
        model = neutral.mlp(self.name, 6, [], 4)
        kernel, bias = self.linear(model)
        logits, counts = x.astype(np.float64) @ kernel + bias, labels >= 0
        given: Any = (x, labels)
        if native:
            given = self.harness.array(x), self.harness.array(labels, "int64")
        found = neutral.evaluate(model, *given, size=4)
        assert found.loss == pytest.approx(cross_entropy(logits[counts], labels[counts]), rel=1e-5)
        assert found.accuracy == (logits.argmax(axis=1) == labels)[counts].mean()
        regression = neutral.evaluate(model, x, values)
        expected = np.square(logits - values).mean()
        assert regression.loss == pytest.approx(expected, rel=1e-5)
        assert regression.accuracy is None

    def test_predict_follows_a_policy(self) -> None:
        """The products round their inputs, and their results."""
        x = RNG(2).standard_normal((9, 6)).astype(np.float32)
        model = neutral.mlp(self.name, 6, [], 4)
        exact = neutral.predict(model, x)
        low = neutral.predict(model, x, policy="O1:bfloat16")
        assert 0 < np.abs(low - exact).max() < 0.05
        np.testing.assert_array_equal(neutral.predict(model, x), exact)

    def test_labels_that_are_none_are_refused_by_evaluate_too(self) -> None:
        model = neutral.mlp(self.name, 6, [], 4)
        with pytest.raises(ArgumentError, match="The label 4 is no class of logits with 4 classes"):
            neutral.evaluate(model, np.zeros((2, 6), np.float32), np.array([0, 4]))

    # -- helpers

    def number(self, loss: Any) -> float:
        """A native scalar on the host."""
        return float(self.harness.numpy(loss))

    def linear(self, model: Model) -> tuple[NumpyArray, NumpyArray]:
        """Weight (in, out) and bias of a model of one linear layer, in float64."""
        backend = self.harness.backend
        values = backend.read_weights(model)
        kernel, bias = sorted(backend.weights(model), key=lambda weight: -len(weight.shape))
        weight = values[kernel.name].astype(np.float64)
        return weight if kernel.axes == "io" else weight.T, values[bias.name].astype(np.float64)

    def step(self, loss_fn: Any, model: Model, optimizer: Any, **options: Any) -> Any:
        """A step in float32."""
        return train_step(loss_fn, model, optimizer, policy="O0", **options)

    def scheduled(self) -> tuple[Any, neutral.RateSchedule]:
        """A step with a schedule."""
        model = neutral.mlp(self.name, 6, [], 4)
        optimizer = neutral.optimizer("sgd", model, lr=0.01)
        schedule = neutral.schedule("linear", optimizer, steps=10)
        return self.step(regress, model, optimizer, scheduler=schedule), schedule

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Optimizers are run as their framework's users run them: compiled on TensorFlow."""
        if "compiled" in metafunc.fixturenames:
            metafunc.parametrize("compiled", [self.harness.backend.compiles_by_default])


def classify(model: Model, x: Any, y: Any) -> Any:
    return neutral.cross_entropy(neutral.forward(model, x), y)


def regress(model: Model, x: Any, y: Any) -> Any:
    return neutral.mse_loss(neutral.forward(model, x), y)


def falling(step: int) -> float:
    """The factor of the rate at a step."""
    return 1 - step / 40


def logits_and_labels(shape: tuple[int, ...], axis: int) -> tuple[NumpyArray, NumpyArray]:
    """Random logits, float32, and a class for each place."""
    values = (3 * RNG(0).standard_normal(shape)).astype(np.float32)
    places = tuple(np.delete(shape, axis))
    return values, RNG(1).integers(0, shape[axis], places)


def regression() -> list[tuple[NumpyArray, NumpyArray]]:
    """Twenty batches whose six features differ by powers of ten, and so their gradients."""
    scales = 10.0 ** -np.arange(6)
    x = (RNG(0).standard_normal((20, 8, 6)) * scales).astype(np.float32)
    y = RNG(1).standard_normal((20, 8, 4)).astype(np.float32)
    return list(zip(x, y, strict=True))


# -- the formulas, in float64


def softmax(logits: NumpyArray) -> NumpyArray:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: NumpyArray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return result


def cross_entropy(logits: NumpyArray, labels: NumpyArray) -> float:
    probabilities = softmax(logits.astype(np.float64))
    chosen = np.take_along_axis(probabilities, labels[..., None].astype(np.int64), axis=-1)
    return float(-np.log(chosen).mean())


def optimized(
    name: str,
    settings: Mapping[str, Any],
    start: Sequence[NumpyArray],
    factor: Callable[[int], float],
) -> list[NumpyArray]:
    """Weight and bias of a linear layer after the steps of ``regression``, at rates of 0.01 and less."""
    values = [value.copy() for value in start]
    slots = [(np.zeros_like(value), np.zeros_like(value)) for value in start]
    for step, (x, y) in enumerate(regression()):
        error = 2 * (x.astype(np.float64) @ values[0] + values[1] - y) / y.size
        for index, gradient in enumerate((x.T @ error, error.sum(axis=0))):
            rate = 0.01 * factor(step)
            values[index] = updated(
                name, settings, values[index], gradient, slots[index], step, rate
            )
    return values


def updated(
    name: str,
    settings: Mapping[str, Any],
    value: NumpyArray,
    gradient: NumpyArray,
    slots: tuple[NumpyArray, NumpyArray],
    step: int,
    rate: float,
) -> NumpyArray:
    """One step of Loshchilov and Hutter's AdamW, of Kingma and Ba's Adam, or of SGD with momentum."""
    first, second = slots
    if name == "sgd":
        momentum = settings.get("momentum", 0.9)
        gradient = gradient + settings.get("weight_decay", 0.0) * value
        first[...] = momentum * first + gradient
        ahead = gradient + momentum * first if settings.get("nesterov") else first
        return value - rate * ahead
    beta1, beta2 = settings.get("betas", (0.9, 0.999))
    first[...] = beta1 * first + (1 - beta1) * gradient
    second[...] = beta2 * second + (1 - beta2) * gradient**2
    average, square = first / (1 - beta1 ** (step + 1)), second / (1 - beta2 ** (step + 1))
    decay = settings.get("weight_decay", 0.01) if name == "adamw" else 0.0
    step_size = rate * average / (np.sqrt(square) + settings.get("eps", 1e-8))
    result: NumpyArray = value - rate * decay * value - step_size
    return result


def factor(kind: str, step: int, *, steps: int = 0, warmup: int = 0, end: float = 0.0) -> float:
    """What a schedule multiplies the rate by."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if kind == "constant":
        return 1.0
    if step >= steps:
        return end
    gone = (step - warmup) / (steps - warmup)
    if kind == "linear":
        return 1 + (end - 1) * gone
    return end + (1 - end) * math.cos(gone * math.pi / 2) ** 2


ACTIVATIONS: Mapping[str, Callable[[NumpyArray], NumpyArray]] = {
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
}


def linear(weights: initial.Weights, name: str, x: NumpyArray) -> NumpyArray:
    result: NumpyArray = x @ weights[f"{name}.weight"].astype(np.float64) + weights[f"{name}.bias"]
    return result


def convolved(weights: initial.Weights, x: NumpyArray, training: bool) -> NumpyArray:
    """The convnet of two convolutions, by its definition."""
    hidden = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    for name, stride in (("conv1", 1), ("conv2", 2)):
        windows = np.lib.stride_tricks.sliding_window_view(hidden, (3, 3), axis=(2, 3))
        windows = windows[:, :, ::stride, ::stride]
        hidden = np.einsum(
            "nchwij,ocij->nohw", windows, weights[f"{name}.weight"].astype(np.float64)
        )
        mean, variance = (0.0, 1.0)
        if training:
            mean = hidden.mean(axis=(0, 2, 3), keepdims=True)
            variance = hidden.var(axis=(0, 2, 3), keepdims=True)
        hidden = ACTIVATIONS["gelu"]((hidden - mean) / np.sqrt(variance + 1e-5))
    return linear(weights, "head", hidden.reshape(len(x), -1))


def normalized(x: NumpyArray) -> NumpyArray:
    result: NumpyArray = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(
        x.var(axis=-1, keepdims=True) + 1e-5
    )
    return result


def attended(weights: initial.Weights, tokens: NumpyArray, heads: int, causal: bool) -> NumpyArray:
    """The transformer of two blocks, by its definition, one head after the other."""
    x = weights["embedding"].astype(np.float64)[tokens] + weights["positions"]
    later = np.triu(np.full((tokens.shape[1],) * 2, -np.inf), 1) if causal else 0.0
    size = x.shape[-1] // heads
    for number in (1, 2):
        y = normalized(x)
        query, key, value = (linear(weights, f"{n}{number}", y) for n in ("query", "key", "value"))
        merged = np.zeros_like(x)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            scores = query[..., part] @ key[..., part].swapaxes(-1, -2) / math.sqrt(size)
            merged[..., part] = softmax(scores + later) @ value[..., part]
        x = x + linear(weights, f"output{number}", merged)
        y = ACTIVATIONS["gelu"](linear(weights, f"widen{number}", normalized(x)))
        x = x + linear(weights, f"narrow{number}", y)
    return linear(weights, "head", normalized(x if causal else x.mean(axis=1)))
