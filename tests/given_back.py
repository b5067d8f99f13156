"""Every report of the lens gives a model back as it was, and draws no random number of its user's.

For ``tests/{numpy,torch,tensorflow,paddle}/test_lens.py``: each has a model with running statistics,
dropout, counters and generators.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pytest

from ampbridge import lens

X = np.linspace(-1.0, 1.0, 24, dtype=np.float32).reshape(6, 4)


class Noisy(Protocol):
    """What is looked at: made anew, from the same seeds, for each report."""

    def make(self) -> Any:
        """The model, in training, called once, after the framework's generators were seeded."""

    def loss(self, model: Any, x: Any) -> Any:
        """A scalar that changes all that a pass may change."""

    def state(self, model: Any) -> Mapping[str, Any]:
        """Objects by their ids, values bit by bit, modes."""

    def draw(self, model: Any) -> Sequence[Any]:
        """The next numbers of each generator, and the model's next output."""


def _interrupted(noisy: Noisy, model: Any) -> None:
    def loss_fn(model: Any, x: Any) -> Any:
        noisy.loss(model, x)
        raise KeyError("in the loss")

    with pytest.raises(KeyError, match="in the loss"):
        lens.census(loss_fn, model, X, policy="O2:bfloat16")


REPORTS: Mapping[str, Callable[[Noisy, Any], Any]] = {
    "census": lambda noisy, model: lens.census(noisy.loss, model, X, policy="O2:bfloat16"),
    "ranges": lambda noisy, model: lens.ranges(noisy.loss, model, X, policy="O1:bfloat16"),
    "locate": lambda noisy, model: lens.locate(noisy.loss, model, X, policy="O1:bfloat16"),
    "bisect": lambda noisy, model: lens.bisect(
        noisy.loss, model, [(X,)], "O2:bfloat16", tolerance=0.5
    ),
    "record": lambda noisy, model: lens.record(noisy.loss, model, X, policy="O2:bfloat16"),
    "interrupted census": _interrupted,
}
every_report = pytest.mark.parametrize("report", REPORTS)


def assert_given_back(noisy: Noisy, report: str) -> None:
    """Compare state before and after, and what is drawn next with a run that never looked."""
    drawn = _drawn(noisy, _made(noisy))
    model = _made(noisy)
    before = noisy.state(model)
    REPORTS[report](noisy, model)
    after = noisy.state(model)
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert after[name] == value, (name, value, after[name])
    assert _drawn(noisy, model) == drawn


def _made(noisy: Noisy) -> Any:
    random.seed(1)
    np.random.seed(2)
    return noisy.make()


def _drawn(noisy: Noisy, model: Any) -> list[Any]:
    return [random.random(), np.random.random(), *noisy.draw(model)]


def assert_attributes_given_back(model: Any, forward: Callable[[Any, Any], Any]) -> None:
    """Whatever ``forward`` assigns to a model or writes: the same objects, with the same values.

    Its part for all frameworks is here: a list, a dict and a set that grow, a count, a new attribute.
    """
    model.history, model.by_name, model.names, model.count = [0], {"a": [1]}, {"a"}, 0

    def loss_fn(model: Any, x: Any) -> Any:
        model.history.append(model.count)
        model.by_name["a"].append(2)
        model.by_name["b"] = x
        model.names.add("b")
        model.count += 1
        model.new = x
        return forward(model, x)

    before, lists = dict(vars(model)), (model.history, model.by_name["a"])
    for look in (lens.census, lens.locate, lens.record):
        look(loss_fn, model, X, policy="O1:bfloat16")
        assert vars(model).keys() == before.keys()
        assert all(held is before[name] for name, held in vars(model).items() if name != "count")
        assert (list(model.history), list(model.by_name), model.names, model.count) == (
            [0],
            ["a"],
            {"a"},
            0,
        )
        assert list(model.by_name["a"]) == [1]
        assert (model.history, model.by_name["a"]) == lists
