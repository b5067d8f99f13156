"""Models that are the same on several ranks, of which one writes files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle

from ampbridge.adapters.ranks import act_for_all
from ampbridge_paddle.step.hybrid_groups import is_wrapped

Model = Any


def on_one_rank(model: Model, action: Callable[[], None]) -> None:
    """See ``Backend.on_one_rank``: on the first rank of the group that an engine gave to ``model``."""
    if not (is_wrapped(model) and paddle.distributed.is_initialized()):
        action()
        return
    group = getattr(model, "group", None)  # only DataParallel has one that is not all ranks
    first = 0 if group is None else group.ranks[0]

    def told(text: str | None) -> str | None:
        texts = [text]
        paddle.distributed.broadcast_object_list(texts, src=first, group=group)
        return texts[0]

    act_for_all(action, paddle.distributed.get_rank() == first, told)


def mean_loss(loss: paddle.Tensor, model: Model) -> paddle.Tensor:
    """See ``Backend.mean_loss``: one number, added up and divided."""
    if not (is_wrapped(model) and paddle.distributed.is_initialized()):
        return loss
    group = getattr(model, "group", None)
    total = loss.detach().clone()
    paddle.distributed.all_reduce(total, group=group)
    ranks = paddle.distributed.get_world_size() if group is None else group.nranks
    return total / ranks
