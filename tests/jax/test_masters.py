"""``Policy(masters=..., slots=...)`` on JAX."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept_masters import FEATURES, HIDDEN, OUTPUTS, KeptSlots, OneArray, policy

import ampbridge as amp
from ampbridge import neutral
from ampbridge_testing import import_or_skip

import_or_skip("jax")
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402

import ampbridge_jax  # noqa: E402
from ampbridge_jax import optimizers  # noqa: E402
from ampbridge_jax.testing import JaxHarness  # noqa: E402


class TestMasters(KeptSlots, OneArray):
    harness = JaxHarness()
    bytes_of_a_weight: Mapping[Any, int] = {"float32": 4, "kahan": 4, "stochastic": 2, None: 2}

    def moments(self, optimizer: Any) -> list[Any]:
        return [slot[...] for _, slot in optimizers.slots(optimizer) if slot.ndim]

    def refuses_others(self, chosen: amp.Policy) -> bool:
        return chosen.slots != "float32"


@pytest.mark.parametrize("masters, slots", [("stochastic", "float32"), ("stochastic", "bfloat16")])
def test_states_of_nnx_that_are_set_before_decorating_go_on_with_the_same_bits(
    masters: Any, slots: Any
) -> None:
    """The weights in float32, as undecorated modules hold them."""
    tests = TestMasters()
    model, optimizer = tests.made("adamw")
    step = tests.step_of(model, optimizer, masters, slots)
    for _ in range(3):
        step(*tests.batch())
    with amp.undecorated(model, optimizer):
        weights = nnx.to_pure_dict(nnx.state(model))
    slots_of_it = nnx.to_pure_dict(nnx.state(optimizer))
    other, its_optimizer = tests.made("adamw")
    nnx.update(other, weights)
    nnx.update(its_optimizer, slots_of_it)
    resumed = tests.step_of(other, its_optimizer, masters, slots)
    for each in (step, resumed):
        each(*tests.batch())
    assert np.array_equal(tests.values(model), tests.values(other))
    assert np.array_equal(*map(tests.float64_moments, (optimizer, its_optimizer)))
    assert tests.dtypes(optimizer) == tests.dtypes(its_optimizer)


@pytest.mark.filterwarnings("ignore:The weights were (in float32 while|put into the Variables)")
@pytest.mark.parametrize("masters, slots", [("stochastic", "bfloat16"), (None, "float32")])
@pytest.mark.parametrize("how", ["with metadata", "values alone"])
@pytest.mark.parametrize("runs", ["compiled", "eager", "by hand", "pure"])
def test_float32_states_that_are_put_into_a_decorated_model_are_low_from_the_next_update_on(
    runs: str, how: str, masters: Any, slots: Any
) -> None:
    """With the bits of a run in which they are put into the undecorated one."""
    tests, chosen = TestMasters(), policy(masters, slots)
    backend = tests.harness.backend
    loaded = neutral.mlp("jax", FEATURES, [HIDDEN], OUTPUTS, seed=1)
    state = nnx.state(loaded) if how == "with metadata" else nnx.to_pure_dict(nnx.state(loaded))

    def loss_fn(model: Any, x: Any, y: Any) -> Any:
        return neutral.mse_loss(neutral.forward(model, x), y)

    def take() -> None:
        parameters = backend.parameters(optimizer)
        if runs == "by hand":
            backend.step(optimizer, parameters, [np.full(p.shape, 1e-3, "f") for p in parameters])
        elif runs == "pure":
            function, variables = ampbridge_jax.pure(step)
            ampbridge_jax.take(step, jax.jit(function)(variables, *tests.batch())[0])
        else:
            step(*tests.batch())

    found = []
    for is_undecorated in (True, False):
        model, optimizer = tests.made("adamw")
        amp.decorate(model, optimizer, chosen)
        step = amp.train_step(
            loss_fn, model, optimizer, policy=chosen, compile=runs in ("compiled", "pure")
        )
        for _ in range(2):  # the second time of what has been traced already
            take()
            with amp.undecorated(model, optimizer) if is_undecorated else nullcontext():
                nnx.update(model, state)
            take()
            assert {str(p.dtype) for p in backend.parameters(model)} == {"bfloat16"}
            assert backend.low_parameters(backend.parameters(model)) == []  # not by the user
        found.append((tests.values(model), tests.float64_moments(optimizer)))
    for expected, values in zip(*found, strict=True):
        assert np.array_equal(values, expected)


def taken(runs: str, policy: amp.Policy | str, model: Any, optimizer: Any) -> Callable[[], None]:
    """A step, compiled or eager, or one of a loop by hand."""
    tests = TestMasters()

    def loss_fn(model: Any, x: Any, y: Any) -> Any:
        return neutral.mse_loss(neutral.forward(model, x), y)

    if runs != "by hand":
        step = amp.train_step(loss_fn, model, optimizer, policy=policy, compile=runs == "compiled")
        return lambda: step(*tests.batch())
    scaler = amp.GradScaler()

    def by_hand() -> None:
        _, grads = amp.value_and_grad(loss_fn, model, *tests.batch(), policy=policy, scaler=scaler)
        scaler.step(optimizer, grads)
        scaler.update()

    return by_hand


def stepped(masters: Any, slots: Any) -> tuple[Any, Any]:
    """A model and an optimizer that are decorated so."""
    tests = TestMasters()
    pair = tests.made("adamw")
    tests.step_of(*pair, masters, slots)(*tests.batch())
    return pair


RUNS = ("compiled", "eager", "by hand")


@pytest.mark.parametrize("runs", RUNS)
def test_float32_slots_that_are_put_into_low_ones_are_rounded_with_a_warning(runs: str) -> None:
    tests = TestMasters()
    _, wide, _ = tests.trained("float32")
    model, optimizer, _ = tests.trained("bfloat16")
    take = taken(runs, policy("float32", "bfloat16"), model, optimizer)
    take()
    nnx.update(optimizer.opt_state, nnx.state(wide.opt_state))
    with pytest.warns(amp.AmpBridgeWarning, match=r"slots are float32.*lost.\nHint: Policy"):
        take()
    assert tests.dtypes(optimizer) == {"bfloat16"}
    take()
    assert tests.dtypes(optimizer) == {"bfloat16"}


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize(
    "masters, slots", [("stochastic", "bfloat16"), ("float32", "bfloat16"), (None, "float32")]
)
def test_a_decorated_model_s_state_that_is_put_into_another_is_float32_there(
    masters: Any, slots: Any, runs: str
) -> None:
    """With the bits of a run that begins from its values, in float32."""
    tests, found = TestMasters(), []
    states = [*map(nnx.state, stepped(masters, slots))]
    for is_marked in (False, True):
        pair = tests.made("adamw")
        take = taken(runs, "O1:bfloat16", *pair)
        take()
        for each, state in zip(pair, states, strict=True):
            if not is_marked:
                state = jax.tree.map(
                    lambda x: x.astype("float32") if x.dtype == "bfloat16" else x,
                    nnx.to_pure_dict(state),
                )
            nnx.update(each, state)
        for _ in range(2):
            take()
            assert {str(p.dtype) for p in optimizers.parameters(pair[0])} == {"float32"}
            assert tests.dtypes(pair[1]) == {"float32"}
        found.append((tests.values(pair[0]), tests.float64_moments(pair[1])))
    for expected, values in zip(*found, strict=True):
        assert np.array_equal(values, expected)


def test_a_decorated_model_s_state_in_one_with_float32_masters_has_these() -> None:
    tests = TestMasters()
    low, _ = stepped(None, "float32")
    model, _, step = tests.trained("float32")
    nnx.update(model, nnx.state(low))
    assert np.array_equal(tests.values(model), tests.values(low))
    step(*tests.batch())
    values = tests.values(model)
    assert not np.array_equal(values, values.astype(jnp.bfloat16).astype("f"))


@pytest.mark.parametrize("masters", ["stochastic", None])
def test_undecorate_keeps_a_float32_state_that_was_put_into_the_model(masters: Any) -> None:
    tests = TestMasters()
    model, optimizer = tests.made()
    amp.decorate(model, optimizer, policy(masters))
    loaded = neutral.mlp("jax", FEATURES, [HIDDEN], OUTPUTS, seed=1)
    nnx.update(model, nnx.state(loaded))
    amp.undecorate(model, optimizer)
    assert np.array_equal(tests.values(model), tests.values(loaded))


@pytest.mark.parametrize("how", ["with metadata", "values alone"])
@pytest.mark.parametrize("runs", [*RUNS, "pure"])
def test_float32_weights_that_are_put_into_low_ones_are_rounded_with_a_warning(
    runs: str, how: str
) -> None:
    """Traces do not know the values, and warn when they are made."""
    tests, chosen = TestMasters(), policy("stochastic")
    model, optimizer = tests.made("adamw")
    amp.decorate(model, optimizer, chosen)
    if runs == "pure":
        step = tests.step_of(model, optimizer, "stochastic")
        take = lambda: jax.eval_shape(*ampbridge_jax.pure(step), *tests.batch())  # noqa: E731
    else:
        take = taken(runs, chosen, model, optimizer)
    take()
    loaded = neutral.mlp("jax", FEATURES, [HIDDEN], OUTPUTS, seed=1)
    state = nnx.state(loaded)
    nnx.update(model, state if how == "with metadata" else nnx.to_pure_dict(state))
    with pytest.warns(amp.errors.AmpBridgeWarning, match="put into the Variables in float32"):
        take()


@pytest.mark.filterwarnings("ignore:The weights were put into the Variables")
@pytest.mark.parametrize("compile", [True, False])
def test_float32_values_that_are_put_into_low_parameters_of_an_optimizer_of_parts_are_low(
    compile: bool,
) -> None:
    """The decoration is the whole model's, which this optimizer does not know."""
    model, loaded = (
        nnx.Sequential(*(nnx.Linear(4, 4, rngs=nnx.Rngs(seed)) for _ in range(2)))
        for seed in (0, 1)
    )
    optimizer = ampbridge_jax.Optimizer(tuple(model.layers), optax.sgd(0.1))
    step = amp.train_step(
        lambda model, x: (model(x) ** 2).mean(),
        model,
        optimizer,
        policy=policy(None),
        compile=compile,
    )
    for _ in range(2):
        step(np.ones((8, 4), "f"))
        nnx.update(model, nnx.to_pure_dict(nnx.state(loaded)))
    step(np.ones((8, 4), "f"))
    assert {str(p.dtype) for p in optimizers.parameters(model)} == {"bfloat16"}


OWN = {"float32": {}, "bfloat16": {"mu_dtype": jnp.bfloat16}}
"""What optax's first moments are in by the user's own doing -> Adam's settings."""


@pytest.mark.parametrize("masters", ["stochastic", None])
@pytest.mark.parametrize("own", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [nnx.Optimizer, nnx.ModelAndOptimizer, ampbridge_jax.Optimizer])
def test_an_optimizer_that_is_made_after_decorating_trains_as_one_made_before(
    kind: Any, own: str, masters: Any, tmp_path: Path
) -> None:
    """With moments in float32, but for those that the user wants otherwise; and a resumed run does too."""
    tests, found = TestMasters(), []
    for is_later in (False, True, None):
        model, optimizer = tests.made()
        if is_later:
            amp.decorate(model, policy=policy(masters))
        optimizer = kind(model, optax.adam(1e-3, **OWN[own]), wrt=nnx.Param)
        step = tests.step_of(model, optimizer, masters)
        if is_later is None:
            step.load(tmp_path)
        else:
            for _ in range(3):
                step(*tests.batch())
            step.save(tmp_path)
        for _ in range(3):
            step(*tests.batch())
        assert tests.dtypes(optimizer) == {"float32", own}
        found.append((tests.values(model), tests.float64_moments(optimizer)))
        amp.undecorate(model, optimizer)
        assert tests.dtypes(optimizer) == {"float32", own}
    for expected, *others in zip(*found, strict=True):
        assert all(np.array_equal(expected, values) for values in others)


def test_an_optimizer_for_a_loop_by_hand_has_float32_moments_of_low_parameters() -> None:
    tests = TestMasters()
    model, _ = tests.made()
    amp.decorate(model, policy=policy("stochastic"))
    optimizer = ampbridge_jax.Optimizer(model, optax.adam(1e-3))
    assert tests.dtypes(optimizer) == {"float32"}
    tests.step_by(optimizer)
    assert tests.dtypes(optimizer) == {"float32"}
