"""A training that saves after every step, and goes on from what it finds saved.

    python killed_training.py CHECKPOINT STEPS RESULT

Says the number of each step that has been saved. RESULT is a JSON file of all that is left at the end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle_reference import bits

import ampbridge as amp

PLAN = [
    (0, amp.Policy("O2", keep=["4"])),
    (13, amp.Policy("O1")),
    (23, amp.Policy("O2", "bfloat16")),
]


def make_step() -> amp.TrainStep:
    paddle.seed(0)
    model = nn.Sequential(
        nn.Conv2D(1, 4, 3), nn.BatchNorm2D(4), nn.GELU(), nn.Flatten(), nn.Linear(64, 3)
    )
    rate = paddle.optimizer.lr.CosineAnnealingDecay(0.01, 7)
    return amp.train_step(
        lambda model, x, y, factor: nn.functional.cross_entropy(model(x), y) * factor,
        model,
        paddle.optimizer.AdamW(rate, parameters=model.parameters()),
        policy=amp.Schedule(PLAN),
        scaler=amp.GradScaler(64.0, growth_interval=3),
        scheduler=rate,
        clip_norm=1.0,
    )


def batch(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of one step; every fifth overflows."""
    rng = np.random.default_rng(number)
    images = rng.standard_normal([8, 1, 6, 6]).astype(np.float32)
    factor = np.float32(np.inf if number % 5 == 3 else 1.0)
    return images, rng.integers(0, 3, [8, 1]), factor


def everything(step: amp.TrainStep) -> dict[str, Any]:
    """Weights, buffers and slots as bits, under Paddle's names."""
    return {
        "model": {name: bits(x).hex() for name, x in step.model.state_dict().items()},
        "optimizer": {
            name: bits(x).hex() if isinstance(x, paddle.Tensor) else x
            for name, x in step.optimizer.state_dict().items()
        },
        "step": step.state_dict(),
    }


def main(checkpoint: Path, steps: int, result: Path) -> None:
    step = make_step()
    if (checkpoint / "state.json").exists():
        step.load(checkpoint)
    for number in range(step.state_dict()["step"], steps):
        step(*batch(number))
        step.save(checkpoint)
        print(number, flush=True)
    result.write_text(json.dumps(everything(step)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
