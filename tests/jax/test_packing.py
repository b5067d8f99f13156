"""The small arrays of a step are passed in one; nobody sees that, whatever they do between steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import ampbridge as amp
from ampbridge_jax._private import values_of
from ampbridge_jax.step.packing import LARGEST, Held, Packing

pytestmark = pytest.mark.usefixtures("types_of_32_bits")

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)


class Model(nnx.Module):
    """With arrays of all kinds, small and large ones."""

    def __init__(self):
        self.inner = nnx.Linear(4, LARGEST, rngs=nnx.Rngs(0))
        self.outer = nnx.Linear(LARGEST, 2, rngs=nnx.Rngs(1))
        self.shift = nnx.Variable(jnp.zeros(2))
        self.count = nnx.Variable(jnp.uint32(3))
        self.factor = nnx.Variable(2.0)  # no array: with 16 bits it gives 16 bits
        self.rngs = nnx.Rngs(2)

    def __call__(self, x):
        x = self.outer(jnp.tanh(self.inner(x)))
        self.count[...] = self.count[...] + 1
        return (x * self.factor.get_value() + self.shift[...]) * self.count[...]


def loss_fn(model, x):
    return jnp.mean(jnp.square(model(x)))


def made(loss=loss_fn, tx=None):
    model = Model()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2) if tx is None else tx, wrt=nnx.Param)
    return model, optimizer, amp.train_step(loss, model, optimizer, policy="O0")


def bits(*owners):
    found = [
        v[...] for owner in owners for _, v in nnx.iter_graph(owner) if isinstance(v, nnx.Param)
    ]
    return [np.asarray(x).tobytes() for x in found]


def test_what_is_split_is_joined_with_the_same_bits():
    arrays = [
        jnp.asarray([[1.0, -0.0], [np.nan, np.inf]], jnp.float32),
        jnp.ones(LARGEST + 1),
        jnp.uint32(2**32 - 1),
        jnp.ones(3, jnp.bfloat16),
        jnp.arange(-3, 0),
        jnp.zeros((0, 3)),
        jnp.asarray(1.0),  # of no strong type
        jax.random.key(1),
        jnp.asarray([True]),
    ]
    packing = Packing(arrays)
    small, others = packing.split(arrays)
    assert [x.shape for x in small] == [(2, 2), (), (3,), (0, 3)]
    assert [x.shape for x in others] == [(LARGEST + 1,), (3,), (), (), (1,)]
    joined = packing.joined(packing.packed(arrays), others)
    for x, again in zip(arrays, joined, strict=True):
        assert (x.dtype, x.shape) == (again.dtype, again.shape)
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            assert x.weak_type == again.weak_type
            assert np.asarray(x).tobytes() == np.asarray(again).tobytes()


CHANGES = {
    "a small parameter": lambda model, _: setattr(model.outer, "bias", nnx.Param(jnp.ones(2))),
    "its value": lambda model, _: model.outer.bias.set_value(jnp.ones(2)),
    "a part of it": lambda model, _: model.inner.bias.__setitem__(5, 2.0),
    "by a state": lambda model, _: nnx.update(model, {"outer": {"bias": jnp.ones(2)}}),
    "an array of NumPy": lambda model, _: model.shift.set_value(np.ones(2, np.float32)),
    "another shape": lambda model, _: model.shift.set_value(jnp.ones(1)),
    "another dtype": lambda model, _: model.shift.set_value(jnp.ones(2, jnp.bfloat16)),
    "a slot": lambda _, optimizer: optimizer.opt_state[0].count.set_value(jnp.int32(50)),
    "nothing": lambda model, _: None,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_takes_what_somebody_has_written(change):
    """As a step that is new."""
    model, optimizer, step = made()
    for _ in range(2):
        step(X)
    CHANGES[change](model, optimizer)
    expected = float(loss_fn(nnx.clone(model), X))
    again, its_optimizer = nnx.clone(model), nnx.clone(optimizer)
    other = amp.train_step(loss_fn, again, its_optimizer, policy="O0")
    for _ in range(2):
        result, theirs = step(X), other(X)
        assert result.loss == theirs.loss
        assert bits(model) == bits(again)
    assert step(X).loss != pytest.approx(expected)


def test_two_steps_take_turns():
    model, optimizer, step = made()
    other = amp.train_step(loss_fn, model, optimizer, policy="O0", clip_norm=0.1)
    twin, its_optimizer, its_step = made()
    for _ in range(3):
        step(X), its_step(X)
        other(X), amp.train_step(loss_fn, twin, its_optimizer, policy="O0", clip_norm=0.1)(X)
    assert bits(model) == bits(twin)


def test_a_loss_gives_a_variable_another_shape():
    def growing(model, x):
        loss = loss_fn(model, x)
        model.shift.set_value(jnp.ones(2 if model.shift.shape == (1,) else 1))
        return loss

    model, _, step = made(growing)
    shapes = []
    for _ in range(4):
        expected = float(loss_fn(nnx.clone(model), X))
        assert step(X).loss == pytest.approx(expected, rel=1e-5)
        shapes.append(model.shift.shape)
    assert shapes == [(1,), (2,), (1,), (2,)]


def test_what_was_read_before_a_step_can_be_read_after_it():
    model, optimizer, step = made()
    held = [value for owner in (model, optimizer) for value in jax.tree.leaves(nnx.state(owner))]
    for _ in range(2):
        step(X)
        held += jax.tree.leaves(nnx.state(model))
    assert not any(x.is_deleted() for x in held if isinstance(x, jax.Array))


def test_a_number_of_python_stays_one():
    dtypes = []

    def loss(model, x):
        product = model.factor.get_value() * x.astype(jnp.bfloat16)
        dtypes.append(str(product.dtype))
        return loss_fn(model, x) + product.sum()

    _, _, step = made(loss)
    for _ in range(3):
        step(X)
    assert dtypes
    assert set(dtypes) == {"bfloat16"}


def test_arrays_are_packed_anew_only_where_they_are_others():
    model, _, step = made()
    step(X)
    variables = [v for _, v in nnx.iter_graph(model) if isinstance(v, nnx.Variable)]
    held = Held(variables)
    one, _ = held.arguments()
    assert held.arguments()[0] is one
    model.outer.kernel.set_value(model.outer.kernel[...] + 1)  # a large one
    assert held.arguments()[0] is one
    model.outer.bias.set_value(jnp.ones(2))
    assert held.arguments()[0] is not one
    values = held.packing.joined(*held.arguments())
    for x, own in zip(values, values_of(variables), strict=True):
        if not jnp.issubdtype(own.dtype if hasattr(own, "dtype") else float, jax.dtypes.prng_key):
            assert np.array_equal(x, own)
