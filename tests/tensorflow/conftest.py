"""Settings of the TensorFlow test process, made before TensorFlow is imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # its start-up notes are no test output

sys.path.insert(0, str(Path(__file__).parent))  # for recorder; pytest adds no paths


def pytest_configure(config: pytest.Config) -> None:
    # Once a process, so it would hit whichever test comes first; test_simulation.py looks for it in
    # a process of its own.
    config.addinivalue_line("filterwarnings", "ignore::ampbridge.errors.SimulationWarning")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import keras

    keras.utils.set_random_seed(0)
