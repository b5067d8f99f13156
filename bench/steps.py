"""What the benchmarks train, the same on every framework, and the loops that train it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import measuring
import numpy as np
from measuring import Maker, Step

import ampbridge as amp
from ampbridge import neutral


class Task(NamedTuple):
    """``loss_fn(model, *batch)`` is the loss, and ``adamw(model)`` the optimizer."""

    model: Any
    loss_fn: Callable[..., Any]
    batch: tuple[Any, ...]
    adamw: Callable[[Any], Any] = partial(neutral.optimizer, "adamw", lr=1e-4)


Fresh = Callable[[], Task]
"""Makes a task anew."""


class Shape(NamedTuple):
    """Sizes of one workload; ``width`` is d_model for the transformer."""

    batch: int
    features: int
    width: int
    layers: int
    classes: int = 10
    tokens: int = 0


SHAPES = {
    "tiny": Shape(batch=32, features=64, width=64, layers=2),
    "mid": Shape(batch=256, features=64, width=512, layers=2),
    "transformer": Shape(batch=8, features=128, width=128, layers=2, tokens=64),
}
FOR_GPUS = {"large": Shape(batch=16, features=1024, width=1024, layers=12, tokens=512)}
"""A transformer of 150 million parameters."""
OF_OTHERS = ("bert", "llama", "unet", "many")
"""Workloads that torch alone has."""


def task(framework: str, workload: str) -> Task:
    """A model that classifies random float32 inputs by int64 labels; or a model of others.

    A transformer has the framework's own encoder layers, over vectors: the kept figures are of these.
    ``neutral.transformer`` is another model: it embeds token ids, and its feed-forward layers are half
    as wide.
    """
    native = measuring.native(framework)
    if workload in OF_OTHERS:
        return native.of_others(workload)
    shape, random = {**SHAPES, **FOR_GPUS}[workload], np.random.default_rng(0)
    size = (shape.batch, shape.tokens, shape.features) if shape.tokens else shape[:2]
    x = random.standard_normal(size, dtype=np.float32)
    y = random.integers(0, shape.classes, shape.batch)
    if shape.tokens:
        return native.task(native.transformer(shape), x, y)
    hidden = [shape.width] * shape.layers
    model = neutral.mlp(framework, shape.features, hidden, shape.classes, activation="relu")
    return native.task(model, x, y)


def pooled(base: type, encoder: Any, head: Any) -> Any:
    """A model, of the class ``base``, that classifies the mean of encoded tokens."""

    class Transformer(base):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = encoder, head

        def forward(self, x: Any) -> Any:
            return self.head(self.encoder(x).mean(1))

    return Transformer()


def by_hand(fresh: Fresh, make_scaler: Callable[[], Any] | None = None) -> Step:
    """The loop of torch's and Paddle's guides, in float32."""
    model, loss_fn, batch, adamw = fresh()
    scaler = None if make_scaler is None else make_scaler()
    return looped(lambda: loss_fn(model, *batch), adamw(model), scaler)


def looped(forward: Callable[[], Any], optimizer: Any, scaler: Any) -> Step:
    """A step of that loop; ``forward`` makes the loss, and ``scaler`` is torch's, Paddle's, ours or None."""
    clear = getattr(optimizer, "clear_grad", None) or optimizer.zero_grad  # Paddle's, torch's

    def step() -> None:
        clear()
        loss = forward()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return step


def bridged(
    fresh: Fresh, policy: str | amp.Policy, scaled: bool | None = None, **options: Any
) -> Step:
    """Ampbridge's step; with the policy's own scaler, unless ``scaled`` says whether there is one."""
    model, loss_fn, batch, adamw = fresh()
    if scaled is not None:
        options["scaler"] = amp.GradScaler(enabled=scaled)
    step = amp.train_step(loss_fn, model, adamw(model), policy=policy, **options)
    return lambda: step(*batch)


def beside(
    name: str,
    baseline: Maker,
    fresh: Fresh,
    policies: Mapping[str, str | amp.Policy],
    scaled: bool | None = None,
    more: Mapping[str, Maker] = {},
) -> dict[str, Maker]:
    """The baseline, our steps under ``policies``, ``more``, and the baseline again."""
    ours = {title: partial(bridged, fresh, policy, scaled) for title, policy in policies.items()}
    return {name: baseline, **ours, **more, f"{name}, again": baseline}
