"""Files as they come: hostile ones fail alone, each with its reason; none is run."""

import cProfile
import sys

import pytest

from ampbridge import SourceError, port
from ampbridge_port.reader import machine

USES_AMP = "from paddle.amp import auto_cast\nwith auto_cast():\n    pass\n"


def refused(data, tmp_path, name="train.py"):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(SourceError) as caught:
        port.read(path)
    message, _, hint = str(caught.value).rpartition("\n")
    assert name in message
    assert hint.startswith("Hint: ")
    return message


HOSTILE = {
    "no Python": (f"{USES_AMP}x = = 1\n", "is no Python"),
    "the line is said": (f"{USES_AMP}\n\nx = = 1\n", "line 6"),
    "print as in Python 2": (f"{USES_AMP}print 'loss', loss\n", "is Python 2"),
    "raise as in Python 2": (f"{USES_AMP}raise ValueError, 'no'\n", "is Python 2"),
    "binary": (b"\x7fELF\x00auto_cast", "is binary"),
    "binary without a word": (b"\x89PNG\x00\x00", "is binary"),
    "UTF-16": (USES_AMP.encode("utf-16"), "is binary"),
    "not UTF-8": (USES_AMP.encode() + b"# gr\xf6\xdfe\n", "encoding"),
    "a coding of no name": (b"# coding: klingon\n" + USES_AMP.encode(), "encoding"),
    "10 MB": (USES_AMP + "x = [1, 2, 3]\n" * 750_000, "10.0 MB"),
    "half an indent": (f"{USES_AMP}if x:\n        y\n    z\n", "is no Python"),
}


@pytest.mark.parametrize("data, says", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files(data, says, tmp_path):
    assert says in refused(data, tmp_path)


DEEP = {
    "parentheses": lambda n: "x = " + "(" * n + "1" + ")" * n,
    "lists": lambda n: "x = " + "[" * n + "]" * n,
    "dictionaries": lambda n: "x = " + "{1:" * n + "1" + "}" * n,
    "calls": lambda n: "x = " + "f(" * n + ")" * n,
    "calls in a row": lambda n: "x = f" + "()" * n,
    "attributes": lambda n: "x = a" + ".b" * n,
    "not": lambda n: "x = " + "not " * n + "1",
    "signs": lambda n: "x = " + "-" * n + "1",
    "sums": lambda n: "x = " + "1 + " * n + "1",
    "powers": lambda n: "x = " + "a ** " * n + "1",
    "conditionals": lambda n: "x = " + "1 if a else " * n + "1",
    "lambdas": lambda n: "x = " + "lambda: " * n + "1",
    "strings": lambda n: "x = " + "'a' " * n,
    "branches": lambda n: "if a: pass\n" + "elif b: pass\n" * n,
    "annotations": lambda n: "x: " + "a | " * n + "b",
}


@pytest.mark.parametrize("make", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize("depth", [60, 1000, 3000, 50_000])
def test_deep_nesting_neither_crashes_nor_takes_long(make, depth, tmp_path):
    text = USES_AMP + make(depth) + "\n"
    refusal = ""
    try:
        assert port.read(text).recipe.policy.lists == "paddle"
    except SourceError as error:
        refusal = str(error)
    assert not refusal or (depth > 60 and "nested" in refusal)


def test_what_is_long_but_not_deep_is_read():
    numbers = ", ".join(str(n) for n in range(5000))
    lines = "\n".join(f"x{n} = f(a[{n}].b + 1) if c else [d for d in e]" for n in range(300))
    assert port.read(f"{USES_AMP}table = [{numbers}]\n{lines}\n").recipe.policy.lists == "paddle"


def test_many_branches_beside_each_other_are_not_deep():
    """Each function has a chain of ten."""
    chain = "    if x == 0:\n        pass\n" + "    elif f(x if a else b):\n        pass\n" * 10
    functions = "".join(f"def f{n}(x):\n{chain}" for n in range(100))
    assert port.read(USES_AMP + functions).recipe.policy.lists == "paddle"


@pytest.mark.parametrize(
    "filler", ["", "    x = 1 \\\nif a else 2\n", "    x = (1\nif a else 2)\n"]
)
def test_a_chain_of_branches_is_deep_whatever_stands_in_it(filler, tmp_path):
    branch = "elif b:\n    pass\n" + filler
    assert "nested" in refused(f"{USES_AMP}if a:\n    pass\n{branch * 3000}", tmp_path)


RETURNS = (
    "    if data.is_{n}:\n        return data.first_{n}(config.size_{n})\n"
    "    a{n} = data.next_{n}({n})\n"
)
BRANCHES = (
    "    if config.option_{n}:\n        a{n} = data.make_{n}()\n    else:\n        a{n} = {n}\n"
)
TRAINER = """\
class Trainer{n}:
    def __init__(self, config):
        self.use_amp = config.get("amp", False)
        self.level = config.get("level", "O1")
        self.scaler = paddle.amp.GradScaler(enable=self.use_amp)
        if self.use_amp and self.level == "O2":
            self.model, self.optimizer = paddle.amp.decorate(build(config), sgd(config), "O2")

    def train(self, loader):
        for x, y in loader:
            with paddle.amp.auto_cast(self.use_amp, level=self.level):
                loss = self.model(x, y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.optimizer.clear_grad()
"""
LOOP = """\
scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
with paddle.amp.auto_cast():
    loss = model(x)
scaler.scale(loss).backward()
"""
LONG = {
    "returns": ("def run(config, data):\n", RETURNS, 150),
    "branches": ("def run(config, data):\n", BRANCHES, 150),
    "trainers": ("", TRAINER, 12),
    "statements": ("", "x{n} = f({n}) + [y, {n}][0]\n", 400),
}


@pytest.mark.parametrize("kind", LONG)
def test_reading_takes_as_long_as_a_file_has_lines(kind):
    """Counted in calls of Python's functions: of twice as many lines, about twice as many."""
    head, part, count = LONG[kind]
    counts = []
    for times in (1, 2):
        body = "".join(part.format(n=n) for n in range(times * count))
        profile = cProfile.Profile()
        profile.runcall(port.read, f"import paddle\n{head}{body}{LOOP}")
        counts.append(sum(entry.callcount for entry in profile.getstats()))
    assert counts[1] < 2.3 * counts[0]


def test_what_takes_too_long_is_read_in_part_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "MOST_STEPS", 2)
    path = tmp_path / "train.py"
    path.write_text(USES_AMP)
    (found,) = port.read(path).findings
    assert found.kind == "unknown"
    assert "has too much to be followed to its end" in found.message


def test_a_declared_encoding_is_followed(tmp_path):
    path = tmp_path / "latin.py"
    text = f"# -*- coding: latin-1 -*-\n# gr\xf6\xdfe\n{USES_AMP}"
    path.write_bytes(text.encode("latin-1"))
    assert port.read(path).framework == "paddle"
    path.write_bytes(b"\xef\xbb\xbf" + USES_AMP.encode())
    assert port.read(path).framework == "paddle"


def test_files_fail_alone(tmp_path):
    (tmp_path / "a.py").write_text(USES_AMP)
    (tmp_path / "b.py").write_bytes(b"\0")
    (tmp_path / "c.py").write_text("x = 1\n")
    (tmp_path / "d.txt").write_text("x = = 1")
    outcomes = list(port.read_many([tmp_path, tmp_path / "missing.py"]))
    assert [(each.file.rpartition("/")[2], each.error is None) for each in outcomes] == [
        ("a.py", True),
        ("b.py", False),
        ("c.py", True),
        ("missing.py", False),
    ]
    readings = [each.reading for each in outcomes if each.reading]
    assert [reading.framework for reading in readings] == ["paddle", None]
    assert "missing.py" in str(outcomes[-1].error)


def test_what_is_read_is_not_run(tmp_path):
    trap = tmp_path / "trap"
    path = tmp_path / "train.py"
    path.write_text(
        f"{USES_AMP}open({str(trap)!r}, 'w')\nraise SystemExit(7)\n__import__('torch')\n"
    )
    before = set(sys.modules)
    assert port.read(path).framework == "paddle"
    assert not trap.exists()
    assert not {"torch", "paddle", "tensorflow"} & (set(sys.modules) - before)


def test_recursion_while_following_is_an_error_of_that_file(tmp_path):
    body = "".join(f"{' ' * n}if a{n}:\n" for n in range(90)) + " " * 90 + "auto_cast()\n"
    path = tmp_path / "nested.py"
    path.write_text(f"from paddle.amp import auto_cast\n{body}")
    (outcome,) = port.read_many([path])
    assert outcome.error is None or "nested" in str(outcome.error)
    assert outcome.reading is None or len(outcome.reading.alternatives) <= 32


def test_text_and_files_are_told_apart(tmp_path):
    with pytest.raises(SourceError, match=r"Cannot read 'train\.py'"):
        port.read("train.py")
    assert port.read(USES_AMP).file == "<source>"


def test_a_file_that_is_not_there_may_be_one_of_a_like_name(tmp_path):
    (tmp_path / "train.py").write_text("")
    with pytest.raises(SourceError) as caught:
        port.read(tmp_path / "trian.py")
    assert str(caught.value).endswith(f"Hint: did you mean '{tmp_path / 'train.py'}'?")


def test_a_folder_that_may_not_be_listed_is_no_other_error(tmp_path, monkeypatch):
    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.listdir", refused)
    with pytest.raises(SourceError, match=r"No such file") as caught:
        port.read(tmp_path / "train.py")
    assert str(caught.value).endswith("Hint: ampbridge port train.py")
