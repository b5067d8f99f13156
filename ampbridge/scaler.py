"""Dynamic loss scaling, the same on every backend."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from ampbridge import registry
from ampbridge.backend import FINITE, Array, Backend, Optimizer, Scalar, ScaleStore
from ampbridge.errors import ArgumentTypeError, CallOrderError
from ampbridge.native_scaler import NATIVE, to_native
from ampbridge.presets import preset
from ampbridge.scale_rule import (
    AtMaxScale,
    AtMinScale,
    BackoffCount,
    HostStore,
    ScalerConfig,
    ScaleState,
)
from ampbridge.scaler_state import LoadedState, read_state, write_state
from ampbridge.skip_alarm import SkipAlarm
from ampbridge.tracing import called_as_it_is


class Gradients(Sequence[Array]):
    """Gradients as values, with the parameters they belong to.

    ``found`` is None until they have been unscaled, then what the check found.
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

    def __iter__(self) -> Iterator[Array]:
        return iter(self.values)


class _Stage(Enum):
    UNSCALED = "unscaled"
    STEPPED = "stepped"


@dataclass
class _Checked:
    """One optimizer since the last ``update``. Holds it, so that its id stays its own."""

    optimizer: Optimizer
    stage: _Stage
    gradients: Gradients
    found: Scalar


class GradScaler:
    """Multiplies the loss, divides the gradients, skips a step that overflowed, adapts the scale.

    The rule is in ``ampbridge.scale_rule``. A loop by hand:

        scaled = scaler.scale(loss)          # float32 loss x scale
        scaled.backward()                    # the framework's own
        scaler.unscale(optimizer)            # optional, to clip in true units
        scaler.step(optimizer)               # skipped if a gradient is inf or NaN
        scaler.update()                      # once an iteration, after every optimizer

    Several optimizers may share one scaler: each is skipped by its own gradients, and the scale
    backs off if any of them overflowed.

    Args:
        init_scale: the first scale. Torch's and Paddle's default, 2**16.
        growth_factor, backoff_factor: what the scale is multiplied by.
        growth_interval: finite steps in a row before it grows.
        backoff_interval: overflowed steps in a row before it backs off (Paddle's
            ``decr_every_n_nan_or_inf``).
        min_scale, max_scale: bounds that the scale never leaves.
        dynamic: False keeps ``init_scale`` and still skips.
        enabled: False makes every method pass through.
        growth_delay: finite steps at the start and after each overflow that do not count.
        backoff_count: overflows are counted "consecutive", anew after a finite step and after a
            backoff; or "until_finite" or "until_growth", where each overflow past the interval
            backs off (DeepSpeed's and Megatron's hysteresis).
        at_max_scale: a scale that would grow past ``max_scale`` is "clamp"-ed to it, or "keep"-s
            its value.
        at_min_scale: an overflow at ``min_scale`` changes nothing ("stay") or is an
            ``OverflowStuckError`` ("raise").
        warn_after_skips, max_consecutive_skips: steps skipped in a row after which to warn, and to
            raise an ``OverflowStuckError``; None for never. NaN without inf, which no scale cures, is
            warned of after eight. Seen when the count is on the host:
            at once on the CPU, elsewhere when a result is read.

    Raises:
        ArgumentError, ArgumentTypeError: for numbers outside of their range.
    """

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
            growth_factor,
            backoff_factor,
            growth_interval,
            backoff_interval,
            min_scale,
            max_scale,
            bool(dynamic),
            growth_delay,
            backoff_count,
            at_max_scale,
            at_min_scale,
            warn_after_skips,
            max_consecutive_skips,
        )
        self.enabled = bool(enabled)
        self._store: ScaleStore = HostStore(self.config.first_state(init_scale))
        self._backend: Backend | None = None
        self._checked: defaultdict[int, dict[int, _Checked]] = defaultdict(dict)
        self._alarm = SkipAlarm()

    @classmethod
    def like(cls, name: str, **overrides: Any) -> GradScaler:
        """A scaler that follows the rule of another library, from its own first scale on.

        ``name``: "torch", "paddle", "paddle_fleet", "keras", "apex", "deepspeed", "megatron",
        "flax", "jmp" or "mindspore". ``ampbridge.presets`` has each rule as data, with its source.

        Args:
            overrides: arguments of ``GradScaler``, in its own meaning, that take the place of the
                other library's defaults.

        Raises:
            ArgumentError: for a name that is not known.
        """
        return cls(**{**preset(name).settings, **overrides})

    # -- the four calls of a training loop

    @called_as_it_is
    def scale(self, loss: Any) -> Any:
        """``loss`` in float32 times the scale; lists, tuples and dicts of losses likewise.

        Does not wait for a device.
        """
        if not self.enabled:
            return loss
        if isinstance(loss, Mapping):
            return {name: self.scale(value) for name, value in loss.items()}
        if isinstance(loss, (list, tuple)):
            return type(loss)(self.scale(value) for value in loss)
        backend = self._bound_to(loss)
        return backend.cast(loss, "float32") * self._store.read().scale

    @called_as_it_is
    def unscale(self, owner: Optimizer | Sequence[Array]) -> Gradients:
        """Divide gradients by the scale and check them, ahead of ``step``; for clipping.

        Args:
            owner: an optimizer that holds its gradients (torch, Paddle: changed in place), or the
                gradients themselves (TensorFlow, NumPy: the result goes to ``step``).

        Raises:
            CallOrderError: if it was done already since the last ``update``.
        """
        if isinstance(owner, (Gradients, list, tuple)):
            return self._unscale_values(owner)
        record = self._records.get(id(owner))
        if record is not None:
            what = "unscale()" if record.stage is _Stage.UNSCALED else "step()"
            msg = (
                f"unscale() of this optimizer after {what}, since the last update().\n"
                "Hint: call unscale() once an iteration, before step(), and update() at its end."
            )
            raise CallOrderError(msg)
        backend = self._bound_to(owner)
        stored = Gradients(backend.stored_gradients(owner), backend.parameters(owner))
        gradients = self._unscale_values(stored, owner) if self.enabled else stored
        self._records[id(owner)] = _Checked(owner, _Stage.UNSCALED, gradients, gradients.found)
        return gradients

    @called_as_it_is
    def step(self, optimizer: Optimizer, grads: Sequence[Array] | None = None) -> bool:
        """Step ``optimizer`` unless its gradients overflowed; unscales them if need be.

        A skipped step changes no parameter and no slot. Reads one number from the device, unless
        the optimizer's own kernel takes the decision.

        Args:
            grads: gradients as values, from ``value_and_grad`` or ``unscale``; without them those
                that the framework keeps beside the parameters.

        Returns:
            Whether it was stepped (a symbolic bool in traced code).

        Raises:
            CallOrderError: on a second call since the last ``update``.
        """
        record = self._records.get(id(optimizer))
        if record is not None and record.stage is _Stage.STEPPED:
            msg = (
                "step() of this optimizer has been called already since the last update().\n"
                "Hint: scaler.step(optimizer); scaler.update()"
            )
            raise CallOrderError(msg)
        gradients = self._gradients_for(optimizer, grads, record)
        backend = self._bound_to(optimizer)
        applied: bool = backend.apply(
            optimizer, gradients.parameters, gradients.values, gradients.found
        )
        self._records[id(optimizer)] = _Checked(
            optimizer, _Stage.STEPPED, gradients, gradients.found
        )
        return applied

    @called_as_it_is
    def update(self) -> None:
        """Adapt the scale to what the steps since the last ``update`` found.

        Raises:
            CallOrderError: if there were none.
            OverflowStuckError: where too many were skipped in a row; the scale has been adapted.
        """
        records = self._records
        if not records:
            msg = (
                "update() without a step() or unscale() since the last one: nothing was checked.\n"
                "Hint: scaler.step(optimizer); scaler.update()"
            )
            raise CallOrderError(msg)
        found = [record.found for record in records.values() if record.found is not None]
        records.clear()
        if self.enabled and found:
            before = self._store.read()
            self._store.update(sum(found[1:], start=found[0]), self.config)
            if all(isinstance(each, int) for each in found):
                worst = min((each for each in found if each != FINITE), default=FINITE)
                self._alarm.observe(worst, before, self.config)

    @called_as_it_is
    def minimize(self, optimizer: Optimizer, scaled_loss: Any) -> bool:
        """Paddle's ``step`` and ``update`` in one; ``scaled_loss.backward()`` comes before it."""
        del scaled_loss  # its gradients are in the parameters by now; named as Paddle names it
        applied = self.step(optimizer)
        self.update()
        return applied

    # -- what it knows

    def get_scale(self) -> float:
        """The present scale, 1.0 if disabled. Waits for the device."""
        return float(self._store.read().scale) if self.enabled else 1.0

    def found_inf(self, optimizer: Optimizer) -> bool:
        """Whether ``optimizer``'s gradients were inf or NaN since the last ``update``. Waits.

        Raises:
            CallOrderError: if they have not been checked since.
        """
        record = self._records.get(id(optimizer))
        if record is None:
            msg = (
                "found_inf() of an optimizer whose gradients were not checked since update().\n"
                "Hint: scaler.unscale(optimizer) checks them."
            )
            raise CallOrderError(msg)
        return record.found is not None and int(record.found) > 0

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON values, the same keys on every backend. Waits for the device.

        Keys: ``version``, ``enabled``, ``scale``, ``good_steps`` and ``bad_steps`` (in a row, so
        far), ``consecutive_skips``, and the settings under their argument names.
        """
        state = self._store.read()
        host = ScaleState(float(state.scale), *(int(count) for count in state[1:]))
        return write_state(host, self.config, self.enabled)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over ``state_dict()``'s result, or that of torch's, Paddle's or Keras' scaler.

        Raises:
            StateError: if it is none of them or a value is not allowed; nothing is changed then.
        """
        self.take_state(self.checked_state(state))

    def checked_state(self, state: Mapping[str, Any]) -> LoadedState:
        """What ``load_state_dict`` would take over, for whoever has more to check before it does.

        Raises:
            StateError: as ``load_state_dict``.
        """
        return read_state(state, self.config, self.enabled)

    def take_state(self, loaded: LoadedState) -> None:
        """Take over what ``checked_state`` read."""
        state, self.config, self.enabled = loaded
        self._store.write(state)
        self._checked.clear()

    # -- the frameworks' own scalers

    def to_native(self, framework: str, *, optimizer: Any = None, drop: Sequence[str] = ()) -> Any:
        """A scaler of ``framework`` ("torch", "paddle", "tensorflow") that goes on where this one is.

        Args:
            optimizer: the Keras optimizer that a ``LossScaleOptimizer`` is to wrap.
            drop: settings that may be lost; theirs has no bounds, for one.

        Raises:
            UnsupportedError: naming the settings that it cannot follow.
        """
        return to_native(self.state_dict(), framework, optimizer, drop)

    @classmethod
    def from_native(cls, scaler: Any) -> GradScaler:
        """A scaler that goes on where a framework's own is: torch's, Paddle's or Keras'.

        Raises:
            BackendNotFoundError, ArgumentTypeError: if it is none.
        """
        framework = registry.framework_of(scaler)
        made = cls.like(NATIVE[framework][0])
        made.load_state_dict(registry.backend(framework).native_scaler_state(scaler))
        return made

    # -- for train_step and value_and_grad

    @property
    def store(self) -> ScaleStore:
        """Where the state lives since ``bind``."""
        return self._store

    def bind(self, backend: Backend, like: Any) -> None:
        """Move the state to where ``backend`` wants it, once.

        Raises:
            ArgumentTypeError: if it works for another backend already.
        """
        if self._backend is None:
            self._store = backend.scale_store(self._store.read(), like)
            self._backend = backend
        elif self._backend.name != backend.name:
            msg = (
                f"This GradScaler works for {self._backend.name} and was given something of "
                f"{backend.name}.\nHint: other = GradScaler(); "
                "other.load_state_dict(scaler.state_dict())"
            )
            raise ArgumentTypeError(msg)

    @property
    def _records(self) -> dict[int, _Checked]:
        """What was checked since the last ``update``, by the replica that calls alone."""
        return self._checked[0 if self._backend is None else self._backend.replica()]

    def _bound_to(self, obj: Any) -> Backend:
        """The backend of a loss or an optimizer, which must be the one of those before it."""
        present = self._backend
        if present is not None and registry.framework_if_known(obj) in (None, present.name):
            return present
        backend = registry.backend(obj)
        self.bind(backend, obj)
        return backend

    def _unscale_values(
        self, grads: Sequence[Array], optimizer: Optimizer | None = None
    ) -> Gradients:
        if not isinstance(grads, Gradients):
            grads = Gradients(grads, ())
        if grads.found is not None:
            msg = (
                "These gradients have been unscaled already.\n"
                "Hint: grads = scaler.unscale(grads), once; then scaler.step(optimizer, grads)."
            )
            raise CallOrderError(msg)
        if not self.enabled:
            return grads
        backend = self._backend or self._bound_to(next((g for g in grads if g is not None), None))
        values, found = backend.unscale(grads.values, self._store.read().scale)
        return Gradients(values, grads.parameters, backend.agree(found, optimizer))

    def _gradients_for(
        self, optimizer: Optimizer, grads: Sequence[Array] | None, record: _Checked | None
    ) -> Gradients:
        if grads is None:
            return self._present(record) if record else self.unscale(optimizer)
        gradients = grads if isinstance(grads, Gradients) else Gradients(grads, ())
        if self.enabled and gradients.found is None:
            gradients = self._unscale_values(gradients, optimizer)
        if not gradients.parameters:
            parameters = self._bound_to(optimizer).parameters(optimizer)
            gradients = Gradients(gradients.values, parameters, gradients.found)
        return gradients

    def _present(self, record: _Checked) -> Gradients:
        """The unscaled gradients of ``record`` as they are now: the caller may have put others there.

        A gradient that unscaling had to widen is not among the stored ones.
        """
        unscaled, backend = record.gradients, self._bound_to(record.optimizer)
        pairs = zip(unscaled, backend.stored_gradients(record.optimizer), strict=True)
        present = [
            kept if now is not None and kept is not None and now.dtype != kept.dtype else now
            for kept, now in pairs
        ]
        return Gradients(present, unscaled.parameters, unscaled.found)

    def __repr__(self) -> str:
        changed = [
            f"{f.name}={value!r}"
            for f in fields(self.config)
            if (value := getattr(self.config, f.name)) != f.default
        ]
        if not self.enabled:
            changed.append("enabled=False")
        return f"GradScaler({', '.join([f'{self.get_scale()!r}', *changed])})"
