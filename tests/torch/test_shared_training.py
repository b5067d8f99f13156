"""Several ranks save what they train together; any number of them, or one alone, goes on with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from shared_training import SAVED_AT, digest, made, train

import ampbridge as amp
from ampbridge.checkpoints import checkpoint

SCRIPT = Path(__file__).with_name("shared_training.py")
KINDS = ("sharded", "replicated")

pytestmark = [
    pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo"),
    pytest.mark.slow,
]

Said = dict[str, dict[str, set[str]]]


def launch(ranks: int, *arguments: str) -> Said:
    """What the ranks say, by their first word and their second."""
    launcher = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc_per_node", str(ranks), str(SCRIPT), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said: Said = defaultdict(lambda: defaultdict(set))
    lines = re.findall(r"<(\S+) (\S+) (.*)>", done.stdout)
    for kind, what, found in lines:
        said[kind][what].add(found)
    assert len(lines) % ranks == 0
    return said


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said, Said]:
    """Two ranks save; three load what these and a process alone have saved."""
    folder = tmp_path_factory.mktemp("saved")
    two = launch(2, str(folder), "two")
    alone, _ = made("plain")
    train(alone, SAVED_AT)
    alone.save(folder / "alone")
    three = launch(3, str(folder), "three", "two-sharded", "two-replicated", "alone")
    return folder, two, three


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_go_on_bit_by_bit(said: tuple[Path, Said, Said], ranks: int, kind: str) -> None:
    found = said[ranks - 1][kind]
    assert found["resumed"] == found["unbroken"]
    assert len(found["unbroken"]) == len(found["saved"]) == 1
    assert found["unbroken"] != found["saved"]


@pytest.mark.parametrize("kind", KINDS)
def test_three_ranks_take_what_two_saved(said: tuple[Path, Said, Said], kind: str) -> None:
    _, two, three = said
    for own in KINDS:
        assert three[kind][f"two-{own}"] == two[own]["saved"]


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_take_what_one_alone_saved(said: tuple[Path, Said, Said], kind: str) -> None:
    folder, _, three = said
    step, scheduler = made("plain")
    step.load(folder / "alone")
    assert three[kind]["alone"] == {digest(step, scheduler)}


@pytest.mark.parametrize("kind", KINDS)
def test_one_alone_takes_what_ranks_saved(said: tuple[Path, Said, Said], kind: str) -> None:
    folder, _, three = said
    step, scheduler = made("plain")
    step.load(folder / f"three-{kind}")
    assert {digest(step, scheduler)} == three[kind]["saved"]
    other, _ = made("plain")
    report = amp.load_weights(folder / f"three-{kind}", other.model)
    assert {match.how for match in report} == {"name"}
    for one, same in zip(other.model.parameters(), step.model.parameters(), strict=True):
        assert torch.equal(one, same)


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_those_of_one_alone(said: tuple[Path, Said, Said], kind: str) -> None:
    """Names and shapes, and values up to the order in which ranks sum."""
    folder, _, _ = said
    alone, shared = (checkpoint.read(folder / name) for name in ("alone", f"two-{kind}"))
    assert alone.state["weights"] == shared.state["weights"]
    assert alone.state["optimizer"] == shared.state["optimizer"]
    assert alone.tensors.keys() == shared.tensors.keys()
    for name, array in alone.tensors.items():
        np.testing.assert_allclose(shared.tensors[name], array, rtol=0, atol=2e-2)


def test_all_ranks_are_told_that_one_could_not_write(said: tuple[Path, Said, Said]) -> None:
    _, two, three = said
    text = "'/file' is a file; a checkpoint is a folder."
    for ranks in (two, three):
        told = {f"{first} {rest}" for first, more in ranks["refused"].items() for rest in more}
        assert told == {text, f"The rank that acts for all could not. StateError: {text}"}
