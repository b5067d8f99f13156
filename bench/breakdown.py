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
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import page
import torch
from overhead import SHAPES, batch_of, machine
from overhead_torch import NAME, loss_fn, model_of
from page import Findings

import ampbridge as amp
from ampbridge.scaling.scale_rule import HostStore
from ampbridge.training import step as training_step
from ampbridge_torch import _private
from ampbridge_torch.backend import TorchBackend
from ampbridge_torch.step import compiling, gradients, scaling

BY_HAND = ("the loss", "autograd", "the optimizer")
GRAPHS = ("gradients, Inductor", "gradients, Dynamo", "update, Inductor", "update, Dynamo")
OWN = ("decoration", "parameters", "region", ".grad", "check", "rule", "rest")


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


class TimedRegion:
    """A region, with the time that it takes to make, enter and leave it counted."""

    def __init__(self, clock: Clock, opened: Callable[..., Any], *args: Any) -> None:
        self._clock = clock
        before = clock.switch("region")
        self._region = opened(*args)
        clock.switch(before)

    def __enter__(self) -> None:
        before = self._clock.switch("region")
        self._region.__enter__()
        self._clock.switch(before)

    def __exit__(self, *exception: object) -> None:
        before = self._clock.switch("region")
        self._region.__exit__(*exception)
        self._clock.switch(before)


def watch(clock: Clock) -> None:
    """Time the parts of every step from now on."""
    torch.Tensor.backward = clock.of("autograd", torch.Tensor.backward)  # type: ignore[method-assign]
    training_step.fit_to = clock.of("decoration", training_step.fit_to)
    gradients.region_on = functools.partial(TimedRegion, clock, gradients.region_on)
    gradients.parameters = clock.of("parameters", gradients.parameters)
    for name in ("stored", "store"):
        timed = clock.of(".grad", getattr(gradients, name))
        setattr(gradients, name, timed)
        setattr(scaling, name, timed)
    TorchBackend.parameters = staticmethod(gradients.parameters)  # type: ignore[method-assign]
    TorchBackend.unscale_for = staticmethod(clock.of("check", scaling.unscale_for))  # type: ignore[method-assign]
    HostStore.update = clock.of("rule", HostStore.update)  # type: ignore[method-assign]
    graphs = compiling.Graphs
    graphs.gradients = clock.of("gradients, Dynamo", graphs.gradients)  # type: ignore[method-assign]
    graphs.step = clock.of("update, Dynamo", graphs.step)  # type: ignore[method-assign]
    _private.inductor = functools.partial(timed_graph, clock, _private.inductor)


def timed_graph(clock: Clock, inductor: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """What Inductor makes of a graph, timed as the part of the step that compiles it."""
    part = clock.part.replace("Dynamo", "Inductor")
    return clock.of(part, inductor(*args))


def made(
    clock: Clock, policy: amp.Policy, scaled: bool = False, compile: bool = False
) -> Callable[[], Any]:
    model = model_of(SHAPES["tiny"])
    x, y = (torch.from_numpy(array) for array in batch_of(SHAPES["tiny"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    timed_loss = loss_fn
    if not compile:  # Dynamo would look into the clock
        optimizer.step = clock.of("the optimizer", optimizer.step)  # type: ignore[method-assign]
        timed_loss = clock.of("the loss", loss_fn)
    step = amp.train_step(
        timed_loss,
        model,
        optimizer,
        policy=policy,
        scaler=amp.GradScaler(enabled=scaled),
        compile=compile,
    )
    return lambda: step(x, y)


def microseconds(
    clock: Clock, step: Callable[[], Any], rounds: int, parts: Sequence[str]
) -> dict[str, float]:
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
            within = clock.calls[part] * _WITHIN + (calls * _AROUND if part == "rest" else 0)
            found[part].append(clock.spent[part] / 1e3 - within)
    return {part: statistics.median(each) for part, each in found.items()}


def _cost_of_the_clock() -> tuple[float, float]:
    """Microseconds that a timed call adds to its own part, and to the part that calls."""
    clock, count = Clock(), 10_000

    def nothing() -> None:
        pass

    timed = clock.of("nothing", nothing)
    clock.switch("rest")
    for _ in range(count):
        nothing()
    clock.switch("plain calls")
    plain, clock.spent["rest"] = clock.spent["rest"], 0
    clock.switch("rest")
    for _ in range(count):
        timed()
    clock.switch("plain calls")
    within, around = clock.spent["nothing"], clock.spent["rest"] - plain
    return within / count / 1e3, around / count / 1e3


_WITHIN, _AROUND = _cost_of_the_clock()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2000)
    page.add_option(parser)
    options = parser.parse_args()
    clock = Clock()
    watch(clock)
    policies = {
        name: amp.Policy("O1", NAME, lists=lists, execution="native")
        for name, lists in {'lists="native"': "native", "default lists": "torch"}.items()
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
    steps: dict[str, Callable[[], Any]],
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
