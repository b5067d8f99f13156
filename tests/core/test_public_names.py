"""Public names are where they were, with the signatures that they had: public_names.json.

After a change that is meant: ``python tests/core/test_public_names.py`` writes the file anew.
"""

import importlib
import inspect
import json
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("public_names.json")
MODULES = (
    "ampbridge",
    "ampbridge_lens",
    "ampbridge.neutral",
    "ampbridge_port",
    "ampbridge_testing",
    "ampbridge_compare",
    "ampbridge_course",
)


def signatures(owner):
    """Of a module's or a class's public names; what is no function is told by its class."""
    names = getattr(owner, "__all__", None) or {
        name for own in _of_ours(owner) for name in vars(own) if name[0] != "_"
    }
    public = {name: getattr(owner, name) for name in sorted(names)}
    return {
        name: [_signature(value), signatures(value)]
        if inspect.isclass(value)
        else _signature(value)
        for name, value in public.items()
        if not inspect.ismodule(value)
    }


def _of_ours(owner):
    """A module; a class with those of its bases that ampbridge defines."""
    bases = getattr(owner, "__mro__", ())[1:]
    return [owner, *(base for base in bases if base.__module__.startswith("ampbridge"))]


def _signature(value):
    """Annotations are left out: they name the modules in which classes stand."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return type(value).__name__
    plain = [each.replace(annotation=each.empty) for each in found.parameters.values()]
    return str(inspect.Signature(plain))


def everything():
    return {name: signatures(importlib.import_module(name)) for name in MODULES}


@pytest.mark.parametrize("name", MODULES)
def test_they_have_the_signatures_that_they_had(name):
    assert signatures(importlib.import_module(name)) == json.loads(FILE.read_text())[name]


if __name__ == "__main__":
    FILE.write_text(json.dumps(everything(), indent=1) + "\n")
