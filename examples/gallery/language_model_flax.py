"""A small GPT in flax that learns bytes, from the help texts that come with Python.

    python language_model_flax.py --policy O1 --log run.csv

"# ampbridge" ends each statement that ampbridge adds; --policy O0 trains in float32.
"""

import argparse
import math
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import ampbridge as amp  # ampbridge

POLICIES = ("O0", "O1", "O1:bfloat16", "O2", "O2:bfloat16")
CONTEXT = 96


class Block(nnx.Module):
    def __init__(self, width, heads, rngs):
        self.heads = heads
        self.norm1, self.norm2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.qkv = nnx.Linear(width, 3 * width, rngs=rngs)
        self.out = nnx.Linear(width, width, rngs=rngs)
        self.widen = nnx.Linear(width, 4 * width, rngs=rngs)
        self.narrow = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x):
        parts = jnp.split(self.qkv(self.norm1(x)), 3 * self.heads, axis=-1)
        q, k, v = (jnp.stack(parts[i::3], axis=-2) for i in range(3))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.reshape(x.shape))
        return x + self.narrow(nnx.gelu(self.widen(self.norm2(x))))


class GPT(nnx.Module):
    def __init__(self, width=128, heads=4, layers=3):
        rngs = nnx.Rngs(0)
        small = nnx.initializers.normal(0.02)
        self.tokens = nnx.Embed(256, width, embedding_init=small, rngs=rngs)
        self.places = nnx.Embed(CONTEXT, width, embedding_init=small, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)

    def __call__(self, x):
        x = self.tokens(x) + self.places(jnp.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.tokens.attend(self.norm(x))  # tied


def loss_fn(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


def bits_per_byte(model, data):
    pieces = data[: len(data) // (CONTEXT + 1) * (CONTEXT + 1)].reshape(-1, CONTEXT + 1)
    loss = nnx.jit(lambda model, p: loss_fn(model, p[:, :-1], p[:, 1:]))
    parts = np.array_split(pieces, len(pieces) // 51)
    return sum(float(loss(model, part)) for part in parts) / len(parts) / math.log(2)


def batches(data, count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        starts = rng.integers(len(data) - CONTEXT, size=(16, 1))
        pieces = data[starts + np.arange(CONTEXT + 1)]
        yield pieces[:, :-1], pieces[:, 1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policy", default="O1", choices=POLICIES)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--log", action="append", default=[], metavar="FILE", help="a CSV file")
    args = parser.parse_args()

    data = np.frombuffer("\n".join(topics.values()).encode(), np.uint8).astype(np.int32)
    train, test = data[:-20_000], data[-20_000:]

    model = GPT()
    warmup = max(1, args.steps // 20)
    rate = optax.warmup_cosine_decay_schedule(0, 2e-3, warmup, args.steps, 2e-4)
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95))
    optimizer = nnx.Optimizer(model, clipped, wrt=nnx.Param)

    step = amp.train_step(loss_fn, model, optimizer, policy=args.policy)  # ampbridge
    log = amp.StepLog(*args.log)  # ampbridge
    for number, (x, y) in enumerate(batches(train, args.steps), 1):
        log(step(x, y))  # ampbridge
        if number % 100 == 0:
            print(f"step {number}  {bits_per_byte(model, test):.2f} bits per byte", flush=True)

    print(f"bits per byte: {bits_per_byte(model, test):.2f}")
    print(f"skipped steps: {log.skipped}")  # ampbridge


if __name__ == "__main__":
    main()
