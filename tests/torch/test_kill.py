"""Kill -9 at random moments, also while saving: what is resumed ends where an unbroken run ends."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from interrupted_training import FOREVER, train
from same_bits import assert_same

KILLS = 5 if settings.default.max_examples <= 100 else 20  # in the nightly profile
FURTHER = 15  # steps of the last run, which is not killed

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")


def test_a_killed_training_ends_where_an_unbroken_one_does(tmp_path: Path) -> None:
    draw = random.Random(1)
    # Its children are copies of a process that has imported what takes long, and done nothing else.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["ampbridge_torch.backend", "safetensors.numpy"])
    checkpoint, resumed, unbroken = (tmp_path / name for name in ("saved", "resumed", "unbroken"))
    reached: list[int] = []
    while len(reached) < KILLS:
        process = processes.Process(target=train, args=(checkpoint, FOREVER))
        process.start()
        wait_for_step(checkpoint, after=reached[-1] if reached else 0)
        time.sleep(draw.uniform(0.0, 0.2))
        assert process.is_alive()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        reached.append(steps_of(checkpoint))
    last = reached[-1] + FURTHER
    for arguments in ((checkpoint, last, resumed), (None, last, unbroken)):
        process = processes.Process(target=train, args=arguments)
        process.start()
        process.join()
        assert process.exitcode == 0
    one, other = (torch.load(file, weights_only=True) for file in (resumed, unbroken))
    assert one["step"]["step"] == last
    assert one["step"]["schedule"] != {}
    assert_same(one, other)


def steps_of(checkpoint: Path) -> int:
    file = checkpoint / "state.json"
    steps: int = json.loads(file.read_text())["state"]["training"]["step"] if file.exists() else 0
    return steps


def wait_for_step(checkpoint: Path, after: int) -> None:
    deadline = time.monotonic() + 120
    while steps_of(checkpoint) <= after:
        assert time.monotonic() < deadline
        time.sleep(0.01)
