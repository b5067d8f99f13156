"""Dynamic loss scaling, the same on every backend."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from ampbridge.adapters import registry
from ampbridge.adapters.arguments import check_masters, check_optimizer, check_that_it_holds_some
from ampbridge.adapters.backend import FINITE, Array, Backend, Optimizer, Scalar, ScaleStore
from ampbridge.adapters.calling_code import warn
from ampbridge.adapters.nested import map_leaves
from ampbridge.adapters.tracing import called_as_it_is
from ampbridge.errors import ArgumentTypeError, CallOrderError
from ampbridge.errors.flags import checked_flag
from ampbridge.errors.foreign_names import OF_A_SCALER, no_attribute, told_of
from ampbridge.policies.policy import Policy
from ampbridge.scaling.native_scaler import NATIVE, to_native
from ampbridge.scaling.presets import preset
from ampbridge.scaling.scale_rule import (
    ALARMS,
    AtMaxScale,
    AtMinScale,
    BackoffCount,
    HostStore,
    ScalerConfig,
    ScaleState,
)
from ampbridge.scaling.scaled_once import check_that_nobody_else_scales
from ampbridge.scaling.scaler_state import LoadedState, read_state, write_state
from ampbridge.scaling.skip_alarm import Told, sound
from ampbridge.scaling.step_or_skip import step_or_skip

_Loss = TypeVar("_Loss")


class Gradients(Sequence[Array]):
    """Gradients as values, with their parameters.

    ``found`` is the overflow: None before unscaling, then FINITE, INF or NAN.
    """

    def __init__(
        self, values: Sequence[Array], parameters: Sequence[Array], found: Scalar = None
    ) -> None:
        self.values = list(values)
        self.parameters = list(parameters)
        self.found = found

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def __len__(self) -> int:
        return len(self.values)


@dataclass
class _Checked:
    """One optimizer since the last ``update``. A reference to it keeps its id unique."""

    optimizer: Optimizer
    gradients: Gradients
    has_stepped: bool = False
    applied: Scalar = None


class GradScaler:
    """Multiplies the loss, unscales the gradients, skips steps that overflowed, adapts the scale.

    The rule is in ``ampbridge.scaling.scale_rule``. A hand-written loop:

        scaled = scaler.scale(loss)          # float32 loss x scale
        scaled.backward()                    # the framework's own
        scaler.unscale(optimizer)            # optional, to clip unscaled gradients
        scaler.step(optimizer)               # skipped if a gradient is inf or NaN
        scaler.update()                      # once an iteration, after every optimizer

    Several optimizers may share one scaler: each skips according to its own gradients, and the scale
    backs off if any of them overflowed.

    Args:
        init_scale: the initial scale; the default, 2**16, is also torch's and Paddle's.
        growth_factor, backoff_factor: the scale is multiplied by these when it grows or backs off.
        growth_interval: the number of finite steps in a row before the scale grows.
        backoff_interval: the number of overflowed steps in a row before the scale backs off
            (Paddle's ``decr_every_n_nan_or_inf``).
        min_scale, max_scale: bounds of the scale.
        dynamic: False keeps ``init_scale``, but overflowed steps are still skipped.
        enabled: False disables scaling, unscaling and skipping.
        growth_delay: the number of finite steps, at the start and after each overflow, that do not
            count for growth.
        backoff_count: how overflows are counted. "consecutive" starts again after a finite step and
            after a backoff. "until_finite" starts again only after a finite step, "until_growth" only
            when the scale grows; every overflow past the interval then backs off (DeepSpeed's and
            Megatron's hysteresis).
        at_max_scale: when growth would exceed ``max_scale``, "clamp" stops at it, and "keep" skips
            the growth.
        at_min_scale: an overflow at ``min_scale`` changes nothing ("stay") or raises an
            ``OverflowStuckError`` ("raise").
        warn_after_skips, max_consecutive_skips: after so many skipped steps in a row, warn, or raise
            an ``OverflowStuckError``; None for never. A separate warning comes at the eighth step in
            a row with NaN but no inf, which no scale cures. ``update`` gives these alarms at once if
            the host knows that a step was skipped. It does not know in traced code, and with
            optimizers on a GPU whose own kernel decides. There the alarms come when ``get_scale`` or
            ``found_inf`` is called, or a ``StepResult`` is read; no alarm is lost until then.

    Raises:
        ArgumentError, ArgumentTypeError: for invalid settings.
    """

    @told_of("GradScaler")
    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        backoff_interval: int = 1,
        *,
        min_scale: float = 2.0**-24,
        max_scale: float = 2.0**24,
        dynamic: bool = True,
        enabled: bool = True,
        growth_delay: int = 0,
        backoff_count: BackoffCount = "consecutive",
        at_max_scale: AtMaxScale = "clamp",
        at_min_scale: AtMinScale = "stay",
        warn_after_skips: int | None = 25,
        max_consecutive_skips: int | None = 1000,
    ) -> None:
        self.config = ScalerConfig(
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            backoff_interval=backoff_interval,
            min_scale=min_scale,
            max_scale=max_scale,
            dynamic=dynamic,
            growth_delay=growth_delay,
            backoff_count=backoff_count,
            at_max_scale=at_max_scale,
            at_min_scale=at_min_scale,
            warn_after_skips=warn_after_skips,
            max_consecutive_skips=max_consecutive_skips,
        )
        self.enabled = checked_flag("enabled", enabled)
        self.store: ScaleStore = HostStore(self.config.first_state(init_scale))
        """Where the state is; ``bind`` may move it to a device."""
        self._backend: Backend | None = None
        self._checked: defaultdict[int, dict[int, _Checked]] = defaultdict(dict)
        self._alarms = Told()
        self._has_scaled = False

    @classmethod
    def like(cls, name: str, **overrides: Any) -> GradScaler:
        """A scaler with the rule and the initial scale of another library.

        ``name``: "torch", "paddle", "paddle_fleet", "keras", "apex", "deepspeed", "megatron",
        "flax", "jmp" or "mindspore". ``ampbridge.scaling.presets`` has each rule as data, with its source.

        Args:
            overrides: arguments of ``GradScaler`` that replace the other library's defaults.

        Raises:
            ArgumentError: for an unknown name.
        """
        return cls(**{**preset(name).settings, **overrides})

    # -- the four calls of a training loop

    @called_as_it_is
    def scale(self, loss: _Loss) -> _Loss:
        """Multiply ``loss``, cast to float32, by the scale; also lists, tuples and dicts of losses.

        Does not wait for a device.

        Raises:
            CallOrderError: inside of a ``loss_fn`` whose loss ``train_step`` or ``value_and_grad`` scales.
        """
        if not self.enabled:
            return loss
        check_that_nobody_else_scales()
        scaled: _Loss = map_leaves(self._scaled, loss)
        return scaled

    def _scaled(self, loss: Any) -> Any:
        backend = self._bound_to(loss)
        return backend.cast(loss, "float32") * self.factor(backend, loss)

    @called_as_it_is
    def unscale(self, owner: Optimizer | Sequence[Array]) -> Gradients:
        """Divide gradients by the scale and check them before ``step``, for example to clip them.

        Args:
            owner: on torch and Paddle an optimizer. Its gradients are changed in place; 16-bit ones
                become float32, so that small values are not lost before clipping. On TensorFlow and
                NumPy the gradients; pass the result to ``step``.

        Raises:
            CallOrderError: if this optimizer's gradients were unscaled already since the last
                ``update``; if there is no gradient at all; if this scaler has never scaled a loss.
            ArgumentError: if parameters are float16 without masters, and no policy has said so.
        """
        if isinstance(owner, (Gradients, list, tuple)):
            return self._unscale_values(owner)
        check_optimizer(owner, self._backend)
        record = self._records.get(id(owner))
        if record is not None:
            what = "step()" if record.has_stepped else "unscale()"
            raise CallOrderError(
                f"unscale() of this optimizer after {what}, since the last update().\n"
                "Hint: call unscale() once an iteration, before step(), and update() at its end; after an "
                "iteration that was cut short, update() alone."
            )
        backend = self._bound_to(owner)
        stored = Gradients(backend.stored_gradients(owner), backend.parameters(owner))
        if self.enabled:
            check_masters(backend, owner, stored.parameters, stored.values)
        gradients = self._unscale_values(stored, owner)
        self._records[id(owner)] = _Checked(owner, gradients)
        return gradients

    @called_as_it_is
    def step(self, optimizer: Optimizer, grads: Sequence[Array] | None = None) -> bool:
        """Step ``optimizer`` unless its gradients overflowed; unscales them first if necessary.

        A skipped step changes no parameter and no slot. Reads one number from the device, unless
        the optimizer's own kernel decides.

        Args:
            grads: the gradients from ``value_and_grad`` or ``unscale``; by default, those that the
                framework stores in the parameters.

        Returns:
            Whether the optimizer was stepped (a symbolic bool in traced code).

        Raises:
            CallOrderError: on a second call since the last ``update``; also as ``unscale``.
            ArgumentError: as ``unscale``.
        """
        check_optimizer(optimizer, self._backend)
        record = self._records.get(id(optimizer))
        if record is not None and record.has_stepped:
            raise CallOrderError(
                "step() of this optimizer has been called already since the last update().\n"
                "Hint: scaler.step(optimizer); scaler.update()"
            )
        gradients = self._gradients_for(optimizer, grads, record)
        backend = self._bound_to(optimizer)
        check_that_it_holds_some(backend, optimizer, gradients.parameters)
        applied: bool
        applied, raised = step_or_skip(
            backend, optimizer, gradients.parameters, gradients.values, gradients.found
        )
        self._records[id(optimizer)] = _Checked(optimizer, gradients, True, applied)
        if raised is not None:
            raise raised
        return applied

    @called_as_it_is
    def update(self, new_scale: float | None = None) -> None:
        """Grow the scale or back it off, depending on the steps since the last ``update``.

        Args:
            new_scale: sets the scale instead, as in torch. Waits for the device.

        Raises:
            ArgumentError: for a ``new_scale`` outside of the bounds.
            CallOrderError: if there were no steps.
            OverflowStuckError: if too many steps were skipped in a row; the scale has been updated.
        """
        if new_scale is not None:
            if self.enabled:
                checked = self.config.check_scale(new_scale, "new_scale")
                self.store.write(self.store.read()._replace(scale=checked))
            self._records.clear()
            return
        records = list(self._records.values())
        if not records:
            raise CallOrderError(
                "update() without a step() or unscale() since the last one: nothing was checked.\n"
                "Hint: scaler.step(optimizer); scaler.update()"
            )
        self._records.clear()
        kinds = [each.gradients.found for each in records if each.gradients.found is not None]
        if self.enabled and kinds:
            self.store.update(self._bound_to(records[0].optimizer).worst(kinds), self.config)
            overflowed = any(isinstance(kind, int) and kind != FINITE for kind in kinds)
            if overflowed or any(record.applied is False for record in records):
                self.sound_alarms()  # the host knows of a skip, without waiting

    @called_as_it_is
    def minimize(self, optimizer: Optimizer, scaled_loss: Any) -> bool:
        """``step`` and ``update`` in one call, as in Paddle; call ``scaled_loss.backward()`` before it."""
        del scaled_loss  # its gradients are in the parameters already; the name is Paddle's
        applied = self.step(optimizer)
        self.update()
        return applied

    # -- queries

    def get_scale(self) -> float:
        """The current scale, 1.0 if disabled. Waits for the device.

        Raises:
            OverflowStuckError: if too many steps were skipped in a row; raised once.
        """
        self.sound_alarms()
        return self._present_scale()

    def _present_scale(self) -> float:
        return float(self.store.read().scale) if self.enabled else 1.0

    def found_inf(self, optimizer: Optimizer) -> bool:
        """Whether ``optimizer``'s gradients had inf or NaN since the last ``update``. Waits for the device.

        Raises:
            CallOrderError: if they were not checked since.
            OverflowStuckError: as ``get_scale``, for the steps before.
        """
        self.sound_alarms()
        record = self._records.get(id(optimizer))
        if record is None:
            raise CallOrderError(
                "found_inf() of an optimizer whose gradients were not checked since update().\n"
                "Hint: scaler.unscale(optimizer) checks them."
            )
        found = record.gradients.found
        return found is not None and int(found) > 0

    def state_dict(self) -> dict[str, Any]:
        """The state as plain JSON values, with the same keys on every backend. Waits for the device.

        Keys: ``version``, ``enabled``, ``scale``, ``good_steps`` and ``bad_steps`` (in a row, so
        far), ``consecutive_skips`` and ``consecutive_nans``, the numbers of alarms that are due but
        not given yet (usually 0), and the settings under their argument names.
        """
        state = self._alarms.pending(self.store.read().on_host())
        return write_state(state, self.config, self.enabled)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of ``state_dict()``, or of torch's, Paddle's or Keras' scaler.

        Raises:
            StateError: if it is none of these, or a value is not allowed; nothing is changed then.
        """
        self.take_state(self.checked_state(state))

    def checked_state(self, state: Mapping[str, Any]) -> LoadedState:
        """Check a state for ``take_state``, without changing anything.

        Raises:
            StateError: as ``load_state_dict``.
        """
        return read_state(state, self.config, self.enabled)

    def take_state(self, loaded: LoadedState) -> None:
        """Load a state that ``checked_state`` returned."""
        state, self.config, self.enabled = loaded
        self.store.write(state)
        self._checked.clear()
        self._alarms = Told()

    # -- the frameworks' own scalers

    def to_native(self, framework: str, *, optimizer: Any = None, drop: Sequence[str] = ()) -> Any:
        """A scaler of ``framework`` ("torch", "paddle", "tensorflow") in the state of this one.

        Args:
            optimizer: the Keras optimizer for the ``LossScaleOptimizer`` to wrap.
            drop: settings that may be lost; the frameworks' scalers have no bounds, for example.

        Raises:
            UnsupportedError: if the framework's scaler does not support a setting; the message names
                these settings.
        """
        return to_native(self.state_dict(), framework, optimizer, drop)

    @classmethod
    def from_native(cls, scaler: Any) -> GradScaler:
        """A scaler in the state of a framework's own: torch's, Paddle's or Keras'.

        Raises:
            BackendNotFoundError, ArgumentTypeError: if ``scaler`` is not one of these.
        """
        framework = registry.framework_of(scaler)
        converted = cls.like(NATIVE[framework][0])
        converted.load_state_dict(registry.backend(framework).native_scaler_state(scaler))
        return converted

    # -- for train_step and value_and_grad

    def sound_alarms(self, state: ScaleState | None = None) -> None:
        """Give the alarms about skipped steps that are due and were not given yet. Waits for the device.

        Args:
            state: the state after some step; None for the current one.

        Raises:
            OverflowStuckError: if too many steps were skipped in a row, or the scale is at its minimum.
        """
        if not self.enabled:
            return
        now = self.store.read() if state is None else state
        if not isinstance(now.scale, float):
            now = now.on_host()
        if now[ALARMS] != self._alarms:
            given, self._alarms = self._alarms, self._alarms.with_all_of(Told.due_in(now))
            sound(given, now, self.config, in_own_loop=state is None)

    def bind(self, backend: Backend, like: Any) -> None:
        """Move the state to the store of ``backend``, once.

        Raises:
            ArgumentTypeError: if this scaler is bound to another backend already.
        """
        if self._backend is None:
            self.store = backend.scale_store(self.store.read(), like) or self.store
            self._backend = backend
        elif self._backend.name != backend.name:
            raise ArgumentTypeError(
                f"This GradScaler works for {self._backend.name} and was given something of "
                f"{backend.name}.\nHint: other = GradScaler(); "
                "other.load_state_dict(scaler.state_dict())"
            )

    def factor(self, backend: Backend, like: Any) -> Scalar:
        """The factor for a loss, None if disabled; moves the state to the device of ``like``."""
        if not self.enabled:
            return None
        self.bind(backend, like)
        self._has_scaled = True
        return self.store.read().scale

    @property
    def _records(self) -> dict[int, _Checked]:
        """The optimizers checked since the last ``update``, by the running replica."""
        return self._checked[0 if self._backend is None else self._backend.replica()]

    def _bound_to(self, obj: Any) -> Backend:
        """The backend of a loss or an optimizer; it must be the same for all of them."""
        present = self._backend
        if present is not None and registry.framework_of_type(type(obj)) in (None, present.name):
            return present
        if obj is None or isinstance(obj, (str, int, float)):
            msg = f"The scaler takes a loss or an optimizer of a framework, not {obj!r:.80}.\n"
            raise ArgumentTypeError(msg + "Hint: scaler.scale(loss)")
        backend = registry.backend(obj)
        self.bind(backend, obj)
        return backend

    def _unscale_values(
        self, grads: Sequence[Array], optimizer: Optimizer | None = None
    ) -> Gradients:
        if not isinstance(grads, Gradients):
            grads = Gradients(grads, ())
        if grads.found is not None:
            raise CallOrderError(
                "These gradients have been unscaled already.\n"
                "Hint: grads = scaler.unscale(grads), once; then scaler.step(optimizer, grads)."
            )
        if not self.enabled:
            return grads
        if not self._has_scaled:
            raise CallOrderError(
                "These gradients would be divided by a loss scale that this GradScaler has multiplied no "
                "loss by.\nHint: scaler.scale(loss).backward(), before step() and unscale(); or "
                "amp.value_and_grad(..., scaler=scaler)"
            )
        backend = self._backend
        if backend is None or all(gradient is None for gradient in grads):
            raise CallOrderError(
                "There is not one gradient to unscale: nothing was differentiated since gradients were "
                "cleared, or the loss does not depend on these parameters.\n"
                "Hint: scaler.scale(loss).backward(), before step() and unscale(), with a loss that "
                "depends on them."
            )
        scale = self.store.read().scale
        values, overflow = backend.unscale_for(optimizer, grads.values, scale)
        return Gradients(values, grads.parameters, overflow)

    def _gradients_for(
        self, optimizer: Optimizer, grads: Sequence[Array] | None, record: _Checked | None
    ) -> Gradients:
        if grads is None:
            if record is None:
                return self.unscale(optimizer)
            # Unscaled; the caller may have replaced them since.
            present = self._bound_to(optimizer).stored_gradients(optimizer)
            return Gradients(present, record.gradients.parameters, record.gradients.found)
        if not isinstance(grads, Gradients) or grads.found is None:
            grads = self._unscale_values(grads, optimizer)
        backend = self._bound_to(optimizer)
        parameters = grads.parameters or backend.parameters(optimizer)
        gradients = Gradients(grads.values, parameters, grads.found)
        if self.enabled:
            check_masters(backend, optimizer, gradients.parameters, gradients.values)
        return gradients

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles.

        Raises:
            CallOrderError: between ``unscale`` or ``step`` and ``update``.
        """
        if any(self._checked.values()):
            raise CallOrderError(
                "A GradScaler can be copied or pickled only between iterations: gradients checked since "
                "the last update() belong to an optimizer.\nHint: scaler.update(), then copy.deepcopy(scaler)"
            )
        return {**vars(self), "_checked": defaultdict(dict)}

    def __getattr__(self, name: str) -> Any:
        raise no_attribute(self, name, OF_A_SCALER)

    def __repr__(self) -> str:
        changed = [
            f"{f.name}={value!r}"
            for f in fields(self.config)
            if (value := getattr(self.config, f.name)) != f.default
        ]
        if not self.enabled:
            changed.append("enabled=False")
        return f"GradScaler({', '.join([f'{self._present_scale()!r}', *changed])})"


def scaler_for(policies: Sequence[Policy], scaler: GradScaler | str | None) -> GradScaler | None:
    """The scaler of steps under ``policies``: "auto" makes one where one of them needs it.

    Warns where one is needed and there is none.
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
    """A scaler, or None for none; ``allowed`` says in the message what may be passed."""
    if scaler is None or isinstance(scaler, GradScaler):
        return scaler
    hint = f"scaler=amp.GradScaler({scaler!r})"
    if not isinstance(scaler, (int, float)) or isinstance(scaler, bool):
        hint = "scaler = amp.GradScaler()"
    if hasattr(scaler, "state_dict"):
        hint += "; scaler.load_state_dict(theirs.state_dict())"
    raise ArgumentTypeError(
        f"scaler is {allowed}, not {scaler!r} ({registry.full_name(type(scaler))}).\nHint: {hint}"
    )
