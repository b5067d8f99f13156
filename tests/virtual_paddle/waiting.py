"""How often a step waits for the device: copies from the device to the host, counted by the device.

    python tests/virtual_paddle/waiting.py --write

writes the table into docs/performance.md; ``test_host_reads.py`` holds the page to it.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "paddle")]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Paddle's, of a missing ccache
    import virtual_gpu

import numpy as np  # noqa: E402
import paddle  # noqa: E402
from paddle import nn  # noqa: E402
from paddle_native_scaler import without_print  # noqa: E402

import ampbridge as amp  # noqa: E402

DOCUMENT = Path(__file__).parents[2] / "docs/performance.md"

# Scales of the loss; what overflows does so at half the scale, too.
FINITE, OVERFLOWING = 2.0**8, 2.0**24
Step = Callable[[Any, Any], Any]


def model() -> nn.Layer:
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.ReLU(),
        nn.LayerNorm(16),
        nn.Linear(16, 16),
        nn.GELU(),
        nn.Linear(16, 4),
    )


def loss_fn(net: nn.Layer, x: Any, y: Any) -> Any:
    return nn.functional.cross_entropy(net(x), y) * 100.0  # so that the larger scale overflows


def trained(
    policy: str = "O1:float16", optimizer: str = "AdamW", **settings: Any
) -> Callable[[float], Step]:
    def made(scale: float) -> Step:
        net = model()
        stepped = getattr(paddle.optimizer, optimizer)(0.01, parameters=net.parameters())
        scaler = None if "bfloat16" in policy else amp.GradScaler(scale)
        return amp.train_step(loss_fn, net, stepped, policy=policy, scaler=scaler, **settings)

    return made


def with_its_loss_read(scale: float) -> Step:
    step = trained()(scale)
    return lambda x, y: float(step(x, y).loss)


def by_hand(scale: float) -> Step:
    net = model()
    optimizer = paddle.optimizer.AdamW(0.01, parameters=net.parameters())
    scaler = amp.GradScaler(scale)

    def step(x: Any, y: Any) -> None:
        with amp.autocast("O1:float16"):
            loss = loss_fn(net, x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()

    return step


def paddle_s_own(scale: float) -> Step:
    net = model()
    optimizer = paddle.optimizer.AdamW(0.01, parameters=net.parameters())
    scaler = paddle.amp.GradScaler(init_loss_scaling=scale, decr_every_n_nan_or_inf=1)

    def step(x: Any, y: Any) -> None:
        with paddle.amp.auto_cast(dtype="float16"):
            loss = loss_fn(net, x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        with without_print():
            scaler.update()
        optimizer.clear_grad()

    return step


CASES = {
    "`train_step`, O1 float16, AdamW": trained(),
    "the same, SGD": trained(optimizer="SGD"),
    "O2 float16, AdamW": trained("O2:float16"),
    "O1 bfloat16, no scaler": trained("O1:bfloat16"),
    "`clip_norm=1.0`": trained(clip_norm=1.0),
    "`accumulate=4`, the four calls": trained(accumulate=4),
    '`accumulate=4, on_overflow="drop_microbatch"`, the four calls': trained(
        accumulate=4, on_overflow="drop_microbatch"
    ),
    "`name_overflows=True`": trained(name_overflows=True),
    "`compile=True`": trained(compile=True),
    "`train_step`, and `result.loss` read at each step": with_its_loss_read,
    "a loop by hand with `GradScaler`": by_hand,
    "Paddle's own loop, its own `GradScaler`": paddle_s_own,
}


def reads(made: Callable[[float], Step], scale: float, calls: int) -> int:
    """Of one step in the middle of a training."""
    rng = np.random.default_rng(0)
    x = paddle.to_tensor(rng.standard_normal((16, 8)).astype(np.float32))
    y = paddle.to_tensor(rng.integers(0, 4, 16))
    step = made(scale)
    for _ in range(calls):  # the first decorates the model, and makes the optimizer's slots
        step(x, y)
    with virtual_gpu.watched() as seen:
        for _ in range(calls):
            step(x, y)
    return seen.reads


def row(case: str) -> str:
    calls = 4 if "four calls" in case else 1
    finite = reads(CASES[case], FINITE, calls)
    has_scaler = "no scaler" not in case
    overflowing = str(reads(CASES[case], OVERFLOWING, calls)) if has_scaler else ""
    return f"| {case} | {finite} | {overflowing} |".replace("  ", " ")


MARK = re.compile(
    r"(<!-- counted: host reads, paddle -->\n).*(<!-- end of host reads, paddle -->\n)", re.S
)


def table() -> str:
    head = "| what is run | reads in a step | in a skipped one |\n|---|---|---|\n"
    command = "`python tests/virtual_paddle/waiting.py --write`, on the virtual device.\n"
    return f"\n{command}\n{head}" + "".join(f"{row(case)}\n" for case in CASES) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        print(table())
    else:
        page = DOCUMENT.read_text(encoding="utf-8")
        counted = table()
        page = MARK.sub(lambda found: found[1] + counted + found[2], page)
        DOCUMENT.write_text(page, encoding="utf-8")
