"""Modules under the names that they had when all of them stood in one folder.

Adapters and programs of others import some of them by these names, which stay for one release.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:  # it imports a dozen modules
    from importlib.abc import Loader

_ROOMS = {
    "adapters": (
        "backend registry interception observation ranks nested tracing scoped interrupts "
        "calling_code arguments"
    ),
    "policies": "policy schedule function_ops hardware native_lists native_policy",
    "scaling": "scaler scale_rule scaler_state presets skip_alarm native_scaler",
    "checkpoints": "checkpoint training_state weights outside tensor_file locking remembering",
    "training": "step step_program step_settings decorate autocast recipe recipe_file",
    "reports": "doctor diagnosis explain lists tables printing",
    "errors": "flags foreign_names",
}
_RENAMED = {
    "port.names": "policies.paddle_names",
    "oplists": "policies.op_table",
    "whole_files": "checkpoints.atomic_files",
    "command_options": "cli.options",
    "compare_command": "cli.compare",
    "completion_command": "cli.completion",
    "lens_command": "cli.lens",
    "lists_command": "cli.lists",
    "port.command": "cli.port",
}
NOW = {old: f"{room}.{old}" for room, names in _ROOMS.items() for old in names.split()} | _RENAMED
"""Old name -> name of now, both without ``ampbridge.``."""

# The package has a function of this name, too. Importing a submodule sets an attribute of the package, which
# would hide the function; a submodule that stands in sys.modules already is not set.
_LIKE_A_FUNCTION = ("autocast", "backend", "decorate", "doctor", "explain")


class _OldNames:
    """A finder, and the loader of what it finds."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != "ampbridge" or name not in NOW:
            return None
        return ModuleSpec(fullname, cast("Loader", self))

    def create_module(self, spec: ModuleSpec) -> None:
        """An empty module, for the time being."""

    def exec_module(self, module: ModuleType) -> None:
        """The import system takes what stands in ``sys.modules`` after this for the module."""
        name = module.__name__.partition(".")[2]
        sys.modules[module.__name__] = import_module(f"ampbridge.{NOW[name]}")


def install() -> None:
    """Let the old names be imported."""
    for name in _LIKE_A_FUNCTION:
        sys.modules[f"ampbridge.{name}"] = import_module(f"ampbridge.{NOW[name]}")
    sys.meta_path.append(_OldNames())
