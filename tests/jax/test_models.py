"""Models in the manner of flax's users, with what JAX has of its own, at each level beside float32."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax

import ampbridge as amp

pytestmark = pytest.mark.usefixtures("types_of_32_bits")

MODELS = {}


def normal(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def numbers(most, *shape):
    return np.random.default_rng(most).integers(0, most, shape)


def squared(prediction, target):
    return jnp.mean(jnp.square(prediction.astype(jnp.float32) - target))


def mean_squared(model, x, y):
    return squared(model(x), y)


def cross_entropy(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


def model(*batch, loss=mean_squared, wrt=nnx.Param):
    """Register a class whose instances take ``nnx.Rngs``, or a function that makes a model of them."""

    def registered(make):
        MODELS[make.__name__] = (make, loss, batch, wrt)
        return make

    return registered


@model(normal(8, 10, 4), normal(8, 1))
class Recurrent(nnx.Module):
    """Cells in nnx.RNN, which is a scan."""

    def __init__(self, rngs):
        cells = [cell(4, 8, rngs=rngs) for cell in (nnx.OptimizedLSTMCell, nnx.GRUCell)]
        self.rnn = nnx.Bidirectional(*map(nnx.RNN, cells))
        self.out = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(self.rnn(x)[:, -1])


def poisson(model, x):
    def u(z):
        return model(z[None])[0].sum()

    second = jax.vmap(lambda z: jax.hessian(u)(z).reshape(1))(x)
    return squared(second + model(x), jnp.sin(x)) + 0.1 * squared(jax.vmap(jax.grad(u))(x), x)


@model(normal(16, 1), loss=poisson)
def physics(rngs):
    """A loss of first and second derivatives of the model."""
    return nnx.Sequential(
        nnx.Linear(1, 16, rngs=rngs), jnp.tanh, nnx.Linear(16, 16, rngs=rngs), jnp.tanh,
        nnx.Linear(16, 1, rngs=rngs),
    )  # fmt: skip


@model(normal(16, 8), normal(16, 8))
class Experts(nnx.Module):
    """A mixture of vmapped experts."""

    def __init__(self, rngs):
        self.gate = nnx.Linear(8, 4, rngs=rngs)
        made = nnx.vmap(lambda rngs: nnx.Linear(8, 8, rngs=rngs))
        self.experts = nnx.split_rngs(splits=4)(made)(rngs)

    def __call__(self, x):
        weights, chosen = lax.top_k(nnx.softmax(self.gate(x)), 2)
        outputs = nnx.vmap(lambda expert, x: expert(x), in_axes=(0, None))(self.experts, x)
        return jnp.einsum("bke,ebd->bd", jax.nn.one_hot(chosen, 4) * weights[..., None], outputs)


def evidence(model, x):
    output, mean, log_variance = model(x)
    return squared(output, x) - 0.5 * jnp.mean(1 + log_variance - mean**2 - jnp.exp(log_variance))


@model(normal(16, 12), loss=evidence)
class Variational(nnx.Module):
    """Random numbers inside of the model."""

    def __init__(self, rngs):
        self.encoder, self.decoder = (
            nnx.Linear(12, 8, rngs=rngs),
            nnx.Linear(4, 12, rngs=rngs),
        )
        self.rngs = rngs

    def __call__(self, x):
        mean, log_variance = jnp.split(self.encoder(x), 2, -1)
        noise = jax.random.normal(self.rngs(), mean.shape)
        return self.decoder(mean + jnp.exp(0.5 * log_variance) * noise), mean, log_variance


@model(normal(4, 8, 8, 1), normal(4, 8, 8, 1))
class Segmenting(nnx.Module):
    """Convolutions down and up, three kinds of normalization, dropout."""

    def __init__(self, rngs):
        self.first, self.down = (
            nnx.Conv(1, 8, (3, 3), rngs=rngs),
            nnx.Conv(8, 16, (3, 3), strides=2, rngs=rngs),
        )
        self.up = nnx.ConvTranspose(16, 8, (2, 2), strides=2, rngs=rngs)
        self.out = nnx.Conv(16, 1, (1, 1), rngs=rngs)
        self.groups = nnx.GroupNorm(8, num_groups=2, rngs=rngs)
        self.batch, self.dropout = nnx.BatchNorm(16, rngs=rngs), nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, x):
        first = nnx.silu(self.groups(self.first(x)))
        low = self.dropout(nnx.relu(self.batch(self.down(first))))
        return self.out(jnp.concatenate([first, self.up(low)], -1))


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            4, 16, decode=False, dropout_rate=0.1, deterministic=False, rngs=rngs
        )
        self.wide, self.narrow = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 16, rngs=rngs)

    def __call__(self, x):
        mask = nnx.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + self.attention(self.norm(x), mask=mask)
        return x + self.narrow(nnx.gelu(self.wide(x)))


@model(numbers(32, 4, 6), numbers(32, 4, 6), loss=cross_entropy)
class Language(nnx.Module):
    """A transformer with tied embeddings."""

    def __init__(self, rngs):
        self.embedding = nnx.Embed(32, 16, rngs=rngs)
        self.positions = nnx.Param(jnp.zeros((6, 16)))
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])

    def __call__(self, tokens):
        x = self.embedding(tokens) + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.embedding.attend(x)


@model(normal(8, 8), normal(8, 1))
class Scanned(nnx.Module):
    """Blocks by nnx.scan, with recomputation, in a method under nnx.jit."""

    def __init__(self, rngs):
        made = nnx.vmap(
            lambda rngs: nnx.Sequential(nnx.Linear(8, 8, rngs=rngs), nnx.LayerNorm(8, rngs=rngs))
        )
        self.blocks = nnx.split_rngs(splits=3)(made)(rngs)
        self.out = nnx.Linear(8, 1, rngs=rngs)

    @nnx.jit
    def body(self, x):
        step = nnx.remat(lambda x, block: x + nnx.relu(block(x)))
        return nnx.scan(step, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.blocks)

    def __call__(self, x):
        return self.out(self.body(x))


@model(normal(8, 8), normal(8, 1), wrt=nnx.LoRAParam)
def adapted(rngs):
    """Low-rank adapters alone are trained."""
    return nnx.Sequential(
        nnx.LoRALinear(8, 8, lora_rank=2, rngs=rngs), nnx.relu, nnx.Linear(8, 1, rngs=rngs)
    )


@model(normal(8, 8), normal(8, 1))
class Controlled(nnx.Module):
    """Loops and branches whose ops are low, one layer under two names."""

    def __init__(self, rngs):
        self.inner = self.again = nnx.Linear(8, 8, rngs=rngs)
        self.out = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        kernel = self.inner.kernel[...]
        x = lax.fori_loop(0, 2, lambda i, z: 0.3 * z @ kernel, x)
        count, x = lax.scan(lambda c, _: ((c[0] + 1, c[1] @ kernel), None), (0, x), length=2)[0]
        x = lax.cond(count > 1, self.again, lambda z: 2 * z, x)
        x = lax.switch(count, [lambda z: z, self.inner, lambda z: z @ kernel], x)
        return self.out(
            lax.stop_gradient(lax.while_loop(lambda z: z.sum() < 0, lambda z: z @ kernel, x)) + x
        )


@model(normal(8, 8), normal(8, 1))
class OwnDerivatives(nnx.Module):
    """Functions with derivatives of their own, forward and backward."""

    def __init__(self, rngs):
        self.inner, self.out = nnx.Linear(8, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        @jax.custom_vjp
        def bounded(x):
            return x

        bounded.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1e4, 1e4),))

        @jax.custom_jvp
        def softplus(x):
            return jnp.log1p(jnp.exp(x))

        softplus.defjvp(lambda x, t: (softplus(*x), jax.nn.sigmoid(x[0]) * t[0]))
        return self.out(bounded(softplus(self.inner(x))))


@model(normal(8, 10, 4), normal(8, 1))
class StateSpace(nnx.Module):
    """An associative scan."""

    def __init__(self, rngs):
        self.inner, self.out = nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)
        self.decay = nnx.Param(jnp.zeros(8))

    def __call__(self, x):
        u = self.inner(x)
        a = jnp.broadcast_to(jnp.exp(-jnp.exp(self.decay[...])), u.shape)
        states = lax.associative_scan(
            lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), (a, u), axis=1
        )
        return self.out(states[1]).mean(1)


@model(normal(4, 16, 1), normal(4, 16, 1))
class Spectral(nnx.Module):
    """Complex weights between Fourier transforms."""

    def __init__(self, rngs):
        self.inner, self.out = nnx.Linear(1, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)
        self.weights = nnx.Param(jnp.asarray(0.1 * normal(4, 8, 8), jnp.complex64))

    def __call__(self, x):
        u = self.inner(x)
        modes = jnp.fft.rfft(u.astype(jnp.float32), axis=1)[:, :4]
        modes = jnp.einsum("bki,kio->bko", modes, self.weights[...])
        return self.out(u + jnp.fft.irfft(modes, n=u.shape[1], axis=1))


def on_graph(model, x, source, target, y):
    return squared(model(x, source, target), y)


@model(normal(8, 4), numbers(8, 20), numbers(8, 20), normal(8, 1), loss=on_graph)
class Graph(nnx.Module):
    """Messages gathered and summed over segments."""

    def __init__(self, rngs):
        self.inner, self.out = nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x, source, target):
        hidden = nnx.relu(self.inner(x))
        total = functools.partial(jax.ops.segment_sum, segment_ids=target, num_segments=len(x))
        degree = 1.0 + total(jnp.ones(len(source)))
        return self.out(total(hidden[source]) / jnp.sqrt(degree)[:, None])


def losses_of(name, policy, steps, *, compiled=True):
    make, loss, batch, wrt = MODELS[name]
    model = make(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=wrt)
    scaler = "auto" if policy == "O0" else amp.GradScaler(2.0**6)
    step = amp.train_step(loss, model, optimizer, policy=policy, compile=compiled, scaler=scaler)
    losses = [float(step(*batch).loss) for _ in range(steps)]
    assert not any(isinstance(v, jax.core.Tracer) for v in jax.tree.leaves(nnx.state(model)))
    return losses


@functools.cache
def in_float32(name):
    return losses_of(name, "O0", 5)


def case(name, policy, compiled=True):
    quick = policy == "O1:float16" and compiled and name == "Scanned"
    return pytest.param(name, policy, compiled, marks=() if quick else pytest.mark.slow)


POLICIES = ("O1:float16", "O1:bfloat16", "O2:float16", "O2:bfloat16")
CASES = [case(name, policy) for name in MODELS for policy in POLICIES]
CASES += [case(name, "O1:float16", compiled=False) for name in MODELS]


@pytest.mark.parametrize(("name", "policy", "compiled"), CASES)
def test_it_trains_as_in_float32(name, policy, compiled):
    losses = losses_of(name, policy, 5, compiled=compiled)
    # A product's relative error is 2^-8 or 2^-11; Adam's first steps go by the signs of gradients.
    relative = 0.02 if "bf" in policy else 0.005
    np.testing.assert_allclose(losses, in_float32(name), rtol=relative, atol=0.005)
