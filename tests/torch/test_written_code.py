"""Modules written for torch: trained beside ampbridge's ``train_step``, and read back from native objects."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from written_programs import SCALINGS, SPIKES, batches, by_ampbridge

import ampbridge as amp
from ampbridge_port.writers import lacks, losses, write

NATIVE = ("torch", "flax")
"""The scalings that ``torch.amp.GradScaler`` has, but for bounds that nothing reaches."""

CLIPPINGS = {"clip_norm": 0.01, "clip_each_norm": 0.01, "clip_value": 1e-3}


def scaling(**settings: Any) -> amp.Scaling:
    return amp.Scaling.like("torch", **{"init_scale": 128.0, "growth_interval": 7, **settings})


def load(recipe: amp.Recipe, native: bool = True) -> ModuleType:
    """The module written for a recipe, with its demo."""
    module = ModuleType("written")
    exec(write(recipe, "torch", native=native, demo=True), vars(module))
    return module


def net() -> tuple[nn.Module, Any]:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def pairs(spikes: tuple[int, ...] = SPIKES) -> Iterator[Any]:
    for x, y in batches((8,), 4, spikes):
        yield torch.tensor(x), torch.tensor(y)


def weights(model: nn.Module) -> list[Any]:
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


def by_module(recipe: amp.Recipe, spikes: tuple[int, ...] = SPIKES) -> tuple[Any, ...]:
    """The scale of each batch, whether weights changed after it, its loss, and the last weights."""
    module, (model, optimizer) = load(recipe), net()
    module.DEVICE = "cpu"
    scaler, before = module.scaler(), weights(model)
    scales, applied, found = [scaler.get_scale()], [], []
    for loss in module.train(model, optimizer, scaler, nn.MSELoss(), pairs(spikes)):
        after = weights(model)
        applied.append(any((a != b).any() for a, b in zip(before, after, strict=True)))
        scales.append(scaler.get_scale())
        found.append(float(loss))
        before = after
    return scales[:-1], applied, found, before


def by_train_step(recipe: amp.Recipe, spikes: tuple[int, ...] = SPIKES) -> tuple[Any, ...]:
    """The same with torch's own kernels, as the module has them."""
    model, optimizer = net()
    recipe = recipe.replace(policy=recipe.policy.replace(execution="native"))
    step = amp.train_step(lambda m, x, y: F.mse_loss(m(x), y), model, optimizer, recipe=recipe)
    results = [step(x, y) for x, y in pairs(spikes)]
    columns = ([getattr(r, name) for r in results] for name in ("scale", "applied", "loss"))
    return (*columns, weights(model))


def assert_alike(recipe: amp.Recipe, spikes: tuple[int, ...] = SPIKES) -> None:
    (scales, applied, found, last), wanted = (
        by_module(recipe, spikes),
        by_train_step(recipe, spikes),
    )
    assert scales == wanted[0]
    assert applied == wanted[1]
    assert found == pytest.approx(wanted[2], rel=1e-5)
    for value, expected in zip(last, wanted[3], strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("accumulate", (1, 3))
@pytest.mark.parametrize("clipping", (None, *CLIPPINGS))
def test_it_trains_as_with_ampbridge(clipping: str | None, accumulate: int) -> None:
    limit: Any = {clipping: CLIPPINGS[clipping]} if clipping else {}
    assert_alike(amp.Recipe("O1", scaling(), accumulate, **limit))


@pytest.mark.filterwarnings("ignore:.*without loss scaling")
@pytest.mark.parametrize("policy", ("O0", "O1:bfloat16", "O1"))
def test_without_scaling_too(policy: str) -> None:
    assert_alike(amp.Recipe(policy, None, 2, 0.01), spikes=())


@pytest.mark.parametrize("name", SCALINGS)
def test_scales_follow_the_rule_or_ampbridge_is_used(name: str) -> None:
    recipe = amp.Recipe("O1", SCALINGS[name])
    assert (lacks(recipe, "torch") == ()) == (name in NATIVE)
    if name in NATIVE:  # at O0, where nothing overflows but the spikes
        scales, applied, *_ = by_module(recipe.replace(policy=amp.Policy("O0")))
        assert (scales, applied) == by_ampbridge(recipe)[:2]


def test_the_scaler_has_the_recipe_s_numbers() -> None:
    numbers = {"init_scale": 2.0**12, "growth_factor": 3.0, "growth_interval": 123}
    scaler = load(amp.Recipe("O1", scaling(**numbers))).scaler()
    assert isinstance(scaler, torch.amp.GradScaler)
    found = scaler.get_scale(), scaler.get_growth_factor(), scaler.get_growth_interval()
    assert found == tuple(numbers.values())
    assert scaler.get_backoff_factor() == 0.5


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_the_region_is_of_the_recipe_s_dtype(dtype: str) -> None:
    module, (model, optimizer) = load(amp.Recipe(amp.Policy("O1", dtype), scaling())), net()
    module.DEVICE, seen = "cpu", []

    def loss_fn(predictions: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append((predictions.dtype, torch.get_autocast_dtype("cpu")))
        return F.mse_loss(predictions, y)

    list(module.train(model, optimizer, module.scaler(), loss_fn, [next(pairs())]))
    assert seen == [(getattr(torch, dtype),) * 2]


LACKING = {
    "policy.level": amp.Recipe("O2"),
    "policy.lists": amp.Recipe(amp.Policy("O1", lists="paddle")),
    "policy.deny": amp.Recipe(amp.Policy("O1", deny=["sum"])),
    "policy.keep": amp.Recipe(amp.Policy("O1", keep=["head"])),
    "policy.execution": amp.Recipe(amp.Policy("O1", execution="simulated")),
    "scaler.dynamic": amp.Recipe("O1", amp.Scaling.like("torch", dynamic=False)),
    "scaler.growth_factor": amp.Recipe("O1", amp.Scaling.like("torch", growth_factor=1.0)),
    "scaler.warn_after_skips": amp.Recipe("O1", amp.Scaling.like("torch", warn_after_skips=5)),
    "step.on_overflow": amp.Recipe("O1", scaling(), 2, on_overflow="drop_microbatch"),
    "schedule": amp.Recipe(schedule=amp.Schedule([(0, "O0"), (9, "O1")])),
    "decorate.save_dtype": amp.Recipe("O2", save_dtype="float16"),
    "decorate.master_grad": amp.Recipe("O2", master_grad=True),
}


@pytest.mark.parametrize("key", LACKING)
def test_what_torch_lacks_is_written_with_ampbridge(
    key: str, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = LACKING[key]
    assert key in lacks(recipe, "torch")
    assert losses(recipe, "torch") == ()
    module = load(recipe)
    assert key in str(module.__doc__)
    assert recipe == module.RECIPE
    if recipe.policy.execution == "simulated" and device == "cuda":
        pytest.skip("simulation is of the CPU")
    module.main()
    assert capsys.readouterr().out.count("StepResult") == 100


@pytest.mark.parametrize("accumulate", (1, 4))
def test_the_demo_runs(accumulate: int, capsys: pytest.CaptureFixture[str]) -> None:
    load(amp.Recipe("O1", scaling(), accumulate, 1.0)).main()
    assert np.isfinite([float(line) for line in capsys.readouterr().out.split()]).sum() == 100
