"""Models for JAX: those of transformers 4 in flax, from a folder beside transformers 5."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from properties import BesideRounding
from zoo import Subject, parameters

# XLA optimizes for longer than thirty steps of such models take.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

FOLDER = Path(sys.prefix) / "transformers-4"
if not FOLDER.is_dir():
    raise ImportError(f"No {FOLDER}; `make zoo-flax_transformers` makes it")
sys.path.insert(0, str(FOLDER))

import flax_transformers_models  # noqa: E402
from in_jax import Jax  # noqa: E402

QUICK = {"gpt2"}


@pytest.fixture(scope="module", params=parameters(flax_transformers_models.SPECIMENS, QUICK))
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(request.param, Jax(), tmp_path_factory.mktemp("zoo"))


class TestFlaxTransformers(BesideRounding):
    """See ``test_jax.py``."""
