"""Write the table of docs/support.md by asking each backend what it does.

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
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path
from string import ascii_letters
from typing import Any

import ampbridge as amp
from ampbridge.checkpoints import atomic_files
from ampbridge.policies import op_table
from ampbridge.scaling.scale_rule import HostStore, ScaleState

PAGE = Path(__file__).parents[1] / "docs" / "support.md"
BEGIN = "<!-- support table: written by scripts/write_tables.py -->\n"
END = "<!-- end of support table -->\n"

# Backend -> (its title, its harness)
BACKENDS = {
    "torch": ("PyTorch", "TorchHarness"),
    "tensorflow": ("TensorFlow, Keras", "TensorFlowHarness"),
    "paddle": ("PaddlePaddle", "PaddleHarness"),
    "jax": ("JAX", "JaxHarness"),
    "numpy": ("NumPy", "NumpyHarness"),
}

# Told by rows of their own, or different from one CPU to the next.
NOT_FROM_EXPLAIN = {"O1", "compile=True"}


def answers(name: str) -> dict[str, str]:
    """What one backend does on this machine's CPU, row by row."""
    harness = getattr(importlib.import_module(f"ampbridge_{name}.testing"), BACKENDS[name][1])()
    backend = harness.backend
    first = ScaleState(1.0, 0, 0, 0)
    store = backend.scale_store(first, harness.array([1.0])) or HostStore(first)
    explained = amp.explain("O1", backend)
    return {
        "versions": versions(name),
        f"canonical ops known here, of {len(explained.ops)}": str(
            sum(row.by != "absent" for row in explained.ops)
        ),
        "list sets": list_sets(backend),
        **{
            f"`{row.feature}`" if "=" in row.feature else row.feature: row.by
            for row in explained.features
            if row.feature not in NOT_FROM_EXPLAIN
        },
        "`train_step(compile=...)`": compilation(harness),
        "gradients live": "beside the parameters" if harness.stores_gradients else "as values",
        "loss scale lives": "on the host" if isinstance(store, HostStore) else "on the device",
    }


def versions(name: str) -> str:
    """The range that the extra asks for, without the package's name; NumPy is a dependency of the core."""
    wanted = [line.partition(";") for line in requires("ampbridge") or ()]
    for requirement, _, condition in wanted:
        extra = f"extra == '{name}'" in condition
        if requirement.startswith(name) and (extra or not condition):
            return f"`{requirement.strip().lstrip(ascii_letters)}`"
    raise LookupError(name)


def list_sets(backend: amp.Backend) -> str:
    """The list sets that are not refused."""
    accepted = []
    for lists in op_table.LIST_SETS:
        if not refused(lambda lists=lists: amp.explain(amp.Policy(lists=lists), backend)):
            accepted.append(lists)
    return "all" if len(accepted) == len(op_table.LIST_SETS) else ", ".join(accepted)


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
    text = PAGE.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    wanted = before + BEGIN + table() + END + after
    if options.check:
        return int(wanted != text)
    atomic_files.write(PAGE, wanted.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
