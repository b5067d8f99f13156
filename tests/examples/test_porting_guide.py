"""The guide to porting, docs/porting_guide.md: its commands run, and its two trainers train alike.

Paddle's AMP is off on a CPU. What trains in mixed precision here is the Paddle trainer as ``ampbridge port
--to ampbridge`` rewrites it, simulated; tests/virtual_paddle compares that with Paddle's own AMP. The Keras
trainer uses the module that ``ampbridge port --to tensorflow`` writes, and TensorFlow's float16 kernels.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from processes import check_installed

from ampbridge.cli import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "porting_guide.md").read_text("utf-8")
RESNET = ROOT / "examples" / "porting" / "resnet"
CONFIG = yaml.safe_load((RESNET / "config.yml").read_text())
EPOCH, ACCUMULATE = 60, CONFIG["accumulate"]  # micro-batches an epoch, and a step
UNTRAINED = 7 * ACCUMULATE  # six steps are skipped, the seventh has the first weights still

COMMANDS = re.findall(r"^    ((?:sed|ampbridge|python) .+)$", GUIDE, re.M)
SIDES = {"paddle": r"python \w*paddle", "tensorflow": r"python \w*keras"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, run_script: Callable[..., str]) -> Path:
    """A copy of the example in which all commands of the guide have run."""
    for framework in SIDES:
        check_installed(framework)
    made = tmp_path_factory.mktemp("guide") / "resnet"
    shutil.copytree(RESNET, made, ignore=shutil.ignore_patterns("__pycache__", "output"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        for command in COMMANDS:
            if command.startswith("ampbridge "):
                assert main([*shlex.split(command)[1:], "--quiet"]) == 0
            elif command.startswith("sed "):
                subprocess.run(command, shell=True, check=True)
    for framework, pattern in SIDES.items():
        commands = "\n".join(each for each in COMMANDS if re.match(pattern, each))
        run_script(Path(__file__).with_name("measure_resnet.py"), framework, made, commands)
    return made


def history(folder: Path, output: str, column: str) -> np.ndarray:
    recorded = json.loads((folder / "output" / output / "history.json").read_text())
    return np.array([record[column] for record in recorded["history"]])


def accuracies(folder: Path, output: str) -> list[float]:
    recorded = json.loads((folder / "output" / output / "history.json").read_text())
    return [recorded["accuracy"], recorded["average_accuracy"]]


def test_every_command_is_run() -> None:
    assert len(COMMANDS) == 10
    assert all(re.match("sed|ampbridge|" + "|".join(SIDES.values()), each) for each in COMMANDS)


def test_float32_agrees(folder: Path) -> None:
    """Layers, batches, schedule and optimizer were carried over before there was any AMP.

    Adam divides a gradient by its magnitude: a rounding error turns the sign of one that is almost zero,
    and its weight moves by the whole rate. So differences grow, from 1e-6 at first.
    """
    paddle, keras = (history(folder, f"{side}_float32", "loss") for side in ("paddle", "keras"))
    assert len(paddle) == len(keras) == EPOCH
    np.testing.assert_allclose(keras[: 2 * ACCUMULATE], paddle[: 2 * ACCUMULATE], rtol=1e-5)
    np.testing.assert_allclose(keras[:20], paddle[:20], rtol=2e-3)
    np.testing.assert_allclose(keras, paddle, rtol=0.03)


def test_scales_and_skips_are_the_same(folder: Path) -> None:
    """No gradient of the first steps is within 20 % of the limit of float16: no rounding decides."""
    paddle, keras = (history(folder, side, "scale") for side in ("paddle", "keras"))
    assert len(paddle) == EPOCH * CONFIG["epochs"]
    assert keras.tolist() == paddle.tolist()
    assert paddle[:UNTRAINED:ACCUMULATE].tolist() == [2.0**power for power in range(24, 17, -1)]
    assert set(paddle[UNTRAINED:]) == {2.0**18}


def test_layers_compute_in_float16(folder: Path) -> None:
    names = ("Sequential", "ReLU", "ResidualBlock", "Dense", "GlobalAveragePooling2D")
    dtypes = json.loads((folder / "tensorflow.json").read_text())["dtypes"]
    assert dtypes == dict.fromkeys(names, "float16")


def test_losses_agree(folder: Path) -> None:
    """To a rounding of float16 while weights are equal; to 5 % in the first epoch; on the mean to 3 %."""
    paddle, keras = (history(folder, side, "loss") for side in ("paddle", "keras"))
    np.testing.assert_allclose(keras[:UNTRAINED], paddle[:UNTRAINED], rtol=2.0**-11)
    np.testing.assert_allclose(keras[:EPOCH], paddle[:EPOCH], rtol=0.05)
    means = (losses.reshape(-1, EPOCH).mean(axis=1) for losses in (keras, paddle))
    np.testing.assert_allclose(*means, rtol=0.03)


def test_accuracies_agree_and_are_those_of_the_guide(folder: Path) -> None:
    """Within a point, six of the 597 test images: of the weights, and of their moving average."""
    paddle, keras = (accuracies(folder, side) for side in ("paddle", "keras"))
    assert min(paddle) > 0.94
    np.testing.assert_allclose(keras, paddle, atol=0.01)
    rows = re.findall(r"^\| `(\w+)\.py` \| ([\d.]+) % \| ([\d.]+) % \|$", GUIDE, re.M)
    assert [script for script, *_ in rows] == ["paddle_ampbridge", "keras_train"]
    for (_, *shown), measured in zip(rows, (paddle, keras), strict=True):
        np.testing.assert_allclose([float(each) / 100 for each in shown], measured, atol=0.01)


@pytest.mark.parametrize("framework, side", [("paddle", "paddle"), ("tensorflow", "keras")])
def test_a_training_goes_on_where_it_stopped(folder: Path, framework: str, side: str) -> None:
    run = json.loads((folder / f"{framework}.json").read_text())
    losses, scales = (history(folder, side, name) for name in ("loss", "scale"))
    second = slice(EPOCH, 2 * EPOCH)
    assert [record["loss"] for record in run["resumed"]] == losses[second].tolist()
    assert [record["scale"] for record in run["resumed"]] == scales[second].tolist()
    assert run["told"][-1] == [f"accuracy {accuracies(folder, side)[0]:.4f}"]  # of --eval
