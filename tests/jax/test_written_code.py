"""Modules that are written for JAX: scales and skips beside NumPy's loop, and what JAX does not have."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from written_programs import SCALINGS, batches, by_ampbridge

import ampbridge as amp
from ampbridge_port.writers import losses, write

pytestmark = pytest.mark.usefixtures("types_of_32_bits")


def load(recipe: amp.Recipe) -> Any:
    """The module written for a recipe, with its demo."""
    module = ModuleType("written")
    exec(write(recipe, "jax", demo=True), vars(module))
    return module


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_scales_and_skips_are_those_of_numpy(scaling: amp.Scaling) -> None:
    # In bfloat16, in which nothing overflows but the batches that are to.
    recipe = amp.Recipe(amp.Policy("O1", "bfloat16", lists="paddle"), scaling)
    model = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.05), wrt=nnx.Param)
    step = load(recipe).train_step(
        lambda model, x, y: jnp.square(model(x) - y).mean(), model, optimizer
    )
    results = [step(x, y) for x, y in batches((8,), 4)]
    oracle = by_ampbridge(recipe)
    assert [result.scale for result in results] == oracle.scales
    assert [result.applied for result in results] == oracle.applied


@pytest.mark.slow
def test_the_demo_runs(capsys: pytest.CaptureFixture[str]) -> None:
    load(amp.Recipe(amp.Policy("O2", "bfloat16", keep=["head"]), accumulate=2)).main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 100
    assert "reason=None" in lines[-1]


def test_what_jax_does_not_have_is_exchanged_and_told() -> None:
    policy = amp.Policy("O2", "float16", lists="native", execution="simulated")
    recipe = amp.Recipe(policy, amp.Scaling(), save_dtype="float16")
    written = load(recipe).RECIPE
    assert written == amp.Recipe(amp.Policy("O2", "float16"), amp.Scaling())
    told = {loss.key: loss.kind for loss in losses(recipe, "jax")}
    assert told == {
        "policy.lists": "changes",
        "policy.execution": "changes",
        "decorate.save_dtype": "lost",
    }
