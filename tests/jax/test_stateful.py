"""Models of other packages of JAX, beside the loops that their users write."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import ampbridge as amp
from ampbridge_jax import Stateful

pytestmark = pytest.mark.usefixtures("types_of_32_bits")


def batch():
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    return x, x[:, :1]


def squared(prediction, y):
    return jnp.mean(jnp.square(prediction.astype(jnp.float32) - y))


def of_equinox():
    return eqx.nn.MLP(4, 1, 16, 2, activation=jnp.tanh, key=jax.random.key(0))


def by_hand(tree, loss, steps):
    """The losses and the tree of a jitted loop on a tree of arrays."""
    tx = optax.adam(1e-2)
    trained, rest = eqx.partition(tree, eqx.is_inexact_array)
    state = tx.init(trained)

    @eqx.filter_jit
    def step(trained, state, x, y):
        value, grads = jax.value_and_grad(lambda t: loss(eqx.combine(t, rest), x, y))(trained)
        updates, state = tx.update(grads, state, trained)
        return value, optax.apply_updates(trained, updates), state

    losses = []
    for _ in range(steps):
        value, trained, state = step(trained, state, *batch())
        losses.append(float(value))
    return losses, eqx.combine(trained, rest)


def ours(model, loss, policy, steps):
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    step = amp.train_step(loss, model, optimizer, policy=policy)
    return [float(step(*batch()).loss) for _ in range(steps)]


def test_paths_that_are_spelled_alike_are_told_apart():
    tree = {"a": {"b": jnp.zeros(3)}, "a.b": jnp.ones(2), "c": 1}
    model = Stateful(tree)
    assert jax.tree.map(jnp.shape, model.tree) == jax.tree.map(jnp.shape, tree)
    assert len(set(model.arrays)) == 2


def test_a_model_of_equinox_trains_as_by_hand():
    theirs, trained = by_hand(of_equinox(), lambda m, x, y: squared(jax.vmap(m)(x), y), 6)
    model = Stateful(of_equinox())
    losses = ours(model, lambda m, x, y: squared(jax.vmap(m)(x), y), "O0", 6)
    np.testing.assert_allclose(losses, theirs, rtol=1e-5)
    pairs = [jax.tree.leaves(eqx.filter(tree, eqx.is_array)) for tree in (model.tree, trained)]
    for one, other in zip(*pairs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_its_products_are_low_and_its_arrays_stay_float32(level):
    model, seen = Stateful(of_equinox()), []

    def loss(model, x, y):
        first = model.tree.layers[0]
        seen.append((x @ first.weight.T).dtype)
        return squared(jax.vmap(model)(x), y)

    losses = ours(model, loss, f"{level}:bfloat16", 8)
    assert losses[-1] < losses[0]
    assert set(seen) == {jnp.dtype("bfloat16")}
    floats = jax.tree.leaves(eqx.filter(model.tree, eqx.is_array))
    assert {v.dtype for v in floats} == {jnp.dtype("float32")}


def test_its_parameters_are_named_by_their_paths(tmp_path):
    model = Stateful(of_equinox())
    assert list(model.arrays) == [f"layers.{i}.{n}" for i in range(3) for n in ("weight", "bias")]
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    step = amp.train_step(
        lambda m, x, y: squared(jax.vmap(m)(x), y), model, optimizer, policy="O1:bfloat16"
    )
    step(*batch())
    step.save(tmp_path / "step.npz")
    after = [float(step(*batch()).loss) for _ in range(2)]
    step.load(tmp_path / "step.npz")
    assert [float(step(*batch()).loss) for _ in range(2)] == after


def test_parameters_of_linen_train_as_by_hand():
    net = linen.Sequential([linen.Dense(16), linen.gelu, linen.Dense(1)])
    params = net.init(jax.random.key(0), jnp.ones((1, 4)))["params"]
    theirs, _ = by_hand(params, lambda p, x, y: squared(net.apply({"params": p}, x), y), 6)
    model = Stateful(params, lambda params, x: net.apply({"params": params}, x))
    losses = ours(model, lambda m, x, y: squared(m(x), y), "O0", 6)
    np.testing.assert_allclose(losses, theirs, rtol=1e-5)


def test_linen_through_the_bridge_of_flax_trains():
    net = nnx.bridge.ToNNX(linen.Dense(1), rngs=nnx.Rngs(0)).lazy_init(jnp.ones((1, 4)))
    losses = ours(net, lambda m, x, y: squared(m(x), y), "O2:bfloat16", 6)
    assert losses[-1] < losses[0]


def test_what_is_no_array_of_floating_point_stays():
    model = Stateful({"w": jnp.ones(2), "n": jnp.arange(2), "name": "a"}, lambda tree, x: tree)
    tree = model(1)
    assert tree["name"] == "a"
    assert tree["n"].dtype == jnp.int32
    assert [type(v) for v in model.arrays.values()] == [nnx.Variable, nnx.Param]


def test_a_bare_model_is_refused_with_the_class_that_takes_it():
    model = of_equinox()
    with pytest.raises(amp.ArgumentTypeError, match=r"Hint: .*ampbridge_jax\.Stateful"):
        amp.train_step(lambda m, x, y: m(x), model, optax.adam(1e-2))


def test_arrays_of_numpy_are_trained_as_in_a_loop_by_hand():
    """Parameters that were read from a file."""
    tree = {"w": np.ones((4, 1), np.float32), "b": jnp.zeros(1), "rows": np.arange(4)}
    model = Stateful(tree, lambda tree, x: x[:, tree["rows"]] @ tree["w"] + tree["b"])
    losses = ours(model, lambda m, x, y: squared(m(x), y), "O1:bfloat16", 3)
    assert losses[-1] < losses[0]
    assert [n for n, v in model.arrays.items() if isinstance(v, nnx.Param)] == ["b", "w"]
    assert not np.array_equal(model.tree["w"], tree["w"])
