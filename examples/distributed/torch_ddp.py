"""Data parallel training in mixed precision on PyTorch, an overflow on one rank included.

    torchrun --nproc_per_node 2 examples/distributed/torch_ddp.py

``DistributedDataParallel`` averages gradients over all ranks in the backward pass, inf and NaN with
them. So each rank finds the same in its gradients and takes the same decision: nothing has to be agreed
on, and ampbridge adds no communication of its own. With ``--sharded`` it is FSDP2's ``fully_shard``:
each rank finds what is in its shards, and torch takes the maximum over the ranks, of one number a step.

Each rank prints one line, all of them alike: its steps ("s" is a skipped one), the scale, and what its
weights hash to.
"""

from __future__ import annotations

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ampbridge as amp


def loss_fn(model: nn.Module, x: Tensor, y: Tensor, factor: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y) * factor


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", default="O1")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--save", help="a folder for a checkpoint")
    arguments = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to(device)
    if arguments.sharded:
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    if arguments.policy.startswith("O2"):
        amp.decorate(model, optimizer, arguments.policy)  # ahead of the wrapper
    if not arguments.sharded:
        model = DistributedDataParallel(model)
    scaler = amp.GradScaler(1024.0, growth_interval=3)
    step = amp.train_step(loss_fn, model, optimizer, policy=arguments.policy, scaler=scaler)

    generator = torch.Generator().manual_seed(rank)
    history = ""
    for number in range(arguments.steps):
        x, y = torch.randn(8, 16, generator=generator), torch.randint(4, (8,), generator=generator)
        # One rank after the other overflows, and that one alone.
        overflows = number % 4 == 1 and number // 4 % ranks == rank
        factor = torch.tensor(torch.inf if overflows else 1.0)
        result = step(x.to(device), y.to(device), factor.to(device))
        history += "." if result.applied else "s"

    if arguments.save:
        step.save(arguments.save)  # every rank calls it, the first one writes
    digest = hashlib.blake2b(digest_size=8)
    for parameter in model.parameters():
        whole = parameter.full_tensor() if arguments.sharded else parameter
        digest.update(whole.detach().float().cpu().numpy().tobytes())
    line = f"{history} scale={scaler.get_scale():g} weights={digest.hexdigest()}\n"
    os.write(1, line.encode())  # in one piece: torchrun mixes the ranks' output
    dist.barrier()  # nobody leaves while another still talks to it
    if on_gpu:
        dist.destroy_process_group()
    # A model that is freed after its Gloo group waits for Gloo's threads, which may wait for the GIL.


if __name__ == "__main__":
    main()
    # Gloo's threads outlive their group, and may abort Python's own way out (pytorch#179291).
    os._exit(0)
