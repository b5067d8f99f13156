"""Saving a training, and going on with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ampbridge.adapters.roles import cannot

if TYPE_CHECKING:
    import numpy.typing as npt

    from ampbridge.adapters.backend import Model, Optimizer
    from ampbridge.checkpoints.weights import Weight


class OptimizerState(NamedTuple):
    """The state of an optimizer: arrays by name, and plain JSON values."""

    slots: Mapping[str, npt.NDArray[Any]]
    settings: Mapping[str, Any]


class Saving(Protocol):
    """Weights, and the state of an optimizer, by name. By default none of it can be read or written."""

    name: str

    def weights(self, model: Model) -> list[Weight]:
        """Descriptions of a model's parameters and buffers, in its order; names are unique."""
        raise cannot(self.name, _SAVE, _SAVE_HINT)

    def read_weights(self, model: Model) -> dict[str, npt.NDArray[Any]]:
        """Copies of the values of ``weights(model)`` by name; masters for low-precision parameters."""
        raise cannot(self.name, _SAVE, _SAVE_HINT)

    def write_weights(self, model: Model, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set ``weights(model)`` in place: the masters and their low-precision copies."""
        raise cannot(self.name, _SAVE, _SAVE_HINT)

    def read_optimizer(self, optimizer: Optimizer, model: Model) -> OptimizerState:
        """Copies of the slots and counters, and the settings that change during a run (learning rates).

        Slots have the names of the model's weights. They also contain the values of the optimizer's
        parameters that are outside of the model, named by ``outside.name_of`` and their index.

        Raises:
            UnsupportedError: for an optimizer with other kinds of state.
        """
        raise cannot(self.name, _SAVE, _SAVE_HINT)

    def write_optimizer(self, optimizer: Optimizer, model: Model, state: OptimizerState) -> None:
        """Restore exactly what ``read_optimizer`` read, also before the optimizer's first step.

        Raises:
            StateError: if the state does not fit: a slot is missing or has another shape. The optimizer
                may then be changed in part.
        """
        raise cannot(self.name, _SAVE, _SAVE_HINT)

    def on_one_rank(self, model: Model, action: Callable[[], None]) -> None:
        """Call ``action``, which writes files, on one of the ranks that train ``model`` together.

        Every one of these ranks calls it and waits until ``action`` is done. The default is for a
        single rank.

        Raises:
            StateError: on the other ranks, if ``action`` failed. Its own rank raises its own error.
        """
        action()

    def records(self, optimizer: Optimizer) -> Sequence[Any]:
        """Objects in which the framework keeps records of the optimizer's slots, besides its attributes.

        They are remembered with it, and put back if something fails. The default has none.
        """
        return ()


_SAVE = "read and write weights and slots"
_SAVE_HINT = (
    "step.state_dict(), for the scaler and the counters; and the framework's own files for the rest"
)
