"""Ranks that train one model together and save it; run by torchrun for test_shared_training.py.

    shared_training.py FOLDER OWN [FOREIGN ...]

Saves ``FOLDER/OWN-sharded`` and ``FOLDER/OWN-replicated``, loads the checkpoints ``FOLDER/FOREIGN``, and
says in a line each what the ranks have come to. What is said is read by torch alone.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ampbridge as amp

SAVED_AT, LAST = 4, 8
OVERFLOWS_AT = 2  # on the last rank alone


class Net(nn.Module):
    """Sizes that no number of ranks divides, a tied weight, a frozen one, buffers of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(7, 13), nn.LayerNorm(13), nn.GELU())
        self.head = nn.Linear(13, 5)
        self.tail = nn.Linear(13, 5)
        self.tail.weight = self.head.weight
        self.shift = nn.Parameter(torch.ones(5), requires_grad=False)
        self.register_buffer("scales", torch.linspace(1.0, 2.0, 5))
        self.register_buffer("places", torch.arange(5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return self.head(x) * self.scales + self.tail(x) + self.shift


def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), y)


def batch(number: int, rank: int = 0, ranks: int = 1) -> tuple[Tensor, Tensor]:
    """A rank's share of six examples."""
    generator = torch.Generator().manual_seed(number)
    x, y = torch.randn(6, 7, generator=generator), torch.randn(6, 5, generator=generator)
    y[-1] *= torch.inf if number == OVERFLOWS_AT else 1.0
    return x[rank::ranks], y[rank::ranks]


def made(kind: str) -> tuple[amp.TrainStep, Any]:
    """A step, and its optimizer's scheduler. The model is sharded, replicated or plain."""
    torch.manual_seed(0)
    model: nn.Module = Net()
    if kind == "sharded":
        fully_shard(model.body)
        fully_shard(model)
    decayed = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2 and p.requires_grad]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 0.02}]
    optimizer = optim.AdamW(groups, 0.01, amsgrad=True)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    if kind == "replicated":
        # Else it packs the gradients anew after its first step, and three ranks sum in another order.
        model = DistributedDataParallel(model, find_unused_parameters=True)
    step = amp.train_step(
        loss_fn,
        model,
        optimizer,
        policy="O1:bfloat16",
        scaler=amp.GradScaler(2.0**8, growth_interval=2),
        scheduler=scheduler,
    )
    return step, scheduler


def train(step: amp.TrainStep, last: int, rank: int = 0, ranks: int = 1) -> None:
    for number in range(step.state_dict()["step"], last):
        step(*batch(number, rank, ranks))


def digest(step: amp.TrainStep, scheduler: Any) -> str:
    """Of weights, buffers and slots as torch has them, and of all that counts."""
    model = getattr(step.model, "module", step.model)
    held = [*model.parameters(), *model.buffers()]
    for parameter in model.parameters():
        held += [x for _, x in sorted(step.optimizer.state.get(parameter, {}).items())]
    digest = hashlib.blake2b(repr((step.state_dict(), scheduler.state_dict())).encode())
    for tensor in held:
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        digest.update(repr((tuple(whole.shape), whole.dtype)).encode())
        digest.update(whole.detach().numpy().tobytes())
    return digest.hexdigest()[:16]


def say(*words: Any) -> None:
    os.write(1, f"<{' '.join(map(str, words))}>\n".encode())  # in one piece, among other ranks'


def main(folder: Path, own: str, foreign: list[str]) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for kind in ("sharded", "replicated"):
        unbroken, scheduler = made(kind)
        train(unbroken, SAVED_AT, rank, ranks)
        with torch.no_grad():
            unbroken.model(batch(0)[0])  # after which FSDP2 leaves the outermost parameters whole
        unbroken.save(folder / f"{own}-{kind}")
        say(kind, "saved", digest(unbroken, scheduler))
        train(unbroken, LAST, rank, ranks)
        say(kind, "unbroken", digest(unbroken, scheduler))
        resumed, scheduler = made(kind)
        resumed.load(folder / f"{own}-{kind}")
        train(resumed, LAST, rank, ranks)
        say(kind, "resumed", digest(resumed, scheduler))
        for name in foreign:
            other, scheduler = made(kind)
            train(other, 1, rank, ranks)  # what was there before does not matter
            other.load(folder / name)
            say(kind, name, digest(other, scheduler))
    (folder / "file").touch()
    try:
        resumed.save(folder / "file")
    except amp.StateError as error:
        say("refused", str(error).splitlines()[0].replace(str(folder), ""))
    dist.barrier()
    os._exit(0)  # as in examples/distributed/torch_ddp.py


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
