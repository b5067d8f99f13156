"""Training in torch, by the loop of its documentation."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from zoo import Framework, Run, Specimen, described, overflowing_at_first


class Torch(Framework):
    """See ``zoo.Framework``."""

    steps = 6
    scaling: ClassVar = overflowing_at_first(backoff_factor=2.0**-5)

    def seed(self, number: int) -> None:
        torch.manual_seed(number)

    def optimizer(self, specimen: Specimen, model: torch.nn.Module) -> torch.optim.Optimizer:
        if specimen.optimizer is not None:
            return specimen.optimizer(model)
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def weights(self, model: torch.nn.Module) -> dict[str, np.ndarray]:
        held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        return {name: value.detach().numpy().copy() for name, value in held.items()}

    def trained(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[bytes]:
        slots = [
            slot for each in optimizer.state_dict()["state"].values() for slot in each.values()
        ]
        tensors = [*model.parameters(), *(slot for slot in slots if torch.is_tensor(slot))]
        return [each.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for each in tensors]

    def anatomy(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        parts = [*model.modules(), *model.parameters(), *model.buffers(), optimizer]
        return {str(number): described(part) for number, part in enumerate(parts)}

    def train(self, specimen: Specimen, dtype: str) -> Run:
        model = self.model(specimen)
        optimizer = self.optimizer(specimen, model)
        scaler = torch.amp.GradScaler("cpu", enabled=dtype == "float16", **self.scaling)
        losses, scales = [], []
        for number, batch in enumerate(specimen.batches(self.steps)):
            self.seed(number)
            scales.append(scaler.get_scale())
            optimizer.zero_grad()
            with torch.autocast("cpu", getattr(torch, dtype), enabled=dtype != "float32"):
                loss = specimen.loss(model, *map(torch.from_numpy, batch))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return Run(losses, scales, self.weights(model))
