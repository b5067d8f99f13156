"""Which layer of a model calls, by hooks around the calls of its layers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from ampbridge_torch.model import decorating


class CallingLayers:
    """The layers of ``model`` that this thread is in; not those of TorchScript, which takes no hooks."""

    def __init__(self, model: nn.Module) -> None:
        self._layers = [
            layer
            for layer in decorating.layers(model)
            if not isinstance(layer.layer, torch.jit.ScriptModule)
        ]
        self._thread = threading.get_ident()
        self._path: list[str] = []

    @property
    def innermost(self) -> str:
        """Its dotted name; empty for the model itself, and outside of it."""
        return self._path[-1] if self._path else ""

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Calls are noticed inside."""
        with ExitStack() as hooks:
            for layer in self._layers:
                module: nn.Module = layer.layer
                enter, leave = partial(self._enter, layer.name), partial(self._leave, layer.name)
                hooks.enter_context(module.register_forward_pre_hook(enter, prepend=True))
                hooks.enter_context(module.register_forward_hook(leave, always_call=True))
            yield

    def _enter(self, name: str, module: nn.Module, args: Any) -> None:
        if self._is_followed():
            self._path.append(name)

    def _leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        if self._is_followed() and self.innermost == name:
            self._path.pop()

    def _is_followed(self) -> bool:
        return threading.get_ident() == self._thread
