"""What type checkers infer of a user's calls; run by them alone (test_types.py).

Each ``type: ignore`` stands where a checker has to complain: one that is not needed is an error itself.
"""

from typing_extensions import assert_type

import ampbridge as amp
from ampbridge.reports.explain import ExplanationTable
from ampbridge_lens.explained import ModelExplanation


class Model:
    pass


class Optimizer:
    pass


class Loss:
    pass


def decorating(model: Model, optimizer: Optimizer) -> None:
    assert_type(amp.decorate(model, policy="O1"), Model)
    assert_type(amp.decorate(model, optimizer), tuple[Model, Optimizer])
    assert_type(amp.undecorate(model), Model)
    assert_type(amp.undecorate(model, optimizer), tuple[Model, Optimizer])
    amp.decorate(model, polcy="O1")  # type: ignore


def scaling(scaler: amp.GradScaler, loss: Loss, others: list[Loss]) -> None:
    assert_type(scaler.scale(loss), Loss)
    assert_type(scaler.scale(others), list[Loss])


def modules() -> None:
    assert_type(amp.port.read("train.py").recipe, amp.Recipe)
    amp.port.raed("train.py")  # type: ignore
    amp.lens.censsus()  # type: ignore
    amp.trian_step()  # type: ignore


def explaining(model: Model) -> None:
    assert_type(amp.explain("O1", "torch"), ExplanationTable)
    assert_type(amp.explain("O1", model, 1.0), ModelExplanation)
