"""Programs written for torch: run, read back from native objects, compared with ampbridge on torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import written_programs
from torch import nn
from torch.nn import functional as F
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
from ampbridge.policies import op_table
from ampbridge_port.writers import losses, write

SCALINGS = {
    **written_programs.SCALINGS,
    "until finite": amp.Scaling(
        init_scale=2.0**10, growth_interval=6, backoff_interval=2, backoff_count="until_finite"
    ),
    "in thirds": amp.Scaling(init_scale=1000.0, growth_factor=3.0, growth_interval=2),
}
NATIVE = ("torch", "keras")
"""Those that ``torch.amp.GradScaler`` does."""

pytestmark = pytest.mark.filterwarnings("ignore:.*without loss scaling")


def load(recipe: amp.Recipe, native: bool = True) -> ModuleType:
    """The module written for a recipe, with its demo."""
    module = ModuleType("written")
    exec(
        compile(write(recipe, "torch", native=native, demo=True), "<written>", "exec"), vars(module)
    )
    return module


# -- the model of the guide, small


def simple_net() -> nn.Module:
    torch.manual_seed(7)
    linears = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    return nn.Sequential(linears[0], nn.ReLU(), linears[1], nn.ReLU(), linears[2])


def native_run(module: ModuleType, data: Callable[[], Iterator[Any]] = batches) -> Run:
    """Module and demo as they stand, but for the model and the data."""
    results, models = [], []
    train = module.train

    def watched(step: Any, batches: Any) -> Iterator[Any]:
        models.append(step.model)
        for result in train(step, batches):
            results.append(result)
            yield result

    module.make_model, module.batches, module.train = simple_net, data, watched
    module.main()
    return Run(
        [float(result.loss) for result in results],
        [result.scale for result in results],
        [result.applied for result in results],
        [result.overflowed for result in results],
        [p.detach().cpu().numpy() for p in models[0].parameters()],
    )


def ampbridge_run(recipe: amp.Recipe, data: Callable[[], Iterator[Any]] = batches) -> Run:
    """``train_step`` with torch's own kernels, as the program has them."""
    if recipe.schedule is None:
        recipe = recipe.replace(policy=recipe.policy.replace(execution="native"))
    model = simple_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    step = amp.train_step(lambda m, x, y: F.mse_loss(m(x), y), model, optimizer, recipe=recipe)
    results = [step(x, y) for x, y in data()]
    run = Run(
        [result.loss for result in results],
        [result.scale for result in results],
        [result.applied for result in results],
        [result.reason in ("inf", "nan") for result in results],
        [],
    )
    amp.undecorate(model, optimizer)
    return run._replace(weights=[p.detach().cpu().numpy() for p in model.parameters()])


# -- Paddle's guide


@pytest.mark.parametrize("level", GUIDE)
def test_the_guide_s_recipes_train_as_with_ampbridge(level: str) -> None:
    recipe = GUIDE[level]

    def data() -> Iterator[Any]:  # of micro-batches enough for a dozen steps, two of which overflow
        return batches(120, (3, 64)) if level == "accumulation" else batches()

    run = native_run(load(recipe), data)
    assert run.scale == scales_by_the_rule(recipe, run)
    assert any(run.overflowed)
    assert_trains_as(run, ampbridge_run(recipe, data))


def test_the_program_with_ampbridge_runs(capsys: pytest.CaptureFixture[str]) -> None:
    policy = amp.Policy("O1", lists="paddle", execution="native")
    recipe = amp.Recipe(policy, amp.Scaling.like("paddle", init_scale=1024.0))
    module = load(recipe, native=False)
    assert recipe == module.RECIPE
    module.main()
    assert capsys.readouterr().out.count("applied=True") == 100


# -- the scale


@pytest.mark.parametrize("name", SCALINGS)
def test_scales_and_skips_follow_the_rule(name: str) -> None:
    recipe = amp.Recipe("O1", SCALINGS[name])
    module = load(recipe)
    assert hasattr(module, "LossScale") == (name not in NATIVE)
    run = native_run(module)
    assert run.scale == scales_by_the_rule(recipe, run)
    assert True in run.overflowed
    assert_trains_as(run, ampbridge_run(recipe))


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


@pytest.mark.parametrize("accumulate", (1, 3))
def test_without_scaling_overflow_is_skipped_as_well(accumulate: int) -> None:
    recipe = amp.Recipe("O1", None, accumulate)
    run = native_run(load(recipe))
    assert set(run.scale) == {1.0}
    assert_trains_as(run, ampbridge_run(recipe))


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
    recipe = amp.Recipe("O1", SCALINGS[scaling], accumulate, on_overflow=on_overflow, **limit)
    run, expected = native_run(load(recipe)), ampbridge_run(recipe)
    assert run.applied == expected.applied
    start = [p.detach().cpu().numpy() for p in simple_net().parameters()]
    for value, wanted, first in zip(run.weights, expected.weights, start, strict=True):
        np.testing.assert_allclose(value - first, wanted - first, rtol=0.02, atol=1e-6)


def test_a_run_that_only_skips_warns_and_stops() -> None:
    module = load(amp.Recipe("O1", amp.Scaling(warn_after_skips=5, max_consecutive_skips=8)))
    with (
        pytest.warns(UserWarning, match="5 steps in a row were skipped"),
        pytest.raises(RuntimeError, match="8 steps in a row"),
    ):
        native_run(module, lambda: batches(spikes=tuple(range(10, STEPS))))


def test_overflow_at_the_smallest_scale_stops_where_the_recipe_says_so() -> None:
    module = load(amp.Recipe("O1", amp.Scaling.like("deepspeed", init_scale=1.0)))
    with pytest.raises(RuntimeError, match="overflow at the smallest loss scale"):
        native_run(module, lambda: batches(spikes=tuple(range(10))))


# -- what native objects say


def step_of(recipe: amp.Recipe, model: nn.Module) -> Any:
    module = load(recipe)
    model.to(module.DEVICE)
    return module.TrainStep(model, module.make_optimizer(model), nn.MSELoss())


def test_the_scaler_has_the_recipe_s_numbers() -> None:
    scaling = amp.Scaling.like("torch", init_scale=2.0**12, growth_factor=3.0, growth_interval=123)
    scaler = step_of(amp.Recipe("O1", scaling), simple_net()).scaler
    assert isinstance(scaler, torch.amp.GradScaler)
    assert scaler.get_scale() == 2.0**12
    assert scaler.get_growth_factor() == 3.0
    assert scaler.get_backoff_factor() == 0.5
    assert scaler.get_growth_interval() == 123


class Recorder(nn.Module):
    """Layers of which it is seen what they compute with, and in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.register_buffer("offset", torch.ones(8))
        self.seen: dict[str, torch.dtype] = {}

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        self.seen = {"input": x.dtype, "offset": self.offset.dtype}
        self.seen |= {name: parameter.dtype for name, parameter in self.named_parameters()}
        self.seen["region"] = torch.get_autocast_dtype(x.device.type)
        x = self.first(x + self.offset)
        self.seen["first"] = x.dtype
        x = self.norm(x)
        self.offset += 1e-3  # which low precision cannot hold
        x = self.head(x)
        self.seen["head"] = x.dtype
        return {"y": x, "both": [x, (x,)]}


def recorded(policy: amp.Policy) -> tuple[Recorder, Any]:
    """A model that has made a step, and what it returned."""
    model, outputs = Recorder(), []

    def loss(output: Any, y: torch.Tensor) -> torch.Tensor:
        outputs.append(output)
        return F.mse_loss(output["y"], y)

    step = step_of(amp.Recipe(policy), model)
    step.loss = loss
    step(np.ones((4, 8), np.float32), np.zeros((4, 8), np.float32))
    return model, outputs[0]


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_o1_is_autocast_of_the_recipe_s_dtype(dtype: str) -> None:
    model, output = recorded(amp.Policy("O1", dtype, keep=["head"]))
    low = getattr(torch, dtype)
    assert model.seen["region"] == model.seen["first"] == low
    assert model.seen["first.weight"] == model.seen["input"] == torch.float32
    assert model.seen["head"] == torch.float32
    assert output["y"].dtype == output["both"][1][0].dtype == torch.float32


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_o2_computes_with_low_weights_and_float32_masters(dtype: str) -> None:
    model, output = recorded(
        amp.Policy("O2", dtype, lists="paddle", keep=["head"], output_dtype=dtype)
    )
    low = getattr(torch, dtype)
    seen = {name: dtype is low for name, dtype in model.seen.items()}
    assert seen == {
        **dict.fromkeys(("input", "offset", "first.weight", "first.bias", "region", "first"), True),
        **dict.fromkeys(("norm.weight", "norm.bias", "head.weight", "head.bias", "head"), False),
    }
    assert output["y"].dtype == output["both"][0].dtype == low
    assert {tensor.dtype for tensor in model.parameters()} == {torch.float32}
    assert torch.equal(model.offset.cpu(), torch.full((8,), 1 + 1e-3, dtype=low).float())
    assert model.norm.running_mean.abs().sum() > 0


def test_gradients_at_o2_have_been_rounded() -> None:
    step = step_of(amp.Recipe("O2", amp.Scaling(1.0), 2), simple_net())
    x, y = next(batches(spikes=()))
    step(x, y)
    for parameter in step.model.parameters():
        assert parameter.grad.dtype == torch.float32
        assert torch.equal(parameter.grad.half().float(), parameter.grad)


def test_without_masters_small_updates_are_lost() -> None:
    recipe = amp.Recipe(amp.Policy("O2", "bfloat16", master_weights=False))
    step = step_of(recipe, simple_net())
    for x, y in batches(20, ()):
        step(x, y)
    for parameter in step.model.parameters():
        assert torch.equal(parameter.bfloat16().float(), parameter)


def test_weights_are_saved_in_the_recipe_s_dtype() -> None:
    step = step_of(amp.Recipe("O2", save_dtype="float16"), simple_net())
    assert {value.dtype for value in step.model.state_dict().values()} == {torch.float16}
    assert {value.dtype for value in step.model.parameters()} == {torch.float32}


def test_a_kept_layer_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="'head' names no layer"):
        step_of(amp.Recipe(amp.Policy("O1", keep=["head"])), simple_net())


@pytest.mark.parametrize("native", (True, False))
@pytest.mark.parametrize("level", ("O1", "O2"))
def test_a_program_has_layers_of_the_names_that_it_keeps(
    level: Any, native: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = amp.Policy(level, "bfloat16", keep=["head", "decoder.*"], execution="native")
    load(amp.Recipe(policy), native).main()
    assert capsys.readouterr().out.count("pplied") == 100


# -- functions


@pytest.mark.parametrize(
    "policy",
    (
        amp.Policy("O1", lists="paddle"),
        amp.Policy("O2", "bfloat16", lists="paddle"),
        amp.Policy("O1", lists="tensorflow"),
        amp.Policy("O1", "bfloat16", lists="safe", allow=["softmax"]),
        amp.Policy("O1", deny=["linear", "matmul"], allow=["layer_norm"]),
    ),
)
def test_the_table_names_what_autocast_runs_otherwise(policy: amp.Policy) -> None:
    """By the functions' own names, which is what a function mode sees."""
    module = load(amp.Recipe(policy))
    constants = {
        "LOW_FUNCTIONS": "allow",
        "FLOAT32_FUNCTIONS": "deny",
        "WIDEST_FUNCTIONS": "promote",
    }
    table = {
        function: rule for name, rule in constants.items() for function in getattr(module, name, ())
    }
    autocast = amp.Policy("O1", policy.dtype).native_rules("torch")
    for spelling, rule in policy.native_rules("torch").items():
        if spelling == "torch.Tensor.__rtruediv__":  # a reciprocal and a product
            continue
        function = reduce(getattr, spelling.split(".")[1:], torch)
        name = spelling.rpartition(".")[2]
        if (
            getattr(function, "__module__", "") == "torch._jit_internal"
        ):  # chooses between two functions by a flag
            assert function.__name__ == "fn"
        else:
            name = function.__name__
        assert table.get(name) == (rule if rule != autocast[spelling] else None), spelling


def test_functions_run_as_the_recipe_says() -> None:
    policy = amp.Policy(
        "O1", deny=["linear", "subtract"], allow=["layer_norm", "batch_norm"], lists="paddle"
    )
    module = load(amp.Recipe(policy))
    lists = module.OpLists()
    x = torch.randn(4, 4, device=module.DEVICE)
    low = torch.randn(4, 4, device=module.DEVICE).half()
    statistics = torch.zeros(4, device=module.DEVICE), torch.ones(4, device=module.DEVICE)
    with torch.autocast(module.DEVICE, dtype=torch.float16), lists:
        dtypes = {
            "matmul": (x @ x).dtype,
            "linear": F.linear(low, low).dtype,
            "1 - x": (1 - low).dtype,
            "layer_norm": F.layer_norm(x, (4,)).dtype,
            "batch_norm": F.batch_norm(x, *statistics, training=True).dtype,
            "bmm of two": torch.bmm(x[None], low[None]).dtype,
            "bmm": torch.bmm(low[None], low[None]).dtype,
            "told": torch.softmax(low, -1, dtype=torch.float64).dtype,
            "softmax": low.softmax(-1).dtype,
        }
        with torch.autocast(module.DEVICE, enabled=False):
            dtypes["outside"] = F.layer_norm(x, (4,)).dtype
    assert statistics[0].dtype == torch.float32
    assert statistics[0].abs().sum() > 0
    lows = {"matmul", "layer_norm", "batch_norm", "bmm"}
    if module.DEVICE == "cpu":
        lows.add("softmax")  # torch.autocast has lists of its own there
    assert {name for name, dtype in dtypes.items() if dtype == torch.float16} == lows
    assert dtypes["told"] == torch.float64


# -- schedules


def scheduled(schedule: amp.Schedule, **settings: Any) -> amp.Recipe:
    return amp.Recipe(schedule=schedule, **settings)


def native(policy: str, **settings: Any) -> amp.Policy:
    return amp.Policy.parse(policy).replace(execution="native", **settings)


def test_a_schedule_by_steps() -> None:
    steps = [
        (0, "O0"),
        (15, native("O1", lists="paddle")),
        (30, native("O2", keep=["4"], master_weights=False)),
        (45, native("O1:bfloat16", output_dtype="bfloat16")),
    ]
    recipe = scheduled(amp.Schedule(steps))

    def data() -> Iterator[Any]:
        return batches(spikes=(20, 35))

    run, expected = native_run(load(recipe), data), ampbridge_run(recipe, data)
    assert run.scale == expected.scale
    assert run.scale[10] == run.scale[50] == 1.0 != run.scale[40]
    assert run.applied == expected.applied
    assert run.loss[:30] == pytest.approx(expected.loss[:30], rel=1e-5)
    assert run.loss == pytest.approx(expected.loss, rel=1e-3)


def test_a_schedule_by_skips() -> None:
    schedule = amp.Schedule.when(
        skips=2, use=native("O1:bfloat16"), otherwise=native("O1"), back_after=5
    )
    recipe = scheduled(schedule)
    run = native_run(load(recipe))
    assert run.scale[10] != 1.0 == run.scale[6]
    assert_trains_as(run, ampbridge_run(recipe))


@pytest.mark.parametrize("on_overflow", ("drop_step", "drop_microbatch"))
def test_a_schedule_by_the_loss(on_overflow: Any) -> None:
    schedule = amp.Schedule.when(loss_below=10.0, use=native("O2"), otherwise="O0", back_above=1e6)
    recipe = scheduled(schedule, accumulate=2, on_overflow=on_overflow)

    def data() -> Iterator[Any]:
        return batches(spikes=(9,))

    run = native_run(load(recipe), data)
    assert len(set(run.scale)) >= 2
    assert_trains_as(run, ampbridge_run(recipe, data))


# -- what is said to be lost


@pytest.mark.parametrize(
    "policy", (amp.Policy("O0"), amp.Policy("O1", "bfloat16", lists="native"), "O2")
)
def test_nothing_is_lost(policy: Any) -> None:
    recipe = amp.Recipe(
        policy, amp.Scaling.like("deepspeed"), 4, 1.0, on_overflow="drop_microbatch"
    )
    if recipe.policy.level != "O0":
        recipe = recipe.replace(save_dtype="float16")
    found = losses(recipe, "torch")
    assert [loss.message for loss in found if not loss.message.startswith("on CPUs")] == []
    assert losses(recipe, "torch", native=False) == ()


def test_functions_that_no_table_knows_follow_their_inputs() -> None:
    recipe = amp.Recipe(amp.Policy("O1", lists="tensorflow"))
    assert any("in no op table" in loss.message for loss in losses(recipe, "torch"))
    module = load(recipe)
    low = torch.ones(2, device=module.DEVICE).half()
    with torch.autocast(module.DEVICE, dtype=torch.float16), module.OpLists():
        assert low.frac().dtype == torch.float16
        assert low.cummax(0).values.dtype == torch.float32


@pytest.mark.parametrize(
    "recipe, key, kind",
    (
        (amp.Recipe("O1"), "policy.lists", "changes"),
        (amp.Recipe(amp.Policy("O1", allow=["bias_add"])), "policy.allow", "changes"),
        (amp.Recipe(amp.Policy("O2", master_weights=False)), "policy.master_weights", "changes"),
        (amp.Recipe(amp.Policy("O1", execution="simulated")), "policy.execution", "lost"),
        (
            amp.Recipe(schedule=amp.Schedule([(0, "O0"), (9, "O2")]), save_dtype="float16"),
            "decorate.save_dtype",
            "lost",
        ),
    ),
)
def test_what_the_program_does_otherwise_is_said(recipe: amp.Recipe, key: str, kind: str) -> None:
    assert (key, kind) in {(loss.key, loss.kind) for loss in losses(recipe, "torch")}


def test_autocast_s_own_lists_on_cpus_are_not_the_recipe_s() -> None:
    """As the loss says: if this fails, torch has other lists now."""
    assert amp.Policy("O1").category("softmax") == "deny"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.ones(2).bfloat16().softmax(-1).dtype == torch.bfloat16
    assert "torch.softmax" in op_table.native_names("torch")
