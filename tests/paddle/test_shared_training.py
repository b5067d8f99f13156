"""Several ranks save what they train together; any number of them, or one alone, goes on with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import paddle
import pytest
from shared_training import SAVED_AT, digest, made, train

from ampbridge.checkpoints import checkpoint

SCRIPT = Path(__file__).with_name("shared_training.py")

pytestmark = [
    pytest.mark.skipif(
        not paddle.distributed.is_available(), reason="Paddle is built without distributed training"
    ),
    pytest.mark.slow,
]

Said = dict[str, set[str]]


def launch(folder: Path, ranks: int, *arguments: str) -> Said:
    """What the ranks say, by its first word."""
    launcher = [sys.executable, "-W", "ignore", "-m", "paddle.distributed.launch"]
    options = ["--nproc_per_node", str(ranks), "--log_dir", f"logs{ranks}"]
    done = subprocess.run(
        [*launcher, *options, str(SCRIPT), str(folder), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PADDLE_DISTRI_BACKEND": "gloo"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said: Said = defaultdict(set)
    for log in (folder / f"logs{ranks}").glob("workerlog.*"):
        for what, found in re.findall(r"<(\S+) (.*)>", log.read_text()):
            said[what].add(found)
    return said


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said, Said]:
    """Two ranks save; three load what these and a process alone have saved."""
    folder = tmp_path_factory.mktemp("saved")
    two = launch(folder, 2, "two")
    alone = made(replicated=False)
    train(alone, SAVED_AT)
    alone.save(folder / "alone")
    three = launch(folder, 3, "three", "two", "alone")
    return folder, two, three


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_go_on_bit_by_bit(said: tuple[Path, Said, Said], ranks: int) -> None:
    found = said[ranks - 1]
    assert found["resumed"] == found["unbroken"]
    assert len(found["unbroken"]) == len(found["saved"]) == 1
    assert found["unbroken"] != found["saved"]


def test_another_number_of_ranks_goes_on(said: tuple[Path, Said, Said]) -> None:
    folder, two, three = said
    assert three["two"] == two["saved"]
    step = made(replicated=False)
    for name, expected in {"alone": three["alone"], "three": three["saved"]}.items():
        step.load(folder / name)
        assert {digest(step)} == expected


def test_the_names_are_those_of_one_alone(said: tuple[Path, Said, Said]) -> None:
    folder, _, _ = said
    alone, shared = (checkpoint.read(folder / name) for name in ("alone", "two"))
    assert alone.state["weights"] == shared.state["weights"]
    assert alone.tensors.keys() == shared.tensors.keys()
    assert "weights/3.0.weight" in shared.tensors


def test_all_ranks_are_told_that_one_could_not_write(said: tuple[Path, Said, Said]) -> None:
    _, two, three = said
    text = "'/file' is a file; a checkpoint is a folder."
    told = {text, f"The rank that acts for all could not. StateError: {text}"}
    assert two["refused"] == three["refused"] == told
