"""One framework a process: `pytest tests/zoo/test_torch.py`. `make test-slow` has `-m quick`."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import required

sys.path.insert(0, str(Path(__file__).parent))  # for zoo.py and the rest beside the tests

# By the name of the tests: the framework, and what else they import.
PACKAGES = {
    "torch": (
        *("torch", "transformers", "timm", "torchvision", "diffusers", "peft"),
        *("pytorch_optimizer", "schedulefree", "prodigyopt"),
    ),
    "paddle": ("paddle",),
    "tensorflow": ("tensorflow", "keras"),
    "jax": (
        *("jax", "flax", "optax", "equinox", "haiku", "penzai", "numpyro", "attnax", "diffrax"),
        *("e3nn_jax", "flowjax", "jraph", "jraphx", "mamba2_jax", "megalodon_jax", "nano_moe"),
        "pdequinox",
    ),
    "flax_transformers": ("jax", "flax", "optax"),
    "keras_on_jax": ("jax", "keras"),
}
# What is missing fails the tests, unless nobody asks for its framework.
collect_ignore = [
    f"test_{name}.py"
    for name, packages in PACKAGES.items()
    if packages[0] not in required() and not all(map(find_spec, packages))
]

pytest.register_assert_rewrite("properties")

os.environ["HF_HUB_OFFLINE"] = "1"  # every model is made from a configuration
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quick: a model that `make test-slow` has as well")
    config.addinivalue_line("filterwarnings", "ignore::ampbridge.errors.SimulationWarning")
    # peft 0.21 asks transformers 5.23 by an older name.
    config.addinivalue_line(
        "filterwarnings", "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
    )
    # Paddle's batch norm says so in training mode, whatever it was asked.
    config.addinivalue_line(
        "filterwarnings", "ignore:When training, we now always track:UserWarning"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``FAULTS`` of a module: tests that are expected to fail, each with the package's fault."""
    for item in items:
        reason = getattr(item.module, "FAULTS", {}).get(item.name)
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
