"""The Paddle trainer of the guide to porting: Paddle's own AMP, and what ampbridge makes of the script.

The script runs as it is on the device; rewritten by ``ampbridge port --to ampbridge``, it is simulated on the
CPU. The guide's Keras trainer is compared with the latter, in tests/examples.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import paddle
import pytest
import yaml
from paddle_native_scaler import without_print

from ampbridge_port.rewriting import rewrite

pytestmark = pytest.mark.slow

RESNET = Path(__file__).parents[2] / "examples" / "porting" / "resnet"
SCRIPT = RESNET.joinpath("paddle_train.py").read_text("utf-8")
CONFIG = yaml.safe_load(RESNET.joinpath("config.yml").read_text("utf-8"))


def module(text: str) -> Any:
    made = ModuleType("paddle_train")
    exec(compile(text, "paddle_train.py", "exec"), vars(made))
    return made


def trained(text: str, device: str, output: Path) -> Any:
    """A trainer after an epoch, and the accuracy of its averaged weights."""
    paddle.set_device(device)
    paddle.seed(CONFIG["seed"])
    trainer = module(text).Trainer(CONFIG, str(output))
    trainer.train_epoch(0)
    with trainer.ema.applied_to(trainer.model):
        return trainer, trainer.evaluate()


def test_the_rewritten_trainer_is_the_original(tmp_path: Path) -> None:
    """To the bit until the weights first change; after that, roundings of sums of gradients differ."""
    with without_print():
        native, expected = trained(SCRIPT, "virtual_gpu", tmp_path)
    ours, accuracy = trained(rewrite(SCRIPT).text, "cpu", tmp_path)
    scales, losses = (
        np.array([[record[name] for record in trainer.history] for trainer in (native, ours)])
        for name in ("scale", "loss")
    )
    assert scales[1].tolist() == scales[0].tolist()
    assert scales[0, ::2][:7].tolist() == [2.0**power for power in range(24, 17, -1)]
    assert losses[1, :14].tolist() == losses[0, :14].tolist()
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.05)
    assert abs(accuracy - expected) <= 0.015
