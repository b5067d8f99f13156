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
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

import ampbridge as amp

# The trainer in mixed precision, and its output.
TRAINERS = {"paddle": ("paddle_ampbridge", "paddle"), "tensorflow": ("keras_train", "keras")}


def main(framework: str, folder: str, commands: str) -> None:
    warnings.simplefilter("error", amp.AmpBridgeWarning)
    warnings.simplefilter("ignore", amp.SimulationWarning)  # Paddle has no 16-bit kernels on a CPU
    # Sums in one order: what resumes is compared to the bit.
    os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
    os.chdir(folder)
    sys.path.insert(0, folder)
    told = []
    for line in commands.splitlines():
        _, *sys.argv = shlex.split(line)
        with as_in_a_new_process(), messages() as records:
            runpy.run_path(sys.argv[0], run_name="__main__")
        told.append(records)
    trainer = resumed(*TRAINERS[framework])
    layers = getattr(trainer.model, "layers", ())  # Keras'
    results = {
        "told": told,
        "resumed": trainer.history,
        "dtypes": {type(layer).__name__: layer.compute_dtype for layer in layers},
    }
    Path(f"{framework}.json").write_text(json.dumps(results))


def resumed(script: str, output: str) -> Any:
    """A trainer after the second epoch, resumed from what lay there when that began."""
    config = yaml.safe_load(Path("config.yml").read_text())
    with as_in_a_new_process():
        trainer = import_module(script).Trainer(config, f"output/{output}_in_epoch_1")
        trainer.resume()
        trainer.train_epoch(int(trainer.epoch))
    return trainer


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
    """What a trainer logs in the block; a copy of its output is made when the second epoch begins."""
    told: list[str] = []

    def hear(record: logging.LogRecord) -> None:
        told.append(record.getMessage())
        if told[-1].startswith("epoch 1, batch 0:"):
            output = sys.argv[sys.argv.index("--output") + 1]
            shutil.copytree(output, f"{output}_in_epoch_1")

    listener = logging.Handler()
    listener.emit = hear  # type: ignore[method-assign]
    logger = logging.getLogger("train")
    logger.addHandler(listener)
    yield told
    logger.removeHandler(listener)


if __name__ == "__main__":
    main(*sys.argv[1:])
