"""Modules written for Paddle: run, read back from its functions' arguments, compared with ampbridge.

Paddle switches its AMP off on CPUs. So that it can be seen at work here, ``auto_cast`` and ``decorate``
are stood in for by ampbridge's, under the policy that their arguments stand for, which are recorded;
``GradScaler`` is Paddle's own, made to work on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle_native_scaler import unlocked
from written_programs import SCALINGS, SPIKES, batches, by_ampbridge

import ampbridge as amp
from ampbridge_paddle.native.native_policy import policy_of_native
from ampbridge_port.writers import lacks, losses, write

NATIVE = ("torch", "paddle, twice", "flax", "static")
"""The scalings that ``paddle.amp.GradScaler`` has, but for bounds that nothing reaches."""

NATIVE_SCALER = paddle.amp.GradScaler

CLIPPINGS = {"clip_norm": 0.01, "clip_each_norm": 0.01, "clip_value": 1e-3}

O1, O2 = amp.Policy("O1", lists="paddle"), amp.Policy("O2", lists="paddle")

pytestmark = [pytest.mark.filterwarnings("ignore:.*without loss scaling"), pytest.mark.slow]


def scaling(**settings: Any) -> amp.Scaling:
    return amp.Scaling.like("paddle", **{"init_scale": 128.0, "growth_interval": 7, **settings})


def load(recipe: amp.Recipe, native: bool = True) -> Any:
    """The module written for a recipe, with its demo."""
    module = ModuleType("written")
    exec(write(recipe, "paddle", native=native, demo=True), vars(module))
    return module


class Accelerator:
    """What the module has told Paddle."""

    def __init__(self) -> None:
        self.auto_cast: dict[str, Any] = {}
        self.decorate: dict[str, Any] = {}
        self.scaler: Any = None

    def policy(self) -> amp.Policy:
        """What the last region and the model's decoration stand for."""
        others = ("save_dtype", "master_grad")
        decoration = {name: value for name, value in self.decorate.items() if name not in others}
        return policy_of_native({"auto_cast": self.auto_cast, "decorate": decoration or None})

    def region(self, **arguments: Any) -> Any:
        if arguments.get("enable") is False:
            return amp.autocast("O0", backend="paddle")
        self.auto_cast = arguments
        return amp.autocast(self.policy(), backend="paddle")

    def decorated(self, models: Any, optimizers: Any, **arguments: Any) -> tuple[Any, Any]:
        self.decorate = arguments
        self.auto_cast = {"level": arguments["level"], "dtype": arguments["dtype"]}
        return amp.decorate(models, optimizers, self.policy())

    def made(self, **arguments: Any) -> Any:
        with unlocked():
            self.scaler = NATIVE_SCALER(**arguments)
        return self.scaler


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    accelerator = Accelerator()
    monkeypatch.setattr(paddle.amp, "auto_cast", accelerator.region)
    monkeypatch.setattr(paddle.amp, "decorate", accelerator.decorated)
    monkeypatch.setattr(paddle.amp, "GradScaler", accelerator.made)
    return accelerator


@pytest.fixture(autouse=True)
def _unchanged_paddle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module replaces this name of Paddle's, which has it not."""
    monkeypatch.setattr(paddle.amp.grad_scaler, "float", float, raising=False)


def net(clip: Any) -> tuple[Any, Any]:
    paddle.seed(7)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    return model, paddle.optimizer.SGD(0.05, parameters=model.parameters(), grad_clip=clip)


def pairs(spikes: tuple[int, ...] = SPIKES) -> Iterator[Any]:
    for x, y in batches((8,), 4, spikes):
        yield paddle.to_tensor(x), paddle.to_tensor(y)


def weights(model: Any) -> list[Any]:
    return [parameter.numpy().copy() for parameter in model.parameters()]


def by_module(recipe: amp.Recipe, spikes: tuple[int, ...] = SPIKES) -> tuple[Any, ...]:
    """The scale of each batch, whether weights changed after it, and the last weights."""
    module = load(recipe)
    model, optimizer = net(module.grad_clip() if recipe.clipping else None)
    if recipe.policy.level == "O2":
        model, optimizer = module.decorate(model, optimizer)
    scaler, before = module.scaler(), weights(model)
    scales, applied = [], []

    def watched() -> Iterator[Any]:
        for pair in pairs(spikes):
            scales.append(scaler.state_dict()["scale"].item() if recipe.scaler else 1.0)
            yield pair

    for _ in module.train(model, optimizer, scaler, nn.MSELoss(), watched()):
        after = weights(model)
        applied.append(any((a != b).any() for a, b in zip(before, after, strict=True)))
        before = after
    if recipe.policy.level != "O0":
        amp.undecorate(model, optimizer)
    return scales, applied, weights(model)


def by_train_step(recipe: amp.Recipe, spikes: tuple[int, ...] = SPIKES) -> tuple[Any, ...]:
    (model, optimizer), mse = net(None), nn.MSELoss()
    step = amp.train_step(lambda m, x, y: mse(m(x), y), model, optimizer, recipe=recipe)
    results = [step(x, y) for x, y in pairs(spikes)]
    amp.undecorate(model, optimizer)
    columns = ([getattr(r, name) for r in results] for name in ("scale", "applied"))
    return (*columns, weights(model))


def assert_alike(recipe: amp.Recipe, spikes: tuple[int, ...] = SPIKES) -> None:
    (scales, applied, last), wanted = by_module(recipe, spikes), by_train_step(recipe, spikes)
    assert scales == wanted[0]
    assert applied == wanted[1]
    for value, expected in zip(last, wanted[2], strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("accumulate", (1, 3))
@pytest.mark.parametrize("clipping", (None, *CLIPPINGS))
def test_it_trains_as_with_ampbridge(
    told: Accelerator, clipping: str | None, accumulate: int
) -> None:
    limit: Any = {clipping: CLIPPINGS[clipping]} if clipping else {}
    assert_alike(amp.Recipe(O1, scaling(backoff_interval=2), accumulate, **limit))
    assert told.policy() == O1


def test_at_o2_as_well(told: Accelerator) -> None:
    assert_alike(amp.Recipe(O2, scaling(), clip_norm=0.1, save_dtype="float32"))
    assert told.policy() == O2
    assert told.decorate["save_dtype"] == "float32"


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("policy", (amp.Policy("O0"), O1.replace(dtype="bfloat16"), O1))
def test_without_scaling_too(policy: amp.Policy) -> None:
    assert_alike(amp.Recipe(policy, None, 2, 0.01), spikes=())


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("name", SCALINGS)
def test_scales_follow_the_rule_or_ampbridge_is_used(name: str) -> None:
    recipe = amp.Recipe(O1, SCALINGS[name])
    assert (lacks(recipe, "paddle") == ()) == (name in NATIVE)
    if name in NATIVE:  # at O0, where nothing overflows but the spikes
        scales, applied, _ = by_module(recipe.replace(policy=amp.Policy("O0")))
        assert (scales, applied) == by_ampbridge(recipe)[:2]


@pytest.mark.parametrize(
    "policy",
    (
        O1.replace(dtype="bfloat16"),
        O1.replace(allow=["batch_norm", "add"], deny=["sum", "conv1d", "conv2d"]),
        O2.replace(dtype="bfloat16", masters=None),
        O2.replace(deny=["linear", "softmax"]),
    ),
)
def test_the_policy_is_that_of_paddle_s_functions(
    told: Accelerator, policy: amp.Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    decorated = {"save_dtype": "float32", "master_grad": True} if policy.level == "O2" else {}
    recipe = amp.Recipe(policy, None, **decorated)
    assert lacks(recipe, "paddle") == ()
    by_module(recipe, spikes=())
    assert told.policy() == policy
    assert decorated.items() <= told.decorate.items()
    assert bool(told.decorate) == (policy.level == "O2")


LACKING = {
    "policy.lists": amp.Recipe("O1"),
    "policy.deny": amp.Recipe(O1.replace(deny=["conv1d"])),  # conv2d would go with it
    "policy.keep": amp.Recipe(O1.replace(keep=["head"])),
    "scaler.enabled": amp.Recipe(O1.replace(dtype="bfloat16"), scaling()),
    "scaler.backoff_count": amp.Recipe(
        O1, scaling(backoff_interval=2, backoff_count="until_finite")
    ),
    "step.on_overflow": amp.Recipe(O1, scaling(), 2, on_overflow="drop_microbatch"),
    "schedule": amp.Recipe(schedule=amp.Schedule([(0, "O0"), (9, O1)])),
}


@pytest.mark.parametrize("key", LACKING)
def test_what_paddle_lacks_is_written_with_ampbridge(
    key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = LACKING[key]
    assert key in lacks(recipe, "paddle")
    assert losses(recipe, "paddle") == ()
    module = load(recipe)
    assert key in str(module.__doc__)
    assert recipe == module.RECIPE
    module.main()
    assert capsys.readouterr().out.count("StepResult") == 100


@pytest.mark.filterwarnings("ignore:.*auto_cast can only be enabled", "ignore:.*only be enabled on")
@pytest.mark.parametrize("policy", (O1, O2))
def test_on_a_cpu_the_demo_runs_in_float32(
    policy: amp.Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    """With Paddle's own functions, which do nothing here."""
    load(amp.Recipe(policy, scaling(), 4, 1.0)).main()
    assert np.isfinite([float(line) for line in capsys.readouterr().out.split()]).sum() == 100
