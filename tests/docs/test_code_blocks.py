"""Every block of Python in the documents runs as it stands, in a process of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest
from processes import check_installed, run_python

import ampbridge as amp

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,})python\b.*?\n(?P<code>.*?)^(?P=indent)(?P=marks)$", re.S | re.M)  # fmt: skip # noqa: E501

# What a block takes for granted: (document, first line) -> the code before it.
DIGITS = """
import ampbridge as amp
from ampbridge import workloads
digits = workloads.find("digits-mlp")("numpy", 0)
model, optimizer, loss_fn = digits.model, digits.optimizer, digits.loss_fn
batches = digits.first(3)
"""
CONTEXTS = {
    ("README.md", "from ampbridge import lens"): DIGITS + "x, y = batches[0]\n",
    ("docs/examples.md", "model = getattr(native, workload)(weights.make(workload, seed))"): """
import ampbridge as amp
from ampbridge.workloads import digits, of_backend, weights
native, workload, seed, policy, scaler, compile = of_backend("numpy"), "mlp", 0, "O1", "auto", "auto"
(training, _), batch_size, steps, report = digits.load(workload), 128, 3, print
""",
    ("docs/porting.md", 'reading = amp.port.read("train.py")            # or source text'): DIGITS
    + f"""
from pathlib import Path
Path("train.py").write_text(Path({str(ROOT / "examples/porting/paddle_guide.py")!r}).read_text())
""",
}

# What does not run, and why. Its names are checked all the same.
FRAGMENTS = {
    (
        "README.md",
        'amp.train_step(loss_fn, model, optimizer, policy="O2:bfloat16")            '
        "# low parameters, float32 masters",
    ): "a line for each of several frameworks, with ... for what stands above",
    (
        "docs/porting.md",
        '"""SimpleNet of Paddle\'s guide to mixed precision, O1 with accumulated gradients, on a GPU.',
    ): "Paddle's own size, hours on a CPU; tests/port reads and ports it",
    (
        "docs/porting.md",
        'amp.Policy("O1", "bfloat16", lists="native").to_native("torch")       # torch.autocast(...)',
    ): "a line for each framework, and no two share a process; tests/*/test_native_policy.py",
}


class Block(NamedTuple):
    document: str
    code: str

    @property
    def key(self) -> tuple[str, str]:
        return self.document, self.code.splitlines()[0]


def blocks() -> Iterator[Block]:
    """Of the README and of every page but the tutorials, which are scripts."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for found in FENCE.finditer(path.read_text()):
            yield Block(path.relative_to(ROOT).as_posix(), dedent(found["code"]))


BLOCKS = list(blocks())
RUNNING = [block for block in BLOCKS if block.key not in FRAGMENTS]


@pytest.mark.parametrize(
    "block", RUNNING, ids=lambda block: f"{block.document}: {block.key[1]:.40}"
)
def test_it_runs(block, tmp_path):
    for framework in ("torch", "tensorflow", "paddle"):
        if re.search(
            rf"^import {framework.replace('tensorflow', '(tensorflow|keras)')}\b", block.code, re.M
        ):
            check_installed(framework)
    run_python("-c", CONTEXTS.get(block.key, "") + block.code, cwd=tmp_path)


def test_the_first_block_prints_what_the_readme_shows(tmp_path):
    text = (ROOT / "README.md").read_text()
    _, code, below = re.split(r"```python\n(.*?)```\n", text, maxsplit=1, flags=re.S)
    shown = re.match(r"\n((?: {4}.+\n)+)", below)
    assert shown is not None
    assert run_python("-c", code, cwd=tmp_path) == dedent(shown[1])


@pytest.mark.parametrize("key", FRAGMENTS, ids=str)
def test_a_fragment_names_what_there_is(key):
    (code,) = [block.code for block in BLOCKS if block.key == key]
    names = [dotted for node in ast.walk(ast.parse(code)) if (dotted := _of_ours(node))]
    for name in names:
        found = amp
        for part in name:
            found = getattr(found, part)


def _of_ours(node: ast.AST) -> list[str]:
    """``["Policy", "auto"]`` of ``amp.Policy.auto``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return parts if isinstance(node, ast.Name) and node.id == "amp" else []


def test_every_exception_is_of_a_block_that_is_there():
    assert {*CONTEXTS, *FRAGMENTS} - {block.key for block in BLOCKS} == set()
    assert (
        len({block.key for block in BLOCKS}) >= len(BLOCKS) - 3
    )  # the four of the first page begin alike
