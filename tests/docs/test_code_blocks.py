"""Every block of Python in the documents runs as it stands, in a process of its own."""

from __future__ import annotations

import ast
import re
from textwrap import dedent

import pytest
from code_blocks import BLOCKS, CONTEXTS, ROOT
from processes import check_installed, run_python

import ampbridge as amp

# What does not run, and why. Its names are checked all the same.
FRAGMENTS = {
    (
        "docs/porting.md",
        "scaler = paddle.amp.GradScaler(init_loss_scaling=1024, incr_every_n_steps=500)",
    ): "a part of a script of Paddle's own size, hours on a CPU; tests/port reads and ports it",
}

# Its libraries take seconds to import: tests/loops/test_page.py runs its blocks in one process.
ELSEWHERE = {"docs/adopters.md"}

FRAMEWORKS = {
    "torch": "torch",
    "tensorflow": "tensorflow|keras",
    "paddle": "paddle",
    "jax": "jax|flax|optax",
}
"""A framework, and the modules that a block imports if it needs it."""

RUNNING = [
    block for block in BLOCKS if block.key not in FRAGMENTS and block.document not in ELSEWHERE
]


@pytest.mark.parametrize(
    "block", RUNNING, ids=lambda block: f"{block.document}: {block.key[1]:.40}"
)
def test_it_runs(block, tmp_path):
    for framework, modules in FRAMEWORKS.items():
        if re.search(rf"^(import|from) ({modules})\b", block.code, re.M):
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
    # Of the first page five begin alike, and two more; two of the lens's.
    assert len({block.key for block in BLOCKS}) >= len(BLOCKS) - 6
