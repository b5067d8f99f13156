"""``python -m ampbridge_rehearse.virtual_cuda script.py ...``: a script on the virtual CUDA device.

Or ``-m`` and a module, as Python itself takes it.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from ampbridge_rehearse import virtual_cuda

USAGE = "usage: python -m ampbridge_rehearse.virtual_cuda (SCRIPT | -m MODULE) [ARGUMENT ...]"


def main() -> None:
    del sys.argv[0]
    if not sys.argv or sys.argv == ["-m"]:
        raise SystemExit(USAGE)
    virtual_cuda.install()
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
