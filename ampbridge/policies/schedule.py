"""Policies that change during a run, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ampbridge.errors import AmpBridgeError, ArgumentError, ArgumentTypeError, StateError
from ampbridge.errors.flags import checked_count
from ampbridge.errors.foreign_names import told_of
from ampbridge.policies.policy import Policy

if TYPE_CHECKING:
    from ampbridge.training.result import StepResult

State = dict[str, Any]
"""The state of a rule between steps: plain JSON values."""


class Schedule:
    """A policy for each step of a run; pass it to ``train_step`` in place of a policy.

        amp.Schedule([(0, "O0"), (200, "O1"), (1000, "O1:bfloat16")])
        amp.Schedule.when(loss_below=0.5, use="O1", otherwise="O0", back_above=0.6)
        amp.Schedule.when(skips=5, use="O1:bfloat16", otherwise="O1", back_after=200)

    The policy changes between steps, never between micro-batches. The loss scaler stays the same;
    steps whose policy needs no scaling do not use it.

    Args:
        entries: pairs ``(step, policy)``: the policy applies from this step on, counted from 0. The
            first entry is for step 0, and the steps increase.

    Raises:
        ArgumentError, PolicyError: for steps out of order, or an invalid policy.
    """

    @told_of("Schedule")
    def __init__(self, entries: Sequence[tuple[int, str | Policy]]) -> None:
        self._entries = _checked_entries(entries)

    @classmethod
    @told_of("Schedule.when")
    def when(
        cls,
        *,
        use: str | Policy,
        otherwise: str | Policy,
        loss_below: float | None = None,
        back_above: float | None = None,
        skips: int | None = None,
        back_after: int | None = None,
    ) -> Schedule:
        """Start with ``otherwise``, switch to ``use`` on a condition, and switch back on another.

        By the loss: switch to ``use`` when it is below ``loss_below``, and back when it is above
        ``back_above``. The default of ``back_above`` is ``loss_below``; a larger value prevents noise
        from switching at each step. By overflow: switch to ``use`` after ``skips`` skipped steps in a
        row, and back after ``back_after`` applied steps (by default never).

        Reads the step's loss, or whether it was applied, and so waits for the device.

        Raises:
            ArgumentError: unless the arguments are those of exactly one of the two conditions.
        """
        policies = Policy.parse(use), Policy.parse(otherwise)
        if loss_below is not None and skips is None and back_after is None:
            below = _number("loss_below", loss_below)
            back = below if back_above is None else _number("back_above", back_above)
            if back < below:
                raise ArgumentError(
                    f"Passed loss_below={below!r} and back_above={back!r}; allowed is "
                    f"back_above from loss_below.\nHint: back_above={1.2 * below!r}"
                )
            return _Switch(*policies, {"loss_below": below, "back_above": back})
        if skips is not None and loss_below is None and back_above is None:
            if back_after is not None:
                back_after = checked_count("back_after", back_after, "back_after=5")
            skips = checked_count("skips", skips, "skips=5")
            return _Switch(*policies, {"skips": skips, "back_after": back_after})
        raise ArgumentError(
            "Schedule.when takes loss_below (and back_above), or skips (and back_after).\n"
            "Hint: Schedule.when(loss_below=0.5, use='O1', otherwise='O0', back_above=0.6)"
        )

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Every policy of the schedule, each once."""
        return tuple(dict.fromkeys(policy for _, policy in self._entries))

    def start(self) -> State:
        """The state before the first step: plain JSON values."""
        return {"step": 0}

    def policy(self, state: State) -> Policy:
        """The policy of the next step."""
        return [policy for first, policy in self._entries if first <= state["step"]][-1]

    def next_state(self, state: State, result: StepResult) -> State:
        """The state after a step, applied or skipped."""
        return {"step": state["step"] + 1}

    def check_state(self, state: Any) -> None:
        """Check that ``state`` is a possible state of this schedule.

        Raises:
            StateError: if it is not.
        """
        first = self.start()
        fits = isinstance(state, dict) and state.keys() == first.keys()
        if fits and all(_is_like(state[name], value) for name, value in first.items()):
            return
        raise StateError(
            f"{state!r:.200} is no state of {self!r}.\n"
            f"Hint: it has the form of {first!r}; pass step.state_dict()'s result unchanged."
        )

    @property
    def counts_skips(self) -> bool:
        """Whether skipped steps change the policy."""
        return False

    @property
    def watches_loss(self) -> bool:
        """Whether the loss changes the policy."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"steps": [[first, policy.to_dict()] for first, policy in self._entries]}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.policies)

    def __repr__(self) -> str:
        return f"Schedule({list(self._entries)!r})"


class _Switch(Schedule):
    """What ``Schedule.when`` makes. ``condition`` has its arguments for the loss, or for skips."""

    def __init__(self, use: Policy, otherwise: Policy, condition: dict[str, Any]) -> None:
        self._use, self._otherwise, self._condition = use, otherwise, condition

    @property
    def policies(self) -> tuple[Policy, ...]:
        return tuple(dict.fromkeys([self._otherwise, self._use]))

    @property
    def counts_skips(self) -> bool:
        return "skips" in self._condition

    @property
    def watches_loss(self) -> bool:
        return not self.counts_skips

    def start(self) -> State:
        return {"using": False, **({"skipped": 0, "applied": 0} if self.counts_skips else {})}

    def policy(self, state: State) -> Policy:
        return self._use if state["using"] else self._otherwise

    def next_state(self, state: State, result: StepResult) -> State:
        is_using, condition = state["using"], self._condition
        if self.watches_loss:
            if is_using:
                return {"using": not result.loss > condition["back_above"]}
            return {"using": result.loss < condition["loss_below"]}
        if is_using:
            applied, enough = state["applied"] + int(result.applied), condition["back_after"]
            back = enough is not None and applied >= enough
            return self.start() if back else {**state, "applied": applied}
        skipped = 0 if result.applied else state["skipped"] + 1
        return {"using": skipped >= condition["skips"], "skipped": skipped, "applied": 0}

    def to_dict(self) -> dict[str, Any]:
        policies = {"use": self._use.to_dict(), "otherwise": self._otherwise.to_dict()}
        return {**policies, **self._condition}

    def __repr__(self) -> str:
        arguments = {"use": self._use, "otherwise": self._otherwise, **self._condition}
        return f"Schedule.when({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"


def _is_like(value: Any, first: Any) -> bool:
    """Whether it is a bool like ``first``, or a count like ``first``."""
    return type(value) is type(first) and (isinstance(value, bool) or 0 <= value < 2**31)


def _checked_entries(entries: Sequence[tuple[int, str | Policy]]) -> tuple[tuple[int, Policy], ...]:
    try:
        pairs = [
            (checked_count("step", n, _EXAMPLE, 0), Policy.parse(policy)) for n, policy in entries
        ]
    except (TypeError, ValueError) as error:
        if isinstance(error, AmpBridgeError):
            raise
        raise ArgumentTypeError(
            f"A schedule is a list of (step, policy), not {entries!r}.\nHint: {_EXAMPLE}"
        ) from error
    firsts = [first for first, _ in pairs]
    if not firsts or firsts[0] != 0 or firsts != sorted(set(firsts)):
        raise ArgumentError(
            f"The steps of a schedule start at 0 and rise; passed {firsts!r}.\nHint: {_EXAMPLE}"
        )
    return tuple(pairs)


_EXAMPLE = "Schedule([(0, 'O0'), (200, 'O1')])"


def _number(name: str, value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and value == value:  # no loss is below NaN, nor above it
        return float(value)
    msg = f"{name} is a number, not {value!r} of type {type(value).__name__}.\nHint: {name}=0.5"
    raise ArgumentTypeError(msg)


def single(policy: str | Policy) -> Policy:
    """``Policy.parse``, for what runs once and so has no steps that a schedule could count."""
    if isinstance(policy, Schedule):
        raise ArgumentTypeError(
            f"{policy!r} chooses a policy for each step, and this call has no steps.\n"
            "Hint: amp.train_step(..., policy=schedule), or schedule.policy(state) in your own loop."
        )
    return Policy.parse(policy)


def from_dict(data: Mapping[str, Any]) -> Policy | Schedule:
    """The policy or schedule that ``to_dict`` described; policies of a schedule may be short forms."""
    if not isinstance(data, Mapping) or not ("steps" in data or "use" in data):
        return Policy.from_dict(data)
    try:
        if "steps" in data:
            return Schedule([(first, _read(policy)) for first, policy in data["steps"]])
        policies = {name: _read(data[name]) for name in ("use", "otherwise")}
        return Schedule.when(**{**data, **policies})
    except (TypeError, ValueError, KeyError) as error:
        if isinstance(error, AmpBridgeError):
            raise
        raise ArgumentTypeError(
            f"{data!r:.200} describes no schedule.\nHint: schedule.to_dict() makes such a dict."
        ) from error


def _read(policy: Any) -> Policy:
    return Policy.parse(policy) if isinstance(policy, str) else Policy.from_dict(policy)
