"""What is trained to see mixed precision at work: a model with its optimizer, loss and batches.

A workload has a name, ``"digits-mlp"``, or is a Python file with a function

    def build(backend: str, seed: int) -> ampbridge.workloads.Workload: ...

that makes the same model from the same numbers in each framework that it knows. Recipes to train them
with have names, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from itertools import cycle, islice
from pathlib import Path
from types import ModuleType
from typing import Any

from ampbridge import neutral
from ampbridge.adapters import registry
from ampbridge.errors import ArgumentError, ArgumentTypeError, listed, nearest
from ampbridge.neutral.native import native_of_backend
from ampbridge.neutral.weights import Weights
from ampbridge.training.recipe import Recipe

DIGITS = {"digits-mlp": "mlp", "digits-conv": "conv", "digits-transformer": "transformer"}
NAMES = tuple(DIGITS)

RECIPES = {"digits": Path(__file__).parent / "data" / "digits.toml"}

PIXELS = (1, 8, 8)
BATCH_SIZE = 128
BATCHES = 180  # twenty times through the digits, each in a new order; longer runs begin again


@dataclass(frozen=True)
class Workload:
    """A model as it is before its first step, and what trains it.

    Attributes:
        model, optimizer: native, of one framework; nothing in them knows of mixed precision.
        loss_fn: ``loss_fn(model, *batch)``, as ``train_step`` takes it.
        batches: at least one; each the arguments of ``loss_fn`` behind the model. Arrays may be NumPy's.
        accuracy: the share of right answers on data that it was not trained on, by the present weights.
    """

    model: Any
    optimizer: Any
    loss_fn: Callable[..., Any]
    batches: Sequence[Sequence[Any]]
    accuracy: Callable[[], float] | None = None

    def first(self, steps: int) -> list[Sequence[Any]]:
        """``steps`` batches in their order, from the front again where there are fewer."""
        return list(islice(cycle(self.batches), steps))


Build = Callable[[str, int], Workload]


def find(name_or_file: str) -> Build:
    """What builds a workload: ``build(backend, seed)``; checked when it is called.

    Raises:
        ArgumentError: for a name that is none, or a file that cannot be run or has no ``build``.
    """
    if name_or_file in DIGITS:
        return partial(_checked, partial(_digits, DIGITS[name_or_file]), name_or_file)
    if not name_or_file.endswith(".py"):
        close = nearest(name_or_file, NAMES, 1) or ["digits-mlp"]
        msg = f"No workload {name_or_file!r}; allowed are {listed(NAMES)}, or a Python file.\n"
        raise ArgumentError(msg + f"Hint: {close[0]}")
    build = getattr(_module(Path(name_or_file)), "build", None)
    if not callable(build):
        msg = f"{name_or_file} has no function `build`.\n"
        raise ArgumentError(
            msg + "Hint: def build(backend: str, seed: int) -> ampbridge.workloads.Workload: ..."
        )
    return partial(_checked, build, name_or_file)


def recipe(name_or_file: str) -> Recipe:
    """A recipe that comes with ampbridge, by its name in ``RECIPES``, or that of a TOML file.

    Raises:
        RecipeError: as ``Recipe.load``.
    """
    return Recipe.load(RECIPES.get(name_or_file, name_or_file))


@dataclass(frozen=True)
class Digits:
    """The digits' models, their optimizer and their loss, native objects of one framework."""

    backend: str

    def mlp(self, weights: Weights) -> Any:
        """Two hidden layers over the 64 pixels."""
        return native_of_backend(self.backend).mlp(weights, PIXELS, "gelu")

    def conv(self, weights: Weights) -> Any:
        """Two convolutions with batch norm, the second of stride 2."""
        return native_of_backend(self.backend).convnet(weights, PIXELS, "gelu")

    def transformer(self, weights: Weights) -> Any:
        """One pre-norm encoder block over 16 tokens, then their mean."""
        return native_of_backend(self.backend).transformer(weights, heads=4, causal=False)

    @staticmethod
    def optimizer(model: Any, learning_rate: float = 0.1) -> Any:
        """SGD with a momentum of 0.9."""
        return neutral.optimizer("sgd", model, lr=learning_rate)

    @staticmethod
    def loss(model: Any, x: Any, y: Any) -> Any:
        """What ``train_step`` takes."""
        return neutral.cross_entropy(neutral.forward(model, x), y)

    @staticmethod
    def predict(model: Any, x: Any) -> Any:
        """The most likely class of each input, with batch norm's running statistics: a NumPy array."""
        return neutral.predict(model, x, size=len(x)).argmax(axis=1)


def of_backend(backend: str) -> Digits:
    """The digits' models in a framework, each built from the same initial weights.

    Raises:
        UnsupportedError: if its adapter has no models.
    """
    native_of_backend(backend)
    return Digits(backend)


def _digits(kind: str, backend: str, seed: int) -> Workload:
    from ampbridge.workloads import digits, weights

    native = of_backend(backend)
    training, test = digits.load(kind)
    model = getattr(native, kind)(weights.make(kind, seed))
    return Workload(
        model,
        native.optimizer(model),
        native.loss,
        list(digits.batches(training, BATCH_SIZE, BATCHES, seed)),
        lambda: float((native.predict(model, test.x) == test.y).mean()),
    )


def _module(path: Path) -> ModuleType:
    """The file, run as ``python FILE`` would: what lies beside it can be imported."""
    if not path.is_file():
        msg = f"There is no file {str(path)!r}.\n"
        raise ArgumentError(msg + f"Hint: a Python file, or {listed(NAMES)}")
    spec = spec_from_file_location("ampbridge_workload", path)
    assert spec is not None  # it ends in .py
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        msg = f"{path} needs a package that is not installed: {error}.\n"
        raise ArgumentError(
            msg + "Hint: import a framework inside of build(), only for its own backend."
        ) from error
    except Exception as error:
        msg = f"{path} cannot be run: {type(error).__name__}: {error}.\n"
        raise ArgumentError(msg + f"Hint: python {path}") from error
    finally:
        sys.path.remove(str(path.parent.resolve()))
    return module


def _checked(build: Build, name: str, backend: str, seed: int) -> Workload:
    """What ``build`` makes for ``backend``, which must be what it was asked for."""
    workload = build(backend, seed)
    if not isinstance(workload, Workload):
        msg = f"build({backend!r}, {seed}) of {name} returned {workload!r:.80}, which is no Workload.\n"
        raise ArgumentTypeError(
            msg + "Hint: return ampbridge.workloads.Workload(model, optimizer, loss_fn, batches)"
        )
    if registry.framework_of(workload.model) != backend:
        kind = f"{type(workload.model).__module__}.{type(workload.model).__qualname__}"
        msg = f"build({backend!r}, {seed}) of {name} made a model of another framework, {kind}.\n"
        raise ArgumentTypeError(
            msg + "Hint: raise an error for a backend that it does not support."
        )
    if not isinstance(workload.batches, Sequence) or not workload.batches:
        msg = f"The batches of {name} are {workload.batches!r:.80}; allowed is a list of at least one.\n"
        raise ArgumentTypeError(msg + "Hint: batches=[(x, y)]")
    return workload
