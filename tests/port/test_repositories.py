"""Small repositories as their authors lay them out: one call reads a training of several files.

In each, ``expected.toml`` has the arguments of ``ampbridge port`` and the recipe that they come to, which
was written by hand from the code; ``[[further]]`` has more of them.
"""

from pathlib import Path

import pytest
import tomllib

import ampbridge as amp
from ampbridge.cli import main

REPOSITORIES = Path(__file__).parent / "repositories"
SECTIONS = ("policy", "scaler", "step", "decorate")


def cases():
    for expected in sorted(REPOSITORIES.glob("*/expected.toml")):
        first = tomllib.loads(expected.read_text())
        for number, each in enumerate([first, *first.get("further", ())]):
            recipe = {key: each[key] for key in SECTIONS if key in each}
            yield pytest.param(
                expected.parent, each["arguments"], recipe, id=f"{expected.parent.name}-{number}"
            )


@pytest.mark.parametrize(("folder", "arguments", "recipe"), list(cases()))
def test_the_first_call_gives_the_recipe(folder, arguments, recipe, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    code = main(["port", *arguments, "--to", "toml"])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert amp.Recipe.from_toml(out) == amp.Recipe.from_dict(recipe), err


def test_a_folder_has_its_training_first_and_its_modules_no_more(capsys, monkeypatch):
    monkeypatch.chdir(REPOSITORIES / "classification")
    assert main(["port", "."]) == 0
    out, err = capsys.readouterr()
    rows = [line.split()[0] for line in out.splitlines()[3:]]
    assert rows == ["tools/train.py", "tools/eval.py"]
    assert "14 read, 2 with mixed precision" in out
    assert "stands in another file" not in err


def test_a_notebook_is_placed_by_cell_and_line():
    reading = amp.port.read(REPOSITORIES / "keras_notebook" / "train.ipynb")
    (alternative,) = reading.alternatives
    assert alternative.settings["scaler.init_scale"] == 4096.0
    notebook = REPOSITORIES / "torch_notebook" / "finetune.ipynb"
    modules = map(Path, amp.port.read(notebook).modules)
    assert [each.absolute() for each in modules] == [notebook.parent / "training" / "amp.py"]


def test_a_module_is_written_from_a_notebook_and_the_notebook_is_not(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(REPOSITORIES / "torch_notebook")
    written = tmp_path / "amp_tf.py"
    assert main(["port", "finetune.ipynb", "--to", "tensorflow", "--out", str(written)]) == 0
    assert "INIT_SCALE = 1024.0" in written.read_text()
    before = Path("finetune.ipynb").read_bytes()
    assert main(["port", "finetune.ipynb", "--to", "ampbridge", "--write"]) == 1
    assert Path("finetune.ipynb").read_bytes() == before
    assert "jupyter nbconvert --to script finetune.ipynb" in capsys.readouterr().err


def test_where_calls_stay_is_told_of_a_script_that_is_rewritten(capsys, monkeypatch):
    monkeypatch.chdir(REPOSITORIES / "classification")
    assert main(["port", "tools/train.py", "--to", "ampbridge"]) == 1
    told = capsys.readouterr().err
    assert "tools/train.py is unchanged: the calls of mixed precision are in modules of it." in told
    assert "ampbridge port clas/utils/amp.py --to ampbridge" in told
