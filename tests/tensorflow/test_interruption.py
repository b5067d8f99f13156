"""Killed at random moments, while saving too, and gone on with: as if nothing had been."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from ampbridge.testing import import_or_skip

import_or_skip("tensorflow")
from interrupted_run import run  # noqa: E402

KILLS = 20 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 3
STEPS = 6 * KILLS
SCRIPT = Path(__file__).with_name("interrupted_run.py")


def started(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(SCRIPT), str(folder), str(STEPS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


def test_a_run_that_is_killed_ends_as_one_that_is_not(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    steps_done = []
    for _ in range(KILLS):
        with started(tmp_path / "killed") as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(draw.randint(1, 3))]
            time.sleep(draw.uniform(0.0, 0.1))  # a step and its save take about so long
            process.kill()
            lines += process.stdout.readlines()
            steps_done += [int(line) for line in lines if line.endswith("\n")]
        assert process.returncode == -signal.SIGKILL, f"seed {seed}: {lines}"
    with started(tmp_path / "killed") as process:
        assert process.stdout is not None
        *rest, digest = process.stdout.read().split()
    assert digest == run(tmp_path / "whole", STEPS), f"seed {seed}"
    # One that was killed after its save and before it said so is not done again.
    assert len({*steps_done, *map(int, rest)}) >= STEPS - KILLS, f"seed {seed}"
