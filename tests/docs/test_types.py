"""Type checkers pass the code that users read, and know what it returns (typed_use.py).

The code is the blocks of the README, of the first page and of the neutral parts, the tutorials, and the
lessons of the course.

mypy runs with ``--strict``, pyright as it comes (its standard mode; basedpyright is the build of it that
PyPI has). Excluded, and why:

* Functions without annotations are allowed, and calls of them: these pages write
  ``def loss_fn(model, x, y)`` as their readers do. What stands inside is checked.
* The frameworks, ``autograd`` and ``sklearn`` are ``Any``. Most have no types, or such as pyright finds
  fault with; and what they say of themselves is not what is under test.
* pyright's reportRedeclaration: a tutorial defines one function for each framework, under an ``if``.
* Our own modules are read and not checked again: `make types` does that.
"""

import json
import sys
from pathlib import Path

import pytest
from code_blocks import BLOCKS, CONTEXTS, ROOT
from processes import run_python

DOCUMENTS = ("README.md", "docs/index.md", "docs/reference/neutral.md")
SCRIPTS = [*(ROOT / "docs/tutorials").glob("*.py"), *(ROOT / "docs/course").glob("*.py")]
OURS = (ROOT, ROOT / "backends", ROOT / "tools")
UNTYPED = (
    *("torch", "tensorflow", "keras", "paddle", "autograd", "autograd/numpy", "sklearn"),
    *("jax", "flax", "optax"),
)

MYPY = """
[mypy]
strict = True
allow_untyped_defs = True
allow_incomplete_defs = True
allow_untyped_calls = True
python_version = 3.10
mypy_path = {paths}
[mypy-ampbridge.*,ampbridge_numpy.*,ampbridge_torch.*,ampbridge_tensorflow.*,ampbridge_paddle.*,ampbridge_jax.*]
follow_imports = silent
"""


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents' blocks as modules, and stubs of the frameworks in which every name is ``Any``."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "blocks").mkdir()
    for number, block in enumerate(block for block in BLOCKS if block.document in DOCUMENTS):
        code = CONTEXTS.get(block.key, "") + block.code
        (folder / "blocks" / f"block_{number}.py").write_text(code)
    for package in UNTYPED:
        stub = folder / "stubs" / package / "__init__.pyi"
        stub.parent.mkdir(parents=True)
        stub.write_text("from typing import Any\ndef __getattr__(name: str) -> Any: ...\n")
    return folder


def test_mypy_strict(folder):
    settings = folder / "mypy.ini"
    settings.write_text(MYPY.format(paths=":".join(map(str, (*OURS, folder / "stubs")))))
    kept = ("--cache-dir", ROOT / "build" / "mypy_of_documents")
    run_python("-m", "mypy", "--config-file", settings, *kept, *checked(folder))


def test_pyright(folder):
    settings = {
        "include": [str(path) for path in checked(folder)],
        "typeCheckingMode": "standard",
        "reportRedeclaration": False,
        "stubPath": str(folder / "stubs"),
        "extraPaths": [str(path) for path in OURS],
        "pythonVersion": "3.10",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    # The interpreter's path: pyright asks it where packages are.
    run_python("-m", "basedpyright", "--project", folder, "--pythonpath", sys.executable)


def checked(folder: Path) -> list[Path]:
    found = [*sorted((folder / "blocks").glob("*.py")), *SCRIPTS]
    assert len(found) == 10 + 6 + 6
    return [*found, Path(__file__).with_name("typed_use.py")]
