"""Training in Paddle, by the loop of its guides. On a CPU it has no mixed precision of its own."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import paddle
from zoo import Framework, Run, Specimen, described, overflowing_at_first


class Paddle(Framework):
    """See ``zoo.Framework``."""

    steps = 4
    scaling: ClassVar = overflowing_at_first(backoff_factor=2.0**-6)

    def seed(self, number: int) -> None:
        paddle.seed(number)

    def optimizer(self, _: Specimen, model: paddle.nn.Layer) -> paddle.optimizer.Optimizer:
        return paddle.optimizer.AdamW(1e-3, parameters=model.parameters())

    def weights(self, model: paddle.nn.Layer) -> dict[str, np.ndarray]:
        return {name: value.numpy() for name, value in model.state_dict().items()}

    def trained(self, model: paddle.nn.Layer, optimizer: paddle.optimizer.Optimizer) -> list[bytes]:
        state = optimizer.state_dict()
        slots = {**state, **state.get("master_weights", {})}.values()
        trainable = [each for each in model.parameters() if not each.stop_gradient]
        tensors = [*trainable, *(each for each in slots if paddle.is_tensor(each))]
        return [each.numpy().tobytes() for each in tensors]

    def anatomy(
        self, model: paddle.nn.Layer, optimizer: paddle.optimizer.Optimizer
    ) -> dict[str, Any]:
        layers = [described(layer) for layer in model.sublayers(include_self=True)]
        dtypes = {name: value.dtype for name, value in model.state_dict().items()}
        return {"layers": layers, "dtypes": dtypes, "optimizer": described(optimizer)}

    def train(self, specimen: Specimen, dtype: str) -> Run:
        assert dtype == "float32"
        model = self.model(specimen)
        optimizer = self.optimizer(specimen, model)
        losses = []
        for number, batch in enumerate(specimen.batches(self.steps)):
            self.seed(number)
            loss = specimen.loss(model, *map(paddle.to_tensor, batch))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            losses.append(float(loss))
        return Run(losses, [1.0] * self.steps, self.weights(model))

    def rounded_loss(self, specimen: Specimen, dtype: str) -> float:
        """The first loss in float32 where weights and pictures alone are rounded to ``dtype``."""
        model = self.model(specimen)
        for each in model.parameters():
            each.set_value(each.astype(dtype).astype("float32"))
        x, y = map(paddle.to_tensor, specimen.batches(1)[0])
        self.seed(0)
        return float(specimen.loss(model, x.astype(dtype).astype("float32"), y))
