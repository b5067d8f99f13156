"""Check every name of the op table against an installed framework.

    python scripts/check_op_names.py torch

Prints the names that the framework does not have and exits with 1 if there are any that are not
known gaps. One framework a process: TensorFlow and Paddle cannot share one.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from functools import reduce
from typing import Any

from ampbridge.policies.op_table import ops

# Names that stand in the table because a framework's own list has them, though nothing in
# Paddle ever dispatches under them: their list entries are dead.
KNOWN_GAPS = {
    "paddle": {
        "pnorm": "list entry; dispatched as p_norm",
        "softmin": "list entry; a Python composite",
        "triplet_margin_loss": "list entry; a Python composite",
    },
}


def has_attribute(path: str) -> bool:
    """Whether a dotted name resolves: ``torch.nn.functional.linear``, ``tf.nn.softmax``."""
    root, *rest = path.split(".")
    module = importlib.import_module({"tf": "tensorflow"}.get(root, root))
    try:
        reduce(getattr, rest, module)
    except AttributeError:
        return False
    return True


def torch_checks() -> dict[str, Callable[[str], bool]]:
    import torch

    registered = {
        name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names()
    }
    return {"torch": has_attribute, "aten": registered.__contains__}


def paddle_checks() -> dict[str, Callable[[str], bool]]:
    import paddle
    from paddle.base import core

    dispatched = set(core.get_all_op_names())
    dispatched |= {core._get_phi_kernel_name(name) for name in dispatched}
    eager_ops = set(dir(core.eager.ops)) | set(dir(paddle._C_ops))
    return {
        # a name without a kernel mapping of its own is dispatched under its eager name, where an
        # underscore at the end marks the variant that works in place
        "paddle": lambda name: not {name, f"{name}_"}.isdisjoint(dispatched | eager_ops),
        "paddle_ops": eager_ops.__contains__,
        "paddle_api": has_attribute,
    }


def tensorflow_checks() -> dict[str, Callable[[str], bool]]:
    import keras
    import tensorflow as tf

    return {
        "tensorflow": lambda name: hasattr(tf.raw_ops, name),
        "keras_layers": lambda name: hasattr(keras.layers, name),
        "keras_ops": has_attribute,
        "tensorflow_api": has_attribute,
    }


def numpy_checks() -> dict[str, Callable[[str], bool]]:
    return {"numpy": has_attribute}


def jax_checks() -> dict[str, Callable[[str], bool]]:
    """What a trace sees: primitives, jitted functions, and those with derivatives of their own."""
    import jax
    import jax.scipy.linalg
    import jax.scipy.signal
    import jax.scipy.special
    from jax.extend.core import Primitive

    jitted = type(jax.jit(abs))
    modules = [module for name, module in sys.modules.items() if name.startswith("jax._src.")]
    seen = {"_einsum"}  # jitted at each call
    for value in [value for module in modules for value in vars(module).values()]:
        if isinstance(value, Primitive):
            seen.add(value.name)
        elif isinstance(value, (jitted, jax.custom_jvp, jax.custom_vjp)):
            seen.add(value.__name__)
    return {"jax": seen.__contains__, "jax_api": has_attribute}


CHECKS: dict[str, Callable[[], dict[str, Any]]] = {
    "torch": torch_checks,
    "paddle": paddle_checks,
    "tensorflow": tensorflow_checks,
    "numpy": numpy_checks,
    "jax": jax_checks,
}


def missing_names(framework: str) -> dict[str, set[str]]:
    """The table's names that the installed ``framework`` lacks, by namespace."""
    missing = {}
    for namespace, exists in CHECKS[framework]().items():
        names = {name for op in ops().values() for name in op.names.get(namespace, ())}
        if gone := {name for name in names if not exists(name)}:
            missing[namespace] = gone
    return missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=CHECKS)
    framework = parser.parse_args().framework
    unknown = 0
    for namespace, names in missing_names(framework).items():
        for name in sorted(names):
            why = KNOWN_GAPS.get(namespace, {}).get(name)
            unknown += why is None
            print(f"{namespace}: {name}: {why or 'NOT FOUND'}")
    print(f"{framework}: {unknown} names not found")
    return int(unknown > 0)


if __name__ == "__main__":
    sys.exit(main())
