"""The settings of a mixed-precision run as one value: policy, loss scaling, step.

``save`` writes a recipe as TOML, and ``load`` reads it; ``ampbridge.training.recipe_file`` defines the
format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from dataclasses import replace as replace_fields
from os import PathLike
from types import MappingProxyType
from typing import Any, Literal

from ampbridge.checkpoints import atomic_files
from ampbridge.errors import AmpBridgeError, ArgumentError, ArgumentTypeError, RecipeError, listed
from ampbridge.errors.flags import checked_count, checked_flag
from ampbridge.errors.foreign_names import told_of
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import Schedule, single
from ampbridge.policies.schedule import from_dict as plan_from_dict
from ampbridge.scaling.presets import preset as preset_named
from ampbridge.scaling.scale_rule import ScalerConfig, as_written
from ampbridge.scaling.scaler import GradScaler
from ampbridge.training import recipe_file
from ampbridge.training.clipping import CLIPPINGS, Clipping, checked_limit, clipping_of
from ampbridge.training.decorate import check_parameter_settings
from ampbridge.training.recipe_file import ON_OVERFLOW, SECTIONS

OnOverflow = Literal["drop_step", "drop_microbatch"]


@dataclass(frozen=True, kw_only=True)
class Scaling(ScalerConfig):
    """The arguments of a ``GradScaler``, as a frozen value.

        Scaling(init_scale=1024.0, growth_interval=500)
        Scaling.like("paddle", init_scale=1024.0)

    Raises:
        ArgumentError, ArgumentTypeError: as ``GradScaler``.
    """

    init_scale: float = 2.0**16
    preset: str | None = field(default=None, compare=False)
    """The preset that a recipe file names as ``like``. Equality compares only the numbers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "init_scale", self.check_scale(self.init_scale))
        if self.preset is not None:
            preset_named(self.preset)

    @classmethod
    def like(cls, name: str, **overrides: Any) -> Scaling:
        """The settings of ``GradScaler.like(name, **overrides)``."""
        return cls(**{**preset_named(name).settings, **overrides}, preset=name)

    @classmethod
    def of(cls, scaler: GradScaler) -> Scaling:
        """The settings of ``scaler``, with its current scale as ``init_scale``. Waits for the device.

        Raises:
            ArgumentTypeError: if ``scaler`` is not a GradScaler.
        """
        if not isinstance(scaler, GradScaler):
            msg = f"Scaling.of takes an ampbridge.GradScaler, not {scaler!r}.\n"
            raise ArgumentTypeError(msg + "Hint: amp.Scaling.of(amp.GradScaler())")
        return cls(**asdict(scaler.config), init_scale=scaler.get_scale())

    def make(self) -> GradScaler:
        """A new scaler."""
        return GradScaler(**self.arguments())

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``GradScaler`` by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "preset"}

    def changes(self) -> dict[str, Any]:
        """``like``, if there is a preset, and the arguments that differ from the preset, as written."""
        base = Scaling() if self.preset is None else Scaling.like(self.preset)
        like = {} if self.preset is None else {"like": self.preset}
        usual = base.arguments()
        return like | {k: as_written(v) for k, v in self.arguments().items() if v != usual[k]}

    def __repr__(self) -> str:
        changes = self.changes()
        like = changes.pop("like", None)
        shown = ", ".join(f"{name}={value!r}" for name, value in changes.items())
        if like is None:
            return f"Scaling({shown})"
        return f"Scaling.like({', '.join(filter(None, [repr(like), shown]))})"


@dataclass(frozen=True)
class Recipe:
    """All mixed-precision settings of a training step, as one frozen value.

        recipe = amp.Recipe(amp.Policy("O2", lists="paddle"), amp.Scaling.like("paddle"))
        step = amp.train_step(loss_fn, model, optimizer, recipe=recipe)

    Args:
        policy: a Policy or its short form.
        scaler: a Scaling; "auto" scales if the policy needs it, with ``GradScaler``'s defaults; None
            for no loss scaling.
        accumulate, clip_norm, clip_each_norm, clip_value, on_overflow: as in ``train_step``.
        schedule: policies that change during the run; ``policy`` is then the first of them.
        save_dtype, master_grad: as in ``decorate``.

    Raises:
        AmpBridgeError: for invalid values, or values that contradict each other.
    """

    policy: Policy = field(default_factory=Policy)
    scaler: Scaling | None = "auto"  # type: ignore[assignment]  # replaced by what it stands for
    accumulate: int = 1
    clip_norm: float | None = None
    schedule: Schedule | None = None
    _: KW_ONLY
    on_overflow: OnOverflow = "drop_step"
    clip_each_norm: float | None = None
    clip_value: float | None = None
    save_dtype: str | None = None
    master_grad: bool = False

    def __post_init__(self) -> None:
        self._set("policy", self._first_policy())
        scaler: Any = self.scaler
        if scaler == "auto":
            in_need = any(policy.needs_scaling for policy in self.policies)
            self._set("scaler", Scaling() if in_need else None)
        elif not (scaler is None or isinstance(scaler, Scaling)):
            msg = f"A recipe's scaler is a Scaling, 'auto' or None, not {scaler!r}.\n"
            raise ArgumentTypeError(msg + "Hint: scaler=amp.Scaling(init_scale=1024.0)")
        self._set("accumulate", checked_count("accumulate", self.accumulate, "accumulate=4"))
        for name in CLIPPINGS:
            self._set(name, checked_limit(name, getattr(self, name)))
        clipping_of(vars(self))
        self._check_on_overflow()
        self._set("master_grad", checked_flag("master_grad", self.master_grad))
        check_parameter_settings(self.policies, self.save_dtype, self.master_grad)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen; this is its constructor

    def _first_policy(self) -> Policy:
        if self.schedule is None:
            return single(self.policy)
        if not isinstance(self.schedule, Schedule):
            msg = f"schedule is a Schedule or None, not {self.schedule!r}.\n"
            raise ArgumentTypeError(msg + "Hint: schedule=amp.Schedule([(0, 'O0'), (200, 'O1')])")
        first = self.schedule.policy(self.schedule.start())
        if Policy.parse(self.policy) not in (Policy(), first):
            raise RecipeError(
                f"The schedule begins with {first!r}; policy={self.policy!r} would never be used.\n"
                "Hint: leave policy out if there is a schedule."
            )
        return first

    def _check_on_overflow(self) -> None:
        if self.on_overflow not in ON_OVERFLOW:
            msg = f"Passed on_overflow={self.on_overflow!r}; allowed are {listed(ON_OVERFLOW)}.\n"
            raise ArgumentError(msg + "Hint: on_overflow='drop_step'")
        waits_for_skips = self.schedule is not None and self.schedule.counts_skips
        if self.on_overflow == "drop_microbatch" and waits_for_skips:
            raise ArgumentError(
                f"on_overflow='drop_microbatch' skips no step, which {self.schedule!r} waits for.\n"
                "Hint: on_overflow='drop_step', or a schedule by steps or by the loss."
            )

    @property
    def plan(self) -> Policy | Schedule:
        """The schedule, or the policy if there is none: the argument ``policy`` of ``train_step``."""
        return self.policy if self.schedule is None else self.schedule

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Every policy of the run, each once."""
        return (self.policy,) if self.schedule is None else self.schedule.policies

    @property
    def clipping(self) -> Clipping | None:
        """How the unscaled gradients are clipped, if they are."""
        return clipping_of(vars(self))

    def replace(self, **changes: Any) -> Recipe:
        """A copy with the named fields changed.

        Raises:
            RecipeError: for an unknown field.
        """
        known = [f.name for f in fields(self)]
        unknown = sorted(set(changes) - set(known))
        if unknown:
            raise RecipeError(recipe_file.unknown("Recipe", unknown[0], known))
        return replace_fields(self, **changes)

    def __repr__(self) -> str:
        usual = Recipe(self.policy, schedule=self.schedule)
        values = {f.name: getattr(self, f.name) for f in fields(self)[1:]}
        changed = {k: v for k, v in values.items() if v != getattr(usual, k)}
        plan = repr(self.policy) if self.schedule is None else f"schedule={self.schedule!r}"
        return f"Recipe({', '.join([plan, *(f'{k}={v!r}' for k, v in changed.items())])})"

    # -- as data

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the sections and keys of a recipe file, without defaults."""
        if self.schedule is None:
            sections = {"policy": _policy_section(self.policy)}
        else:
            sections = {"schedule": _schedule_section(self.schedule)}
        if self.scaler is not None:
            sections["scaler"] = _scaler_section(self.scaler)
        elif any(policy.needs_scaling for policy in self.policies):
            sections["scaler"] = {"enabled": False}
        usual = Recipe()
        for section in ("step", "decorate"):
            changed = {
                k: v for k in SECTIONS[section] if (v := getattr(self, k)) != getattr(usual, k)
            }
            if changed:
                sections[section] = changed
        return sections

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Recipe:
        """The recipe from the result of ``to_dict``, or from the data of a file.

        Raises:
            RecipeError: for unknown keys and invalid values; names the section and the key.
        """
        if not isinstance(data, Mapping):
            msg = f"A recipe is described by a dict, not {data!r:.100}.\n"
            raise RecipeError(msg + "Hint: Recipe.from_dict(recipe.to_dict())")
        recipe_file.check_keys(data)
        arguments: dict[str, Any] = {}
        readers: dict[str, Callable[[Any], Any]] = {
            "policy": Policy.from_dict,
            "schedule": plan_from_dict,
            "scaler": _scaling,
        }
        for section, read in readers.items():
            if section in data:
                with _errors_name(section):
                    arguments[section] = read(data[section])
        with _errors_name("step"):
            return cls(**arguments, **data.get("step", {}), **data.get("decorate", {}))

    def to_toml(self, comments: Mapping[str, str] = MappingProxyType({})) -> str:
        """The recipe as TOML. Each key has a comment: ``comments["policy.allow"]``, or its description."""
        return recipe_file.text_of(self.to_dict(), comments)

    def save(
        self, path: str | PathLike[str], comments: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Write ``to_toml(comments)`` to the file ``path``.

        Raises:
            RecipeError: if the file cannot be written.
        """
        path = atomic_files.path_of(path, "recipe.save('recipe.toml')")
        text = self.to_toml(comments)
        try:
            atomic_files.write(path, text.encode())
        except (OSError, ValueError) as error:  # half a surrogate pair is no text of a file
            reason = getattr(error, "strerror", None) or error
            msg = f"Cannot write the recipe {path!r:.200}: {reason}.\n"
            raise RecipeError(msg + "Hint: recipe.save('recipe.toml')") from error

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Recipe:
        """The recipe in a TOML file.

        Raises:
            RecipeError: if the file cannot be read or is invalid; names the file and the mistake.
        """
        path = atomic_files.path_of(path, "amp.Recipe.load('recipe.toml')")
        try:
            text = atomic_files.read(path).decode()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            msg = f"Cannot read the recipe {path!r:.200}: {reason}.\n"
            raise RecipeError(msg + "Hint: amp.Recipe().save('recipe.toml') writes one.") from error
        return cls.from_toml(text, path)

    @classmethod
    def from_toml(cls, text: str, where: str = "This text") -> Recipe:
        """The recipe from the text of ``to_toml``; messages call it ``where``.

        Raises:
            RecipeError: as ``load``.
        """
        data = recipe_file.parse(text, where)
        with _errors_name(where):
            return cls.from_dict(data)


for kind in (Scaling, Recipe):
    kind.__init__ = told_of(kind.__name__)(kind.__init__)  # type: ignore[method-assign]


def _policy_section(policy: Policy) -> dict[str, Any]:
    """Level, dtype and lists, and all fields that differ from the defaults."""
    values, usual = policy.to_dict(), Policy(policy.level, policy.dtype).to_dict()
    always = ("level",) if policy.level == "O0" else ("level", "dtype", "lists")
    return {k: v for k, v in values.items() if k in always or v != usual[k]}


def _schedule_section(schedule: Schedule) -> dict[str, Any]:
    """``Schedule.to_dict`` with its policies in short."""
    section = {k: v for k, v in schedule.to_dict().items() if v is not None}
    if "steps" in section:
        return {"steps": [[first, _short(policy)] for first, policy in section["steps"]]}
    return {**section, **{k: _short(section[k]) for k in ("use", "otherwise")}}


def _short(values: Mapping[str, Any]) -> str | dict[str, Any]:
    """``"O1:float16"``, if the other fields have their defaults."""
    policy = Policy.from_dict(values)
    return _policy_section(policy) if str(policy) == repr(policy) else str(policy)


def _scaler_section(scaling: Scaling) -> dict[str, Any]:
    """The initial scale, and the settings that differ from the defaults. TOML has no null: false is None."""
    changed = {**scaling.changes(), "init_scale": as_written(scaling.init_scale)}
    values = {key: changed[key] for key in SECTIONS["scaler"] if key in changed}
    return {key: False if value is None else value for key, value in values.items()}


def _scaling(section: Mapping[str, Any]) -> Scaling | None:
    arguments = dict(section)
    enabled = arguments.pop("enabled", True)
    if not isinstance(enabled, bool):
        msg = f"enabled is true or false, not {enabled!r}.\nHint: enabled = false"
        raise ArgumentTypeError(msg)
    for name in ("warn_after_skips", "max_consecutive_skips"):
        if arguments.get(name) is False:
            arguments[name] = None
    like = arguments.pop("like", None)
    scaling = Scaling(**arguments) if like is None else Scaling.like(like, **arguments)
    return scaling if enabled else None


@contextmanager
def _errors_name(where: str) -> Iterator[None]:
    """A block whose errors become a RecipeError that begins with ``where``."""
    try:
        yield
    except AmpBridgeError as error:
        raise RecipeError(f"{where}: {error}") from error
