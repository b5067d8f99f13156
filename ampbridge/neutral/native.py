"""The part of ``ampbridge.neutral`` that each framework has: ``native`` of its adapter's module ``neutral``.

The checks, the defaults and the messages are in this package. A native method is called with
arguments that have been checked.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from ampbridge.adapters import registry
from ampbridge.adapters.backend import Array, Backend, Model, Optimizer
from ampbridge.adapters.tracing import called_as_it_is, constant_result
from ampbridge.errors import UnsupportedError
from ampbridge.neutral.weights import Weights


class Native(Protocol):
    """What an adapter's module ``neutral`` has as ``native``; ``modules.Native`` has more of it."""

    @abstractmethod
    def mlp(self, weights: Weights, inputs: Sequence[int], activation: str) -> Model:
        """A model with these weights; ``inputs`` is the shape of one input, without the batch."""

    @abstractmethod
    def convnet(self, weights: Weights, inputs: Sequence[int], activation: str) -> Model:
        """A model with these weights; ``inputs`` is (channels, height, width)."""

    @abstractmethod
    def transformer(self, weights: Weights, heads: int, causal: bool) -> Model:
        """A model with these weights."""

    @abstractmethod
    def optimizer(self, name: str, model: Model, settings: Mapping[str, Any]) -> Optimizer:
        """An optimizer of the class ``name`` for the model's trainable parameters, of which it has some.

        ``optimizers.DEFAULTS`` has its settings.
        """

    @abstractmethod
    def rates(self, optimizer: Optimizer) -> list[float] | None:
        """The learning rates of an optimizer's groups; None if they cannot be set."""

    @abstractmethod
    def set_rates(self, optimizer: Optimizer, rates: Sequence[float]) -> None:
        """Set the learning rates of the groups. Does not wait for the device."""

    @abstractmethod
    def tensor(self, x: Any, like: Array) -> Array:
        """A NumPy array, or a list of numbers, as a tensor on the device of ``like``; a tensor as it is."""

    @abstractmethod
    def at_hand(self, x: Array) -> npt.NDArray[Any] | None:
        """The values of ``x``, if reading them does not wait for a device, and nothing is traced."""

    def host(self, x: Array) -> npt.NDArray[Any]:
        """The values of ``x`` in their own dtype. Waits for the device."""
        return np.asarray(x)

    def rows(self, x: Array, indices: npt.NDArray[Any]) -> Array:
        """The entries of ``x`` along its first axis at ``indices``."""
        return x[indices]

    @abstractmethod
    def cross_entropy(self, logits: Array, labels: Array, axis: int, ignore_index: int) -> Array:
        """The mean over the labels that are not ``ignore_index``; ``axis`` counts from 0."""

    @abstractmethod
    def mse_loss(self, prediction: Array, target: Array) -> Array:
        """The mean over all elements, of equal shapes."""

    def forward(self, model: Model, inputs: Sequence[Any]) -> Any:
        """Call the model in the mode in which it is trained."""
        return model(*inputs)

    @abstractmethod
    def inference(self, model: Model, x: Any) -> Any:
        """Call the model in evaluation mode, without gradients; modes are restored."""


@called_as_it_is
def native_of(obj: object) -> Native:
    """The native part for the framework of a model, an optimizer or a tensor.

    Raises:
        BackendNotFoundError: if it belongs to no framework.
        UnsupportedError: if the adapter has no such module.
    """
    return _loaded[_name_of(type(obj)) or registry.framework_of(obj)]


_loaded: dict[str, Native] = {}


# A name, because torch.compile takes no other object for a constant.
@constant_result
def _name_of(kind: type) -> str | None:
    """The framework of a class, whose native part is in ``_loaded`` now; None for none."""
    name = registry.framework_of_type(kind)
    if name is not None:
        _loaded[name] = native_of_backend(name)
    return name


def native_of_backend(backend: str | Backend) -> Native:
    """The native part of a backend.

    Raises:
        BackendNotFoundError, BackendLoadError: for a backend that cannot be used.
        UnsupportedError: if the adapter has no such module.
    """
    name = registry.backend(backend).name
    module = registry.adapter_module(name, "neutral")
    if module is None:
        msg = f"The adapter of the backend {name!r} has no module `neutral`.\n"
        raise UnsupportedError(
            msg + "Hint: native models, losses and optimizers; amp.train_step takes them."
        )
    return cast(Native, module.native)
