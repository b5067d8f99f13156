"""What the conformance suite needs to know of a framework.

A harness is written against the framework alone. It never goes through the backend, or a bug of
the backend would hide itself.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy.typing as npt

from ampbridge.adapters.backend import Array, Backend, LossFn, Model, Optimizer, Scalar

NumpyArray = npt.NDArray[Any]


class Harness(Protocol):
    """The suite's access to a framework, with the framework's own arrays, models and optimizers.

    The model is a perceptron of one hidden layer, ``relu(x @ w1 + b1) @ w2 + b2``, whose parameters
    are ``w1, b1, w2, b2``, in this order and in these shapes (weights ``(in, out)``).

    The suite decorates a layered model: the same computation with the framework's own layers, called
    as ``model(x)``. Its parameters have the framework's shapes.

    Attributes:
        backend: the backend under test.
        frameworks: root modules that the adapter may import, its own framework first. It must not
            import other registered frameworks.
        compiles: whether ``train_step(..., compile=True)`` works; if not, it must be refused.
        copies: whether ``copy.deepcopy(step)`` of the layered model works; if not, it must be refused.
        stores_gradients: whether a backward pass stores gradients in the parameters; if not,
            ``Backend.stored_gradients`` must be refused.
        simulated: whether low-precision results are stored in float32; ``dtype_of`` then returns
            "float32" for them.
        has_kernels: whether the device has low-precision kernels; if not, ``execution="native"`` must
            be refused.
        simulates: whether the device supports ``execution="simulated"``; if not, it must be refused.
        threads_apart: whether threads may be inside of native regions at the same time.
        leaves_dead_references: whether the framework's own caches keep a weak reference to each pass that
            is over, up to a number; they are not counted as what a step keeps.
        linear_kind: the class name of the framework's linear layer.
    """

    backend: Backend
    frameworks: Sequence[str]
    compiles: bool
    copies: bool
    stores_gradients: bool
    simulated: bool
    has_kernels: bool
    simulates: bool = True
    threads_apart: bool = True
    leaves_dead_references: bool = False
    linear_kind: str

    @abstractmethod
    def array(self, values: npt.ArrayLike, dtype: str = "float32") -> Array:
        """A native array; ``dtype`` is float16, bfloat16, float32, float64 or int64."""

    @abstractmethod
    def numpy(self, x: Array) -> NumpyArray:
        """A copy of its values, bit by bit; bfloat16 may come as float32."""

    def dtype_of(self, x: Array) -> str:
        """The name of the dtype in which ``x`` is stored; by default the last word of ``x.dtype``."""
        return str(re.findall(r"\w+", str(x.dtype))[-1])

    @abstractmethod
    def run(self, op: str, *inputs: Array) -> Array:
        """Run the framework's "matmul", "exp", "add" or "atan2"."""

    @abstractmethod
    def model(self, weights: Sequence[NumpyArray]) -> Model:
        """The perceptron with a copy of ``[w1, b1, w2, b2]``."""

    def hidden(self, model: Model, x: Array) -> Array:
        """``relu(x @ w1 + b1)``, which does not use ``w2`` and ``b2``; by default ``model.hidden(x)``."""
        return model.hidden(x)

    def forward(self, model: Model, x: Array) -> Array:
        """``hidden(model, x) @ w2 + b2``; by default ``model(x)``."""
        return model(x)

    @abstractmethod
    def layered(
        self,
        weights: Sequence[NumpyArray],
        normalization: Sequence[NumpyArray] | None = None,
        outputs: Callable[[Array], Any] | None = None,
    ) -> Model:
        """A model of two linear layers, "hidden" and "head", with a copy of ``[w1, b1, w2, b2]``.

        Between them comes a relu and, ahead of it, layer normalization over the hidden units named
        "norm", with these weights and biases and an epsilon of 1e-5, if ``normalization`` is given.
        A call returns ``outputs(prediction)``, if that is given. ``LayeredModel`` does so in its ``forward``.
        """

    def low_by_itself(self, weights: Sequence[NumpyArray], dtype: str) -> Model | None:
        """The layered model, made to run in ``dtype`` by the framework's own mixed precision.

        None if the framework has none on this device; this is the default.
        """
        del weights, dtype
        return None

    def scaled_by_itself(self, loss: Array) -> Array | None:
        """``loss``, multiplied by the framework's own scaler of 1024.

        None if the framework has none on this device; this is the default.
        """
        del loss
        return None

    def in_16_bits(self, weights: Sequence[NumpyArray], dtype: str) -> Model | None:
        """The layered model, its parameters made ``dtype`` as the framework's users do.

        None if parameters are float32 always; this is the default.
        """
        del weights, dtype
        return None

    @abstractmethod
    def details(self, model: Model, optimizer: Optimizer) -> Mapping[str, object]:
        """Everything except values that decorating may change: dtypes, policies, hooks, attributes.

        It covers the layered model's layers, parameters and optimizer, and is compared with ``==``.
        ``contents`` lists the attributes of one object.
        """

    def counting_traces(self, loss_fn: LossFn) -> tuple[LossFn, Callable[[], int]]:
        """``loss_fn``, and a function that returns how often a compiler has traced it.

        By default these are its calls while ``is_tracing``.
        """
        traced: list[LossFn] = []

        def counting(*arguments: Any) -> Any:
            if self.is_tracing():
                traced.extend([loss_fn])  # of append(), Paddle warns that no program has it
            return loss_fn(*arguments)

        return counting, lambda: len(traced)

    @abstractmethod
    def mean_squared_error(self, prediction: Array, target: Array) -> Array:
        """The mean over all elements, a scalar."""

    def parameters(self, model: Model) -> list[Array]:
        """The native ``w1, b1, w2, b2``; for a layered model in the order of the computation.

        By default these are ``model.parameters()``.
        """
        return list(model.parameters())

    @abstractmethod
    def optimizer(self, model: Model, kind: str, rate: float, *others: Model) -> Optimizer:
        """An optimizer for the parameters of ``model``, followed by those of ``others``.

        "sgd": SGD; "momentum": SGD with momentum 0.9, no dampening, no Nesterov; "adam": Adam.
        """

    @abstractmethod
    def freeze(self, model: Model, optimizer: Optimizer) -> None:
        """Make none of their parameters trainable any more, as the framework's users do.

        Where parameters cannot be frozen, take them away from the optimizer.
        """

    @abstractmethod
    def slots(self, optimizer: Optimizer) -> list[NumpyArray]:
        """The exact values of every array and counter of the optimizer; there may be none at first."""

    @abstractmethod
    def native_gradients(
        self, model: Model, loss_fn: LossFn, batch: Sequence[Array], scale: Callable[[Array], Array]
    ) -> list[Array]:
        """The gradients of ``scale(loss_fn(model, *batch))``, computed as the framework's users do.

        If the framework stores gradients in the parameters, they also stay there.
        """

    @abstractmethod
    def on_backward(self, x: Array, call: Callable[[], None]) -> Array:
        """``x``, with a hook that calls ``call`` when its gradient is computed."""

    @abstractmethod
    def is_differentiable(self, x: Array) -> bool:
        """Whether ``x`` is not detached."""

    def is_tracing(self) -> bool:
        """Whether the framework is tracing now; by default it never does."""
        return False

    @abstractmethod
    def ambient(self) -> Mapping[str, object]:
        """State of the framework that a region may change: modes, default dtypes, attributes by name.

        It is compared before and after with ``==``; use the identities of attributes, as
        ``attributes_of`` does.
        """


class LayeredModel:
    """What the models of ``Harness.layered`` have alike; a class of the framework's modules mixes it in.

    Attributes:
        linear, layer_norm: make a layer of so many inputs and outputs, and one of such a width.
        relu: calls the framework's function, by the name that a region may replace.
        fill: copies the values of all parameters, in the order of the computation.
    """

    linear: Callable[..., Any]
    layer_norm: Callable[..., Any]
    relu: Callable[[Any], Any]
    fill: Callable[[Sequence[NumpyArray]], None]

    def __init__(
        self,
        weights: Sequence[NumpyArray],
        normalization: Sequence[NumpyArray] | None = None,
        outputs: Callable[[Array], Any] | None = None,
    ) -> None:
        super().__init__()
        (into, inner), outer = weights[0].shape, weights[2].shape[1]
        self.hidden = self.linear(into, inner)
        self.norm = None if normalization is None else self.layer_norm(inner)
        self.head = self.linear(inner, outer)
        self.returned = outputs
        self.fill([*weights[:2], *(normalization or ()), *weights[2:]])

    def forward(self, x: Array) -> Any:
        x = self.hidden(x)
        if self.norm is not None:
            x = self.norm(x)
        x = self.head(self.relu(x))
        return x if self.returned is None else self.returned(x)


def attributes_of(*owners: Any) -> dict[str, int]:
    """The identity of each attribute of modules and classes, to check that all were restored."""
    return {
        f"{owner.__name__}.{name}": id(value)
        for owner in owners
        for name, value in vars(owner).items()
    }


def contents(name: str, obj: Any) -> dict[str, object]:
    """The attributes of ``obj``, and each element of those that are lists or dictionaries.

    Plain values stand for themselves, other objects for their identity.
    """
    result: dict[str, object] = {}
    for attribute, value in vars(obj).items():
        elements: Iterable[tuple[object, object]] = [("", value)]
        if isinstance(value, Mapping):
            elements = [("kind", type(value).__name__), *value.items()]
        elif isinstance(value, (list, tuple)):
            elements = [("kind", type(value).__name__), *enumerate(value)]
        for key, element in elements:
            index = key if isinstance(key, (int, str)) else id(key)
            result[f"{name}.{attribute}[{index}]"] = (
                element
                if isinstance(element, (int, float, str, type(None)))
                else f"{type(element).__name__} at {id(element)}"
            )
    return result


def untransposed(arrays: Sequence[NumpyArray], like: Sequence[NumpyArray]) -> list[NumpyArray]:
    """``arrays`` in the shapes of ``like``: frameworks differ in the layout of a linear layer's weight."""
    pairs = zip(arrays, like, strict=True)
    return [array if array.shape == one.shape else array.T for array, one in pairs]


def as_number(x: Scalar, harness: Harness) -> float:
    """A native scalar as a Python number."""
    return float(x if isinstance(x, (bool, int, float)) else harness.numpy(x))
