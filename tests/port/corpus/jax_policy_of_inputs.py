"""A policy that casts inputs alone lowers nothing, and a number of micro-batches that grows."""

import jmp
import optax
from flax import nnx

policy = jmp.get_policy("c=bf16")
schedule = optax.piecewise_constant_schedule(1, {100: 4})
model = nnx.Linear(8, 2, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.MultiSteps(optax.adam(1e-3), schedule), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, x, y):
    def loss_fn(model):
        return ((model(policy.cast_to_compute(x)) - y) ** 2).mean()

    grads = nnx.grad(loss_fn)(model)
    optimizer.update(model, grads)


for x, y in batches():
    train_step(model, optimizer, x, y)
