"""``paddle.DataParallel`` over gloo, started by Paddle's launcher: an overflow on one rank skips all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
from launching import launch, start
from paddle import nn

import ampbridge as amp
from ampbridge.checkpoints import checkpoint

EXAMPLE = Path(__file__).parents[2] / "examples" / "distributed" / "paddle_data_parallel.py"
STEPS = 12

pytestmark = [
    pytest.mark.skipif(
        not paddle.distributed.is_available(), reason="Paddle is built without distributed training"
    ),
    pytest.mark.slow,
]


def lines_of_example(folder: Path, ranks: int, *arguments: str) -> list[str]:
    """The line that each rank prints."""
    logs = launch(EXAMPLE, folder, ranks, "--steps", str(STEPS), *arguments)
    return [next(line for line in log.splitlines() if " weights=" in line) for log in logs]


def batch(rng: np.random.Generator) -> tuple[paddle.Tensor, paddle.Tensor]:
    """The example's."""
    x = rng.standard_normal([8, 16]).astype(np.float32)
    return paddle.to_tensor(x), paddle.to_tensor(rng.integers(0, 4, [8, 1]))


def in_one_process(ranks: int) -> list[np.ndarray]:
    """The weights after a loop by hand over all ranks' batches, without the steps that overflow."""
    paddle.seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = paddle.optimizer.AdamW(0.01, parameters=model.parameters())
    rngs = [np.random.default_rng(rank) for rank in range(ranks)]
    for number in range(STEPS):
        batches = [batch(rng) for rng in rngs]
        if number % 4 == 1:
            continue
        losses = [nn.functional.cross_entropy(model(x), y) for x, y in batches]
        (sum(losses[1:], start=losses[0]) / ranks).backward()
        optimizer.step()
        optimizer.clear_grad()
    return [p.numpy() for p in model.parameters()]


def test_an_overflow_on_one_rank_skips_the_step_on_all(tmp_path: Path) -> None:
    first, second = lines_of_example(tmp_path, 2, "--policy", "O0", "--save", "saved")
    assert first == second
    # 1024, halved after each skip, doubled after three finite steps.
    assert first.startswith(".s...s...s.. scale=512 ")
    tensors = checkpoint.read(tmp_path / "saved").tensors
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    for name, expected in zip(names, in_one_process(2), strict=True):
        assert np.allclose(tensors[f"weights/{name}"], expected, rtol=0, atol=1e-5)


@pytest.mark.nightly  # two of them, and three of fleet's, are tested by day
def test_three_ranks_in_low_precision(tmp_path: Path) -> None:
    lines = lines_of_example(tmp_path, 3, "--policy", "O2")
    assert lines[0].startswith(".s...s...s.. scale=512 ")
    assert len(set(lines)) == 1


SCHEDULED = """
import numpy as np, paddle
import ampbridge as amp

paddle.distributed.init_parallel_env()
model = paddle.DataParallel(paddle.nn.Linear(4, 4))
optimizer = paddle.optimizer.SGD(0.0, parameters=model.parameters())
plan = amp.Schedule.when(loss_below=0.5, use="O1:bfloat16", otherwise="O0")
step = amp.train_step(
    lambda m, x, loss: 0 * m(x).mean() + loss, model, optimizer, policy=plan
)
for losses in ((0.0, 1.5), (0.0, 0.5), (0.0, 1.5)):
    loss = np.float32(losses[paddle.distributed.get_rank()])
    print(f"{step(np.ones([2, 4], np.float32), loss).loss:g} {step.policy}", flush=True)
"""


def test_ranks_change_their_policy_by_the_loss_of_all(tmp_path: Path) -> None:
    script = tmp_path / "scheduled.py"
    script.write_text(SCHEDULED)
    ranks = start(script, 2)
    try:
        printed = [each.communicate() for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    for lines, errors in printed:
        assert lines.split("\n")[:3] == ["0.75 O0", "0.25 O1:bfloat16", "0.75 O0"], errors


DYING = """
import os
import numpy as np, paddle
import ampbridge as amp

paddle.distributed.init_parallel_env()
model = paddle.DataParallel(paddle.nn.Linear(4, 4))
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
step = amp.train_step(lambda model, x: model(x).square().mean(), model, optimizer)
for number in range(5):
    if number == 2 and paddle.distributed.get_rank() == 1:
        os._exit(7)
    step(np.ones([2, 4], np.float32))
    print("step", number, flush=True)
"""


def test_a_rank_that_dies_ends_the_other_one(tmp_path: Path) -> None:
    """Without the launcher, which would end it anyway."""
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    ranks = start(script, 2)
    try:
        (printed, errors), _ = (each.communicate() for each in ranks)
    finally:
        for each in ranks:
            each.kill()
    assert ranks[1].returncode == 7
    assert ranks[0].returncode != 0
    assert printed.split("\n")[:2] == ["step 0", "step 1"]
    assert "step 2" not in printed
    assert "gloo" in errors


def test_compiling_a_call_that_needs_the_eager_tracer_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.warns(UserWarning, match="single-card"):
        model = paddle.DataParallel(nn.Linear(2, 2))
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    step = amp.train_step(lambda m, x: m(x).sum(), model, optimizer, policy="O0", compile=True)
    monkeypatch.setattr(paddle.distributed, "get_world_size", lambda: 2)
    with pytest.raises(amp.UnsupportedError, match=r"eager tracer.*\nHint: compile=False"):
        step(np.ones([1, 2], np.float32))
