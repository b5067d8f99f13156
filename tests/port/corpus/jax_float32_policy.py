"""jmp's policy of float32, which casts nothing."""

import jax
import jmp
import optax

policy = jmp.get_policy("f32")
optimizer = optax.chain(optax.clip(1.0), optax.adam(1e-3))


def train_step(params, slots, x):
    grads = jax.grad(lambda p: net(policy.cast_to_compute(p), x).mean())(params)
    updates, slots = optimizer.update(grads, slots, params)
    return optax.apply_updates(params, updates), slots


for x in batches():
    params, slots = train_step(params, slots, x)
