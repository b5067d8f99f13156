"""The PyTorch backend of ampbridge. Importing it imports no framework.

``checkpoint`` is ``torch.utils.checkpoint.checkpoint`` for use inside a region: it recomputes under
the lists under which it computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["checkpoint"]


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``torch.utils.checkpoint.checkpoint`` whose recomputation follows the policy of the call.

    Takes its arguments; ``use_reentrant`` is False unless it is given. Torch itself brings
    ``torch.autocast`` back for the recomputation, but not lists.
    """
    from torch.utils.checkpoint import checkpoint as native_checkpoint

    from ampbridge_torch.autocast.recomputing import under_present_lists

    return native_checkpoint(
        under_present_lists(function), *args, **{"use_reentrant": False, **kwargs}
    )
