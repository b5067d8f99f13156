"""PaddlePaddle in this process, and nothing of torch or TensorFlow beside it."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for paddle_*.py, the helpers beside the tests

if importlib.util.find_spec("paddle") is None:
    if "paddle" in os.environ.get("AMPBRIDGE_REQUIRE", ""):
        raise ImportError("AMPBRIDGE_REQUIRE asks for paddle, which is not installed")
    collect_ignore_glob = ["test_*.py"]
else:
    # OpenMP with one thread: several make Paddle print a warning, and tests are small.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with warnings.catch_warnings():
        # Paddle warns of a missing ccache and of deprecated names in its own dependencies.
        warnings.simplefilter("ignore")
        import paddle  # noqa: F401


def pytest_configure(config: pytest.Config) -> None:
    # Once a process, so it would hit whichever test comes first; test_casting.py looks for it in a
    # process of its own.
    config.addinivalue_line("filterwarnings", "ignore::ampbridge.errors.SimulationWarning")
    for ignored in (
        # Paddle's batch norm says so in training mode, whatever it was asked.
        "ignore:When training, we now always track:UserWarning",
        # So do its optimizers, on a GPU, of parameters without masters, which the tests have asked for.
        "ignore:Accumulating with FP16( or |/)BF16 in optimizer:UserWarning",
    ):
        config.addinivalue_line("filterwarnings", ignored)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import paddle

    paddle.seed(0)
