"""The conformance suite's view of PyTorch. Uses torch alone, never the backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from ampbridge import Backend
from ampbridge.adapters.backend import LossFn
from ampbridge_testing import Harness, attributes_of, contents
from ampbridge_testing.harness import LayeredModel
from ampbridge_torch.backend import TorchBackend


class Perceptron(torch.nn.Module):
    """One hidden layer, with weights (in, out) as the suite has them."""

    def __init__(self, weights: Sequence[np.ndarray], device: str) -> None:
        super().__init__()
        tensors = (torch.tensor(value, device=device) for value in weights)
        self.w1, self.b1, self.w2, self.b2 = map(torch.nn.Parameter, tensors)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(functional.linear(x, self.w1.T, self.b1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.hidden(x), self.w2.T, self.b2)


class Layered(LayeredModel, torch.nn.Module):
    """The same of layers, whose weights are (out, in)."""

    linear, layer_norm = torch.nn.Linear, torch.nn.LayerNorm

    def relu(self, x: Any) -> Any:
        return functional.relu(x)

    @torch.no_grad()
    def fill(self, values: Sequence[np.ndarray]) -> None:
        for parameter, value in zip(self.parameters(), values, strict=True):
            parameter.copy_(torch.tensor(value.T))


class TorchHarness(Harness):
    """PyTorch on one device."""

    frameworks = ("torch",)
    compiles = True
    copies = True
    stores_gradients = True
    simulated = False
    has_kernels = True
    linear_kind = "Linear"

    def __init__(self, tested: Backend | None = None, device: str = "cpu") -> None:
        self.backend = tested or TorchBackend()
        self.device = device
        self.simulates = device == "cpu"

    def array(self, values: Any, dtype: str = "float32") -> torch.Tensor:
        return torch.as_tensor(np.array(values)).to(self.device, getattr(torch, dtype))

    def numpy(self, x: torch.Tensor) -> np.ndarray:
        wide = x.detach().float() if x.dtype == torch.bfloat16 else x.detach()
        values: np.ndarray = wide.cpu().numpy().copy()
        return values

    def run(self, op: str, *inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = getattr(torch, op)(*inputs)
        return result

    def model(self, weights: Sequence[np.ndarray]) -> Perceptron:
        return Perceptron(weights, self.device)

    def layered(
        self,
        weights: Sequence[np.ndarray],
        normalization: Sequence[np.ndarray] | None = None,
        outputs: Callable[[Any], Any] | None = None,
    ) -> Layered:
        return Layered(weights, normalization, outputs).to(self.device)

    def low_by_itself(self, weights: Sequence[np.ndarray], dtype: str) -> Layered:
        model = self.layered(weights)
        forward, kind = model.forward, torch.device(self.device).type
        model.forward = torch.autocast(kind, dtype=getattr(torch, dtype))(forward)  # type: ignore[method-assign]
        return model

    def in_16_bits(self, weights: Sequence[np.ndarray], dtype: str) -> Layered:
        return self.layered(weights).to(getattr(torch, dtype))

    def scaled_by_itself(self, loss: torch.Tensor) -> torch.Tensor:
        kind = torch.device(self.device).type
        return torch.amp.GradScaler(kind, init_scale=1024.0).scale(loss)

    def details(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> Mapping[str, object]:
        found = contents("optimizer", optimizer)
        for index, group in enumerate(optimizer.param_groups):
            found[f"group {index}"] = {k: v for k, v in group.items() if k != "params"}
            found[f"parameters {index}"] = [id(parameter) for parameter in group["params"]]
        for name, module in model.named_modules():
            found |= contents(name, module)
        for name, parameter in model.named_parameters():
            found[name] = str(parameter.dtype), parameter.requires_grad
        return found

    def counting_traces(self, loss_fn: LossFn) -> tuple[LossFn, Callable[[], int]]:
        from torch._dynamo.comptime import comptime  # takes as long as all else that torch imports

        traced: list[LossFn] = []

        def note(_: object) -> None:
            traced.append(loss_fn)

        def counting(*arguments: Any) -> Any:
            comptime(note)  # called by Dynamo while it traces, and only then
            return loss_fn(*arguments)

        return counting, lambda: len(traced)

    def mean_squared_error(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(prediction, target)

    def optimizer(
        self, model: torch.nn.Module, kind: str, rate: float, *others: torch.nn.Module
    ) -> torch.optim.Optimizer:
        parameters = [p for each in (model, *others) for p in each.parameters()]
        if kind == "adam":
            return torch.optim.Adam(parameters, lr=rate)
        momentum = 0.9 if kind == "momentum" else 0.0
        return torch.optim.SGD(parameters, lr=rate, momentum=momentum)

    def freeze(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model.requires_grad_(False)

    def slots(self, optimizer: torch.optim.Optimizer) -> list[np.ndarray]:
        state = optimizer.state_dict()["state"]
        return [
            self.numpy(torch.as_tensor(value))
            for _, slots in sorted(state.items())
            for _, value in sorted(slots.items())
            if value is not None
        ]

    def native_gradients(
        self, model: torch.nn.Module, loss_fn: Any, batch: Sequence[torch.Tensor], scale: Any
    ) -> list[torch.Tensor | None]:
        model.zero_grad()
        scale(loss_fn(model, *batch)).backward()
        return [parameter.grad for parameter in model.parameters()]

    def on_backward(self, x: torch.Tensor, call: Callable[[], None]) -> torch.Tensor:
        x.register_hook(lambda gradient: call())
        return x

    def is_differentiable(self, x: torch.Tensor) -> bool:
        return x.requires_grad

    def is_tracing(self) -> bool:
        return torch.compiler.is_compiling()

    def ambient(self) -> Mapping[str, object]:
        kind = torch.device(self.device).type
        return {
            "autocast": torch.is_autocast_enabled(kind),
            "autocast dtype": torch.get_autocast_dtype(kind),
            "autocast cache": torch.is_autocast_cache_enabled(),
            "default dtype": torch.get_default_dtype(),
            "function modes": torch._C._len_torch_function_stack(),
            "gradients": torch.is_grad_enabled(),
            "hooks": len(torch.nn.modules.module._global_forward_pre_hooks),
            **attributes_of(torch, torch.Tensor, functional),
        }
