"""``ampbridge port`` as a command: files in, results out, exit codes."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomlkit

import ampbridge as amp
from ampbridge.cli import main
from ampbridge.training.recipe_file import SECTIONS
from ampbridge_port.ported import UNKNOWN as UNKNOWN_VALUE

PADDLE = """\
import paddle

scaler = paddle.amp.GradScaler(init_loss_scaling=1024, incr_every_n_steps=500)
for x, y in loader:
    with paddle.amp.auto_cast(
        custom_white_list={"elementwise_add"}, custom_black_list={"matmul"}, level="O1"
    ):
        loss = loss_fn(model(x), y)
    scaled = scaler.scale(loss)
    scaled.backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.clear_grad()
"""

EITHER = """\
import sys
import paddle

fast = len(sys.argv) > 1
scaler = paddle.amp.GradScaler()
with paddle.amp.auto_cast(level="O2" if fast else "O1"):
    pass
"""

UNKNOWN = """\
import paddle

scale = float(open("scale").read())
scaler = paddle.amp.GradScaler(init_loss_scaling=scale)
with paddle.amp.auto_cast():
    pass
"""

TORCH = """\
import torch

scaler = torch.amp.GradScaler("cuda")
with torch.autocast("cuda", dtype=torch.float16):
    pass
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Write a file into an empty directory, which is the present one."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="train.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return name

    return write


@pytest.fixture
def port(capsys):
    """Run the command: exit code, standard output, standard error."""

    def run(*arguments):
        code = main(["port", *arguments])
        return code, *capsys.readouterr()

    return run


# -- what a file says


def test_each_alternative_stands_under_its_conditions(file, port):
    code, out, _ = port(file(EITHER))
    assert code == 0
    levels = [line for line in out.splitlines() if line.startswith(("# where", "level"))]
    assert len(levels) == 4
    assert {line.split("#")[0].strip() for line in levels[1::2]} == {'level = "O1"', 'level = "O2"'}


def test_what_is_unknown_is_not_guessed(file, port):
    code, out, err = port(file(UNKNOWN))
    assert code == 0
    assert tomlkit.parse(out)["scaler"]["init_scale"] == "unknown"
    assert 'say what float(open("scale").read()) is (train.py:3)' in out
    assert "unknown: train.py:3: " in err
    with pytest.raises(amp.RecipeError, match="'unknown'"):  # rather than load with a default
        amp.Recipe.from_toml(out)


@pytest.mark.parametrize(
    "section, key", [(section, key) for section in SECTIONS for key in SECTIONS[section]]
)
def test_no_key_of_a_recipe_may_be_unknown(section, key):
    with pytest.raises(amp.RecipeError):
        amp.Recipe.from_toml(f'[{section}]\n{key} = "{UNKNOWN_VALUE}"')


def test_strict_minds_what_is_unknown(file, port):
    assert port(file(UNKNOWN), "--strict")[0] == 3
    assert port(file(UNKNOWN), "--strict", "--set", "scaler.init_scale=512.0")[0] == 0


def test_what_is_unknown_can_be_said(file, port):
    code, out, err = port(file(UNKNOWN), "--set", "scaler.init_scale=512.0")
    assert (code, err) == (0, "")
    assert amp.Recipe.from_toml(out).scaler.init_scale == 512.0


def test_a_file_without_mixed_precision(file, port):
    code, out, err = port(file("import paddle\n"))
    assert (code, out) == (0, "")
    assert err == "train.py uses no mixed precision that is known here.\n"


def test_as_data(file, port):
    code, out, err = port(file(EITHER), "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert (data["file"], data["framework"], data["error"]) == ("train.py", "paddle", None)
    assert [each["settings"]["policy.level"] for each in data["alternatives"]] in (
        ["O1", "O2"],
        ["O2", "O1"],
    )
    assert all(each["conditions"] for each in data["alternatives"])


# -- written for a target


def test_toml_can_be_read_and_ported_again(file, port):
    code, out, err = port(file(PADDLE), "--to", "toml", "--out", "recipe.toml")
    assert (code, out) == (0, "")
    assert "Fidelity (toml" in err
    again, text, _ = port("recipe.toml", "--to", "toml")
    assert again == 0
    assert amp.Recipe.from_toml(text) == amp.Recipe.load("recipe.toml")


@pytest.mark.parametrize("form", [[], ["--ampbridge"]])
@pytest.mark.parametrize("target", ["tensorflow", "torch", "paddle"])
def test_a_demo_is_added_to_the_module(file, port, target, form):
    name = file(PADDLE)
    _, module, _ = port(name, "--to", target, *form)
    _, with_demo, _ = port(name, "--to", target, *form, "--demo")
    assert "def main" not in module
    assert "def make_model" not in module
    assert "def main():" in with_demo
    assert len(with_demo) > len(module)


def test_unknown_values_are_asked_for(file, port):
    code, out, err = port(file(UNKNOWN), "--to", "tensorflow")
    assert (code, out) == (1, "")
    assert "scaler.init_scale is 'float(open(" in err
    assert "Hint: pass the value, --set scaler.init_scale=..." in err
    code, out, _ = port(file(UNKNOWN), "--to", "tensorflow", "--set", "scaler.init_scale=512.0")
    assert code == 0
    assert "INIT_SCALE = 512.0  # --set\n" in out


def test_the_result_as_data(file, port):
    code, out, err = port(file(PADDLE), "--to", "tensorflow", "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert data["recipe"]["scaler"]["init_scale"] == 1024.0
    assert data["fidelity"]["target"] == "tensorflow"
    assert [f["kind"] for f in data["findings"]].count("ignored") == 1
    compile(data["text"], "module.py", "exec")


# -- strict


def test_strict_says_by_its_exit_code_that_something_is_lost(file, port):
    text = PADDLE.replace('level="O1"', 'level="OD"')
    assert port(file(text))[0] == 0
    assert port(file(text), "--strict")[0] == 3
    assert port(file(PADDLE), "--strict")[0] == 0


def test_strict_asks_the_fidelity_report(file, port):
    recipe = amp.Recipe(amp.Policy("O2", lists="paddle"), save_dtype="float16")
    recipe.save(file("", "recipe.toml"))
    assert port("recipe.toml", "--to", "tensorflow")[0] == 0
    code, out, err = port("recipe.toml", "--to", "tensorflow", "--strict")
    assert code == 3
    assert out  # written all the same
    assert "decorate.save_dtype" in err


# -- several files


def test_several_files_are_summed_up(file, port):
    names = [file(PADDLE), file(TORCH, "other.py"), file("x = 1\n", "plain.py")]
    code, out, err = port(*names)
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert out.startswith("Files: 3 read, 2 with mixed precision, 0 failed\n")
    assert ["train.py", "paddle", "O1:float16", "1"] in lines
    assert ["other.py", "torch", "O1:float16"] in lines
    assert "plain.py" not in out
    assert "'matmul' in custom_black_list has no effect" in err


def test_a_file_that_fails_fails_alone(file, port):
    names = [file("import paddle.amp\ndef broken(:\n", "broken.py"), file(PADDLE)]
    code, out, err = port(*names)
    assert code == 1
    assert "1 with mixed precision, 1 failed" in out
    assert "failed: broken.py is no Python" in out
    assert err.count("SourceError: ") == 1


def test_directories(file, port):
    for name in ("a/train.py", "a/b/c.py", "a/readme.md"):
        file(PADDLE, name)
    code, out, _ = port("a", "--json")
    assert code == 0
    found = {each["file"]: each["framework"] for each in json.loads(out)}
    assert found == {"a/train.py": "paddle", "a/b/c.py": "paddle"}


# -- wrong options

MISTAKES = {
    "a target": (["--to", "tensorflw"], "Cannot write for 'tensorflw'", "--to tensorflow"),
    "a form": (["--ampbridge"], "a form of a framework's code", "--to tensorflow --ampbridge"),
    "the form of TOML": (["--to", "toml", "--ampbridge"], "a form", "--to tensorflow --ampbridge"),
    "writing modules": (
        ["--to", "torch", "--write"],
        "--write changes scripts",
        "--to torch --out",
    ),
    "writing twice": (["--to", "ampbridge", "--write", "--out", "x"], "as it is", "one of them"),
    "a demo of TOML": (["--to", "toml", "--demo"], "TOML is none", "--to tensorflow --demo"),
    "a demo of nothing": (["--demo"], "TOML is none", "--to tensorflow --demo"),
    "a key": (["--set", "scaler.init=1"], "no 'scaler.init'", "did you mean 'scaler.init_scale'?"),
    "a section": (["--set", "scalar.init_scale=1"], "no 'scalar.init_scale'", "scaler.init_scale"),
    "a value": (["--set", "scaler.init_scale"], "Cannot read --set", "scaler.init_scale=1024.0"),
    "out of several": (["b.py", "--out", "x"], "there are several", "train.py --out FILE"),
    "a module of several": (["b.py", "--to", "torch"], "there are several", "--to torch"),
    "one of several": (["b.py", "--pick", "2"], "there are several files", "train.py --pick 2"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_options(mistake, file, port):
    arguments, says, hint = MISTAKES[mistake]
    code, out, err = port(file(PADDLE), *arguments)
    assert (code, out) == (1, "")
    assert says in err
    *_, last = err.splitlines()
    assert last.startswith("Hint: ")
    assert hint in last


@pytest.mark.parametrize("forced", [[], ["--force"]], ids=["", "forced"])
def test_the_result_replaces_nothing_that_was_read(forced, file, port, tmp_path):
    name, config = file(PADDLE), file("{}", "amp.json")
    (tmp_path / "link.py").symlink_to(name)
    for out in (name, str(tmp_path / name), "link.py", config):
        code, _, err = port(name, "-c", config, "--to", "tensorflow", "--out", out, *forced)
        new = Path(out).with_stem(f"{Path(out).stem}_new")
        message = f"--out {out!r} is a file that this command reads.\nHint: --out {new}\n"
        assert (code, err) == (1, f"ArgumentError: {message}")
    assert (tmp_path / name).read_text() == PADDLE


def test_a_file_that_exists_is_replaced_by_force(file, port, tmp_path):
    name, notes = file(PADDLE), file("mine", "notes.md")
    command = [name, "--to", "toml", "--out", notes]
    code, _, err = port(*command)
    assert code == 1
    assert err.endswith("would be replaced.\nHint: --out notes_new.md, or --force\n")
    assert (tmp_path / notes).read_text() == "mine"
    assert port(*command, "--force")[0] == 0
    assert "[policy]" in (tmp_path / notes).read_text()
    assert port(name, "--to", "toml", "--out", "/dev/null")[0] == 0


def test_a_place_that_cannot_be_written(file, port):
    code, _, err = port(file(PADDLE), "--to", "toml", "--out", "nowhere/recipe.toml")
    assert code == 1
    assert "Cannot write 'nowhere/recipe.toml'" in err


# -- the same in Python


def test_the_package_is_loaded_when_it_is_asked_for():
    code = (
        "import sys, ampbridge as amp; assert 'ampbridge_port' not in sys.modules; "
        "import ampbridge_port.command; "  # submodules take no function's place
        "assert all(map(callable, (amp.port.read, amp.port.write, amp.port.fidelity))); "
        "assert 'libcst' not in sys.modules and 'yaml' not in sys.modules; "
        "amp.port.nothing"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "AttributeError: module 'ampbridge_port' has no attribute 'nothing'"
    )


# -- scripts that stay scripts


def test_a_script_is_rewritten_as_a_difference(file, port, tmp_path):
    name = file(PADDLE)
    code, out, err = port(name, "--to", "ampbridge")
    assert code == 0
    assert out.startswith("--- train.py\n+++ ")
    assert "+import ampbridge\n" in out
    assert (
        "-scaler = paddle.amp.GradScaler(init_loss_scaling=1024, incr_every_n_steps=500)\n" in out
    )
    assert "Fidelity (ampbridge" in err
    assert (tmp_path / name).read_text() == PADDLE


HOSTILE = """\
import sys
import torch

name = "\x1b[31mred\x1b[0m \u202e"
on = sys.argv[1] == "\x1b[2J"
scaler = torch.amp.GradScaler("cuda", init_scale={"\x1b[3J": 8.0}["\x1b[3J"], enabled=on)
with torch.autocast("cuda", dtype=torch.float16):
    pass
"""


def controls(text):
    return {c for c in text if not c.isprintable() and c != "\n"}


def test_on_a_terminal_a_hostile_script_is_escaped(file, port, monkeypatch):
    name = file(HOSTILE, "hos\x1b[1mtile.py")
    _, piped, _ = port(name, "--to", "ampbridge")
    assert "+++ hos\\x1b[1mtile.py with ampbridge" in piped
    assert '"\x1b[31mred\x1b[0m \u202e"' in piped
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _, shown, said = port(name, "--to", "ampbridge")
    assert controls(shown) == controls(said) == set()
    assert shown == "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in piped)


@pytest.mark.parametrize("target", [None, "toml", "torch", "tensorflow", "paddle"])
def test_what_is_written_of_a_hostile_script_has_none_of_its_control_characters(file, port, target):
    """Its conditions and expressions stand in comments."""
    chosen = ["--to", target, "--pick", "2"] if target else []
    code, out, err = port(file(HOSTILE), *chosen)
    assert code == 0
    assert '{"\\x1b[3J": 8.0}' in out
    assert controls(out) == controls(err) == set()


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch to apply it with")
def test_the_difference_is_a_patch(file, port, tmp_path):
    name = file(PADDLE.replace("\n", "\r\n"))
    _, out, _ = port(name, "--to", "ampbridge")
    patch = subprocess.run(
        ["patch", "--binary", "-o", "patched.py", name],
        input=out.encode(),
        check=True,
        capture_output=True,
    )
    assert b"read from train.py" in patch.stdout
    port(name, "--to", "ampbridge", "--write")
    assert (tmp_path / "patched.py").read_bytes() == (tmp_path / name).read_bytes()


def test_the_whole_script_goes_to_a_file(file, port, tmp_path):
    name = file(PADDLE)
    code, out, _ = port(name, "--to", "ampbridge", "--out", "new.py")
    assert (code, out) == (0, "")
    port(name, "--to", "ampbridge", "--write")
    assert (tmp_path / "new.py").read_text() == (tmp_path / name).read_text()


def test_several_scripts_are_rewritten_at_once(file, port, tmp_path):
    names = [file(PADDLE), file(TORCH, "other.py"), file("x = 1\n", "plain.py")]
    code, out, err = port(*names, "--to", "ampbridge")
    assert code == 0
    assert out.count("\n+++ ") == 2
    assert "Files: 3 read, 2 with mixed precision, 0 failed" in err
    assert port(*names, "--to", "ampbridge", "--write", "--json")[0] == 0
    assert "import ampbridge" in (tmp_path / "other.py").read_text()
    assert (tmp_path / "plain.py").read_text() == "x = 1\n"


APEX = """\
from apex import amp

model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
for batch in loader:
    with amp.scale_loss(model(**batch).loss, optimizer) as loss:
        loss.backward()
"""

FLOAT32 = """\
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="no")
accelerator.backward(loss)
"""

FACTOR = """\
import keras

optimizer = keras.optimizers.Adam(1e-3, loss_scale_factor=1024)
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (APEX, "train.py is unchanged: lines 3, 5 must be written by hand"),
        (FACTOR, "train.py is unchanged: none of its calls has a replacement"),
    ],
)
def test_a_script_that_cannot_be_rewritten_fails_and_is_left(file, port, tmp_path, text, says):
    name = file(text)
    code, out, err = port(name, "--to", "ampbridge", "--write")
    assert (code, out) == (1, "")
    assert says in err
    assert err.splitlines()[-1] == (
        f"Hint: ampbridge port train.py --to {'torch' if text is APEX else 'tensorflow'} "
        "--ampbridge writes a module to import instead."
    )
    assert (tmp_path / name).read_text() == text
    if text is APEX:
        assert "train.py:5: amp.scale_loss(model(**batch).loss, optimizer)" in err
        assert (
            "Hint: write the recipe with --to toml, and the loop with ampbridge.train_step" in err
        )


def test_a_script_that_cannot_be_rewritten_stops_no_other(file, port, tmp_path):
    names = [file(APEX, "a.py"), file(TORCH, "b.py")]
    code, _, err = port(*names, "--to", "ampbridge", "--write")
    assert code == 1
    assert "1 failed" in err
    assert "failed: a.py is unchanged" in err
    assert (tmp_path / "a.py").read_text() == APEX
    assert "import ampbridge" in (tmp_path / "b.py").read_text()


def test_of_a_program_whose_scaler_is_used_in_another_file_no_file_is_changed(file, port, tmp_path):
    make = 'import torch\ndef scaler():\n    return torch.amp.GradScaler("cpu")\n'
    use = """from making import scaler
held = scaler()
for x in data:
    held.scale(model(x)).backward()
    held.unscale_(optimizer)
    held.step(optimizer)
    held.update()
"""
    names = file(make, "making.py"), file(use, "use.py")
    for asked in (names, (".",)):
        code, _, err = port(*asked, "--to", "ampbridge", "--write")
        assert code == 1
        assert "No file was changed" in err
        assert [(tmp_path / each).read_text() for each in names] == [make, use]


def test_a_script_in_float32_has_nothing_to_rewrite(file, port):
    code, out, _ = port(file(FLOAT32), "--to", "ampbridge")
    assert (code, out) == (0, "")


posix = pytest.mark.skipif(os.name != "posix", reason="links, pipes and devices of POSIX")


@posix
def test_a_link_out_of_the_folder_is_told_and_not_followed(file, port, tmp_path):
    file(PADDLE, "theirs/train.py")
    inside = file(TORCH, "mine/other.py")
    (tmp_path / "mine" / "link.py").symlink_to(tmp_path / "theirs" / "train.py")
    (tmp_path / "mine" / "same.py").symlink_to("other.py")
    code, _, err = port("mine", "--to", "ampbridge", "--write")
    assert code == 1
    assert "SourceError: mine/link.py is a link out of mine, to " in err
    assert (tmp_path / "theirs" / "train.py").read_text() == PADDLE
    assert "import ampbridge" in (tmp_path / inside).read_text()
    assert (tmp_path / "mine" / "same.py").is_symlink()
    assert port("mine/link.py", "--to", "ampbridge", "--write")[0] == 0  # it is named itself
    assert "import ampbridge" in (tmp_path / "theirs" / "train.py").read_text()


@posix
def test_pipes_and_devices_are_not_read(file, port, tmp_path):
    file(PADDLE)
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    code, _, err = port(".")
    assert code == 1
    for name in ("pipe.py", "zero.py"):
        assert f"Cannot read '{name}': It is a pipe or a device, not a file." in err


@posix
def test_a_script_that_cannot_be_written_stops_no_other(file, port, tmp_path, monkeypatch):
    first, second = file(PADDLE, "a.py"), file(TORCH, "b.py")
    genuine = os.replace

    def full(temporary, place):
        if place == tmp_path / first:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        genuine(temporary, place)

    monkeypatch.setattr(os, "replace", full)
    code, _, err = port(first, second, "--to", "ampbridge", "--write")
    assert code == 1
    assert "SourceError: Cannot write 'a.py': No space left on device, and " in err
    assert (tmp_path / first).read_text() == PADDLE
    assert "import ampbridge" in (tmp_path / second).read_text()
    assert sorted(os.listdir(tmp_path)) == ["a.py", "b.py"]


@pytest.mark.parametrize(
    "option",
    [
        ["--pick", "1"],
        ["--set", "scaler.init_scale=1.0"],
        ["--demo"],
    ],
)
def test_a_script_is_rewritten_as_it_is(file, port, option):
    code, out, err = port(file(EITHER), "--to", "ampbridge", *option)
    assert (code, out) == (1, "")
    assert "Hint: " in err.splitlines()[-1]


def test_of_a_configuration_ampbridge_is_a_module(file, port):
    name = file('{"fp16": {"enabled": true}}', "deepspeed.json")
    code, out, _ = port(name, "--to", "ampbridge")
    assert code == 0
    assert "amp.train_step(" in out
    compile(out, "module.py", "exec")


def test_where_native_code_loses_something_code_with_ampbridge_is_recommended(tmp_path, capsys):
    """And only what that keeps."""
    recipe = amp.Recipe(amp.Policy("O2", execution="simulated"), save_dtype="float16")
    file = tmp_path / "recipe.toml"
    recipe.save(file)
    main(["port", str(file), "--to", "tensorflow"])
    told = capsys.readouterr().err
    assert "Code with ampbridge keeps 'policy.execution'; native code loses that." in told
    assert f"Hint: ampbridge port {file} --to tensorflow --ampbridge" in told
    main(["port", str(file), "--to", "tensorflow", "--ampbridge"])
    assert "Code with ampbridge keeps" not in capsys.readouterr().err
    amp.Recipe("O2").save(file)
    main(["port", str(file), "--to", "tensorflow"])
    assert "Code with ampbridge keeps" not in capsys.readouterr().err
