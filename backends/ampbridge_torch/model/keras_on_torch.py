"""Models of Keras on torch (``KERAS_BACKEND=torch``): modules that hide their layers from torch.

Keras holds its layers in lists, and a model's variables, its statistics among them, as parameters in one
``ParameterDict``. Its optimizers update these parameters, and know of no masters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any
from weakref import ref

from torch import nn

from ampbridge.errors import UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge_torch import _private


def named_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules of ``model`` by name, and Keras' layers by the names that Keras gives them."""
    seen: set[int] = set()
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == _private.KERAS_VARIABLES and seen:
            continue
        found = [(name, module)]
        for layer in _private.keras_layers(module) if is_layer(module) else ():
            found.append((f"{name}.{layer.name}" if name else layer.name, layer))
        for layer_name, layer in found:
            if id(layer) not in seen:
                seen.add(id(layer))
                yield layer_name, layer


def own_parameters(layer: Any) -> dict[str, nn.Parameter]:
    """The parameters that a layer holds itself, by name."""
    if not is_layer(layer):
        return dict(layer.named_parameters(recurse=False))
    of_parts = {id(v) for part in _private.keras_layers(layer) for v in part.variables}
    return {v.name: v.value for v in layer.variables if id(v) not in of_parts}


def is_layer(module: Any) -> bool:
    """Whether a module is a layer or a model of Keras."""
    kind = getattr(sys.modules.get("keras"), "Layer", None)
    return kind is not None and isinstance(module, kind)


def check_copy(model: nn.Module) -> None:
    """Refuse to copy a model of Keras: the copy has parameters that a copy of its optimizer lacks."""
    if is_layer(model):
        raise UnsupportedError(
            f"Keras copies a {type(model).__name__} on torch with new parameters, which a copy of its "
            "optimizer does not hold.\n"
            "Hint: make both anew, and step.load(path) what step.save(path) has saved."
        )


class CheckedFit:
    """Refuses the training of a decorated model by Keras' own loop where its optimizer cannot follow.

    It stands in for ``make_train_function``, which ``fit`` and ``train_on_batch`` call first.
    """

    def __init__(self, model: Any, policy: Policy) -> None:
        self._model, self._policy = ref(model), policy
        model.make_train_function = self

    def __call__(self, force: bool = False) -> None:
        model: Any = self._model()
        policy, optimizer = self._policy, model.optimizer
        kind = type(optimizer).__name__
        factor = getattr(optimizer, "loss_scale_factor", None)
        scales = hasattr(optimizer, "inner_optimizer") or factor is not None
        if optimizer is not None and policy.level == "O2":
            raise UnsupportedError(
                f"At O2 the weights are {policy.dtype}, and Keras' {kind} on torch updates no float32 "
                "masters.\nHint: policy='O1:bfloat16'; or amp.train_step(loss_fn, model, "
                "torch.optim.SGD(model.parameters(), lr=0.1), policy='O2')"
            )
        if optimizer is not None and policy.needs_scaling and not scales:
            raise UnsupportedError(
                f"{kind} does not scale the loss, and small gradients become zero in {policy.dtype}.\n"
                "Hint: model.compile(keras.optimizers.LossScaleOptimizer(optimizer), loss); or "
                "policy='O1:bfloat16'"
            )
        type(model).make_train_function(model, force)

    def remove(self) -> None:
        """Called when the model is undecorated."""
        vars(self._model()).pop("make_train_function", None)
