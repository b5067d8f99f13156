"""Which of the recipes of a script is taken in one call, and what is asked where no default decides."""

import shlex

import pytest
from foreign_scripts import CORPUS, reading_of

import ampbridge as amp
from ampbridge.cli import main
from ampbridge_port.choosing import choose
from ampbridge_port.ported import Wish, port


def told(capsys, *arguments):
    """Exit code, output and errors of the command."""
    code = main(["port", *arguments])
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("name", "answer"), {"clas_epoch": "true", "video_train": "O2", "gan_both_dtypes": None}.items()
)
def test_what_no_default_decides_is_asked_once(name, answer, capsys):
    """The command that answers is printed."""
    code, out, err = told(capsys, str(CORPUS / f"{name}.py"), "--to", "toml")
    assert (code, out) == (1, "")
    command = err.splitlines()[-1].partition("ampbridge port ")[2]
    code, out, err = told(capsys, *shlex.split(command.replace("...", answer or "...")))
    assert code == 0, err
    assert amp.Recipe.from_toml(out).policy.dtype == "float16"


@pytest.mark.parametrize("name", ["clas_engine", "det_trainer", "gan_both_dtypes", "ocr_train"])
def test_every_recipe_can_be_picked_and_is_one_of_its_alternatives(name):
    """As the command does it with what it has read: some of these have dozens of recipes."""
    reading = reading_of(CORPUS / f"{name}.py")
    outcome = amp.port.Outcome(name, reading)
    kinds = {frozenset(map(str, each.settings.items())) for each in reading.alternatives}
    count = 0
    while not (made := port(outcome, Wish(None, True, {}, pick=count + 1))).error:
        (picked,) = made.candidates
        assert frozenset(map(str, picked.settings.items())) in kinds
        count += 1
    assert count >= len(kinds)


def test_what_was_taken_is_told(capsys):
    _, _, err = told(capsys, str(CORPUS / "ocr_train.py"), "--to", "toml")
    assert "note: " in err
    assert "The recipe is O2:float16, where config" in err
    assert "--pick 3: O0, where not (config" in err
    default = '`config["Global"].get("scale_loss", 1.0)`'
    assert f"The recipe has the default in {default}; the configuration may change it." in err


def test_what_holds_elsewhere_alone_is_not_told_of_the_recipe(capsys):
    """Of the branch at O2, that the region of an evaluation has no casts."""
    script = CORPUS / "clas_engine.py"
    _, _, err = told(capsys, str(script), "--to", "toml", "--strict")
    assert "lost: " not in err
    assert "--pick 3: O2:float16" in err


def test_a_number_that_is_none(capsys):
    script = str(CORPUS / "gan_both_dtypes.py")
    for number in ("0", "4"):
        code, out, err = told(capsys, script, "--to", "toml", "--pick", number)
        assert (code, out) == (1, "")
        assert f"has no recipe {number}; it has 3.\nHint: --pick 1" in err


def test_what_is_left_is_numbered(capsys):
    script = str(CORPUS / "gan_both_dtypes.py")
    _, out, _ = told(capsys, script)
    assert [line for line in out.splitlines() if "--pick" in line] == ["# --pick 1", "# --pick 2"]
    _, _, err = told(capsys, script, "--to", "tensorflow", "--ampbridge")
    *_, first, second, hint = err.splitlines()
    assert first == "  --pick 1: O1:float16, where args.fp16"
    assert second == "  --pick 2: O1:bfloat16, where not args.fp16 and args.bf16"
    assert hint == f"Hint: ampbridge port {script} --to tensorflow --ampbridge --pick 1"
    for number, dtype in ((1, "float16"), (2, "bfloat16")):
        _, out, _ = told(capsys, script, "--to", "toml", "--pick", str(number))
        assert amp.Recipe.from_toml(out).policy.dtype == dtype


RANKED = {
    "a GPU": ("paddle.is_compiled_with_cuda()", True),
    "a GPU by its name": ("place == 'gpu'", True),
    "no CPU": ("paddle.device.get_device() == 'cpu'", False),
    "no other accelerator": ("args.use_xpu", False),
    "the first process": ("paddle.distributed.get_rank() == 0", True),
    "one process": ("paddle.distributed.get_world_size() > 1", False),
    "one of few": ("nranks < 2", True),
    "the newest version": ("paddle.__version__ >= '2.5'", True),
    "no old version": ("paddle.__version__ < '2.5'", False),
    "what it has by now": ("hasattr(paddle.amp, 'is_float16_supported')", True),
    "a training": ("mode == 'train'", True),
    "what trains": ("args.is_train", True),
    "the main process": ("args.is_main_process", True),
    "nothing distributed": ("args.use_fleet", False),
    "no evaluation": ("args.eval_only", False),
    "with an optimizer": ("args.optimizer is None", False),
}


@pytest.mark.parametrize("case", RANKED)
@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
def test_what_is_meant(case, turned):
    """Both branches are in mixed precision, and no default decides."""
    condition, holds = RANKED[case]
    first, second = (2048, 512) if turned is not holds else (512, 2048)  # 2048 is meant
    reading = amp.port.read(
        f"""\
import paddle
from here import args, mode, nranks, place
scale = {first} if {f"not ({condition})" if turned else condition} else {second}
scaler = paddle.amp.GradScaler(init_loss_scaling=scale)
with paddle.amp.auto_cast():
    loss = model(x)
scaler.scale(loss).backward()
"""
    )
    assert len(reading.alternatives) == 2
    assert reading.recipe.scaler.init_scale == 2048


def test_what_is_known_is_taken_before_what_is_not():
    reading = amp.port.read(
        """\
import paddle
from here import config
scale = config["scale"] if "scale" in config else 512.0
scaler = paddle.amp.GradScaler(init_loss_scaling=scale)
with paddle.amp.auto_cast():
    loss = model(x)
scaler.scale(loss).backward()
"""
    )
    assert [sorted(each.unknown) for each in reading.alternatives] == [["scaler.init_scale"], []]
    assert reading.recipe.scaler.init_scale == 512


def test_of_equal_recipes_the_shared_conditions_are_told():
    """Where it is wide, it makes no difference whether it is large: that is not asked."""
    reading = amp.port.read(
        """\
import paddle
from here import args
scale = 1024.0
if args.large:
    scale = 2048.0 if args.wide else 512.0
elif args.wide:
    scale = 2048.0
scaler = paddle.amp.GradScaler(init_loss_scaling=scale)
with paddle.amp.auto_cast():
    loss = model(x)
scaler.scale(loss).backward()
"""
    )
    found = choose(reading.alternatives)
    by_scale = {each.settings["scaler.init_scale"]: each.conditions for each in found.all}
    assert len(reading.alternatives) == 3
    assert by_scale[2048.0] == ("args.wide",)
    assert set(by_scale[512.0]) == {"args.large", "not args.wide"}


def test_bfloat16_where_the_hardware_has_it_is_a_question():
    reading = amp.port.read(
        """\
import torch
dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
with torch.autocast("cuda", dtype=dtype):
    loss = model(x)
"""
    )
    with pytest.raises(amp.SourceError, match="stands for 2 recipes"):
        _ = reading.recipe
