"""What random searches over policies and recipes share: values that go with the level."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import ampbridge as amp
from ampbridge.policies.policy import Level, Slots
from ampbridge.training.clipping import CLIPPINGS


def policy(
    level: Level,
    dtype: str,
    *,
    masters: str = "float32",
    slots: Slots = "float32",
    output_dtype: str = "float32",
    **settings: Any,
) -> amp.Policy:
    """A policy without what its level refuses: low outputs at O0, no masters or low slots below O2.

    Nor what float16 refuses.
    """
    can_be = level == "O2" and (dtype == "bfloat16" or masters in ("float32", "none"))
    return amp.Policy(
        level,
        dtype,
        masters=masters if can_be else "float32",
        slots=slots if level == "O2" else "float32",
        output_dtype="float32" if level == "O0" else output_dtype,
        **settings,
    )


def clipping(draw: st.DrawFn) -> dict[str, float]:
    """One of the ways in which a step clips, or none."""
    return draw(st.just({}) | st.sampled_from([{name: 0.1} for name in CLIPPINGS]))


def parameter_settings(
    draw: st.DrawFn, plan: amp.Policy | amp.Schedule, save_dtypes: tuple[str | None, ...]
) -> dict[str, Any]:
    """``save_dtype`` and ``master_grad`` that ``plan`` can follow."""
    policies = plan.policies if isinstance(plan, amp.Schedule) else (plan,)
    levels = {each.level for each in policies}
    return {
        "save_dtype": None if levels == {"O0"} else draw(st.sampled_from(save_dtypes)),
        "master_grad": "O2" in levels and draw(st.booleans()),
    }
