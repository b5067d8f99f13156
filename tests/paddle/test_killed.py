"""A training that is killed again and again ends as one that nobody disturbs: kill -9, bit by bit."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from nightly import NIGHTLY

pytestmark = pytest.mark.slow

KILLS = 20 if NIGHTLY else 5
STEPS = 12 * KILLS


def start(folder: Path) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("killed_training.py")
    command = [sys.executable, "-W", "ignore", str(script), "saved", str(STEPS), "result.json"]
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path) -> dict[str, Any]:
    process = start(folder)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    left: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return left


def kill(folder: Path, after_step: int, seconds: float) -> int:
    """Some time after it has saved that step; the last one that it said to have saved."""
    process = start(folder)
    assert process.stdout is not None
    last = -1
    for line in process.stdout:
        last = int(line)
        if last >= after_step:
            break
    time.sleep(seconds)
    assert process.poll() is None, "it was too fast to be killed"
    process.kill()
    rest, _ = process.communicate()
    return max([last, *map(int, rest.split())])


def test_kill_9_at_random_moments(tmp_path: Path) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    undisturbed.mkdir()
    killed.mkdir()
    expected = run(undisturbed)
    assert len(expected["optimizer"]) == 25  # four slots of each of six parameters, and the rate's
    rng = random.Random(0)
    saved = -1
    for _ in range(KILLS):
        # Up to a step later, most of which is spent on saving.
        saved = kill(killed, saved + rng.randrange(1, 5), rng.uniform(0, 0.03))
        assert (killed / "saved" / "state.json").exists()
    assert run(killed) == expected
