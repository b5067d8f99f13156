"""Steps as functions of a state, in ``jax.jit``, ``lax.scan`` and ``jax.vmap`` of a user's own."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import ampbridge as amp
import ampbridge_jax
from ampbridge_jax import pure, take

pytestmark = pytest.mark.usefixtures("types_of_32_bits")


class Net(nnx.Module):
    """Layers with statistics and random numbers."""

    def __init__(self, seed=0):
        rngs = nnx.Rngs(seed)
        # A bias has no effect ahead of a normalization: Adam would follow how its zeros are rounded.
        self.inner = nnx.Linear(8, 16, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.outer = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x):
        return self.outer(nnx.relu(self.dropout(self.norm(self.inner(x)))))


def loss_fn(model, x, y):
    error = model(x).astype(jnp.float32) - y
    overflow = jnp.mean(error * jnp.where(y > 1e3, jnp.inf, 0.0))
    return jnp.mean(jnp.square(error)) + overflow, {"first": error[0, 0]}


def batches(overflows=(3,)):
    x = np.random.default_rng(0).normal(size=(6, 32, 8)).astype(np.float32)
    y = x[:, :, :1].copy()
    y[list(overflows), 5] = 1e4
    return x, y


def made(seed=0, policy="O1:float16", **options):
    model = Net(seed)
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    if "float16" in str(policy):
        options.setdefault("scaler", amp.GradScaler(2.0**8))
    return amp.train_step(loss_fn, model, optimizer, policy=policy, **options)


def held(step):
    """What a step changes, without the random numbers: a checkpoint has none."""
    values = jax.tree.leaves(nnx.state((step.model, step.optimizer), nnx.Not(nnx.RngState)))
    return [np.asarray(value, np.float32) for value in values]


def equal(one, other):
    return all(map(np.array_equal, one, other))


def epoch(function):
    def run(state, *arrays):
        return jax.lax.scan(lambda state, batch: function(state, *batch), state, arrays)

    return jax.jit(run, donate_argnums=0)


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("O0", {}),
        ("O1:bfloat16", {"clip_norm": 0.5}),
        ("O1:float16", {"clip_norm": 0.5}),
        (amp.Policy("O2", "float16", keep=("outer",)), {}),
        (amp.Policy("O2", "bfloat16", masters=None), {}),
        (amp.Policy("O2", "bfloat16", slots="bfloat16"), {}),
    ],
    ids=str,
)
def test_an_epoch_on_the_device_is_as_many_steps(policy, options, tmp_path):
    step, theirs = made(policy=policy, **options), made(policy=policy, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function, state = pure(step)
        if step.policy.slots == "bfloat16":
            assert any(array.dtype == jnp.bfloat16 for array in state.variables)
        before = held(step)
        state, results = epoch(function)(state, *batches())
    assert equal(held(step), before)
    assert step.state_dict()["step"] == 0
    expected = [theirs(x, y) for x, y in zip(*batches(), strict=True)]
    np.testing.assert_allclose(results.loss, [r.loss for r in expected], rtol=1e-6)
    assert results.scale.tolist() == [r.scale for r in expected]
    assert (
        results.applied.tolist()
        == [r.applied for r in expected]
        == [True] * 3 + [False] + [True] * 2
    )
    assert results.overflow.tolist() == [0, 0, 0, 1, 0, 0]
    np.testing.assert_allclose(results.aux["first"], [r.aux["first"] for r in expected], rtol=1e-5)
    if options:
        np.testing.assert_allclose(results.grad_norm, [r.grad_norm for r in expected], rtol=1e-5)
    else:
        assert results.grad_norm is None
    take(step, state)
    for ours, other in zip(held(step), held(theirs), strict=True):
        np.testing.assert_allclose(ours, other, atol=1e-6)
    assert step.state_dict() == theirs.state_dict()
    assert step.state_dict()["step"] == 6
    step.save(tmp_path / "saved")
    again = made(seed=1, policy=policy, **options)
    again.load(tmp_path / "saved")
    assert equal(held(again), held(step))
    assert again.state_dict() == step.state_dict()
    x, y = batches()
    np.testing.assert_allclose(step(x[0], y[0]).loss, theirs(x[0], y[0]).loss, rtol=1e-6)


def test_several_seeds_are_trained_at_once():
    steps = [made(seed) for seed in range(3)]
    parts = [pure(step) for step in steps]
    states = jax.tree.map(lambda *arrays: jnp.stack(arrays), *[state for _, state in parts])
    function = parts[0][0]
    run = jax.jit(jax.vmap(function, in_axes=(0, None, None)))
    x, y = batches()
    for number in range(4):
        states, result = run(states, x[number], y[number])
        losses = [step(x[number], y[number]).loss for step in steps]
        np.testing.assert_allclose(result.loss, losses, rtol=1e-5)
    assert result.applied.tolist() == [False] * 3
    with pytest.raises(amp.StateError, match=r"Hint: .*take one"):
        take(steps[1], states)
    last = made(5)
    pure(last)
    take(last, jax.tree.map(lambda array: array[1], states))
    for ours, theirs in zip(held(last), held(steps[1]), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert last.scaler.get_scale() == steps[1].scaler.get_scale() == 2.0**7


def test_a_donated_state_that_is_lost_leaves_the_model_as_it_was():
    step = made()
    function, first = pure(step)
    run = jax.jit(function, donate_argnums=0)
    x, y = batches()
    state, _ = run(first, x[0], y[0])
    before = held(step)
    with pytest.raises(amp.StateError, match="was donated"):
        take(step, first)
    with pytest.raises(TypeError, match="dot_general"):
        run(state, x[0][:, :5], y[0])
    take(step, state)
    assert not equal(held(step), before)
    run(state, x[1], y[1])
    assert state.scale.is_deleted()
    assert np.isfinite(step(x[1], y[1]).loss)


def test_the_alarms_of_skipped_steps_come_after_it_was_taken():
    step = made(scaler=amp.GradScaler(2.0**8, warn_after_skips=3))
    function, state = pure(step)
    state, _ = epoch(function)(state, *batches(range(4)))
    take(step, state)
    with pytest.warns(UserWarning, match="3 steps in a row"):
        step.scaler.get_scale()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"accumulate": 2}, "accumulate"),
        ({"on_overflow": "drop_microbatch", "accumulate": 2}, "on_overflow"),
        ({"name_overflows": True}, "name_overflows"),
        ({"policy": amp.Schedule([(0, "O0"), (5, "O1:bfloat16")])}, "a schedule"),
        ({"scheduler": lambda: None}, "scheduler"),
        ({"compile": False}, "compile=False"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_host_takes_part_in_is_refused(options, named):
    with pytest.raises(amp.UnsupportedError, match=rf"{named}.*\nHint: step = amp\.train_step"):
        pure(made(**options))


def test_what_is_no_step_or_no_state_is_refused():
    with pytest.raises(amp.ArgumentTypeError, match=r"not function\.\nHint: ampbridge_jax\.pure"):
        ampbridge_jax.pure(loss_fn)
    step = made()
    with pytest.raises(
        amp.StateError, match=r"Hint: function, state = ampbridge_jax\.pure\(step\)"
    ):
        take(step, nnx.state(step.model))
    _, state = pure(step)
    with pytest.raises(amp.UnsupportedError, match="they would keep values of a trace"):
        jax.jit(lambda state: take(step, state))(state)


def test_a_step_and_a_state_in_the_wrong_order_are_told():
    step = made()
    with pytest.raises(amp.ArgumentTypeError, match=r"Hint: ampbridge_jax\.take\(step, state\)"):
        take(pure(step)[1], step)


def test_all_that_a_call_returned_is_not_its_state():
    step = made()
    _, state = pure(step)
    with pytest.raises(amp.StateError, match=r"first part.\nHint: state, result = function"):
        take(step, (state, "the result"))


def test_a_model_that_has_become_another_is_refused():
    step = made()
    function, state = pure(step)
    step.model.outer = nnx.Linear(16, 1, rngs=nnx.Rngs(1))
    x, y = batches()
    with pytest.raises(amp.StateError, match="other Variables"):
        jax.jit(function)(state, x[0], y[0])
