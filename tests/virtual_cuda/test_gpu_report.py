"""The report of `make test-gpu`, made on the virtual device: docs/gpu.md shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from processes import run_python
from test_waiting import WAITS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gpu.md"
SHOWN = re.compile(r"<!-- report -->\n(.*?)<!-- end of report -->\n", re.S)
OPTIONS = ("--virtual", "--quick", "--frameworks", "torch", "--parts", "bits", "waits")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("report") / "gpu-report.md"
    run_python(ROOT / "scripts" / "gpu_report.py", *OPTIONS, "--output", file)
    return file.read_text(encoding="utf-8")


def test_it_says_first_that_the_device_is_virtual(report: str) -> None:
    title, _, what, *_ = report.splitlines()
    assert title == "# What a GPU says of ampbridge"
    assert what.startswith("**No GPU: virtual devices** (ampbridge's virtual CUDA device)")
    assert "compute capability 9.0" in report


def test_ops_differ_as_they_are_named(report: str) -> None:
    named = json.loads((Path(__file__).parent / "differing_ops.json").read_text("utf-8"))["ops"]
    rows = re.findall(r"^\| (\w+) \| \w+ \| b?float16 \| (\w+) \| .* \| ([\w ]+) \|$", report, re.M)
    assert {op for op, _, _ in rows} == {"layer_norm", "sin"}
    for op, kind, why in rows:
        assert named[op][kind] == why
    assert "| torch | float16 | 24 | 4 of 4 (100.0%) | 3 of 4 (75.0%) |" in report


def test_waits_are_those_of_the_contract(report: str) -> None:
    for title, (foreach, fused) in WAITS.items():
        assert f"\n| {title}, AdamW | {foreach} |" in report
        assert f"\n| {title}, fused AdamW | {fused} |" in report


def test_the_page_shows_such_a_report(report: str) -> None:
    """If not, between its marks, four columns in: python scripts/gpu_report.py with OPTIONS."""
    shown = SHOWN.search(PAGE.read_text(encoding="utf-8"))
    assert shown is not None
    lines = [line.removeprefix("    ") for line in shown[1].splitlines()]
    assert steady(lines) == steady(report.splitlines())


def steady(lines: list[str]) -> list[str]:
    """What does not depend on the machine, the day and the commit.

    How many elements are equal depends on the CPU's kernels; of ops there are fewer than ten here.
    """
    begins = ("| machine", "| Python", "| ampbridge", "| made", "| by", "| NVIDIA's", "`python")
    told = [line for line in lines if line and not line.startswith((*begins, "| torch | 2."))]
    return [re.sub(r"\d+ of (\d{2,}) \([\d.]+%\)", r"some of \1", line) for line in told]
