"""Run a script of the gallery in several ways, in one process: importing a framework takes seconds.

    python run_gallery.py RUNS.json FOLDER

RUNS.json has ``{name: {"script": text, "options": [...]}}``. For each run its name, with what the script
printed and the losses that it differentiated itself, goes to FOLDER/ran.json. FOLDER/NAME becomes its
working directory.
"""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torchvision_ops

SCRIPTS = Path(__file__).parents[2] / "examples" / "gallery"


def main() -> None:
    """The command line."""
    sys.path.append(str(SCRIPTS))  # what lies beside them
    runs, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    declared = torchvision_ops.declare() if "peft" in str(runs) else []  # it imports torchvision
    ran = {name: run(folder / name, **each) for name, each in runs.items()}
    (folder / "ran.json").write_text(json.dumps(ran))
    del declared


def run(folder: Path, script: str, options: list[str]) -> dict[str, Any]:
    """What the script printed, and its own losses."""
    folder.mkdir()
    os.chdir(folder)
    if "keras" in sys.modules:
        sys.modules["keras"].utils.clear_session()  # graphs are ordered by the names of layers
    file = folder / "script.py"
    file.write_text(script)
    sys.argv = [str(file), *options]
    printed = io.StringIO()
    with redirect_stdout(printed), own_losses(script) as losses:
        runpy.run_path(str(file), run_name="__main__")
    return {"printed": printed.getvalue(), "losses": losses}


@contextmanager
def own_losses(script: str) -> Iterator[list[float]]:
    """What the script itself differentiates: in torch and Paddle by ``backward``, in flax in its ``step``."""
    losses: list[float] = []
    imported = re.findall(r"^(?:import|from) (torch|paddle|flax)\b", script, re.M)
    if not imported:
        yield losses
        return
    if imported[0] == "flax":
        owner, name = import_module("flax.nnx"), "jit"
        compiled = owner.jit

        def noted(function: Any) -> Any:
            run = compiled(function)

            def step(*arguments: Any) -> Any:
                losses.append(float(loss := run(*arguments)))
                return loss

            return step if function.__name__ == "step" else run

    else:
        owner, name = import_module(imported[0]).Tensor, "backward"
        backward = owner.backward

        def noted(loss: Any, *arguments: Any, **named: Any) -> None:
            losses.append(loss.item())
            backward(loss, *arguments, **named)

    with mock.patch.object(owner, name, noted):
        yield losses


if __name__ == "__main__":
    main()
