"""What the scaler of JAX knows of several optimizers' gradients."""

import itertools

import jax.numpy as jnp
import pytest

import ampbridge as amp
from ampbridge.adapters.backend import FINITE, INF, NAN


@pytest.mark.parametrize("kinds", [*itertools.product([FINITE, INF, NAN], repeat=3)], ids=str)
def test_the_worst_of_several_is_the_same_on_a_device(kinds):
    backend = amp.backend("jax")
    expected = INF if INF in kinds else NAN if NAN in kinds else FINITE
    assert backend.worst(kinds) == expected
    assert int(backend.worst([jnp.int32(kinds[0]), *kinds[1:]])) == expected
