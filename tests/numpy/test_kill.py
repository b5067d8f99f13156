"""Kill -9 at random moments, also while saving: what is resumed ends where an unbroken run ends."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from interrupted_training import train
from killed_training import killed_and_unbroken

from ampbridge.checkpoints import checkpoint

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_training_ends_where_an_unbroken_one_does(tmp_path: Path) -> None:
    ended = killed_and_unbroken(train, tmp_path, imports=["ampbridge_numpy.backend"])
    one, other = checkpoint.read(ended.resumed), checkpoint.read(ended.unbroken)
    assert one.state == other.state
    assert one.state["training"]["step"] == ended.last
    assert one.tensors.keys() == other.tensors.keys()
    for name, array in one.tensors.items():
        assert array.tobytes() == other.tensors[name].tobytes(), name
