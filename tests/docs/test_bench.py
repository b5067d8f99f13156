"""What the benchmarks compute of their measurements, by worked examples; and that they run."""

from __future__ import annotations

from pathlib import Path

import page
import pytest
import quick
from page import Findings
from processes import check_installed, run_python
from quick import Figure, Run
from sweep import line_through

BENCH = Path(__file__).parents[2] / "bench"
BRIEF = ["--rounds", "2", "--seconds", "0.0001"]
ONE_COPY = [*BRIEF, "--copies", "1"]
WHAT_TAKES_LONG = ["compile=", "compiled loss", "fit"]


def run_of(ratio: float, half: float, *, noise: float = 0.02, machine: str = "A") -> Run:
    figures = {"step": Figure(ratio, ratio - half, ratio + half)}
    return Run("1.0", "abc", "2026-01-01", machine, 1.0, noise, figures)


@pytest.mark.parametrize(
    "now, before, is_worse",
    [
        (run_of(1.20, 0.01), run_of(1.00, 0.01), True),
        (run_of(1.20, 0.01), run_of(1.00, 0.20), False),  # it was as slow at times
        (run_of(1.20, 0.20), run_of(1.00, 0.01), False),  # it is as fast at times
        (run_of(1.20, 0.01, noise=0.10), run_of(1.00, 0.01, noise=0.10), False),
        (run_of(1.00, 0.01), run_of(1.20, 0.01), False),
    ],
)
def test_worse_is_what_noise_does_not_explain(now: Run, before: Run, is_worse: bool) -> None:
    assert list(quick.worse(now, before)) == ["step"] * is_worse


def test_a_figure_that_was_not_kept_is_not_compared() -> None:
    assert list(quick.worse(run_of(2.0, 0.0), run_of(1.0, 0.0)._replace(figures={}))) == []


def test_a_run_is_compared_with_the_last_one_of_its_processor() -> None:
    of_a, later_of_a, of_b = run_of(1, 0), run_of(2, 0), run_of(3, 0, machine="B")
    assert quick.compared_with([of_a, later_of_a, of_b], "A") == later_of_a
    assert quick.compared_with([of_a, later_of_a, of_b], "C") == of_b
    assert quick.compared_with([], "A") is None


def test_the_history_is_read_as_it_was_kept(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(quick, "HISTORY", tmp_path / "history.json")
    runs = [run_of(1.0, 0.1), run_of(2.0, 0.1, machine="B")]
    quick.keep(runs)
    assert quick.read_history() == runs


def test_runs_stand_beside_each_other_the_last_ones_alone() -> None:
    runs = [run_of(number, 0.0) for number in range(1, quick.SHOWN + 3)]
    made = quick.findings(runs)
    assert len(made.columns) == 1 + quick.SHOWN
    assert made.sections == [[("step", "3.00", "4.00", "5.00", "6.00")]]


def test_the_line_through_points_of_a_line() -> None:
    each, fixed = line_through([10, 30, 100], [120.0, 160.0, 300.0])
    assert (each, fixed) == pytest.approx((2.0, 100.0))


def test_a_long_step_does_not_outweigh_a_short_one() -> None:
    """Of three points off by 10 % each, the line keeps within 20 % of the short one."""
    each, fixed = line_through([1, 10, 1000], [11.0, 90.0, 11000.0])
    assert each * 1 + fixed == pytest.approx(11.0, rel=0.2)


def test_tables_are_kept_and_put_in_their_places(monkeypatch, tmp_path) -> None:
    """Of which one replaces the one of its name and leaves the others."""
    here, figures = tmp_path / "page.md", tmp_path / "figures.json"
    marks = "<!-- measured: {0} -->\nold\n<!-- end of {0} -->\n"
    here.write_text(f"# Page\n{marks.format('a')}between\n{marks.format('b')}")
    monkeypatch.setattr(page, "PAGE", here)
    monkeypatch.setattr(page, "FIGURES", figures)
    figures.write_text("{}")
    page.keep(Findings("a", "a machine", ("x|y",), [[("1",)], [("2",)]], again=[0.99, 1.02]))
    assert here.read_text().endswith(f"between\n{marks.format('b')}")
    page.keep(Findings("b", "a machine", ("z",), [[("3",)]]))
    text = here.read_text()
    assert (
        "baselines against themselves 0.990 to 1.020.\n\n| x\\|y |\n| --- |\n| 1 |\n| 2 |\n" in text
    )
    assert "| z |\n| --- |\n| 3 |\n" in text
    assert "old" not in text


BENCHMARKS = [
    *(
        (framework, command)
        for framework in ("torch", "tensorflow", "paddle", "numpy")
        for command in (
            ("overhead.py", *ONE_COPY, "--workload", "tiny", "--without", *WHAT_TAKES_LONG),
            ("scaler.py", *ONE_COPY, "--workload", "tiny"),
            ("sweep.py", *BRIEF, "--most", "10"),
            ("calls.py",),
        )
    ),
    ("torch", ("host.py", "--rounds", "2", "--workload", "tiny")),
    ("torch", ("breakdown.py", "--rounds", "2")),
    ("torch", ("autocast_key.py", "--calls", "10")),
    ("torch", ("masters.py", "--framework", "torch", "--steps", "8", "--seeds", "2")),
    ("numpy", ("imports.py", "--rounds", "2")),
    ("jax", ("overhead.py", *ONE_COPY, "--workload", "tiny", "--without", *WHAT_TAKES_LONG)),
]
TOLD = {
    "calls.py": "calls, ",
    "breakdown.py": "ampbridge's",
    "autocast_key.py": "meanwhile",
    "masters.py": "apart",
}
"""What a benchmark says that has no baseline."""


def check_that_it_runs(framework: str, command: tuple[str, ...]) -> None:
    check_installed(framework)
    script, *options = command
    if script in ("overhead.py", "scaler.py", "sweep.py", "calls.py"):
        options += ["--framework", framework]
    assert TOLD.get(script, "again") in run_python(BENCH / script, *options)


def test_a_benchmark_runs() -> None:
    check_that_it_runs("numpy", ("scaler.py", *ONE_COPY, "--workload", "tiny"))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "framework, command", BENCHMARKS, ids=lambda v: v if isinstance(v, str) else v[0]
)
def test_every_benchmark_runs(framework: str, command: tuple[str, ...]) -> None:
    check_that_it_runs(framework, command)
