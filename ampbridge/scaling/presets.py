"""The loss scalers of other libraries, as settings of the one rule.

What ampbridge bounds and they do not: a scale stays from 2**-126 to 2**127, where it and its
reciprocal are ordinary float32 numbers. Beyond, theirs reach 0 or inf and never come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ampbridge.errors import ArgumentError, listed, slips
from ampbridge.errors.slips import meant
from ampbridge.scaling.scale_rule import LARGEST_SCALE, SMALLEST_SCALE


class Preset(NamedTuple):
    """The arguments of ``GradScaler`` that make it follow another scaler, and where its rule stands."""

    settings: Mapping[str, Any]
    source: str


_UNBOUNDED = {"min_scale": SMALLEST_SCALE, "max_scale": LARGEST_SCALE}
_FROM_ONE = {"min_scale": 1.0, "max_scale": LARGEST_SCALE}

PRESETS: Mapping[str, Preset] = {
    "torch": Preset(
        {"init_scale": 2.0**16, **_UNBOUNDED, "at_max_scale": "keep"},
        "torch.amp.GradScaler, torch/amp/grad_scaler.py and the kernel _amp_update_scale_ (2.13)",
    ),
    "paddle": Preset(
        {"init_scale": 2.0**16, **_UNBOUNDED, "at_max_scale": "keep"},
        "paddle.amp.GradScaler, paddle/amp/grad_scaler.py (3.3)",
    ),
    "paddle_fleet": Preset(
        {
            "init_scale": 2.0**15,
            "backoff_factor": 0.8,
            "growth_interval": 1000,
            "backoff_interval": 2,
            **_FROM_ONE,
            "at_max_scale": "keep",
        },
        "amp_configs of paddle.distributed.fleet.DistributedStrategy, and the kernel "
        "update_loss_scaling, amp_kernel_impl.h (3.3)",
    ),
    "keras": Preset(
        {"init_scale": 2.0**15, **_UNBOUNDED, "at_max_scale": "keep"},
        "keras.optimizers.LossScaleOptimizer, loss_scale_optimizer.py (3.15)",
    ),
    "apex": Preset(
        {"init_scale": 2.0**16, "min_scale": SMALLEST_SCALE, "max_scale": 2.0**24},
        "apex.amp's LossScaler, apex/amp/scaler.py (removed in 2025)",
    ),
    "deepspeed": Preset(
        {
            "init_scale": 2.0**16,
            "growth_interval": 1000,
            "growth_delay": 1,
            "backoff_interval": 2,
            "backoff_count": "until_growth",
            **_FROM_ONE,
            "at_min_scale": "raise",
        },
        "DynamicLossScaler and the defaults of the fp16 section, "
        "deepspeed/runtime/fp16/loss_scaler.py (August 2026)",
    ),
    "megatron": Preset(
        {
            "init_scale": 2.0**32,
            "growth_interval": 1000,
            "backoff_interval": 2,
            "backoff_count": "until_growth",
            **_FROM_ONE,
        },
        "DynamicGradScaler, megatron/core/optimizer/grad_scaler.py, with the defaults of Megatron-LM's "
        "arguments",
    ),
    "flax": Preset(
        {
            "init_scale": 2.0**16,
            "growth_interval": 2001,  # it compares before it counts: one finite step more
            **_UNBOUNDED,
        },
        "DynamicScale, flax/training/dynamic_scale.py",
    ),
    "jmp": Preset(
        {"init_scale": 2.0**15, **_FROM_ONE, "at_max_scale": "keep"},
        "jmp.DynamicLossScale, jmp/_src/loss_scale.py, begun as its documentation does",
    ),
    "mindspore": Preset(
        {"init_scale": 2.0**24, **_FROM_ONE, "max_consecutive_skips": 1000},
        "mindspore.amp.DynamicLossScaleManager, mindspore/train/loss_scale_manager.py",
    ),
}


def preset(name: str) -> Preset:
    """The preset of that name."""
    if name in PRESETS:
        return PRESETS[name]
    found = meant(name, PRESETS, slips.PRESETS)
    hint = "help(amp.GradScaler.like)" if found is None else f"GradScaler.like({found!r})"
    msg = f"No preset {name!r}; allowed are {listed(PRESETS)}.\n"
    raise ArgumentError(f"{msg}Hint: {hint}")
