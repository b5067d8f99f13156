"""What public programs do that nobody here had thought of; each case is one kind, in lines of our own."""

import textwrap
from pathlib import Path

from ampbridge import port
from ampbridge_port.reader import search

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


CLIPPED = Path(__file__).parent / "corpus" / "torch_gradients_changed_by_hand.py"


def test_a_run_without_the_region_is_in_float32(tmp_path):
    reading = _read(tmp_path, main=CLIPPED.read_text())
    assert sorted(_levels(reading)) == ["O0", "O1"]
    assert reading.recipe.policy.level == "O1"


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


def test_an_override_reaches_a_configuration_that_is_read_as_text(tmp_path):
    program = (
        TRAINING
        + """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("-c", default="a.json")
with open(parser.parse_args().c) as file:
    text = file.read()
train(model(), torch.optim.SGD(p), data, json.loads(text)["amp"])
"""
    )
    (tmp_path / "a.json").write_text('{"amp": false,\n "steps": 3}')
    (tmp_path / "main.py").write_text(program)
    config = tmp_path / "a.json"
    assert _levels(port.read(tmp_path / "main.py", config=config)) == ["O0"]
    reading = port.read(tmp_path / "main.py", config=config, override=["amp=true"])
    assert _levels(reading) == ["O1"]


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


def test_a_list_of_faults_is_taken_to_be_empty(tmp_path):
    program = """
    import sys, numpy
    from engine import train
    frames = numpy.load("frames.npy")
    bad = []
    for index in range(frames.shape[0]):
        if abs(frames[index]).max() > 10:
            bad.append(index)
    if bad:
        sys.exit()
    train(model(), optimizer(), frames, True)
    """
    assert _read(tmp_path, main=program, engine=TRAINING).recipe.policy.level == "O1"


def test_a_training_after_another_has_a_scaler_of_its_own(tmp_path):
    folds = """
    from engine import train
    for fold in ["a", "b", "c"]:
        train(model(fold), optimizer(fold), data[fold], True)
    """
    reading = _read(tmp_path, main=folds, engine=TRAINING)
    assert reading.recipe.scaler.init_scale == 65536.0
    assert reading.findings == ()


def test_optimizers_with_a_scaler_each_are_told(tmp_path):
    program = """
    import torch
    pairs = [(torch.optim.Adam(net), torch.amp.GradScaler("cuda")) for net in (first(), second())]
    for x in data:
        for optimizer, scaler in pairs:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(x)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    """
    (finding,) = _read(tmp_path, main=program).findings
    assert finding.kind == "lost"
    assert "Each of 2 optimizers has a scaler" in finding.message


def test_a_device_equals_no_text(tmp_path):
    program = """
    import torch
    device = torch.device("cuda")
    scaler = torch.amp.GradScaler("cuda")
    for x in data:
        with torch.autocast("cuda" if device == "cuda" else "cpu"):
            loss = model(x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    """
    reading = _read(tmp_path, main=program)
    assert [each.settings["policy.dtype"] for each in reading.alternatives] == ["bfloat16"]
    told = {each.place.line: each.message for each in reading.findings if each.kind == "note"}
    assert "equals no text" in told[6]


def test_an_average_accumulates_no_gradients(tmp_path):
    program = """
    from engine import train
    from library.log import AverageAccumulator, LossAccumulator
    shown = AverageAccumulator()
    train(model(), optimizer(), data, True)
    shown.add(LossAccumulator().last())
    """
    reading = _read(tmp_path, main=program, engine=TRAINING)
    assert reading.recipe.accumulate == 1
    assert reading.findings == ()


def test_a_region_of_an_evaluation_says_nothing_of_a_training(tmp_path):
    program = """
    import torch
    def evaluate(model, data):
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
            return model(data)
    for x in data:
        library.backward(model(x))
        optimizer.step()
        optimizer.zero_grad()
        evaluate(model, x)
    """
    assert _read(tmp_path, main=program).framework is None


def test_attributes_are_filled_in_by_the_dictionary_of_the_base(tmp_path):
    program = """
    import argparse
    import torch, yaml
    class Base:
        def __init__(self):
            self.clip = 0.0
    class Settings(Base):
        def __init__(self, path):
            super().__init__()
            with open(path) as file:
                read = yaml.safe_load(file)
            for key in super().__dict__:
                if key in read:
                    self.__dict__[key] = read[key]
    parser = argparse.ArgumentParser()
    parser.add_argument("-c", required=True)
    settings = Settings(parser.parse_args().c)
    for x in data:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x)
        loss.backward()
        if settings.clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        optimizer.zero_grad()
    """
    (tmp_path / "a.yml").write_text("clip: 0.25\n")
    assert _read(tmp_path, config=tmp_path / "a.yml", main=program).recipe.clip_norm == 0.25


CHOSEN = """
from engine import train
def by_name(kind):
    if kind == "one":
        return train
    if kind == "two":
        return train
    raise ValueError(kind)
by_name(library.options().kind)(model(), optimizer(), data, True)
"""


def test_one_of_several_that_are_known_by_name_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "MOST_RUNS", 1)  # at the first attempt
    assert _read(tmp_path, main=CHOSEN, engine=TRAINING).recipe.policy.level == "O1"
    chain = CHOSEN.replace('    if kind == "two"', '    elif kind == "two"')
    chain = chain.replace("    raise", "    else:\n        raise")
    assert _read(tmp_path, main=chain, engine=TRAINING).recipe.policy.level == "O1"


def test_a_program_that_looks_for_a_device_finds_a_gpu(tmp_path):
    program = """
    import argparse, contextlib
    import paddle
    def device():
        if paddle.is_compiled_with_cuda():
            return "gpu"
        return "cpu"
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default=device())
    args = parser.parse_args()
    scaler = paddle.amp.GradScaler()
    for x in data:
        with paddle.amp.auto_cast() if args.device != "cpu" else contextlib.nullcontext():
            loss = model(x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
    """
    assert _read(tmp_path, main=program).recipe.policy.level == "O1"


def test_options_of_precision_are_looked_at_first(tmp_path, monkeypatch):
    """Where there are more ways than are followed, those of other options are left out."""
    program = """
    import argparse
    from engine import train
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=["a", "b", "c"], default="a")
    parser.add_argument("--fp16", action="store_true")
    args = parser.parse_args()
    if args.kind == "b":
        raise ValueError("mixed precision of kind b")
    train(model(), optimizer(), data, args.fp16)
    """
    monkeypatch.setattr(search, "MOST_RUNS", 2)
    assert _read(tmp_path, main=program, engine=TRAINING).recipe.policy.level == "O1"


def test_ways_that_were_left_out_are_told_where_none_is_in_mixed_precision(tmp_path, monkeypatch):
    program = """
    import argparse
    from engine import train
    parser = argparse.ArgumentParser()
    parser.add_argument("--fp16", action="store_true")
    train(model(), optimizer(), data, parser.parse_args().fp16)
    """
    monkeypatch.setattr(search, "MOST_RUNS", 1)
    findings = _read(tmp_path, main=program, engine=TRAINING).findings
    assert any("too much to be followed" in f.message for f in findings if f.kind == "unknown")


def test_a_section_of_deepspeed_from_elsewhere_is_unknown(tmp_path):
    program = """
    import deepspeed
    settings = library.settings()
    engine, *_ = deepspeed.initialize(
        model=model, config={"fp16": settings.fp16, "gradient_clipping": 0.5}
    )
    for x in data:
        engine.backward(engine(x))
        engine.step()
    """
    (alternative,) = _read(tmp_path, main=program).alternatives
    assert set(alternative.unknown) == {"policy.level"}
    assert alternative.settings == {"step.clip_norm": 0.5}


def test_a_scaler_that_is_passed_in_unscales_what_is_clipped(tmp_path):
    program = """
    import torch
    scaler = library.registry.create("scaler")
    for x in data:
        with torch.autocast("cuda"):
            loss = model(x)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    """
    reading = _read(tmp_path, main=program)
    assert set(reading.alternatives[0].unknown) == {"scaler.enabled"}
    assert [each.kind for each in reading.findings] == ["unknown"]


def test_what_fits_and_cannot_be_known_is_told(tmp_path):
    program = """
    import importlib, sys
    trainer = getattr(importlib.import_module(sys.argv[1]), "Trainer")(sys.argv[2])
    trainer.fit(data)
    """
    (finding,) = _read(tmp_path, main=program).findings
    assert (finding.kind, finding.place.line) == ("unknown", 4)
    assert "What trainer is cannot be known" in finding.message
