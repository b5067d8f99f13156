"""Paddle's own mixed precision: the loop of its guide, written by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import paddle

from ampbridge.training.recipe import Recipe
from ampbridge.workloads import Workload
from ampbridge_compare.native import NativeStep, left_out

SWITCHED_OFF = "Paddle switches its AMP off on a CPU: this loop ran in float32, without a scaler."


class NativeLoop:
    """``paddle.amp.auto_cast``, ``decorate`` at O2, and ``paddle.amp.GradScaler``."""

    def __init__(self, build: Callable[[], Workload], recipe: Recipe) -> None:
        policy, scaling = recipe.policy, recipe.scaler
        self.workload = build()
        self._optimizer = self.workload.optimizer
        self._casting = {
            "enable": policy.level != "O0",
            "level": "O1" if policy.level == "O0" else policy.level,
            "dtype": "float16" if policy.level == "O0" else policy.dtype,
        }
        on_cpu = paddle.get_device() == "cpu"
        settings = {}
        if scaling is not None:
            settings = {
                "init_loss_scaling": scaling.init_scale,
                "incr_ratio": scaling.growth_factor,
                "decr_ratio": scaling.backoff_factor,
                "incr_every_n_steps": scaling.growth_interval,
                "decr_every_n_nan_or_inf": scaling.backoff_interval,
            }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it does nothing on a CPU: said in the notes
            self._scaler = paddle.amp.GradScaler(enable=scaling is not None, **settings)
            if policy.level == "O2":
                model, self._optimizer = paddle.amp.decorate(
                    self.workload.model, self._optimizer, level="O2", dtype=policy.dtype
                )
                self.workload = replace(self.workload, model=model)
        self.execution = "none" if on_cpu or policy.level == "O0" else "native"
        self.described = (
            f"paddle.amp.auto_cast(level={self._casting['level']!r}, "
            f"dtype={self._casting['dtype']!r})"
            + (" and paddle.amp.GradScaler" if scaling is not None else "")
        )
        self.notes = left_out(recipe)
        if on_cpu and policy.level != "O0":
            self.notes.insert(0, SWITCHED_OFF)

    def gradients(self, batch: Sequence[Any], scale: float) -> list[np.ndarray]:
        (self._loss(batch) * scale).backward()
        parameters = [p for p in self.workload.model.parameters() if not p.stop_gradient]
        gradients = [parameter.grad.astype("float32").numpy() for parameter in parameters]
        self._optimizer.clear_grad()
        return gradients

    def step(self, batch: Sequence[Any]) -> NativeStep:
        scale = self._scale()
        loss = self._loss(batch)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.clear_grad()
        return NativeStep(float(loss), scale, applied=self._scale() >= scale)

    def _loss(self, batch: Sequence[Any]) -> paddle.Tensor:
        tensors = [paddle.to_tensor(each) for each in batch]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it does nothing on a CPU: said in the notes
            with paddle.amp.auto_cast(**self._casting):
                return self.workload.loss_fn(self.workload.model, *tensors)

    def _scale(self) -> float:
        return float(self._scaler.state_dict().get("scale", 1.0))
