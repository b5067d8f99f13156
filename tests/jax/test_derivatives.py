"""Derivatives: those that functions bring with them, and those that a loss is made of."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import ampbridge as amp

pytestmark = pytest.mark.usefixtures("types_of_32_bits")

BETWEEN = 1 + 2**-9
"""Rounded to bfloat16 it is 1."""


def own_vjp():
    @jax.custom_vjp
    def product(x, w):
        return x @ w

    product.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))
    return product


def own_jvp():
    @jax.custom_jvp
    def product(x, w):
        return x @ w

    product.defjvp(lambda primals, t: (product(*primals), t[0] @ primals[1] + primals[0] @ t[1]))
    return product


def in_a_loop(product):
    return lambda x, w: lax.scan(lambda _, x: (None, product(x, w)), None, x[None])[1][0]


WITHIN = {"": lambda f: f, "jit": jax.jit, "scan": in_a_loop, "remat": jax.checkpoint}


@pytest.mark.parametrize("within", WITHIN.values(), ids=WITHIN)
@pytest.mark.parametrize("make", [own_vjp, own_jvp])
def test_products_of_a_function_with_its_own_derivative_are_cast(make, within):
    """In its backward pass as well; what it returns has the dtype that it has without a region."""
    seen = []

    def loss(x, w):
        with amp.autocast("O1:bfloat16", "jax"):
            y = within(make())(x, w)
        seen.append(y.dtype)
        return y.sum()

    x = jnp.full((2, 2), BETWEEN)
    value, grads = jax.value_and_grad(loss, argnums=(0, 1))(x, x)
    assert value == 8
    assert all((grad == 2).all() and grad.dtype == jnp.float32 for grad in grads)
    assert seen == [jnp.float32]


def test_a_denied_function_with_its_own_derivative_is_float32_as_a_whole():
    with amp.autocast("O1:bfloat16", "jax"):
        low = jnp.ones((2, 2)) @ jnp.ones((2, 2))
        with amp.autocast("O0", "jax"):
            found = own_vjp()(low, jnp.full((2, 2), BETWEEN))
    assert found.dtype == jnp.float32
    assert (found == 4 * BETWEEN).all()


def cubes(x):
    """The sum of cubes of a product, whose parts are one product of 16 bits."""
    y = x @ jnp.eye(2)
    return lax.mul(lax.mul(y, y), y).astype(jnp.float32).sum()


def second_by_grad(x):
    return jax.grad(lambda x: jax.grad(cubes)(x).sum())(x)


def second_by_jvp(x):
    return jax.jvp(jax.grad(cubes), [x], [jnp.ones_like(x)])[1]


def second_by_linearize(x):
    return jax.linearize(jax.grad(cubes), x)[1](jnp.ones_like(x))


def second_by_hessian(x):
    return jax.hessian(cubes)(x).sum((2, 3))


@pytest.mark.parametrize("within", [lambda f: f, jax.jit], ids=["", "jit"])
@pytest.mark.parametrize(
    "derivative", [second_by_grad, second_by_jvp, second_by_linearize, second_by_hessian]
)
def test_a_loss_is_made_of_second_derivatives(derivative, within):
    """And is differentiated once more: of x ** 3 they are 6 x, and 6."""

    def loss(x):
        with amp.autocast("O1:bfloat16", "jax"):
            second = within(derivative)(x)
        return second.sum(), second

    x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    (_, second), third = jax.value_and_grad(loss, has_aux=True)(x)
    assert second.dtype == third.dtype == jnp.float32
    assert (second == 6 * x).all()
    assert (third == 6).all()
