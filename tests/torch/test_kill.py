"""Kill -9 at random moments, also while saving: what is resumed ends where an unbroken run ends."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from interrupted_training import train
from killed_training import killed_and_unbroken
from same_bits import assert_same

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_training_ends_where_an_unbroken_one_does(tmp_path: Path) -> None:
    ended = killed_and_unbroken(train, tmp_path, imports=["ampbridge_torch.backend"])
    one, other = (torch.load(file, weights_only=True) for file in (ended.resumed, ended.unbroken))
    assert one["step"]["step"] == ended.last
    assert one["step"]["schedule"] != {}
    assert_same(one, other)
