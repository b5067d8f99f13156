"""Where the time of a torch step goes, part by part, in microseconds of the host.

    python bench/breakdown.py

Each part is timed from inside of a step, without the parts that it calls. What the clock itself takes is
measured on a function that does nothing, and taken off. The first three parts are those of a loop by
hand, too: forward pass, backward pass and optimizer. A compiled step has two graphs in their place:
"Inductor" is what it generated, "Dynamo" the guards and wrappers around it.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import pkgutil
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import page
from measuring import Step, machine
from native_torch import NAME
from page import Findings
from steps import task

import ampbridge as amp
from ampbridge_torch import _private

BY_HAND = ("the loss", "autograd", "the optimizer")
GRAPHS = ("gradients, Inductor", "gradients, Dynamo", "update, Inductor", "update, Dynamo")
OWN = ("decoration", "parameters", "region", ".grad", "check", "rule", "rest")

STEP = "ampbridge_torch.step"
REGION = "ampbridge_torch.autocast.casting"
TIMED = {
    "autograd": ["ampbridge_torch._private.backward"],
    "decoration": ["ampbridge.training.step.fit_to"],
    "parameters": [
        f"{STEP}.gradients.parameters",
        "ampbridge_torch.backend.TorchBackend.parameters",
    ],
    "region": [f"{REGION}.Region.__init__", f"{REGION}.Region.open", f"{REGION}.Region.close"],
    ".grad": [f"{STEP}.gradients.store", f"{STEP}.scaling.store"],
    "check": ["ampbridge_torch.backend.TorchBackend.unscale_for"],
    "rule": ["ampbridge.scaling.scale_rule.HostStore.update"],
    "gradients, Dynamo": [f"{STEP}.compiling.Graphs.gradients"],
    "update, Dynamo": [f"{STEP}.compiling.Graphs.step"],
}
"""By part, the functions that are it, under the names by which a step calls them."""


class Clock:
    """Nanoseconds by part; those of a part within another are not the other's."""

    def __init__(self) -> None:
        self.spent: dict[str, int] = defaultdict(int)
        self.calls: dict[str, int] = defaultdict(int)
        self.part, self._since = "rest", time.perf_counter_ns()

    def switch(self, part: str) -> str:
        """Now ``part`` begins; returns the one that was running."""
        now = time.perf_counter_ns()
        self.spent[self.part] += now - self._since
        self.calls[part] += 1
        before, self.part, self._since = self.part, part, now
        return before

    def of(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, its time counted."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            before = self.switch(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch(before)

        return timed


def watch(clock: Clock) -> None:
    """Time the parts of every step from now on."""
    for part, names in TIMED.items():
        for name in names:
            path, _, function = name.rpartition(".")
            owner = pkgutil.resolve_name(path)
            timed = clock.of(part, getattr(owner, function))
            is_static = isinstance(inspect.getattr_static(owner, function), staticmethod)
            setattr(owner, function, staticmethod(timed) if is_static else timed)
    inductor = _private.inductor

    def timed_graph(*args: Any) -> Callable[..., Any]:
        """What Inductor makes of a graph, timed as the part of the step that compiles it."""
        return clock.of(clock.part.replace("Dynamo", "Inductor"), inductor(*args))

    _private.inductor = timed_graph


def made(
    clock: Clock, policy: amp.Policy, scaled: bool = False, compile: bool = False
) -> Callable[[], Any]:
    model, loss_fn, batch, adamw = task("torch", "tiny")
    optimizer = adamw(model)
    if not compile:  # Dynamo would look into the clock
        optimizer.step = clock.of("the optimizer", optimizer.step)
        loss_fn = clock.of("the loss", loss_fn)
    scaler = amp.GradScaler(enabled=scaled)
    step = amp.train_step(loss_fn, model, optimizer, policy=policy, scaler=scaler, compile=compile)
    return lambda: step(*batch)


def microseconds(clock: Clock, step: Step, rounds: int, parts: Sequence[str]) -> dict[str, float]:
    """The median over the rounds, of each part."""
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        clock.spent.clear()
        clock.calls.clear()
        before = clock.switch("rest")
        step()
        clock.switch(before)
        calls = sum(clock.calls.values())
        for part in parts:
            within = clock.calls[part] * WITHIN + (calls * AROUND if part == "rest" else 0)
            found[part].append(clock.spent[part] / 1e3 - within)
    return {part: statistics.median(each) for part, each in found.items()}


def cost_of_the_clock(count: int = 10_000) -> tuple[float, float]:
    """Microseconds that a timed call adds to its own part, and to the part that calls."""
    clock = Clock()

    def nothing() -> None:
        pass

    timed = clock.of("nothing", nothing)
    for part, function in {"plain calls": nothing, "timed calls": timed}.items():
        clock.switch(part)
        for _ in range(count):
            function()
    clock.switch("rest")
    around = clock.spent["timed calls"] - clock.spent["plain calls"]
    return clock.spent["nothing"] / count / 1e3, around / count / 1e3


WITHIN, AROUND = cost_of_the_clock()


def main() -> None:
    options = page.parser(__doc__, rounds=2000).parse_args()
    clock = Clock()
    watch(clock)
    policies = {
        'lists="native"': amp.Policy("O1", NAME, lists="native", execution="native"),
        "default lists": amp.Policy("O1", NAME, lists="torch", execution="native"),
    }
    eager = {
        f"{name}, {'with' if scaled else 'no'} scaler": made(clock, policy, scaled)
        for name, policy in policies.items()
        for scaled in (False, True)
    }
    report("breakdown", clock, eager, (*BY_HAND, *OWN), options)
    compiled = {name: made(clock, policy, compile=True) for name, policy in policies.items()}
    report("breakdown, compiled", clock, compiled, (*GRAPHS, *OWN), options)


def report(
    title: str,
    clock: Clock,
    steps: dict[str, Step],
    parts: Sequence[str],
    options: argparse.Namespace,
) -> None:
    """A table with a row for each part and a column for each step."""
    for step in steps.values():
        microseconds(clock, step, 100, parts)
    found = [microseconds(clock, step, options.rounds, parts) for step in steps.values()]
    rows = [[part, *(f"{each[part]:.0f}" for each in found)] for part in parts]
    own = [sum(each[part] for part in parts if part in OWN) for each in found]
    rows.append(["ampbridge's", *(f"{each:.0f}" for each in own)])
    heads = ("us of a tiny step", *steps)
    page.report(Findings(title, machine("torch"), heads, [rows]), options)


if __name__ == "__main__":
    main()
