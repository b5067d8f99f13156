"""Layers that a backward pass runs again, where no region is open, and at O2 their weights are low.

Reversible networks, adjoints of differential equations and other functions with a backward of their own
do so. Torch's checkpoints open the regions of the forward pass again, and are none of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from ampbridge.adapters.calling_code import warn
from ampbridge.adapters.interrupts import LAST_OF_SEVERAL
from ampbridge.errors import first_of
from ampbridge.policies.policy import Policy, as_argument
from ampbridge_torch.autocast.casting import explain_backward
from ampbridge_torch.autocast.simulation import LOW_DTYPES
from ampbridge_torch.model.model_calls import casts_here


@contextmanager
def noticed(model: nn.Module, policy: Policy) -> Iterator[None]:
    """A block with a backward pass of ``model``. Warns of layers with low weights; an error names all.

    An error about dtypes has a hint where no layer ran again, too.
    """
    found: dict[str, bool] = {}
    others: set[str] = set()  # of no layer of the model
    names = {id(layer): name for name, layer in model.named_modules()}

    def look(layer: nn.Module, inputs: Any) -> None:
        if not casts_here():
            is_low = any(p.dtype in LOW_DTYPES for p in layer.parameters())
            name = names.get(id(layer)) or type(layer).__name__
            found.setdefault(name, is_low)
            if id(layer) not in names:
                others.add(name)

    try:
        with register_module_forward_pre_hook(look), LAST_OF_SEVERAL:
            yield
    except RuntimeError as error:
        if not found:
            explain_backward(error, policy)
        elif hasattr(error, "add_note"):
            error.add_note(_told([*found], others, policy))
        raise
    low = [name for name, is_low in found.items() if is_low]
    if low:
        warn(_told(low, others, policy))


def _told(names: list[str], others: set[str], policy: Policy) -> str:
    outermost = [n for n in names if not any(n.startswith(f"{other}.") for other in names)]
    own = [name for name in outermost if name not in others]
    keep = f"Policy(..., keep={own[:4]!r}); or, " if own and policy.level == "O2" else ""
    region = as_argument(policy.replace(keep=()))
    return (
        f"The backward pass runs layers again: {first_of(outermost)}. "
        f"No region is open there: their ops follow no rule of {policy!r}.\n"
        f"Hint: {keep}in the backward of the function that runs them, with amp.autocast({region}):"
    )
