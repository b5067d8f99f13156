"""Models for JAX: keras.applications, in a process in which Keras runs on it."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from properties import StepByStep
from zoo import Subject, parameters

from ampbridge_testing.growth import Growth

os.environ["KERAS_BACKEND"] = "jax"
# XLA optimizes for longer than a few steps of such models take.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import keras_models
from in_keras_on_jax import KerasOnJax

pytestmark = [
    # Keras copies arrays as NumPy 1 did.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    # The gradients of a bias ahead of a normalization are errors of rounding.
    pytest.mark.filterwarnings("ignore:float16 does not hold these weights"),
]

QUICK = {"resnet"}
CHOSEN = {"mobilenet-v3", "resnet", "resnet-v2"}
"""Compiled within a minute; the parts of the others are in these, or in ``tests/jax``."""

ONE_BATCH = keras_models.pictures(keras_models.np.random.default_rng(0))
SPECIMENS = [
    replace(each, batch=lambda _: ONE_BATCH)
    for each in keras_models.SPECIMENS
    if each.name in CHOSEN
]


@pytest.fixture(scope="module", params=parameters(SPECIMENS, QUICK))
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(request.param, KerasOnJax(), tmp_path_factory.mktemp("zoo"))


class TestKerasOnJax(StepByStep):
    """The native loop is that of Keras' own dtype policies."""

    # XLA's threads keep some memory more now and then: 26 kB a step over few steps of mobilenet-v3 beside
    # other work, under 16 over 300. A step's activations, which a leak would keep, are larger.
    growth_bound = Growth(objects=0.5, memory=512 * 1024)
