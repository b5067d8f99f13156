"""``Policy(masters=..., slots=...)`` on JAX."""

from typing import Any

import numpy as np
import pytest
from kept_masters import KeptSlots

import ampbridge as amp
from ampbridge_testing import import_or_skip

import_or_skip("jax")
from flax import nnx  # noqa: E402

from ampbridge_jax import optimizers  # noqa: E402
from ampbridge_jax.testing import JaxHarness  # noqa: E402


class TestMasters(KeptSlots):
    harness = JaxHarness()

    def moments(self, optimizer: Any) -> list[Any]:
        return [slot[...] for _, slot in optimizers.slots(optimizer) if slot.ndim]

    def refuses_others(self, chosen: amp.Policy) -> bool:
        return chosen.slots != "float32"


@pytest.mark.parametrize("masters, slots", [("stochastic", "float32"), ("stochastic", "bfloat16")])
def test_states_of_nnx_that_are_set_before_decorating_go_on_with_the_same_bits(
    masters: Any, slots: Any
) -> None:
    """The weights in float32, as undecorated modules hold them."""
    tests = TestMasters()
    model, optimizer = tests.made("adamw")
    step = tests.step_of(model, optimizer, masters, slots)
    for _ in range(3):
        step(*tests.batch())
    with amp.undecorated(model, optimizer):
        weights = nnx.to_pure_dict(nnx.state(model))
    slots_of_it = nnx.to_pure_dict(nnx.state(optimizer))
    other, its_optimizer = tests.made("adamw")
    nnx.update(other, weights)
    nnx.update(its_optimizer, slots_of_it)
    resumed = tests.step_of(other, its_optimizer, masters, slots)
    for each in (step, resumed):
        each(*tests.batch())
    assert np.array_equal(tests.values(model), tests.values(other))
    assert np.array_equal(*map(tests.float64_moments, (optimizer, its_optimizer)))
    assert tests.dtypes(optimizer) == tests.dtypes(its_optimizer)
