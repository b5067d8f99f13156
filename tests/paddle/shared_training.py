"""Ranks that train one model together and save it; run by Paddle's launcher for test_shared_training.py.

    shared_training.py FOLDER OWN [FOREIGN ...]

Saves ``FOLDER/OWN``, loads the checkpoints ``FOLDER/FOREIGN``, and says in a line each what the rank has
come to. What is said is read by Paddle alone.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

import ampbridge as amp

SAVED_AT, LAST = 4, 8
OVERFLOWS_AT = 2  # on the last rank alone


def batch(number: int, rank: int = 0, ranks: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """A rank's share of six examples."""
    rng = np.random.default_rng(number)
    x, y = (rng.standard_normal([6, n]).astype(np.float32) for n in (7, 5))
    y[-1] *= np.inf if number == OVERFLOWS_AT else 1.0
    return x[rank::ranks], y[rank::ranks]


def made(*, replicated: bool) -> amp.TrainStep:
    paddle.seed(0)
    model: Any = nn.Sequential(
        nn.Linear(7, 13), nn.LayerNorm(13), nn.GELU(), nn.Sequential(nn.Linear(13, 5))
    )
    rate = paddle.optimizer.lr.StepDecay(0.01, 2, 0.5)
    optimizer = paddle.optimizer.AdamW(rate, parameters=model.parameters())
    if replicated:
        model = paddle.DataParallel(model)
    return amp.train_step(
        lambda model, x, y: nn.functional.mse_loss(model(x), y),
        model,
        optimizer,
        policy="O1:bfloat16",
        scaler=amp.GradScaler(2.0**8, growth_interval=2),
        scheduler=rate,
    )


def train(step: amp.TrainStep, last: int, rank: int = 0, ranks: int = 1) -> None:
    for number in range(step.state_dict()["step"], last):
        step(*batch(number, rank, ranks))


def digest(step: amp.TrainStep) -> str:
    """Of weights and slots as Paddle has them, and of all that counts. Slots go by their order."""
    slots = step.optimizer.state_dict()
    held = [*step.model.parameters(), *(x for x in slots.values() if isinstance(x, paddle.Tensor))]
    digest = hashlib.blake2b(repr((step.state_dict(), slots["LR_Scheduler"])).encode())
    for tensor in held:
        digest.update(repr(tensor.shape).encode() + tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


def say(*words: Any) -> None:
    print(f"<{' '.join(map(str, words))}>", flush=True)


def main(folder: Path, own: str, foreign: list[str]) -> None:
    paddle.distributed.init_parallel_env()
    rank, ranks = paddle.distributed.get_rank(), paddle.distributed.get_world_size()
    unbroken = made(replicated=True)
    train(unbroken, SAVED_AT, rank, ranks)
    unbroken.save(folder / own)
    say("saved", digest(unbroken))
    train(unbroken, LAST, rank, ranks)
    say("unbroken", digest(unbroken))
    resumed = made(replicated=True)
    resumed.load(folder / own)
    train(resumed, LAST, rank, ranks)
    say("resumed", digest(resumed))
    for name in foreign:
        other = made(replicated=True)
        train(other, 1, rank, ranks)  # what was there before does not matter
        other.load(folder / name)
        say(name, digest(other))
    (folder / "file").touch()
    try:
        resumed.save(folder / "file")
    except amp.StateError as error:
        say("refused", str(error).splitlines()[0].replace(str(folder), ""))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
