"""``Policy(float32=...)``: the precision that JAX traces into each product."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import ampbridge as amp

JAX_NAMES = {"ieee": "float32", "tf32": "tensorfloat32"}
PRECISIONS = {"ieee": "HIGHEST", "tf32": "HIGH", "default": None}


def present() -> str | None:
    name: str | None = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return name


def precisions(function: Any, *arguments: Any) -> list[str | None]:
    """Of each product in the trace of ``function``."""
    products = str(jax.make_jaxpr(function)(*arguments)).split("dot_general[")[1:]
    found = (re.search(r"precision=\(Precision.(\w+), Precision.\1\)", each) for each in products)
    return [each and each[1] for each in found]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_region_gives_it_to_its_products_and_to_those_of_their_gradients(precision: Any) -> None:
    policy = amp.Policy("O1", "bfloat16", deny=["matmul"], float32=precision)

    def loss(x: Any) -> Any:
        with amp.autocast(policy, "jax"):
            return (x @ x).sum()

    assert precisions(jax.grad(loss), jnp.eye(2)) == [PRECISIONS[precision]] * 3
    assert present() is None


@pytest.mark.parametrize("precision", JAX_NAMES)
def test_a_step_holds_it_from_the_loss_to_the_update(precision: Any) -> None:
    found: list[tuple[str, str | None]] = []

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        found.append(("update", present()))
        return updates, state

    noting = optax.GradientTransformation(lambda params: optax.EmptyState(), update)
    model = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.chain(noting, optax.sgd(0.1)), wrt=nnx.Param)

    def loss_fn(model: Any, x: Any) -> Any:
        found.append(("loss", present()))
        return (model(x) ** 2).mean()

    policy = amp.Policy("O1", "bfloat16", float32=precision)
    step = amp.train_step(loss_fn, model, optimizer, policy=policy)
    step(jnp.ones((3, 4)))
    traced = len(found)
    step(jnp.ones((3, 4)))
    assert set(found) == {(place, JAX_NAMES[precision]) for place in ("loss", "update")}
    assert len(found) == traced  # nothing is traced anew
    assert present() is None


def test_regions_nest_and_an_exception_leaves_them() -> None:
    found = []
    with amp.autocast(amp.Policy("O0", float32="ieee"), "jax"):
        with pytest.raises(ZeroDivisionError), amp.autocast(amp.Policy(float32="tf32"), "jax"):
            found.append(present())
            raise ZeroDivisionError
        with amp.autocast("O1", "jax"):
            found.append(present())
    assert [*found, present()] == ["tensorfloat32", "float32", None]


def test_tf32_is_not_simulated() -> None:
    policy = amp.Policy("O0", float32="tf32", execution="simulated")
    with pytest.raises(amp.UnsupportedError, match="jax: this adapter cannot simulate TF32"):
        amp.autocast(policy, "jax").__enter__()
