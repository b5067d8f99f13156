"""What is JAX's own: the loop over a pure state under ``jax.jit``, and that of modules under ``nnx.jit``.

Both cast by hand, the whole model to one dtype, and scale by hand. Their optimizer is optax's.
"""

from __future__ import annotations

import os

# One thread, as on the other frameworks: two shared cores make the ratios of threads meaningless.
# JAX reads this when it is imported.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from measuring import Maker, Step
from steps import Fresh, Shape, Task, beside, pooled

import ampbridge as amp
import ampbridge_jax

jax.config.update("jax_cpu_enable_async_dispatch", False)  # a second thread; ahead of the backend
DEVICE = jax.default_backend()
# Without AVX512-FP16 float16's products are slow on a CPU, which would hide any overhead.
NAME = "float16" if DEVICE == "gpu" else "bfloat16"
POLICIES = {
    "ampbridge, O1": amp.Policy("O1", NAME),
    "ampbridge, O2": amp.Policy("O2", NAME),
}
device = jax.devices()[0].device_kind if DEVICE != "cpu" else "CPU, 1 thread"
Tensor, add_n, own_scaler = type(jnp.zeros(())), sum, None
FIRST_SCALE, GROWTH = 2.0**16, 2000


def wait_for_all() -> None:
    """What is computed last on a device is ready last."""
    (jnp.zeros(()) + 0).block_until_ready()


wait = None if DEVICE == "cpu" else wait_for_all


class Module(nnx.Module):
    """Called as modules of the other frameworks are."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.forward(x)


def loss_fn(model: nnx.Module, x: jax.Array, y: jax.Array) -> jax.Array:
    """Of float32 logits in either policy, as guides ask."""
    logits = model(x).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def adamw(model: nnx.Module) -> nnx.Optimizer:
    return nnx.Optimizer(model, optax.adamw(1e-4), wrt=nnx.Param)


def task(model: nnx.Module, x: np.ndarray, y: np.ndarray) -> Task:
    return Task(model, loss_fn, (jnp.asarray(x), jnp.asarray(y, jnp.int32)), adamw)


class Block(nnx.Module):
    """One encoder layer: attention and a two-layer MLP, each added and normalised."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
        self.norm_1, self.norm_2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        wide, narrow = (width, 4 * width), (4 * width, width)
        self.mlp = nnx.Sequential(
            nnx.Linear(*wide, rngs=rngs), nnx.relu, nnx.Linear(*narrow, rngs=rngs)
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.norm_1(x + self.attention(x))
        return self.norm_2(x + self.mlp(x))


def transformer(shape: Shape) -> nnx.Module:
    rngs = nnx.Rngs(0)
    encoder = nnx.Sequential(*(Block(shape.width, rngs) for _ in range(shape.layers)))
    return pooled(Module, encoder, nnx.Linear(shape.width, shape.classes, rngs=rngs))


# -- loops


def low(tree: Any, dtype: str) -> Any:
    """The floats in ``tree``, in ``dtype``."""
    return jax.tree.map(
        lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
    )


def finite(grads: Any) -> jax.Array:
    return jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))


def next_scale(scale: jax.Array, good: jax.Array, ok: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A dynamic loss scale's rule."""
    grows = ok & (good + 1 == GROWTH)
    factor = jnp.where(ok, jnp.where(grows, 2.0, 1.0), 0.5)
    return scale * factor, jnp.where(ok & ~grows, good + 1, 0)


def pure_loop(fresh: Fresh, scaled: bool, dtype: str = NAME) -> Step:
    """A jitted function of a pure state, which a step donates; the scale's skip is a condition."""
    model, loss_fn, batch, _ = fresh()
    tx, (graph, params) = optax.adamw(1e-4), nnx.split(model)
    params = nnx.to_pure_dict(params)

    def gradients(params: Any, scale: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def scaled_loss(params: Any) -> tuple[jax.Array, jax.Array]:
            state = nnx.state(model)
            nnx.replace_by_pure_dict(state, low(params, dtype))
            loss = loss_fn(nnx.merge(graph, state), x.astype(dtype), y)
            return loss * scale, loss

        grads, loss = jax.grad(scaled_loss, has_aux=True)(params)
        return jax.tree.map(lambda g: g / scale, grads), loss

    def updated(params: Any, slots: Any, grads: Any) -> Any:
        updates, slots = tx.update(grads, slots, params)
        return optax.apply_updates(params, updates), slots

    @partial(jax.jit, donate_argnums=(0, 1))
    def plain(params: Any, slots: Any, x: jax.Array, y: jax.Array) -> Any:
        grads, loss = gradients(params, jnp.float32(1), x, y)
        return *updated(params, slots, grads), loss

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def scaling(params: Any, slots: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        grads, loss = gradients(params, state[0], x, y)
        ok = finite(grads)
        params, slots = jax.lax.cond(ok, updated, lambda p, s, _: (p, s), params, slots, grads)
        return params, slots, next_scale(*state, ok), loss, ok

    held = [params, tx.init(params)]
    if not scaled:

        def step() -> None:
            held[0], held[1], _ = plain(*held, *batch)

        return step
    held.append((jnp.float32(FIRST_SCALE), jnp.int32(0)))

    def scaled_step() -> None:
        held[0], held[1], held[2], *_ = scaling(*held, *batch)

    return scaled_step


class Scale(nnx.Module):
    """A dynamic loss scale's state."""

    def __init__(self) -> None:
        self.scale = nnx.Variable(jnp.float32(FIRST_SCALE))
        self.good = nnx.Variable(jnp.int32(0))


def nnx_loop(fresh: Fresh, scaled: bool, dtype: str = NAME) -> Step:
    """The loop of flax's guide, a function of modules."""
    model, loss_fn, batch, adamw = fresh()
    optimizer = adamw(model)

    def gradients(model: nnx.Module, scale: Any, x: jax.Array, y: jax.Array) -> Any:
        def scaled_loss(model: nnx.Module) -> tuple[jax.Array, jax.Array]:
            graph, params = nnx.split(model)
            loss = loss_fn(nnx.merge(graph, low(params, dtype)), x.astype(dtype), y)
            return loss * scale, loss

        grads, loss = nnx.grad(scaled_loss, has_aux=True)(model)
        return jax.tree.map(lambda g: g / scale, grads), loss

    def update(model: nnx.Module, optimizer: nnx.Optimizer, grads: Any) -> None:
        optimizer.update(model, grads)

    @nnx.jit
    def plain(model: nnx.Module, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> Any:
        grads, loss = gradients(model, 1.0, x, y)
        update(model, optimizer, grads)
        return loss

    @nnx.jit
    def scaling(model: nnx.Module, optimizer: nnx.Optimizer, state: Scale, *batch: Any) -> Any:
        grads, loss = gradients(model, state.scale[...], *batch)
        ok = finite(grads)
        nnx.cond(ok, update, lambda *_: None, model, optimizer, grads)
        state.scale[...], state.good[...] = next_scale(state.scale[...], state.good[...], ok)
        return loss, ok

    if scaled:
        return partial(scaling, model, optimizer, Scale(), *batch)
    return partial(plain, model, optimizer, *batch)


def loop(fresh: Fresh, make_scaler: Callable[[], amp.GradScaler] | None = None) -> Step:
    """A loop by hand in float32, not compiled, with a scaler of ours or none."""
    model, loss_fn, batch, _ = fresh()
    optimizer = ampbridge_jax.Optimizer(model, optax.adamw(1e-4))
    scaler = amp.GradScaler(enabled=False) if make_scaler is None else make_scaler()

    def step() -> None:
        _, grads = amp.value_and_grad(loss_fn, model, *batch, policy="O0", scaler=scaler)
        scaler.step(optimizer, grads)
        scaler.update()

    return step


def compared(
    fresh: Fresh, scaled: bool = False, policies: Mapping[str, amp.Policy] = POLICIES
) -> dict[str, Maker]:
    more = {"nnx.jit": partial(nnx_loop, fresh, scaled)}
    return beside("jax.jit", partial(pure_loop, fresh, scaled), fresh, policies, scaled, more)


def cases(fresh: Fresh, workload: str) -> Iterator[tuple[str, Mapping[str, Maker]]]:
    float32 = {"ampbridge, O0": amp.Policy("O0")}
    more = {"nnx.jit": partial(nnx_loop, fresh, False, "float32")}
    baseline = partial(pure_loop, fresh, False, "float32")
    yield "float32, compiled", beside("jax.jit", baseline, fresh, float32, False, more)
    for scaled in (False, True):
        title = f"{NAME}, {'with' if scaled else 'no'} scaler, compiled"
        yield title, compared(fresh, scaled)


# -- parts of sweep.py's models


def weight(model: nnx.Module, *shape: int) -> nnx.Param:
    return nnx.Param(jnp.full(shape, 1 / shape[-1]))


def ops(model: Any) -> dict[str, Any]:
    return {
        "relu": jax.nn.relu,
        "linear": lambda x: x @ model.weight[...].T,
        "softmax": jax.nn.softmax,
    }
