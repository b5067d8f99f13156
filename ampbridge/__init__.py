"""Mixed precision written once: one policy and one training loop for every framework."""

from importlib import import_module
from types import ModuleType

from ampbridge.autocast import autocast
from ampbridge.backend import Backend
from ampbridge.decorate import decorate, undecorate, undecorated
from ampbridge.doctor import doctor
from ampbridge.errors import (
    AmpBridgeError,
    AmpBridgeWarning,
    ArgumentError,
    ArgumentTypeError,
    BackendLoadError,
    BackendNotFoundError,
    CallOrderError,
    ForeignNameError,
    OverflowStuckError,
    PolicyError,
    RecipeError,
    SimulationWarning,
    SourceError,
    StateError,
    UnsupportedError,
    WriteError,
)
from ampbridge.explain import explain
from ampbridge.function_ops import register_op
from ampbridge.policy import Policy
from ampbridge.recipe import Recipe, Scaling
from ampbridge.registry import backend, backends, register_backend
from ampbridge.scaler import Gradients, GradScaler
from ampbridge.schedule import Schedule
from ampbridge.step import StepResult, TrainStep, train_step, value_and_grad
from ampbridge.training_state import load_weights

__all__ = [
    "AmpBridgeError",
    "AmpBridgeWarning",
    "ArgumentError",
    "ArgumentTypeError",
    "Backend",
    "BackendLoadError",
    "BackendNotFoundError",
    "CallOrderError",
    "ForeignNameError",
    "GradScaler",
    "Gradients",
    "OverflowStuckError",
    "Policy",
    "PolicyError",
    "Recipe",
    "RecipeError",
    "Scaling",
    "Schedule",
    "SimulationWarning",
    "SourceError",
    "StateError",
    "StepResult",
    "TrainStep",
    "UnsupportedError",
    "WriteError",
    "autocast",
    "backend",
    "backends",
    "decorate",
    "doctor",
    "explain",
    "load_weights",
    "register_backend",
    "register_op",
    "train_step",
    "undecorate",
    "undecorated",
    "value_and_grad",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    if name in ("lens", "port"):  # whoever needs neither does not load them
        return import_module(f"ampbridge.{name}")
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
