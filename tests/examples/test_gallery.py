"""The gallery: its scripts train, their pages show them as they are, and three statements are enough.

Each script runs at a small size, in float32 and under its own policy. Its page has a diff from a loop
without ampbridge: the script is turned into that loop, whose losses are the same bits.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from processes import check_installed

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import gallery  # noqa: E402
import write_gallery  # noqa: E402

# Options of a small run, and the number of its steps.
SMALL = {
    "gan": (["--epochs", "1"], 28),
    "images_ema": (["--epochs", "1"], 18),
    "language_model": (["--steps", "10"], 10),
    "language_model_flax": (["--steps", "10"], 10),
    "lora": (["--base-steps", "5", "--steps", "12"], 12),
    "ported_recipe": (["--steps", "40"], 40),
    "segmentation_paddle": (["--steps", "9"], 9),
    "vae_fit": (["--epochs", "3"], 3),
}
LONGEST = {"language_model", "language_model_flax", "lora"}
"""These run in the nightly profile alone."""
NAMES = gallery.names()
RUN = [pytest.param(n, marks=pytest.mark.nightly if n in LONGEST else ()) for n in NAMES]
WITH_POLICY = [name for name in NAMES if '"--policy"' in gallery.source(name)]
ADVERSARIAL = {"gan"}
"""Their losses rise when the other model learns."""
COMPILED = {"language_model_flax"}
"""XLA compiles both loops as a whole, and adds in another order."""


class Ran(NamedTuple):
    """A run: what it printed, the losses of its own ``backward``, and its CSV files, by name."""

    printed: str
    losses: Sequence[float]
    logs: Mapping[str, Sequence[Mapping[str, str]]]


@pytest.fixture(scope="session")
def ran(
    tmp_path_factory: pytest.TempPathFactory, run_script: Callable[..., str]
) -> Callable[[str], Mapping[str, Ran]]:
    """The runs of a script: "O0", "own" (its own policy) and "native" (without ampbridge)."""

    @cache
    def run(name: str) -> Mapping[str, Ran]:
        for framework in frameworks(name):
            check_installed(framework)
        folder = tmp_path_factory.mktemp(name)
        script, (options, _) = gallery.source(name), SMALL[name]
        logged = [*options, "--log", "run.csv"]
        runs = {
            "native": {"script": gallery.native(script, text(name)), "options": logged},
            "O0": {"script": script, "options": [*logged, "--policy", "O0"]},
            "own": {"script": script, "options": logged},
        }
        if name not in WITH_POLICY:
            runs["O0"] = runs.pop("native")
        (folder / "runs.json").write_text(json.dumps(runs))
        runner = Path(__file__).with_name("run_gallery.py")
        run_script(runner, folder / "runs.json", folder)
        found = json.loads((folder / "ran.json").read_text())
        return {kind: Ran(**each, logs=logs_in(folder / kind)) for kind, each in found.items()}

    return run


def logs_in(folder: Path) -> dict[str, list[dict[str, str]]]:
    return {
        file.name: list(csv.DictReader(file.read_text().splitlines()))
        for file in sorted(folder.glob("run*.csv"))
    }


def text(name: str) -> str:
    return gallery.page(name).read_text("utf-8")


def frameworks(name: str) -> list[str]:
    imports = re.findall(r"^(?:import|from) (\w+)", gallery.source(name), re.M)
    imports += ["tensorflow"] if "keras" in imports else []
    return [each for each in ("torch", "tensorflow", "paddle", "jax") if each in imports]


def losses(log: Sequence[Mapping[str, str]]) -> list[float]:
    return [float(row["loss"]) for row in log]


@pytest.mark.parametrize("policy", ["O0", "own"])
@pytest.mark.parametrize("name", RUN)
@pytest.mark.slow
def test_it_trains(name: str, policy: str, ran: Any) -> None:
    run, steps = ran(name)[policy], SMALL[name][1]
    assert [len(log) for log in run.logs.values()] == [steps] * len(run.logs)
    first = losses(next(iter(run.logs.values())))
    if name in ADVERSARIAL:
        assert min(first) < 0.9 * first[0]
    else:
        assert sum(first[-(steps // 3) :]) < sum(first[: steps // 3])
    told = re.findall(r"^skipped steps.*: (\d+)$", run.printed, re.M)
    assert list(map(int, told)) == [n for log in run.logs.values() for n in skipped(log)]


def skipped(log: Sequence[Mapping[str, str]]) -> list[int]:
    """The number of skipped steps that a log has; none of a script without ampbridge."""
    if "skipped_steps" in log[0]:  # of each epoch
        return [sum(int(row["skipped_steps"]) for row in log)]
    return [int(log[-1]["skipped"])] if "skipped" in log[0] else []


@pytest.mark.parametrize("name", [each for each in RUN if each.values[0] in WITH_POLICY])
@pytest.mark.slow
def test_float32_has_the_bits_of_the_loop_without_ampbridge(name: str, ran: Any) -> None:
    logs = [losses(log) for log in ran(name)["O0"].logs.values()]
    steps = list(chain.from_iterable(zip(*logs, strict=True)))  # of two models in turn
    native = ran(name)["native"]
    own = losses(native.logs["run.csv"]) if native.logs else native.losses
    assert own[-len(steps) :] == (pytest.approx(steps, rel=1e-5) if name in COMPILED else steps)


@pytest.mark.parametrize("name", RUN)
@pytest.mark.slow
def test_its_own_policy_is_not_float32(name: str, ran: Any) -> None:
    one, other = (ran(name)[policy].logs for policy in ("O0", "own"))
    assert one.keys() == other.keys()
    assert all(losses(one[log]) != losses(other[log]) for log in one)


@pytest.mark.parametrize("name", NAMES)
def test_the_diff_adds_the_marked_statements_and_nothing_else(name: str) -> None:
    script = gallery.source(name)
    lines = script.replace(gallery.MARK, "").splitlines()
    marked = [lines[number - 1] for number in chain.from_iterable(gallery.added(script))]
    assert script.count(gallery.MARK) == len(gallery.added(script)) > 3
    (block,) = re.findall(r"^```diff\n(.*?)^```$", text(name), re.M | re.S)
    removed = [line[1:].strip() for line in block.splitlines() if line.startswith("-")]
    shown = [line[1:] for line in block.splitlines() if line.startswith("+")]
    assert [line for line in shown if line.strip() not in removed] == marked
    assert re.search(r"\bamp\.|import ampbridge", gallery.native(script, text(name))) is None


@pytest.mark.parametrize("name", NAMES)
def test_its_page_has_script_figure_and_numbers(name: str) -> None:
    page = text(name)
    assert gallery.LINK.findall(page) == [name]
    assert f"](../images/gallery/{name}.svg)" in page
    assert (ROOT / "docs/images/gallery" / f"{name}.svg").read_text().startswith("<?xml")
    (numbers,) = re.findall(f"<!-- measured: {name} -->\n(.*)<!-- end of {name} -->", page, re.S)
    assert f"`python scripts/write_gallery.py {name}`" in numbers
    shown = gallery.with_scripts(page)
    assert gallery.source(name) in shown
    index = (gallery.PAGES / "index.md").read_text("utf-8")
    assert f"]({name}.md)" in index
    assert f"](../images/gallery/{name}.svg)" in index


def test_every_script_is_run_and_stands_on_the_site() -> None:
    assert (
        sorted(SMALL)
        == NAMES
        == sorted({path.stem for path in gallery.PAGES.glob("*.md")} - {"index"})
    )
    settings = (ROOT / "mkdocs.yml").read_text()
    on_site = re.findall(r"gallery/(\w+)\.md", settings)
    assert sorted(on_site) == sorted([*NAMES, "index"])


def test_a_statement_is_highlighted_whole() -> None:
    script = (
        "import it  # ampbridge\n"
        "x = it(  # ampbridge\n    1\n)\n"
        "with x:  # ampbridge\n    print()\n"
        "y = 1\n"
    )
    assert gallery.added(script) == [range(1, 2), range(2, 5), range(5, 6)]
    shown = gallery.WHOLE.format(name="n", lines="1-1 2-4 5-5", source=script)
    assert 'hl_lines="1-1 2-4 5-5"' in shown


def test_a_diff_that_is_not_of_the_script_is_refused() -> None:
    page = "```diff\n a\n-b\n+c\n```\n"
    assert gallery.native("a\nc  # ampbridge\n", page) == "a\nb\n"
    with pytest.raises(LookupError, match="not a part"):
        gallery.native("a\nd\n", page)
    with pytest.raises(LookupError, match="more than one"):
        gallery.native("a\nc\na\nc\n", page)


# -- what scripts/write_gallery.py writes


def test_the_last_lines_are_the_results() -> None:
    printed = "epoch 1: 3\nstep 5  0.3\nbits per byte: 2.50\nskipped steps: 3\n"
    assert write_gallery.results(printed) == {"bits per byte": "2.50", "skipped steps": "3"}


def test_a_log_is_read(tmp_path: Path) -> None:
    rows = ["step,loss,scale,grad_norm,skipped,reason", "1,2.5,8.0,,1,inf", "2,2.0,4.0,,1,"]
    for name in ("run.csv", "run.critic.csv"):
        (tmp_path / name).write_text("\n".join([*rows, "3,1.0,4.0,,2,inf"]) + "\n")
    log = write_gallery.Log([2.5, 2.0, 1.0], [8.0, 4.0, 4.0], [1, 3])
    assert write_gallery.logs(tmp_path) == {"critic": log, "": log}
    assert log.is_scaled
    assert not write_gallery.Log([1.0], [1.0], []).is_scaled


def test_a_log_of_keras_is_read(tmp_path: Path) -> None:
    rows = ["epoch,consecutive_skips,loss,loss_scale,skipped_steps,val_loss", "0,0,2.5,8.0,3,2.0"]
    (tmp_path / "run.csv").write_text("\n".join([*rows, "1,0,1.5,16.0,0,1.0"]) + "\n")
    log = write_gallery.Log([2.5, 1.5], [8.0, 16.0], [1], "epoch")
    assert write_gallery.logs(tmp_path) == {"": log}
    run = write_gallery.Run("O1", {"": log}, {}, None, 3)
    assert "| loss of the last epoch | 1.500 | 1.500 |" in write_gallery.table([run, run])
    assert "an epoch with skipped steps" in write_gallery.picture([run, run]).decode()


def test_both_sides_of_a_ported_recipe_are_shown() -> None:
    log = write_gallery.Log([3.0] * 100, [8.0] * 50 + [4.0] * 50, [])
    sides = [
        write_gallery.Side(name, {"": log}, printed, None, 3)
        for name, printed in (("Paddle", {"accuracy": "90%"}), ("Keras", {"skipped steps": "1"}))
    ]
    assert "|  | Paddle | Keras |" in write_gallery.table(sides)
    assert "| skipped steps |  | 1 |" in write_gallery.table(sides)
    assert write_gallery.picture(sides).decode().count("Paddle") > 1  # loss and scale


def test_the_table_and_the_figure_are_of_the_runs() -> None:
    Log, Run = write_gallery.Log, write_gallery.Run
    one = Run(
        "O0", {"": Log([9.0] * 50 + [2.0] * 50, [1.0] * 100, [])}, {"accuracy": "90%"}, None, 3
    )
    two = Run("O1", {"": Log([3.0] * 100, [8.0] + [4.0] * 99, [1])}, {"accuracy": "91%"}, None, 4)
    assert write_gallery.table([one, two]) == (
        "|  | `--policy O0` | `--policy O1` |\n| --- | --- | --- |\n"
        "| loss, mean of the last 50 steps | 2.000 | 3.000 |\n| accuracy | 90% | 91% |\n"
    )
    drawn = write_gallery.picture([one, two]).decode()
    assert drawn == write_gallery.picture([one, two]).decode()
    assert "a cross is a skipped step" in drawn
    assert "a cross is a skipped step" not in write_gallery.picture([one, one]).decode()
