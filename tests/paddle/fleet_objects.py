"""Objects of fleet's classes that were never set up, which takes several ranks or a GPU."""

from __future__ import annotations

from typing import Any

from paddle import nn

from ampbridge_paddle._private import private

_OPTIMIZERS = "paddle.distributed.fleet.meta_optimizers.dygraph_optimizer"
SHARDING = f"{_OPTIMIZERS}.DygraphShardingOptimizer"
SPLITTING = f"{_OPTIMIZERS}.dygraph_sharding_optimizer.DygraphShardingOptimizerV2"


def never_set_up(name: str, **attributes: Any) -> Any:
    """An object of the class that the adapter's table of private names has."""
    made = object.__new__(private(name))
    if isinstance(made, nn.Layer):
        nn.Layer.__init__(made)
    vars(made).update(attributes)
    return made


class Wrapper:
    """As fleet's outermost optimizer: it has what the one inside of it has, by the same name."""

    __module__ = "paddle.distributed.fleet"

    def __init__(self, optimizer: Any) -> None:
        self._inner_opt = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner_opt, name)


def sharded(optimizer: Any, name: str = SHARDING, **flags: bool) -> Wrapper:
    """What fleet makes of a user's optimizer, if ranks share its slots out."""
    flags = {"tensor_fusion": False, "comm_overlap": False, **flags}
    return Wrapper(never_set_up(name, _inner_opt=optimizer, **flags))
