"""One side of the guide to porting: ``python measure_resnet.py paddle FOLDER COMMANDS``.

FOLDER is a copy of examples/porting/resnet, in which the guide's commands run, one a line, in one process.
Paddle comes first: it leaves the weights from which both sides start.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

import ampbridge as amp

# The trainer in mixed precision, by framework, and the weights it starts from.
TRAINERS = {
    "paddle": ("paddle_ampbridge", "initial.pdparams"),
    "tensorflow": ("keras_train", "initial.weights.h5"),
}


def main(framework: str, folder: str, commands: str) -> None:
    warnings.simplefilter("error", amp.AmpBridgeWarning)
    warnings.simplefilter("ignore", amp.SimulationWarning)  # Paddle has no 16-bit kernels on a CPU
    os.chdir(folder)
    sys.path.insert(0, folder)
    told = []
    for line in commands.splitlines():
        _, *sys.argv = shlex.split(line)
        with as_in_a_new_process(), messages() as records:
            runpy.run_path(sys.argv[0], run_name="__main__")
        told.append(records)
    results = {"told": told, "resumed": resumed(*TRAINERS[framework])}
    Path(f"{framework}.json").write_text(json.dumps(results))


def resumed(script: str, weights: str) -> Any:
    """The second epoch of a training that was stopped after the first."""
    trainer = import_module(script).Trainer
    config = yaml.safe_load(Path("config.yml").read_text())
    output = f"output/{script}_stopped"
    Path(output).mkdir()
    with as_in_a_new_process():
        first = trainer(config, output, weights)
        first.train_epoch(0)
        first.save(1)
    with as_in_a_new_process():
        second = trainer(config, output)
        second.resume()
        second.train_epoch(int(second.epoch))
    return second.history


@contextmanager
def as_in_a_new_process() -> Iterator[None]:
    """Paddle's names of parameters, by which its optimizers resume, count from 0 again."""
    if "paddle" not in sys.modules:
        yield
        return
    with import_module("paddle").utils.unique_name.guard():
        yield


@contextmanager
def messages() -> Iterator[list[str]]:
    """What a trainer logs in the block."""
    told: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("train")
    logger.addHandler(listener)
    yield told
    logger.removeHandler(listener)


if __name__ == "__main__":
    main(*sys.argv[1:])
