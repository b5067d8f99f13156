"""What modules for torch and Paddle share: a training loop, its demo, and what neither has of a recipe."""

from __future__ import annotations

from collections.abc import Iterator

from ampbridge.scaling.native_scaler import ALARMS, NATIVE
from ampbridge.scaling.scale_rule import LARGEST_SCALE
from ampbridge.training.recipe import Recipe, Scaling
from ampbridge_port.writers import code
from ampbridge_port.writers.code import BATCHES, fill

SCALER = '''\
def scaler():
    """The loss scaling of the recipe."""
    $made
'''

TRAIN = '''\
def train(model, optimizer, scaler, loss_fn, batches):
    """Train by each $batch, and yield its loss."""
    for $pair in $pairs:
        $region
            loss = loss_fn(model(x), y)
        scaler.scale($share).backward()
        $step
        yield loss.detach()
'''

ACCUMULATED = """\
if number % ACCUMULATE == 0:
    $step
"""

DEMO = """\
$made
tensors = ([$tensor for each in pair] for pair in batches())
for loss in train(model, optimizer, scaler(), mse_loss, tensors):
    print(loss.item())
"""


def train_section(recipe: Recipe, region: str, step: str) -> str:
    """``train``; ``region`` is a with statement, ``step`` what follows the backward passes of a step."""
    if recipe.accumulate == 1:
        words = {"batch": "batch", "pair": "x, y", "pairs": "batches", "share": "loss"}
        return fill(TRAIN, region=region, step=step, **words)
    words = {"batch": "micro-batch", "pair": "number, (x, y)", "pairs": "enumerate(batches, 1)"}
    step = fill(ACCUMULATED, step=step)
    return fill(TRAIN, region=region, step=step, share="loss / ACCUMULATE", **words)


def demo(made: str, tensor: str) -> str:
    """A program that trains what ``made`` makes; ``tensor`` makes one of ``each``, an array."""
    return code.demo(BATCHES, body=fill(DEMO, made=made, tensor=tensor))


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
