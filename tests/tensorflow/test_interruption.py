"""Killed at random moments, while saving too, and gone on with: as if nothing had been."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from killed_training import killed_and_unbroken
from nightly import NIGHTLY

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
from interrupted_run import run  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize(
    "compiled, kills", [(True, 20 if NIGHTLY else 3), (False, 20 if NIGHTLY else 2)]
)
def test_a_run_that_is_killed_ends_as_one_that_is_not(
    tmp_path: Path, compiled: bool, kills: int
) -> None:
    imports = ["ampbridge_tensorflow.backend"]
    ended = killed_and_unbroken(run, tmp_path, compiled, imports=imports, kills=kills)
    assert ended.resumed.read_text() == ended.unbroken.read_text()
