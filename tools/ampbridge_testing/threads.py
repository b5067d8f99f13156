"""Promises about threads that train at the same time, each a model of its own."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ampbridge_testing.decorating import Layered
from ampbridge_testing.gradients import same_bits
from ampbridge_testing.harness import NumpyArray, as_number
from ampbridge_testing.reference import example

POLICIES = ("O0", "O1:float16", "O2:bfloat16", "O1:bfloat16")
STEPS = 50


class Trained(NamedTuple):
    """What is compared of a training, to the bit."""

    results: list[tuple[float, float, bool]]
    """The loss, the scale, and whether the step was applied."""

    state: list[NumpyArray]
    """Parameters and slots."""


class ThreadConformance(Layered):
    """Promises of steps in several threads."""

    def test_four_threads_each_train_their_own_model(self) -> None:
        """Under policies of their own, as they would one after another."""
        start = threading.Barrier(len(POLICIES))
        indices = range(len(POLICIES))
        with ThreadPoolExecutor(len(POLICIES)) as pool:
            together = list(pool.map(lambda index: self.trained(index, start.wait), indices))
        for index, found in enumerate(together):
            alone = self.trained(index, lambda: None)
            assert found.results == alone.results
            assert same_bits(found.state, alone.state)

    def trained(self, index: int, wait: Callable[[], object]) -> Trained:
        """Training number ``index``, which overflows every so many steps."""
        h = self.harness
        model = h.layered([w / (index + 1) for w in example().weights])
        optimizer = h.optimizer(model, "adam", 2.0**-8)
        step = self.step(model, optimizer, policy=POLICIES[index] if h.threads_apart else "O0")
        wait()
        results = []
        for number in range(STEPS):
            overflows = number % (5 + index) == 4
            result = step(*self.batch(math.inf if overflows else 1.0))
            results.append((as_number(result.loss, h), float(result.scale), result.applied))
        return Trained(results, [*self.values(model), *h.slots(optimizer)])
