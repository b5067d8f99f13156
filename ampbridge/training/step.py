"""One training step: the loop's only call.

loop -> train_step -> policy (what) -> backend.gradients (casts, differentiates)
                   -> backend.unscale -> clip -> backend.apply or skip -> the rule -> StepResult
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from os import PathLike
from typing import Any, Literal

from ampbridge.adapters.arguments import backend_of_training, described
from ampbridge.adapters.backend import (
    FINITE,
    Array,
    Backend,
    LossFn,
    Model,
    Optimizer,
    Program,
    StepOutput,
)
from ampbridge.adapters.interrupts import Whole
from ampbridge.checkpoints import training_state
from ampbridge.checkpoints.outside import name_of
from ampbridge.checkpoints.training_state import Trained
from ampbridge.checkpoints.weights import Report
from ampbridge.errors import (
    AmpBridgeError,
    ArgumentError,
    ArgumentTypeError,
    StateError,
    UnsupportedError,
)
from ampbridge.errors.flags import checked_flag
from ampbridge.errors.foreign_names import OF_A_STEP, no_attribute
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import Schedule, parse
from ampbridge.scaling.scale_rule import ScalerConfig
from ampbridge.scaling.scaler import GradScaler
from ampbridge.training.decorate import fit_to, for_steps

# Here for one release, for whoever imports it from ampbridge.step.
from ampbridge.training.own_loop import value_and_grad as value_and_grad
from ampbridge.training.recipe import Recipe
from ampbridge.training.result import StepResult
from ampbridge.training.step_program import StepProgram
from ampbridge.training.step_settings import (
    OnOverflow,
    checked_compile,
    checked_scheduler,
    scaler_for,
)
from ampbridge.training.step_state import STATE_VERSION, CheckedState, checked_state


class TrainStep:
    """A training step made by ``train_step``; call it with a batch.

    A call that raises has not happened: parameters, slots, gradients so far, scale and counters are as
    before it, and the same batch may be tried again. Not so are random numbers that were drawn and
    running statistics of the forward pass, nor what an optimizer has moved that raises half way. What
    a scheduler or an ``OverflowStuckError`` raises comes after a step that has happened. Ctrl-C comes
    before or after the optimizer's step, never within it.
    """

    def __init__(
        self,
        loss_fn: LossFn,
        model: Model,
        optimizer: Optimizer,
        *,
        backend: Backend,
        recipe: Recipe,
        scaler: GradScaler | None,
        scheduler: Any,
        name_overflows: bool,
        compiled: bool,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._backend, self._recipe, self._plan = backend, recipe, recipe.plan
        self._loss_fn, self._compiled = loss_fn, compiled
        self._schedule_state = {} if recipe.schedule is None else recipe.schedule.start()
        self._decorations = {
            policy: for_steps(backend, model, policy, recipe.save_dtype, recipe.master_grad)
            for policy in recipe.policies
        }
        self._scheduler, self._advance_scheduler = scheduler, checked_scheduler(scheduler)
        self._trained = Trained(backend, model, optimizer, scheduler)
        # Steps that are not scaled are checked and counted as well.
        self._unscaled = GradScaler(1.0, dynamic=False)
        for each in (scaler, self._unscaled):
            if each is not None and each.enabled:
                each.bind(backend, model)
        self._calculation = StepProgram(
            backend, model, optimizer, recipe, scaler, self._unscaled, name_overflows
        )
        build = self._calculation.build
        self._make_program = (
            partial(backend.compile, build, loss_fn) if compiled else partial(build, loss_fn)
        )
        self._program, self._settings = self._make_program(), self._scaler_settings()
        self._steps = 0
        self._micro_steps = 0
        self._total: Sequence[Array] | None = None

    # What it was made with; to change one of these, make another step.

    @property
    def scaler(self) -> GradScaler | None:
        """The one that was given, or made; None without one."""
        return self._calculation.scaler

    @property
    def accumulate(self) -> int:
        """Micro-batches a step."""
        return self._recipe.accumulate

    @property
    def clip_norm(self) -> float | None:
        """The largest joint 2-norm of the gradients; None for any."""
        return self._recipe.clip_norm

    @property
    def on_overflow(self) -> OnOverflow:
        """What an overflow in a micro-batch drops."""
        return self._recipe.on_overflow

    @property
    def name_overflows(self) -> bool:
        """Whether results say which parameters' gradients were not finite."""
        return self._calculation.name_overflows

    @property
    def policy(self) -> Policy:
        """The policy of the next step."""
        if isinstance(self._plan, Policy):
            return self._plan
        return self._plan.policy(self._schedule_state)

    def __call__(self, /, *batch: Any, **named: Any) -> StepResult:
        """Run one batch, or micro-batch, of NumPy arrays or native tensors, also nested ones.

        ``loss_fn`` is called with it: ``loss_fn(model, *batch, **named)``.
        """
        with Whole():
            final = self._micro_steps + 1 == self.accumulate
            policy = self.policy
            fit_to(self._backend, self.model, self.optimizer, self._decorations[policy])
            output = self._present_program()(policy, final, self._total, (batch, named))
            if self.on_overflow == "drop_microbatch" and int(output.overflow) != FINITE:
                return self._result(output, policy)
            if not final:
                self._micro_steps, self._total = self._micro_steps + 1, output.grads
                return self._result(output, policy, accumulating=True)
            self._micro_steps, self._total = 0, None
            self._steps += 1
            if (
                isinstance(self._plan, Schedule) and self._plan.watches_loss
            ):  # on all ranks the same
                output = output._replace(loss=self._backend.mean_loss(output.loss, self.model))
            counted = StepResult(output, self._steps)  # without alarms, which may raise
            if isinstance(self._plan, Schedule):
                self._schedule_state = self._plan.next_state(self._schedule_state, counted)
            if self._advance_scheduler is not None and counted.applied:
                self._advance_scheduler()
            return self._result(output, policy)

    def reset(self) -> None:
        """Drop the gradients of the micro-batches so far: the next one is the first of a step.

        After an interrupt, say, or ahead of ``save``. Weights, scale and counters stay as they are,
        and so does a scale that ``on_overflow="drop_microbatch"`` has moved.
        """
        self._micro_steps, self._total = 0, None

    def _present_program(self) -> Program:
        """The step's program, made anew where the scaler's settings, which a trace holds, have changed."""
        settings = self._scaler_settings()
        if settings != self._settings:
            self._program, self._settings = self._make_program(), settings
        return self._program

    def _scaler_settings(self) -> tuple[ScalerConfig, bool] | None:
        return None if self.scaler is None else (self.scaler.config, self.scaler.enabled)

    def _result(
        self, output: StepOutput, policy: Policy, *, accumulating: bool = False
    ) -> StepResult:
        if accumulating:
            return StepResult(output, self._steps, accumulating=True)
        alarm = partial(self._calculation.counting(policy).sound_alarms, output.after)
        names = self._parameter_names() if self.name_overflows else ()
        result = StepResult(output, self._steps, alarm=alarm, names=names)
        costs_nothing = output.after is not None and output.after.is_on_host
        if costs_nothing or (isinstance(output.overflow, int) and output.overflow != FINITE):
            result._raise_alarm()
        return result

    def _parameter_names(self) -> list[str]:
        """Of the optimizer's parameters: those in the model, and their places in it of others."""
        backend, model = self._backend, self.model
        pairs = zip(backend.parameters(model), backend.parameter_names(model), strict=True)
        names = {id(parameter): name for parameter, name in pairs}
        trained = enumerate(backend.parameters(self.optimizer))
        return [names.get(id(p), name_of(place)) for place, p in trained]

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON values: ``version``, ``step``, ``policy`` (or schedule), ``schedule`` (what it
        remembers; empty for a policy), ``scaler`` (None without one), ``unscaled`` (the same of steps
        without loss scaling, which are counted as well).

        Save between steps, not between micro-batches: gradients so far are not part of it.

        Raises:
            StateError: between micro-batches.
        """
        if self._micro_steps:
            msg = (
                f"state_dict() after {self._micro_steps} of {self.accumulate} micro-batches would "
                "lose their gradients.\nHint: save when result.reason != 'accumulating'; or "
                "step.reset(), which drops them."
            )
            raise StateError(msg)
        return {
            "version": STATE_VERSION,
            "step": self._steps,
            "policy": self._plan.to_dict(),
            "schedule": self._schedule_state,
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "unscaled": self._unscaled.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over ``state_dict()``'s result, also that of an older version.

        Raises:
            StateError: if it does not fit this step; nothing is changed then.
        """
        self._take(self._checked(state))

    def _checked(self, state: Mapping[str, Any]) -> CheckedState:
        return checked_state(state, self._plan, self.scaler, self._unscaled)

    def _take(self, checked: CheckedState) -> None:
        if self.scaler is not None and checked.scaler is not None:
            self.scaler.take_state(checked.scaler)
        counts = checked.unscaled[0]._replace(scale=1.0)
        self._unscaled.take_state((counts, self._unscaled.config, True))
        self._steps, self._schedule_state = checked.step, checked.schedule
        self._micro_steps, self._total = 0, None

    def save(self, path: str | PathLike[str]) -> None:
        """Save all that training goes on with to the folder ``path``, without pickle.

        JSON: ``state_dict()``, the optimizer's settings, the scheduler's state. Safetensors: float32
        weights (masters), buffers, the optimizer's slots, and those of its parameters that are not in the
        model. A crash or a full disk leaves the checkpoint
        that was there whole; saves to one path wait for each other, loads for none. Not part of it:
        random number generators and the place in the data.

        Every one of several ranks that train one model calls it; one of them writes.

        Raises:
            StateError: between micro-batches, or if ``path`` holds something else.
            UnsupportedError: for an optimizer or a scheduler whose state is no data.
            WriteError: if the files cannot be written, for want of room for one.
        """
        training_state.save(path, self._trained, self.state_dict())

    def load(self, path: str | PathLike[str]) -> None:
        """Go on from what ``save`` saved, bit by bit; on any number of ranks, each of which calls it.

        Raises:
            StateError: if it is damaged or does not fit; nothing is changed then.
        """
        saved = training_state.read(path)
        checked = self._checked(saved.training)
        with Whole():
            training_state.take_over(saved, self._trained)
            self._take(checked)

    def adopt(self, path: str | PathLike[str], mapping: Mapping[str, str] | None = None) -> Report:
        """Go on from what a step of any framework has saved, but for its optimizer, which starts anew.

        Scaler, schedule and counters are taken over; so are the weights, as by ``amp.load_weights``.
        What the optimizer trained outside of the model is not, and reported as not used.

        Returns:
            What was matched with what; it prints as a table.

        Raises:
            StateError: if it is damaged or does not fit; nothing is changed then.
        """
        saved = training_state.read(path)
        checked = self._checked(saved.training)
        with Whole():
            report = training_state.take_weights(saved, self._backend, self.model, mapping)
            self._take(checked)
        return report

    def __getattr__(self, name: str) -> Any:
        raise no_attribute(self, name, OF_A_STEP)

    # -- copies

    def __deepcopy__(self, memo: dict[int, Any]) -> TrainStep:
        """A step that goes on from here with copies of all: model, optimizer, scaler, scheduler.

        Raises:
            UnsupportedError: for classes of models, optimizers or schedulers that cannot be copied.
        """
        memo[id(self._backend)] = self._backend
        try:
            model, optimizer = self._backend.copied(self.model, self.optimizer, memo)
            parts = self._loss_fn, self.scaler, self._scheduler, self._schedule_state, self._total
            loss_fn, scaler, scheduler, schedule_state, total = deepcopy(parts, memo)
        except AmpBridgeError:
            raise
        except Exception as error:  # whatever classes of others raise
            msg = (
                f"{described(self.model)} and {described(self.optimizer)} cannot be copied: "
                f"{type(error).__name__}: {str(error).strip():.200}.\n{_ANEW}"
            )
            raise UnsupportedError(msg) from error
        copied = memo[id(self)] = TrainStep(
            loss_fn,
            model,
            optimizer,
            backend=self._backend,
            recipe=self._recipe,
            scaler=scaler,
            scheduler=scheduler,
            name_overflows=self.name_overflows,
            compiled=self._compiled,
        )
        copied._unscaled.load_state_dict(self._unscaled.state_dict())
        copied._schedule_state, copied._steps = schedule_state, self._steps
        copied._micro_steps, copied._total = self._micro_steps, total
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        msg = (
            "A TrainStep is neither pickled nor copied without its model: it holds functions, and "
            f"programs made of them.\n{_ANEW}"
        )
        raise UnsupportedError(msg)


_ANEW = "Hint: step.save(path); and where a step of a model and an optimizer made anew is, step.load(path)"


def train_step(
    loss_fn: LossFn,
    model: Model,
    optimizer: Optimizer,
    *,
    policy: str | Policy | Schedule | None = None,
    scaler: GradScaler | Literal["auto"] | None = "auto",
    accumulate: int | None = None,
    clip_norm: float | None = None,
    scheduler: Any = None,
    compile: bool | Literal["auto"] = "auto",
    on_overflow: OnOverflow | None = None,
    name_overflows: bool = False,
    recipe: Recipe | None = None,
) -> TrainStep:
    """A callable that trains ``model`` by one batch: ``result = step(x, y)``.

    Args:
        loss_fn: ``loss_fn(model, *batch, **named)`` returns a scalar loss (a mean over the batch, if
            micro-batches are accumulated), or ``(loss, aux)``.
        model, optimizer: native, of one framework. They stay the user's own. What the optimizer
            holds is trained, also what is not in the model (a criterion's weights); of Keras, what
            it was built for, or the model's variables.
        policy: a Policy, its short form, or a Schedule of them; "O1" if nothing else is said.
        scaler: a GradScaler; "auto" makes one where the policy needs it; None for none.
        accumulate: micro-batches a step, one if nothing else is said; their gradients are averaged.
        clip_norm: clips the joint 2-norm of the unscaled gradients.
        scheduler: an object with ``step()`` or a callable, advanced only by applied steps. Saved
            and loaded with the step if it has ``state_dict()`` and ``load_state_dict()``; the state
            of a plain function or method is yours to save.
        compile: ``tf.function`` / ``torch.compile`` / ``to_static``; "auto" as the framework's
            users expect: compiled on TensorFlow, eager elsewhere.
        on_overflow: where micro-batches are accumulated, an overflow in one of them drops the whole
            step, as in torch and Paddle ("drop_step", the default); or, with "drop_microbatch" as in
            Keras, that micro-batch alone, and one more is taken. Then each micro-batch is checked,
            moves the scale, and waits for the device.
        name_overflows: make ``result.overflows`` say which parameters' gradients were not finite,
            at the cost of another pass over the gradients.
        recipe: all of this as one value, in the place of policy, scaler, accumulate, clip_norm and
            on_overflow. None, and "auto" for the scaler, leave the say to the recipe.

    Steps without loss scaling are checked and skipped likewise.

    At O2, and wherever layers are kept, each step first decorates model and optimizer for its policy;
    ``amp.undecorate`` takes that back after the last one.

    Raises:
        AmpBridgeError: for arguments that cannot work together.
    """
    backend = backend_of_training(loss_fn, model, optimizer)
    settings = {"accumulate": accumulate, "clip_norm": clip_norm, "on_overflow": on_overflow}
    passed: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    if recipe is None:
        plan = parse("O1" if policy is None else policy)
        kind = "schedule" if isinstance(plan, Schedule) else "policy"
        recipe = Recipe(**{kind: plan, **passed}, scaler=None)
    else:
        _check_it_stands_alone(recipe, scaler, policy, passed)
        scaler = None if recipe.scaler is None else recipe.scaler.make()
    return TrainStep(
        loss_fn,
        model,
        optimizer,
        backend=backend,
        recipe=recipe,
        scaler=scaler_for(recipe.policies, scaler),
        scheduler=scheduler,
        name_overflows=checked_flag("name_overflows", name_overflows),
        compiled=backend.compiles_by_default if compile == "auto" else checked_compile(compile),
    )


def _check_it_stands_alone(recipe: Recipe, scaler: Any, policy: Any, passed: Any) -> None:
    """A recipe is passed in the place of what it says itself.

    Raises:
        ArgumentTypeError: if it is no recipe.
        ArgumentError: if something was passed beside it.
    """
    if not isinstance(recipe, Recipe):
        msg = f"recipe is an ampbridge.Recipe, not {recipe!r}.\n"
        raise ArgumentTypeError(msg + "Hint: recipe=amp.Recipe.load('recipe.toml')")
    if scaler != "auto" or policy is not None or passed:
        msg = (
            "The recipe says what policy, scaler, accumulate, clip_norm and on_overflow are; "
            "something else was passed beside it.\nHint: recipe=recipe.replace(accumulate=4)"
        )
        raise ArgumentError(msg)
