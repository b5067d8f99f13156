"""jmp's policies for modules of a class, and two scales of which the last is used."""

import haiku as hk
import jax
import jax.numpy as jnp
import jmp
import optax
from flax.training.dynamic_scale import DynamicScale

policy = jmp.Policy(jnp.float32, jnp.bfloat16, jnp.float32)
hk.mixed_precision.set_policy(hk.BatchNorm, jmp.Policy(jnp.float32, jnp.float32, jnp.bfloat16))
DynamicScale()
loss_scale = jmp.DynamicLossScale(jnp.asarray(2.0**12), period=500, factor=4, min_loss_scale=jnp.array(2.0))
optimizer = optax.adam(1e-3)


@jax.jit
def train_step(params, opt_state, loss_scale, x, y):
    def loss_fn(params):
        out = net.apply(policy.cast_to_compute(params), x)
        return loss_scale.scale(jnp.mean((policy.cast_to_output(out) - y) ** 2))

    grads = loss_scale.unscale(jax.grad(loss_fn)(params))
    norm = optax.global_norm(grads)
    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), grads)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss_scale.adjust(jmp.all_finite(grads))


for x, y in batches():
    params, opt_state, loss_scale = train_step(params, opt_state, loss_scale, x, y)
