"""PaddlePaddle in this process with the virtual device, which is built if it has not been."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from without_device import check_required, skipped_module

HERE = Path(__file__).parent
# For the device, and for what the folder of Paddle's tests has beside its tests.
sys.path[:0] = [str(HERE), str(HERE.parent / "paddle")]


def _why_not() -> str | None:
    import importlib.util

    if importlib.util.find_spec("paddle") is None:
        return "paddle is not installed"
    import building

    return building.why_not()


WHY_NOT = _why_not()
check_required("paddle", WHY_NOT)

if WHY_NOT is None:
    # OpenMP with one thread: several make Paddle print a warning, and tests are small.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("GLOG_minloglevel", "2")  # else it tells of each device and program
    with warnings.catch_warnings():
        # Paddle warns of a missing ccache and of deprecated names in its own dependencies.
        warnings.simplefilter("ignore")
        import virtual_gpu  # noqa: F401


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    return skipped_module(WHY_NOT, module_path, parent)


def pytest_configure(config: pytest.Config) -> None:
    for ignored in (
        "ignore::ampbridge.errors.SimulationWarning",  # on the CPU, beside the device
        # Paddle's batch norm says so in training mode, whatever it was asked.
        "ignore:When training, we now always track:UserWarning",
        # So do its optimizers of parameters without masters, which the tests have asked for.
        "ignore:Accumulating with FP16( or |/)BF16 in optimizer:UserWarning",
    ):
        config.addinivalue_line("filterwarnings", ignored)


@pytest.fixture(autouse=True)
def _seeded_on_the_device() -> Iterator[None]:
    import paddle

    paddle.seed(0)
    yield
    paddle.set_device("virtual_gpu")
