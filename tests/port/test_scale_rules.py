"""Scales move as in the source library: its rule, written out here as it stands there, step by step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampbridge import port
from ampbridge.scaling.scale_rule import HostStore
from ampbridge.training.recipe import Scaling

OVERFLOWS = st.lists(st.booleans(), max_size=60)


def scales(scaling: Scaling, overflows: Sequence[bool]) -> Iterator[float]:
    """The scale after each step, by the recipe."""
    store = HostStore(scaling.first_state(scaling.init_scale))
    for overflow in overflows:
        store.update(int(overflow), scaling)
        yield store.read().scale


def read(file: Path, text: str) -> Scaling:
    file.write_text(text, encoding="utf-8")
    scaling = port.read(file).recipe.scaler
    assert scaling is not None
    return scaling


def zero_scales(fp16: Any, overflows: Sequence[bool]) -> Iterator[float]:
    """DynamicLossScaler.update_scale of deepspeed/runtime/fp16/loss_scaler.py."""
    scale, last_overflow = 2.0 ** fp16["initial_scale_power"], -1
    shift, consecutive = fp16["hysteresis"], fp16["consecutive_hysteresis"]
    hysteresis = shift
    for iteration, overflow in enumerate(overflows):
        if overflow:
            if shift == 1 or hysteresis == 1:
                if scale == fp16["min_loss_scale"]:
                    return  # raises
                scale = max(scale / 2, fp16["min_loss_scale"])
            else:
                hysteresis -= 1
            last_overflow = iteration
        else:
            if consecutive:
                hysteresis = shift
            stable = (iteration - last_overflow) - 1
            if stable > 0 and stable % fp16["loss_scale_window"] == 0:
                if not consecutive:
                    hysteresis = shift
                scale *= 2
        yield scale


def fused_scales(fp16: Any, overflows: Sequence[bool]) -> Iterator[float]:
    """FP16_Optimizer._update_scale of deepspeed/runtime/fp16/fused_optimizer.py, for no ZeRO."""
    scale, last_overflow = 2.0 ** fp16["initial_scale_power"], -1
    for iteration, overflow in enumerate(overflows):
        if overflow:
            scale = max(scale / 2, fp16["min_loss_scale"])
            last_overflow = iteration
        else:
            stable = (iteration - last_overflow) - 1
            if stable > 0 and stable % fp16["loss_scale_window"] == 0:
                scale *= 2
        yield scale


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize("stage, rule", [(0, fused_scales), (2, zero_scales)])
@given(
    fp16=st.fixed_dictionaries(
        {
            "initial_scale_power": st.integers(2, 8),
            "loss_scale_window": st.integers(1, 5),
            "hysteresis": st.integers(1, 4),
            "consecutive_hysteresis": st.booleans(),
            "min_loss_scale": st.sampled_from([1, 2, 4]),
        }
    ),
    overflows=OVERFLOWS,
)
def test_deepspeed(
    stage: int, rule: Any, fp16: dict[str, Any], overflows: list[bool], tmp_path: Path
) -> None:
    config = {"fp16": {"enabled": True, **fp16}, "zero_optimization": {"stage": stage}}
    scaling = read(tmp_path / "ds_config.json", json.dumps(config))
    expected = list(rule(fp16, overflows))
    assert list(scales(scaling, overflows))[: len(expected)] == expected


def apex_scales(
    smallest: float | None, largest: float, window: int, overflows: Sequence[bool]
) -> Iterator[float]:
    """LossScaler.update_scale of apex/amp/scaler.py; its window is 2000, its floor optional."""
    scale, unskipped = min(largest, 2.0**16), 0
    for overflow in overflows:
        if overflow:
            scale = max(smallest, scale / 2) if smallest else scale / 2
            unskipped = 0
        else:
            unskipped += 1
        if unskipped == window:
            scale = min(largest, scale * 2)
            unskipped = 0
        yield scale


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(
    smallest=st.sampled_from([None, 1.0, 256.0]),
    largest=st.sampled_from([2.0**10, 2.0**17, 2.0**24]),
    window=st.integers(1, 4),
    overflows=OVERFLOWS,
)
def test_apex(
    smallest: float | None, largest: float, window: int, overflows: list[bool], tmp_path: Path
) -> None:
    arguments = f"min_loss_scale={smallest}, max_loss_scale={largest}"
    text = f"""\
from apex import amp
model, optimizer = amp.initialize(model, optimizer, opt_level="O1", {arguments})
for x in batches:
    with amp.scale_loss(model(x), optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
"""
    scaling = replace(read(tmp_path / "train.py", text), growth_interval=window)  # 2000 are long
    assert list(scales(scaling, overflows)) == list(
        apex_scales(smallest, largest, window, overflows)
    )


def flax_scales(
    factor: float, window: int, smallest: float, overflows: Sequence[bool]
) -> Iterator[float]:
    """DynamicScale.value_and_grad of flax/training/dynamic_scale.py."""
    scale, fin_steps = 16.0, 0
    for overflow in overflows:
        grow = fin_steps == window
        if overflow:
            scale = max(scale / factor, smallest)
        elif grow:
            scale *= factor
        fin_steps = 0 if grow or overflow else fin_steps + 1
        yield scale


def jmp_scales(
    factor: float, window: int, smallest: float, overflows: Sequence[bool]
) -> Iterator[float]:
    """DynamicLossScale.adjust of jmp/_src/loss_scale.py."""
    scale, counter = 16.0, 0
    for overflow in overflows:
        if overflow:
            scale = max(smallest, scale / factor)
        elif counter == window - 1:
            scale *= factor
        counter = ((counter + 1) % window) * (not overflow)
        yield scale


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize(
    "rule, made",
    [
        (flax_scales, "DynamicScale({factor}, 1 / {factor}, {window}, 0, 16.0, {smallest})"),
        (jmp_scales, "jmp.DynamicLossScale(jnp.asarray(16.0), 0, {window}, {factor}, {smallest})"),
    ],
)
@given(
    factor=st.sampled_from([2.0, 4.0]),
    window=st.integers(1, 4),
    smallest=st.sampled_from([1.0, 2.0, 8.0]),
    overflows=OVERFLOWS,
)
def test_jax(
    rule: Any,
    made: str,
    factor: float,
    window: int,
    smallest: float,
    overflows: list[bool],
    tmp_path: Path,
) -> None:
    text = f"""\
import jax.numpy as jnp, jmp, optax
from flax import nnx
from flax.training.dynamic_scale import DynamicScale
model = nnx.Linear(2, 2, dtype=jnp.float16, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
scale = {made.format(factor=factor, window=window, smallest=smallest)}
for x in batches:
    optimizer.update(model, gradients(model, x, scale))
"""
    scaling = read(tmp_path / "train.py", text)
    assert list(scales(scaling, overflows)) == list(rule(factor, window, smallest, overflows))
