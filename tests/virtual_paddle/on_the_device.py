"""``python tests/virtual_paddle/on_the_device.py script.py ...``: a script on Paddle's virtual device.

Or ``-m`` and a module, as Python itself takes it. "gpu" as the name of a device is the virtual one.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import building


def main() -> None:
    if not sys.argv[1:]:
        sys.exit(__doc__)
    if sys.argv[1] != "-m" and not Path(sys.argv[1]).is_file():
        sys.exit(
            f"There is no script {sys.argv[1]!r}.\n"
            "Hint: python tests/virtual_paddle/on_the_device.py path/to/train.py"
        )
    why_not = building.why_not()
    if why_not is not None:
        sys.exit(f"{why_not}.")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # several make Paddle print a warning
    os.environ.setdefault("GLOG_minloglevel", "2")  # else Paddle tells of each device
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Paddle's, of a missing ccache
        import virtual_gpu

    _rename("gpu", virtual_gpu.NAME)
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
        runpy.run_path(sys.argv[0], run_name="__main__")


def _rename(name: str, device: str) -> None:
    """Let ``paddle.set_device(name)`` and ``.to(name)`` mean ``device``."""
    import paddle

    place_of = paddle.device._convert_to_place

    def renamed(given: Any) -> Any:
        is_name = isinstance(given, str) and re.fullmatch(rf"{name}(:\d+)?", given)
        return place_of(given.replace(name, device) if is_name else given)

    # The module that users see is a copy of the one in which its functions look names up.
    for names in (vars(paddle.device), paddle.device.set_device.__globals__):
        names["_convert_to_place"] = renamed


if __name__ == "__main__":
    main()
