"""What stands behind Adam in a chain clips updates."""

import jax.numpy as jnp
import optax
from flax import nnx


class Net(nnx.Module):
    def __init__(self, width, *, dtype=jnp.bfloat16, rngs):
        self.body = nnx.Linear(8, width, dtype=dtype, param_dtype=None, rngs=rngs)
        self.norm = nnx.LayerNorm(width, dtype=jnp.float32, rngs=rngs)
        self.head = nnx.Linear(width, 2, dtype=jnp.float32, rngs=rngs)

    def __call__(self, x):
        return self.head(self.norm(self.body(x)))


model = Net(16, rngs=nnx.Rngs(0))
tx = optax.chain(optax.adamw(1e-3), optax.clip_by_global_norm(0.5))
tx = optax.apply_if_finite(tx, 5)
tx = optax.chain(tx, optax.masked(optax.clip(0.5), mask))
optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, x, y):
    loss, grads = nnx.value_and_grad(lambda model: ((model(x) - y) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss


for x, y in batches():
    train_step(model, optimizer, x, y)
