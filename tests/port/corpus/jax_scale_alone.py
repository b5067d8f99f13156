"""flax's scale, and a model that is cast by hand."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.training.dynamic_scale import DynamicScale

graph, params = nnx.split(nnx.Linear(8, 2, rngs=nnx.Rngs(0)))
tx = optax.adam(1e-3)
slots = tx.init(params)
dynamic_scale = DynamicScale(minimum_scale=1.0)


def loss_fn(params, x, y):
    low = jax.tree.map(lambda each: each.astype(jnp.float16), params)
    return jnp.mean((nnx.merge(graph, low)(x) - y) ** 2)


for x, y in batches():
    total = None
    for part in range(2):
        grad_fn = dynamic_scale.value_and_grad(loss_fn)
        dynamic_scale, is_finite, loss, grads = grad_fn(params, x[part::2], y[part::2])
        total = grads if total is None else jax.tree.map(jnp.add, total, grads)
    updates, new_slots = tx.update(total, slots, params)
    if is_finite:
        params, slots = optax.apply_updates(params, updates), new_slots
