"""The blocks of Python in the documents, and what each takes for granted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

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
    ("docs/new_backend.md", "import ampbridge as amp"): f"""
import sys
sys.path.insert(0, {str(ROOT / "docs/toy")!r})
""",
    ("docs/index.md", 'step = amp.train_step(loss_fn, model, optimizer, policy="O1")'): DIGITS,
    ("docs/examples.md", "model = MODELS[workload](backend, seed)"): """
import ampbridge as amp
from ampbridge import neutral
from ampbridge.workloads import digits
MODELS = {"mlp": lambda backend, seed: neutral.mlp(backend, (1, 8, 8), [128, 64], 10, seed=seed)}
backend, workload, seed, policy, scaler, compile = "numpy", "mlp", 0, "O1", "auto", "auto"
(training, _), batch_size, steps, report = digits.load(workload), 128, 3, print
def loss_fn(model, x, y):
    return neutral.cross_entropy(neutral.forward(model, x), y)
""",
    (
        "docs/porting.md",
        'reading = amp.port.read("train.py")            # config="x.yml", override=["AMP.level=O2"]',
    ): DIGITS
    + f"""
from pathlib import Path
Path("train.py").write_text(Path({str(ROOT / "examples/porting/paddle_guide.py")!r}).read_text())
""",
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
