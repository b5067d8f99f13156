"""Learning rates that change with the number of applied steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ampbridge.adapters.arguments import described
from ampbridge.adapters.backend import Optimizer
from ampbridge.adapters.registry import backend
from ampbridge.errors import ArgumentError, ArgumentTypeError, StateError
from ampbridge.errors.foreign_names import told_of
from ampbridge.neutral import checks
from ampbridge.neutral.native import native_of, native_of_backend

KINDS = ("cosine", "linear", "constant")


class RateSchedule:
    """The learning rates of an optimizer, as a factor of what they were when this was made.

    Pass it to ``train_step(..., scheduler=)``, which advances it after each applied step and saves it
    with the step. In a loop of your own call ``step()``.
    """

    def __init__(
        self, optimizer: Optimizer, base_rates: list[float], factor: Callable[[int], float]
    ) -> None:
        self._optimizer, self._base_rates, self._factor = optimizer, base_rates, factor
        self._applied = 0
        self._set()

    @property
    def rates(self) -> list[float]:
        """The rates of the next step, one for each group of the optimizer."""
        return [base * self._factor(self._applied) for base in self._base_rates]

    def step(self) -> None:
        """Go on to the rates of the next step."""
        self._applied += 1
        self._set()

    def _set(self) -> None:
        native_of(self._optimizer).set_rates(self._optimizer, self.rates)

    def state_dict(self) -> dict[str, Any]:
        """The number of applied steps and the rates at the start, as plain JSON values."""
        return {"applied": self._applied, "base_rates": list(self._base_rates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of ``state_dict()``; the optimizer gets the rates of that step.

        Raises:
            StateError: if it is not one, or of an optimizer with other groups. Nothing is changed then.
        """
        applied, rates = (dict(state).get(key) for key in ("applied", "base_rates"))
        counted = isinstance(applied, int) and not isinstance(applied, bool) and applied >= 0
        own = isinstance(rates, list) and len(rates) == len(self._base_rates)
        if not counted or not own or not all(isinstance(r, float) and r >= 0 for r in rates or ()):
            msg = f"{dict(state)!r:.200} is not the state of this schedule.\n"
            raise StateError(
                msg + "Hint: what state_dict() of a schedule of the same optimizer returns"
            )
        assert isinstance(applied, int)
        assert isinstance(rates, list)
        self._applied, self._base_rates = applied, rates
        self._set()


class _Curve:
    """The factor at each step. Not a function, so that a schedule can be copied and compared."""

    def __init__(self, kind: str, steps: int, warmup: int, end: float) -> None:
        self.kind, self.steps, self.warmup, self.end = kind, steps, warmup, end

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        if self.kind == "constant":
            return 1.0
        gone = min((step - self.warmup) / (self.steps - self.warmup), 1.0)
        left = (1 + math.cos(math.pi * gone)) / 2 if self.kind == "cosine" else 1 - gone
        return self.end + (1 - self.end) * left


@told_of("neutral.schedule")
def schedule(
    kind: str | Callable[[int], float],
    optimizer: Optimizer,
    *,
    steps: int | None = None,
    warmup: int = 0,
    end: float = 0.0,
) -> RateSchedule:
    """Change the learning rates of ``optimizer`` from step to step; sets those of the first step.

        scheduler = neutral.schedule("cosine", optimizer, steps=1000, warmup=50)
        step = amp.train_step(loss_fn, model, optimizer, scheduler=scheduler)

    The frameworks' own schedulers also work there, in place of this one.

    Args:
        kind: "cosine", "linear" or "constant"; or a function from the number of applied steps to the
            factor of the rate (as of ``torch.optim.lr_scheduler.LambdaLR``), without the other arguments.
        optimizer: native. The rates that it has now are those at the top of the curve.
        steps: the number of steps, warm-up included, after which the rates stay; not of "constant".
        warmup: the number of steps in which the rates rise in equal parts: ``1 / (warmup + 1)`` of the
            rate in the first step, the whole rate in the step after the last of them.
        end: the factor at the end; not of "constant".

    Raises:
        ArgumentError: for a kind or a number that is not allowed, or if the optimizer's rates cannot be
            set, because a schedule of its own decides them.
        ArgumentTypeError: for what is not an optimizer.
    """
    owner = backend(optimizer)
    if owner.kind(optimizer) != "optimizer":
        msg = f"optimizer is an optimizer of {owner.name}, not {described(optimizer, owner)}.\n"
        raise ArgumentTypeError(msg + f"Hint: {owner.examples['optimizer']}")
    factor = _factor(kind, steps, warmup, end)
    rates = native_of_backend(owner).rates(optimizer)
    if rates is None:
        msg = (
            f"The learning rate of {described(optimizer, owner)} cannot be set: a schedule of its own "
            "decides it, or it is a constant in a function.\n"
        )
        raise ArgumentError(msg + "Hint: neutral.optimizer('adamw', model, lr=0.001), a number")
    return RateSchedule(optimizer, rates, factor)


def _factor(
    kind: str | Callable[[int], float], steps: int | None, warmup: int, end: float
) -> Callable[[int], float]:
    if callable(kind):
        if steps is not None or warmup or end:
            msg = "A function decides the rate by itself; steps, warmup and end have no effect on it.\n"
            raise ArgumentError(msg + "Hint: neutral.schedule(function, optimizer)")
        return kind
    kind = checks.one_of("kind", kind, KINDS)
    warmup = checks.whole("warmup", warmup, 0, 10)
    if kind == "constant":
        if steps is not None or end:
            msg = "A constant rate does not end; steps and end have no effect on it.\n"
            raise ArgumentError(msg + "Hint: neutral.schedule('constant', optimizer, warmup=10)")
        return _Curve(kind, warmup + 1, warmup, 1.0)
    steps = checks.whole("steps", steps, warmup + 1, 10 * (warmup + 1))
    return _Curve(kind, steps, warmup, checks.number("end", end, 0.1))
