"""The lens on NumPy: twelve planted faults located and cured; what it looked at, given back."""

import random

import autograd.numpy as anp
import numpy as np
import pytest
from autograd.extend import defvjp, primitive
from given_back import X, assert_attributes_given_back, assert_given_back, every_report
from planted_faults import (
    FAULTS,
    LOST,
    assert_located_and_cured,
    assert_raising_is_reported,
    assert_scale_is_found,
    assert_swallowed_is_located,
)

from ampbridge_numpy import nn, optim


class NumpyKit:
    """``autograd.numpy``'s ops, looked up when they are called, and modules."""

    def __getattr__(self, op):
        return getattr(anp, op)

    @staticmethod
    def layer(forward, weights=(), parts=()):
        class Layer(nn.Module):
            def forward(self, x):
                return forward(self, x)

        layer = Layer()
        for name, values in dict(weights).items():
            setattr(layer, name, nn.Parameter(values))
        for name, part in dict(parts).items():
            setattr(layer, name, part)
        return layer

    @staticmethod
    def sum(x, axis=None):
        return anp.sum(x, axis=axis, keepdims=axis is not None)

    @staticmethod
    def mean(x, axis=None):
        return anp.mean(x, axis=axis, keepdims=axis is not None)


KIT = NumpyKit()
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of what is planted


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_located_and_cured(fault):
    assert_located_and_cured(KIT, fault)


def test_an_overflow_that_is_swallowed_is_located():
    assert_swallowed_is_located(KIT)


def test_values_that_vanish_are_located_where_they_do():
    assert_located_and_cured(KIT, LOST)


def test_what_comes_before_an_exception_is_reported():
    assert_raising_is_reported(KIT)


@primitive
def clipped(x):
    return x * x.dtype.type(1)


defvjp(clipped, lambda answer, x: lambda g: anp.clip(g, -0.5, 0.5))


def test_gradients_that_depend_on_the_scale_are_found():
    """``clipped`` is no op that is seen: what leaves it arrives at the product before it."""
    model = KIT.layer(
        lambda layer, x: anp.mean(clipped(anp.matmul(x, layer.w))), {"w": np.eye(4, dtype="f")}
    )
    assert_scale_is_found(model, lambda m, x: m(x), "matmul", "")


class Noisy(nn.Module):
    """Whatever a pass may change."""

    def __init__(self):
        self.linear, self.norm = nn.Linear(4, 4, rng=0), nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5, rng=1)
        self.old, self.calls = np.random.RandomState(2), np.zeros((), np.int64)
        self.even, self.replaced = np.array([True]), np.zeros(3)

    def forward(self, x):
        self.calls += 1
        self.even[...] = ~self.even
        self.replaced = self.replaced + random.random() + np.random.random()
        return self.drop(self.norm(self.linear(x * self.old.uniform(size=x.shape).astype("f"))))


class NoisyNumpy:
    """See ``given_back.Noisy``; beside its state the optimizer's."""

    def make(self):
        model = Noisy()
        self.optimizer = optim.SGD(model.parameters(), lr=0.1)
        self.loss(model, X)
        return model

    @staticmethod
    def loss(model, x):
        return anp.mean(anp.square(model(x)))

    def state(self, model):
        state = dict(model.named_parameters())
        for name, module in model.named_modules():
            attributes = {f"{name}.{key}": each for key, each in vars(module).items()}
            state |= {k: each for k, each in attributes.items() if isinstance(each, np.ndarray)}
            state[f"{name}.training"] = np.array(module.training)
        return {
            **{k: (k.endswith("training") or id(v), v.tobytes()) for k, v in state.items()},
            "optimizer": repr(self.optimizer.state),
        }

    def draw(self, model):
        return [model.drop.rng.random(), model.old.uniform(), self.loss(model, X)]


@every_report
def test_a_look_gives_everything_back(report):
    assert_given_back(NoisyNumpy(), report)


def test_what_forward_assigns_is_given_back():
    model = nn.Linear(4, 1, rng=0)
    model.cache = np.zeros(3)
    weight, cache = model.weight, model.cache

    def forward(model, x):
        model.cache += 1
        loss = anp.mean(model(x))
        model.weight = nn.Parameter(np.ones((4, 1), np.float32))
        return loss

    assert_attributes_given_back(model, forward)
    assert model.weight is weight
    assert model.cache is cache
    assert not cache.any()
