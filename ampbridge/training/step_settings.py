"""What the arguments of a training step may be: one check for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from ampbridge.adapters.arguments import described, required_arguments
from ampbridge.adapters.backend import Backend, Optimizer
from ampbridge.adapters.calling_code import warn
from ampbridge.errors import ArgumentError, ArgumentTypeError, listed
from ampbridge.errors.flags import checked_count
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import Schedule
from ampbridge.scaling.scaler import GradScaler

OnOverflow = Literal["drop_step", "drop_microbatch"]

ON_OVERFLOW = ("drop_step", "drop_microbatch")


def checked_accumulate(value: Any) -> int:
    """Micro-batches a step.

    Raises:
        ArgumentError: unless it is a whole number from 1.
    """
    return checked_count("accumulate", value, "accumulate=4")


def check_on_overflow(value: Any, plan: Policy | Schedule) -> None:
    """That ``value`` says what an overflow in a micro-batch drops.

    Raises:
        ArgumentError: for another word, or one that ``plan`` cannot go with.
    """
    if value not in ON_OVERFLOW:
        msg = f"Passed on_overflow={value!r}; allowed are {listed(ON_OVERFLOW)}.\n"
        raise ArgumentError(msg + "Hint: on_overflow='drop_step'")
    if value == "drop_microbatch" and isinstance(plan, Schedule) and plan.counts_skips:
        raise ArgumentError(
            f"on_overflow='drop_microbatch' skips no step, which {plan!r} waits for.\n"
            "Hint: on_overflow='drop_step', or a schedule by steps or by the loss."
        )


def scaler_for(policies: Sequence[Policy], scaler: GradScaler | str | None) -> GradScaler | None:
    """The scaler of steps under ``policies``: "auto" makes one where one of them needs it.

    Warns where one is needed and there is none.

    Raises:
        ArgumentTypeError: for what is no scaler.
    """
    in_need = next((policy for policy in policies if policy.needs_scaling), None)
    if scaler == "auto":
        return GradScaler() if in_need else None
    chosen = checked_scaler(scaler, "an ampbridge.GradScaler, 'auto' or None")
    if in_need and (chosen is None or not chosen.enabled):
        warn(
            f"{in_need!r} without loss scaling: gradients under 6e-8 become zero.\n"
            "Hint: scaler='auto', or a bfloat16 policy, which needs none."
        )
    return chosen


def checked_scaler(scaler: Any, allowed: str) -> GradScaler | None:
    """A scaler, or None for none; ``allowed`` says in the message what may be passed.

    Raises:
        ArgumentTypeError: for a framework's own scaler, or anything else.
    """
    if scaler is None or isinstance(scaler, GradScaler):
        return scaler
    kind = f"{type(scaler).__module__}.{type(scaler).__qualname__}"
    raise ArgumentTypeError(
        f"scaler is {allowed}, not {scaler!r} ({kind}).\n"
        "Hint: scaler = amp.GradScaler(); scaler.load_state_dict(theirs.state_dict())"
    )


def checked_scheduler(
    backend: Backend, scheduler: Any, optimizer: Optimizer
) -> Callable[[], Any] | None:
    """What advances ``scheduler`` by one step.

    Raises:
        ArgumentTypeError: for what cannot be called, or needs arguments.
        ArgumentError: for one that moves the learning rates of another optimizer.
    """
    if scheduler is None:
        return None
    advance = getattr(scheduler, "step", scheduler)
    if not callable(advance) or isinstance(scheduler, type) or _is_rate_schedule(scheduler):
        raise ArgumentTypeError(
            f"scheduler is an object with step() or a function, not {described(scheduler)}.\n"
            "Hint: a Keras LearningRateSchedule goes to the optimizer, learning_rate=schedule; it "
            "follows optimizer.iterations, which does not advance on skipped steps."
        )
    needed = required_arguments(advance)
    if needed:
        raise ArgumentTypeError(
            f"scheduler is advanced by each applied step, without arguments; that of "
            f"{described(scheduler)} needs {', '.join(needed)}.\n"
            "Hint: train_step(...) without it, and scheduler.step(validation_loss) after each epoch."
        )
    _check_whose_rates_it_moves(backend, scheduler, optimizer)
    step: Callable[[], Any] = advance
    return step


def _check_whose_rates_it_moves(backend: Backend, scheduler: Any, optimizer: Optimizer) -> None:
    if backend.moves_rates_of(scheduler, optimizer):
        return
    name = type(scheduler).__name__
    hint = f"scheduler={name}(optimizer, ...), with the step's optimizer"
    if not hasattr(scheduler, "optimizer"):  # Paddle's are given to the optimizer
        hint = f"optimizer = {type(optimizer).__name__}(learning_rate=scheduler, ...)"
    msg = f"{described(scheduler)} moves the learning rates of another optimizer than the step's.\n"
    raise ArgumentError(f"{msg}Hint: {hint}")


def _is_rate_schedule(scheduler: Any) -> bool:
    """Whether it computes a rate from a step number (Keras), rather than advancing by itself."""
    return not hasattr(scheduler, "step") and hasattr(scheduler, "get_config")


def checked_compile(value: Any) -> bool:
    """Whether the step is compiled.

    Raises:
        ArgumentError: unless it is True or False.
    """
    if isinstance(value, bool):
        return value
    msg = f"Passed compile={value!r}; allowed are True, False and 'auto'.\nHint: compile='auto'"
    raise ArgumentError(msg)
