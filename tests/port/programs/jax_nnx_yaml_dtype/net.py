"""A residual network of nnx; its head computes in float32."""

import jax
import jax.numpy as jnp
from flax import nnx


class Block(nnx.Module):
    def __init__(self, width, dtype, *, rngs):
        self.norm = nnx.LayerNorm(width, dtype=jnp.float32, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, dtype=dtype, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, dtype=dtype, rngs=rngs)

    def __call__(self, x):
        return x + self.down(jax.nn.gelu(self.up(self.norm(x))))


class Net(nnx.Module):
    def __init__(self, width, depth, dtype, *, rngs):
        self.embed = nnx.Embed(1024, width, dtype=dtype, rngs=rngs)
        self.blocks = nnx.List([Block(width, dtype, rngs=rngs) for _ in range(depth)])
        self.head = nnx.Linear(width, 1024, dtype=jnp.float32, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
