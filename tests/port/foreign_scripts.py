"""The scripts of others that the tests of this folder look at. A process reads each of them once.

What is read is for every test that asks: a test changes nothing of it, and asks before it patches the code.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ampbridge import port

CORPUS = Path(__file__).parent / "corpus"
KINDS = frozenset({".py", ".json", ".yaml", ".yml"})
SNIPPETS = sorted(path for path in CORPUS.iterdir() if path.suffix in KINDS)
SCRIPTS = [path for path in SNIPPETS if path.suffix == ".py"]


@cache
def reading_of(file: Path) -> port.Reading:
    """What ``file`` says."""
    return port.read(file)


@cache
def rewriting_of(file: Path) -> port.Rewriting:
    """What becomes of ``file`` where its calls are replaced; the file stays."""
    return port.rewrite(file)
