"""What a rehearsal says at its end, within 80 columns."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import frexp
from typing import Any, TypeVar

import torch

from ampbridge.errors.foreign_text import printable
from ampbridge.reports.tables import aligned
from ampbridge_rehearse.lines import Line
from ampbridge_rehearse.watching import (
    DTYPES,
    LOW,
    PHASES,
    Product,
    Step,
    Window,
)

Kind = TypeVar("Kind", bound=tuple[Any, ...])

WIDTH = 80
MOST = 10  # rows of a table

DIFFERENCES = (
    "Speed, and how much memory there is.",
    "Last bits: a GPU sums in another order, and cuDNN and cuBLAS choose among algorithms.",
    "float32 convolutions run in TF32 unless torch.backends.cudnn.allow_tf32 is False.",
    "Random numbers: the same seed gives another sequence.",
    "Triton and Inductor, NCCL, CUDA graphs: none of them ran.",
)
MEMORY = (
    "what the script's tensors had, without what a caching allocator rounds up and keeps, and "
    "without workspaces of cuBLAS and cuDNN."
)


@dataclass(frozen=True)
class Report:
    """What was seen of a script; ``str`` is what is printed.

    Attributes:
        script: its name.
        ended: how it ended.
        steps: its optimizer steps.
        rest: what happened after the last of them.
        scale: the loss scale after the scaler's last update; None without a scaler.
        peak_memory: the most bytes allocated at a time.
        replaced: sentences on what ran otherwise than the script asks.
    """

    script: str
    ended: str
    steps: tuple[Step, ...]
    rest: Window
    scale: float | None
    peak_memory: int
    replaced: tuple[str, ...]

    def __str__(self) -> str:
        sections = (
            [self._title()],
            self._kernels(),
            self._most_called(),
            self._products(),
            self._optimizer_steps(),
            self._waits(),
            _paragraph(f"Memory: at most {_bytes(self.peak_memory)} at a time: {MEMORY}"),
            self._elsewhere(),
        )
        return "\n\n".join("\n".join(lines) for lines in sections if lines)

    def _title(self) -> str:
        title = f"Rehearsal of {self.script} on the virtual CUDA device, torch {torch.__version__}"
        count = len(self.steps)
        steps = f"{count} optimizer step{'s' * (count != 1)}" if count else "no optimizer step"
        return f"{_cut(title, WIDTH)}\n{steps}; {self.ended}"

    # -- kernels

    def _counted(self) -> tuple[str, list[Window]]:
        """The windows whose kernels are told: those of the steps, without the set-up."""
        windows = [step.window for step in self.steps]
        if len(windows) > 2:
            return f"in steps 2 to {len(windows)}", windows[1:]
        if len(windows) == 2:
            return "in step 2", windows[1:]
        return "in the whole run", [*windows, self.rest]

    def _kernels(self) -> list[str]:
        when, windows = self._counted()
        counts: Counter[tuple[str, str]] = Counter()
        for kernel, count in _sum(window.kernels for window in windows).items():
            counts[kernel.dtype, kernel.phase] += count
        rows = [
            (dtype, *(str(counts[dtype, phase]) for phase in PHASES))
            for dtype in DTYPES
            if dtype in (*LOW, "float32") or any(counts[dtype, phase] for phase in PHASES)
        ]
        return [
            f"Kernels {when} ('forward': all that is in neither of the others)",
            aligned(("dtype", *PHASES), rows),
        ]

    def _most_called(self) -> list[str]:
        _, windows = self._counted()
        calls: Counter[tuple[str, str]] = Counter()
        phases: dict[tuple[str, str], set[str]] = {}
        for kernel, count in _sum(window.kernels for window in windows).items():
            calls[kernel.op, kernel.dtype] += count
            phases.setdefault((kernel.op, kernel.dtype), set()).add(kernel.phase)
        rows = [
            (_cut(op, 36), dtype, str(count), _listed(phases[op, dtype]))
            for (op, dtype), count in sorted(calls.items(), key=lambda item: (-item[1], item[0]))
        ]
        return [*_table(("op", "dtype", "calls", "in"), rows)] if rows else []

    def _products(self) -> list[str]:
        when, windows = self._counted()
        products: Counter[Product] = _sum(window.products for window in windows)
        title = f"Matrix products and convolutions in float32, {when}"
        if not products:
            return [f"{title}: none"]
        rows = [
            (product.op, product.phase, str(count), _where(product.line))
            for product, count in _most(products)
        ]
        return [title, *_table(("op", "in", "calls", "line"), rows)]

    # -- steps

    def _optimizer_steps(self) -> list[str]:
        if not self.steps:
            return ["Optimizer steps: none. Steps are those of torch.optim.Optimizer."]
        rows: list[tuple[str, ...]] = []
        for name, steps in self._by_optimizer():
            numbered = enumerate(steps, 1)
            for told, run in groupby(numbered, key=lambda item: _told(item[1])):
                numbers = [number for number, _ in run]
                rows.append((name, _range(numbers[0], numbers[-1]), *told))
        lines = ["Optimizer steps"]
        header = ("optimizer", "step", "loss scale", "update", "gradients")
        lines += _table(header, rows, most=2 * MOST)
        if self.scale is not None:
            lines.append(f"The loss scale is then {_scale(self.scale)}.")
        return lines

    def _by_optimizer(self) -> Iterator[tuple[str, list[Step]]]:
        for name in dict.fromkeys(step.optimizer for step in self.steps):
            yield name, [step for step in self.steps if step.optimizer == name]

    # -- waits

    def _waits(self) -> list[str]:
        lines = ["Waits of the host for the device"]
        for name, steps in self._by_optimizer():
            lines += self._waits_of(name, [step.window for step in steps])
        if self.rest.waits:
            lines += ["after the last step", *_waiting_lines([self.rest], [])]
        return lines if len(lines) > 1 else [f"{lines[0]}: none"]

    def _waits_of(self, name: str, windows: Sequence[Window]) -> list[str]:
        first, later = windows[:1], windows[1:]
        if not any(window.waits for window in windows):
            return [f"up to a step of {name}: none"]
        lines = [f"up to a step of {name}", *_waiting_lines(first, later)]
        if later:
            totals = {
                kind: [sum(n for wait, n in w.waits.items() if wait.kind == kind) for w in later]
                for kind in ("read", "write", "synchronize")
            }
            told = ", ".join(f"{_spread(counts)} {kind}" for kind, counts in totals.items())
            lines.append(f"Each step after the first: {told}.")
        return lines

    # -- the rest

    def _elsewhere(self) -> list[str]:
        lines = ["What a real device would do otherwise"]
        for sentence in (*self.replaced, *DIFFERENCES):
            lines += _paragraph(sentence, "- ", "  ")
        return lines


def _waiting_lines(first: Sequence[Window], later: Sequence[Window]) -> list[str]:
    rows = []
    for wait, _ in _most(_sum(window.waits for window in (*first, *later))):
        at_first = sum(window.waits[wait] for window in first)
        at_later = _spread([window.waits[wait] for window in later]) if later else "-"
        rows.append((wait.kind, str(at_first), at_later, _where(wait.line)))
    return _table(("waits", "first", "later", "line"), rows)


def _where(line: Line) -> str:
    """The script's line, with what stands there or with the library's line that it called."""
    return f"{line.caller} > {line}" if line.caller else f"{line}  {line.text}"


def _told(step: Step) -> tuple[str, str, str]:
    scale = "none" if step.scale is None else _scale(step.scale)
    if step.gradients == 0:
        gradients = "none"
    elif step.bad:
        gradients = f"inf or NaN in {step.bad} of {step.gradients}"
    else:
        gradients = "finite"
    return scale, "applied" if step.applied else "skipped", gradients


def _sum(counters: Iterable[Counter[Kind]]) -> Counter[Kind]:
    total: Counter[Kind] = Counter()
    for counter in counters:
        total.update(counter)
    return total


def _most(counts: Counter[Kind]) -> list[tuple[Kind, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], most: int = MOST) -> list[str]:
    """Its lines; the last column has what is left of the width."""
    shown = [tuple(map(printable, row)) for row in rows[:most]]
    before = [max(map(len, column)) + 2 for column in zip(header, *shown, strict=True)][:-1]
    fitting = [(*row[:-1], _cut(row[-1], WIDTH - sum(before))) for row in shown]
    lines = aligned(header, fitting).splitlines()
    if len(rows) > most:
        lines.append(f"... and {len(rows) - most} more")
    return lines


def _paragraph(text: str, first: str = "", later: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=later)


def _listed(phases: set[str]) -> str:
    return ", ".join(phase for phase in PHASES if phase in phases)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _spread(counts: Sequence[int]) -> str:
    return _range(min(counts), max(counts))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _scale(scale: float) -> str:
    fraction, exponent = frexp(scale)
    return f"2^{exponent - 1}" if fraction == 0.5 else f"{scale:g}"


def _bytes(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
