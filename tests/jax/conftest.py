"""The adapter is registered for this process: models are flax's, and transformations optax's."""

import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")
pytest.importorskip("optax")

import ampbridge as amp  # noqa: E402
from ampbridge_jax.backend import JaxBackend  # noqa: E402

amp.register_backend("jax", JaxBackend)
