"""Configurations: base files, overrides, and the program that is read with one."""

import pytest

import ampbridge as amp
from ampbridge.cli import main
from ampbridge_port.reader import settings

CLAS = "Arch: {name: R}\nGlobal: {epochs: 1}\nAMP: {use_amp: false, level: O1, scale_loss: 8.0}\n"
PROGRAM = """\
import argparse
import yaml
import paddle

parser = argparse.ArgumentParser()
parser.add_argument("-c", "--config")
args = parser.parse_args()
with open(args.config) as file:
    config = yaml.safe_load(file)
scaler = paddle.amp.GradScaler(init_loss_scaling=config["scale"])
for x in loader:
    with paddle.amp.auto_cast(level=config["amp"]["level"]):
        loss = model(x)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def put(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.yml").write_text(text)


def test_a_file_that_is_its_own_base_is_refused(tmp_path):
    put(tmp_path, a="_BASE_: [b.yml]\n", b="_BASE_: [a.yml]\n")
    with pytest.raises(
        amp.SourceError, match=r"is a base of itself: .*a\.yml -> .*b\.yml -> .*a\.yml"
    ):
        amp.port.read(tmp_path / "a.yml")


@pytest.mark.parametrize("key", ["_BASE_", "_base_"])
def test_a_base_that_is_not_there_is_refused(tmp_path, key):
    put(tmp_path, a=f"{key}: ['none.yml']\n")
    with pytest.raises(amp.SourceError, match=r"a\.yml:1: .*has the base 'none\.yml'") as caught:
        amp.port.read(tmp_path / "a.yml")
    assert str(caught.value).splitlines()[-1].startswith("Hint: ")


def test_a_base_outside_of_the_repository_is_not_read(tmp_path):
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    put(tmp_path, secret="use_amp: true\n")
    put(tmp_path / "repo", a="_BASE_: ['../secret.yml']\n", b="_BASE_: [link.yml]\n")
    (tmp_path / "repo" / "link.yml").symlink_to(tmp_path / "secret.yml")
    for name in ("a", "b"):
        with pytest.raises(amp.SourceError, match="is outside of"):
            amp.port.read(tmp_path / "repo" / f"{name}.yml")


def test_a_base_that_is_no_file_name_is_refused(tmp_path):
    put(tmp_path, a="_BASE_: {b: 1}\n")
    with pytest.raises(amp.SourceError, match="should be one file or several"):
        amp.port.read(tmp_path / "a.yml")


def test_the_first_base_wins_in_one_project_and_the_last_in_the_other(tmp_path):
    put(
        tmp_path,
        one="optimizer: {grad_clip_cfg: {clip_norm: 1.0}}\nOptimizerBuilder: {clip_grad_by_norm: 1.0}\n",
        two="optimizer: {grad_clip_cfg: {clip_norm: 2.0}}\nOptimizerBuilder: {clip_grad_by_norm: 2.0}\n",
        det="_BASE_: [one.yml, two.yml]\narchitecture: Y\nTrainReader: {}\n",
        seg="_base_: [one.yml, two.yml]\niters: 1\nmodel: {type: S}\n",
    )
    clipped = {
        name: {
            each.settings["step.clip_norm"]
            for each in amp.port.read(tmp_path / f"{name}.yml").alternatives
        }
        for name in ("det", "seg")
    }
    assert clipped == {"det": {2.0}, "seg": {1.0}}


def test_files_that_a_key_of_another_name_includes_are_bases(tmp_path):
    """Later files override earlier ones, and the file that includes them overrides all."""
    put(
        tmp_path,
        runtime="use_amp: false\nclip_max_norm: 0.0\nscaler: {enabled: true}\n",
        optimizer="use_amp: true\nclip_max_norm: 0.5\n",
        det="__include__: [./runtime.yml, optimizer.yml]\nclip_max_norm: 0.1\n",
    )
    assert settings.read(str(tmp_path / "det.yml")) == {
        "use_amp": True,
        "clip_max_norm": 0.1,
        "scaler": {"enabled": True},
    }


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (["AMP.use_amp=True"], ("O1", 8.0)),
        (["AMP.use_amp=true", "AMP.scale_loss=16."], ("O1", 16.0)),
        (["AMP={'scale_loss': 4.0, 'level': 'O2'}"], ("O2", 4.0)),
        ([], ("O0", None)),
    ],
)
def test_overrides_are_those_of_the_project(tmp_path, override, expected):
    put(tmp_path, a=CLAS)
    recipe = amp.port.read(tmp_path / "a.yml", override=override).recipe
    assert recipe.policy.level == expected[0]
    if expected[1]:
        assert recipe.scaler.init_scale == expected[1]


@pytest.mark.parametrize("override", ["AMP", "=1", "AMP..level=1", "AMP.level.x=1"])
def test_an_override_that_cannot_be_is_refused(tmp_path, override):
    put(tmp_path, a=CLAS)
    with pytest.raises(amp.ArgumentError, match="override") as caught:
        amp.port.read(tmp_path / "a.yml", override=[override])
    assert str(caught.value).splitlines()[-1] == "Hint: -o AMP.use_amp=True"


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("AMP.scale_los=2.0", "did you mean 'scale_loss'?"),
        ("AMP.scale_loss=2.0", None),
        ("new=1", ""),
    ],
)
def test_a_key_that_no_file_has_is_noted(tmp_path, override, hint):
    put(tmp_path, a=CLAS)
    (tmp_path / "train.py").write_text(PROGRAM)
    alone = amp.port.read(tmp_path / "a.yml", override=[override])
    with_program = amp.port.read(
        tmp_path / "train.py", config=tmp_path / "a.yml", override=[override]
    )
    for reading in (alone, with_program):
        found = [each for each in reading.findings if "No file has the key" in each.message]
        assert [each.hint for each in found] == ([] if hint is None else [hint])


def test_a_program_is_read_with_its_configuration(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put(tmp_path, a="scale: 512.0\namp: {level: O1}\n")
    (tmp_path / "train.py").write_text(PROGRAM)
    recipe = amp.port.read("train.py", config="a.yml").recipe
    assert (recipe.policy.level, recipe.scaler.init_scale) == ("O1", 512.0)
    assert (
        main(["port", "train.py", "-c", "a.yml", "-o", "amp.level=O1", "scale=2.0", "--to", "toml"])
        == 0
    )
    assert "init_scale = 2.0" in capsys.readouterr().out
    alone = amp.port.read("train.py").alternatives
    assert all("scaler.init_scale" in each.unknown for each in alone)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train.py", "-o", "a=1"], "overrides a configuration, and none was passed"),
        (["a.yml", "-c", "a.yml"], "is a configuration itself"),
        (["train.py", "train.py", "-c", "a.yml"], "A configuration is that of one script"),
        (["train.py", "-c", "train.py"], "is no JSON, YAML or gin file"),
        (["train.py", "-c", "a.yml", "--to", "ampbridge"], "stays one for any configuration"),
    ],
)
def test_what_cannot_be_together_is_refused(arguments, says, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put(tmp_path, a="scale: 512.0\namp: {level: O1}\n")
    (tmp_path / "train.py").write_text(PROGRAM)
    assert main(["port", *arguments]) != 0
    assert says in capsys.readouterr().err


def test_a_configuration_that_changes_nothing_is_told_of(tmp_path, capsys, monkeypatch):
    """Where nothing is looked up in it: what it sets would be missing without a word."""
    monkeypatch.chdir(tmp_path)
    put(tmp_path, a="other: 64.0\n")
    loads = "with open(args.config) as file:\n    config = yaml.safe_load(file)\n"
    own = PROGRAM.replace(loads, "from elsewhere import settings as config\n")
    (tmp_path / "train.py").write_text(own)
    assert main(["port", "train.py", "-c", "a.yml"]) == 0
    err = capsys.readouterr().err
    assert "note: a.yml:1: The recipe is the same without this file" in err
    (tmp_path / "train.py").write_text(PROGRAM)
    assert main(["port", "train.py", "-c", "a.yml"]) == 0
    assert "without this file" not in capsys.readouterr().err


def test_a_file_like_paddleseg_s_does_not_bring_paddleseg_s_op_lists(tmp_path):
    """Their tools/train.py has the lists, not the file; of another program they are unknown."""
    put(tmp_path, a="iters: 9\nmodel: {}\ntrain_dataset: {}\nscale: 8.0\n")
    own = PROGRAM.replace('level=config["amp"]["level"]', "**settings_of(config)")
    (tmp_path / "train.py").write_text(own)
    (alternative,) = amp.port.read(tmp_path / "train.py", config=tmp_path / "a.yml").alternatives
    assert {"policy.level", "policy.allow", "policy.deny"} <= alternative.unknown.keys()
    assert alternative.settings["scaler.init_scale"] == 8.0


def test_what_overrides_a_configuration_on_the_command_line_is_noted(tmp_path):
    put(tmp_path, a="scale: 64.0\namp: {level: O1}\n")
    first, _, then = PROGRAM.partition("args = parser.parse_args()\n")
    _, _, loop = then.partition("safe_load(file)\n")
    merged = (
        "config = OmegaConf.merge(OmegaConf.load(args.config), OmegaConf.from_dotlist(others))\n"
    )
    own = f"from omegaconf import OmegaConf\n{first}args, others = parser.parse_known_args()\n{merged}{loop}"
    (tmp_path / "train.py").write_text(own)
    reading = amp.port.read(tmp_path / "train.py", config=tmp_path / "a.yml")
    assert reading.recipe.scaler.init_scale == 64.0
    assert any("`OmegaConf.merge(" in each.message for each in reading.findings)
