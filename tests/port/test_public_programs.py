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


LOOP = """
import argparse, json, torch
parser = argparse.ArgumentParser()
parser.add_argument("--config", default="a.json")
args = parser.parse_args()
with open(args.config) as file:
    config = json.loads(file.read())
device = find_device()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=ENABLED)
for i, x in enumerate(data):
    with torch.autocast(DEVICE, enabled=ENABLED):
        loss = model(x).sum() / 4
    scaler.scale(loss).backward()
    if CONDITION:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


def _loop(enabled="True", device='"cuda"', condition="(i + 1) % 4 == 0"):
    program = LOOP.replace("ENABLED", enabled).replace("DEVICE", device)
    return program.replace("CONDITION", condition)


def test_an_override_reaches_a_configuration_that_is_read_as_text(tmp_path):
    (tmp_path / "a.json").write_text('{"amp": false,\n "steps": 3}')
    (tmp_path / "main.py").write_text(_loop('config["amp"]'))
    config = tmp_path / "a.json"
    assert _levels(port.read(tmp_path / "main.py", config=config)) == ["O0"]
    reading = port.read(tmp_path / "main.py", config=config, override=["amp=true"])
    assert _levels(reading) == ["O1"]


@pytest.mark.parametrize("condition, told", [("i % 4 == 0", 1), ("(i + 1) % 4 == 0", 0)])
def test_a_first_update_after_one_micro_batch_is_told(tmp_path, condition, told):
    reading = _read(tmp_path, main=_loop(condition=condition))
    assert reading.recipe.accumulate == 4
    assert sum("after one micro-batch" in each.message for each in reading.findings) == told


def test_a_device_that_is_not_known_is_a_gpu_and_told(tmp_path):
    reading = _read(tmp_path, main=_loop(device="str(device)"))
    assert reading.recipe.policy.dtype == "float16"
    assert any("The device is not known" in each.message for each in reading.findings)


def test_a_cast_ahead_of_a_region_is_of_another_model(tmp_path):
    program = _loop().replace("for i, x", "model.half().float()\nfor i, x")
    reading = _read(tmp_path, main=program)
    assert (reading.recipe.policy.level, reading.recipe.policy.dtype) == ("O1", "float16")
    assert reading.recipe.accumulate == 4


def test_the_accumulation_of_a_metric_is_none_of_gradients(tmp_path):
    program = """
    import pycocotools.cocoeval
    from engine import train
    def evaluate():
        scores = pycocotools.cocoeval.COCOeval(truth, results)
        scores.accumulate()
    train(model, optimizer, data, True)
    evaluate()
    """
    assert _read(tmp_path, main=program, engine=TRAINING).recipe.accumulate == 1


def test_optimizers_that_clip_in_one_line_in_several_ways_are_told(tmp_path):
    program = """
    import torch
    class Step:
        def __init__(self, parameters, most):
            self.parameters, self.most = parameters, most
            self.optimizer = torch.optim.Adam(parameters)
            self.scaler = torch.amp.GradScaler("cuda")
        def __call__(self, loss):
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.parameters, self.most)
            self.scaler.step(self.optimizer)
            self.scaler.update()
    model, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    of_model, of_head = Step(model.parameters(), 1000.0), Step(head.parameters(), 100.0)
    for x in data:
        with torch.autocast("cuda"):
            loss = head(model(x)).sum()
        of_model(loss)
        of_head(loss)
    """
    reading = _read(tmp_path, main=program)
    told = [each.message for each in reading.findings if "1000.0" in each.message]
    assert told
    assert "100.0" in told[0]


def test_the_precision_of_a_launch_is_a_choice(tmp_path):
    program = """
    import accelerate, torch
    accelerator = accelerate.Accelerator(log_with="all")
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(p))
    for x in data:
        accelerator.backward(model(x).sum())
        optimizer.step()
    """
    reading = _read(tmp_path, main=program)
    levels = {each.settings.get("policy.dtype") for each in reading.alternatives}
    assert {"float16", "bfloat16"} <= levels
    assert "policy.level" in reading.alternatives[0].unknown


def test_what_an_unknown_wrapper_gives_back_is_still_prepared(tmp_path):
    program = """
    import paddle, outside
    model = outside.wrap(paddle.Model(network))
    model.prepare(optimizer, loss, amp_configs={"level": "O2", "init_loss_scaling": 8192})
    """
    recipe = _read(tmp_path, main=program).recipe
    assert (recipe.policy.level, recipe.scaler.init_scale) == ("O2", 8192.0)


def test_a_scaler_in_an_unknown_wrapper_is_used(tmp_path):
    program = """
    import tensorflow as tf, outside
    optimizer = tf.train.experimental.MixedPrecisionLossScaleOptimizer(
        tf.train.AdamOptimizer(1e-3), "dynamic"
    )
    optimizer = outside.wrap(optimizer)
    optimizer.minimize(loss)
    """
    (alternative,) = _read(tmp_path, main=program).alternatives
    assert alternative.settings["scaler.like"] == "keras"
