"""The training loop of modules for torch and Paddle, whose scalers are used alike, and its demo."""

from __future__ import annotations

from ampbridge.training.recipe import Recipe
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
