"""Saves that are killed, that find the disk full, that meet other saves and loads: nothing is lost.

Some of each by default; in the nightly profile 200 kills, 200 full disks, and 25,000 saves and loads
beside each other. ``AMPBRIDGE_SMALL_DISK`` names a folder on a disk of a few MB that may be filled;
without it, a limit on the size of files stands for one.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from full_disks import files_up_to
from nightly import NIGHTLY
from saving_process import number_of, numbered

import ampbridge as amp
from ampbridge.checkpoints import checkpoint

KILLS = 200 if NIGHTLY else 6
FULL_DISKS = 200 if NIGHTLY else 25
SAVES = 5000 if NIGHTLY else 60  # of each saver, and loads of each loader beside them
FOREVER = 10**6

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL, locks and limits")


def start(what: str, path: Path, first: int, times: int) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("saving_process.py")
    return subprocess.Popen(
        [sys.executable, str(script), what, str(path), str(first), str(times)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check_nothing_is_left_over(path: Path) -> None:
    names = sorted(file.name for file in path.iterdir())
    assert [name.partition("-")[0] for name in names] == ["state.json", "tensors"]


@pytest.mark.slow
def test_a_killed_save_loses_nothing(tmp_path: Path) -> None:
    draw = random.Random(1)
    path = tmp_path / "saved"
    checkpoint.write(path, numbered(0))
    last, midway = 0, 0
    kills = 0
    while kills < KILLS or midway == 0:
        kills += 1
        with start("save", path, last + 1, FOREVER) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(draw.uniform(0.0, 0.1))
            process.send_signal(signal.SIGKILL)
            said, errors = process.stdout.read(), process.stderr.read()
        assert process.returncode == -signal.SIGKILL, errors
        number = number_of(checkpoint.read(path))
        finished = [last, *map(int, said.split())][-1]
        assert number in (finished, finished + 1)  # it may be killed before it says so
        last = number
        midway += len(os.listdir(path)) > 2
    print(f"{kills} kills, {midway} of them within a save")
    checkpoint.write(path, numbered(last + 1))
    assert number_of(checkpoint.read(path)) == last + 1
    check_nothing_is_left_over(path)


@contextmanager
def room_for(size: int, folder: Path):
    """A disk on which ``size`` bytes are left."""
    if "AMPBRIDGE_SMALL_DISK" in os.environ:
        ballast = folder / "ballast"
        disk = os.statvfs(folder)
        ballast.write_bytes(bytes(max(disk.f_bavail * disk.f_frsize - size, 0)))
        try:
            yield
        finally:
            ballast.unlink()
    else:
        with files_up_to(size):
            yield


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    draw = random.Random(2)
    folder = Path(os.environ.get("AMPBRIDGE_SMALL_DISK", tmp_path))
    path = folder / f"saved-{os.getpid()}"
    checkpoint.write(path, numbered(0))
    whole = sum(file.stat().st_size for file in path.iterdir())
    last, refused = 0, []
    while len(refused) < FULL_DISKS:  # and some for which there is room
        size = draw.choice([draw.randrange(600), draw.randrange(int(1.1 * whole))])
        with room_for(size, folder):
            try:
                checkpoint.write(path, numbered(last + 1))
                last += 1
            except amp.WriteError as error:
                refused.append(str(error))
            assert number_of(checkpoint.read(path)) == last
            check_nothing_is_left_over(path)
    assert all("bytes are needed" in message for message in refused)
    checkpoint.write(path, numbered(last + 1))
    assert number_of(checkpoint.read(path)) == last + 1
    check_nothing_is_left_over(path)


@pytest.mark.slow
def test_two_savers_and_three_loaders_at_once(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    checkpoint.write(path, numbered(0))
    kinds = ["save", "save", "load", "load", "load"]
    processes = [start(kind, path, 1 + 10**6 * place, SAVES) for place, kind in enumerate(kinds)]
    with ThreadPoolExecutor() as readers:
        said = list(readers.map(subprocess.Popen.communicate, processes))
    assert [process.returncode for process in processes] == [0] * 5, [err for _, err in said]
    counts = [len(out.split()) - 1 for out, _ in said]
    assert counts == [SAVES] * 5
    saved = {int(number) for out, _ in said[:2] for number in out.split()[-1:]}
    assert number_of(checkpoint.read(path)) in saved
    check_nothing_is_left_over(path)
