"""The example scripts as a user calls them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import check_installed

Script = Callable[..., str]

ROOT = Path(__file__).parents[2]
TRAIN, DEMO = ROOT / "examples/train.py", ROOT / "examples/demo.py"


@pytest.mark.parametrize(
    "framework, options",
    [
        ("numpy", ["--workload", "conv", "--policy", "O2", "--execution", "simulated"]),
        ("torch", ["--workload", "transformer", "--policy", "O2:bfloat16"]),
        ("tensorflow", ["--policy", "mixed_float16"]),
        ("tensorflow", ["--policy", "O2", "--dtype", "bfloat16"]),
        ("paddle", ["--dtype", "bfloat16", "--compile"]),
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


@pytest.mark.parametrize("policy", ["O1:float16", "O2:bfloat16"])
def test_demo_in_a_log(policy: str, run_script: Script) -> None:
    options = [] if policy == "O1:float16" else ["--policy", policy]
    lines = run_script(DEMO, *options).splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("\x1b" in line for line in lines)
    assert any(line.startswith(policy.replace(":", " ")) for line in lines)
    (rule,) = [number for number, line in enumerate(lines) if line.startswith("---")]
    rows = [re.split(" {2,}", line) for line in lines[rule + 1 : lines.index("", rule)]]
    cells = {row[0]: row[1:] for row in rows}
    assert list(cells) == [
        "loss, last 50 steps",
        "test accuracy",
        "skipped steps",
        "final scale",
        "time",
    ]
    full, mixed = (float(text.rstrip("%")) for text in cells["test accuracy"])
    assert min(full, mixed) > 94
    assert abs(full - mixed) <= 1
    assert cells["skipped steps"][0] == "0 of 600"
    history = [line for line in lines if line.startswith("  scale")]
    if policy == "O2:bfloat16":  # nothing is scaled, and nothing is shown of it
        assert cells["final scale"] == ["none", "none"]
        assert history == []
    else:
        assert int(cells["skipped steps"][1].split()[0]) >= 3
        assert "█" in history[0]
        assert "▁" in history[0]
