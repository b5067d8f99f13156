"""Warnings point to the user's line: programs, the last line of which is the one that is warned of."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import ampbridge as amp

# They are run with a framework's ``model()``, ``low()`` (in 16 bits by itself), ``optimizer(model)``,
# ``loss_fn(model, x)``, and batches ``x`` and ``inf``, with which the loss overflows.
OF_THE_CORE = {
    "a step that is not scaled": """
m = model()
amp.train_step(loss_fn, m, optimizer(m), policy="O1", scaler=None)""",
    "a recipe that does not scale": """
m = model()
amp.train_step(loss_fn, m, optimizer(m), recipe=amp.Recipe(scaler=None))""",
    "a model in 16 bits, decorated": """
m = low()
amp.decorate(m, policy="O1:bfloat16")""",
    "a model in 16 bits, with its optimizer": """
m = low()
amp.decorate(m, optimizer(m), policy="O1:bfloat16")""",
    "a model in 16 bits, in a step": """
m = low()
step = amp.train_step(loss_fn, m, optimizer(m), policy="O1:bfloat16")
step(x)""",
    "a model in 16 bits, differentiated": """
m = low()
amp.value_and_grad(loss_fn, m, x, policy="O1:bfloat16")""",
    "steps skipped in a row": """
m = model()
scaler = amp.GradScaler(8.0, warn_after_skips=1)
step = amp.train_step(loss_fn, m, optimizer(m), policy="O1", scaler=scaler)
step(inf).applied""",
    "a loop by hand": """
m = model()
o = optimizer(m)
scaler = amp.GradScaler(8.0, warn_after_skips=1)
loss, grads = amp.value_and_grad(loss_fn, m, inf, scaler=scaler)
scaler.step(o, grads); scaler.update(); scaler.state_dict()""",
    "a scale that is loaded": """
amp.GradScaler().load_state_dict({"scale": 2.0**30, "_growth_tracker": 0})""",
    "a step's scale that is loaded": """
m = model()
step = amp.train_step(loss_fn, m, optimizer(m), policy="O1")
theirs = {"scale": 2.0**30, "_growth_tracker": 0}
step.load_state_dict({**step.state_dict(), "scaler": theirs})""",
}


def check_that_the_last_line_is_warned_of(
    program: str, names: Mapping[str, Any], category: type[Warning] = amp.AmpBridgeWarning
) -> None:
    """Each warning of just this category, and there is one at least."""
    program = program.strip()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(
            compile(program, "the user's file", "exec"),
            {"__name__": "__main__", "amp": amp, **names},
        )
    places = {(w.filename, w.lineno) for w in caught if w.category is category}
    assert places == {("the user's file", 1 + program.count("\n"))}
