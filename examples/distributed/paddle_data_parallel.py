"""Data parallel training in mixed precision on PaddlePaddle, an overflow on one rank included.

    python -m paddle.distributed.launch --nproc_per_node 2 examples/distributed/paddle_data_parallel.py

``paddle.DataParallel`` averages gradients over all ranks in the backward pass, inf and NaN with them.
So each rank finds the same in its gradients and takes the same decision: nothing has to be agreed on,
and ampbridge adds no communication of its own. Each rank prints one line, all of them alike: its steps
("s" is a skipped one), the scale, and what its weights hash to. The launcher shows the first rank's, the
others' are in its ``--log_dir``.
"""

from __future__ import annotations

import argparse
import hashlib

import numpy as np
import paddle
from paddle import nn

import ampbridge as amp


def loss_fn(model: nn.Layer, x: paddle.Tensor, y: paddle.Tensor, factor: paddle.Tensor):
    return nn.functional.cross_entropy(model(x), y) * factor


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", default="O1")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--save", help="a folder for a checkpoint")
    arguments = parser.parse_args()

    paddle.distributed.init_parallel_env()
    rank, ranks = paddle.distributed.get_rank(), paddle.distributed.get_world_size()
    paddle.seed(rank)  # DataParallel gives every rank the weights of the first
    model = paddle.DataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)))
    optimizer = paddle.optimizer.AdamW(0.01, parameters=model.parameters())
    scaler = amp.GradScaler(1024.0, growth_interval=3)
    step = amp.train_step(loss_fn, model, optimizer, policy=arguments.policy, scaler=scaler)

    rng = np.random.default_rng(rank)
    history = ""
    for number in range(arguments.steps):
        x, y = rng.standard_normal([8, 16]).astype(np.float32), rng.integers(0, 4, [8, 1])
        # One rank after the other overflows, and that one alone.
        overflows = number % 4 == 1 and number // 4 % ranks == rank
        result = step(x, y, np.float32(np.inf if overflows else 1.0))
        history += "." if result.applied else "s"

    if arguments.save:
        step.save(arguments.save)  # every rank calls it, the first one writes
    digest = hashlib.blake2b(digest_size=8)
    for parameter in model.parameters():
        digest.update(parameter.numpy().tobytes())
    print(f"{history} scale={scaler.get_scale():g} weights={digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
