"""Which layer of a model calls, by hooks around the calls of all modules."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ampbridge_torch import decorating


class CallingLayers:
    """The layers of ``model`` that this thread is in."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(layer.layer): layer.name for layer in decorating.layers(model)}
        self._thread = threading.get_ident()
        self._path: list[str] = []

    @property
    def innermost(self) -> str:
        """Its dotted name; empty for the model itself, and outside of it."""
        return self._path[-1] if self._path else ""

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Calls are noticed inside."""
        entering = register_module_forward_pre_hook(self._enter)
        leaving = register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            entering.remove()
            leaving.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        name = self._name(module)
        if name is not None:
            self._path.append(name)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        name = self._name(module)
        if name is not None and self.innermost == name:
            self._path.pop()

    def _name(self, module: nn.Module) -> str | None:
        """None for what is no layer of the model, and in other threads."""
        return self._names.get(id(module)) if threading.get_ident() == self._thread else None
