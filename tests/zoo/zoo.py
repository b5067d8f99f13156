"""What a zoo of models that nobody here wrote is made of.

A model of a package stands in a table (``*_models.py``) as a specimen. A framework (``in_*.py``) trains
it by its own means. ``properties.py`` holds what has to be true of each, ``test_*.py`` one process's tests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pytest

import ampbridge as amp

Batch = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Specimen:
    """A model with random weights, and what trains it.

    Attributes:
        build: makes the model, ready to be trained.
        batch: makes the arguments of ``loss`` behind the model.
        loss: ``loss(model, *batch)``.
        optimizer: makes the optimizer of a model, where it is not the framework's usual one.
    """

    name: str
    build: Callable[[], Any]
    batch: Callable[[np.random.Generator], Batch]
    loss: Callable[..., Any]
    optimizer: Callable[[Any], Any] | None = None

    def batches(self, count: int) -> list[Batch]:
        random = np.random.default_rng(1)
        return [self.batch(random) for _ in range(count)]


@dataclass(frozen=True)
class Run:
    """What a training did, step by step, and its float32 weights and buffers at the end."""

    losses: Sequence[float]
    scales: Sequence[float]
    weights: Mapping[str, np.ndarray]

    def farthest_from(self, other: Run) -> float:
        """The largest distance of two losses of one step."""
        return max(abs(a - b) for a, b in zip(self.losses, other.losses, strict=True))


@dataclass(frozen=True)
class BridgedRun(Run):
    """A training by ampbridge.

    Attributes:
        applied: whether each step was.
        changed: whether anything that an optimizer steps was another after each step.
        saved: the checkpoint made half way.
    """

    applied: Sequence[bool]
    changed: Sequence[bool]
    saved: Path


def overflowing_at_first(backoff_factor: float) -> dict[str, Any]:
    """A scaler's settings. It begins so high that the first steps of most models overflow."""
    return {
        "init_scale": 2.0**24,
        "growth_factor": 2.0,
        "backoff_factor": backoff_factor,
        "growth_interval": 2,
    }


class Framework(Protocol):
    """Training by a framework's own means. Uses nothing of ampbridge."""

    steps: int
    """Of each training."""

    scaling: Mapping[str, Any]
    """The scaler's settings."""

    compiled = False
    """Whether steps are compiled where a property does not ask for it."""

    def seed(self, number: int) -> None: ...

    def model(self, specimen: Specimen) -> Any:
        """Made from the same random numbers each time."""
        self.seed(0)
        return specimen.build()

    def optimizer(self, specimen: Specimen, model: Any) -> Any: ...

    def weights(self, model: Any) -> dict[str, np.ndarray]:
        """Copies of parameters and buffers, by name, in the dtype in which they are held."""

    def trained(self, model: Any, optimizer: Any) -> list[bytes]:
        """All that a step of the optimizer changes: parameters, masters, slots, counters."""

    def anatomy(self, model: Any, optimizer: Any) -> dict[str, Any]:
        """All that the two are made of but for the numbers: classes, attributes, hooks, dtypes."""

    def train(self, specimen: Specimen, dtype: str) -> Run:
        """In float32, or in ``dtype`` by the framework's own mixed precision; float16 is scaled."""


def described(part: Any) -> tuple[Any, ...]:
    """Its class, its dtype and its attributes, each the same object as before; hooks are in dictionaries."""
    attributes = {
        name: sorted((str(key), id(item)) for key, item in value.items())
        if isinstance(value, dict)
        else id(value)
        for name, value in vars(part).items()
    }
    return type(part), getattr(part, "dtype", None), attributes


class Subject:
    """A specimen and its trainings, each run once for all properties that look at it.

    ``folder`` is for checkpoints.
    """

    def __init__(self, specimen: Specimen, framework: Framework, folder: Path) -> None:
        self.specimen, self.framework = specimen, framework
        self.batches = specimen.batches(framework.steps)
        self.half = framework.steps // 2
        self.native = cache(partial(framework.train, specimen))
        self.train = cache(self._train)
        self._folder = folder

    def built(self) -> tuple[Any, Any]:
        """The model and its optimizer, with the same numbers each time."""
        model = self.framework.model(self.specimen)
        return model, self.framework.optimizer(self.specimen, model)

    def step_of(
        self,
        model: Any,
        optimizer: Any,
        policy: amp.Policy,
        compile: bool | Literal["auto"] | None = None,
    ) -> amp.TrainStep:
        compile = self.framework.compiled if compile is None else compile
        scaler = amp.GradScaler(**self.framework.scaling) if policy.needs_scaling else None
        return amp.train_step(
            self.specimen.loss, model, optimizer, policy=policy, scaler=scaler, compile=compile
        )

    def take(self, step: amp.TrainStep, number: int) -> amp.StepResult:
        """The step of that number: dropout in it is the same in each training."""
        self.framework.seed(number)
        return step(*self.batches[number])

    def _train(self, policy: amp.Policy) -> BridgedRun:
        """Trained by ampbridge, saved half way."""
        model, optimizer = self.built()
        step = self.step_of(model, optimizer, policy)
        saved = self._folder / str(policy)
        results, changed = [], []
        for number in range(self.framework.steps):
            before = self.framework.trained(model, optimizer)
            results.append(self.take(step, number))
            changed.append(self.framework.trained(model, optimizer) != before)
            if number + 1 == self.half:
                step.save(saved)
        amp.undecorate(model, optimizer)
        losses, scales = [r.loss for r in results], [r.scale for r in results]
        weights, applied = self.framework.weights(model), [r.applied for r in results]
        return BridgedRun(losses, scales, weights, applied, changed, saved)


def parameters(specimens: Sequence[Specimen], quick: Collection[str]) -> list[Any]:
    """What a fixture is parametrized by: `make zoo` has all, `make test-slow` those named in ``quick``."""
    marks = {True: [pytest.mark.quick], False: []}
    return [pytest.param(each, id=each.name, marks=marks[each.name in quick]) for each in specimens]
