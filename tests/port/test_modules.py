"""Which modules of a folder are read with a script, and which are not."""

import os

import pytest

import ampbridge as amp
from ampbridge_port.reader import modules, source

SCRIPT = """\
import torch
{imports}

for x, y in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x, y)
    {scaler}.scale(loss).backward()
    {scaler}.step(optimizer)
    {scaler}.update()
"""
HELPER = """\
import torch

SCALE = 256.0
scaler = torch.amp.GradScaler("cuda", init_scale=SCALE)
"""


def put(folder, **files):
    """Files by their names, in which ``__`` stands for a folder."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/').replace('PACKAGE', '__init__')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "train.py"


def scale_of(reading):
    return [each.settings.get("scaler.init_scale") for each in reading.alternatives]


@pytest.mark.parametrize(
    ("imports", "scaler", "module"),
    [
        ("from helper import scaler", "scaler", "helper"),
        ("from helper import scaler as s", "s", "helper"),
        ("import helper", "helper.scaler", "helper"),
        ("import utils.helper as h", "h.scaler", "utils__helper"),
        ("import utils.helper", "utils.helper.scaler", "utils__helper"),
        ("from utils import helper", "helper.scaler", "utils__helper"),
        ("from utils.helper import *", "scaler", "utils__helper"),
        ("from .helper import scaler", "scaler", "helper"),
        ("from . import helper", "helper.scaler", "helper"),
        ("from helper import scaler", "scaler", "src__helper"),
    ],
)
def test_every_form_of_import(tmp_path, imports, scaler, module):
    script = put(tmp_path, train=SCRIPT.format(imports=imports, scaler=scaler), **{module: HELPER})
    assert scale_of(amp.port.read(script)) == [256.0]


def test_one_relative_name_is_another_module_in_each_folder(tmp_path):
    script = put(
        tmp_path,
        train=SCRIPT.format(imports="import b.amp\nfrom a.amp import scaler", scaler="scaler"),
        a__amp="from .helper import scaler\n",
        a__helper=HELPER,
        b__amp="from .helper import scaler\n",
        b__helper=HELPER.replace("256.0", "64.0"),
    )
    assert scale_of(amp.port.read(script)) == [256.0]


def test_modules_that_import_each_other_end(tmp_path):
    script = put(
        tmp_path,
        train=SCRIPT.format(imports="from one import scaler", scaler="scaler"),
        one="from two import scaler\n",
        two="from one import scaler\n",
    )
    (alternative,) = amp.port.read(script).alternatives
    assert "scaler.enabled" in alternative.unknown


def test_modules_that_bring_on_everything_take_no_longer_than_there_are(tmp_path):
    """Two modules a layer, each with all names of both below: 2**30 ways to the last."""
    layers = {
        f"{side}{n}": f"from a{n + 1} import *\nfrom b{n + 1} import *\n"
        for n in range(30)
        for side in "ab"
    }
    text = SCRIPT.format(imports="from a0 import *\nfrom b0 import *", scaler="scaler")
    script = put(tmp_path, train=text, a30="", b30="x = 1\n", **layers)
    (alternative,) = amp.port.read(script).alternatives
    assert "scaler.enabled" in alternative.unknown
    put(tmp_path, a30=HELPER)
    assert scale_of(amp.port.read(script)) == [256.0]


def test_a_long_chain_of_base_classes_is_read_alone_or_to_its_end(tmp_path):
    chain = {
        f"m{n}": f"from m{n + 1} import Base as Below\n\nclass Base(Below):\n    pass\n"
        for n in range(80)
    }
    last = (
        "class Base:\n    def __init__(self):\n        self.scaler = torch.amp.GradScaler('cuda')\n"
    )
    text = SCRIPT.format(imports="from m0 import Base\nt = Base()", scaler="t.scaler")
    reading = amp.port.read(put(tmp_path, train=text, m80=f"import torch\n\n{last}", **chain))
    (alternative,) = reading.alternatives
    assert "scaler.enabled" in alternative.unknown or alternative.recipe.scaler.enabled


def test_what_something_else_binds_anew_was_imported_before(tmp_path):
    helper = "SCALE = 1.0\n\ndef larger():\n    global SCALE\n    SCALE = 8.0\n"
    text = "import helper\nfrom helper import SCALE\nhelper.larger()\n" + SCRIPT.format(
        imports="scaler = torch.amp.GradScaler('cuda', init_scale=SCALE)", scaler="scaler"
    )
    (alternative,) = amp.port.read(put(tmp_path, train=text, helper=helper)).alternatives
    assert alternative.settings["scaler.init_scale"] == 1.0


def test_what_a_module_does_once_it_is_imported_counts(tmp_path):
    script = put(
        tmp_path,
        train="import keras\nimport setup_amp\n\nmodel = keras.Sequential()\nmodel.fit(x, y)\n",
        setup_amp="import inner\n",
        inner="import keras\n\nkeras.config.set_dtype_policy('mixed_bfloat16')\n",
    )
    assert amp.port.read(script).recipe.policy == amp.Policy("O2", "bfloat16", lists="tensorflow")


@pytest.mark.parametrize("sets", ["config.SCALE = 64.0", "config.__dict__.update(SCALE=64.0)"])
def test_what_a_module_sets_of_another_once_it_is_imported_counts(tmp_path, sets):
    script = put(
        tmp_path,
        train="import setup_config\nimport config\n"
        + SCRIPT.format(
            imports="scaler = torch.amp.GradScaler('cuda', init_scale=config.SCALE)",
            scaler="scaler",
        ),
        config="SCALE = 1.0\n",
        setup_config=f"import config\n\n{sets}\n",
    )
    assert scale_of(amp.port.read(script)) == [64.0]


def test_the_program_of_another_module_is_not_run(tmp_path):
    helper = (
        HELPER + "\nif __name__ == '__main__':\n    scaler = torch.amp.GradScaler(init_scale=1.0)\n"
    )
    text = SCRIPT.format(imports="from helper import scaler", scaler="scaler")
    assert scale_of(amp.port.read(put(tmp_path, train=text, helper=helper))) == [256.0]


def test_nothing_outside_the_repository_is_read(tmp_path):
    inside, outside = tmp_path / "repo", tmp_path / "elsewhere"
    text = SCRIPT.format(imports="from helper import scaler", scaler="scaler")
    script = put(inside, train=text)
    (inside / ".git").mkdir()
    put(outside, helper=HELPER)
    put(tmp_path, helper=HELPER)
    (inside / "helper.py").symlink_to(outside / "helper.py")
    (alternative,) = amp.port.read(script).alternatives
    assert "scaler.enabled" in alternative.unknown


@pytest.mark.skipif(os.name != "posix", reason="pipes with names")
def test_a_pipe_is_no_module(tmp_path):
    script = put(
        tmp_path, train=SCRIPT.format(imports="from helper import scaler", scaler="scaler")
    )
    os.mkfifo(tmp_path / "helper.py")
    (alternative,) = amp.port.read(script).alternatives
    assert "scaler.enabled" in alternative.unknown


def test_a_module_that_is_no_python_stops_nothing_and_is_told(tmp_path):
    imports = "from helper import make_grad_scaler\nscaler = make_grad_scaler()"
    text = SCRIPT.format(imports=imports, scaler="scaler")
    reading = amp.port.read(put(tmp_path, train=text, helper="def (:\n"))
    (alternative,) = reading.alternatives
    assert "scaler.enabled" in alternative.unknown
    told = [each.message for each in reading.findings if "make_grad_scaler" in each.message]
    assert any("helper.py is no Python" in message for message in told)


def test_each_module_is_parsed_once_for_a_folder(tmp_path, monkeypatch):
    parsed = []
    parse = source.parse
    monkeypatch.setattr(
        source,
        "parse",
        lambda data, file, *more, **kw: parsed.append(file) or parse(data, file, *more, **kw),
    )
    text = SCRIPT.format(imports="from helper import scaler", scaler="scaler")
    put(tmp_path, train=text, second=text, third=text, helper=HELPER)
    outcomes = list(amp.port.read_many([tmp_path]))
    assert [each.reading.framework for each in outcomes] == ["torch"] * 3 + [None]
    assert len(parsed) == len(set(parsed)) == 4


def test_no_more_modules_are_followed_than_the_most(tmp_path, monkeypatch):
    monkeypatch.setattr(modules, "MOST_MODULES", 2)
    chain = {f"m{n}": f"from m{n + 1} import make\n" for n in range(4)}
    script = put(
        tmp_path,
        train=SCRIPT.format(imports="from m0 import make\nscaler = make()", scaler="scaler"),
        **chain,
        m4="import torch\n\ndef make():\n    return torch.amp.GradScaler('cuda')\n",
    )
    (alternative,) = amp.port.read(script).alternatives
    assert "scaler.enabled" in alternative.unknown


def test_in_the_repository_of_a_library_its_calls_mean_what_they_mean_elsewhere(tmp_path):
    script = put(
        tmp_path,
        train="from torchtitan.config import TrainingConfig\nconfig = TrainingConfig(max_norm=0.5)\n",
        torchtitan__PACKAGE="",
        torchtitan__config="class TrainingConfig:\n    max_norm: float = 1.0\n",
    )
    (found,) = amp.port.read(script).alternatives
    assert found.settings == {
        "policy.level": "O2",
        "policy.dtype": "bfloat16",
        "policy.lists": "torch",
        "step.clip_norm": 0.5,
    }
