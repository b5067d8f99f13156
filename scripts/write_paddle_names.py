"""Write down under which names the installed Paddle looks ops up in its AMP lists, and the lists.

    python scripts/write_paddle_names.py            writes ampbridge/policies/data/paddle_names.json
    python scripts/write_paddle_names.py --check    exits with 1 if it is not what stands there

A forward op of ``paddle._C_ops`` is looked up under its name in the old static graph, where it had
one: ``matmul`` under ``matmul_v2``. An underscore at its end marks the variant that works in place.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ampbridge.checkpoints import atomic_files

FILE = Path(__file__).parents[1] / "ampbridge" / "policies" / "data" / "paddle_names.json"
ABOUT = (
    "The name under which paddle.amp's lists know an op -> the op in paddle._C_ops; paddlepaddle"
)


def names() -> dict[str, Any]:
    import paddle
    from paddle.amp import amp_lists
    from paddle.base import core

    old_names: dict[str, list[str]] = {}
    for old in core.get_all_op_names():
        old_names.setdefault(core._get_phi_kernel_name(old), []).append(old)
    eager = {*dir(core.eager.ops), *dir(paddle._C_ops)}
    forward = {
        name.removesuffix("_") for name in eager if not name.startswith("_") and "_grad" not in name
    }
    # Of "transpose" and "transpose2" it is the newer one.
    found = {max(old_names.get(op, [op])): op for op in forward}
    version = ".".join(paddle.__version__.split(".")[:2])
    return {
        "about": f"{ABOUT} {version}",
        "white": _listed(amp_lists.white_list()),
        "black": _listed(amp_lists.black_list()),
        "ops": dict(sorted(found.items())),
    }


def _listed(lists: dict[str, dict[str, set[str]]]) -> dict[str, list[str]]:
    """By level and dtype, as in a policy's short form."""
    return {
        f"{level}:{dtype}": sorted(lists[dtype][level])
        for level in ("O1", "O2")
        for dtype in ("float16", "bfloat16")
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    text = json.dumps(names(), indent=0) + "\n"
    if options.check:
        return int(text != FILE.read_text())
    atomic_files.write(FILE, text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
