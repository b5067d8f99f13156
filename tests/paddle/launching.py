"""Ranks, each in a process of its own, over gloo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

# Of three ranks and more, gloo's groups often fail to connect in Paddle 3.3 (one group in six, on a
# machine with two cores): "connect [127.0.0.1]:...: Connection refused" on one rank, a timeout on others.
# A program of fleet's makes several; beside other tests eight attempts were once too few.
ATTEMPTS = 24


def launch(script: Path, folder: Path, ranks: int, *arguments: str) -> list[str]:
    """The log of each rank, under Paddle's launcher; started again if its groups did not connect."""
    for attempt in range(ATTEMPTS):
        logs = folder / f"logs{attempt}"
        launcher = [sys.executable, "-W", "ignore", "-m", "paddle.distributed.launch"]
        options = ["--nproc_per_node", str(ranks), "--log_dir", str(logs)]
        done = subprocess.run(
            [*launcher, *options, str(script), *arguments],
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        said = [(logs / f"workerlog.{rank}").read_text() for rank in range(ranks)]
        if done.returncode == 0:
            return said
        if not _never_connected(said):
            break
    raise AssertionError("\n".join([done.stdout, done.stderr, *said]))


def _never_connected(logs: list[str]) -> bool:
    """Whether gloo failed before any rank came to a step, of which the adapter's files would tell."""
    everything = "".join(logs)
    return "gloo/transport/tcp" in everything and "ampbridge_paddle" not in everything


def start(script: Path, ranks: int) -> list[subprocess.Popen[str]]:
    """The ranks without the launcher, which ends them all as soon as one has died."""
    *ends, master = (f"127.0.0.1:{port}" for port in _free_ports(ranks + 1))
    return [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script)],
            cwd=script.parent,
            env={
                **environment(),
                "PADDLE_TRAINER_ID": str(rank),
                "PADDLE_TRAINERS_NUM": str(ranks),
                "PADDLE_TRAINER_ENDPOINTS": ",".join(ends),
                "PADDLE_CURRENT_ENDPOINT": end,
                "PADDLE_MASTER": master,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, end in enumerate(ends)
    ]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PADDLE_DISTRI_BACKEND": "gloo"}


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
