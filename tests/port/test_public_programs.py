"""What public programs do that nobody here had thought of; each case is one kind, in lines of our own."""

import textwrap

import pytest

from ampbridge import port

TRAINING = """
import torch
from torch.cuda.amp import GradScaler, autocast
def train(model, optimizer, batches, fp16):
    scaler = GradScaler(enabled=fp16)
    for batch in batches:
        optimizer.zero_grad()
        with autocast(enabled=fp16):
            loss = model(batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


def _read(folder, config=None, **modules):
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return port.read(folder / "main.py", config=config)


def _levels(reading):
    return [each.settings.get("policy.level") for each in reading.alternatives]


def test_an_annotation_says_of_which_class_an_argument_is(tmp_path):
    program = """
    import argparse, importlib
    from engine import Experiment
    def main(experiment: Experiment, args):
        experiment.trainer(args).run()
    parser = argparse.ArgumentParser()
    parser.add_argument("--fp16", action="store_true")
    args = parser.parse_args()
    main(importlib.import_module(args.name).Experiment(), args)
    """
    engine = (
        TRAINING
        + """
class Trainer:
    def __init__(self, args):
        self.fp16 = args.fp16
    def run(self):
        train(self.model, self.optimizer, self.batches, self.fp16)

class Experiment:
    def trainer(self, args):
        return Trainer(args)
"""
    )
    reading = _read(tmp_path, main=program, engine=engine)
    assert sorted(_levels(reading)) == ["O0", "O1"]
    assert reading.recipe.policy.dtype == "float16"


def test_a_switch_of_the_script_that_is_off_may_be_set(tmp_path):
    program = TRAINING + "\nfp16 = False\ntrain(model(), torch.optim.SGD(p), data, fp16)\n"
    reading = _read(tmp_path, main=program)
    assert sorted(_levels(reading)) == ["O0", "O1"]
    assert reading.recipe.policy.level == "O1"


def test_a_scaler_that_scales_nothing_is_no_mixed_precision(tmp_path):
    program = """
    import torch
    scaler = torch.cuda.amp.GradScaler()
    optimizer = torch.optim.SGD(p, lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
    """
    assert _read(tmp_path, main=program).framework is None


def test_a_model_in_float16_is_not_the_one_that_a_scaler_steps(tmp_path):
    program = """
    import torch
    from elsewhere import smart_autocast
    scaler = torch.cuda.amp.GradScaler()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        with smart_autocast():
            loss = model(batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    model.half()
    """
    (only,) = _read(tmp_path, main=program).alternatives
    assert "policy.level" in only.unknown
    assert "policy.level" not in only.settings


def test_mixed_precision_that_is_not_reached_is_told(tmp_path):
    program = """
    import torch
    import low
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        registry[name](model, batch).backward()
        optimizer.step()
    """
    low = """
    def cast(layer):
        layer.weight.data = layer.weight.data.half()
    """
    reading = _read(tmp_path, main=program, low=low)
    (finding,) = reading.findings
    assert reading.framework is None
    assert finding.kind == "unknown"
    assert finding.place.line == 3
    assert finding.place.file.endswith("low.py")


def test_a_configuration_whose_text_is_read_is_followed(tmp_path):
    program = (
        TRAINING
        + """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("-c", default="here.json")
with open(parser.parse_args().c) as file:
    text = file.read()
table = json.loads(text)
train(model(), torch.optim.SGD(p), data, table["train"]["fp16"])
"""
    )
    (tmp_path / "here.json").write_text('{"train": {"fp16": true}}')
    reading = _read(tmp_path, tmp_path / "here.json", main=program)
    assert reading.recipe.policy.level == "O1"
    assert not reading.findings


def test_an_option_without_a_default_is_no_number(tmp_path):
    program = """
import argparse
import torch
from torch.cuda.amp import GradScaler, autocast
parser = argparse.ArgumentParser()
parser.add_argument("--clip", default=None, type=float)
clip = parser.parse_args().clip
scaler = GradScaler()
optimizer = torch.optim.SGD(p, lr=0.1)
for batch in batches:
    optimizer.zero_grad()
    with autocast():
        loss = model(batch)
    scaler.scale(loss).backward()
    if clip is not None:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(optimizer)
    scaler.update()
"""
    without, clipped = _read(tmp_path, main=program).alternatives
    assert "step.clip_norm" not in {**without.settings, **without.unknown}
    assert "step.clip_norm" in clipped.unknown


def test_an_optimizer_that_is_none_at_first_is_one_later(tmp_path):
    program = """
    import torch
    def build(name):
        optimizer = None
        if name == "sgd":
            optimizer = torch.optim.SGD(p)
        return optimizer
    optimizer = build(config.name)
    scaler = torch.cuda.amp.GradScaler()
    for batch in batches:
        with torch.cuda.amp.autocast():
            loss = model(batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    """
    reading = _read(tmp_path, main=program)
    assert not [each for each in reading.findings if "clears" in each.message]


def test_a_switch_in_a_table_of_hyperparameters_may_be_set(tmp_path):
    program = (
        TRAINING
        + """
import tensorflow as tf
table = tf.contrib.training.HParams(fp16_run=False, epochs=3)
train(model(), torch.optim.SGD(p), data, table.fp16_run)
"""
    )
    reading = _read(tmp_path, main=program)
    assert sorted(_levels(reading)) == ["O0", "O1"]


def test_an_attribute_of_a_library_may_be_none(tmp_path):
    program = """
    import keras
    keras.mixed_precision.set_global_policy("mixed_float16")
    model = keras.Sequential([keras.layers.Dense(3)])
    if model.optimizer is None:
        model.compile(optimizer="sgd", loss="mse")
    model.fit(x, y)
    """
    recipe = _read(tmp_path, main=program).recipe
    assert recipe.scaler.init_scale == 2.0**15


CLIPPED = """
import argparse, contextlib, torch
def clip(model, most):
    for p in model.parameters():
        factor = most / p.grad.data.norm(2)
        if factor < 1:
            p.grad.data.mul_(factor)
parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
region = torch.autocast("cuda") if args.amp else contextlib.nullcontext()
for x in data:
    with region:
        loss = model(x).sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, 3.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


def test_a_run_without_the_region_is_in_float32(tmp_path):
    reading = _read(tmp_path, main=CLIPPED)
    assert sorted(_levels(reading)) == ["O0", "O1"]
    assert reading.recipe.policy.level == "O1"


def test_gradients_that_a_function_of_the_script_changes_are_told(tmp_path):
    told = [each for each in _read(tmp_path, main=CLIPPED).findings if each.kind == "unknown"]
    assert [each.place.line for each in told] == [7]
    assert "stands between unscale_ and step" in told[0].message


def test_a_folder_that_is_added_to_the_path_is_searched(tmp_path):
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "engine.py").write_text(TRAINING)
    program = """
    import sys
    sys.path.append("core")
    from engine import train
    train(model(), optimizer(), data, True)
    """
    assert _read(tmp_path, main=program).recipe.policy.level == "O1"


@pytest.mark.parametrize(
    "base, library, method",
    [
        ("torch.amp.GradScaler", "torch", "update"),
        ("paddle.amp.GradScaler", "paddle", "_update"),
        ("keras.optimizers.LossScaleOptimizer", "keras", "apply"),
    ],
)
def test_a_scaler_with_a_rule_of_its_own_is_told(tmp_path, base, library, method):
    program = f"""
    import {library}
    class Mine({base}):
        def {method}(self, *given):
            super().{method}(*given)
            if self._scale > 2**20:
                self._scale = 2**20
        def state_dict(self):
            return {{}}
    scaler = Mine(model)
    """
    told = [each for each in _read(tmp_path, main=program).findings if "its own" in each.message]
    assert [(each.kind, each.place.line) for each in told] == [("unknown", 10)]
    assert f"with its own {method}:" in told[0].message


def test_timm_s_scaler_steps_as_timm_has_it(tmp_path):
    program = """
    import torch
    from timm.utils import NativeScaler, get_state_dict
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    loss_scaler = NativeScaler()
    for x in data:
        optimizer.zero_grad()
        with torch.amp.autocast("cuda"):
            loss = model(x).sum()
        loss_scaler(loss, optimizer, clip_grad=2.0, parameters=model.parameters())
    """
    recipe = _read(tmp_path, main=program).recipe
    assert (recipe.policy.level, recipe.clip_norm) == ("O1", 2.0)
    assert (recipe.scaler.init_scale, recipe.scaler.growth_interval) == (2.0**16, 2000)


def test_a_run_that_the_program_refuses_is_no_recipe(tmp_path):
    program = """
    import argparse, torch
    def worker(gpu, args):
        if args.distributed:
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        elif args.gpu is not None:
            raise NotImplementedError("DistributedDataParallel alone is supported.")
        else:
            raise NotImplementedError("DistributedDataParallel alone is supported.")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.cuda.amp.GradScaler()
        train(model, optimizer, scaler)
    def train(model, optimizer, scaler):
        for x in data:
            with torch.cuda.amp.autocast():
                loss = model(x).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    parser = argparse.ArgumentParser()
    parser.add_argument("--distributed", action="store_true")
    parser.add_argument("--gpu", type=int)
    worker(0, parser.parse_args())
    """
    reading = _read(tmp_path, main=program)
    assert len(reading.alternatives) == 1
    assert reading.recipe.scaler.init_scale == 2.0**16
