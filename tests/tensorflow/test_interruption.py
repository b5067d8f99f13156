"""Killed at random moments, while saving too, and gone on with: as if nothing had been."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
from nightly import NIGHTLY

from ampbridge.testing import import_or_skip

import_or_skip("tensorflow")
from interrupted_run import FOREVER, run  # noqa: E402

FURTHER = 15  # steps of the last run, which is not killed

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")


@pytest.mark.parametrize(
    "compiled, kills", [(True, 20 if NIGHTLY else 3), (False, 20 if NIGHTLY else 2)]
)
def test_a_run_that_is_killed_ends_as_one_that_is_not(
    tmp_path: Path, compiled: bool, kills: int
) -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    # Its children are copies of a process that has imported what takes long, and done nothing else.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["ampbridge_tensorflow.backend", "safetensors.numpy"])
    saved, resumed, unbroken = (tmp_path / name for name in ("saved", "resumed", "unbroken"))
    reached = [0]
    while len(reached) <= kills:
        process = processes.Process(target=run, args=(saved, FOREVER, None, compiled))
        process.start()
        wait_for_step(saved, after=reached[-1])
        time.sleep(draw.uniform(0.0, 0.2))  # most of it goes into saving
        assert process.is_alive(), f"seed {seed}"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        reached.append(steps_of(saved))
    last = reached[-1] + FURTHER
    for folder, result in ((saved, resumed), (tmp_path / "whole", unbroken)):
        process = processes.Process(target=run, args=(folder, last, result, compiled))
        process.start()
        process.join()
        assert process.exitcode == 0
    assert resumed.read_text() == unbroken.read_text(), f"seed {seed}, killed after {reached}"


def steps_of(checkpoint: Path) -> int:
    file = checkpoint / "state.json"
    steps: int = json.loads(file.read_text())["state"]["training"]["step"] if file.exists() else 0
    return steps


def wait_for_step(checkpoint: Path, after: int) -> None:
    deadline = time.monotonic() + 120
    while steps_of(checkpoint) <= after:
        assert time.monotonic() < deadline
        time.sleep(0.01)
