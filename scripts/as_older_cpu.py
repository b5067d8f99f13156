"""Run a command as on an older x86-64 CPU: each library is told to leave the newer instructions alone.

    python scripts/as_older_cpu.py avx2 python -m pytest tests/torch
    python scripts/as_older_cpu.py sse make test

What a library chose when it was compiled, or asks the CPU itself, stays as it is: TensorFlow's Eigen
and Paddle's own kernels have no such setting. On another processor than x86-64 nothing is run.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from pathlib import Path

SETS = {
    "avx2": {  # without AVX512 and AMX
        "ATEN_CPU_CAPABILITY": "avx2",  # torch's own kernels
        "ONEDNN_MAX_CPU_ISA": "AVX2",  # of torch, Paddle, and TensorFlow's products in float32
        "TF_ENABLE_ONEDNN_OPTS": "0",  # as TensorFlow chooses on such a CPU
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",  # torch, Paddle
        "OPENBLAS_CORETYPE": "Haswell",  # NumPy, SciPy
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    },
    "sse": {  # the least that the frameworks' kernels are compiled for
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "OPENBLAS_CORETYPE": "Nehalem",
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX",  # under SSE4_2 it cannot link its conversions of float16
    },
}
# NumPy's names of what it can do without.
NEWER = {"avx2": ("AVX512", "X86_V4"), "sse": ("AVX", "FMA", "F16C", "X86_V3", "X86_V4")}


def without_newer(instructions: str) -> str:
    """The features that this NumPy has kernels for and a CPU with ``instructions`` has not."""
    from numpy._core import _multiarray_umath

    return " ".join(
        name for name in _multiarray_umath.__cpu_dispatch__ if name.startswith(NEWER[instructions])
    )


def main(instructions: str, *command: str) -> None:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        print(f"{platform.machine()} has no {instructions}: nothing is run")
        return
    # Inductor finds compiled code by the graph alone, not by the instructions that it uses.
    inductor = Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}_{instructions}"
    os.environ.update(
        SETS[instructions],
        NPY_DISABLE_CPU_FEATURES=without_newer(instructions),
        TORCHINDUCTOR_CACHE_DIR=str(inductor),
    )
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
