"""The example scripts as a user calls them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import check_installed

pytestmark = pytest.mark.slow

Script = Callable[..., str]

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "examples/train.py"


@pytest.mark.parametrize(
    "framework, options",
    [
        ("numpy", ["--workload", "conv", "--policy", "O2", "--execution", "simulated"]),
        ("torch", ["--workload", "transformer", "--policy", "O2:bfloat16"]),
        ("tensorflow", ["--policy", "mixed_float16"]),
        ("tensorflow", ["--policy", "O2", "--dtype", "bfloat16"]),
        ("paddle", ["--dtype", "bfloat16", "--compile"]),
        ("jax", ["--workload", "conv", "--policy", "O2:bfloat16"]),
    ],
)
def test_train(framework: str, options: list[str], tmp_path: Path, run_script: Script) -> None:
    check_installed(framework)
    file = tmp_path / "run.json"
    command = [TRAIN, "--backend", framework, "--steps", 10, "--batch-size", 64, "--json", file]
    printed = run_script(*command, *options)
    run = json.loads(file.read_text())
    assert run["backend"] == framework
    assert len(run["loss"]) == len(run["scale"]) == len(run["applied"]) == len(run["reason"]) == 10
    assert "step   10  loss" in printed
    assert f"test accuracy {run['accuracy']:.1%}, 0 of 10 steps skipped" in printed


@pytest.mark.parametrize(
    "options, message",
    [
        (["--policy", "O0", "--dtype", "float16"], "O0 is float32 throughout."),
        (["--policy", "O3"], "Cannot read the policy 'O3'"),
        (["--policy", "01"], "Cannot read the policy '01'"),
        (["--init-scale", "0"], "Passed init_scale=0.0; allowed is min_scale"),
        (["--steps", "0"], "invalid count value: '0'"),
        (["--batch-size", "2000"], "Passed size=2000 for 1197 examples."),
    ],
)
def test_train_refuses(options: list[str], message: str) -> None:
    command = [sys.executable, str(TRAIN), "--backend", "numpy", *options]
    finished = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert finished.returncode != 0
    assert message in finished.stderr
