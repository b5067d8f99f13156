"""Settings of every test process."""

import gc
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# Deadlines measure the machine, not the code. The examples are the same each time; the nightly profile
# searches at random, each night elsewhere; all of `make nightly` takes an hour and a quarter on two cores.
settings.register_profile(
    "default", deadline=None, max_examples=100, derandomize=True, database=None
)
settings.register_profile(
    "nightly", deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow]
)

# What `execution="auto"` is on a CPU, here and in the processes that tests start: the same on every
# machine. `make test-native` and `make test-slow` run the tests of torch and TensorFlow under the other.
os.environ.setdefault("AMPBRIDGE_CPU_EXECUTION", "simulated")

# XLA compiles each program once for all processes of JAX. Tests make the same small programs again and
# again, and compiling takes most of their time.
JAX_CACHE = Path(__file__).parents[1] / "build" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(JAX_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

sys.path.insert(0, str(Path(__file__).parent))  # for what folders share; pytest adds no paths
sys.path.append(str(Path(__file__).parents[1] / "bench"))
import sampled  # noqa: E402
from nightly import NIGHTLY, PROFILE  # noqa: E402

settings.load_profile(PROFILE)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(sampled)
    config.addinivalue_line("markers", "slow: `make test-slow` runs it, and `make test` does not")
    config.addinivalue_line("markers", "nightly: takes long; runs in the nightly profile alone")
    config.addinivalue_line(
        "markers", "search: looks at more in the nightly profile (``searches``)"
    )
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # as a shell starts what is in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item: pytest.Item) -> None:
    if searches(item):
        item.add_marker("search")


@pytest.hookimpl(trylast=True)  # folders mark tests of the shared suite before
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "AMPBRIDGE_TEST_ORDER" in os.environ:
        items[:] = in_random_order(items, os.environ["AMPBRIDGE_TEST_ORDER"])
    if NIGHTLY:
        return
    long = [item for item in items if item.get_closest_marker("nightly")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


SEARCHES_OF_THE_SUITE = ("InterruptionConformance", "GrowthConformance")
WHAT_LOOKS_AT_MORE = {"NIGHTLY", "FLIPS", "left_by_interrupts", "bytecodes", "killed_and_unbroken"}
"""Names by which a module of tests goes by the profile."""


def searches(item: pytest.Item) -> bool:
    """Whether a test looks at more by night: random examples, an interrupt at each line, more steps."""
    function = getattr(item, "function", None)
    if item.get_closest_marker("nightly") or getattr(function, "is_hypothesis_test", False):
        return True
    suite = getattr(function, "__qualname__", "").partition(".")[0]
    of_the_module = vars(getattr(item, "module", item)).keys()
    return suite in SEARCHES_OF_THE_SUITE or not WHAT_LOOKS_AT_MORE.isdisjoint(of_the_module)


def in_random_order(items: list[pytest.Item], seed: str) -> list[pytest.Item]:
    """Files in any order, and the tests in each; files stay whole, for what their tests share."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    draw = random.Random(seed)
    shuffled = draw.sample(list(files.values()), len(files))
    return [item for tests in shuffled for item in draw.sample(tests, len(tests))]


@pytest.fixture(scope="module", autouse=True)
def what_is_there_stays() -> None:
    """Full collections, which many tests ask for, leave out the frameworks and what earlier tests have left.

    Looking through these some hundred thousand objects took half of the time of such tests.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def the_same_numbers_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generators that were given no seed, such as those of NumPy layers' weights, get one.

    What a test sees does not depend on the run then: an overflow either happens always or never.
    """
    entropy, unseeded = np.random.SeedSequence(0), np.random.default_rng

    def default_rng(seed: object = None) -> np.random.Generator:
        return unseeded(entropy.spawn(1)[0] if seed is None else seed)

    monkeypatch.setattr(np.random, "default_rng", default_rng)
