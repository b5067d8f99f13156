"""A compiled step sees what has changed in its model since the last one, and traces no more than that."""

from collections import UserDict
from dataclasses import dataclass
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import ampbridge as amp
from ampbridge_jax.model.structure import Structure

pytestmark = pytest.mark.usefixtures("types_of_32_bits")


@dataclass
class Settings:
    factor: float = 1.0


class Scaled(nnx.Module):
    """A layer with all kinds of attributes that its users change."""

    def __init__(self):
        self.inner = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=nnx.Rngs(1))])
        self.factor = 1.0
        self.settings = Settings()
        self.factors, self.more, self.named = [1.0], [], {"a": 1.0}
        self.wrapped = UserDict(a=1.0)
        self.table, self.constant = np.ones(4, np.float32), jnp.ones(4)
        self.kinds = {"a"}

    def __call__(self, x):
        x = self.inner(x)
        for layer in self.layers:
            x = layer(x)
        factor = self.factor * self.settings.factor * self.named.get("a", 3.0) * self.wrapped["a"]
        factor *= sum(self.factors) - sum(self.more) + len(self.kinds)
        return x * factor * self.table * self.constant


def doubled(*args, out_sharding, **kwargs):
    return 2 * jax.lax.dot_general(*args, **kwargs)


def rename(model):
    model.named["b"] = model.named.pop("a")


def move(model):
    model.more.append(model.factors.pop())


CHANGES = {
    "an attribute": lambda model: setattr(model, "factor", 2.0),
    "an attribute deep inside": lambda model: setattr(model.layers[0], "dot_general", doubled),
    "an attribute of a plain object": lambda model: setattr(model.settings, "factor", 2.0),
    "an item of a list": lambda model: model.factors.append(2.0),
    "an item that moves to the next list": move,
    "a value in a dict": lambda model: model.named.update(a=2.0),
    "a name in a dict": rename,
    "a value in another mapping": lambda model: model.wrapped.update(a=2.0),
    "a number in an array of NumPy": lambda model: model.table.fill(2.0),
    "an array": lambda model: setattr(model, "constant", 2 * jnp.ones(4)),
    "an element of a set": lambda model: model.kinds.add("b"),
    "a module in a list": lambda model: model.layers.append(nnx.Linear(4, 4, rngs=nnx.Rngs(2))),
    "a layer": lambda model: setattr(model, "inner", nnx.Linear(4, 4, rngs=nnx.Rngs(3))),
    "a Variable": lambda model: setattr(model.inner, "kernel", nnx.Param(jnp.ones((4, 4)))),
    "a hook of a Variable": lambda model: model.inner.kernel.set_metadata(
        on_get_value=lambda variable, value: 2 * value
    ),
    "a value of another shape": lambda model: model.inner.bias.set_value(jnp.ones(1)),
    "a value that is NumPy's": lambda model: model.inner.bias.set_value(np.ones(4, np.float32)),
    "a part of a value": lambda model: model.inner.kernel.__setitem__((0, 1), 2.0),
    "a value by a state": lambda model: nnx.update(model, {"inner": {"bias": jnp.ones(4)}}),
    "two parameters that become one": lambda model: setattr(
        model.layers[0], "kernel", model.inner.kernel
    ),
}


def loss_fn(model, x):
    return jnp.mean(jnp.square(model(x)))


X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_sees_a_change(change):
    model = Scaled()
    optimizer = nnx.Optimizer(model, optax.sgd(1e-3), wrt=nnx.Param)
    step = amp.train_step(loss_fn, model, optimizer, policy="O0")
    for _ in range(2):
        step(X)
    CHANGES[change](model)
    expected = float(loss_fn(model, X))
    assert float(step(X).loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "first, second", [(2.0, 3.0), ({"a"}, {"a", "b"})], ids=["hashable", "not"]
)
def test_a_step_sees_another_constant_of_its_batch(first, second):
    """Sets have no hash by which a trace could be found again."""

    def of_both(model, x, constant):
        return loss_fn(model, x) * (constant if isinstance(constant, float) else len(constant))

    model = Scaled()
    optimizer = nnx.Optimizer(model, optax.sgd(1e-3), wrt=nnx.Param)
    step = amp.train_step(of_both, model, optimizer, policy="O0")
    for constant in (first, second, first):
        expected = float(of_both(model, X, constant))
        assert float(step(X, constant).loss) == pytest.approx(expected, rel=1e-5)


def test_a_replaced_parameter_is_trained():
    model = Scaled()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    step = amp.train_step(loss_fn, model, optimizer, policy="O0")
    step(X)
    before, start = model.inner.kernel, jnp.ones((4, 4))
    model.inner.kernel, left = nnx.Param(start), before[...]
    for _ in range(2):
        step(X)
    assert bool((before[...] == left).all())
    assert float(jnp.abs(model.inner.kernel[...] - start).max()) > 1e-2


def test_a_step_takes_a_slot_that_somebody_has_written():
    model = Scaled()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.5), wrt=nnx.Param)
    step = amp.train_step(loss_fn, model, optimizer, policy="O0")
    step(X)
    optimizer.opt_state[0].trace["inner"]["bias"].set_value(jnp.full(4, 8.0))
    before, grads = model.inner.bias[...], nnx.grad(loss_fn)(nnx.clone(model), X)
    step(X)
    expected = before - 0.1 * (0.5 * 8 + grads["inner"]["bias"][...])
    np.testing.assert_allclose(model.inner.bias[...], expected, rtol=1e-5)


def test_a_loss_gives_a_variable_another_shape_and_dtype():
    def growing(model, x):
        loss = loss_fn(model, x + model.shift[...])
        model.shift.set_value(jnp.ones(1, jnp.bfloat16) if model.shift.size == 4 else jnp.ones(4))
        return loss

    model = Scaled()
    model.shift = nnx.Variable(jnp.ones(4))
    optimizer = nnx.Optimizer(model, optax.sgd(1e-3), wrt=nnx.Param)
    step = amp.train_step(growing, model, optimizer, policy="O0")
    for shape, dtype in (((1,), "bfloat16"), ((4,), "float32"), ((1,), "bfloat16")):
        expected = float(loss_fn(model, X + 1))
        assert float(step(X).loss) == pytest.approx(expected, rel=1e-5)
        assert (model.shift.shape, model.shift.dtype) == (shape, dtype)


def test_a_step_follows_what_its_optimizer_trains():
    model = Scaled()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    step = amp.train_step(loss_fn, model, optimizer, policy="O0")
    step(X)
    optimizer.wrt = nnx.All(nnx.Param, nnx.PathContains("layers"))
    before = model.inner.kernel[...], model.layers[0].kernel[...]
    step(X)
    assert bool((model.inner.kernel[...] == before[0]).all())
    assert not bool((model.layers[0].kernel[...] == before[1]).all())


def test_what_comes_back_is_not_traced_again():
    traces = []

    def counted(model, x):
        traces.append(model.factor)
        return loss_fn(model, x)

    model = Scaled()
    optimizer = nnx.Optimizer(model, optax.sgd(1e-3), wrt=nnx.Param)
    step = amp.train_step(counted, model, optimizer, policy="O0")
    for factor in (1.0, 2.0, 1.0, 2.0):
        model.factor = factor
        step(X)
        step(X)
    model.inner = nnx.Linear(4, 4, rngs=nnx.Rngs(4))
    step(X)
    assert traces == [1.0, 2.0]


class Remembering(nnx.Module):
    """Keeps an array of its last call."""

    def __init__(self):
        self.inner, self.last = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), nnx.data(None)

    def __call__(self, x):
        self.last = self.inner(x)
        return self.last


def test_an_array_that_a_trace_left_behind_is_no_reason_to_trace_again():
    traces = []

    def counted(model, x):
        traces.append(x)
        return loss_fn(model, x)

    model = Remembering()
    optimizer = nnx.Optimizer(model, optax.sgd(1e-3), wrt=nnx.Param)
    step = amp.train_step(counted, model, optimizer, policy="O0")
    for _ in range(5):
        step(X)
    assert len(traces) == 2  # before there was one, and since


def test_what_has_not_changed_is_current():
    model = nnx.Sequential(*(nnx.Linear(4, 4, rngs=nnx.Rngs(i)) for i in range(3)))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    structure = Structure([model, optimizer])
    assert structure.is_current()
    assert len(structure.variables) == 3 * 2 * 3 + 2  # parameters, two moments, two counters
    model.layers[0].kernel[...] = jnp.zeros((4, 4))
    assert structure.is_current()
    model.layers[1].use_bias = True  # as it was
    assert structure.is_current()


TABLE, KINDS, NAMED = np.ones(4, np.float32), {"a"}, {"a": 1.0}
UNWATCHED = {
    "an array of NumPy": (TABLE, lambda: TABLE.put(0, 2.0)),
    "a set": (KINDS, lambda: KINDS.add("b")),
    "a mapping": (MappingProxyType(NAMED), lambda: NAMED.update(a=2.0)),
}


@pytest.mark.parametrize("kind", UNWATCHED)
def test_what_nobody_can_watch_is_current_while_it_is_as_it_was(kind):
    """Else each step would look through the whole model anew."""
    value, change = UNWATCHED[kind]
    model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    model.settings = nnx.data(value) if kind == "an array of NumPy" else value
    structure = Structure([model])
    assert structure.is_current()
    change()
    assert not structure.is_current()
    assert Structure([model]).key != structure.key


def test_attention_is_current_while_nothing_changes():
    """Its layers hold mappings of flax, which nobody can change."""
    model = nnx.MultiHeadAttention(2, 4, rngs=nnx.Rngs(0), decode=False)
    structure = Structure([model])
    assert structure.is_current()
    model.query.bias.set_metadata("tied", True)
    assert not structure.is_current()
    assert Structure([model]).key != structure.key


def test_arrays_are_the_same_by_themselves():
    model, x = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), jnp.ones(3)
    model.constant = x
    key = Structure([model]).key
    assert Structure([model]).key == key
    model.constant = jax.numpy.ones(3)
    assert Structure([model]).key != key
