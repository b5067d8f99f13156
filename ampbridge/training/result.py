"""The result of a step, read from the device on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from ampbridge.adapters.backend import FINITE, INF, NAN, StepOutput
from ampbridge.errors import CallOrderError
from ampbridge.errors.foreign_names import OF_A_LOSS, OF_A_RESULT, no_attribute

Reason = Literal["inf", "nan", "accumulating"]

REASONS: dict[int, Reason | None] = {FINITE: None, INF: "inf", NAN: "nan"}


class _Loss(float):
    """A number. It tells so if it is taken for a tensor."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise no_attribute(self, name, OF_A_LOSS, "result.loss")


class StepResult:
    """The result of a step. Each property is copied to the host only when it is read."""

    __slots__ = ("_alarm", "_names", "_output", "_reason", "step")

    def __init__(
        self,
        output: StepOutput,
        step: int,
        *,
        accumulating: bool = False,
        alarm: Callable[[], None] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self._output = output
        self._alarm = alarm
        self._names = names
        self._reason: Reason | None = "accumulating" if accumulating else None
        self.step = step
        """The number of optimizer steps so far, skipped ones and this one included."""

    @property
    def loss(self) -> float:
        """The loss, neither scaled nor divided by ``accumulate``."""
        return _Loss(self._output.loss)

    @property
    def aux(self) -> Any:
        """The second value that ``loss_fn`` returned, native."""
        return self._output.aux

    @property
    def scale(self) -> float:
        """The loss scale of this step; 1.0 without a scaler."""
        return 1.0 if self._output.scale is None else float(self._output.scale)

    @property
    def applied(self) -> bool:
        """Whether the optimizer was stepped."""
        self._raise_alarm()
        return bool(self._output.applied)

    @property
    def grad_norm(self) -> float | None:
        """The joint 2-norm before clipping; None unless the step has ``clip_norm``."""
        return None if self._output.grad_norm is None else float(self._output.grad_norm)

    @property
    def reason(self) -> Reason | None:
        """Why the step was not applied: "inf", "nan" (NaN without inf) or "accumulating".

        None if it was applied.
        """
        if self._reason is None:
            self._raise_alarm()
            self._reason = REASONS[int(self._output.overflow)]
        return self._reason

    @property
    def consecutive_skips(self) -> int:
        """The number of skipped steps in a row, this one included."""
        self._raise_alarm()
        after = self._output.after
        return 0 if after is None else int(after.consecutive_skips)

    @property
    def overflows(self) -> dict[str, Reason]:
        """The parameters whose gradients were not finite, by name, with "inf" or "nan".

        Raises:
            CallOrderError: unless the step was made with ``name_overflows=True``.
        """
        if self._output.kinds is None:
            raise CallOrderError(
                "Overflowing parameters were not recorded for this step.\n"
                "Hint: amp.train_step(..., name_overflows=True)"
            )
        kinds = zip(self._names, self._output.kinds, strict=True)
        return {name: reason for name, kind in kinds if (reason := REASONS[int(kind)])}

    @property
    def is_accumulating(self) -> bool:
        """Whether ``reason`` is "accumulating"; known without waiting for the device."""
        return self._reason == "accumulating"

    def without_aux(self) -> StepResult:
        """The same result without ``aux``, to keep it after the step: ``aux`` may hold much memory."""
        kept = StepResult(self._output._replace(aux=None, grads=None), self.step, names=self._names)
        kept._alarm, kept._reason = self._alarm, self._reason
        return kept

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies contain numbers on the host, except ``aux``; waits for the device."""
        applied, reason, output = self.applied, self.reason, self._output
        read = output._replace(
            loss=self.loss,
            grads=None,
            scale=None if output.scale is None else self.scale,
            after=None if output.after is None else output.after.on_host(),
            overflow=None if output.overflow is None else int(output.overflow),
            applied=applied,
            grad_norm=self.grad_norm,
            kinds=None if output.kinds is None else [int(kind) for kind in output.kinds],
        )
        is_accumulating, names = reason == "accumulating", tuple(self._names)
        made = partial(StepResult, read, self.step, accumulating=is_accumulating, names=names)
        return made, ()

    def _raise_alarm(self) -> None:
        """Give the alarm, once. It waits for the device, so only call it when the result is read."""
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            alarm()

    def __getattr__(self, name: str) -> Any:
        raise no_attribute(self, name, OF_A_RESULT)

    def __repr__(self) -> str:
        return (
            f"StepResult(step={self.step}, loss={self.loss:.6g}, applied={self.applied}, "
            f"scale={self.scale:g}, reason={self.reason!r})"
        )
