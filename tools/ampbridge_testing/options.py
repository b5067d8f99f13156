"""Promises of every option: another value than the default changes something, or is refused.

An option is tried by training one small model through the same history, once as it is by default and
once with the option. All that a user could see is recorded: losses, dtypes, scales, skips, weights,
warnings, errors, and the adapter's own explanation of the policy.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pytest

from ampbridge import (
    AmpBridgeError,
    GradScaler,
    Policy,
    Recipe,
    Scaling,
    Schedule,
    SimulationWarning,
    StepResult,
    decorate,
    explain,
    train_step,
    value_and_grad,
)
from ampbridge.adapters.backend import Model
from ampbridge.adapters.roles.probing import Probing
from ampbridge_testing.decorating import Layered
from ampbridge_testing.harness import Harness
from ampbridge_testing.roles import claims, needs

LEVELS = ("O0", "O1", "O2")
HISTORY = (1.0, 1.0, 1.0, math.inf, math.inf, math.nan, 1.0, math.inf, 1.0, 1.0, 1.0, 1.0)
"""What the loss is multiplied by, step by step: growth, overflows in a row and alone, NaN."""

Settings: TypeAlias = Mapping[str, Any]


class CountedSteps:
    """A scheduler that counts."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        self.steps += 1


@dataclass(frozen=True)
class Option:
    """One argument of a public function, with a value to try.

    Attributes:
        name: of the argument.
        value: other than its default; a function of no arguments makes it anew for each run.
        beside: other arguments of the same function, in both runs, with which it can act.
        idle: levels at which it has nothing to act on, each with the reason.
    """

    name: str
    value: Any
    beside: Settings = field(default_factory=dict)
    idle: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def settings(self) -> dict[str, Any]:
        return {**self.beside, self.name: self.value() if callable(self.value) else self.value}


_DEFAULTS: dict[tuple[Any, ...], list[Any]] = {}
"""What was seen without an option, by harness, test, level and other arguments."""

FLOAT32 = {"O0": "all is float32, by whatever lists"}

OF_POLICY = (
    Option("dtype", "bfloat16", idle=FLOAT32),
    Option("lists", "tensorflow", idle=FLOAT32),
    Option("allow", ("exp",), idle=FLOAT32),
    Option("deny", ("linear", "matmul"), idle=FLOAT32),
    Option("keep", ("head",), idle=FLOAT32),
    Option("masters", None),
    Option("slots", "bfloat16"),
    Option("output_dtype", "bfloat16"),
    Option("execution", "simulated", {"execution": "native"}, idle=FLOAT32),
    Option("float32", "tf32"),
)

OF_SCALER = (
    Option("init_scale", 2.0**9),
    Option("growth_factor", 4.0),
    Option("backoff_factor", 0.25),
    Option("growth_interval", 4),
    Option("backoff_interval", 2),
    Option("min_scale", 2.0**9),
    Option("max_scale", 2.0**10),
    Option("dynamic", False),
    Option("enabled", False),
    Option("growth_delay", 1),
    Option("backoff_count", "until_growth", {"backoff_interval": 3}),
    Option("at_max_scale", "keep", {"max_scale": 1.5 * 2.0**10}),
    Option("at_min_scale", "raise", {"min_scale": 2.0**9}),
    Option("warn_after_skips", 2),
    Option("max_consecutive_skips", 2),
)

OF_STEP = (
    Option("policy", "O1:bfloat16"),
    Option("scaler", lambda: GradScaler(2.0**10)),
    Option("accumulate", 2),
    Option("clip_norm", 0.1),
    Option("clip_each_norm", 0.1),
    Option("clip_value", 0.01),
    Option("scheduler", CountedSteps),
    Option("compile", True, {"compile": False}),
    Option("on_overflow", "drop_microbatch"),
    Option("on_overflow", "drop_microbatch", {"accumulate": 2}),
    Option("name_overflows", True),
    Option("recipe", lambda: Recipe(Policy("O0"), accumulate=3)),
)

OF_DECORATE = (
    Option("save_dtype", "bfloat16"),
    Option("master_grad", True),
)

OF_RECIPE = (
    Option("scaler", Scaling(init_scale=2.0**9)),
    Option("accumulate", 2),
    Option("clip_norm", 0.1),
    Option("clip_each_norm", 0.1),
    Option("clip_value", 0.01),
    Option("schedule", Schedule([(0, "O0"), (3, "O1:bfloat16")])),
    Option("on_overflow", "drop_microbatch", {"accumulate": 2}),
    *OF_DECORATE,
)


def is_done_anyway(harness: Harness, name: str, level: str) -> bool:
    """Whether the adapter does what ``name`` asks for in any case: "native", by ``explain``.

    So is ``master_grad`` where gradients are values: they are float32 whatever is said.
    """
    if not claims(harness.backend, Probing):
        return name == "master_grad" and not harness.stores_gradients
    rows = explain(level, harness.backend).features
    return any(row.feature == name and row.by == "native" for row in rows)


class OptionsConformance(Layered):
    """No option of a public function is accepted and ignored."""

    @needs(Probing)
    @pytest.mark.parametrize("level", LEVELS)
    @pytest.mark.parametrize("option", OF_POLICY, ids=str)
    def test_no_field_of_a_policy_is_ignored(self, option: Option, level: str) -> None:
        def seen(settings: Settings) -> list[Any]:
            policy = Policy(level, **settings)  # type: ignore[arg-type]
            return [*self.as_explained(policy), *self.history(lambda: {"policy": policy})]

        self.check_option(option, level, seen)

    @pytest.mark.parametrize("option", OF_SCALER, ids=str)
    def test_no_argument_of_a_scaler_is_ignored(self, option: Option) -> None:
        def seen(settings: Settings) -> list[Any]:
            scaler = {"init_scale": 2.0**10, "growth_interval": 3, **settings}
            return self.history(lambda: {"policy": "O0", "scaler": GradScaler(**scaler)})

        self.check_option(option, "O0", seen)

    @pytest.mark.parametrize("level", LEVELS)
    @pytest.mark.parametrize("option", OF_STEP, ids=str)
    def test_no_argument_of_a_step_is_ignored(self, option: Option, level: str) -> None:
        def seen(settings: Settings) -> list[Any]:
            whole = "policy" in settings or "recipe" in settings
            return self.history(lambda: {**settings} if whole else {"policy": level, **settings})

        self.check_option(option, level, seen)

    @pytest.mark.parametrize("level", LEVELS)
    @pytest.mark.parametrize("option", OF_RECIPE, ids=str)
    def test_no_field_of_a_recipe_is_ignored(self, option: Option, level: str) -> None:
        def seen(settings: Settings) -> list[Any]:
            policy = Policy() if "schedule" in settings else Policy(level)  # type: ignore[arg-type]
            recipe = Recipe(policy, **settings)
            return self.history(lambda: {"recipe": recipe})

        self.check_option(option, level, seen)

    @pytest.mark.parametrize("level", LEVELS)
    @pytest.mark.parametrize("option", OF_DECORATE, ids=str)
    def test_no_argument_of_decorate_is_ignored(self, option: Option, level: str) -> None:
        def seen(settings: Settings) -> list[Any]:
            model, optimizer = self.trainable()
            decorate(model, optimizer, level, **settings)
            return [*self.saved_dtypes(model), *map(str, self.native_gradient_dtypes(model))]

        self.check_option(option, level, seen)

    @pytest.mark.parametrize("level", ["O0", "O1"])
    def test_no_argument_of_value_and_grad_is_ignored(self, level: str) -> None:
        def seen(settings: Settings) -> list[Any]:
            model, _ = self.trainable()
            arguments = {"policy": level, **settings}
            _, gradients = value_and_grad(self.loss(), model, *self.batch(), **arguments)
            return [self.harness.numpy(each).tolist() for each in gradients]

        self.check_option(Option("policy", "O1:bfloat16"), level, seen)
        self.check_option(Option("scaler", lambda: GradScaler(2.0**10)), level, seen)

    # -- what a user could see

    def check_option(
        self, option: Option, level: str, seen: Callable[[Settings], list[Any]]
    ) -> None:
        """Whether ``seen`` tells the option from its default."""
        if level in option.idle or is_done_anyway(self.harness, option.name, level):
            return
        default = self.default_outcome(option, level, seen)
        assert self.outcome(lambda: seen(option.settings())) != default, (
            f"{option.name}={option.settings()[option.name]!r} changes nothing at {level}"
        )

    def default_outcome(
        self, option: Option, level: str, seen: Callable[[Settings], list[Any]]
    ) -> list[Any]:
        """Without the option; the same for many options, and so run once."""
        key = (self.harness, seen.__qualname__, level, repr(option.beside))
        if key not in _DEFAULTS:
            _DEFAULTS[key] = self.outcome(lambda: seen(option.beside))
        return _DEFAULTS[key]

    def outcome(self, run: Callable[[], list[Any]]) -> list[Any]:
        """What ``run`` records, with its warnings; a refusal is a record as well."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                record = run()
            except AmpBridgeError as error:
                record = [str(error)]
        told = (each for each in caught if each.category is not SimulationWarning)  # once a process
        return record + sorted({str(each.message) for each in told})

    def as_explained(self, policy: Policy) -> list[Any]:
        """The adapter's account of every op and of float32, and where the kernels are simulated."""
        backend = self.harness.backend
        told, rows = backend.explain(policy), explain(policy, backend).features
        float32 = [row for row in rows if row.feature.startswith("float32=")]
        return [backend.execution(policy), sorted(told.ops.items()), *float32]

    def history(self, arguments: Callable[[], Settings]) -> list[Any]:
        """A history of steps, up to an error; then the weights and what the model would save."""
        model, optimizer = self.trainable()
        loss_fn, traces = self.harness.counting_traces(self.showing_outputs())
        settings = arguments()
        step = train_step(loss_fn, model, optimizer, **settings)
        record: list[Any] = []
        for factor in HISTORY:
            result = step(*self.batch(factor))
            record += [result.step, result.reason, result.scale, result.applied, result.grad_norm]
            record += [repr(result.loss), repr(self.harness.numpy(result.aux).tolist())]
            record.append(self.overflows(result))
        record += [repr(values.tolist()) for values in self.values(model)]
        record += self.saved_dtypes(model)
        return [*record, traces() > 0, getattr(settings.get("scheduler"), "steps", None)]

    def showing_outputs(self) -> Callable[..., Any]:
        """A loss function that shows what the model returned, beside its loss."""
        h = self.harness

        def loss_fn(model: Model, x: Any, target: Any, factor: Any) -> tuple[Any, Any]:
            outputs = model(x)
            return h.mean_squared_error(outputs, target) * factor, outputs

        return loss_fn

    def overflows(self, result: StepResult) -> Any:
        try:
            return result.overflows
        except AmpBridgeError as error:
            return str(error)

    def saved_dtypes(self, model: Model) -> list[str]:
        """The dtypes in the model's own ``state_dict``, where it has one."""
        if not hasattr(model, "state_dict"):
            return []
        return [str(value.dtype) for value in model.state_dict().values()]

    def native_gradient_dtypes(self, model: Model) -> list[str]:
        h = self.harness
        batch = [h.array(np.asarray(each)) for each in self.batch()]
        gradients = h.native_gradients(model, self.loss(), batch, lambda loss: loss)
        return [h.dtype_of(each) for each in gradients]
