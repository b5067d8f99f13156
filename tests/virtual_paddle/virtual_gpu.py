"""The virtual device of this process. Import it before anything else imports Paddle.

Importing it loads the device's library into Paddle and makes it the present device.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import building

# Paddle loads what lies there when it is imported, that is, for the first time in this process.
if "paddle.base.core" in sys.modules:
    raise ImportError("paddle has been imported already, without the virtual device")
_FOLDER = building.built()
os.environ["CUSTOM_DEVICE_ROOT"] = str(_FOLDER)

import paddle  # noqa: E402

NAME = "virtual_gpu"

_library = ctypes.CDLL(str(_FOLDER / building.LIBRARY))
_library.virtual_gpu_calls.restype = ctypes.c_char_p
for _counter in (_library.virtual_gpu_reads, _library.virtual_gpu_writes):
    _counter.restype = ctypes.c_long


@dataclass
class Seen:
    """What the device did in a block.

    Attributes:
        reads: copies from the device to the host; the host waits for each.
        writes: copies from the host to the device.
        calls: kernels with the dtype that they ran in, such as "matmul float16"; casts as
            "cast float32->float16".
    """

    reads: int = 0
    writes: int = 0
    calls: Counter[str] = None  # type: ignore[assignment]


@contextmanager
def watched() -> Iterator[Seen]:
    """Look what the device does in the block; the result is there when it ends."""
    seen = Seen()
    reads, writes, before = _library.virtual_gpu_reads(), _library.virtual_gpu_writes(), _calls()
    try:
        yield seen
    finally:
        seen.reads = _library.virtual_gpu_reads() - reads
        seen.writes = _library.virtual_gpu_writes() - writes
        seen.calls = _calls() - before


def _calls() -> Counter[str]:
    lines = _library.virtual_gpu_calls().decode().splitlines()
    return Counter({call: int(count) for call, count in (line.rsplit(" ", 1) for line in lines)})


class _AsBuiltWithCuda:
    """``paddle`` as a module of Paddle's sees it in a build with CUDA."""

    def __getattr__(self, name: str) -> Any:
        return _yes if name == "is_compiled_with_cuda" else getattr(paddle, name)


def _yes() -> bool:
    return True


def _answer_as_a_gpu() -> None:
    """Two questions that Paddle's Python asks of the build, or of a device by its vendor's name."""
    # F.linear calls linear_v2 in a CUDA build, with the bias inside; else matmul and add.
    sys.modules["paddle.nn.functional.common"].paddle = _AsBuiltWithCuda()  # type: ignore[attr-defined]
    auto_cast = sys.modules["paddle.amp.auto_cast"]
    auto_cast._is_custom_device_bfloat16_supported = _yes  # type: ignore[attr-defined]


_answer_as_a_gpu()
paddle.set_device(NAME)
