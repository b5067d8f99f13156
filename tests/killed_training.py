"""Trainings that are killed at random moments, also while saving, and go on from what they saved."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from nightly import NIGHTLY
from processes import wait_until

FOREVER = 2**31
FURTHER = 15  # steps of the last run, which is not killed


class Killed(NamedTuple):
    """What a training came to: after some kills, and in one run. ``last`` is the number of steps."""

    resumed: Path
    unbroken: Path
    last: int


def killed_and_unbroken(
    train: Callable[..., None],
    folder: Path,
    *settings: object,
    imports: Sequence[str],
    kills: int = 20 if NIGHTLY else 5,
) -> Killed:
    """Kill a training ``kills`` times, each time later, and let it end; train without kills as well.

    ``train(checkpoint, last, result, *settings)`` saves to ``checkpoint`` after each step, begins
    with what it finds there, and writes all that it has come to after step ``last`` to ``result``.
    Each run is a copy of a process that has imported ``imports``, which take long, and nothing else.
    """
    draw = random.Random(1)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([*imports, "safetensors.numpy"])
    saved = folder / "saved"

    def start(checkpoint: Path, last: int, result: Path | None) -> multiprocessing.Process:
        process = processes.Process(target=train, args=(checkpoint, last, result, *settings))
        process.start()
        return process  # type: ignore[return-value]  # of the context's own class

    reached = [0]
    while len(reached) <= kills:
        process = start(saved, FOREVER, None)
        before = reached[-1]
        wait_until(lambda p=process, b=before: steps_of(saved) > b or not p.is_alive())
        time.sleep(draw.uniform(0.0, 0.2))  # to be killed at any moment; it is mostly saving
        assert process.is_alive()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        reached.append(steps_of(saved))
    ended = Killed(folder / "resumed", folder / "unbroken", reached[-1] + FURTHER)
    for checkpoint, result in ((saved, ended.resumed), (folder / "another", ended.unbroken)):
        process = start(checkpoint, ended.last, result)
        process.join()
        assert process.exitcode == 0
    return ended


def steps_of(checkpoint: Path) -> int:
    file = checkpoint / "state.json"
    steps: int = json.loads(file.read_text())["state"]["training"]["step"] if file.exists() else 0
    return steps
