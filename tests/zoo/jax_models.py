"""Models for JAX: modules of flax nnx, models of Equinox, parameters of linen, Haiku and others, made tiny.

Each trains on one batch, which it learns by heart: thirty steps tell then how its loss falls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import attnax
import diffrax
import e3nn_jax as e3nn
import equinox as eqx
import flowjax.distributions
import flowjax.flows
import haiku as hk
import jax
import jax.numpy as jnp
import jraph
import jraphx.nn.models as graphs
import mamba2_jax
import megalodon_jax
import nano_moe
import numpy as np
import numpyro
import optax
import pdequinox.arch
from flax import linen, nnx
from in_jax import Tree
from numpyro import distributions, infer
from numpyro.contrib.module import flax_module
from penzai import pz
from penzai.models.transformer.variants import llamalike_common as llamalike
from zoo import Batch, Specimen

VOCABULARY = 32
KEY = jax.random.key(0)


def random() -> np.random.Generator:
    return np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return random().standard_normal(shape, np.float32)


def tokens(*shape: int) -> np.ndarray:
    return random().integers(1, VOCABULARY, shape)


def mean_squared(model: Any, x: Any, y: Any) -> Any:
    return jnp.mean(jnp.square(model(x) - y))


def own(model: Any, *batch: Any) -> Any:
    """The loss that the model returns."""
    return model(*batch)


def cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def classified(model: Any, x: Any, y: Any) -> Any:
    return cross_entropy(model(x), y)


SPECIMENS: list[Specimen] = []


def specimen(*batch: np.ndarray, loss: Callable[..., Any] = mean_squared) -> Callable[..., Any]:
    """Add what the function returns, a model, under the function's name."""

    def added(build: Callable[[], Any]) -> Callable[[], Any]:
        def always(_: np.random.Generator) -> Batch:
            return batch

        name = build.__name__.replace("_", "-")
        SPECIMENS.append(Specimen(name, build, always, loss))
        return build

    return added


def of_linen(module: Any, *args: Any, **options: Any) -> Tree:
    params = module.init(KEY, *args, **options)
    return Tree(params, lambda tree, *args: module.apply(tree, *args, **options))


def of_haiku(function: Callable[..., Any], *args: Any) -> Tree:
    transformed = hk.without_apply_rng(hk.transform(function))
    return Tree(transformed.init(KEY, *args), transformed.apply)


def mapped(tree: Any) -> Tree:
    """A model of Equinox, which takes one example."""
    return Tree(tree, lambda tree, x: jax.vmap(tree)(x))


# -- modules of nnx


@specimen(tokens(4, 8), loss=lambda model, x: model(x, x)["loss"])
def mamba2() -> nnx.Module:
    """A state space in chunks."""
    sizes = {"hidden_size": 16, "state_size": 8, "head_dim": 8, "chunk_size": 4}
    config = mamba2_jax.Mamba2Config(vocab_size=VOCABULARY, num_hidden_layers=2, **sizes)
    return mamba2_jax.Mamba2ForCausalLM(config, rngs=nnx.Rngs(0))


EDGES = np.stack([random().integers(0, 12, 30), random().integers(0, 12, 30)[::-1]])


def on_graph(model: Any, x: Any, edges: Any, y: Any) -> Any:
    return jnp.mean(jnp.square(model(x, edges) - y))


@specimen(numbers(12, 4), EDGES, numbers(12, 3), loss=on_graph)
def graph_convolutions() -> nnx.Module:
    return graphs.GCN(4, 16, 2, 3, norm="batch_norm", rngs=nnx.Rngs(0))


@specimen(numbers(12, 4), EDGES, numbers(12, 3), loss=on_graph)
def graph_attention() -> nnx.Module:
    return graphs.GAT(4, 16, 2, 3, heads=2, norm="layer_norm", rngs=nnx.Rngs(0))


if sys.version_info < (3, 13):  # as jaxkan says
    from jaxkan.models.KAN import KAN
    from jaxkan.pikan.pde import get_ac_res

    residual = get_ac_res()

    @specimen(numbers(16, 4), numbers(16, 1))
    def kolmogorov_arnold() -> nnx.Module:
        return KAN([4, 8, 1], "chebyshev", {"D": 4})

    @specimen(numbers(16, 2), loss=lambda model, x: jnp.mean(jnp.square(residual(model, x))))
    def physics() -> nnx.Module:
        """A loss of second derivatives, of splines."""
        return KAN([2, 8, 1], "spline", {"k": 3, "G": 4})


@specimen(numbers(4, 8, 8, 1), tokens(4) % 5, loss=classified)
def vision_transformer() -> nnx.Module:
    sizes = {"d_model": 16, "num_heads": 2, "num_layers": 2, "d_ff": 32}
    config = attnax.VisionTransformerConfig(
        image_size=8, patch_size=4, num_channels=1, num_classes=5, **sizes
    )
    return attnax.VisionTransformer(nnx.Rngs(0), config)


@specimen(
    numbers(2, 8, 8), numbers(2, 8, 8), loss=lambda m, x, y: mean_squared(lambda x: m(x)[0], x, y)
)
def mixture_of_experts() -> nnx.Module:
    return attnax.MixtureOfExperts(nnx.Rngs(0), d_model=8, d_ff=16, num_experts=4)


# -- models of Equinox


@specimen(tokens(2, 8), loss=own)
def megalodon() -> Tree:
    """Complex moving averages."""
    config = megalodon_jax.MegalodonConfig(
        vocab_size=VOCABULARY, model_dim=16, num_layers=2, num_heads=2, z_dim=8, value_dim=16,
        ffn_hidden_dim=32, cema_ndim=4, chunk_size=8, norm_num_groups=2,
    )  # fmt: skip
    model = megalodon_jax.MegalodonForCausalLM(config, key=KEY)
    return Tree(model, lambda tree, x: tree.compute_loss(x, x))


@specimen(numbers(4, 1, 32), numbers(4, 1, 32))
def fourier_operator() -> Tree:
    made = pdequinox.arch.ClassicFNO(1, 1, 1, hidden_channels=8, num_modes=4, num_blocks=2, key=KEY)
    return mapped(made)


@specimen(numbers(2, 1, 16), numbers(2, 1, 16))
def u_net() -> Tree:
    made = pdequinox.arch.ModernUNet(
        1, 1, 1, hidden_channels=4, num_levels=2, num_blocks=1, key=KEY
    )
    return mapped(made)


def likelihood(tree: Any, x: Any) -> Any:
    return -tree.log_prob(x).mean()


@specimen(numbers(32, 3), loss=own)
def autoregressive_flow() -> Tree:
    base = flowjax.distributions.Normal(jnp.zeros(3))
    make = flowjax.flows.masked_autoregressive_flow
    return Tree(make(KEY, base_dist=base, flow_layers=2, nn_width=8), likelihood)


@specimen(numbers(32, 3), loss=own)
def spline_flow() -> Tree:
    base = flowjax.distributions.Normal(jnp.zeros(3))
    return Tree(
        flowjax.flows.triangular_spline_flow(KEY, base_dist=base, flow_layers=2), likelihood
    )


class Field(eqx.Module):
    """The vector field of Diffrax' example of a neural differential equation."""

    mlp: eqx.nn.MLP

    def __call__(self, t: Any, y: Any, _: Any) -> Any:
        return self.mlp(y)


@specimen(numbers(8, 2), numbers(8, 5, 2))
def differential_equation() -> Tree:
    def solved(field: Field, y0: Any) -> Any:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(field), diffrax.Tsit5(), 0.0, 1.0, 0.1, y0,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-5),
            saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 1.0, 5)),
        ).ys  # fmt: skip

    field = Field(eqx.nn.MLP(2, 2, 16, 2, activation=jax.nn.softplus, key=KEY))
    return Tree(field, lambda field, x: jax.vmap(lambda y0: solved(field, y0))(x))


class Recurrent(eqx.Module):
    """Equinox' example of a recurrent network."""

    cell: eqx.nn.GRUCell
    out: eqx.nn.Linear

    def __call__(self, x: Any) -> Any:
        def turn(state: Any, item: Any) -> Any:
            return self.cell(item, state), None

        state, _ = jax.lax.scan(turn, jnp.zeros(self.cell.hidden_size), x)
        return self.out(state)


@specimen(numbers(8, 10, 2), numbers(8, 1))
def recurrent() -> Tree:
    one, other = jax.random.split(KEY)
    return mapped(Recurrent(eqx.nn.GRUCell(2, 8, key=one), eqx.nn.Linear(8, 1, key=other)))


# -- parameters of linen and of Haiku


@specimen(tokens(2, 8), tokens(2, 8), loss=own)
def language_model_of_experts() -> Tree:
    config = nano_moe.NanoMoEConfig(
        vocab_size=VOCABULARY, n_layers=2, n_heads=2, d_model=16, d_ff=32, block_size=8
    )
    tree = of_linen(nano_moe.NanoMoE(config), jnp.asarray(tokens(2, 8)))

    def loss(params: Any, x: Any, y: Any) -> Any:
        logits, balance = tree.apply(params, x)
        return cross_entropy(logits, y) + config.aux_loss_coeff * balance

    return Tree(tree.tree, loss)


@specimen(numbers(6, 3), numbers(6, 1))
def equivariant() -> Tree:
    """Spherical harmonics, and layers that turn with them."""

    class Layers(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            y = e3nn.spherical_harmonics("0e + 1o + 2e", x, normalize=False)
            y = e3nn.flax.Linear("8x0e + 4x1o")(y)
            y = e3nn.tensor_square(e3nn.scalar_activation(y, [jax.nn.silu, None]))
            return e3nn.flax.Linear("0e")(y).array

    return of_linen(Layers(), jnp.asarray(numbers(6, 3)))


@specimen(numbers(2, 8, 8, 1), tokens(2) % 5, loss=classified)
def residual_of_haiku() -> Tree:
    def net(x: Any) -> Any:
        x = hk.Conv2D(8, 3)(x)
        for stride in (1, 2):
            block = hk.nets.ResNet.BlockGroup(
                8, 1, stride, {"decay_rate": 0.9}, False, False, True, f"block_{stride}"
            )
            x = block(x, True, False)
        return hk.Linear(5)(x.mean((1, 2)))

    transformed = hk.without_apply_rng(hk.transform_with_state(net))
    params, state = transformed.init(KEY, jnp.asarray(numbers(2, 8, 8, 1)))
    return Tree(params, lambda params, x: transformed.apply(params, state, x)[0])


@specimen(numbers(10, 4, 3), numbers(4, 1))
def lstm_of_haiku() -> Tree:
    def net(x: Any) -> Any:
        core = hk.DeepRNN([hk.LSTM(8), jnp.tanh, hk.LSTM(8)])
        outputs, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
        return hk.Linear(1)(outputs[-1])

    return of_haiku(net, jnp.asarray(numbers(10, 4, 3)))


@specimen(numbers(12, 4), EDGES, numbers(12, 1), loss=on_graph)
def messages() -> Tree:
    """A graph network with attention, of jraph, whose parts are Haiku's."""

    def net(x: Any, edges: Any) -> Any:
        def part(size: int) -> Callable[..., Any]:
            return jraph.concatenated_args(lambda x: hk.nets.MLP([16, size])(x))

        graph = jraph.GraphsTuple(
            nodes=x, edges=x[edges[0]] - x[edges[1]], senders=edges[0], receivers=edges[1],
            globals=jnp.ones((1, 2)), n_node=jnp.array([12]), n_edge=jnp.array([30]),
        )  # fmt: skip
        for _ in range(2):
            graph = jraph.GraphNetwork(part(8), part(8), part(2))(graph)
        return hk.Linear(1)(graph.nodes)

    return of_haiku(net, jnp.asarray(numbers(12, 4)), jnp.asarray(EDGES))


# -- other trees


@specimen(tokens(2, 8), tokens(2, 8), loss=classified)
def llama_of_penzai() -> Tree:
    """Arrays with named axes; layers in one stack."""
    config = llamalike.LlamalikeTransformerConfig(
        num_kv_heads=2, query_head_multiplier=2, embedding_dim=16, projection_dim=4,
        mlp_hidden_dim=32, num_decoder_blocks=2, vocab_size=VOCABULARY, mlp_variant="swiglu",
        tie_embedder_and_logits=False, rope_wavelength=10_000, rms_norm_eps=1e-6,
        attention_type=llamalike.AttentionTypeGlobalCausal(), use_layer_stack=True,
        parameter_dtype=jnp.float32, activation_dtype=jnp.float32,
    )  # fmt: skip
    model = llamalike.build_llamalike_transformer(config, init_base_rng=KEY)
    rest, params = pz.unbind_params(model, freeze=True)

    def apply(params: Any, x: Any) -> Any:
        bound = pz.bind_variables(rest, params)
        out = bound(pz.nx.wrap(x).tag("batch", "seq"))
        return out.unwrap("batch", "seq", "vocabulary")

    return Tree(params, apply)


@specimen(numbers(16, 6), loss=own)
def variational() -> Tree:
    """The negative evidence of a model of NumPyro, by a guide; random numbers from one key."""
    encode = linen.Sequential([linen.Dense(16), linen.softplus, linen.Dense(4)])
    decode = linen.Sequential([linen.Dense(16), linen.softplus, linen.Dense(6)])

    def model(x: Any) -> None:
        net = flax_module("decoder", decode, input_shape=(1, 2))
        with numpyro.plate("rows", len(x)):
            z = numpyro.sample("z", distributions.Normal(jnp.zeros((len(x), 2)), 1.0).to_event(1))
            numpyro.sample("x", distributions.Normal(net(z), 1.0).to_event(1), obs=x)

    def guide(x: Any) -> None:
        net = flax_module("encoder", encode, input_shape=(1, 6))
        mean, scale = jnp.split(net(x), 2, -1)
        with numpyro.plate("rows", len(x)):
            numpyro.sample("z", distributions.Normal(mean, jnp.exp(0.5 * scale)).to_event(1))

    evidence = infer.Trace_ELBO()
    svi = infer.SVI(model, guide, numpyro.optim.Adam(1e-3), evidence)
    params = svi.get_params(svi.init(KEY, jnp.asarray(numbers(16, 6))))
    return Tree(params, lambda params, x: evidence.loss(KEY, params, model, guide, x))
