"""One training step: the loop's only call.

TrainStep.__call__    the policy of this step, micro-batches, counters, the result
  micro_batch.py      loss / accumulate, gradients, unscale, add up, clip: what a backend compiles
    step_or_skip.py   the optimizer's step, or none
    scale_rule.py     the next loss scale
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from os import PathLike
from typing import Any, Literal

from ampbridge.adapters.arguments import (
    backend_of_training,
    check_batch,
    check_that_a_batch_is_spread,
    check_that_it_holds_examples,
    described,
)
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
from ampbridge.adapters.low_storage import slots_told
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
from ampbridge.errors.foreign_names import OF_A_STEP, no_attribute, told_of
from ampbridge.errors.foreign_text import ShownInNotebooks
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import Schedule
from ampbridge.scaling.scaler import GradScaler, scaler_for
from ampbridge.training.decorate import (
    check_nobody_decorated_otherwise,
    fit_to,
    for_steps,
    names_by_id,
    note_trained,
    policy_by_hand,
)
from ampbridge.training.first_look import LookAtGradients, warn_of_own_precision
from ampbridge.training.micro_batch import MicroBatchProgram
from ampbridge.training.recipe import OnOverflow, Recipe
from ampbridge.training.recipe_file import SECTIONS
from ampbridge.training.result import StepResult
from ampbridge.training.scheduler import StepScheduler
from ampbridge.training.step_state import (
    STATE_VERSION,
    CheckedState,
    checked_state,
)


class TrainStep(ShownInNotebooks):
    """A training step made by ``train_step``; call it with a batch.

    If a call raises an exception, the step has not happened: parameters, slots, accumulated gradients,
    scale and counters are as before, and you may try the same batch again. There are three
    exceptions. Random numbers that were drawn, and running statistics of the forward pass, are not
    restored. If an optimizer raises half way through its own step, its partial update stays. An
    exception of a scheduler or of an optimizer's post hook, and an ``OverflowStuckError``, come after a
    step that has happened.
    Ctrl-C takes effect before or after the optimizer's step, never within it.
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
        self._loss_fn, self._scaler = loss_fn, scaler
        self._compiled, self._name_overflows = compiled, name_overflows
        self._schedule_state = {} if recipe.schedule is None else recipe.schedule.start()
        self._decorations = {
            policy: for_steps(backend, model, policy, recipe.save_dtype, recipe.master_grad)
            for policy in recipe.policies
        }
        self._scheduler = (
            None if scheduler is None else StepScheduler(backend, scheduler, optimizer)
        )
        self._look_at_gradients = LookAtGradients(backend, model, optimizer)
        self._trained = Trained(backend, model, optimizer, scheduler)
        # Steps without loss scaling are also checked and counted.
        self._unscaled = GradScaler(1.0, dynamic=False)
        for each in (scaler, self._unscaled):
            if each is not None and each.enabled:
                each.bind(backend, model)
        self._build()
        self._has_looked = False
        self._policy_before: Policy | None = None  # since it was made or loaded
        self._slots_told = False
        self._steps = 0
        self._micro_steps = 0
        self._total: Sequence[Array] | None = None

    def _build(self) -> None:
        """Make the step's program, for the scaler's settings of this moment, which a trace keeps."""
        backend, recipe, scaler = self._backend, self._recipe, self._scaler
        self._built_for = None if scaler is None else (scaler.config, scaler.enabled)
        own = scaler if scaler is not None and scaler.enabled else self._unscaled
        # The scaler of a schedule scales the steps that need it.
        self._counting = {
            policy: own if recipe.schedule is None or policy.needs_scaling else self._unscaled
            for policy in recipe.policies
        }
        build = MicroBatchProgram(
            backend,
            self.model,
            self.optimizer,
            recipe,
            self._counting,
            self._unscaled,
            self._look_at_gradients,
            self._name_overflows,
        ).build
        loss_fn = self._loss_fn
        self._program = backend.compile(build, loss_fn) if self._compiled else build(loss_fn)

    # The settings of the step; to change one of these, make another step.

    @property
    def scaler(self) -> GradScaler | None:
        """The loss scaler; None without one."""
        return self._scaler

    @property
    def loss_fn(self) -> LossFn:
        """The loss function, as it was passed."""
        return self._loss_fn

    @property
    def accumulate(self) -> int:
        """The number of micro-batches per step."""
        return self._recipe.accumulate

    @property
    def clip_norm(self) -> float | None:
        """The largest allowed joint 2-norm of the gradients; None without clipping."""
        return self._recipe.clip_norm

    @property
    def clip_each_norm(self) -> float | None:
        """The largest allowed 2-norm of each gradient; None without such clipping."""
        return self._recipe.clip_each_norm

    @property
    def clip_value(self) -> float | None:
        """The largest allowed magnitude in the gradients; None without such clipping."""
        return self._recipe.clip_value

    @property
    def on_overflow(self) -> OnOverflow:
        """Whether an overflow in a micro-batch drops the step or only the micro-batch."""
        return self._recipe.on_overflow

    @property
    def name_overflows(self) -> bool:
        """Whether results name the parameters whose gradients were not finite."""
        return self._name_overflows

    @property
    def policy(self) -> Policy:
        """The policy of the next step."""
        if isinstance(self._plan, Policy):
            return self._plan
        return self._plan.policy(self._schedule_state)

    def __call__(self, /, *batch: Any, **named: Any) -> StepResult:
        """Train on one batch, or micro-batch, of NumPy arrays or native tensors, also nested ones.

        Calls ``loss_fn(model, *batch, **named)``.
        """
        backend, recipe, plan, scaler = self._backend, self._recipe, self._plan, self._scaler
        with Whole():
            final = self._micro_steps + 1 == recipe.accumulate
            policy = plan if isinstance(plan, Policy) else self.policy
            check_that_it_holds_examples(batch)
            if self._scheduler is not None:
                self._scheduler.before_a_step()
            if scaler is not None and (scaler.config, scaler.enabled) != self._built_for:
                self._build()
            run = self._program if self._has_looked else self._first_program(policy)
            wanted = self._decorations[policy]
            if backend.decoration(self.model, self.optimizer) is not wanted:
                before = self._policy_before
                check_nobody_decorated_otherwise(
                    backend, self.model, plan, self._decorations, policy, before
                )
                with slots_told.during(self._slots_told and before is None):
                    fit_to(backend, self.model, self.optimizer, wanted)
            if policy.float32 != "default":
                run = partial(self._in_float32_of, policy, run)
            try:
                output = run(policy, final, self._total, (batch, named))
            except Exception as error:
                check_that_a_batch_is_spread(self._loss_fn, batch, named, error)
                check_batch(backend, (batch, named), error)
                raise
            if recipe.on_overflow == "drop_microbatch" and int(output.overflow) != FINITE:
                return self._result(output, policy)
            if not final:
                self._micro_steps, self._total = self._micro_steps + 1, output.grads
                return StepResult(output, self._steps, accumulating=True)
            self._micro_steps, self._total = 0, None
            self._policy_before = policy
            self._steps += 1
            if isinstance(plan, Schedule):
                if plan.watches_loss:  # on all ranks the same
                    output = output._replace(loss=backend.mean_loss(output.loss, self.model))
                counted = StepResult(output, self._steps)  # without alarms, which may raise
                self._schedule_state = plan.next_state(self._schedule_state, counted)
            if self._scheduler is not None and bool(output.applied):
                self._scheduler.advance()
            if output.raised is not None:
                raise output.raised
            return self._result(output, policy)

    def reset(self) -> None:
        """Drop the accumulated gradients: the next micro-batch is the first of a step.

        Use it after an interrupt, for example, or before ``save``. Weights, scale and counters do not
        change. A change of the scale by ``on_overflow="drop_microbatch"`` is not undone.
        """
        self._micro_steps, self._total = 0, None

    def _first_program(self, policy: Policy) -> Program:
        """The program of the first step, with a look at what it trains, and under which precision."""
        run, notice = self._program, partial(warn_of_own_precision, policy)
        noticing = self._backend.noticing_own_precision(self.model, notice)

        def program(*arguments: Any) -> StepOutput:
            with noticing, self._look_at_gradients.watching():
                output = run(*arguments)
            self._has_looked = True
            note_trained(self.model)
            return output

        return program

    def _in_float32_of(self, policy: Policy, run: Program, *arguments: Any) -> StepOutput:
        with self._backend.float32(policy):
            return run(*arguments)

    def _result(self, output: StepOutput, policy: Policy) -> StepResult:
        """The result of a checked step. It gives the alarms at once where nobody waits for them."""
        names, after = self._parameter_names() if self._name_overflows else (), output.after
        is_on_host = after is not None and isinstance(after.scale, float)
        kind = output.overflow if isinstance(output.overflow, int) else None
        if is_on_host and kind == FINITE:
            return StepResult(output, self._steps, names=names)  # there is nothing to tell
        alarm = partial(self._counting[policy].sound_alarms, after)
        if is_on_host or kind not in (None, FINITE):
            alarm()
            return StepResult(output, self._steps, names=names)
        return StepResult(output, self._steps, alarm=alarm, names=names)

    def _parameter_names(self) -> list[str]:
        """The names of the optimizer's parameters; those outside of the model are named by index."""
        names = names_by_id(self._backend, self.model)
        trained = enumerate(self._backend.parameters(self.optimizer))
        return [names.get(id(p), name_of(place)) for place, p in trained]

    def state_dict(self) -> dict[str, Any]:
        """The state of the step as plain JSON values.

        Keys: ``version``, ``step``, ``policy`` (or the schedule), ``schedule`` (the schedule's state;
        empty for a policy), ``scaler`` (None without one), ``unscaled`` (the same counters for steps
        without loss scaling).

        Save between steps, not between micro-batches: accumulated gradients are not included.

        Raises:
            StateError: between micro-batches.
        """
        if self._micro_steps:
            raise StateError(
                f"state_dict() after {self._micro_steps} of {self.accumulate} micro-batches would "
                "lose their gradients.\nHint: save when result.reason != 'accumulating'; or "
                "step.reset(), which drops them."
            )
        return {
            "version": STATE_VERSION,
            "step": self._steps,
            "policy": self._plan.to_dict(),
            "schedule": self._schedule_state,
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "unscaled": self._unscaled.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of ``state_dict()``.

        Raises:
            StateError: if it does not fit this step; nothing is changed then.
        """
        self._take(self._checked(state))

    def _checked(self, state: Mapping[str, Any]) -> CheckedState:
        return checked_state(state, self._backend, self._plan, self.scaler, self._unscaled)

    def _take(self, checked: CheckedState) -> None:
        if self.scaler is not None and checked.scaler is not None:
            self.scaler.take_state(checked.scaler)
        counts = checked.unscaled[0]._replace(scale=1.0)
        self._unscaled.take_state((counts, self._unscaled.config, True))
        self._steps, self._schedule_state = checked.step, checked.schedule
        self._policy_before, self._slots_told = None, checked.slots_told
        self._micro_steps, self._total = 0, None

    def save(self, path: str | PathLike[str]) -> None:
        """Save everything that training needs to continue to the folder ``path``, without pickle.

        A JSON file contains ``state_dict()``, the optimizer's settings and the scheduler's state. A
        safetensors file contains float32 weights (masters), buffers, the optimizer's slots, and the
        optimizer's parameters outside of the model. The states of random generators and the position
        in the data are not saved.

        After a crash or with a full disk, the previous checkpoint is still complete. Saves to one path
        wait for each other; loads wait for none. If several ranks train one model, every rank calls
        this method, and one of them writes.

        Raises:
            StateError: between micro-batches, or if ``path`` contains something else.
            UnsupportedError: for an optimizer or a scheduler whose state is not plain data.
            WriteError: if the files cannot be written, for example because the disk is full.
        """
        training_state.save(path, self._trained, self.state_dict())

    def load(self, path: str | PathLike[str]) -> None:
        """Continue from a checkpoint of ``save``, with the same bits.

        Works with any number of ranks; each of them calls this method.

        Raises:
            StateError: if the checkpoint is damaged or does not fit; nothing is changed then.
        """
        saved = training_state.read(path)
        checked = self._checked(saved.training)
        with Whole():
            self._leave_16_bits(checked)
            with slots_told.during(checked.slots_told):
                training_state.take_over(saved, self._trained)
            self._take(checked)

    def _leave_16_bits(self, checked: CheckedState) -> None:
        """Undecorate a model that would round what is loaded before the schedule's policy keeps it."""
        if isinstance(self._plan, Policy):
            return
        note_trained(self.model)
        present = self._backend.decoration(self.model, None)
        is_other = present is not None and present.policy != self._plan.policy(checked.schedule)
        if is_other and any(present is each for each in self._decorations.values()):
            fit_to(self._backend, self.model, self.optimizer, None)

    def adopt(self, path: str | PathLike[str], mapping: Mapping[str, str] | None = None) -> Report:
        """Continue from a checkpoint of any framework, with a fresh optimizer state.

        Loads the scaler, the schedule, the counters, and the weights as ``amp.load_weights`` does. It
        does not load parameters that the optimizer trained outside of the model, and reports them as
        not used.

        Returns:
            A report of the pairs of weights; it prints as a table.

        Raises:
            StateError: if the checkpoint is damaged or does not fit; nothing is changed then.
        """
        saved = training_state.read(path)
        with slots_told.during(True):  # none is loaded
            checked = self._checked(saved.training)._replace(slots_told=False)
        with Whole():
            self._leave_16_bits(checked)
            report = training_state.take_weights(saved, self._backend, self.model, mapping)
            self._take(checked)
        return report

    def __getattr__(self, name: str) -> Any:
        raise no_attribute(self, name, OF_A_STEP)

    def __repr__(self) -> str:
        parts = [type(part).__name__ for part in (self.model, self.optimizer)]
        return f"TrainStep({', '.join(parts)}, step={self._steps}, policy={self._plan!r})"

    def __str__(self) -> str:
        recipe, usual = self._recipe, Recipe()
        settings = {
            "policy": self.policy if recipe.schedule is None else recipe.schedule,
            "scaler": self.scaler,
            **{k: v for k in SECTIONS["step"] if (v := getattr(recipe, k)) != getattr(usual, k)},
        }
        lines = [f"{name}: {value}" for name, value in settings.items()]
        model, optimizer = type(self.model).__name__, type(self.optimizer).__name__
        title = f"A step of {model} and {optimizer} on {self._backend.name}, {self._steps} taken"
        return "\n".join([title, *lines])

    # -- copies

    def __deepcopy__(self, memo: dict[int, Any]) -> TrainStep:
        """A step that continues from here, with copies of model, optimizer, scaler and scheduler.

        Raises:
            UnsupportedError: for classes of models, optimizers or schedulers that cannot be copied.
        """
        memo[id(self._backend)] = self._backend
        try:
            model, optimizer = self._backend.copied(self.model, self.optimizer, memo)
            scheduler = self._trained.scheduler
            parts = self._loss_fn, self._scaler, scheduler, self._schedule_state, self._total
            loss_fn, scaler, scheduler, schedule_state, total = deepcopy(parts, memo)
        except AmpBridgeError:
            raise
        except Exception as error:  # whatever classes of others raise
            raise UnsupportedError(
                f"{described(self.model)} and {described(self.optimizer)} cannot be copied: "
                f"{type(error).__name__}: {str(error).strip():.200}.\n{_ANEW}"
            ) from error
        copied = memo[id(self)] = TrainStep(
            loss_fn,
            model,
            optimizer,
            backend=self._backend,
            recipe=self._recipe,
            scaler=scaler,
            scheduler=scheduler,
            name_overflows=self._name_overflows,
            compiled=self._compiled,
        )
        copied._unscaled.load_state_dict(self._unscaled.state_dict())
        copied._schedule_state, copied._steps = schedule_state, self._steps
        copied._policy_before = self._policy_before
        if self._policy_before is not None:
            note_trained(model)
        copied._micro_steps, copied._total = self._micro_steps, total
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UnsupportedError(
            "A TrainStep cannot be pickled, nor copied without its model: it contains functions and "
            f"compiled programs.\n{_ANEW}"
        )


_ANEW = "Hint: step.save(path); then step.load(path) in a new step of a new model and optimizer"


@told_of("train_step")
def train_step(
    loss_fn: LossFn,
    model: Model,
    optimizer: Optimizer,
    *,
    policy: str | Policy | Schedule | None = None,
    scaler: GradScaler | Literal["auto"] | None = "auto",
    accumulate: int | None = None,
    clip_norm: float | None = None,
    clip_each_norm: float | None = None,
    clip_value: float | None = None,
    scheduler: Any = None,
    compile: bool | Literal["auto"] = "auto",
    on_overflow: OnOverflow | None = None,
    name_overflows: bool = False,
    recipe: Recipe | None = None,
) -> TrainStep:
    """Make a callable that trains ``model`` on one batch: ``result = step(x, y)``.

    Args:
        loss_fn: ``loss_fn(model, *batch, **named)`` returns a scalar loss, or ``(loss, aux)``. The loss
            has to be a mean over the batch if micro-batches are accumulated.
        model, optimizer: native objects of one framework; they are not wrapped. The step trains the
            optimizer's parameters, also those outside of the model (a criterion's weights). A Keras
            optimizer trains the variables with which it was built, by default the model's.
        policy: a Policy, its short form, or a Schedule of them. The default is the policy with which
            ``decorate`` has decorated the model, or "O1".
        scaler: a GradScaler; "auto" creates one if the policy needs it; None for no loss scaling.
        accumulate: the number of micro-batches per step, 1 by default; their gradients are averaged.
        clip_norm: the largest allowed joint 2-norm of the unscaled gradients. Gradients are clipped in
            one way at most: by this, or by one of the next two.
        clip_each_norm: the largest allowed 2-norm of each unscaled gradient by itself, as of
            ``paddle.nn.ClipGradByNorm`` and Keras' ``clipnorm``.
        clip_value: the largest allowed magnitude of each number in the unscaled gradients, as of
            ``clip_grad_value_``, ``paddle.nn.ClipGradByValue`` and Keras' ``clipvalue``.
        scheduler: an object with ``step()``, or a callable; only applied steps advance it. One of torch
            that was made with another optimizer is refused. If it has ``state_dict()`` and
            ``load_state_dict()``, it is saved and loaded with the step. You have to save the state of
            a plain function or method yourself.
        compile: True compiles with ``tf.function``, ``torch.compile`` or ``to_static``; "auto" compiles
            on TensorFlow and JAX and runs eagerly on the others. What is traced on TensorFlow and
            Paddle goes on with the Python values that ``loss_fn`` read then, a float that it closes over
            or an attribute. Pass a value that changes with the batch, ``step(x, y, np.float32(weight))``,
            or hold it in a variable of the framework.
        on_overflow: the effect of an overflow in a micro-batch. "drop_step", the default, drops the
            whole step, as in torch and Paddle. "drop_microbatch" drops only that micro-batch, as in
            Keras, and the step takes another one in its place. Then every micro-batch is checked,
            updates the scale, and waits for the device.
        name_overflows: ``result.overflows`` names the parameters whose gradients were not finite, at
            the cost of another pass over the gradients.
        recipe: a Recipe instead of policy, scaler, accumulate, clipping and on_overflow. Leave these
            at their defaults then.

    Steps without loss scaling are also checked, and skipped if they overflow.

    The step leaves no gradients behind: on torch and Paddle ``.grad`` is as it was before.

    At O2, and if layers are kept in float32, each step first decorates model and optimizer for its
    policy; ``amp.undecorate`` undoes that after the last step. A call refuses a model that is decorated
    with a policy which is none of the step's: by ``amp.decorate``; or by another step, if one of the two
    keeps weights or slots in 16 bits, to which it would round what the other has trained, also where both
    have one schedule and are not at the same policy.

    Raises:
        AmpBridgeError: for invalid arguments, or arguments that contradict each other.
    """
    backend = backend_of_training(loss_fn, model, optimizer)
    settings = {
        "accumulate": accumulate,
        "clip_norm": clip_norm,
        "clip_each_norm": clip_each_norm,
        "clip_value": clip_value,
        "on_overflow": on_overflow,
    }
    passed: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    if recipe is None:
        if policy is None:
            policy = policy_by_hand(backend, model) or "O1"
        if isinstance(policy, Schedule):
            recipe = Recipe(schedule=policy, **passed, scaler=None)
        else:
            recipe = Recipe(Policy.parse(policy), **passed, scaler=None)
    else:
        if not isinstance(recipe, Recipe):
            msg = f"recipe is an ampbridge.Recipe, not {recipe!r}.\n"
            raise ArgumentTypeError(msg + "Hint: recipe=amp.Recipe.load('recipe.toml')")
        if scaler != "auto" or policy is not None or passed:
            raise ArgumentError(
                "A recipe replaces policy, scaler, accumulate, clipping and on_overflow; "
                "one of these was passed as well.\nHint: recipe=recipe.replace(accumulate=4)"
            )
        scaler = None if recipe.scaler is None else recipe.scaler.make()
    if compile != "auto" and not isinstance(compile, bool):
        raise ArgumentError(
            f"Passed compile={compile!r}; allowed are True, False and 'auto'.\nHint: compile='auto'"
        )
    return TrainStep(
        loss_fn,
        model,
        optimizer,
        backend=backend,
        recipe=recipe,
        scaler=scaler_for(recipe.policies, scaler),
        scheduler=scheduler,
        name_overflows=checked_flag("name_overflows", name_overflows),
        compiled=backend.compiles_by_default if compile == "auto" else compile,
    )
