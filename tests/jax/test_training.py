"""Steps of nnx modules as their users write them, against the same loop by hand."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import ampbridge as amp
import ampbridge_jax
from ampbridge import lens

pytestmark = pytest.mark.usefixtures("types_of_32_bits")
compiled = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


class Net(nnx.Module):
    """Layers with statistics and random numbers."""

    def __init__(self, dtype=None):
        rngs = nnx.Rngs(0)
        self.inner = nnx.Linear(4, 16, rngs=rngs, dtype=dtype)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.calls = nnx.BatchStat(jnp.int32(0))
        self.outer = nnx.Linear(16, 1, rngs=rngs, dtype=dtype)

    def __call__(self, x):
        self.calls[...] += 1
        return self.outer(nnx.relu(self.dropout(self.norm(self.inner(x)))))


def batch():
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    return x, x[:, :1]


def squared(output, y):
    return jnp.mean(jnp.square(output.astype(jnp.float32) - y))


def loss_fn(model, x, y):
    return squared(model(x), y)


def by_hand(steps):
    model = Net()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)
        optimizer.update(model, grads)
        return loss

    return [float(step(model, optimizer, *batch())) for _ in range(steps)], model, optimizer


def test_a_compiled_step_in_float32_is_the_loop_by_hand():
    losses, theirs, their_optimizer = by_hand(5)
    model = Net()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    step = amp.train_step(loss_fn, model, optimizer, policy="O0")
    np.testing.assert_allclose([float(step(*batch()).loss) for _ in range(5)], losses, rtol=1e-5)
    assert int(optimizer.step[...]) == int(their_optimizer.step[...]) == 5
    assert int(model.calls[...]) == int(theirs.calls[...]) == 5
    assert int(model.dropout.rngs.count[...]) == int(theirs.dropout.rngs.count[...])


def test_two_steps_of_a_model_take_turns():
    model = Net()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    steps = [amp.train_step(loss_fn, model, optimizer, policy="O0") for _ in range(2)]
    found = [float(step(*batch()).loss) for step in steps * 2]
    np.testing.assert_allclose(found, by_hand(4)[0], rtol=1e-5)


def test_what_was_read_before_a_step_can_be_read_after_it():
    model = Net()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    step = amp.train_step(loss_fn, model, optimizer, policy="O0")
    held = []
    for _ in range(3):
        held += jax.tree.leaves((nnx.state(model), nnx.state(optimizer)))
        step(*batch())
    assert not any(x.is_deleted() for x in held)


def test_a_number_of_python_in_a_variable_widens_nothing():
    dtypes = []

    def loss(model, x, y):
        dtypes.append((model.factor.get_value() * x.astype(jnp.bfloat16)).dtype)
        return loss_fn(model, x, y)

    model = Net()
    model.factor = nnx.Variable(2.0)
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    step = amp.train_step(loss, model, optimizer, policy="O0")
    for _ in range(3):
        step(*batch())
    assert set(dtypes) == {jnp.dtype("bfloat16")}


@compiled
@pytest.mark.parametrize("policy", ["O1:bfloat16", amp.Policy("O2", "float16", keep=("outer",))])
def test_statistics_and_random_numbers_go_on(policy, compiled):
    model = Net()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    step = amp.train_step(loss_fn, model, optimizer, policy=policy, compile=compiled)
    losses = [float(step(*batch()).loss) for _ in range(8)]
    assert losses[-1] < losses[0]
    assert int(model.calls[...]) == 8
    assert float(jnp.abs(model.norm.mean[...]).sum()) > 0
    assert not isinstance(model.norm.mean[...], jax.core.Tracer)
    assert {v.dtype for v in jax.tree.leaves(nnx.state(model, nnx.Param))} == {jnp.dtype("float32")}


def test_a_step_follows_train_and_eval():
    model = Net()
    optimizer = nnx.Optimizer(model, optax.sgd(0.0), wrt=nnx.Param)
    step = amp.train_step(loss_fn, model, optimizer, policy="O0")
    first = float(step(*batch()).loss)
    model.eval()
    step(*batch())
    count = int(model.dropout.rngs.count[...])
    assert float(step(*batch()).loss) != first
    assert int(model.dropout.rngs.count[...]) == count


def test_a_loss_may_read_the_model_by_another_way():
    model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    step = amp.train_step(lambda _, x, y: loss_fn(model, x, y), model, optimizer, policy="O0")
    losses = [float(step(*batch()).loss) for _ in range(3)]
    assert losses[2] < losses[1] < losses[0]


def test_a_part_of_the_parameters_is_trained():
    model = Net()
    head = nnx.All(nnx.Param, nnx.PathContains("outer"))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=head)
    before = model.inner.kernel[...], model.outer.kernel[...]
    amp.train_step(loss_fn, model, optimizer, policy="O1:bfloat16")(*batch())
    assert bool((model.inner.kernel[...] == before[0]).all())
    assert not bool((model.outer.kernel[...] == before[1]).all())


def test_a_loop_by_hand_hints_at_the_optimizer_that_knows_its_model():
    model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
    scaler = amp.GradScaler(2.0**8)
    _, grads = amp.value_and_grad(loss_fn, model, *batch(), policy="O1", scaler=scaler)
    with pytest.raises(amp.CallOrderError, match=r"Hint: optimizer = ampbridge_jax\.Optimizer"):
        scaler.step(nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), grads)


def test_a_loop_by_hand_steps():
    model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
    scaler, optimizer = amp.GradScaler(2.0**8), ampbridge_jax.Optimizer(model, optax.sgd(0.1))
    losses = []
    for _ in range(3):
        loss, grads = amp.value_and_grad(loss_fn, model, *batch(), policy="O1", scaler=scaler)
        assert scaler.step(optimizer, grads)
        scaler.update()
        losses.append(float(loss))
    assert losses[2] < losses[1] < losses[0]


def test_the_optimizer_of_another_model_is_refused():
    model, other = Net(), nnx.Linear(4, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(other, optax.adam(0.1), wrt=nnx.Param)
    with pytest.raises(amp.ArgumentError, match="made for other parameters"):
        amp.train_step(loss_fn, model, optimizer)


def test_the_optimizer_of_a_model_in_use_is_refused():
    """One without slots fits any model; each would take the other's place."""
    model, other = Net(), Net()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    step = amp.train_step(loss_fn, model, optimizer)
    with pytest.raises(amp.ArgumentError, match="trains another model, which is still there"):
        amp.train_step(loss_fn, other, optimizer)
    assert step(*batch()).applied is not None
    del model, step
    gc.collect()
    amp.train_step(loss_fn, other, optimizer)(*batch())


@compiled
@pytest.mark.parametrize("call", ["step", "value_and_grad"])
def test_in_the_jit_of_a_user_nothing_outside_of_it_is_trained(call, compiled):
    model = Net()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    step = amp.train_step(loss_fn, model, optimizer, policy="O1:float16", compile=compiled)
    step(*batch())
    before = [np.asarray(v) for v in jax.tree.leaves(nnx.state((model, optimizer))) if v.ndim]

    def trained(x, y):
        if call == "step":
            return step(x, y).loss
        return amp.value_and_grad(loss_fn, model, x, y, policy="O1:bfloat16")[0]

    with pytest.raises(amp.UnsupportedError, match=r"they would keep values of a trace"):
        jax.jit(trained)(*batch())
    after = [np.asarray(v) for v in jax.tree.leaves(nnx.state((model, optimizer))) if v.ndim]
    assert all(map(np.array_equal, before, after))
    assert np.isfinite(float(step(*batch()).loss))


@compiled
def test_a_step_of_what_belongs_to_the_jit_of_a_user_is_refused(compiled):
    @nnx.jit
    def trained(model, optimizer, x, y):
        step = amp.train_step(loss_fn, model, optimizer, policy="O1:float16", compile=compiled)
        return step(x, y).loss

    model = Net()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    with pytest.raises(
        amp.UnsupportedError,
        match=r"they would keep values of a trace(.|\n)*amp\.autocast\(policy, 'jax'\)",
    ):
        trained(model, optimizer, *batch())
    assert not isinstance(model.inner.kernel[...], jax.core.Tracer)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_dtype_to_save_in_is_refused_with_the_code_for_it(dtype):
    with pytest.raises(amp.UnsupportedError, match=rf"Hint: .*x\.astype\('{dtype}'\)"):
        amp.decorate(Net(), policy="O2", save_dtype=dtype)


def test_a_dtype_of_jax_is_told_from_a_policy():
    with pytest.raises(amp.ArgumentTypeError) as error:
        amp.Policy.parse(jnp.bfloat16)
    assert str(error.value) == (
        "A policy is a Policy or a string, not jax.numpy.bfloat16.\nHint: policy='O1:bfloat16'"
    )


def test_a_region_casts_in_a_step_of_ones_own():
    model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    low = nnx.Linear(4, 1, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    theirs = nnx.Optimizer(low, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def ours(model, optimizer, x, y):
        def loss(model):
            with amp.autocast("O1:bfloat16", "jax"):
                return loss_fn(model, x, y)

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value

    @nnx.jit
    def by_hand(model, optimizer, x, y):
        value, grads = nnx.value_and_grad(loss_fn)(model, x, y)
        optimizer.update(model, grads)
        return value

    assert ours(model, optimizer, *batch()) == by_hand(low, theirs, *batch())
    assert bool((model.kernel[...] == low.kernel[...]).all())
    # A region adds up the gradient of a bias in float32, and flax in bfloat16.
    np.testing.assert_allclose(model.bias[...], low.bias[...], rtol=2**-7)


class Deep(nnx.Module):
    """Blocks of one kind, run by a loop of nnx with recomputation."""

    def __init__(self):
        rngs = nnx.Rngs(0)

        @nnx.split_rngs(splits=3)
        @nnx.vmap
        def blocks(rngs):
            return nnx.Linear(4, 4, rngs=rngs)

        self.blocks = blocks(rngs)
        self.out = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        run = nnx.scan(
            nnx.remat(lambda carry, block: nnx.relu(block(carry)) + carry),
            in_axes=(nnx.Carry, 0),
            out_axes=nnx.Carry,
        )
        return self.out(run(x, self.blocks))


@pytest.mark.parametrize("keep", [(), ("blocks",)], ids=["", "kept"])
@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_loops_of_nnx_train(policy, keep):
    model = Deep()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    step = amp.train_step(
        loss_fn, model, optimizer, policy=amp.Policy(policy, "bfloat16", keep=keep)
    )
    losses = [float(step(*batch()).loss) for _ in range(5)]
    assert losses[-1] < losses[0]
    assert not isinstance(model.blocks.kernel[...], jax.core.Tracer)


@pytest.mark.filterwarnings("error")
def test_labels_of_64_bits_are_taken_without_a_word():
    def loss_fn(model, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    with jax.enable_x64(False):
        model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
        step = amp.train_step(loss_fn, model, optimizer, policy="O0")
        assert step(batch()[0], np.zeros(32, np.int64)).applied


def test_cross_entropies_of_optax_are_one_op():
    logits, labels = jnp.ones((2, 3), jnp.float16), jnp.zeros(2, jnp.int32)
    losses = (
        lambda: optax.softmax_cross_entropy_with_integer_labels(logits, labels),
        lambda: optax.losses.softmax_cross_entropy(logits, jax.nn.one_hot(labels, 3)),
    )
    allowed = amp.Policy("O1", "bfloat16", allow=("cross_entropy",))
    for policy, dtype in (("O1", jnp.float32), (allowed, jnp.bfloat16)):
        with amp.autocast(policy, "jax"):
            assert [loss().dtype for loss in losses] == [dtype, dtype]


def test_an_eager_op_is_compiled_once_for_all_policies(caplog):
    x = jnp.ones((3, 7, 11))
    with jax.log_compiles():
        for policy in ("O1:bfloat16", "O2:bfloat16", "O1:float16"):
            with amp.autocast(policy, "jax"):
                jax.lax.asinh(x)  # a promoting op: in float32 under each
    assert sum("Compiling jit(asinh)" in record.getMessage() for record in caplog.records) == 1


def test_a_region_leaves_nothing_replaced():
    x = jnp.ones((2, 2), jnp.float32)
    held = jax.nn.gelu, jax.nn.softmax, jax.lax.scan, nnx.Linear.__call__
    with amp.autocast("O1:bfloat16", "jax"):
        assert (x @ x).dtype == jnp.bfloat16
        assert jax.nn.softmax(x @ x).dtype == jnp.float32
        assert jax.nn.gelu(x @ x).dtype == jnp.bfloat16
    assert held == (jax.nn.gelu, jax.nn.softmax, jax.lax.scan, nnx.Linear.__call__)
    assert (x @ x).dtype == jnp.float32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_is_one_op_which_a_cpu_can_run_in_float16(dtype):
    model = nnx.MultiHeadAttention(2, 4, 8, decode=False, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)

    def loss(model, x):
        return jnp.mean(jnp.square(model(x)))

    step = amp.train_step(loss, model, optimizer, policy=f"O1:{dtype}")
    reference = float(jnp.mean(jnp.square(model(x))))
    np.testing.assert_allclose(float(step(x).loss), reference, rtol=0.02)
    ops = {row.op: row.dtype for row in lens.census(loss, model, x, policy=f"O1:{dtype}").rows}
    assert ops["scaled_dot_product_attention"] == dtype
    assert "softmax" not in ops


def test_the_lens_finds_a_number_that_overflows():
    model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
    found = lens.locate(
        lambda m, x, y: loss_fn(m, x, y) * 1e5, model, *batch(), policy="O1:float16"
    )
    assert found is not None


def test_a_mean_over_a_mask_is_denied_as_a_whole():
    x, mask = jnp.full((3,), 60000, jnp.float16), jnp.array([True, True, False])
    with amp.autocast(amp.Policy("O1", "float16", deny=("mean",)), "jax"):
        assert float(jnp.mean(x, where=mask)) == 60000


def test_the_lens_sees_each_turn_of_a_loop():
    model = Deep()
    kernel = model.out.kernel[...]

    @nnx.jit
    def inside(model, x):
        return model.out(x) @ kernel.T

    def loss(model, x, y):
        x = jax.lax.cond(x.sum() < 0, lambda z: z, lambda z: z @ (kernel @ kernel.T), x)
        x = jax.lax.fori_loop(0, 4, lambda i, z: z @ (kernel @ kernel.T), x)
        return loss_fn(model, inside(model, x), y) + jax.vmap(model.out)(x).mean()

    rows = lens.census(loss, model, *batch(), policy="O1:float16").rows
    # The branch 2, the loop 8, the jit 2, three blocks and the layer behind them, the vmap 1.
    products = [row for row in rows if row.op in ("linear", "matmul")]
    assert sum(row.calls for row in products) == 2 + 8 + 2 + 4 + 1
    assert {row.dtype for row in products} == {"float16"}
    assert sum(row.calls for row in products if row.layer == "out") >= 2
    assert lens.ranges(loss, model, *batch(), policy="O1:float16").rows


@pytest.mark.parametrize("within", [lambda f: f, jax.jit], ids=["", "jit"])
def test_each_of_many_goes_on_in_a_loop_as_long_as_it_wants(within):
    """Also over two axes, and with other things in the state."""

    def halved(x, key):
        def turn(state):
            x, turns, key = state
            return x @ (jnp.eye(2) / 2), turns + 1, jax.random.fold_in(key, turns)

        return jax.lax.while_loop(lambda state: state[0].sum() > 1, turn, (x, 0, key))

    x = jnp.asarray([[1, 2], [8, 0]], jnp.float32)[..., None, None] * jnp.ones((1, 2))
    keys = jax.random.split(jax.random.key(0), (2, 2))
    mapped = jax.vmap(jax.vmap(halved))
    with amp.autocast("O1:bfloat16", "jax"):
        found, turns, after = within(mapped)(x, keys)
    assert turns.tolist() == [[1, 2], [4, 0]]
    assert found.sum((-2, -1)).tolist() == [[1, 1], [1, 0]]
    assert (after == mapped(x, keys)[-1]).all()


@jax.custom_vjp
def power(x, kernel):
    return jax.lax.scan(lambda x, _: (x @ kernel, None), x, length=2)[0]


power.defvjp(
    lambda x, kernel: (power(x, kernel), kernel),
    lambda kernel, grad: (grad @ kernel.T @ kernel.T, None),
)


def test_the_lens_sees_loops_in_what_was_traced_before():
    kernel = jnp.eye(4) / 2

    @jax.jit
    def looped(x):
        x = jax.lax.cond(x.sum() < 0, lambda x: x, lambda x: x @ kernel, x)
        x = jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: x @ kernel, x)
        return power(x, kernel)

    def loss(model, x):
        return jax.vmap(looped)(model.scale * x).mean()

    model = nnx.LayerNorm(4, rngs=nnx.Rngs(0))
    x = np.stack([np.ones((2, 4), np.float32), np.zeros((2, 4), np.float32)])
    rows = lens.census(loss, model, x, policy="O1:float16").rows
    (products,) = (row for row in rows if row.op in ("linear", "matmul"))
    assert products.dtype == "float16"
    # The branch 1; the loop from a sum of 4 to one of 1, 2; the power 2.
    assert products.calls == 1 + 2 + 2


class Sowing(nnx.Module):
    """A layer that sows what is inside of it."""

    def __init__(self):
        self.layer = nnx.Linear(4, 1, rngs=nnx.Rngs(0))

    def __call__(self, x):
        self.sow(nnx.Intermediate, "seen", x)
        return self.layer(x)


@compiled
@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
def test_new_variables_are_refused_and_captured_ones_returned(compiled):
    model = Sowing()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def capturing(model, x, y):
        output, seen = nnx.capture(model, nnx.Intermediate)(x)
        return squared(output, y), seen

    step = amp.train_step(loss_fn, model, optimizer, policy="O1:bfloat16", compile=compiled)
    with pytest.raises(
        amp.UnsupportedError, match=r"new Variables: seen\. They.*\nHint: .*capture"
    ):
        step(*batch())
    assert not hasattr(model, "seen")
    step = amp.train_step(capturing, model, optimizer, policy="O1:bfloat16", compile=compiled)
    for _ in range(2):
        (seen,) = jax.tree.leaves(step(*batch()).aux)
        np.testing.assert_array_equal(seen, batch()[0])


@pytest.mark.parametrize("within", [jax.jit, jax.checkpoint, lambda f: f], ids=["jit", "remat", ""])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_logits_of_attention_are_not_rounded(dtype, within):
    """They are about 4096, where numbers of 16 bits are 4 or 32 apart, and differ by about 8."""
    rng = np.random.default_rng(0)
    query, value = np.ones((1, 8, 2, 64)), rng.normal(size=(1, 8, 2, 64))
    key = 64 + rng.integers(-1, 2, size=(1, 8, 2, 64))
    inputs = [jnp.asarray(x, jnp.float32) for x in (query, key, value)]
    with amp.autocast(f"O1:{dtype}", "jax"):
        found = within(lambda *inputs: jax.nn.dot_product_attention(*inputs))(*inputs)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, jax.nn.dot_product_attention(*inputs), atol=0.01)


@compiled
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_gradient_of_a_bias_is_rounded_once(dtype, compiled):
    """XLA's own sum of 2048 terms in 16 bits is three times their unit roundoff off, and more."""
    terms = jnp.asarray(np.random.default_rng(0).uniform(size=(128, 16, 32)), dtype)
    model = nnx.Linear(1, 32, rngs=nnx.Rngs(0))
    step = amp.train_step(
        lambda model, x, terms: (model(x) * terms).sum(),
        model,
        nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param),
        policy=f"O1:{dtype}",
        scaler=amp.GradScaler(1.0) if dtype == "float16" else None,
        compile=compiled,
    )
    step(np.zeros((128, 16, 1), np.float32), terms)
    expected = np.asarray(terms, np.float64).sum(axis=(0, 1))
    np.testing.assert_allclose(-model.bias[...], expected, rtol=float(jnp.finfo(dtype).eps) / 2)


@pytest.mark.parametrize("low", [np.float16, jnp.bfloat16])
def test_where_each_op_has_a_name_xla_has_the_bits_of_a_simulation(low):
    """All is computed in float32 and rounded once: no bias is added, and the activation has no parts."""

    def rounded(x):
        return np.asarray(x).astype(low).astype(np.float64)

    random = np.random.default_rng(0)
    x, slope = (random.standard_normal((64, width), np.float32) for width in (64, 10))
    rngs = nnx.Rngs(0)
    layers = [nnx.Linear(*sizes, use_bias=False, rngs=rngs) for sizes in ((64, 128), (128, 10))]
    model = nnx.Sequential(layers[0], nnx.relu, layers[1])
    _, grads = amp.value_and_grad(
        lambda model, x, slope: (model(x) * slope).sum(),
        model,
        x,
        slope,
        policy=amp.Policy("O1", np.dtype(low).name),
    )
    first, last = (rounded(layer.kernel[...]) for layer in layers)
    before = rounded(rounded(x) @ first)
    into = rounded(rounded(slope) @ last.T) * (before > 0)
    expected = rounded(x).T @ into, np.maximum(before, 0).T @ rounded(slope)
    for grad, exact in zip(grads, expected, strict=True):
        same = np.asarray(grad, np.float64) == rounded(exact)
        assert same.mean() > 0.99  # float32 sums in another order


def test_a_region_stands_around_the_gradient_of_a_recomputed_loop():
    def power(x):
        return jax.lax.scan(lambda state, _: (state @ x, None), x, None, length=3)[0].sum()

    with amp.autocast("O1:bfloat16", "jax"):
        found = jax.grad(jax.checkpoint(power))(jnp.eye(2) / 2)
    assert (found == 4 / 2**3).all()


class Embedding(nnx.Module):
    def __init__(self, param_dtype=jnp.float32):
        rngs = nnx.Rngs(0)
        self.table = nnx.Embed(6, 4, param_dtype=param_dtype, rngs=rngs)
        self.other = nnx.Embed(6, 4, dtype=jnp.float16, rngs=rngs)

    def __call__(self, tokens, seen):
        found = self.table(tokens)
        seen[:] = [str(x.dtype) for x in (found, self.other(tokens))]
        return jnp.sum(found.astype(jnp.float32))


@compiled
@pytest.mark.parametrize("keep, dtype", [((), "bfloat16"), (("table",), "float32")])
def test_an_embedding_returns_the_dtype_of_its_table(keep, dtype, compiled):
    """As one does that nnx makes in that dtype; another dtype that was asked for stays."""
    tokens, seen, expected = jnp.arange(3), [], []
    Embedding(jnp.dtype(dtype))(tokens, expected)
    model = Embedding()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    policy = amp.Policy("O2", "bfloat16", keep=keep)
    step = amp.train_step(
        lambda model, tokens: model(tokens, seen), model, optimizer, policy=policy, compile=compiled
    )
    for _ in range(2):
        step(tokens)
        assert seen == expected == [dtype, "float16"]
    assert model.table.dtype == jnp.float32
