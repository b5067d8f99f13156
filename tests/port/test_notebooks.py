"""Notebooks: which of their lines are read, where these stand, and what is refused."""

import json

import pytest

import ampbridge as amp
from ampbridge_port.reader import notebooks


def notebook(*cells, **metadata):
    made = [{"cell_type": "code", "source": text} for text in cells]
    return json.dumps({"cells": made, "metadata": metadata, "nbformat": 4}).encode()


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("%matplotlib inline\nx = 1", "pass\nx = 1"),
        ("if a:\n    !pip install x \\\n      y\nb", "if a:\n    pass\n\nb"),
        ("files = !ls\nfiles", "pass\nfiles"),
        ("x = (1\n% 2)", "x = (1\n% 2)"),
        ("model?", "pass"),
        ("?model", "pass"),
        pytest.param(
            "!x\n" + " " * 200_000 + "x ? 1", "pass\n" + " " * 200_000 + "x ? 1", id="wide"
        ),
        ("%%time\nx = 1", "pass\nx = 1"),
        ("%%bash\nls\nrm x", "\n\n"),
        ("x = '''\n%d'''", "x = '''\n%d'''"),
    ],
)
def test_magics_are_left_out_and_lines_stay(cell, code):
    assert notebooks.without_magics(cell) == code


def test_places_are_cells_and_lines(tmp_path):
    file = tmp_path / "a.ipynb"
    cells = [
        "import torch",
        "",
        "# two\nscaler = torch.amp.GradScaler('cuda', init_scale=unknown())\n",
        "with torch.autocast('cuda'):\n    loss = model(x)\nscaler.scale(loss).backward()",
    ]
    file.write_bytes(notebook(*cells))
    (alternative,) = amp.port.read(file).alternatives
    place = alternative.unknown["scaler.init_scale"]
    assert (place.cell, place.line, str(place)) == (3, 2, f"{file}, cell 3, line 2")


def test_a_cell_that_is_no_python_is_named(tmp_path):
    file = tmp_path / "a.ipynb"
    file.write_bytes(notebook("import torch\ntorch.autocast", "x = 1\ny = = 2"))
    with pytest.raises(amp.SourceError, match=r"at cell 2, line 2, column \d+\.\nHint: jupyter"):
        amp.port.read(file)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"[]", "is no notebook of format 4"),
        (b'{"worksheets": []}', "is no notebook of format 4"),
        (b'{"cells": [{"cell_type": "code", "source": 3}]}', "cell 1 has no text"),
        (notebook("x", kernelspec={"language": "R"}), "is a notebook of r, not of Python"),
        (b"\0\1", "is binary"),
    ],
)
def test_what_is_no_notebook_is_refused(tmp_path, data, says):
    file = tmp_path / "a.ipynb"
    file.write_bytes(data)
    with pytest.raises(amp.SourceError, match=says) as caught:
        amp.port.read(file)
    assert str(caught.value).splitlines()[-1].startswith("Hint: ")
