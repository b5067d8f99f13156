"""``lens.align`` between frameworks, each in a process of its own: it names what was planted in one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from aligned_nets import MISTAKES
from processes import run_python

from ampbridge import lens

pytestmark = pytest.mark.slow

NETS = Path(__file__).parents[1] / "aligned_nets.py"


@pytest.fixture(scope="module")
def folder(backends: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of the net of ``aligned_nets.py``, by framework and mistake."""
    made = tmp_path_factory.mktemp("aligned")
    for name in backends:  # NumPy's first, whose weights the others take
        run_python("-W", "ignore", NETS, name, made)
    return made


@pytest.fixture(scope="module", params=["numpy", "tensorflow", "paddle", "jax"])
def other(request: pytest.FixtureRequest, backends: list[str]) -> str:
    """What torch is aligned with."""
    for name in ("torch", request.param):
        if name not in backends:
            pytest.skip(f"{name} is not installed")
    return str(request.param)


def aligned(folder: Path, other: str, mistake: str) -> lens.Alignment:
    sides = (f"torch-{MISTAKES[0]}", f"{other}-{mistake}")
    return lens.align(*(lens.Recording.load(folder / f"{side}.npz") for side in sides))


def layers(found: lens.Difference | None) -> tuple[str, str, str]:
    """The op, and its layers in both."""
    assert found is not None
    assert found.a.op == found.b.op
    return found.a.op, found.a.layer, found.b.layer


def test_without_a_mistake_they_agree(folder: Path, other: str) -> None:
    found = aligned(folder, other, "sound")
    assert not found, found
    assert found.pairs >= 6
    assert found.largest < 4  # far from what is allowed


def test_an_epsilon(folder: Path, other: str) -> None:
    """Named as the op itself, in float32 already, with the error that float64 has of it."""
    found = aligned(folder, other, "epsilon").forward
    assert layers(found) == ("layer_norm", "norm", "norm")
    assert found is not None
    assert found.in_float32
    assert found.cause == "Its inputs are equal: the op itself computes something else."
    sound = lens.Recording.load(folder / "torch-sound.npz")
    (norm,) = [op for op in sound.ops if op.op == "layer_norm"]
    x = np.asarray(norm.inputs[0].full, np.float64)
    deviation, variance = x - x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    right, wrong = (deviation / np.sqrt(variance + eps) for eps in (1e-5, 1e-3))
    assert found.error == pytest.approx(np.abs(right - wrong).max() / np.abs(right).max(), rel=1e-3)


def test_a_transposed_axis(folder: Path, other: str) -> None:
    found = aligned(folder, other, "transposed").forward
    assert layers(found) == ("linear", "widen", "widen")
    assert found is not None
    assert found.cause == "Input 0 is equal after transposing axes 1 and 2."


def test_a_wrong_dtype(folder: Path, other: str) -> None:
    found = aligned(folder, other, "dtype")
    assert found
    assert [(each.a.op, each.a.dtype, each.b.dtype) for each in found.dtypes] == [
        ("gelu", "float16", "float32")
    ]
    assert found.forward is found.backward is None


@pytest.mark.parametrize("mistake", MISTAKES)
def test_eighty_columns(folder: Path, other: str, mistake: str) -> None:
    lines = str(aligned(folder, other, mistake)).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ampbridge", "lens", "align", *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False)


def test_the_command(backends: list[str]) -> None:
    """Convolutions with channels first and last; the digits' models are the same ones."""
    if "tensorflow" not in backends:
        pytest.skip("tensorflow is not installed")
    done = run_command("digits-conv", "--backends", "numpy", "tensorflow", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["a"], found["b"], found["forward"]) == ("numpy", "tensorflow", None)
    assert [each.partition(",")[0] for each in found["turned"]] == [
        "conv2d", "batch_norm", "gelu", "conv2d", "batch_norm", "gelu",
    ]  # fmt: skip


def test_the_command_says_what_went_wrong() -> None:
    done = run_command("digits-conv", "--backends", "numpy", "nump", "--quiet")
    assert done.returncode == 1
    assert "nump was not recorded: BackendNotFoundError" in done.stderr
    assert "Hint: " in done.stderr
    done = run_command("digits-mlp", "--backends", "numpy", "numpy", "--policy-b", "O0", "--quiet")
    assert done.returncode == 0, done.stderr
    assert "as is usual under two policies" in done.stdout
