"""What training loses by each choice of masters and slots: losses, weights that move, time of a step.

    python bench/masters.py                      every framework, one process each
    python bench/masters.py --framework torch    one of them, in this process

Each choice trains the same models on the same batches from several seeds, with AdamW at O2 in bfloat16.
All take turns, step by step. A loss is the mean of a twentieth of the steps, and then of the seeds.
"Apart" is how far the last one is from that of float32 masters, in standard deviations of the latter
over the seeds. A weight has moved if its bfloat16 is another one than at first. Times are ratios to
float32 masters, step by step, and of these the median.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean, median, stdev
from time import perf_counter
from typing import Any, NamedTuple

import measuring
import ml_dtypes
import numpy as np
import page
from page import Findings, Row

import ampbridge as amp
from ampbridge import neutral, workloads
from ampbridge.adapters import registry
from ampbridge.workloads import Workload

FRAMEWORKS = ("torch", "tensorflow", "paddle", "jax")
OF_OTHERS = ("llama", "gpt-neox")
"""Workloads that torch alone has."""
LENGTH, WINDOWS, WORDS, RATE = 16, 4, 64, 3e-4
CHOICES: tuple[dict[str, Any], ...] = (
    {"masters": "float32"},
    {"masters": "kahan"},
    {"masters": "stochastic"},
    {"masters": "stochastic", "slots": "bfloat16"},
    {"masters": None},
)
BYTES = {
    "torch": (14, 12, 10, 6, 6),
    "jax": (12, 12, 10, 6, 10),
    "tensorflow": (12, 12, 12, 12, 12),
    "paddle": (12, 12, 12, 12, 12),
}
"""Of a weight and AdamW's two moments, for each choice; on torch tests/torch/test_masters.py counts them."""


class Trained(NamedTuple):
    """Of one choice: the loss of each step, the share of weights that moved, the seconds of each step."""

    losses: Sequence[float]
    moved: float
    seconds: Sequence[float]

    def loss(self, part: float = 1.0) -> float:
        """After this part of the steps: the mean of a twentieth of them."""
        steps = len(self.losses)
        end = max(1, int(part * steps))
        return fmean(self.losses[max(0, end - max(1, steps // 20)) : end])


def digits(kind: str, framework: str, seed: int) -> Workload:
    made = workloads.find(kind)(framework, seed)
    return Workload(made.model, adamw(made.model), made.loss_fn, made.batches)


def adamw(model: Any) -> Any:
    return neutral.optimizer("adamw", model, lr=RATE)


def windows(seed: int) -> list[np.ndarray]:
    """Of the characters of a text, as ids below WORDS."""
    text = np.frombuffer((page.ROOT / "LICENSE").read_bytes().upper(), np.uint8) % WORDS
    starts = np.random.default_rng(seed).integers(0, len(text) - LENGTH, (400, WINDOWS, 1))
    return list(text.astype(np.int64)[starts + np.arange(LENGTH + 1)])


def language(framework: str, seed: int) -> Workload:
    """A transformer that learns the text."""
    model = neutral.transformer(framework, WORDS, WORDS, length=LENGTH, causal=True, seed=seed)

    def loss_fn(model: Any, ids: Any, following: Any) -> Any:
        return neutral.cross_entropy(neutral.forward(model, ids), following)

    batches = [(each[:, :-1], each[:, 1:]) for each in windows(seed)]
    return Workload(model, adamw(model), loss_fn, batches)


def of_the_zoo(name: str, framework: str, seed: int) -> Workload:
    """A language model of Hugging Face's transformers, as tests/zoo has it, that learns the text."""
    import torch

    sys.path.append(str(page.ROOT / "tests" / "zoo"))
    from transformers_models import SPECIMENS

    (specimen,) = (each for each in SPECIMENS if each.name == name)
    torch.manual_seed(seed)
    model = specimen.build()
    return Workload(model, adamw(model), specimen.loss, [(each,) for each in windows(seed)])


WORKLOADS: Mapping[str, Callable[[str, int], Workload]] = {
    "digits-mlp": partial(digits, "digits-mlp"),
    "digits-conv": partial(digits, "digits-conv"),
    "language": language,
    **{name: partial(of_the_zoo, name) for name in OF_OTHERS},
}


def trained(
    build: Callable[[], Workload], choices: Sequence[Mapping[str, Any]], steps: int
) -> Iterator[Trained]:
    """What each choice comes to. They take turns."""
    made = [build() for _ in choices]
    taking = [
        amp.train_step(
            each.loss_fn, each.model, each.optimizer, policy=amp.Policy("O2", "bfloat16", **choice)
        )
        for each, choice in zip(made, choices, strict=True)
    ]
    before = low_weights(made[0].model)
    results: list[list[tuple[float, float]]] = [[] for _ in choices]
    for batch in made[0].first(steps):
        for step, result in zip(taking, results, strict=True):
            begin = perf_counter()
            loss = step(*batch).loss
            result.append((loss, perf_counter() - begin))
    for workload, result in zip(made, results, strict=True):
        losses, seconds = zip(*result, strict=True)
        yield Trained(losses, float((low_weights(workload.model) != before).mean()), seconds)


def low_weights(model: Any) -> np.ndarray:
    weights = registry.backend(registry.framework_of(model)).read_weights(model)
    return np.concatenate([x.ravel() for x in weights.values()]).astype(ml_dtypes.bfloat16)


def apart(runs: Sequence[Trained], usual: Sequence[Trained]) -> float:
    """How far the losses of ``runs`` are from those of ``usual`` in the mean, in the latter's noise."""
    expected = [run.loss() for run in usual]
    return (fmean(run.loss() for run in runs) - fmean(expected)) / stdev(expected)


PARTS = (1 / 8, 1 / 4, 1 / 2, 1.0)


def run_here(framework: str, options: Any) -> None:
    """Train in this process and print the table."""
    where = measuring.machine(framework)  # which also sees to one thread
    backend = registry.backend(framework)
    choices = [each for each in CHOICES if each.get("slots", "float32") in backend.slots]
    sections = []
    for name in options.workload:
        seeds = [
            list(trained(partial(WORKLOADS[name], framework, seed), choices, options.steps))
            for seed in range(options.seeds)
        ]
        runs_of = list(zip(*seeds, strict=True))
        sections.append(
            [
                (name, *row(choice, runs, runs_of[0]))
                for choice, runs in zip(choices, runs_of, strict=True)
            ]
        )
    at = [f"loss at {int(part * options.steps)}" for part in PARTS]
    columns = ("workload", "masters", "slots", *at, "apart", "moved", "time")
    of_others = not set(OF_OTHERS).isdisjoint(options.workload)
    name = f"masters {framework}, models of others" if of_others else f"masters {framework}"
    page.report(Findings(name, where, columns, sections), options)


def row(choice: Mapping[str, Any], runs: Sequence[Trained], usual: Sequence[Trained]) -> Row:
    losses = [f"{fmean(run.loss(part) for run in runs):.3f}" for part in PARTS]
    ratios = (
        median(a / b for a, b in zip(run.seconds, other.seconds, strict=True))
        for run, other in zip(runs, usual, strict=True)
    )
    moved = fmean(run.moved for run in runs)
    figures = f"{apart(runs, usual):+.2f}", f"{moved:.1%}", f"{median(ratios):.2f}"
    return (*named(choice), *losses, *figures)


def named(choice: Mapping[str, Any]) -> tuple[str, str]:
    return str(choice["masters"]), choice.get("slots", "float32")


def summary() -> Iterator[Findings]:
    """A line for each choice, from the kept tables: its farthest loss; and a step's time by framework."""
    kept = {f: page.read_figures().get(f"masters {f}", {"rows": []})["rows"] for f in FRAMEWORKS}
    losses, times = [], []
    for place, choice in enumerate(CHOICES):
        of_choice = {
            f: [r for r in rows if tuple(r[1:3]) == named(choice)] for f, rows in kept.items()
        }
        everywhere = [r for rows in of_choice.values() for r in rows]
        if not everywhere:
            continue
        farthest = max((r[-3] for r in everywhere), key=lambda cell: abs(float(cell)))
        moved = sorted((r[-2] for r in everywhere), key=lambda cell: float(cell[:-1]))
        ratios = (
            f"{median(float(r[-1]) for r in rows):.2f}" if rows else "not measured"
            for rows in of_choice.values()
        )
        widths = [str(each[place]) for each in BYTES.values()]
        losses.append((*named(choice), *widths, f"{moved[0]} to {moved[-1]}", farthest))
        times.append((*named(choice), *ratios))
    columns, where = ("masters", "slots"), "of the tables below"
    bytes_on = [f"bytes, {name}" for name in BYTES]
    yield Findings("masters", where, (*columns, *bytes_on, "moved", "farthest"), [losses])
    yield Findings("masters, times", where, (*columns, *FRAMEWORKS), [times])


def main() -> int:
    parser = page.parser(__doc__, FRAMEWORKS, steps=2000, seeds=3)
    usual = [name for name in WORKLOADS if name not in OF_OTHERS]
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=usual)
    options = parser.parse_args()
    status = measuring.in_one_process_each(options, run_here, FRAMEWORKS)
    if options.write:
        for findings in summary():
            page.keep(findings)
    return status


if __name__ == "__main__":
    sys.exit(main())
