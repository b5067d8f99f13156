"""All in jmp's half, with a fixed scale; micro-batches and clipping by hand."""

import jax
import jax.numpy as jnp
import jmp
import optax

policy = jmp.get_policy("half")
loss_scale = jmp.StaticLossScale(jnp.float32(128))
params = policy.cast_to_param(init_params())
optimizer = optax.adam(1e-3)
opt_state = optimizer.init(params)
total = None


def loss_fn(p, x, y):
    out = apply(policy.cast_to_compute(p), policy.cast_to_compute(x))
    return loss_scale.scale(jnp.mean((policy.cast_to_output(out) - y) ** 2))


for i, (x, y) in enumerate(batches()):
    grads = loss_scale.unscale(jax.grad(loss_fn)(params, x, y))
    total = grads if total is None else jax.tree.map(jnp.add, total, grads)
    if (i + 1) % 4 == 0:
        total = jax.tree.map(lambda g: jnp.clip(g / 4, -1.0, 1.0), total)
        updates, opt_state = optimizer.update(total, opt_state, params)
        params = optax.apply_updates(params, updates)
        total = None
