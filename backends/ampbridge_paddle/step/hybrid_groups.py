"""Paddle's hybrid groups (``paddle.distributed.fleet``): their modes, what wraps what, what is refused."""

from __future__ import annotations

from typing import Any

import paddle

from ampbridge.adapters.backend import Model, Optimizer
from ampbridge.errors import UnsupportedError
from ampbridge_paddle._private import method, private

DATA, PIPELINE = "DATA_PARALLEL", "PIPELINE_PARALLEL"

# See ``_private``.
_WRAPPER = "paddle.distributed.fleet.meta_parallel.MetaParallelBase"
_OPTIMIZERS = "paddle.distributed.fleet.meta_optimizers.dygraph_optimizer"
_SHARES_PARAMETERS = f"{_OPTIMIZERS}.DygraphShardingOptimizer"
_SPLITS_PARAMETERS = f"{_OPTIMIZERS}.dygraph_sharding_optimizer.DygraphShardingOptimizerV2"
_GROUP_SHARDED = "paddle.distributed.sharding.group_sharded"
_STAGE_2, _STAGE_3 = f"{_GROUP_SHARDED}.GroupShardedStage2", f"{_GROUP_SHARDED}.GroupShardedStage3"
_OPTIMIZER_OF_STAGE_2 = f"{_GROUP_SHARDED}.GroupShardedOptimizerStage2"


def mode() -> str | None:
    """The name of fleet's ``ParallelMode``; None on one rank, and where fleet was not initialized."""
    try:
        groups = paddle.distributed.fleet.get_hybrid_communicate_group()
    except (AttributeError, AssertionError):  # fleet.init() has not been called
        return None
    named = vars(paddle.distributed.ParallelMode).items()
    names = {value: name for name, value in named if isinstance(value, int)}
    return names.get(groups.get_parallel_mode())


def gradients_differ() -> bool:
    """Whether ranks have gradients of their own until the optimizer steps."""
    return mode() not in (None, DATA)


# -- what is wrapped


def without_wrapper(model: Model) -> Model:
    """The user's model inside of what an engine has put around it, with the names the user knows."""
    return method("DataParallel", model, "_layers") if is_wrapped(model) else model


def is_wrapped(model: Model) -> bool:
    """Whether an engine has put something around the user's model."""
    if isinstance(model, paddle.DataParallel):
        return True
    return gradients_differ() and isinstance(model, private(_WRAPPER))


def without_wrappers(optimizer: Optimizer) -> Optimizer:
    """The user's optimizer inside of those that fleet has put around it."""
    return _inwards(optimizer)[-1]


def is_sharded(optimizer: Optimizer) -> bool:
    """Whether each rank keeps the slots of some parameters only."""
    return _sharding(optimizer) is not None


def _sharding(optimizer: Optimizer) -> Any:
    """The part of fleet's optimizer that shares the slots out among the ranks, or None."""
    wrappers = _inwards(optimizer)[:-1]
    if not wrappers:
        return None
    kinds = (private(_SHARES_PARAMETERS), private(_SPLITS_PARAMETERS))
    return next((each for each in wrappers if isinstance(each, kinds)), None)


def _inwards(optimizer: Optimizer) -> list[Optimizer]:
    """``optimizer``, and what is inside of it, down to the user's."""
    found = [optimizer]
    while not isinstance(found[-1], paddle.optimizer.Optimizer) and hasattr(
        found[-1], "_inner_opt"
    ):
        found.append(found[-1]._inner_opt)
    return found


# -- what is refused

_HINT_SHARDING = (
    "Hint: strategy.hybrid_configs = {'dp_degree': 1, 'sharding_degree': n}, without "
    "sharding_configs; then fleet.distributed_model and fleet.distributed_optimizer."
)


def check_model(like: Any) -> None:
    """Refuse engines that a step cannot serve; ``like`` may be a model of one.

    They are pipelines, which step by themselves, and ``group_sharded_parallel``.
    """
    if mode() == PIPELINE:
        raise UnsupportedError(
            "fleet was initialized for pipeline parallelism, where train_batch() runs and steps all "
            "micro-batches by itself, with a scaler of Paddle's.\n"
            "Hint: with amp.autocast(policy): model.train_batch([x, y], optimizer, scaler="
            "fleet.distributed_scaler(amp.GradScaler.like('paddle').to_native('paddle')))"
        )
    stages = private(_STAGE_2), private(_STAGE_3)
    if paddle.distributed.is_initialized() and isinstance(like, stages):
        _refuse_group_sharded(like)


def check_clipping() -> None:
    """Refuse to clip if ranks have gradients of their own."""
    if gradients_differ():
        raise UnsupportedError(
            f"Clipping under fleet's {mode()}: the optimizer puts the ranks' gradients together "
            "after that, as it steps.\n"
            "Hint: paddle.optimizer.AdamW(..., grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0)), which "
            "fleet.distributed_optimizer makes the norm over all ranks."
        )


def check_optimizer(optimizer: Optimizer | None) -> None:
    """Refuse optimizers that hold gradients in buffers of their own."""
    if optimizer is None or not paddle.distributed.is_initialized():
        return
    # Stage 3 leaves the user's optimizer as it is, but for its ``step``.
    step_is_of = getattr(optimizer.step, "__module__", None)
    in_stage_3 = step_is_of == private(_STAGE_3).__module__
    if isinstance(optimizer, private(_OPTIMIZER_OF_STAGE_2)) or in_stage_3:
        _refuse_group_sharded(optimizer)
    sharding = _sharding(optimizer)
    if sharding is None:
        return
    flags = ("tensor_fusion", "comm_overlap")
    if isinstance(sharding, private(_SPLITS_PARAMETERS)) or any(
        method("DygraphShardingOptimizer", sharding, flag) for flag in flags
    ):
        raise UnsupportedError(
            "sharding_configs with split_param, tensor_fusion or comm_overlap: gradients are in "
            f"buffers of {type(sharding).__name__}'s own, which a step does not fill.\n"
            + _HINT_SHARDING
        )


def _refuse_group_sharded(obj: Any) -> None:
    raise UnsupportedError(
        f"{type(obj).__name__} of group_sharded_parallel: gradients are in buffers of its own, which a "
        "step does not fill.\n" + _HINT_SHARDING
    )
