"""Optimizers of three packages, each with a model of transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import prodigyopt
import pytorch_optimizer
import schedulefree
from transformers_models import SPECIMENS as WITH_ADAM
from zoo import Specimen


def trained_by(name: str, optimizer: Callable[[Any], Any]) -> Specimen:
    model = next(each for each in WITH_ADAM if each.name == "llama")
    return replace(model, name=f"llama-by-{name}", optimizer=optimizer)


def lamb(model: Any) -> Any:
    return pytorch_optimizer.Lamb(model.parameters(), lr=1e-3)


def prodigy(model: Any) -> Any:
    return prodigyopt.Prodigy(model.parameters())


def schedule_free(model: Any) -> Any:
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=1e-3)
    optimizer.train()
    return optimizer


SPECIMENS = [
    trained_by("lamb", lamb),
    trained_by("prodigy", prodigy),
    trained_by("schedule-free", schedule_free),
]
