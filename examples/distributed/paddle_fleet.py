"""Paddle's hybrid groups in mixed precision, an overflow on one rank included.

    python -m paddle.distributed.launch --nproc_per_node 2 examples/distributed/paddle_fleet.py \
        --parallel sharding

``--parallel data`` is ``paddle.DataParallel`` by way of fleet. With ``sharding`` (ZeRO's first stage) each
rank has gradients of its own data and updates its share of the weights; with ``model`` each rank has a
share of the hidden units, so that no other sees their gradients. There the ranks agree on what was found,
by one int32 a step. Paddle's layers for ``model`` need GPUs: they have no kernels for CPUs.

Each rank prints one line, all of them alike: its steps ("s" is a skipped one), the scale, and what its
weights hash to. The launcher shows the first rank's, the others' are in its ``--log_dir``.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
import paddle
from paddle import nn
from paddle.distributed import fleet

import ampbridge as amp

HIDDEN = 24  # shared out to 2, 3, 4, 6 or 8 ranks


class TimesFactor(paddle.autograd.PyLayer):
    """What it is given; the gradient is multiplied by a factor. With inf it overflows."""

    @staticmethod
    def forward(ctx, x: paddle.Tensor, factor: paddle.Tensor) -> paddle.Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, grad: paddle.Tensor) -> tuple[paddle.Tensor, None]:
        return grad * ctx.factor, None


class FeedForward(nn.Layer):
    """Two layers; with ``shared`` each rank has a part of the hidden units."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        if shared:
            layers = fleet.meta_parallel
            self.inner = layers.ColumnParallelLinear(16, HIDDEN, has_bias=True, gather_output=False)
            self.outer = layers.RowParallelLinear(HIDDEN, 4, input_is_parallel=True)
        else:
            self.inner, self.outer = nn.Linear(16, HIDDEN), nn.Linear(HIDDEN, 4)

    def forward(self, x: paddle.Tensor, factor: paddle.Tensor) -> paddle.Tensor:
        hidden = nn.functional.gelu(self.inner(x))
        return self.outer(TimesFactor.apply(hidden, factor))


def loss_fn(model: nn.Layer, x: paddle.Tensor, y: paddle.Tensor, factor: paddle.Tensor):
    return nn.functional.cross_entropy(model(x, factor), y)


def start(parallel: str) -> None:
    """Form the groups: all ranks are in one."""
    degrees = {"dp_degree": 1, "mp_degree": 1, "sharding_degree": 1, "pp_degree": 1}
    axis = {"data": "dp_degree", "model": "mp_degree", "sharding": "sharding_degree"}[parallel]
    strategy = fleet.DistributedStrategy()
    # The launcher tells each process how many there are.
    ranks = paddle.distributed.ParallelEnv().world_size
    strategy.hybrid_configs = {**degrees, axis: ranks}
    # In model parallelism ranks read the same batches; they need not be sent from the first.
    strategy.hybrid_configs["mp_configs"].need_broadcast_data = False
    fleet.init(is_collective=True, strategy=strategy)


def whole_weights(model: nn.Layer) -> dict[str, np.ndarray]:
    """With the parts of all ranks put together; every rank has to ask."""
    weights = {}
    for name, weight in model.named_parameters():
        if weight.is_distributed:
            parts: list[paddle.Tensor] = []
            paddle.distributed.all_gather(parts, weight.detach())
            weight = paddle.concat(parts, axis=weight.split_axis)
        weights[name] = weight.numpy()
    return weights


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parallel", default="sharding", choices=["data", "sharding", "model"])
    parser.add_argument("--policy", default="O1")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--save", type=Path, help="a folder for the weights before and after")
    arguments = parser.parse_args()

    start(arguments.parallel)
    rank, ranks = paddle.distributed.get_rank(), paddle.distributed.get_world_size()
    paddle.seed(0)
    network = FeedForward(shared=arguments.parallel == "model")
    before = whole_weights(network)
    # clip_norm would look at one rank's gradients; fleet makes this the norm over all ranks.
    clip = nn.ClipGradByGlobalNorm(0.5)
    optimizer = paddle.optimizer.AdamW(0.01, parameters=network.parameters(), grad_clip=clip)
    if arguments.policy.startswith("O2"):
        amp.decorate(network, optimizer, arguments.policy)  # ahead of fleet
    model = fleet.distributed_model(network)
    optimizer = fleet.distributed_optimizer(optimizer)
    scaler = amp.GradScaler(1024.0, growth_interval=3)
    step = amp.train_step(loss_fn, model, optimizer, policy=arguments.policy, scaler=scaler)

    rng = np.random.default_rng(0 if arguments.parallel == "model" else rank)
    history = ""
    for number in range(arguments.steps):
        x, y = rng.standard_normal([8, 16]).astype(np.float32), rng.integers(0, 4, [8, 1])
        # One rank after the other overflows, and that one alone.
        overflows = number % 4 == 1 and number // 4 % ranks == rank
        result = step(x, y, np.float32(np.inf if overflows else 1.0))
        history += "." if result.applied else "s"

    after = whole_weights(network)
    if arguments.save and rank == 0:
        arguments.save.mkdir()
        np.savez(arguments.save / "before.npz", **before)
        np.savez(arguments.save / "after.npz", **after)
    digest = hashlib.blake2b(digest_size=8)
    for weight in after.values():
        digest.update(weight.tobytes())
    print(f"{history} scale={scaler.get_scale():g} weights={digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
