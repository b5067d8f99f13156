"""Each function that the op table names for an op, under a policy that lists the op."""

from __future__ import annotations

from functools import reduce

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import jax.scipy.signal
import numpy as np
import pytest
from flax import nnx

import ampbridge as amp
from ampbridge import lens
from ampbridge.policies import op_table
from ampbridge_jax import Stateful
from ampbridge_jax.autocast.rules import known_ops

LOW, FLOAT32 = jnp.zeros((4, 4), jnp.bfloat16), jnp.zeros((4, 4), jnp.float32)
NAMES = {name: ops[0] for name, ops in op_table.native_names("jax_api").items()}
LISTED = {name: op for name, op in NAMES.items() if op in known_ops()}
JOINS = ("jax.numpy.concatenate", "jax.numpy.stack")


def call(name, *args):
    """The function as a program finds it while a region is open."""
    function = reduce(getattr, name.split(".")[1:], jax)
    return function([*args]) if name in JOINS else function(*args)


def takes(name, count):
    """Whether the function takes that many matrices and returns real numbers."""
    if name in JOINS and count == 1:
        return False  # nothing is joined, and no op runs
    try:
        result = jax.eval_shape(lambda *args: call(name, *args), *[FLOAT32] * count)
    except (TypeError, ValueError, IndexError):
        return False
    is_array = isinstance(result, jax.ShapeDtypeStruct)
    return is_array and jnp.issubdtype(result.dtype, jnp.floating)


CALLS = [(n, k) for n in LISTED for k in (1, 2) if takes(n, k)]


def test_most_functions_are_called():
    assert len({name for name, _ in CALLS}) > 100


@pytest.mark.parametrize("name, count", CALLS)
def test_a_listed_op_returns_the_dtype_of_its_rule(name, count):
    for category, given, expected in (("allow", FLOAT32, "bfloat16"), ("deny", LOW, "float32")):
        policy = amp.Policy("O1", "bfloat16", **{category: (LISTED[name],)})

        def in_a_region(*args, policy=policy):
            with amp.autocast(policy, "jax"):
                return call(name, *args)

        result = jax.eval_shape(in_a_region, *[given] * count)
        assert str(result.dtype) == expected, category


def test_an_allowed_function_computes_in_float32_and_rounds_once():
    x = jnp.asarray([0.1, 0.7, 300.0], jnp.float16)
    with amp.autocast(amp.Policy("O1", "float16", allow=("logsumexp", "sum")), "jax"):
        found, total = jax.jit(jax.nn.logsumexp)(x), jnp.sum(jnp.full(4096, 0.1, jnp.float16))
    assert found.dtype == total.dtype == "float16"
    assert float(found) == 300.0
    assert float(total) == float(jnp.float16(4096 * float(jnp.float16(0.1))))


@pytest.mark.parametrize("name, op", [("inv", "inverse"), ("pinv", "pinverse")])
def test_an_allowed_decomposition_computes_in_float32_and_rounds_once(name, op):
    a = np.eye(4, dtype=np.float32) * 2 + np.float32(0.25)
    with amp.autocast(amp.Policy("O1", "float16", allow=(op,)), "jax"):
        found = getattr(jnp.linalg, name)(jnp.asarray(a))
    assert found.dtype == "float16"
    expected = getattr(np.linalg, name)(a.astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=1.01 * 2.0**-11)


@pytest.mark.parametrize(
    "solve", [lambda a: jnp.linalg.inv(a), lambda a: jnp.linalg.solve(a, a[0])]
)
def test_a_linear_solve_that_is_denied_has_the_gradient_of_float32(solve):
    a = (jnp.eye(4) * 2 + 0.25).astype(jnp.bfloat16)
    with amp.autocast(amp.Policy("O1", "bfloat16", deny=("inverse", "solve")), "jax"):
        found = jax.value_and_grad(lambda a: solve(a).sum())(a)
    expected = jax.value_and_grad(lambda a: solve(a).sum())(a.astype(jnp.float32))
    for x, wanted in zip(found, expected, strict=True):
        assert jnp.allclose(x.astype(jnp.float32), wanted, atol=0.004)


def test_a_linear_solve_of_the_user_s_own_may_return_more():
    a, b = jnp.eye(3) * 4, jnp.ones(3)

    def solve(b):
        return jax.lax.custom_linear_solve(
            lambda x: a @ x, b, lambda _, b: (b / 4, {"steps": jnp.int32(7)}), has_aux=True
        )

    with amp.autocast("O1:bfloat16", "jax"):
        x, aux = jax.jit(solve)(b)
    assert (x == 0.25).all()
    assert aux["steps"] == 7


@pytest.mark.parametrize(
    "layer", [nnx.BatchNorm, nnx.LayerNorm, nnx.RMSNorm, nnx.InstanceNorm, nnx.GroupNorm]
)
def test_a_normalization_is_one_op(layer):
    more = {"num_groups": 2} if layer is nnx.GroupNorm else {}
    model, x = layer(4, rngs=nnx.Rngs(0), **more), jnp.ones((2, 3, 4), jnp.float16)
    rows = amp.lens.census(lambda m, x: m(x).sum(), model, x, policy="O1:float16").rows
    op = {"BatchNorm": "batch_norm", "RMSNorm": "rms_norm"}.get(layer.__name__)
    ops = [row.op for row in rows]
    assert (op or layer.__name__.replace("Norm", "").lower() + "_norm") in ops
    assert len(ops) <= 3, ops


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("jax.numpy.fft.")])
def test_a_denied_transform_of_16_bits_is_that_of_float32(name):
    """JAX itself refuses 16 bits in those of real numbers."""
    x = np.random.default_rng(0).normal(size=(4, 8)).astype("f")
    low = jnp.asarray(x, jnp.bfloat16)
    with amp.autocast(amp.Policy("O2", "bfloat16", deny=(NAMES[name],)), "jax"):
        found = call(name, low), jax.jit(lambda x: call(name, x))(low)
    expected = call(name, low.astype(jnp.float32))
    for result in found:
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


MATRIX, VECTOR = jnp.full((2, 2), 1 + 2**-9, jnp.float32), jnp.full(2, 1 + 2**-9, jnp.float32)
"""Numbers that bfloat16 rounds."""


@pytest.mark.parametrize("name", ["dot", "inner"])
@pytest.mark.parametrize("other", [MATRIX, VECTOR], ids=["matrix", "vector"])
def test_a_product_of_matrices_is_matmul_by_any_name(name, other):
    """Also in the lens; but what the user says of the name comes first."""

    def product(scale, x, y):
        return scale(getattr(jnp, name)(x, y)).sum()

    model = Stateful(jnp.ones(1), lambda scale, x: scale * x)
    seen = lens.census(product, model, MATRIX, other, policy="O1:bfloat16", passes=1)
    assert ("bfloat16", "O1 allow") in {(row.dtype, row.rule) for row in seen.rows}
    with amp.autocast("O1:bfloat16", "jax"):
        assert getattr(jnp, name)(MATRIX, other).dtype == "bfloat16"
    for policy in (amp.Policy("O1", "bfloat16", deny=(each,)) for each in (name, "matmul")):
        with amp.autocast(policy, "jax"):
            assert getattr(jnp, name)(MATRIX, other).dtype == "float32"


@pytest.mark.parametrize("name", ["dot", "inner", "vdot"])
def test_a_product_of_vectors_has_a_rule_of_its_own(name):
    with amp.autocast("O1:bfloat16", "jax"):
        found = getattr(jnp, name)(VECTOR, VECTOR)
    assert found.dtype == "float32"
    assert found == 2 * (1 + 2**-9) ** 2


@pytest.mark.parametrize("policy", ["O1:bfloat16", amp.Policy("O2", "float16", lists="torch")])
@pytest.mark.parametrize("name", ["fft", "rfft", "rfftn", "irfft"])
def test_a_transform_that_no_list_denies_takes_low_inputs(name, policy):
    """JAX has none of 16 bits: it computes in float32, and what is real is rounded to its inputs' dtype."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 8)), amp.Policy.parse(policy).dtype)
    expected = getattr(jnp.fft, name)(x.astype(jnp.float32))
    with amp.autocast(policy, "jax"):
        found = getattr(jnp.fft, name)(x)
    if jnp.isrealobj(expected):
        expected = expected.astype(x.dtype)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("within", [lambda f: f, jax.jit], ids=["", "jit"])
@pytest.mark.parametrize("write", ["set", "add", "multiply", "max"])
def test_what_is_written_into_a_low_array_is_not_rounded(write, within):
    def written(value):
        zeros = jnp.zeros((2, 2), jnp.float32)
        low = zeros @ zeros + jnp.ones((2, 2), jnp.bfloat16)
        return getattr(low.at[0, 0], write)(value)

    with amp.autocast("O1:bfloat16", "jax"):
        found, follows = within(written)(MATRIX[0, 0]), written(0.5)
    assert found.dtype == "float32"
    assert found[0, 0] == MATRIX[0, 0] + (write == "add")
    assert follows.dtype == "bfloat16"
