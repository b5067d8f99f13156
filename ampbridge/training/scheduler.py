"""The learning-rate scheduler of a step: applied steps advance it, and a loop should not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from ampbridge.adapters.arguments import described, required_arguments
from ampbridge.adapters.backend import Backend, Optimizer
from ampbridge.adapters.calling_code import warn
from ampbridge.errors import ArgumentError, ArgumentTypeError


class StepScheduler:
    """A scheduler that a step advances. It warns once where the loop moves it as well.

    By the count of torch's and Paddle's. A loaded one differs too: so two moves of one are awaited.
    """

    def __init__(self, backend: Backend, scheduler: Any, optimizer: Optimizer) -> None:
        """Refuse what a step cannot advance, or what moves another optimizer's rates."""
        has_step = hasattr(scheduler, "step")
        advance: Callable[[], Any] = getattr(scheduler, "step", scheduler)
        computes_rates = not has_step and hasattr(scheduler, "get_config")  # from a step's number
        if not callable(advance) or isinstance(scheduler, type) or computes_rates:
            hint = "scheduler=scheduler, which was made with the optimizer, or a function of no arguments."
            if computes_rates:
                hint = (
                    "a Keras LearningRateSchedule goes to the optimizer, learning_rate=schedule; it "
                    "follows optimizer.iterations, which does not advance on skipped steps."
                )
            raise ArgumentTypeError(
                f"scheduler is an object with step() or a function, not {described(scheduler)}.\n"
                f"Hint: {hint}"
            )
        needed = required_arguments(advance)
        if needed:
            hint = (
                "train_step(...) without it, and scheduler.step(validation_loss) after each epoch."
            )
            if not has_step:
                hint = "a function of the step's number goes to the optimizer, optax.adam(schedule)"
            raise ArgumentTypeError(
                f"scheduler is advanced by each applied step, without arguments; that of "
                f"{described(scheduler)} needs {', '.join(needed)}.\nHint: {hint}"
            )
        if not backend.moves_rates_of(scheduler, optimizer):
            name = type(scheduler).__name__
            hint = f"scheduler={name}(optimizer, ...), with the step's optimizer"
            if not hasattr(scheduler, "optimizer"):  # Paddle's are given to the optimizer
                hint = f"optimizer = {type(optimizer).__name__}(learning_rate=scheduler, ...)"
            raise ArgumentError(
                f"{described(scheduler)} moves the learning rates of another optimizer than the step's.\n"
                f"Hint: {hint}"
            )
        self._advance = advance
        self._counted = scheduler if backend.kind(scheduler) == "scheduler" else None
        self._moves_by_hand = 0

    def before_a_step(self) -> None:
        """Compare with where the last step, of this ``TrainStep`` or of another, has left it."""
        if self._counted is None:
            return
        left = _left_at.get(self._counted)
        if left is not None and getattr(self._counted, "last_epoch", None) == left + 1:
            self._moves_by_hand += 1
            if self._moves_by_hand == 2:
                warn(
                    f"The {type(self._counted).__name__} that train_step has moves twice: each applied "
                    "step advances it, and so does the loop, between steps.\n"
                    "Hint: leave scheduler.step() out of the loop; or scheduler=None in train_step"
                )
        self._note()

    def advance(self) -> None:
        """Move it by one step."""
        self._advance()
        self._note()

    def _note(self) -> None:
        if self._counted is not None:
            _left_at[self._counted] = getattr(self._counted, "last_epoch", None)


_left_at: WeakKeyDictionary[Any, int | None] = WeakKeyDictionary()
"""Where the last step has left each scheduler: its ``last_epoch``."""
