"""Several ranks: they agree on an overflow, average the loss, and one of them writes files.

In fleet's data-parallel mode the backward pass averages gradients over all ranks, inf and NaN with
them. In its other modes a rank has gradients of its own: of its data, which the optimizer's ``step``
averages later, or of its parts of weights. There the ranks agree on the overflow before anyone steps,
as ``fleet.distributed_scaler`` does for Paddle's own scaler.
"""

from __future__ import annotations

from collections.abc import Callable

import paddle

from ampbridge.adapters.backend import FINITE, INF, NAN, Model, Optimizer
from ampbridge.adapters.ranks import act_for_all
from ampbridge_paddle.step.hybrid_groups import check_optimizer, gradients_differ, is_wrapped

# What any rank found goes before all that stands ahead of it: the maximum over the ranks' places.
_PRECEDENCE = (FINITE, NAN, INF)


def agree(found: int, optimizer: Optimizer | None) -> int:
    """The overflow of all ranks, INF before NAN: one int32, reduced with MAX. Reads from the device.

    All of them, as fleet's groups together are all: the data-parallel ranks, too, have not averaged
    their gradients yet.
    """
    check_optimizer(optimizer)
    if not gradients_differ():
        return found
    place = paddle.to_tensor([_PRECEDENCE.index(found)], dtype="int32")
    paddle.distributed.all_reduce(place, op=paddle.distributed.ReduceOp.MAX)
    return _PRECEDENCE[int(place.item())]


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
