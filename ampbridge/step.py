"""One training step: the loop's only call.

loop -> train_step -> policy (what) -> backend.gradients (casts, differentiates)
                   -> backend.unscale -> clip -> backend.apply or skip -> the rule -> StepResult
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ampbridge import registry
from ampbridge.backend import (
    FINITE,
    INF,
    Array,
    Backend,
    LossFn,
    Model,
    Optimizer,
    StepOutput,
)
from ampbridge.decorate import fit_to, kept_layers
from ampbridge.errors import (
    AmpBridgeWarning,
    ArgumentError,
    ArgumentTypeError,
    CallOrderError,
    StateError,
)
from ampbridge.policy import Policy
from ampbridge.scaler import Gradients, GradScaler
from ampbridge.schedule import Schedule, from_dict, parse, single
from ampbridge.tracing import called_as_it_is

STATE_VERSION = 1

Reason = Literal["inf", "nan", "accumulating"]


class StepResult:
    """What a step did. Each property reaches the host when it is read, not before."""

    __slots__ = ("_accumulating", "_output", "step")

    def __init__(self, output: StepOutput, step: int, accumulating: bool) -> None:
        self._output = output
        self._accumulating = accumulating
        self.step = step
        """How many optimizer steps were tried so far, this one included."""

    @property
    def loss(self) -> float:
        """The loss, neither scaled nor divided by ``accumulate``."""
        return float(self._output.loss)

    @property
    def aux(self) -> Any:
        """What ``loss_fn`` returned beside the loss, native."""
        return self._output.aux

    @property
    def scale(self) -> float:
        """The loss scale of this step; 1.0 without a scaler."""
        return 1.0 if self._output.scale is None else float(self._output.scale)

    @property
    def applied(self) -> bool:
        """Whether the optimizer was stepped."""
        return not self._accumulating and bool(self._output.applied)

    @property
    def grad_norm(self) -> float | None:
        """The joint 2-norm before clipping; None without ``clip_norm``."""
        return None if self._output.grad_norm is None else float(self._output.grad_norm)

    @property
    def reason(self) -> Reason | None:
        """Why it was not applied: "inf", "nan" (NaN and no inf), "accumulating"; None if it was."""
        if self._accumulating:
            return "accumulating"
        found = FINITE if self._output.found is None else int(self._output.found)
        return None if found == FINITE else "inf" if found == INF else "nan"

    @property
    def consecutive_skips(self) -> int:
        """Skipped steps in a row, this one included."""
        skips = self._output.consecutive_skips
        return 0 if skips is None else int(skips)

    def __repr__(self) -> str:
        return (
            f"StepResult(step={self.step}, loss={self.loss:.6g}, applied={self.applied}, "
            f"scale={self.scale:g}, reason={self.reason!r})"
        )


class TrainStep:
    """A training step made by ``train_step``; call it with a batch."""

    def __init__(
        self,
        loss_fn: LossFn,
        model: Model,
        optimizer: Optimizer,
        *,
        backend: Backend,
        policy: Policy | Schedule,
        scaler: GradScaler | None,
        accumulate: int,
        clip_norm: float | None,
        scheduler: Callable[[], Any] | None,
        compiled: bool,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.scaler = scaler
        self._plan = policy
        self._schedule_state = policy.start() if isinstance(policy, Schedule) else {}
        self.accumulate, self.clip_norm = accumulate, clip_norm
        self._backend = backend
        policies = policy.policies if isinstance(policy, Schedule) else (policy,)
        self._kept = {each: kept_layers(backend, model, each) for each in policies}
        self._advance_scheduler = scheduler
        if scaler is not None and scaler.enabled:
            scaler.bind(backend, model)
        self._program = backend.compile(self._build, loss_fn) if compiled else self._build(loss_fn)
        self._steps = 0
        self._micro_steps = 0
        self._total: Sequence[Array] | None = None

    @property
    def policy(self) -> Policy:
        """The policy of the next step."""
        if isinstance(self._plan, Policy):
            return self._plan
        return self._plan.policy(self._schedule_state)

    def __call__(self, *batch: Any) -> StepResult:
        """Run one batch, or micro-batch, of NumPy arrays or native tensors."""
        final = self._micro_steps + 1 == self.accumulate
        policy = self.policy
        fit_to(self._backend, self.model, self.optimizer, policy, self._kept[policy])
        output = self._program(policy, final, self._total, batch)
        if not final:
            self._micro_steps += 1
            self._total = output.grads
            return StepResult(output, self._steps, accumulating=True)
        self._micro_steps, self._total = 0, None
        self._steps += 1
        result = StepResult(output, self._steps, accumulating=False)
        if self._advance_scheduler is not None and result.applied:
            self._advance_scheduler()
        if isinstance(self._plan, Schedule):
            self._schedule_state = self._plan.next_state(self._schedule_state, result)
        return result

    def _build(self, loss_fn: LossFn) -> Callable[..., StepOutput]:
        """The step as a function of native values; a backend may trace it.

        ``policy`` and ``final`` (the last micro-batch, which steps) are fixed for one trace.
        """
        loss_and_aux = _returning_aux(loss_fn)

        def program(
            policy: Policy, final: bool, total: Sequence[Array] | None, batch: Sequence[Any]
        ) -> StepOutput:
            backend = self._backend
            scaler = self._scaler_under(policy)
            scale = scaler.store.read().scale if scaler else None
            loss, aux, grads = backend.gradients(
                loss_and_aux, self.model, batch, policy, self._factor(scale), total
            )
            if not final:
                return StepOutput(loss, aux, grads, scale, None, None, None, None)
            found = norm = skips = None
            if scaler is not None:
                grads, found = backend.unscale(grads, scale)
            if self.clip_norm is not None:
                grads, norm = backend.clip(grads, self.clip_norm)
            parameters = backend.parameters(self.model)
            applied = backend.apply(self.optimizer, parameters, grads, found)
            if scaler is not None:
                scaler.store.update(found, scaler.config)
                skips = scaler.store.read().consecutive_skips
            return StepOutput(loss, aux, None, scale, found, applied, norm, skips)

        return program

    def _scaler_under(self, policy: Policy) -> GradScaler | None:
        """The scaler, if steps under ``policy`` are scaled.

        It is used under the one policy that it was given with; under a schedule, where the policy
        needs it.
        """
        if self.scaler is None or not self.scaler.enabled:
            return None
        return self.scaler if isinstance(self._plan, Policy) or policy.needs_scaling else None

    def _factor(self, scale: Any) -> Any:
        """What the loss is multiplied by: the scale, shared among the micro-batches."""
        if self.accumulate == 1:
            return scale
        return 1.0 / self.accumulate if scale is None else scale / self.accumulate

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON values: ``version``, ``step``, ``policy`` (or schedule), ``schedule`` (what it
        remembers; empty for a policy), ``scaler`` (None without one).

        Save between steps, not between micro-batches: gradients so far are not part of it.

        Raises:
            StateError: between micro-batches.
        """
        if self._micro_steps:
            msg = (
                f"state_dict() after {self._micro_steps} of {self.accumulate} micro-batches would "
                "lose their gradients.\nHint: save when result.reason != 'accumulating'."
            )
            raise StateError(msg)
        return {
            "version": STATE_VERSION,
            "step": self._steps,
            "policy": self._plan.to_dict(),
            "schedule": self._schedule_state,
            "scaler": self.scaler.state_dict() if self.scaler else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over ``state_dict()``'s result.

        Raises:
            StateError: if it does not fit this step; nothing is changed then.
        """
        expected = {"version", "step", "policy", "schedule", "scaler"}
        if set(state) != expected or state["version"] != STATE_VERSION:
            msg = (
                f"Not a train_step state of version {STATE_VERSION}: keys {sorted(map(str, state))}.\n"
                f"Hint: pass step.state_dict()'s result, keys {sorted(expected)}."
            )
            raise StateError(msg)
        plan = from_dict(state["policy"])
        if plan != self._plan:
            msg = (
                f"The state was saved under {plan!r}, this step runs {self._plan!r}.\n"
                f"Hint: amp.train_step(..., policy={plan!r})"
            )
            raise StateError(msg)
        if (state["scaler"] is None) != (self.scaler is None):
            has, wants = ("no", "a") if state["scaler"] is None else ("a", "no")
            msg = f"The state has {has} scaler, this step has {wants} scaler.\n"
            raise StateError(msg + "Hint: make the step with the scaler= it was saved with.")
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        self._steps = int(state["step"])
        self._schedule_state = state["schedule"]
        self._micro_steps, self._total = 0, None


def train_step(
    loss_fn: LossFn,
    model: Model,
    optimizer: Optimizer,
    *,
    policy: str | Policy | Schedule = "O1",
    scaler: GradScaler | Literal["auto"] | None = "auto",
    accumulate: int = 1,
    clip_norm: float | None = None,
    scheduler: Any = None,
    compile: bool | Literal["auto"] = "auto",
) -> TrainStep:
    """A callable that trains ``model`` by one batch: ``result = step(x, y)``.

    Args:
        loss_fn: ``loss_fn(model, *batch)`` returns a scalar loss (a mean over the batch, if
            micro-batches are accumulated), or ``(loss, aux)``.
        model, optimizer: native, of one framework. They stay the user's own.
        policy: a Policy, its short form, or a Schedule of them.
        scaler: a GradScaler; "auto" makes one where the policy needs it; None for none.
        accumulate: micro-batches a step; their gradients are averaged.
        clip_norm: clips the joint 2-norm of the unscaled gradients.
        scheduler: an object with ``step()`` or a callable, advanced only by applied steps.
        compile: ``tf.function`` / ``torch.compile`` / ``to_static``; "auto" as the framework's
            users expect: compiled on TensorFlow, eager elsewhere.

    At O2, and wherever layers are kept, each step sees to it that model and optimizer are decorated
    for its policy; ``amp.undecorate`` takes that back after the last one.

    Raises:
        AmpBridgeError: for arguments that cannot work together.
    """
    chosen = registry.backend(registry.check_same_framework(model, optimizer))
    plan = parse(policy)
    policies = plan.policies if isinstance(plan, Schedule) else (plan,)
    return TrainStep(
        _callable(loss_fn),
        model,
        optimizer,
        backend=chosen,
        policy=plan,
        scaler=_scaler_for(policies, scaler),
        accumulate=_checked_accumulate(accumulate),
        clip_norm=_checked_clip_norm(clip_norm),
        scheduler=_schedule_step(scheduler),
        compiled=chosen.compiles_by_default if compile == "auto" else _checked_compile(compile),
    )


def value_and_grad(
    loss_fn: LossFn,
    model: Model,
    *batch: Any,
    policy: str | Policy = "O1",
    scaler: GradScaler | None = None,
) -> tuple[Any, Gradients]:
    """The loss and the gradients of ``model``'s parameters, for loops of one's own.

        loss, grads = amp.value_and_grad(loss_fn, model, x, y, policy="O1", scaler=scaler)
        scaler.step(optimizer, grads)
        scaler.update()

    With a ``scaler`` the gradients come scaled, for ``scaler.unscale`` or ``scaler.step``.

    At O2 model and optimizer have to be decorated before; elsewhere the policy holds for the call.

    Returns:
        The loss as a native float32 scalar, ``(loss, aux)`` if ``loss_fn`` returned a pair; and
        the gradients, in the order of the model's trainable parameters.

    Raises:
        CallOrderError: if the model is not decorated, or is with another policy.
    """
    parsed = single(policy)
    backend = registry.backend(registry.framework_of(model))
    factor = None
    if scaler is not None and scaler.enabled:
        scaler.bind(backend, model)
        factor = scaler.store.read().scale
    _fit_for_own_loop(backend, model, parsed)
    paired = _returning_aux(_callable(loss_fn))
    loss, aux, grads = backend.gradients(paired, model, batch, parsed, factor, None)
    gradients = Gradients(grads, backend.parameters(model))
    return (loss, gradients) if aux is None else ((loss, aux), gradients)


@called_as_it_is
def _fit_for_own_loop(backend: Backend, model: Model, policy: Policy) -> None:
    """What ``decorate`` did is the user's: it is asked to be under the same policy, and not redone."""
    present = backend.decoration(model, None)
    decorated = present.policy if present is not None and present.standalone else None
    if decorated == policy:
        return
    if decorated is not None or policy.level == "O2":
        is_it = f"decorated with {decorated!r}" if decorated else "not decorated"
        hint = (
            f"policy={decorated!r}, or amp.undecorate(model, optimizer) before."
            if decorated
            else f"model, optimizer = amp.decorate(model, optimizer, {policy!r})"
        )
        msg = f"value_and_grad under {policy!r} of a model that is {is_it}.\nHint: {hint}"
        raise CallOrderError(msg)
    fit_to(backend, model, None, policy, kept_layers(backend, model, policy))


def _returning_aux(loss_fn: LossFn) -> LossFn:
    """``loss_fn`` made to return ``(loss, aux)``, the loss checked to be a scalar."""

    def loss_and_aux(model: Model, *batch: Any) -> tuple[Array, Any]:
        output = loss_fn(model, *batch)
        loss, aux = output if isinstance(output, tuple) and len(output) == 2 else (output, None)
        dimensions = getattr(loss, "ndim", loss)
        if dimensions is loss:
            msg = (
                f"loss_fn returned {type(loss).__name__}, not a tensor.\n"
                "Hint: def loss_fn(model, x, y): return loss  # or (loss, aux)"
            )
            raise ArgumentTypeError(msg)
        if dimensions:
            msg = (
                f"loss_fn returned a loss of shape {tuple(loss.shape)}; a scalar is needed.\n"
                "Hint: return loss.mean()"
            )
            raise ArgumentError(msg)
        return loss, aux

    return loss_and_aux


def _scaler_for(policies: Sequence[Policy], scaler: GradScaler | str | None) -> GradScaler | None:
    in_need = next((policy for policy in policies if policy.needs_scaling), None)
    if scaler == "auto":
        return GradScaler() if in_need else None
    if scaler is not None and not isinstance(scaler, GradScaler):
        kind = f"{type(scaler).__module__}.{type(scaler).__qualname__}"
        msg = (
            f"scaler is an ampbridge.GradScaler, 'auto' or None, not {scaler!r} ({kind}).\n"
            "Hint: scaler = amp.GradScaler(); scaler.load_state_dict(theirs.state_dict())"
        )
        raise ArgumentTypeError(msg)
    if in_need and (scaler is None or not scaler.enabled):
        msg = (
            f"{in_need!r} without loss scaling: gradients under 6e-8 become zero.\n"
            "Hint: scaler='auto', or a bfloat16 policy, which needs none."
        )
        warnings.warn(msg, AmpBridgeWarning, stacklevel=3)
    return scaler


def _callable(loss_fn: Any) -> LossFn:
    if callable(loss_fn):
        function: LossFn = loss_fn
        return function
    msg = f"loss_fn is a function of (model, *batch), not {loss_fn!r}.\n"
    raise ArgumentTypeError(msg + "Hint: def loss_fn(model, x, y): return loss")


def _schedule_step(scheduler: Any) -> Callable[[], Any] | None:
    if scheduler is None:
        return None
    advance = getattr(scheduler, "step", scheduler)
    if callable(advance) and not _is_rate_schedule(scheduler):
        step: Callable[[], Any] = advance
        return step
    msg = (
        f"scheduler is an object with step() or a function, not {type(scheduler).__name__}.\n"
        "Hint: a Keras LearningRateSchedule goes to the optimizer, learning_rate=schedule; it "
        "follows optimizer.iterations, which stands still on skipped steps."
    )
    raise ArgumentTypeError(msg)


def _is_rate_schedule(scheduler: Any) -> bool:
    """Whether it computes a rate from a step number (Keras), rather than advancing by itself."""
    return not hasattr(scheduler, "step") and hasattr(scheduler, "get_config")


def _checked_accumulate(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    msg = f"Passed accumulate={value!r}; allowed is a whole number from 1.\nHint: accumulate=4"
    raise ArgumentError(msg)


def _checked_clip_norm(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return float(value)
    msg = f"Passed clip_norm={value!r}; allowed is a positive number or None.\nHint: clip_norm=1.0"
    raise ArgumentError(msg)


def _checked_compile(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    msg = f"Passed compile={value!r}; allowed are True, False and 'auto'.\nHint: compile='auto'"
    raise ArgumentError(msg)
