"""The settings of a recipe that torch's or Paddle's own functions do not have, by their keys."""

from __future__ import annotations

from collections.abc import Iterator

from ampbridge.scaling.native_scaler import ALARMS, NATIVE
from ampbridge.scaling.scale_rule import LARGEST_SCALE
from ampbridge.training.recipe import Recipe, Scaling


def lacking(recipe: Recipe, framework: str, takes_lists: bool) -> Iterator[str]:
    """What both lack: schedules, lists of others, layers by name, other rules, dropped micro-batches."""
    policy, scaling = recipe.policy, recipe.scaler
    if recipe.schedule is not None:
        yield "schedule"
    if policy.level != "O0":
        if policy.lists not in (framework, "native"):
            yield "policy.lists"
        entries = () if takes_lists else ("allow", "deny")
        yield from (f"policy.{name}" for name in (*entries, "keep") if getattr(policy, name))
        if policy.execution == "simulated":
            yield "policy.execution"
    if policy.float32 != "default":
        yield "policy.float32"
    if scaling is not None:
        yield from (f"scaler.{name}" for name in _beyond(scaling, framework))
    if recipe.accumulate > 1 and recipe.on_overflow == "drop_microbatch":
        yield "step.on_overflow"


def _beyond(scaling: Scaling, framework: str) -> Iterator[str]:
    """The settings of a scaler that the framework's own does not take, where they change something."""
    preset, taken = NATIVE[framework]
    own, usual = Scaling.like(preset).arguments(), Scaling().arguments()
    idle = {"init_scale"}
    idle |= {"at_max_scale"} if scaling.max_scale == LARGEST_SCALE else set()
    idle |= {"backoff_count"} if scaling.backoff_interval == 1 else set()
    for name, value in scaling.arguments().items():
        if name in ALARMS:
            beyond = value not in (usual[name], None)
        elif name in taken:
            beyond = name.endswith("_factor") and value == 1.0  # which they refuse
        else:
            beyond = name not in idle and value != own[name]
        if beyond:
            yield name
