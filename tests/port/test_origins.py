"""Where each number of a written module was read: file and line, or whose default it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampbridge import port
from ampbridge_port.writers import write

TRAINER = """\
import paddle

clip = paddle.nn.ClipGradByGlobalNorm(clip_norm=1.0)
optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters(), grad_clip=clip)
scaler = paddle.amp.GradScaler(
    enable=True,
    init_loss_scaling=1024,
    decr_every_n_nan_or_inf=2,
)
for i, (x, y) in enumerate(loader):
    with paddle.amp.auto_cast(custom_black_list={"softmax"}, level="O1"):
        loss = loss_fn(model(x), y)
    scaler.scale(loss / 4).backward()
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
"""

NUMBERS = (
    "INIT_SCALE = 1024.0  # train.py:7 init_loss_scaling=1024\n",
    "GROWTH_INTERVAL = 2000  # default of paddle.amp.GradScaler\n",
    "BACKOFF_INTERVAL = 2  # train.py:8 decr_every_n_nan_or_inf=2\n",
    "ACCUMULATE = 4  # train.py:14 (i + 1) % 4 == 0\n",
    "CLIP_NORM = 1.0  # train.py:3 clip_norm=1.0\n",
)
OF_TRAINER = {
    "tensorflow": (
        *NUMBERS,
        'keras.config.set_dtype_policy("mixed_float16")  # train.py:11 level="O1"\n',
        'FLOAT32_LAYERS = (keras.layers.Softmax,)  # train.py:11 custom_black_list: {"softmax"}\n',
    ),
    "paddle": (
        *NUMBERS,
        'LEVEL = "O1"  # train.py:11 level="O1"\n',
        'DTYPE = "float16"  # default of paddle.amp.auto_cast\n',
        'BLACK_LIST = {"softmax"}  # train.py:11 custom_black_list: {"softmax"}\n',
    ),
    "torch": (  # whose scaler lacks a setting of this recipe
        'deny = ["softmax"] # train.py:11 custom_black_list: {"softmax"}\n',
        "init_scale = 1024.0 # train.py:7 init_loss_scaling=1024\n",
        "accumulate = 4 # train.py:14 (i + 1) % 4 == 0\n",
        "\nPyTorch itself has nothing for policy.lists, policy.deny, scaler.backoff_",
    ),
}


def written(file: Path, text: str, target: str) -> str:
    file.write_text(text, encoding="utf-8")
    (alternative,) = port.read(file).alternatives
    return write(alternative.recipe, target, comments=alternative.said)


@pytest.mark.parametrize("target", OF_TRAINER)
def test_each_number_says_where_it_was_read(tmp_path: Path, target: str) -> None:
    code = written(tmp_path / "train.py", TRAINER, target)
    assert [line for line in OF_TRAINER[target] if line not in code] == []


def test_a_number_that_was_changed_by_a_call_stands_there(tmp_path: Path) -> None:
    """What a setter set last, and nothing of a scaler that another has replaced."""
    text = """\
import torch

scaler = torch.amp.GradScaler("cuda", init_scale=8.0, growth_interval=7)
scaler = torch.amp.GradScaler("cuda")
scaler.set_growth_factor(4.0)
with torch.autocast("cuda", dtype=torch.float16):
    pass
"""
    code = written(tmp_path / "train.py", text, "torch")
    assert "GROWTH_FACTOR = 4.0  # train.py:5 new_factor=4.0\n" in code
    assert "INIT_SCALE = 65536.0  # default of torch.amp.GradScaler\n" in code
    assert "GROWTH_INTERVAL = 2000  # default of torch.amp.GradScaler\n" in code


def test_a_configuration_s_line_is_said_too(tmp_path: Path) -> None:
    text = """\
{
  "fp16": {"enabled": true, "initial_scale_power": 10},
  "gradient_clipping": 0.5,
  "gradient_accumulation_steps": 4
}
"""
    code = written(tmp_path / "ds.json", text, "tensorflow")
    assert "INIT_SCALE = 1024.0  # ds.json:2 initial_scale_power=10\n" in code
    assert "CLIP_NORM = 0.5  # ds.json:3 gradient_clipping=0.5\n" in code
    assert "ACCUMULATE = 4  # ds.json:4 gradient_accumulation_steps=4\n" in code


def test_long_expressions_are_cut(tmp_path: Path) -> None:
    text = TRAINER.replace("1024,", "max(1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024),")
    code = written(tmp_path / "train.py", text, "tensorflow")
    (line,) = [line for line in code.splitlines() if line.startswith("INIT_SCALE")]
    assert line.endswith(" ...")
    assert len(line) <= 100
