"""Models for JAX: of nnx, Equinox, linen, Haiku and what is built on them."""

from __future__ import annotations

import os

import pytest
from properties import BesideRounding
from zoo import Subject, parameters

# XLA optimizes for longer than thirty steps of such models take.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax_models
from in_jax import Jax

QUICK = {"recurrent", "mixture-of-experts"}


@pytest.fixture(scope="module", params=parameters(jax_models.SPECIMENS, QUICK))
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(request.param, Jax(), tmp_path_factory.mktemp("zoo"))


class TestJax(BesideRounding):
    """JAX has no mixed precision of its own."""
