"""Modules that were sorted into folders are found by the names that they had before."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ampbridge as amp
from ampbridge import moved

# Old module -> the names that it had, as they were before the move.
BEFORE = json.loads(Path(__file__).with_name("moved_modules.json").read_text())


@pytest.mark.parametrize("name", BEFORE)
def test_a_module_is_found_by_its_old_name(name):
    found = import_module(f"ampbridge.{name}")
    assert [each for each in BEFORE[name] if not hasattr(found, each)] == []


def test_it_is_the_module_of_now_and_no_copy():
    old, new = import_module("ampbridge.step"), import_module("ampbridge.training.step")
    assert old is new is amp.step
    assert new.__spec__.name == new.__name__ == "ampbridge.training.step"


def test_no_other_name_is_found():
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'ampbridge.steps'$"):
        import_module("ampbridge.steps")
    with pytest.raises(AttributeError, match=r"^module 'ampbridge' has no attribute 'steps'$"):
        amp.steps  # noqa: B018


def test_functions_are_not_hidden_by_modules_of_their_name():
    """Importing a submodule sets an attribute of the package."""
    code = """
        import ampbridge.backend, ampbridge.autocast, ampbridge.decorate, ampbridge.doctor, ampbridge.explain
        from ampbridge.backend import Backend
        import ampbridge as amp
        functions = amp.backend, amp.autocast, amp.decorate, amp.doctor, amp.explain
        print(all(type(each).__name__ == "function" for each in functions), Backend is amp.Backend)
    """
    lines = "\n".join(line.strip() for line in code.strip().splitlines())
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_each_old_name_leads_somewhere():
    for name in moved.NOW.values():
        assert import_module(f"ampbridge.{name}").__name__ == f"ampbridge.{name}"


def test_the_new_name_of_a_module_that_is_called_like_a_function():
    import ampbridge.adapters.backend as module

    assert module.Backend is amp.Backend
    assert callable(amp.backend)
