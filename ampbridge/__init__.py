"""Mixed precision written once: one policy and one training loop for every framework."""

from importlib import import_module
from typing import TYPE_CHECKING

from ampbridge.adapters.backend import Backend
from ampbridge.adapters.registry import backend, backends, register_backend
from ampbridge.checkpoints.training_state import load_weights
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
from ampbridge.errors.foreign_names import no_name
from ampbridge.policies.function_ops import register_op
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import Schedule
from ampbridge.reports.doctor import doctor
from ampbridge.scaling.scaler import Gradients, GradScaler
from ampbridge.training.autocast import autocast
from ampbridge.training.decorate import decorate, undecorate, undecorated
from ampbridge.training.own_loop import value_and_grad
from ampbridge.training.recipe import Recipe, Scaling
from ampbridge.training.result import StepResult
from ampbridge.training.step import TrainStep, train_step
from ampbridge.version import __version__ as __version__

if TYPE_CHECKING:  # loaded when they are used
    import ampbridge_compare
    import ampbridge_course
    import ampbridge_lens
    import ampbridge_port
    import ampbridge_testing
    from ampbridge import neutral as neutral
    from ampbridge.reports.step_log import StepLog as StepLog
    from ampbridge_lens.explained import explain as explain

    compare = ampbridge_compare
    course = ampbridge_course
    lens = ampbridge_lens
    port = ampbridge_port
    testing = ampbridge_testing

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
    "StepLog",
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


# A program that needs none of these does not load them.
_ON_FIRST_USE = {
    "compare": "ampbridge_compare",
    "course": "ampbridge_course",
    "lens": "ampbridge_lens",
    "neutral": "ampbridge.neutral",
    "port": "ampbridge_port",
    "testing": "ampbridge_testing",
}
_FROM = {"StepLog": "ampbridge.reports.step_log", "explain": "ampbridge_lens.explained"}


if not TYPE_CHECKING:  # type checkers would accept every name

    def __getattr__(name: str) -> object:
        if name in _ON_FIRST_USE:
            return import_module(_ON_FIRST_USE[name])
        if name in _FROM:
            return getattr(import_module(_FROM[name]), name)
        raise no_name(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_FIRST_USE, *_FROM})
