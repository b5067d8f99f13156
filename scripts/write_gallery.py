"""Run the gallery's scripts, and write what came out into their pages: a figure, a table of numbers.

    python scripts/write_gallery.py                     all of them, minutes each
    python scripts/write_gallery.py images_ema gan      some of them

Each script runs twice, in float32 and under its own policy, in a process and a folder of its own. One
without a policy, whose recipe is ported, runs once, and the script that it was ported from runs, too. The
figure goes to docs/images/gallery/NAME.svg, the table between the marks of NAME in docs/gallery/NAME.md.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import gallery
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ampbridge.policies.policy import Policy
from ampbridge_compare.figures import Drawing, Look, power_of_two
from ampbridge_compare.palette import COLOURS, DASHES, MUTED

sys.path.append(str(gallery.ROOT / "bench"))

import page

PICTURES = gallery.ROOT / "docs" / "images" / "gallery"
RESULT = re.compile(r"([A-Za-z][\w ]*): (.+)")
"""A line of what a script prints at its end: ``accuracy: 97.2%``."""

# What an import in a script says about the versions to tell: module -> distribution.
TOLD = {
    "torch": "torch",
    "keras": "keras",
    "tensorflow": "tensorflow-cpu",
    "paddle": "paddlepaddle",
    "transformers": "transformers",
    "peft": "peft",
    "jax": "jax",
    "flax": "flax",
    "optax": "optax",
}
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
"""Matrices of the gallery are too small to share, and sums have one order."""

# peft imports torchvision, whose wheel does not load beside a torch for CPUs.
START = f"""\
import os, runpy, sys
sys.path[0] = os.path.dirname(sys.argv[1])
sys.path.append({str(gallery.ROOT / "tests")!r})
import torchvision_ops
declared = torchvision_ops.declare() if "peft" in open(sys.argv[1]).read() else []
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

LOOK = Look("gallery", 6.4, 10.5, 2)
"""Narrow enough to be read on a phone."""

LAST = 50
"""Steps over which the loss at the end is averaged."""


class Log(NamedTuple):
    """A CSV file of ``amp.StepLog``, or of Keras' ``CSVLogger`` with ``ScaleLogs``.

    Attributes:
        loss, scale: of each step, or at the end of each epoch.
        skips: the numbers of the skipped steps, or of the epochs with skipped steps.
        unit: "step" or "epoch".
    """

    loss: Sequence[float]
    scale: Sequence[float]
    skips: Sequence[int]
    unit: str = "step"

    @property
    def is_scaled(self) -> bool:
        """Whether there is something to draw of the loss scale."""
        return bool(self.skips) or set(self.scale) != {1.0}


class Run(NamedTuple):
    """What a script did under a policy.

    Attributes:
        logs: by the model that they are of; "" if there is one.
        results: what it printed at its end, by name.
        samples: what it generated, (n, height, width); None for scripts that generate no images.
        seconds: its CPU time.
    """

    policy: str
    logs: Mapping[str, Log]
    results: Mapping[str, str]
    samples: Any
    seconds: float

    @property
    def label(self) -> str:
        """``O1, float16``."""
        return f"{self.policy.partition(':')[0]}, {Policy.parse(self.policy).compute_dtype}"

    @property
    def heading(self) -> str:
        """Of its column in the table."""
        return f"`--policy {self.policy}`"


class Side(Run):
    """One of two runs of a recipe that was ported; ``policy`` names the framework."""

    @property
    def label(self) -> str:
        return self.policy

    @property
    def heading(self) -> str:
        return self.policy


def runs_of(name: str) -> list[Run]:
    """In float32 and under its own policy; of a ported recipe, of both frameworks."""
    script = gallery.SCRIPTS / f"{name}.py"
    if '"--policy"' in gallery.source(name):
        generates = '"--samples"' in gallery.source(name)
        others = ["--samples", "samples.npy"] if generates else []
        return [
            run(script, ["--policy", policy, *others], policy)
            for policy in ("O0", own_policy(name))
        ]
    with TemporaryDirectory() as folder:
        rewritten = Path(folder) / "rewritten.py"
        options = ["--to", "ampbridge", "--out", rewritten, "--quiet"]
        command = [sys.executable, "-m", "ampbridge", "port", PORTED_FROM, *options]
        subprocess.run(command, check=True)
        return [run(rewritten, [], "Paddle", Side), run(script, [], "Keras", Side)]


PORTED_FROM = gallery.SCRIPTS / "ported" / "paddle_train.py"


def run(script: Path, options: Sequence[str], policy: str, kind: type[Run] = Run) -> Run:
    """Run a script of the gallery.

    Raises:
        subprocess.CalledProcessError: if it fails.
    """
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-c", START, script, *options, "--log", "run.csv"]
        before = cpu_seconds()
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **ONE_THREAD},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        seconds = cpu_seconds() - before
        file = Path(folder) / "samples.npy"
        samples = np.load(file) if file.exists() else None
        return kind(policy, logs(Path(folder)), results(done.stdout), samples, seconds)


def cpu_seconds() -> float:
    """The CPU time of all processes that this one has waited for."""
    times = os.times()
    return times.children_user + times.children_system


def logs(folder: Path) -> dict[str, Log]:
    """Those of ``run.csv``, or of ``run.critic.csv`` and others like it."""
    return {file.stem[4:]: read(file) for file in sorted(folder.glob("run*.csv"))}


def read(file: Path) -> Log:
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    losses = [float(row["loss"]) for row in rows]
    if "loss_scale" in rows[0]:  # Keras' CSVLogger
        skips = [n for n, row in enumerate(rows, 1) if int(row["skipped_steps"])]
        return Log(losses, [float(row["loss_scale"]) for row in rows], skips, "epoch")
    skipped = [int(row.get("skipped", 0)) for row in rows]
    skips = [n for n, more in enumerate(np.diff([0, *skipped]), 1) if more]
    return Log(losses, [float(row["scale"]) for row in rows], skips)


def results(printed: str) -> dict[str, str]:
    """The last lines, as long as each is a name and a value."""
    found: dict[str, str] = {}
    for line in reversed(printed.splitlines()):
        match = RESULT.fullmatch(line)
        if match is None:
            break
        found[match[1]] = match[2]
    return dict(reversed(found.items()))


def own_policy(name: str) -> str:
    """The default of the script's option ``--policy``."""
    (policy,) = re.findall(r'"--policy",\s+default="(.+?)"', gallery.source(name))
    return policy


# -- the table


def table(runs: Sequence[Run]) -> str:
    """A column for each run, in Markdown."""
    rows = [
        [_about(LAST_LOSS[log.unit], name), *(last(r.logs[name]) for r in runs)]
        for name, log in runs[0].logs.items()
    ]
    rows += [[name, *(run.results.get(name, "") for run in runs)] for name in runs[-1].results]
    return page.table(["", *(run.heading for run in runs)], rows)


LAST_LOSS = {"step": "loss, mean of the last 50 steps", "epoch": "loss of the last epoch"}


def last(log: Log) -> str:
    return f"{np.mean(log.loss[-LAST if log.unit == 'step' else -1 :]):.3f}"


def _about(what: str, name: str) -> str:
    return f"{name}: {what}" if name else what


def made(name: str, runs: Sequence[Run]) -> str:
    """How the numbers came about."""
    sources = gallery.source(name) + (PORTED_FROM.read_text() if type(runs[0]) is Side else "")
    imports = re.findall(r"^(?:import|from) (\w+)", sources, re.M)
    imports += ["tensorflow"] if "keras" in imports else []
    versions = [f"{TOLD[m]} {version(TOLD[m])}" for m in dict.fromkeys(imports) if m in TOLD]
    machine = f"one thread of an {platform.machine().replace('_', '-')} CPU"
    seconds = " and ".join(f"{run.seconds:.0f}" for run in runs)
    return (
        f"`python scripts/write_gallery.py {name}`: {machine}; {', '.join(versions)}; "
        f"{page.today()}. The runs took {seconds} seconds of CPU time."
    )


# -- the figure


def picture(runs: Sequence[Run]) -> bytes:
    """The losses of all runs, the loss scales with the skipped steps, and what was generated, as SVG."""
    drawn = io.BytesIO()
    Drawing("gallery", "", "", "", lambda look: _figure(runs, look)).save(LOOK, drawn, "svg")
    return drawn.getvalue()


def _figure(runs: Sequence[Run], look: Look) -> Figure:
    if isinstance(runs[0], Side):
        scaled = {run.label: run.logs[""] for run in runs}
    else:  # in float32 nothing has to be scaled
        scaled = {name: log for name, log in runs[-1].logs.items() if log.is_scaled}
    generated = [run for run in runs if run.samples is not None]
    heights = [2.0] * len(runs[0].logs) + [1.7] * bool(scaled) + [1.8] * bool(generated)
    figure = Figure(figsize=(look.width, sum(heights) + 0.5), layout="constrained")
    grid = iter(figure.add_gridspec(len(heights), 1, height_ratios=heights))
    plots = [figure.add_subplot(next(grid)) for _ in runs[0].logs]
    for axes, name in zip(plots, runs[0].logs, strict=True):
        _losses(axes, name, runs)
    if scaled:
        plots.append(figure.add_subplot(next(grid)))
        _scales(plots[-1], scaled)
    first = next(iter(runs[0].logs.values()))
    for axes in plots:
        axes.set_xlim(0.5, len(first.loss) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.tick_params(labelbottom=axes is plots[-1])
    plots[-1].set_xlabel({"step": "training step", "epoch": "epoch"}[first.unit])
    if generated:
        inner = next(grid).subgridspec(1, len(generated))
        for place, each in zip(inner, generated, strict=True):
            _samples(figure.add_subplot(place), each)
    return figure


def _losses(axes: Axes, name: str, runs: Sequence[Run]) -> None:
    """Each loss as a mean over some steps: single batches differ much."""
    first = runs[0].logs[name]
    window = max(1, len(first.loss) // 40) if first.unit == "step" else 1
    axes.set_title(_about(f"loss, mean of {window} steps" if window > 1 else "loss", name))
    for place, run in enumerate(runs):
        loss = np.asarray(run.logs[name].loss)
        mean = np.convolve(loss, np.ones(window) / window, "valid")
        colour, width = (COLOURS[0], 1.4) if place else (MUTED, 3.2)
        dashes = DASHES[0] if place else DASHES[2]
        steps = np.arange(window, len(loss) + 1)
        axes.plot(steps, mean, color=colour, linewidth=width, linestyle=dashes, label=run.label)
    axes.legend()


def _scales(axes: Axes, logs: Mapping[str, Log]) -> None:
    """The loss scales, by what they are of."""
    units = {log.unit for log in logs.values()}
    skipped = "a skipped step" if units == {"step"} else "an epoch with skipped steps"
    axes.set_title(f"loss scale; a cross is {skipped}")
    for place, (name, log) in enumerate(logs.items()):
        exponents = np.log2(log.scale)
        colour, dashes = COLOURS[place], DASHES[place]
        steps = np.arange(1, len(exponents) + 1)
        axes.step(steps, exponents, where="mid", color=colour, linestyle=dashes, label=name)
        skips = np.asarray(log.skips, int)
        axes.plot(skips, exponents[skips - 1], linestyle="", marker="x", color=colour)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: power_of_two(value)))
    axes.margins(y=0.15)
    if len(logs) > 1:
        axes.legend()


def _samples(axes: Axes, run: Run) -> None:
    """The first 32 generated images, beside each other."""
    framed = np.pad(run.samples[:32], ((0, 0), (1, 1), (1, 1)))
    count, height, width = framed.shape
    tiled = framed.reshape(count // 8, 8, height, width).transpose(0, 2, 1, 3)
    axes.imshow(tiled.reshape(-1, 8 * width), cmap="gray_r")
    axes.set_title(f"generated, {run.label}")
    axes.set_axis_off()


def write(name: str) -> None:
    """Run a script twice, and write its figure and its table."""
    runs = runs_of(name)
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / f"{name}.svg").write_bytes(picture(runs))
    file = gallery.page(name)
    numbers = f"\n{table(runs)}\n{made(name, runs)}\n\n"
    file.write_text(page.placed(file.read_text("utf-8"), name, numbers), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="of scripts; without any, all of them")
    chosen = parser.parse_args().names or gallery.names()
    if unknown := [name for name in chosen if name not in gallery.names()]:
        parser.error(f"there are {', '.join(gallery.names())}; not {', '.join(unknown)}")
    for name in chosen:
        write(name)


if __name__ == "__main__":
    main()
