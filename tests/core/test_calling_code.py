"""All warnings go through one function, which finds the user's line; each framework's tests say where."""

import ast
import warnings
from functools import partial
from pathlib import Path

import pytest

import ampbridge as amp
from ampbridge.adapters.calling_code import warn

ROOT = Path(__file__).parents[2]
SOURCES = [path for part in ("ampbridge", "backends", "tools") for path in (ROOT / part).rglob("*.py")]


def test_nothing_else_warns():
    found = {
        path.name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("warn", "warn_explicit")
    }
    assert found == {"calling_code.py"}


def calling(module, inner):
    """A function of ``module`` that calls ``inner``."""
    names = {"__name__": module, "inner": inner}
    exec(compile("def outer(): inner()", f"<{module}>", "exec"), names)
    return names["outer"]


warns = calling("ampbridge.decorate", partial(warn, "Attention."))

BETWEEN = [
    "ampbridge.training.step",
    "ampbridge_torch.autocast.rules",
    "torch.nn",
    "keras.src.models",
    "contextlib",
]


@pytest.mark.parametrize("module", BETWEEN)
def test_ours_and_a_frameworks_lines_are_passed_over(module):
    with pytest.warns(amp.AmpBridgeWarning, match="Attention") as caught:
        calling("theirs", calling(module, calling("ampbridge", warns)))()
    assert [w.filename for w in caught] == ["<theirs>"]


def test_a_module_that_is_merely_called_alike_is_a_users():
    with pytest.warns(amp.AmpBridgeWarning) as caught:
        calling("ampbridges", calling("ampbridge", warns))()
    assert [w.filename for w in caught] == ["<ampbridges>"]


def test_a_filter_for_the_users_module_applies():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module="theirs", category=amp.AmpBridgeWarning)
        with pytest.raises(amp.AmpBridgeWarning):
            calling("theirs", warns)()
