"""Recipes as modules for JAX, which has no mixed precision of its own: with ampbridge, for flax and optax."""

from __future__ import annotations

from collections.abc import Collection

from ampbridge.training.recipe import Recipe
from ampbridge_port.writers import Loss, Target, ampbridge
from ampbridge_port.writers.code import Comments

MODEL = """\
rngs = nnx.Rngs(0)
model = nnx.Sequential(nnx.Linear(32, 64, rngs=rngs), nnx.relu, nnx.Linear(64, 8, rngs=rngs))
optimizer = nnx.Optimizer(model, optax.sgd(0.01), wrt=nnx.Param)
"""

CHANGES = {
    ("lists", "native"): ("torch", "JAX has no lists of its own; those of torch are taken"),
    ("execution", "simulated"): ("auto", "XLA computes in low precision on every device"),
}
"""What a policy may ask for and JAX lacks: what stands for it, and why."""


def _losses(recipe: Recipe, used: Collection[str] | None = None) -> tuple[Loss, ...]:
    found = [
        Loss(f"policy.{key}", "changes", why)
        for (key, value), (_, why) in CHANGES.items()
        if any(getattr(policy, key) == value for policy in recipe.policies)
    ]
    if recipe.save_dtype not in (None, "float32"):
        msg = f"save {recipe.save_dtype} yourself: jax.tree.map(lambda x: x.astype(...), nnx.state(model))"
        found.append(Loss("decorate.save_dtype", "lost", msg))
    return tuple(found)


def _code(recipe: Recipe, comments: Comments, with_demo: bool) -> str:
    if recipe.save_dtype not in (None, "float32"):
        recipe = recipe.replace(save_dtype=None)
    recipe = ampbridge.exchanged(recipe, {pair: value for pair, (value, _) in CHANGES.items()})
    demo = ampbridge.demo(recipe, MODEL, "((model(x) - y) ** 2).mean()") if with_demo else ""
    imports = ["import optax", "from flax import nnx"] if with_demo else []
    return ampbridge.module(recipe, comments, "JAX", demo, imports=imports, lacks=lacks(recipe))


def lacks(recipe: Recipe) -> tuple[str, ...]:
    """All of it."""
    return ("policy.level",) if recipe.scaler is None else ("policy.level", "scaler.init_scale")


TARGET = Target(_code, _code, lacks, _losses, _losses)
