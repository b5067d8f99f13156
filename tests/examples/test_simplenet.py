"""Paddle's guide on every backend: the table, and that its columns of losses agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

Table = tuple[dict[str, Any], str]

SCRIPT = Path(__file__).parents[2] / "examples/paddle_simplenet/simplenet.py"
RUNS = ["float32", "O1", "O2", "O1, accumulated over 10"]

every_framework = pytest.mark.parametrize(
    "framework", ("numpy", "torch", "tensorflow", "paddle", "jax")
)


@pytest.fixture(scope="module")
def simplenet(
    tmp_path_factory: pytest.TempPathFactory, run_script: Callable[..., str]
) -> Callable[..., Table]:
    """The table's rows by name, and what was printed."""

    def run(framework: str, *options: object) -> Table:
        file = tmp_path_factory.mktemp("simplenet") / f"{framework}.json"
        small = ["--width", 64, "--batch", 32]
        printed = run_script(SCRIPT, "--backend", framework, *small, "--json", file, *options)
        return {row["name"]: row for row in json.loads(file.read_text())}, printed

    return run


@pytest.fixture(scope="module")
def learning(simplenet: Callable[..., Table], for_each_framework: Any) -> Callable[[str], Table]:
    """At a rate at which the net learns: the labels are the same in every epoch."""
    return for_each_framework(lambda framework: simplenet(framework, "--learning-rate", 2.0))


@every_framework
def test_losses_of_float32_o1_and_o2_agree(
    learning: Callable[[str], Table], framework: str
) -> None:
    """Within 1 %."""
    rows, printed = learning(framework)
    assert list(rows) == RUNS
    full = rows["float32"]["loss"]
    assert full < 0.95  # 1.18 at first
    assert rows["O1"]["loss"] == pytest.approx(full, rel=0.01)
    assert rows["O2"]["loss"] == pytest.approx(full, rel=0.01)
    assert {row["skipped"] for row in rows.values()} == {0}
    assert f"SimpleNet in {framework} on a CPU: 3 x Linear 64, batch 32" in printed
    for row in rows.values():
        [line] = [line for line in printed.splitlines() if line.startswith(f"{row['name']}  ")]
        assert f" {row['loss']:.8f} " in line
        assert f" {row['seconds']:.3f} s " in line
        assert f" {rows['float32']['seconds'] / row['seconds']:.2f}x " in line


def test_the_guides_other_net(simplenet: Callable[..., Table]) -> None:
    """Nine layers, in bfloat16, at the guide's rate: the loss of the first weights, to 1 %."""
    rows, printed = simplenet("numpy", "--layers", 9, "--dtype", "bfloat16", "--epochs", 2)
    assert "9 x Linear 64, batch 32, 2 x 10 batches" in printed
    full = rows["float32"]["loss"]
    for row in rows.values():
        assert row["loss"] == pytest.approx(full, rel=0.01)
