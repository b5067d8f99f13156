"""The adapter is registered for this process: models are flax's, and transformations optax's."""

import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")
pytest.importorskip("optax")

import ampbridge as amp
from ampbridge.adapters import registry
from ampbridge_jax.backend import JaxBackend

# Until the registry knows which packages' classes are a framework's.
getattr(registry, "TRACED_BY", {}).update(dict.fromkeys(("flax", "optax", "ampbridge_jax"), "jax"))
amp.register_backend("jax", JaxBackend)
