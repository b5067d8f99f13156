"""DistributedDataParallel and FSDP2 over gloo: an overflow on one rank skips the step on all."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim

from ampbridge.checkpoints import checkpoint

EXAMPLE = Path(__file__).parents[2] / "examples" / "distributed" / "torch_ddp.py"
STEPS = 12

pytestmark = [
    pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo"),
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="the example takes NCCL, a GPU for each rank"
    ),
    pytest.mark.slow,
]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def launch(script: Path, ranks: int, *arguments: str) -> str:
    """What all ranks print, under torchrun."""
    launcher = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc_per_node", str(ranks), str(script), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lines_of_example(ranks: int, *arguments: str) -> list[str]:
    printed = launch(EXAMPLE, ranks, "--steps", str(STEPS), *arguments)
    return re.findall(r"[.s]+ scale=\S+ weights=\w+", printed)


def in_one_process(ranks: int) -> dict[str, Tensor]:
    """The weights after a loop by hand over all ranks' batches, without the steps that overflow."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = optim.AdamW(model.parameters(), 0.01)
    generators = [torch.Generator().manual_seed(rank) for rank in range(ranks)]
    for number in range(STEPS):
        batches = [
            (torch.randn(8, 16, generator=g), torch.randint(4, (8,), generator=g))
            for g in generators
        ]
        if number % 4 == 1:
            continue
        optimizer.zero_grad()
        losses = [nn.functional.cross_entropy(model(x), y) for x, y in batches]
        (torch.stack(losses).sum() / ranks).backward()
        optimizer.step()
    return dict(model.named_parameters())


def test_an_overflow_on_one_rank_skips_the_step_on_all(tmp_path: Path) -> None:
    first, second = lines_of_example(2, "--policy", "O0", "--save", str(tmp_path / "saved"))
    assert first == second
    # 1024, halved after each skip, doubled after three finite steps.
    assert first.startswith(".s...s...s.. scale=512 ")
    tensors = checkpoint.read(tmp_path / "saved").tensors
    for name, expected in in_one_process(2).items():
        saved = torch.from_numpy(tensors[f"weights/{name}"])
        torch.testing.assert_close(saved, expected.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--policy", "O2"], marks=pytest.mark.nightly),
        ["--policy", "O1:bfloat16", "--sharded"],
    ],
)
def test_three_ranks_in_low_precision(arguments: list[str]) -> None:
    lines = lines_of_example(3, *arguments)
    assert len(lines) == 3
    assert lines[0].startswith(".s...s...s.. scale=512 ")
    assert len(set(lines)) == 1


ONE_SHARD = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
import ampbridge as amp


def say(what):
    os.write(1, f"<{what}>\\n".encode())


dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(4, 6, bias=False)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
step = amp.train_step(
    lambda m, factor: (m(torch.ones(2, 4))[:, 0] * factor).mean(),
    model,
    optimizer,
    policy="O1:bfloat16",
    scaler=amp.GradScaler(64.0),
)
for value in ("1", "inf", "nan"):
    result = step(torch.tensor(float(value)))
    say(f"{value}: {result.applied} {result.reason} {step.scaler.get_scale():g}")
older = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
try:
    amp.backend("torch").read_weights(older)
except amp.UnsupportedError as error:
    say(str(error).splitlines()[0])
dist.destroy_process_group()
os._exit(0)  # see the example
"""


def test_ranks_agree_on_what_one_shard_alone_holds(tmp_path: Path) -> None:
    """The gradient of the first row, which is in the first rank's shard, overflows; no other does."""
    script = tmp_path / "one_shard.py"
    script.write_text(ONE_SHARD)
    printed = re.findall(r"<(.*?)>", launch(script, 2))
    refused = (
        "The model is in FullyShardedDataParallel, whose shards are of no parameter by itself."
    )
    steps = ["1: True None 64", "inf: False inf 32", "nan: False nan 16"]
    assert sorted(printed) == sorted(2 * [*steps, refused])


CLIPPED = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
import ampbridge as amp


def weights(kind, clipping):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    if kind == "sharded":
        fully_shard(model)
    elif kind == "replicated":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    step = amp.train_step(
        lambda m, x: m(x).square().mean(), model, optimizer, policy="O0", **clipping
    )
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
    if kind != "alone":
        x = x.chunk(2)[dist.get_rank()]
    for _ in range(20):
        step(x)
    held = model.parameters()
    return [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in held]


dist.init_process_group("gloo")
for name, limit in {"clip_norm": 0.1, "clip_each_norm": 0.05, "clip_value": 0.01}.items():
    for kind in ("sharded", "replicated"):
        together, alone, free = (
            weights(*how) for how in ((kind, {name: limit}), ("alone", {name: limit}), ("alone", {}))
        )
        torch.testing.assert_close(together, alone)
        assert not torch.allclose(together[0], free[0])
        os.write(1, f"<{kind} {name}>\\n".encode())
dist.destroy_process_group()
os._exit(0)  # see the example
"""


def test_ranks_clip_the_gradients_of_all(tmp_path: Path) -> None:
    """Whatever is clipped: shards as whole gradients are, and replicas' means, as one process would."""
    script = tmp_path / "clipped.py"
    script.write_text(CLIPPED)
    printed = re.findall(r"<(.*?)>", launch(script, 2))
    ways = ("clip_norm", "clip_each_norm", "clip_value")
    expected = [f"{kind} {way}" for kind in ("sharded", "replicated") for way in ways]
    assert sorted(printed) == sorted(2 * expected)


SCHEDULED = """
import os
import torch
import torch.distributed as dist
import ampbridge as amp

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.0)
plan = amp.Schedule.when(loss_below=0.5, use="O1:bfloat16", otherwise="O0")
step = amp.train_step(
    lambda m, loss: 0 * m(torch.ones(2, 4)).mean() + loss, model, optimizer, policy=plan
)
for losses in ((0.0, 1.5), (0.0, 0.5), (0.0, 1.5)):
    loss = step(torch.tensor(losses[dist.get_rank()])).loss
    os.write(1, f"<{loss:g} {step.policy}>\\n".encode())
dist.destroy_process_group()
os._exit(0)  # see the example
"""


def test_ranks_change_their_policy_by_the_loss_of_all(tmp_path: Path) -> None:
    script = tmp_path / "scheduled.py"
    script.write_text(SCHEDULED)
    printed = re.findall(r"<(.*?)>", launch(script, 2))
    assert sorted(printed) == sorted(2 * ["0.75 O0", "0.25 O1:bfloat16", "0.75 O0"])


IN_FLOAT16 = """
import math
import os
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
import ampbridge as amp

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
low = MixedPrecisionPolicy(torch.float16, torch.float32, torch.float32)
fully_shard(model, mp_policy=low, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)


def loss_fn(model, x, y, factor):
    return nn.functional.cross_entropy(model(x), y) * factor


step = amp.train_step(
    loss_fn, model, optimizer, scaler=amp.GradScaler(1024.0), clip_norm=0.3, scheduler=scheduler
)
generator = torch.Generator().manual_seed(rank)
told = []
for number in range(8):
    x, y = torch.randn(8, 16, generator=generator), torch.randint(4, (8,), generator=generator)
    result = step(x, y, math.inf if (number, rank) == (3, 1) else 1.0)
    told.append((result.applied, result.reason, result.scale, scheduler.last_epoch))
weights = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
torch.save({"told": told, "weights": weights}, os.path.join(sys.argv[1], f"{rank}.pt"))
dist.barrier()
os._exit(0)  # see the example
"""


def test_float16_under_fsdp2_skips_on_all_ranks_and_clips_by_the_norm_of_all_shards(
    tmp_path: Path,
) -> None:
    """torchtitan#2356, accelerate#3979. The expected weights are those of float32 in one process."""
    (tmp_path / "float16.py").write_text(IN_FLOAT16)
    launch(tmp_path / "float16.py", 2, str(tmp_path))
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert one["told"] == other["told"]
    assert [told[0] for told in one["told"]] == [number != 3 for number in range(8)]
    assert one["told"][3] == (False, "inf", 1024.0, 3)
    assert one["told"][-1] == (True, None, 512.0, 7)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    generators = [torch.Generator().manual_seed(rank) for rank in range(2)]
    for number in range(8):
        batches = [
            (torch.randn(8, 16, generator=g), torch.randint(4, (8,), generator=g))
            for g in generators
        ]
        if number == 3:
            continue
        optimizer.zero_grad()
        losses = [nn.functional.cross_entropy(model(x), y) for x, y in batches]
        (torch.stack(losses).sum() / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        scheduler.step()
    for name, expected in model.named_parameters():
        torch.testing.assert_close(one["weights"][name], expected.detach(), rtol=0, atol=1e-3)
        torch.testing.assert_close(one["weights"][name], other["weights"][name], rtol=0, atol=0)


DYING = """
import os
import torch
import torch.distributed as dist
import ampbridge as amp

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
step = amp.train_step(lambda m, x: m(x).square().mean(), model, optimizer, policy="O1:bfloat16")
for number in range(5):
    if number == 2 and dist.get_rank() == 1:
        os._exit(7)
    step(torch.ones(2, 4))
    print("step", number, flush=True)
"""


def test_a_rank_that_dies_ends_the_other_one(tmp_path: Path) -> None:
    """Without the launcher, which would end it anyway."""
    (tmp_path / "dying.py").write_text(DYING)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "dying.py"],
            cwd=tmp_path,
            env={**environment(), **place, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        (printed, errors), _ = (each.communicate() for each in ranks)
    finally:
        for each in ranks:
            each.kill()
    assert ranks[1].returncode == 7
    assert ranks[0].returncode != 0
    assert printed.split("\n")[:2] == ["step 0", "step 1"]
    assert "step 2" not in printed
    assert "Connection closed by peer" in errors or "Connection reset by peer" in errors
