"""Programs written for Paddle: run, read back from its functions' arguments, compared with ampbridge.

Paddle switches its AMP off on CPUs. So that it can be seen at work here, ``auto_cast`` and ``decorate``
are stood in for by ampbridge's, under the policy that their arguments stand for, which are recorded;
``GradScaler`` is Paddle's own, made to work on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import paddle
import pytest
import written_programs
from paddle import nn
from paddle_native_scaler import unlocked
from written_programs import (
    CLIPPINGS,
    GUIDE,
    STEPS,
    WIDTH,
    Run,
    assert_trains_as,
    batches,
    scales_by_the_rule,
)

import ampbridge as amp
from ampbridge_paddle.native.native_policy import policy_of_native
from ampbridge_port.writers import losses, write

SCALINGS = {
    **written_programs.SCALINGS,
    "static": amp.Scaling.like("paddle", init_scale=128.0, dynamic=False),
    "until finite": amp.Scaling(
        init_scale=2.0**10, growth_interval=6, backoff_interval=2, backoff_count="until_finite"
    ),
    "in thirds": amp.Scaling(init_scale=1000.0, growth_factor=3.0, growth_interval=2),
}
NATIVE = ("torch", "keras", "paddle, twice", "static")
"""Those that ``paddle.amp.GradScaler`` does."""

NATIVE_SCALER = paddle.amp.GradScaler

pytestmark = [pytest.mark.filterwarnings("ignore:.*without loss scaling"), pytest.mark.slow]


def load(recipe: amp.Recipe, native: bool = True) -> ModuleType:
    """The module written for a recipe, with its demo."""
    module = ModuleType("written")
    exec(
        compile(write(recipe, "paddle", native=native, demo=True), "<written>", "exec"),
        vars(module),
    )
    return module


class Accelerator:
    """What the program has told Paddle."""

    def __init__(self) -> None:
        self.auto_cast: dict[str, Any] = {}
        self.decorate: dict[str, Any] = {}
        self.scaler: Any = None

    def policy(self) -> amp.Policy:
        """What the last region and the model's decoration stand for."""
        decoration = {
            name: value
            for name, value in self.decorate.items()
            if name not in ("save_dtype", "master_grad", "excluded_layers")
        }
        return policy_of_native(
            {"auto_cast": self.auto_cast, "decorate": decoration if decoration else None}
        )

    def region(self, **arguments: Any) -> Any:
        if arguments.get("enable") is False:
            return amp.autocast("O0", backend="paddle")
        self.auto_cast = arguments
        return amp.autocast(self.policy(), backend="paddle")

    def decorated(self, models: Any, optimizers: Any, **arguments: Any) -> tuple[Any, Any]:
        self.decorate = arguments
        self.auto_cast = {"level": arguments["level"], "dtype": arguments["dtype"]}
        return amp.decorate(models, optimizers, self.policy())

    def made(self, **arguments: Any) -> paddle.amp.GradScaler:
        with unlocked():
            self.scaler = NATIVE_SCALER(**arguments)
        return self.scaler


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    accelerator = Accelerator()
    monkeypatch.setattr(paddle.amp, "auto_cast", accelerator.region)
    monkeypatch.setattr(paddle.amp, "decorate", accelerator.decorated)
    monkeypatch.setattr(paddle.amp, "GradScaler", accelerator.made)
    monkeypatch.delattr(paddle.amp.grad_scaler, "float", raising=False)
    return accelerator


# -- the model of the guide, small


def simple_net() -> nn.Layer:
    paddle.seed(7)
    linears = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    return nn.Sequential(linears[0], nn.ReLU(), linears[1], nn.ReLU(), linears[2])


def native_run(module: ModuleType, data: Callable[[], Iterator[Any]] = batches) -> Run:
    """Module and demo as they stand, but for the model and the data."""
    results, steps = [], []
    train = module.train

    def watched(step: Any, batches: Any) -> Iterator[Any]:
        steps.append(step)
        for result in train(step, batches):
            results.append(result)
            yield result

    module.make_model, module.batches, module.train = simple_net, data, watched
    module.main()
    amp.undecorate(steps[0].model, steps[0].optimizer)
    return Run(
        [float(result.loss) for result in results],
        [result.scale for result in results],
        [result.applied for result in results],
        [result.overflowed for result in results],
        [p.numpy() for p in steps[0].model.parameters()],
    )


def ampbridge_run(recipe: amp.Recipe, data: Callable[[], Iterator[Any]] = batches) -> Run:
    """The same training by ``train_step``."""
    model = simple_net()
    optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
    mse = nn.MSELoss()
    step = amp.train_step(lambda m, x, y: mse(m(x), y), model, optimizer, recipe=recipe)
    results = [step(x, y) for x, y in data()]
    run = Run(
        [result.loss for result in results],
        [result.scale for result in results],
        [result.applied for result in results],
        [result.reason in ("inf", "nan") for result in results],
        [],
    )
    amp.undecorate(model, optimizer)
    return run._replace(weights=[p.numpy() for p in model.parameters()])


# -- Paddle's guide


@pytest.mark.parametrize("level", GUIDE)
def test_the_guide_s_recipes_train_as_with_ampbridge(told: Accelerator, level: str) -> None:
    recipe = GUIDE[level]

    def data() -> Iterator[Any]:  # of micro-batches enough for a dozen steps, two of which overflow
        return batches(120, (3, 64)) if level == "accumulation" else batches()

    run = native_run(load(recipe), data)
    assert told.policy() == recipe.policy
    assert run.scale == scales_by_the_rule(recipe, run)
    assert any(run.overflowed)
    assert_trains_as(run, ampbridge_run(recipe, data))


@pytest.mark.filterwarnings("ignore:.*auto_cast can only be enabled", "ignore:.*only be enabled on")
@pytest.mark.parametrize("level", ("O1", "O2"))
def test_on_a_cpu_paddle_runs_it_in_float32(level: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """With Paddle's own functions, which do nothing here."""
    policy = amp.Policy(level, lists="paddle", keep=["4"], output_dtype="float16")
    module = load(amp.Recipe(policy, amp.Scaling.like("paddle")))
    module.main()
    assert capsys.readouterr().out.count("scale 1, applied True") == 100
    run = native_run(module, lambda: batches(spikes=()))
    expected = ampbridge_run(amp.Recipe("O0"), lambda: batches(spikes=()))
    assert_trains_as(run, expected)


def test_the_program_with_ampbridge_runs(capsys: pytest.CaptureFixture[str]) -> None:
    policy = amp.Policy("O2", lists="paddle")
    recipe = amp.Recipe(policy, amp.Scaling(), save_dtype="float16", clip_norm=1.0)
    module = load(recipe, native=False)
    assert recipe == module.RECIPE
    module.main()
    assert capsys.readouterr().out.count("applied=True") == 100


# -- the scale


@pytest.mark.parametrize("name", SCALINGS)
def test_scales_and_skips_follow_the_rule(told: Accelerator, name: str) -> None:
    recipe = amp.Recipe(amp.Policy("O1", lists="paddle"), SCALINGS[name])
    module = load(recipe)
    assert hasattr(module, "LossScale") == (name not in NATIVE)
    run = native_run(module)
    assert (told.scaler is not None) == (name in NATIVE)
    assert run.scale == scales_by_the_rule(recipe, run)
    assert True in run.overflowed
    assert_trains_as(run, ampbridge_run(recipe))


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("on_overflow", ("drop_step", "drop_microbatch"))
@pytest.mark.parametrize("level", ("O1", "O2"))
@pytest.mark.parametrize("scaling", ("torch", "fleet"))
def test_accumulation_drops_what_the_recipe_says(
    on_overflow: Any, scaling: str, level: Any
) -> None:
    policy = amp.Policy(level, lists="paddle")
    recipe = amp.Recipe(policy, SCALINGS[scaling], 3, on_overflow=on_overflow)
    run = native_run(load(recipe))
    assert run.scale == scales_by_the_rule(recipe, run)
    assert_trains_as(run, ampbridge_run(recipe), rel=2e-5)


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("accumulate", (1, 3))
def test_without_scaling_overflow_is_skipped_as_well(accumulate: int) -> None:
    recipe = amp.Recipe(amp.Policy("O1", lists="paddle"), None, accumulate)
    run = native_run(load(recipe))
    assert set(run.scale) == {1.0}
    assert_trains_as(run, ampbridge_run(recipe))


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("on_overflow", ("drop_step", "drop_microbatch"))
@pytest.mark.parametrize(
    "clipping, scaling",
    (
        ("clip_norm", "torch"),
        ("clip_norm", "fleet"),
        ("clip_each_norm", "fleet"),
        ("clip_value", "torch"),
    ),
)
@pytest.mark.parametrize("accumulate", (1, 3))
def test_gradients_are_clipped_unscaled(
    clipping: str, scaling: str, accumulate: int, on_overflow: Any
) -> None:
    limit: dict[str, Any] = {clipping: CLIPPINGS[clipping]}
    policy = amp.Policy("O1", lists="paddle")
    recipe = amp.Recipe(policy, SCALINGS[scaling], accumulate, on_overflow=on_overflow, **limit)
    run, expected = native_run(load(recipe)), ampbridge_run(recipe)
    assert run.applied == expected.applied
    start = [p.numpy() for p in simple_net().parameters()]
    for value, wanted, first in zip(run.weights, expected.weights, start, strict=True):
        np.testing.assert_allclose(value - first, wanted - first, rtol=0.02, atol=1e-6)


@pytest.mark.usefixtures("told")
def test_a_run_that_only_skips_warns_and_stops() -> None:
    module = load(amp.Recipe("O1", amp.Scaling(warn_after_skips=5, max_consecutive_skips=8)))
    with (
        pytest.warns(UserWarning, match="5 steps in a row were skipped"),
        pytest.raises(RuntimeError, match="8 steps in a row"),
    ):
        native_run(module, lambda: batches(spikes=tuple(range(10, STEPS))))


@pytest.mark.usefixtures("told")
def test_overflow_at_the_smallest_scale_stops_where_the_recipe_says_so() -> None:
    module = load(amp.Recipe("O1", amp.Scaling.like("deepspeed", init_scale=1.0)))
    with pytest.raises(RuntimeError, match="overflow at the smallest loss scale"):
        native_run(module, lambda: batches(spikes=tuple(range(10))))


# -- what native objects say


def test_the_scaler_has_the_recipe_s_numbers(told: Accelerator) -> None:
    scaling = amp.Scaling.like(
        "paddle", init_scale=2.0**12, growth_factor=3.0, growth_interval=123, backoff_interval=2
    )
    recipe = amp.Recipe(amp.Policy("O1", lists="paddle"), scaling)
    native_run(load(recipe), lambda: batches(1, ()))
    assert told.scaler.get_init_loss_scaling() == 2.0**12
    assert told.scaler.get_incr_ratio() == 3.0
    assert told.scaler.get_decr_ratio() == 0.5
    assert told.scaler.get_incr_every_n_steps() == 123
    assert told.scaler.get_decr_every_n_nan_or_inf() == 2
    assert told.scaler.is_use_dynamic_loss_scaling()


@pytest.mark.parametrize(
    "policy",
    (
        amp.Policy("O1", "bfloat16", lists="paddle"),
        amp.Policy("O2", "bfloat16", lists="paddle", master_weights=False),
        amp.Policy(
            "O1", lists="paddle", allow=["batch_norm", "add"], deny=["sum", "conv1d", "conv2d"]
        ),
        amp.Policy("O2", lists="paddle", deny=["linear", "softmax"]),
    ),
)
def test_the_policy_is_that_of_paddle_s_functions(
    told: Accelerator, policy: amp.Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decorate(models: Any, optimizers: Any, **arguments: Any) -> tuple[Any, Any]:
        told.decorate = arguments
        return models, optimizers

    def auto_cast(**arguments: Any) -> Any:
        told.auto_cast = arguments
        return amp.autocast("O0", backend="paddle")

    monkeypatch.setattr(paddle.amp, "decorate", decorate)
    monkeypatch.setattr(paddle.amp, "auto_cast", auto_cast)
    decorated = {"save_dtype": "float32", "master_grad": True} if policy.level == "O2" else {}
    module = load(amp.Recipe(policy, **decorated))
    native_run(module, lambda: batches(1, ()))
    assert told.policy() == policy
    assert decorated.items() <= told.decorate.items()
    assert bool(told.decorate) == (policy.level == "O2")


class Recorder(nn.Layer):
    """Layers of which it is seen what they compute in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 8)
        self.seen: dict[str, bool] = {}

    def forward(self, x: paddle.Tensor) -> Any:
        self.seen["first"] = is_low(x := self.first(x))
        self.seen["head"] = is_low(x := self.head(x))
        return x


def is_low(x: paddle.Tensor) -> bool:
    """Whether it holds nothing that float16 cannot."""
    return bool((x == x.astype("float16").astype("float32")).all())


@pytest.mark.parametrize("level", ("O1", "O2"))
def test_kept_layers_are_float32(told: Accelerator, level: Any) -> None:
    model = Recorder()
    policy = amp.Policy(level, lists="paddle", keep=["head"])
    module = load(amp.Recipe(policy, None))
    module.make_model = lambda: model
    module.batches = lambda: [(np.ones((4, 8), np.float32) / 3, np.zeros((4, 8), np.float32))]
    module.main()
    assert model.seen == {"first": True, "head": False}
    if level == "O2":
        assert told.decorate["excluded_layers"] == [model.head]


def test_a_kept_layer_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="'head' names no layer"):
        native_run(load(amp.Recipe(amp.Policy("O1", keep=["head"]))))


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("native", (True, False))
@pytest.mark.parametrize("level", ("O1", "O2"))
def test_a_program_has_layers_of_the_names_that_it_keeps(
    level: Any, native: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = amp.Policy(level, "bfloat16", lists="paddle", keep=["head", "decoder.*"])
    load(amp.Recipe(policy), native).main()
    assert capsys.readouterr().out.count("pplied") == 100


# -- schedules


def test_a_schedule_by_steps(told: Accelerator) -> None:
    lists = amp.Policy("O1", lists="paddle", keep=["4"], deny=["relu"])
    steps = [(0, "O0"), (20, lists), (40, amp.Policy("O1", "bfloat16", lists="paddle"))]
    recipe = amp.Recipe(schedule=amp.Schedule(steps))

    def data() -> Iterator[Any]:
        return batches(spikes=(25, 30))

    run = native_run(load(recipe), data)
    assert told.policy() == steps[-1][1]
    assert run.scale[10] == run.scale[50] == 1.0 != run.scale[30]
    assert_trains_as(run, ampbridge_run(recipe, data))


@pytest.mark.usefixtures("told")
def test_a_schedule_by_skips() -> None:
    policies = [amp.Policy("O1", dtype, lists="paddle") for dtype in ("float16", "bfloat16")]
    schedule = amp.Schedule.when(skips=2, use=policies[1], otherwise=policies[0], back_after=5)
    recipe = amp.Recipe(schedule=schedule)
    run = native_run(load(recipe))
    assert run.scale[10] != 1.0 == run.scale[6]
    assert_trains_as(run, ampbridge_run(recipe))


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("on_overflow", ("drop_step", "drop_microbatch"))
def test_a_schedule_by_the_loss(on_overflow: Any) -> None:
    low = amp.Policy("O1", lists="paddle")
    schedule = amp.Schedule.when(loss_below=10.0, use=low, otherwise="O0", back_above=1e6)
    recipe = amp.Recipe(schedule=schedule, accumulate=2, on_overflow=on_overflow)

    def data() -> Iterator[Any]:
        return batches(spikes=(9,))

    run = native_run(load(recipe), data)
    assert len(set(run.scale)) >= 2
    assert_trains_as(run, ampbridge_run(recipe, data))


# -- what is said to be lost


def test_nothing_is_lost() -> None:
    policy = amp.Policy("O1", lists="paddle", keep=["head"], output_dtype="float16", deny=["sum"])
    recipe = amp.Recipe(policy, amp.Scaling.like("megatron"), 4, 1.0, on_overflow="drop_microbatch")
    found = losses(recipe.replace(save_dtype="float16"), "paddle")
    assert [loss.message for loss in found if not loss.message.startswith("on CPUs")] == []
    assert losses(amp.Recipe("O0", amp.Scaling()), "paddle") == ()
    assert losses(recipe, "paddle", native=False) == ()


@pytest.mark.parametrize(
    "recipe, key, kind",
    (
        (amp.Recipe(amp.Policy("O1", lists="paddle")), "policy.level", "changes"),
        (amp.Recipe("O1"), "policy.lists", "changes"),
        (amp.Recipe(amp.Policy("O1", lists="paddle", deny=["conv1d"])), "policy.lists", "changes"),
        (amp.Recipe(amp.Policy("O1", allow=["normalize"])), "policy.allow", "changes"),
        (amp.Recipe(amp.Policy("O1", execution="simulated")), "policy.execution", "lost"),
        (amp.Recipe(amp.Policy("O2", lists="paddle")), "decorate.master_grad", "changes"),
        (
            amp.Recipe(schedule=amp.Schedule([(0, "O0"), (9, "O2")]), save_dtype="float16"),
            "decorate.save_dtype",
            "lost",
        ),
    ),
)
def test_what_the_program_does_otherwise_is_said(recipe: amp.Recipe, key: str, kind: str) -> None:
    assert (key, kind) in {(loss.key, loss.kind) for loss in losses(recipe, "paddle")}
