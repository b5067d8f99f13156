"""Optimizers that change arrays in place, by torch's formulas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from ampbridge.errors import ArgumentError
from ampbridge_numpy.model import low_arrays


class Optimizer(ABC):
    """Over ``parameters``, a list of arrays, with one dictionary of ``state`` for each.

    ``lr`` may be changed between steps. ``rounded_by_chance`` counts the updates that were.
    """

    rounded_by_chance = 0

    def __init__(self, parameters: Iterable[np.ndarray], lr: float, weight_decay: float) -> None:
        given = parameters if isinstance(parameters, Iterable) else [parameters]  # refused below
        self.parameters = list(given)
        self.lr, self.weight_decay = lr, weight_decay
        self.state: list[dict[str, Any]] = [{} for _ in self.parameters]
        _check_at_least_zero(lr=lr, weight_decay=weight_decay)
        wrong = [p for p in self.parameters if not isinstance(p, np.ndarray)]
        if wrong or not self.parameters:
            what = type(wrong[0]).__name__ if wrong else "an empty list"
            msg = f"An optimizer takes a list of arrays, not {what}.\n"
            raise ArgumentError(msg + "Hint: optim.SGD(model.parameters(), lr=0.1)")

    def step(self, grads: Sequence[np.ndarray | None]) -> None:
        """Change each parameter by its gradient; None leaves it, and its state, alone.

        Raises:
            ArgumentError: if there is not one gradient for each parameter.
        """
        if len(grads) != len(self.parameters):
            raise ArgumentError(
                f"step() got {len(grads)} gradients for {len(self.parameters)} parameters.\n"
                "Hint: loss, grads = amp.value_and_grad(loss_fn, model, x, y)"
            )
        kept_low = low_arrays.among(self.parameters)
        for low in kept_low:
            low.before_step(self)
        for parameter, grad, state in zip(self.parameters, grads, self.state, strict=True):
            if grad is not None:
                self._step_one(parameter, grad, state)
        for low in kept_low:
            low.after_step(self)

    @abstractmethod
    def _step_one(self, parameter: np.ndarray, grad: np.ndarray, state: dict[str, Any]) -> None: ...


class SGD(Optimizer):
    """Stochastic gradient descent; with ``momentum``, along a running sum of the gradients.

    State: ``momentum_buffer``, once there was a step with momentum.
    """

    def __init__(
        self,
        parameters: Iterable[np.ndarray],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(parameters, lr, weight_decay)
        _check_at_least_zero(momentum=momentum)
        if nesterov and not momentum:
            msg = "nesterov=True looks ahead along the momentum, and momentum is 0.\n"
            raise ArgumentError(
                msg + "Hint: optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)"
            )
        self.momentum, self.nesterov = momentum, nesterov

    def _step_one(self, parameter: np.ndarray, grad: np.ndarray, state: dict[str, Any]) -> None:
        if self.weight_decay:
            grad = grad + self.weight_decay * parameter
        if self.momentum:
            buffer = state.setdefault("momentum_buffer", np.zeros_like(parameter))
            buffer *= self.momentum
            buffer += grad
            grad = grad + self.momentum * buffer if self.nesterov else buffer
        parameter -= self.lr * grad


class AdamW(Optimizer):
    """Adam with decoupled weight decay.

    State: ``step``, ``exp_avg`` and ``exp_avg_sq``.
    """

    def __init__(
        self,
        parameters: Iterable[np.ndarray],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(parameters, lr, weight_decay)
        _check_at_least_zero(eps=eps)
        if not all(0 <= beta < 1 for beta in betas):
            msg = f"Passed betas={betas!r}; allowed are two numbers in [0, 1).\n"
            raise ArgumentError(msg + "Hint: betas=(0.9, 0.999)")
        self.betas, self.eps = betas, eps

    def _step_one(self, parameter: np.ndarray, grad: np.ndarray, state: dict[str, Any]) -> None:
        if not state:
            state.update(
                step=0, exp_avg=np.zeros_like(parameter), exp_avg_sq=np.zeros_like(parameter)
            )
        state["step"] += 1
        first, second = self.betas
        average, average_square = state["exp_avg"], state["exp_avg_sq"]
        average += (1 - first) * (grad - average)
        average_square *= second
        average_square += (1 - second) * np.square(grad)
        bias_first, bias_second = 1 - first ** state["step"], 1 - second ** state["step"]
        denominator = np.sqrt(average_square) / bias_second**0.5 + self.eps
        parameter *= 1 - self.lr * self.weight_decay
        parameter -= self.lr / bias_first * average / denominator


class RMSprop(Optimizer):
    """Steps divided by the root of a running mean of the gradient's square.

    State: ``square_avg``.
    """

    def __init__(
        self,
        parameters: Iterable[np.ndarray],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr, weight_decay)
        _check_at_least_zero(eps=eps)
        if not 0 <= alpha < 1:
            msg = f"Passed alpha={alpha!r}; allowed is a number in [0, 1).\nHint: alpha=0.99"
            raise ArgumentError(msg)
        self.alpha, self.eps = alpha, eps

    def _step_one(self, parameter: np.ndarray, grad: np.ndarray, state: dict[str, Any]) -> None:
        if self.weight_decay:
            grad = grad + self.weight_decay * parameter
        average = state.setdefault("square_avg", np.zeros_like(parameter))
        average *= self.alpha
        average += (1 - self.alpha) * np.square(grad)
        parameter -= self.lr * grad / (np.sqrt(average) + self.eps)


def _check_at_least_zero(**numbers: float) -> None:
    for name, value in numbers.items():
        if not isinstance(value, Real) or not value >= 0:
            msg = f"Passed {name}={value!r}; allowed is a number from 0.\nHint: {name}=0.1"
            raise ArgumentError(msg)
