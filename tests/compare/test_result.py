"""The sentence that a comparison begins with: who agrees, and differences that were planted."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import ampbridge as amp
from ampbridge_compare import compare
from ampbridge_compare.comparison import Comparison
from ampbridge_compare.page import page
from ampbridge_compare.result import sentences
from ampbridge_compare.runs import Run, Steps

STEPS = 40


def run(label: str, **changes: object) -> Run:
    """Losses that halve every ten steps; steps 1 and 2 skipped, so that the scale is halved twice."""
    steps = Steps(
        tuple(2.0 ** (1 - step / 10) for step in range(STEPS)),
        (2.0**18, 2.0**17, *[2.0**16] * (STEPS - 2)),
        ("inf", "inf", *[None] * (STEPS - 2)),
    )
    backend, _, own = label.partition(", ")
    return Run(label, backend, "native" if own else "ampbridge", steps=replace(steps, **changes))


BASE = run("numpy")


def losses(change: float, start: int, end: int = STEPS) -> tuple[float, ...]:
    """The base's losses, those of the steps from ``start`` to ``end`` times 1 + ``change``."""
    return tuple(
        loss * (1 + change * (start <= step <= end))
        for step, loss in enumerate(BASE.steps.loss, start=1)
    )


def with_step(values: tuple, step: int, value: object) -> tuple:
    return (*values[: step - 1], value, *values[step:])


def said(*runs: Run, dtype: str = "float16", failed: tuple[Run, ...] = ()) -> str:
    return " ".join(sentences([BASE, *runs], failed, dtype))


def test_runs_that_agree():
    """A share of 2^-8 at ten steps and more is a mean of 0.390625 %, and 0.4 % rounded up."""
    near = run("torch", loss=losses(2.0**-8, 11, 25))
    assert said(near, run("paddle")) == (
        "torch and paddle agree with numpy: the same 2 of 40 steps are skipped, and the losses are at most "
        "0.4 % apart on average over 10 steps."
    )
    assert said(near) == said(near, run("paddle")).replace("torch and paddle agree", "torch agrees")


def test_runs_that_are_equal_and_skip_nothing():
    steady = {"reason": (None,) * STEPS, "scale": (1.0,) * STEPS}
    assert sentences([run("numpy", **steady), run("torch", **steady)], (), "float32") == [
        "torch agrees with numpy: none of 40 steps is skipped, and the losses are equal."
    ]


def test_a_run_alone():
    assert said() == "numpy skips 2 of 40 steps, and its loss goes from 2.0000 to 0.1340."


def test_nothing_ran():
    lost = tuple(Run(name, name, "ampbridge", error="x") for name in ("torch", "paddle"))
    assert sentences([], lost, "float16") == ["torch and paddle failed."]
    assert said(run("x"), failed=lost[:1]).endswith(" equal. torch failed.")


SKIP = {"reason": with_step(BASE.steps.reason, 17, "nan")}
NO_SKIP = {"reason": with_step(BASE.steps.reason, 2, None)}
PLANTED = {
    "it skips": (SKIP, "float16", "at step 17: it skips this step, and numpy does not."),
    "the base skips": (NO_SKIP, "float16", "at step 2: numpy skips this step, and it does not."),
    "a scale": (
        {"scale": with_step(BASE.steps.scale, 30, 2.0**15)},
        "float16",
        "at step 30: its loss scale is 2^15, and numpy's 2^16.",
    ),
    "a loss that is not finite": (
        {"loss": with_step(BASE.steps.loss, 11, np.nan)},
        "float16",
        "at step 11: its loss is nan, and numpy's 1.",
    ),
    "the first loss": (
        {"loss": losses(0.02, 1)},
        "float16",
        "at step 1: the losses are 2 % apart, more than 1.56 %.",
    ),
    "the first loss, within bfloat16's rounding": (
        {"loss": losses(0.02, 1), **SKIP},
        "bfloat16",
        "at step 17: it skips this step, and numpy does not.",
    ),
    # 3 % at steps 21 to 30: a mean of 2.1 % at step 27, the first above 2 %; and of 3 % at step 30.
    "a drift": (
        {"loss": losses(0.03, 21, 30)},
        "float16",
        "at step 27: the losses are 2.1 % apart on average over 10 steps, more than 2 %, and up to 3 % "
        "later.",
    ),
    # A rounding of bfloat16 is 2^-7, and 16 of them are 12.5 %.
    "a drift in bfloat16": (
        {"loss": losses(0.16, 31)},
        "bfloat16",
        "at step 38: the losses are 13 % apart on average over 10 steps, more than 12.5 %, and up to "
        "16 % later.",
    ),
    "the first loss, in float32": (
        {"loss": losses(1e-5, 1)},
        "float32",
        "at step 1: the losses are 0.001 % apart, more than 0.000763 %.",
    ),
    "the first of several": (
        {**SKIP, "loss": losses(0.5, 18)},
        "float16",
        "at step 17: it skips this step, and numpy does not.",
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_difference_is_named_with_its_step(planted):
    changes, dtype, expected = PLANTED[planted]
    text = said(run("torch"), run("paddle", **changes), dtype=dtype)
    first, _, second = text.partition(". ")
    assert first.startswith("torch agrees with numpy: ")
    assert second == f"paddle first differs from numpy {expected}"
    assert said(run("paddle", **changes), dtype=dtype) == second


def test_losses_that_are_infinite_in_both_runs_agree():
    both = {"loss": with_step(BASE.steps.loss, 1, np.inf)}
    (text,) = sentences([run("numpy", **both), run("torch", **both)], (), "float16")
    assert text.endswith("equal.")


def test_a_frameworks_own_amp_is_called_that():
    own = run("torch, its own AMP"), run("paddle, its own AMP", **NO_SKIP)
    assert said(run("torch"), *own) == (
        "torch and torch's own AMP agree with numpy: the same 2 of 40 steps are skipped, and the losses are "
        "equal. paddle's own AMP first differs from numpy at step 2: numpy skips this step, and it does not."
    )


RECIPE = amp.Recipe(amp.Policy("O1"), amp.Scaling(init_scale=2.0**24, growth_interval=60))
WORKLOAD = """
from dataclasses import replace
from ampbridge import workloads

def build(backend, seed):
    made = workloads.find("digits-mlp")(backend, seed)
    return replace(made, loss_fn=lambda model, *batch: made.loss_fn(model, *batch) * {factor})
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Comparison:
    """NumPy's training, and one in which a mistake was planted: its loss is 5 % too large."""
    runs = []
    for factor in (1.0, 1.05):
        file = tmp_path_factory.mktemp("workload") / "own.py"
        file.write_text(WORKLOAD.format(factor=factor))
        done = compare(RECIPE, ["numpy"], workload=str(file), steps=12)
        runs += done.runs
    return replace(done, runs=(runs[0], replace(runs[1], label="mine", backend="mine")))


def test_every_form_begins_with_the_result(trained):
    (result,) = trained.result
    assert result.startswith(
        "mine first differs from numpy at step 1: the losses are 5 % apart, more than 1.56 %"
    )
    assert trained.table().text(None).startswith(f"{result}\nPolicy('O1', 'float16'): ")
    assert next(iter(trained.to_dict().items())) == ("result", [result])
    text = page(trained)
    assert text.index("</h1>") < text.index(result) < text.index("<nav")


def test_five_frameworks(ran):
    """What the command said of them is what its data have."""
    done, folder = ran
    data = json.loads((folder / "comparison.json").read_text())
    assert done.stdout.splitlines()[: len(data["result"])] == data["result"]
    base, *others = [each["label"] for each in data["runs"] if each["kind"] == "ampbridge"]
    agreeing, _, rest = data["result"][0].partition(f" agree with {base}: ")
    assert set(others) <= set(agreeing.replace(" and ", ", ").split(", "))
    skipped = data["runs"][0]["applied"].count(False)
    assert rest.startswith(
        f"the same {skipped} of 40 steps are skipped, and the losses are at most "
    )
