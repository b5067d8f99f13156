"""TensorFlow's guide on every backend, by ``fit`` and by a loop of steps, under four policies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

Guide = Callable[[str], tuple[dict[str, Any], str]]

SCRIPT = Path(__file__).parents[2] / "examples/tf_guide/guide.py"
HAVE_FIT = ("tensorflow", "paddle")
POLICIES = ["O0", "O1:float16", "O2:float16", "O2:bfloat16"]

every_framework = pytest.mark.parametrize(
    "framework", ("numpy", "torch", "tensorflow", "paddle", "jax")
)
every_loop = pytest.mark.parametrize("loop", ("fit", "custom"))
every_policy = pytest.mark.parametrize("policy", POLICIES)


@pytest.fixture(scope="module")
def guide(
    tmp_path_factory: pytest.TempPathFactory,
    run_script: Callable[..., str],
    for_each_framework: Any,
) -> Guide:
    """Every run of a framework, and what was printed. The scale starts far too high."""
    folder = tmp_path_factory.mktemp("guide")

    def run(framework: str) -> tuple[dict[str, Any], str]:
        file = folder / f"{framework}.json"
        options = ["--init-scale", 2.0**24, "--epochs", 3]
        printed = run_script(SCRIPT, "--backend", framework, "--json", file, *options)
        return json.loads(file.read_text()), printed

    return for_each_framework(run)


@every_framework
@every_loop
@every_policy
def test_it_learns_as_in_float32(guide: Guide, framework: str, loop: str, policy: str) -> None:
    """A few skipped steps of 45 included; it is still on its way."""
    runs = guide(framework)[0][loop]
    assert list(runs) == POLICIES
    losses = [epoch["loss"] for epoch in runs[policy]["epochs"]]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.75
    assert runs[policy]["accuracy"] > 0.82
    assert runs[policy]["accuracy"] == pytest.approx(runs["O0"]["accuracy"], abs=0.05)


@every_framework
@every_loop
@every_policy
def test_outputs_are_float32(guide: Guide, framework: str, loop: str, policy: str) -> None:
    assert guide(framework)[0][loop][policy]["outputs"] == "float32"


@every_framework
@every_loop
@every_policy
def test_the_scale_falls_where_there_is_one(
    guide: Guide, framework: str, loop: str, policy: str
) -> None:
    scales = [epoch["scale"] for epoch in guide(framework)[0][loop][policy]["epochs"]]
    if policy.endswith("float16") and "bfloat16" not in policy:
        assert 2.0**8 < scales[0] < 2.0**24
        assert scales == sorted(scales, reverse=True)
    else:
        assert scales == [1.0, 1.0, 1.0]


@every_framework
def test_what_is_printed(guide: Guide, framework: str) -> None:
    runs, printed = guide(framework)
    title = "Fit" if framework in HAVE_FIT else "Fit (by steps)"
    for heading in (f"{title}, {framework}", f"Custom loop, {framework}"):
        assert heading in printed
    assert (
        "O2', 'float16', keep=['predictions'])\n  computes in float16, variables in float32"
        in printed
    )
    rows = [line for line in printed.splitlines() if line.startswith("O2:float16")]
    assert len(rows) == 2
    for row, loop in zip(rows, ("fit", "custom"), strict=True):
        cells = row.split()
        assert cells[1:4] == ["float16", "float32", "float32"]
        assert cells[-1] == f"{runs[loop]['O2:float16']['accuracy']:.2f}"
