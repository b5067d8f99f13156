"""``ampbridge.neutral`` without a framework: arguments, batches, and adapters without such a module."""

import sys

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import neutral
from ampbridge.neutral.native import native_of_backend

X, Y = np.arange(20.0).reshape(10, 2), np.arange(10)


def test_an_adapter_without_the_module_is_refused(toy):
    with pytest.raises(amp.UnsupportedError) as caught:
        neutral.mlp("toyframework", 4, [], 2)
    assert str(caught.value) == (
        "The adapter of the backend 'toyframework' has no module `neutral`.\n"
        "Hint: native models, losses and optimizers; amp.train_step takes them."
    )


def test_a_loss_of_what_is_no_tensor_is_refused():
    with pytest.raises(
        amp.BackendNotFoundError, match=r"No registered framework knows builtins\.list"
    ):
        neutral.cross_entropy([[1.0, 2.0]], [1])


def test_an_import_that_fails_within_the_module_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "autograd.numpy", None)
    monkeypatch.delitem(sys.modules, "ampbridge_numpy.neutral", raising=False)
    with pytest.raises(ImportError, match="autograd"):
        native_of_backend("numpy")


def test_batches_hold_each_example_once_an_epoch():
    found = list(neutral.batches(X, Y, 5, seed=3))
    assert [len(y) for _, y in found] == [5, 5]
    assert sorted(np.concatenate([y for _, y in found])) == list(range(10))
    for x, y in found:
        np.testing.assert_array_equal(x, X[y])


def test_batches_leave_out_the_rest_and_begin_anew():
    labels = [y for _, y in neutral.batches(X, Y, 4, seed=3, steps=4)]
    assert [len(y) for y in labels] == [4] * 4
    assert len({*labels[0], *labels[1]}) == 8
    assert not np.array_equal(labels[0], labels[2])
    again = [y for _, y in neutral.batches(X, Y, 4, seed=3, steps=4)]
    np.testing.assert_array_equal(labels, again)


BATCHES = {
    "size": (lambda: neutral.batches(X, Y, 11), "Passed size=11 for 10 examples.\nHint: size=10"),
    "zero": (
        lambda: neutral.batches(X, Y, 0),
        "Passed size=0; allowed is a whole number from 1.\nHint: size=128",
    ),
    "lengths": (
        lambda: neutral.batches(X, Y[:5], 2),
        "x has 10 examples and y 5; they must have as many.\n"
        "Hint: neutral.batches(x, y, 128), examples along the first axis",
    ),
}


@pytest.mark.parametrize("wrong", BATCHES)
def test_wrong_batches_are_refused_at_once(wrong):
    call, words = BATCHES[wrong]
    with pytest.raises(amp.ArgumentError) as caught:
        call()
    assert str(caught.value) == words


MODELS = {
    "activation": (
        lambda: neutral.mlp("numpy", 4, [3], 2, activation="swish"),
        "Passed activation='swish'; allowed are 'gelu', 'relu' or 'tanh'.\nHint: help(amp.neutral)",
    ),
    "activation, misspelt": (
        lambda: neutral.mlp("numpy", 4, [3], 2, activation="rellu"),
        "Passed activation='rellu'; allowed are 'gelu', 'relu' or 'tanh'.\nHint: activation='relu'",
    ),
    "hidden": (
        lambda: neutral.mlp("numpy", 4, [3, 0], 2),
        "Passed hidden=[3, 0]; allowed are whole numbers from 1.\nHint: hidden=[128, 64]",
    ),
    "image": (
        lambda: neutral.convnet("numpy", (8, 8), [4], 2),
        "Passed inputs=(8, 8); allowed are 3 whole numbers from 1.\nHint: inputs=(1, 8, 8)",
    ),
    "small image": (
        lambda: neutral.convnet("numpy", (1, 4, 4), [4, 4, 4], 2),
        "Passed 3 channels for images of 4 x 4: nothing is left of them.\nHint: channels=[8]",
    ),
    "heads": (
        lambda: neutral.transformer("numpy", 11, 2, width=10, heads=4),
        "Passed width=10 and heads=4; heads must divide the width.\nHint: width=12, heads=4",
    ),
    "backend": (
        lambda: neutral.mlp("pytorch", 4, [3], 2),
        "No backend 'pytorch'; registered are ",
    ),
}


@pytest.mark.parametrize("wrong", MODELS)
def test_wrong_models_are_refused(wrong):
    call, words = MODELS[wrong]
    with pytest.raises(amp.AmpBridgeError) as caught:
        call()
    assert str(caught.value).startswith(words)


def test_a_schedule_checks_what_it_loads():
    optimizer = neutral.optimizer("sgd", neutral.mlp("numpy", 4, [], 2), lr=0.5)
    schedule = neutral.schedule("linear", optimizer, steps=10)
    before = schedule.state_dict()
    for wrong in (
        {},
        {"applied": -1, "base_rates": [0.5]},
        {"applied": 1, "base_rates": [0.5, 0.5]},
    ):
        with pytest.raises(amp.StateError, match="is not the state of this schedule"):
            schedule.load_state_dict(wrong)
    assert schedule.state_dict() == before


def test_a_function_decides_the_rate_alone():
    optimizer = neutral.optimizer("sgd", neutral.mlp("numpy", 4, [], 2), lr=0.5)
    with pytest.raises(amp.ArgumentError, match="A function decides the rate by itself"):
        neutral.schedule(lambda step: 1.0, optimizer, steps=10)


def test_predict_restores_each_module_s_mode():
    model = neutral.convnet("numpy", (1, 8, 8), [4], 2)
    model.layers[1].eval()
    modes = [module.training for _, module in model.named_modules()]
    assert False in modes
    assert True in modes
    neutral.predict(model, np.zeros((2, 1, 8, 8), np.float32))
    assert [module.training for _, module in model.named_modules()] == modes
