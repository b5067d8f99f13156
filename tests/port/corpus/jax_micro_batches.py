"""Clipping around MultiSteps, which sums, under flax's scale with every argument."""

import jax.numpy as jnp
import optax
from flax import nnx
from flax.training.dynamic_scale import DynamicScale

model = nnx.Linear(8, 2, dtype=jnp.float16, param_dtype=jnp.float32, rngs=nnx.Rngs(0))
tx = optax.chain(
    optax.clip_by_global_norm(2.0),
    optax.MultiSteps(optax.sgd(0.1), 4, use_grad_mean=False, should_skip_update_fn=optax.skip_not_finite),
)
optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
dynamic_scale = DynamicScale(3.0, 0.25, 100, fin_steps=7, scale=jnp.asarray(2.0**10), minimum_scale=4.0)

for x, y in batches():
    graph, params = nnx.split(model)
    grad_fn = dynamic_scale.value_and_grad(lambda p: ((nnx.merge(graph, p)(x) - y) ** 2).mean())
    dynamic_scale, is_finite, loss, grads = grad_fn(params)
    if is_finite:
        optimizer.update(model, grads)
