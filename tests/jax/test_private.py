"""Names of JAX and flax that are not public: each is there, and does what the adapter takes it for."""

import gc
import weakref

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from ampbridge import UnsupportedError
from ampbridge_jax import _private

pytestmark = pytest.mark.usefixtures("types_of_32_bits")


@pytest.mark.parametrize("name", _private.TABLE)
def test_a_name_is_there(name):
    assert _private.look_up(name) is not None


def test_one_that_has_moved_is_told_with_what_does_not_work(monkeypatch):
    monkeypatch.setattr(_private, "TABLE", {"gone": ("jax._src.core", "nothing works")})
    with pytest.raises(
        UnsupportedError, match=r"no jax\._src\.core\.gone; without it nothing works"
    ):
        _private.look_up("gone")


def test_a_loop_of_another_kind_is_refused():
    with pytest.raises(UnsupportedError, match="no num_consts of a scan; without it no loop"):
        _private.inputs_of_a_loop({"length": 3})


def test_a_variable_holds_another_value():
    variable = nnx.Param(jnp.ones(2))
    _private.fill(variable, jnp.zeros(3))
    assert variable[...].shape == _private.value_of(variable).shape == (3,)


def test_what_is_moved_to_a_trace_may_be_changed_there():
    model = nnx.BatchNorm(2, rngs=nnx.Rngs(0))

    def changed(x):
        levels = [_private.level_of(node) for node in (model, model.mean)]
        for node in (model, model.mean):
            _private.move(node, _private.present_level())
        before = model.mean[...]
        model.mean[...] = x
        model.momentum = 0.5
        model.mean[...] = before
        for node, level in zip((model, model.mean), levels, strict=True):
            _private.move(node, level)
        return x

    with pytest.raises(nnx.errors.TraceContextError if hasattr(nnx, "errors") else Exception):
        jax.jit(lambda x: setattr(model, "momentum", x))(1.0)
    jax.jit(changed)(jnp.ones(2))
    assert model.momentum == 0.5


def test_which_inputs_a_loss_depends_on():
    _, pull = jax.vjp(lambda a, b: (a * 2).sum() + jnp.ones(2).sum(), jnp.ones(2), jnp.ones(2))
    assert _private.used_inputs(pull, 2) == [True, False]


def test_jax_alone_keeps_a_dead_reference_for_each_gradient():
    """So the suite does not count them; once JAX stops, ``leaves_dead_references`` goes."""

    def gradient():
        return jax.vjp(lambda x: jnp.mean(jax.nn.relu(x)), jnp.ones(4))[1](jnp.float32(1))

    def dead_references():
        gc.collect()
        return sum(type(x) is weakref.ref and x() is None for x in gc.get_objects())

    for _ in range(8):
        gradient()
    before = dead_references()
    for _ in range(24):
        gradient()
    assert dead_references() - before >= 20
