"""What ``Policy(masters=..., slots=...)`` promises on every backend that follows each choice.

What is expected is computed in float64, or is the run with float32 masters and slots.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import ampbridge as amp
from ampbridge import neutral
from ampbridge.adapters import registry
from ampbridge.adapters.backend import Model, Optimizer
from ampbridge_testing import Harness
from ampbridge_testing.reference import example

NumpyArray = npt.NDArray[Any]

CHOICES: tuple[Any, ...] = ("float32", "kahan", "stochastic", None)
SLOTS = ("float32", "bfloat16")
FEATURES, HIDDEN, OUTPUTS = 13, 10, 5
WEIGHTS = 195


ROUNDING_WAYS = {
    "decorate": r"trained in float32, under Policy\(",
    "undecorate, decorate": "trained in float32",
    "undecorate, step": "trained in float32",
    "load_weights": "saved in float32",
    "a block": "in float32 while the model was undecorated",
}
"""By which float32 values come into 16-bit weights, and how the warning says so."""


def policy(masters: Any, slots: Any = "float32") -> amp.Policy:
    return amp.Policy("O2", "bfloat16", masters=masters, slots=slots)


def loss_fn(model: Model, x: Any, y: Any, factor: Any = 1.0) -> Any:
    return neutral.mse_loss(neutral.forward(model, x), y) * factor


def unit(values: NumpyArray) -> NumpyArray:
    """One unit in the last place of bfloat16."""
    return 2.0 ** (np.floor(np.log2(np.abs(values))) - 7)


def in_one_layout(model: Model) -> list[NumpyArray]:
    """The weights, inputs first, ordered by their shapes."""
    backend = registry.backend(registry.framework_of(model))
    values, weights = backend.read_weights(model), backend.weights(model)
    turned = (values[w.name].T if w.axes == "oi" else values[w.name] for w in weights)
    return sorted(turned, key=np.shape)


class KeptMasters:
    harness: Harness
    takes_layers_later = True

    def made(
        self, optimizer: str = "sgd", lr: float = 1e-3, momentum: float = 0.0
    ) -> tuple[Model, Optimizer]:
        model = neutral.mlp(self.harness.backend.name, FEATURES, [HIDDEN], OUTPUTS, seed=0)
        settings = {"momentum": momentum} if optimizer == "sgd" else {}
        return model, neutral.optimizer(optimizer, model, lr=lr, **settings)

    def batch(self) -> list[Any]:
        random = np.random.default_rng(0)
        shapes = (32, FEATURES), (32, OUTPUTS)
        return [self.harness.array(random.normal(size=s).astype("f")) for s in shapes]

    def step_of(
        self, model: Model, optimizer: Optimizer, masters: Any, slots: Any = "float32"
    ) -> amp.TrainStep:
        return amp.train_step(loss_fn, model, optimizer, policy=policy(masters, slots))

    def values(self, model: Model) -> NumpyArray:
        weights = self.harness.backend.read_weights(model)
        return np.concatenate([weights[name].ravel() for name in sorted(weights)])

    def updated(self, masters: Any, kind: str, updates: int) -> tuple[NumpyArray, NumpyArray]:
        """The weights before and after updates of 1e-4 of them each, by plain descent."""
        h = self.harness
        model, optimizer = self.made(kind, 1.0 if kind == "sgd" else 1e-4)
        amp.decorate(model, optimizer, policy(None))  # which rounds them
        amp.decorate(model, optimizer, policy(masters))
        before = self.values(model).astype(np.float64)
        parameters = h.backend.parameters(optimizer)
        grads = [h.array(-1e-4 * h.numpy(p).astype(np.float32)) for p in parameters]
        for _ in range(updates):
            h.backend.step(optimizer, parameters, grads)
        return before, self.values(model).astype(np.float64)

    # -- what moves

    def moved(self, masters: Any, slots: Any = "float32") -> int:
        model, optimizer = self.made(momentum=0.0 if slots == "float32" else 0.1)
        step = self.step_of(model, optimizer, masters, slots)
        before = self.values(model).astype(ml_dtypes.bfloat16)
        assert len(before) == WEIGHTS
        for _ in range(200):
            step(*self.batch())
        return int((self.values(model).astype(ml_dtypes.bfloat16) != before).sum())

    @pytest.mark.parametrize("masters", CHOICES)
    def test_how_many_weights_move(self, masters: Any) -> None:
        moved = self.moved(masters)
        assert moved <= 5 if masters is None else moved >= 150

    @pytest.mark.slow
    def test_kahan_is_within_a_unit_of_the_sum_in_float64(self) -> None:
        before, after = self.updated("kahan", "sgd", 10_000)
        moving = before != 0
        update = np.float64(np.float32(-1e-4) * before.astype(np.float32))
        expected = before - 10_000 * update
        assert (np.abs(after - expected)[moving] <= unit(expected[moving])).all()

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["sgd", "adamw"])
    def test_kahan_is_as_exact_as_float32_masters(self, kind: str) -> None:
        (_, kahan), (_, masters) = (self.updated(m, kind, 1000) for m in ("kahan", "float32"))
        assert np.array_equal(kahan, masters)

    @pytest.mark.slow
    def test_rounding_by_chance_moves_as_the_sum_in_float64_in_the_mean(self) -> None:
        before, after = self.updated("stochastic", "sgd", 4000)
        moving = before != 0
        growth = (after[moving] / before[moving] - 1) / 0.4
        assert abs(growth.mean() - 1) <= 4 * growth.std() / np.sqrt(len(growth))
        _, stands = self.updated(None, "sgd", 100)
        assert np.array_equal(stands, before)

    # -- what is kept

    def resumed(self, masters: Any, folder: Path, slots: Any = "float32") -> list[Optimizer]:
        """The optimizers of a run and of one that goes on from its middle, with the same weights."""
        (model, optimizer), (other, its_optimizer) = self.made("adamw"), self.made("adamw")
        step = self.step_of(model, optimizer, masters, slots)
        for _ in range(5):
            step(*self.batch())
        step.save(folder)
        resumed = self.step_of(other, its_optimizer, masters, slots)
        resumed.load(folder)
        for each in (step, resumed):
            for _ in range(5):
                each(*self.batch())
        assert np.array_equal(self.values(model), self.values(other))
        return [optimizer, its_optimizer]

    @pytest.mark.parametrize("masters", CHOICES)
    def test_a_resumed_run_has_the_same_bits(self, masters: Any, tmp_path: Path) -> None:
        self.resumed(masters, tmp_path)

    @pytest.fixture
    def numpy_for_once(self) -> Iterator[None]:
        """NumPy's adapter is in use no longer behind the test, and later tests need not name a backend."""
        is_there = "ampbridge_numpy" in sys.modules
        yield
        if not is_there:
            sys.modules.pop("ampbridge_numpy", None)

    @pytest.mark.usefixtures("numpy_for_once")
    @pytest.mark.parametrize("masters", CHOICES)
    def test_numpy_adopts_the_weights_and_gives_them_back(
        self, masters: Any, tmp_path: Path
    ) -> None:
        step = self.step_of(*self.made("adamw"), masters)
        for _ in range(3):
            step(*self.batch())
        kept = in_one_layout(step.model)
        for framework in ("numpy", self.harness.backend.name):
            step.save(tmp_path / framework)
            model = neutral.mlp(framework, FEATURES, [HIDDEN], OUTPUTS, seed=1)
            optimizer = neutral.optimizer("adamw", model, lr=1e-3)
            amp.decorate(model, optimizer, policy(masters))
            step = self.step_of(model, optimizer, masters)
            step.adopt(tmp_path / framework)
            for adopted, expected in zip(in_one_layout(model), kept, strict=True):
                assert np.array_equal(adopted, expected)
        assert step(*self.batch()).applied

    def test_each_update_draws_anew(self) -> None:
        """From the same weights by the same update, twice: some go elsewhere."""
        found = []
        for earlier in (0, 1):
            h, (model, optimizer) = self.harness, self.made("sgd", 1.0)
            amp.decorate(model, optimizer, policy("stochastic"))
            parameters = h.backend.parameters(optimizer)
            values = [h.numpy(p).astype(np.float32) for p in parameters]
            for factor in [0.0] * earlier + [-1e-3]:
                grads = [h.array(factor * value) for value in values]
                h.backend.step(optimizer, parameters, grads)
            found.append(self.values(model))
        differing = int((found[0] != found[1]).sum())
        assert 10 < differing < 150

    @pytest.mark.parametrize("masters", CHOICES)
    def test_undecorate_keeps_the_values(self, masters: Any) -> None:
        model, optimizer = self.made()
        step = self.step_of(model, optimizer, masters)
        for _ in range(3):
            step(*self.batch())
        before = self.values(model)
        amp.undecorate(model, optimizer)
        assert np.array_equal(self.values(model), before)
        assert all("float32" in str(p.dtype) for p in self.harness.backend.parameters(model))

    def test_masters_of_a_model_without_low_parameters_are_told_of(self) -> None:
        model, optimizer = self.made()
        with pytest.warns(
            amp.AmpBridgeWarning, match=r"puts no parameter of the model into 16 bits.*\nHint"
        ):
            amp.decorate(model, optimizer, policy("stochastic").replace(keep=["*"]))

    def layered(self) -> tuple[Model, Optimizer]:
        model = self.harness.layered(example().weights)
        return model, self.harness.optimizer(model, "momentum", 0.1)

    def test_a_model_that_came_in_16_bits_is_told_nothing_that_is_not_so(
        self, recwarn: pytest.WarningsRecorder
    ) -> None:
        """Nor when it is decorated anew."""
        model = self.harness.in_16_bits(example().weights, "bfloat16")
        if model is None:
            pytest.skip("parameters are float32 always here")
        optimizer = self.harness.optimizer(model, "momentum", 0.1)
        for _ in range(2):
            amp.decorate(model, optimizer, policy("stochastic"))
        told = [str(each.message) for each in recwarn]
        assert any("Parameters of the model are in 16 bits by themselves" in each for each in told)
        assert not any("undecorated" in each or "is in 16 bits" in each for each in told)

    @pytest.mark.parametrize("masters", ["stochastic", None])
    def test_a_layer_that_comes_is_not_told_that_it_was_trained_under_the_policy(
        self, masters: Any
    ) -> None:
        if not self.takes_layers_later:
            pytest.skip("a model that is built takes no layers")
        (model, optimizer), (other, _) = self.layered(), self.layered()
        amp.decorate(model, optimizer, policy(masters))
        model.head = other.head
        words = rf"float32 in layers that came, or were cast, since.* masters={masters!r} rounds"
        with pytest.warns(amp.AmpBridgeWarning, match=words):
            amp.decorate(model, optimizer, policy(masters))

    @pytest.mark.parametrize("saved", CHOICES)
    @pytest.mark.parametrize("loaded", CHOICES)
    def test_a_load_into_another_choice_says_what_is_lost(
        self, saved: Any, loaded: Any, tmp_path: Path, recwarn: pytest.WarningsRecorder
    ) -> None:
        model, optimizer = self.made("adamw")
        step = self.step_of(model, optimizer, saved)
        for _ in range(3):
            step(*self.batch())
        step.save(tmp_path)
        values = self.values(model)
        other, its_optimizer = self.made("adamw")
        resumed = self.step_of(other, its_optimizer, loaded)
        resumed(*self.batch())
        loses = saved in ("float32", "kahan") and loaded in ("stochastic", None)
        if loses:
            with pytest.warns(amp.AmpBridgeWarning, match=r"(?s)saved in float32.*is lost.*Hint: "):
                resumed.load(tmp_path)
        else:
            resumed.load(tmp_path)
        assert np.array_equal(self.values(other), self.kept_of(values, loses))
        amp.decorate(other, its_optimizer, policy(loaded))
        assert np.array_equal(self.values(other), self.kept_of(values, loses))
        assert resumed(*self.batch()).applied

    # -- weights that training had in float32

    def rounding(
        self, way: str, before: Any, masters: Any, folder: Path
    ) -> tuple[Model, NumpyArray, Callable[[], object]]:
        """A model that was trained under ``before``, its values, and what brings them under ``masters``."""
        model, optimizer = self.made()
        step = self.step_of(model, optimizer, before)
        for _ in range(3):
            step(*self.batch())
        values = self.values(model)

        def decorate() -> None:
            amp.decorate(model, optimizer, policy(masters))

        def take_step() -> None:
            self.step_of(model, optimizer, masters)(*self.batch(), np.float32(0))

        if way == "decorate":
            return model, values, decorate
        if way in ("undecorate, decorate", "undecorate, step"):
            amp.undecorate(model, optimizer)
            return model, values, decorate if way == "undecorate, decorate" else take_step
        step.save(folder)
        other, its_optimizer = self.made()
        amp.decorate(other, its_optimizer, policy(masters))
        if way == "load_weights":
            return other, values, lambda: amp.load_weights(folder, other)

        def write() -> None:
            with amp.undecorated(other, its_optimizer):
                amp.load_weights(folder, other)

        return other, values, write

    @pytest.mark.parametrize("masters", ["stochastic", None])
    @pytest.mark.parametrize("before", ["float32", "kahan"])
    @pytest.mark.parametrize("way", ROUNDING_WAYS)
    def test_no_way_rounds_what_was_trained_in_float32_silently(
        self, way: str, before: Any, masters: Any, tmp_path: Path
    ) -> None:
        model, values, bring = self.rounding(way, before, masters, tmp_path)
        words = (
            rf"The weights were {ROUNDING_WAYS[way]}.*\. masters={masters!r} rounds them to bfloat16: .*"
            r"is lost.\nHint: Policy\('O2', 'bfloat16'\)$"
        )
        with pytest.warns(amp.AmpBridgeWarning, match=words):
            bring()
        assert np.array_equal(self.values(model), self.kept_of(values, rounded=True))

    @pytest.mark.parametrize("masters", ["stochastic", None])
    @pytest.mark.parametrize("way", ROUNDING_WAYS)
    def test_nothing_is_said_where_nothing_is_lost(
        self, way: str, masters: Any, tmp_path: Path, recwarn: pytest.WarningsRecorder
    ) -> None:
        model, values, bring = self.rounding(way, masters, masters, tmp_path)
        bring()
        assert np.array_equal(self.values(model), values)
        assert not [each for each in recwarn if "weights were" in str(each.message)]

    def test_steps_of_one_schedule_do_not_round_each_other_s_weights(self) -> None:
        """One is at its second policy already; where both change at a time, they take turns."""
        plan = amp.Schedule([(0, policy("float32")), (1, policy("stochastic"))])
        words = r"The weights were trained in float32, under Policy\("
        for in_lockstep in (False, True):
            model, optimizer = self.made()
            first, second = (
                amp.train_step(loss_fn, model, optimizer, policy=plan) for _ in range(2)
            )
            first(*self.batch())
            if in_lockstep:
                second(*self.batch())
            with pytest.warns(amp.AmpBridgeWarning, match=words):
                first(*self.batch())
            if in_lockstep:
                assert second(*self.batch()).applied
                continue
            before = self.values(model)
            with pytest.raises(
                amp.CallOrderError, match=r"train_step under .* decorated with .*st"
            ):
                second(*self.batch())
            assert np.array_equal(self.values(model), before)
            amp.undecorate(model, optimizer)
            second(*self.batch())
            with pytest.raises(amp.CallOrderError, match=r"train_step under .*st.* decorated with"):
                first(*self.batch())

    # -- other optimizers

    def step_by(self, optimizer: Optimizer, factor: float = 1e-3) -> None:
        h, parameters = self.harness, self.harness.backend.parameters(optimizer)
        grads = [h.array(factor * h.numpy(p).astype(np.float32)) for p in parameters]
        h.backend.step(optimizer, parameters, grads)

    def refuses_others(self, chosen: amp.Policy) -> bool:
        """Whether a step of an optimizer that nobody has decorated is refused; else it rounds as well."""
        del chosen
        return False

    def assert_low_after_another_steps(
        self, model: Model, other: Optimizer, read: Callable[[], NumpyArray]
    ) -> None:
        """Bfloat16 numbers, of an optimizer that nobody has decorated unless it is refused."""
        present = self.harness.backend.decoration(model, None)
        assert present is not None
        if self.refuses_others(present.policy):
            before = self.values(model)
            expected = (
                r"\w+[.]\w+\) trains .* O2 with which it was not decorated: it would not update and keep "
                r"them as Policy\(.*\) says.\nHint: amp.decorate\(model, optimizer, policy\) "
            )
            with pytest.raises(amp.CallOrderError, match=expected):
                self.step_by(other)
            assert np.array_equal(self.values(model), before)
            amp.decorate(model, other, present.policy)
        self.step_by(other)
        values = read()
        assert np.array_equal(values, values.astype(ml_dtypes.bfloat16).astype(values.dtype))

    @pytest.mark.parametrize("masters", ["stochastic", None])
    def test_another_optimizer_leaves_no_float32_weights(self, masters: Any) -> None:
        model, optimizer = self.made()
        amp.decorate(model, optimizer, policy(masters))
        other = neutral.optimizer("sgd", model, lr=1.0)
        self.assert_low_after_another_steps(model, other, lambda: self.values(model))
        self.step_by(optimizer)
        values = self.values(model)
        assert np.array_equal(values, values.astype(ml_dtypes.bfloat16).astype("f"))

    def test_two_optimizers_in_turn_each_draw_anew(self) -> None:
        """And each goes on from its own count."""
        found = []
        for together in (True, False):
            model, first = self.made("sgd", 1.0)
            second = neutral.optimizer("sgd", model, lr=1.0)
            steps = [self.step_of(model, each, "stochastic") for each in (first, second)]
            if together:
                amp.decorate(model, [first, second], policy("stochastic"))
            for step in steps * 3:
                step(*self.batch(), np.float32(1e-3))
            found.append(self.values(model))
        assert np.array_equal(*found)

    def kept_of(self, values: NumpyArray, rounded: bool) -> NumpyArray:
        return values.astype(ml_dtypes.bfloat16).astype("f") if rounded else values


class OneArray(KeptMasters):
    """Where one array for each parameter has all that is kept of it: bytes of a weight as in docs/o2.md."""

    bytes_of_a_weight: Mapping[Any, int] = dict.fromkeys(CHOICES, 4)

    @pytest.mark.parametrize("masters", CHOICES)
    def test_bytes_of_a_weight(self, masters: Any) -> None:
        model, optimizer = self.made()
        self.step_of(model, optimizer, masters)(*self.batch())
        parameters = self.harness.backend.parameters(model)
        dtypes = (np.dtype(str(p.dtype).rpartition(".")[2]) for p in parameters)
        held = sum(
            int(np.prod(p.shape)) * d.itemsize for p, d in zip(parameters, dtypes, strict=True)
        )
        assert held == self.bytes_of_a_weight[masters] * WEIGHTS


class KeptSlots(KeptMasters):
    """Of the backends that have low slots."""

    bytes_of_low_slots = 2

    def moments(self, optimizer: Optimizer) -> list[Any]:
        """The native arrays of an optimizer's slots, without counters."""
        raise NotImplementedError

    def dtypes(self, optimizer: Optimizer) -> set[str]:
        return {self.harness.dtype_of(each) for each in self.moments(optimizer)}

    def float64_moments(self, optimizer: Optimizer) -> NumpyArray:
        found = [self.harness.numpy(each) for each in self.moments(optimizer)]
        return np.concatenate([each.astype(np.float64).ravel() for each in found])

    def test_few_weights_move_without_masters(self) -> None:
        assert self.moved(None, "bfloat16") <= 5

    @pytest.mark.parametrize("masters", CHOICES)
    def test_a_resumed_run_with_low_slots_has_the_same_bits(
        self, masters: Any, tmp_path: Path
    ) -> None:
        optimizers = self.resumed(masters, tmp_path, "bfloat16")
        assert np.array_equal(*map(self.float64_moments, optimizers))

    def trained(self, slots: Any, updates: int = 3) -> tuple[Model, Optimizer, amp.TrainStep]:
        model, optimizer = self.made("adamw")
        step = self.step_of(model, optimizer, "float32", slots)
        for _ in range(updates):
            step(*self.batch())
        return model, optimizer, step

    def test_bytes_of_moments_also_of_another_optimizer_that_takes_over(self) -> None:
        for slots, width in (("float32", 4), ("bfloat16", self.bytes_of_low_slots)):
            model, optimizer, _ = self.trained(slots)
            for _ in range(2):
                (dtype,), values = self.dtypes(optimizer), self.float64_moments(optimizer)
                assert (len(values), np.dtype(dtype).itemsize) == (2 * WEIGHTS, width)
                kept = values.astype(ml_dtypes.bfloat16).astype(np.float64)
                assert np.array_equal(values, kept) == (slots == "bfloat16")
                optimizer = neutral.optimizer("adamw", model, lr=1e-3)
                self.step_of(model, optimizer, "float32", slots)(*self.batch())

    def test_moments_rounded_by_chance_shrink_as_those_in_float64_in_the_mean(self) -> None:
        """Of gradients that are zero from the second step on; to nearest, squares would stand still."""
        _, optimizer, step = self.trained("bfloat16", 1)
        before = self.float64_moments(optimizer)
        for _ in range(100):
            step(*self.batch(), self.harness.array(np.float32(0)))
        after = self.float64_moments(optimizer)
        squares = (after >= 0) & np.isclose(after, before, rtol=0.5) & (before != 0)
        assert 150 <= squares.sum() <= WEIGHTS
        ratios = after[squares] / (before[squares] * 0.999**100)
        assert abs(ratios.mean() - 1) <= 4 * ratios.std() / np.sqrt(len(ratios))
        others = ~squares & (before != 0)
        ratios = after[others] / (before[others] * 0.9**100)
        assert abs(ratios.mean() - 1) <= 4 * ratios.std() / np.sqrt(len(ratios))
        nearest = (0.999 * before[squares]).astype(ml_dtypes.bfloat16)
        assert np.array_equal(nearest.astype(np.float64), before[squares])

    def test_weights_and_slots_draw_apart(self) -> None:
        """Of weights three in four are rounded up here, and of moments every other one."""
        h, (model, _) = self.harness, self.made()
        optimizer = neutral.optimizer("sgd", model, lr=1.0, momentum=0.9)
        weights = h.backend.read_weights(model)
        h.backend.write_weights(model, {name: np.full_like(w, 4) for name, w in weights.items()})
        amp.decorate(model, optimizer, policy("stochastic", "bfloat16"))
        parameters = h.backend.parameters(optimizer)
        grads = [h.array(np.full(p.shape, 1 + 2.0**-8, "f")) for p in parameters]
        h.backend.step(optimizer, parameters, grads)
        of_shape = {tuple(m.shape): h.numpy(m).ravel() for m in self.moments(optimizer)}
        rounded_up = np.array(
            [
                (weight == 3, moment > 1)
                for p in parameters
                for weight, moment in zip(h.numpy(p).ravel(), of_shape[tuple(p.shape)], strict=True)
            ],
            np.float64,
        )
        assert len(rounded_up) == WEIGHTS
        assert np.allclose(rounded_up.mean(axis=0), [0.75, 0.5], atol=0.15)
        assert abs(np.corrcoef(rounded_up.T)[0, 1]) < 4 / np.sqrt(WEIGHTS)

    def test_undecorate_makes_slots_float32_and_keeps_their_values(self) -> None:
        model, optimizer, _ = self.trained("bfloat16")
        dtypes, before = self.dtypes(optimizer), self.float64_moments(optimizer)
        with amp.undecorated(model, optimizer):
            assert self.dtypes(optimizer) == {"float32"}
        assert self.dtypes(optimizer) == dtypes
        with amp.undecorated(model):
            assert self.dtypes(optimizer) == {"float32"}
        assert self.dtypes(optimizer) == dtypes
        amp.undecorate(model)
        amp.undecorate(model, optimizer)
        assert self.dtypes(optimizer) == {"float32"}
        assert np.array_equal(self.float64_moments(optimizer), before)

    def test_slots_that_are_there_are_rounded_with_a_warning(self) -> None:
        """Once: what is low already loses nothing."""
        model, optimizer, _ = self.trained("float32")
        values = self.float64_moments(optimizer)
        with pytest.warns(amp.AmpBridgeWarning, match=r"slots are float32.*lost.\nHint: Policy"):
            amp.decorate(model, optimizer, policy("float32", "bfloat16"))
        rounded = values.astype(ml_dtypes.bfloat16).astype(np.float64)
        assert np.array_equal(self.float64_moments(optimizer), rounded)
        amp.decorate(model, optimizer, policy("kahan", "bfloat16"))

    def test_another_optimizer_leaves_no_float32_slots(self) -> None:
        model, _, _ = self.trained("bfloat16", 1)
        other = neutral.optimizer("adamw", model, lr=1e-3)
        read = lambda: self.float64_moments(other)  # noqa: E731
        self.assert_low_after_another_steps(model, other, read)

    def test_a_refused_optimizer_leaves_the_one_that_was(self) -> None:
        """With the count that seeds the draws: its next update is that of a run without the refusal."""
        found = []
        for refused in (False, True):
            model, optimizer = self.made("adamw")
            step = self.step_of(model, optimizer, "stochastic", "bfloat16")
            for _ in range(2):
                step(*self.batch())
            if refused:
                other = neutral.optimizer("sgd", model, lr=1.0, momentum=0.0)
                with pytest.raises(amp.ArgumentError, match="no moments"):
                    self.step_of(model, other, "stochastic", "bfloat16")(*self.batch())
                for others in (other, [optimizer, other]):
                    with pytest.raises(amp.ArgumentError, match="no moments"):
                        amp.decorate(model, others, policy("float32", "bfloat16"))
                present = self.harness.backend.decoration(model, optimizer)
                assert present is not None
                assert present.policy == policy("stochastic", "bfloat16")
            step(*self.batch())
            found.append((self.values(model), self.float64_moments(optimizer)))
        for once, again in zip(*found, strict=True):
            assert np.array_equal(once, again)

    def test_low_slots_of_an_optimizer_without_moments_are_refused(self) -> None:
        model, optimizer = self.made()
        with pytest.raises(amp.ArgumentError, match=r"slots='bfloat16' of .*no moments.*\nHint: "):
            amp.decorate(model, optimizer, policy("float32", "bfloat16"))
        assert self.harness.backend.decoration(model, optimizer) is None

    @pytest.mark.parametrize("saved, loaded", [SLOTS, SLOTS[::-1]])
    def test_slots_are_loaded_into_another_choice(
        self, saved: Any, loaded: Any, tmp_path: Path, recwarn: pytest.WarningsRecorder
    ) -> None:
        _, optimizer, step = self.trained(saved)
        step.save(tmp_path)
        other, its_optimizer = self.made("adamw")
        resumed = self.step_of(other, its_optimizer, "float32", loaded)
        resumed(*self.batch())
        dtypes = self.dtypes(its_optimizer)
        if loaded == "bfloat16":
            with pytest.warns(amp.AmpBridgeWarning, match=r"(?s)saved in float32.*lost.*Hint: "):
                resumed.load(tmp_path)
        else:
            resumed.load(tmp_path)
        assert self.dtypes(its_optimizer) == dtypes
        values = self.float64_moments(optimizer)
        rounded = values.astype(ml_dtypes.bfloat16).astype(np.float64)
        expected = rounded if loaded == "bfloat16" else values
        assert np.array_equal(self.float64_moments(its_optimizer), expected)
        amp.decorate(other, its_optimizer, policy("float32", loaded))
        assert np.array_equal(self.float64_moments(its_optimizer), expected)
        assert resumed(*self.batch()).applied

    @pytest.mark.parametrize("has_stepped", [False, True])
    def test_a_load_tells_once_of_the_slots_that_it_rounds(
        self, has_stepped: bool, tmp_path: Path, recwarn: pytest.WarningsRecorder
    ) -> None:
        self.trained("float32")[2].save(tmp_path)
        resumed = self.step_of(*self.made("adamw"), "stochastic", "bfloat16")
        if has_stepped:
            resumed(*self.batch())
        resumed.load(tmp_path)
        assert resumed(*self.batch()).applied
        told = [text for each in recwarn if "optimizer's slots" in (text := str(each.message))]
        assert told == [
            "The optimizer's slots were saved in float32. slots='bfloat16' rounds those of low parameters "
            "to bfloat16: their further digits are lost.\n"
            "Hint: amp.train_step(..., policy=Policy('O2', 'bfloat16'))"
        ]

    def test_adopting_weights_says_nothing_of_slots_that_it_leaves(
        self, tmp_path: Path, recwarn: pytest.WarningsRecorder
    ) -> None:
        self.trained("float32")[2].save(tmp_path)
        other = self.step_of(*self.made("adamw"), "kahan", "bfloat16")
        other.adopt(tmp_path)
        assert other(*self.batch()).applied
        assert [str(each.message) for each in recwarn] == []


class Trajectories:
    """On two backends; docs/performance.md shows what the others' losses are."""

    harness: Harness

    @pytest.mark.nightly
    @pytest.mark.parametrize("workload", ["digits-mlp", "language"])
    def test_losses_after_2000_steps_lie_within_the_noise_of_seeds(self, workload: str) -> None:
        """The noise is the standard deviation of the losses with float32 masters."""
        from masters import WORKLOADS, apart, trained

        choices = [{"masters": each} for each in ("float32", "kahan", "stochastic")]
        builds = (partial(WORKLOADS[workload], self.harness.backend.name, n) for n in range(3))
        runs = (trained(build, choices, 2000) for build in builds)
        usual, kahan, stochastic = zip(*runs, strict=True)
        assert abs(apart(kahan, usual)) <= 1
        assert abs(apart(stochastic, usual)) <= 2
