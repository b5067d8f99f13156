"""``ampbridge lens``: what the functions return, printed or as data; exit codes; the bar."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import lens, workloads
from ampbridge.cli import main
from ampbridge.reports.progress import reported

FAULTY = """
import autograd.numpy as anp
import numpy as np
from ampbridge.workloads import Workload
from ampbridge_numpy import nn, optim

class Net(nn.Module):
    def __init__(self, seed):
        self.first, self.last = nn.Linear(4, 4, rng=seed), nn.Linear(4, 1, rng=seed)

    def forward(self, x):
        return self.last(anp.divide(self.first(x), 1e-3) * np.float32(1e-5))

def build(backend, seed):
    model = Net(seed)
    rng = np.random.default_rng(seed)
    batches = [((100 * rng.normal(size=(8, 4))).astype(np.float32),) for _ in range(3)]
    batches[0] = (batches[0][0] * 0.01,)  # nothing overflows in the first
    return Workload(
        model, optim.SGD(model.parameters(), 1e-3), lambda m, x: anp.mean(m(x) ** 2), batches
    )
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "faulty.py"
    path.write_text(FAULTY)
    return str(path)


@pytest.fixture
def large(tmp_path):
    """The same, overflowing in its first batch already."""
    path = tmp_path / "large.py"
    path.write_text(FAULTY.replace("* 0.01", "* 1.0"))
    return str(path)


def printed(capsys, *arguments, code=0):
    assert main(["lens", *arguments]) == code
    return capsys.readouterr().out


def as_data(capsys, *arguments, code=0):
    return json.loads(printed(capsys, *arguments, "--json", code=code))


def built(path, seed=0):
    return workloads.find(path)("numpy", seed)


def test_census(capsys, file):
    work = built(file)
    expected = lens.census(work.loss_fn, work.model, *work.batches[0], policy="O2:bfloat16")
    data = as_data(capsys, "census", file, "--policy", "O2:bfloat16")
    for row in data["rows"]:
        del row["share"]
    assert data["policy"] == amp.Policy("O2", "bfloat16").to_dict()
    expected_rows = json.loads(json.dumps(expected.to_dict()["rows"]))
    assert data["rows"] == [{k: v for k, v in row.items() if k != "share"} for row in expected_rows]
    assert data["passes"] == 5
    assert as_data(capsys, "census", file, "--passes", "2")["passes"] == 2
    text = printed(capsys, "census", file)
    assert text.startswith("Policy('O1', 'float16') on numpy")
    assert "divide" in text


@pytest.mark.parametrize("written", ["1024", "2^10", "2**10"])
def test_range_at_a_scale(capsys, file, written):
    work = built(file)
    expected = lens.ranges(work.loss_fn, work.model, *work.batches[0], scale=1024.0)
    data = as_data(capsys, "ranges", file, "--scale", written)
    assert data == json.loads(json.dumps(expected.to_dict()))
    assert data["scale"] == 1024


def test_the_seed_goes_to_build(capsys, file):
    first, again, other = (
        as_data(capsys, "ranges", file, "--seed", seed)["rows"] for seed in ("0", "0", "1")
    )
    assert first == again != other


def test_locate_says_by_its_exit_code_whether_it_found_something(capsys, file, large):
    assert as_data(capsys, "locate", file, code=0)["kind"] is None
    found = as_data(capsys, "locate", large, code=1)
    assert (found["kind"], found["op"], found["direction"]) == ("overflow", "divide", "forward")
    assert "divide" in printed(capsys, "locate", large, code=1)
    assert as_data(capsys, "locate", large, "--policy", "O1:bfloat16")["kind"] is None


def test_bisect_reads_as_many_batches_as_it_is_told(capsys, file):
    assert as_data(capsys, "bisect", file)["entries"] == []
    found = as_data(capsys, "bisect", file, "--batches", "3")
    work = built(file)
    expected = lens.bisect(work.loss_fn, work.model, work.batches)
    assert found == json.loads(json.dumps(expected.to_dict()))
    assert amp.Policy.from_dict(found["policy"]).deny == ("divide",)
    assert "divide" in printed(capsys, "bisect", file, "--batches", "3")


def test_bisect_has_a_tolerance_and_a_scale(capsys, file):
    found = as_data(capsys, "bisect", file, "--tolerance", "1e-6", "--scale", "2^4")
    assert (found["tolerance"], found["scale"]) == (1e-6, 16.0)
    assert found["entries"] != []


def test_worth(capsys, file):
    options = ["--policies", "O1,O1:bfloat16", "--steps", "2", "--rounds", "3"]
    data = as_data(capsys, "worth", file, *options)
    assert (data["steps"], data["rounds"]) == (2, 3)
    assert [row["name"] for row in data["rows"]][2:] == ["O1:float16", "O1:bfloat16"]
    assert {len(row["seconds"]) for row in data["rows"]} == {3}
    assert "noise of" in printed(capsys, "worth", file, "--steps", "1", "--rounds", "2")


def test_record_writes_what_align_takes(capsys, file, tmp_path):
    path = tmp_path / "a.npz"
    text = printed(capsys, "record", file, "--output", str(path), "--policy", "O2:bfloat16")
    assert text.startswith("Policy('O2', 'bfloat16') on numpy")
    work, recording = built(file), lens.Recording.load(path)
    assert not lens.align(recording, (work.loss_fn, work.model, "O2:bfloat16"), *work.batches[0])


def test_record_replaces_a_file_by_force_alone_and_never_the_workload(capsys, file, tmp_path):
    there = tmp_path / "notes.npz"
    there.write_text("mine")
    for output, options in ((there, []), (file, ["--force"])):
        before = Path(output).read_text()
        assert main(["lens", "record", file, "--output", str(output), *options]) == 1
        assert "_new" in capsys.readouterr().err.splitlines()[-1]
        assert Path(output).read_text() == before
    printed(capsys, "record", file, "--output", str(there), "--force")
    assert lens.Recording.load(there)


def test_a_workload_by_its_name(capsys):
    data = as_data(capsys, "census", "digits-transformer")
    assert {"softmax", "linear", "layer_norm"} & {row["op"] for row in data["rows"]}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["census", "digits-mpl"], "Hint: digits-mlp"),
        (["census", "missing.py"], "no file 'missing.py'"),
        (["census", "digits-mlp", "--policy", "O3"], "PolicyError"),
        (["census", "digits-mlp", "--backend", "nump"], "BackendNotFoundError"),
        (["ranges", "digits-mlp", "--scale", "1000"], "powers of two"),
        (["bisect", "digits-mlp", "--tolerance", "-1"], "tolerance=-1.0"),
        (["bisect", "digits-mlp", "--batches", "999"], "Hint: --batches 180"),
        (["worth", "digits-mlp", "--rounds", "1"], "rounds=1"),
    ],
)
def test_errors_are_told_with_1(capsys, arguments, message):
    assert main(["lens", *arguments]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert message in error


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["census"],
        ["look", "digits-mlp"],
        ["census", "digits-mlp", "--scale", "2"],  # it takes none
        ["ranges", "digits-mlp", "--scale", "3^2"],
        ["ranges", "digits-mlp", "--scale", "2^many"],
        ["ranges", "digits-mlp", "--scale", "2^99999"],
        ["bisect", "digits-mlp", "--batches", "0"],
        ["worth", "digits-mlp", "--policy", "O1"],
        ["record", "digits-mlp"],  # where to?
        ["align", "digits-mlp", "--backends", "numpy"],
    ],
)
def test_arguments_that_cannot_be_read_are_told_with_2(capsys, arguments):
    with pytest.raises(SystemExit) as exited:
        main(["lens", *arguments])
    assert exited.value.code == 2
    assert "usage: ampbridge" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kind", ["", "census", "ranges", "locate", "bisect", "worth", "record", "align"]
)
def test_help_says_what_exit_codes_mean(capsys, kind):
    with pytest.raises(SystemExit) as exited:
        main(["lens", *filter(None, [kind]), "--help"])
    assert exited.value.code == 0
    assert "Exit code: 0; 1 if locate finds" in " ".join(capsys.readouterr().out.split())


def test_other_commands_do_not_load_the_lens():
    code = "import sys, ampbridge.cli as cli; cli._parser('doctor'); print('ampbridge_lens' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def shown_on_a_terminal(*arguments):
    """What a process writes to standard output, which is a pipe, and to a terminal as its error."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "ampbridge", "lens", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, text=True, check=True)
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 4096):
            seen += chunk
    except OSError:
        pass  # Linux' way to say that nobody writes any more
    os.close(ours)
    return done.stdout, seen.decode()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a POSIX terminal")
def test_a_bar_on_terminals_unless_quiet(file):
    out, bar = shown_on_a_terminal("bisect", file, "--batches", "3", "--json")
    assert json.loads(out)["policy"]["deny"] == ["divide"]
    assert re.search(r"\d+/\d+", bar)
    out, nothing = shown_on_a_terminal("bisect", file, "--batches", "3", "--json", "--quiet")
    assert json.loads(out)["policy"]["deny"] == ["divide"]
    assert nothing == ""


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_shows_a_hostile_name_as_it_is(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", Terminal())
    with reported(True) as report:
        report(0, 1, "building [/red]\x1b[41m.py")
    assert "building [/red]\\x1b[41m.py" in sys.stderr.getvalue()


def test_numbers_of_the_file_are_what_the_tests_say(file):
    """Beyond float16's 65504 in all batches but the first."""
    work = built(file)
    largest = [np.abs(work.model.first(x) / 1e-3).max() for (x,) in work.batches]
    assert largest[0] < 65504 < min(largest[1:])
