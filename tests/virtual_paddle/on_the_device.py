"""``python tests/virtual_paddle/on_the_device.py script.py ...``: a script on Paddle's virtual device.

Or ``-m`` and a module, as Python itself takes it.
"""

from __future__ import annotations

import os
import runpy
import sys
import warnings
from pathlib import Path


def main() -> None:
    os.environ.setdefault("GLOG_minloglevel", "2")  # else Paddle tells of each device
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Paddle's, of a missing ccache
        import virtual_gpu  # noqa: F401

    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
