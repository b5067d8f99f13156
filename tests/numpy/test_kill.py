"""Kill -9 at random moments, also while saving: what is resumed ends where an unbroken run ends."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import settings

from ampbridge.checkpoints import checkpoint

KILLS = 5 if settings.default.max_examples <= 100 else 20  # in the nightly profile
FURTHER = 15  # steps of the last run, which is not killed

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")


def start(saved: Path | str, last: int, result: Path | str) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("interrupted_training.py")
    return subprocess.Popen([sys.executable, str(script), str(saved), str(last), str(result)])


def steps_of(saved: Path) -> int:
    file = saved / "state.json"
    steps: int = json.loads(file.read_text())["state"]["training"]["step"] if file.exists() else 0
    return steps


def test_a_killed_training_ends_where_an_unbroken_one_does(tmp_path: Path) -> None:
    draw = random.Random(1)
    saved, resumed, unbroken = (tmp_path / name for name in ("saved", "resumed", "unbroken"))
    reached = [0]
    while len(reached) <= KILLS:
        process = start(saved, 2**31 - 1, "-")
        deadline = time.monotonic() + 120
        while steps_of(saved) <= reached[-1]:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(draw.uniform(0.0, 0.2))
        process.kill()
        process.wait()
        reached.append(steps_of(saved))
    last = reached[-1] + FURTHER
    assert start(saved, last, resumed).wait() == 0
    assert start("-", last, unbroken).wait() == 0
    one, other = checkpoint.read(resumed), checkpoint.read(unbroken)
    assert one.state == other.state
    assert one.state["training"]["step"] == last
    assert one.tensors.keys() == other.tensors.keys()
    for name, array in one.tensors.items():
        assert array.tobytes() == other.tensors[name].tobytes(), name
