"""Write the support table of the README by asking each backend what it does.

    python scripts/write_tables.py            writes it
    python scripts/write_tables.py --check    exits with 1 if it is not what stands there

Each backend answers in a process of its own, through its conformance harness.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import ampbridge as amp
from ampbridge import oplists
from ampbridge.scale_rule import HostStore, ScaleState

README = Path(__file__).parents[1] / "README.md"
BEGIN = "<!-- support table: written by scripts/write_tables.py -->\n"
END = "<!-- end of support table -->\n"

# Backend -> (its title, its harness, the namespace of its names in the op table)
BACKENDS = {
    "torch": ("PyTorch", "TorchHarness", "torch"),
    "tensorflow": ("TensorFlow/Keras", "TensorFlowHarness", "tensorflow"),
    "paddle": ("PaddlePaddle", "PaddleHarness", "paddle_ops"),
    "numpy": ("NumPy", "NumpyHarness", "numpy"),
}


def answers(name: str) -> dict[str, str]:
    """What one backend does on this machine's CPU, row by row."""
    _, harness_name, namespace = BACKENDS[name]
    harness = getattr(importlib.import_module(f"ampbridge_{name}.testing"), harness_name)()
    backend = harness.backend
    store = backend.scale_store(ScaleState(1.0, 0, 0, 0), harness.array([1.0]))
    return {
        "versions": versions(name),
        "O1 float16 on a CPU": region(backend, amp.Policy("O1")),
        "O1 bfloat16 on a CPU": region(backend, amp.Policy("O1", "bfloat16")),
        "list sets": list_sets(backend),
        f"canonical ops with a name here, of {len(oplists.ops())}": str(
            sum(namespace in op.names for op in oplists.ops().values())
        ),
        "`train_step(compile=...)`": compilation(harness),
        "gradients live": "beside the parameters" if harness.stores_gradients else "as values",
        "loss scale lives": "on the host" if isinstance(store, HostStore) else "in variables",
    }


def versions(name: str) -> str:
    """The range that the extra asks for; NumPy is a dependency of the core."""
    wanted = [line.partition(";") for line in requires("ampbridge") or ()]
    for requirement, _, condition in wanted:
        extra = f"extra == '{name}'" in condition
        if requirement.startswith(name) and (extra or not condition):
            return f"`{requirement.strip()}`"
    raise LookupError(name)


def region(backend: amp.Backend, policy: amp.Policy) -> str:
    """How a region of ``policy`` is honoured."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        open_region(backend, policy)
    warned.extend(w.category for w in caught)
    return "simulated" if amp.SimulationWarning in warned else "yes"


warned: list[type[Warning]] = []  # so far: a simulation is announced once a process


def list_sets(backend: amp.Backend) -> str:
    """The list sets that a region accepts."""
    accepted = []
    for lists in oplists.LIST_SETS:
        if not refused(lambda lists=lists: open_region(backend, amp.Policy(lists=lists))):
            accepted.append(lists)
    return "all" if len(accepted) == len(oplists.LIST_SETS) else ", ".join(accepted)


def open_region(backend: amp.Backend, policy: amp.Policy) -> None:
    with backend.autocast(policy):
        pass


def refused(call: Callable[[], Any]) -> bool:
    try:
        call()
    except amp.UnsupportedError:
        return True
    return False


def compilation(harness: Any) -> str:
    """What becomes of ``compile``."""
    backend = harness.backend
    if refused(lambda: backend.compile(lambda loss_fn: loss_fn, lambda: None)):
        return "eager; `True` is refused"
    return "compiled by default" if backend.compiles_by_default else "eager by default"


def ask(name: str) -> dict[str, str]:
    command = [sys.executable, __file__, "--answer", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    result: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return result


def table() -> str:
    """The table in Markdown, a row for each question."""
    columns = {name: ask(name) for name in BACKENDS}
    titles = [BACKENDS[name][0] for name in columns]
    lines = ["| | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    for row in next(iter(columns.values())):
        lines.append(f"| {row} | " + " | ".join(c[row] for c in columns.values()) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    parser.add_argument("--answer", choices=BACKENDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        print(json.dumps(answers(options.answer)))
        return 0
    text = README.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    wanted = before + BEGIN + table() + END + after
    if options.check:
        return int(wanted != text)
    README.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
