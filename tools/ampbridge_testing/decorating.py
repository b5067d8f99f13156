"""Promises of ``layers``, ``decorate`` and ``undecorate``: O2, kept layers, what a model returns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ampbridge import (
    AmpBridgeWarning,
    CallOrderError,
    GradScaler,
    Policy,
    PolicyError,
    TrainStep,
    UnsupportedError,
    autocast,
    decorate,
    train_step,
    undecorate,
    undecorated,
    value_and_grad,
)
from ampbridge.adapters.backend import Array, LossFn, Model, Optimizer
from ampbridge.adapters.roles.saving import Saving
from ampbridge_testing.gradients import ERROR_BOUNDS, FLOAT32_ERROR, same_bits, with_aux
from ampbridge_testing.harness import NumpyArray, as_number, untransposed
from ampbridge_testing.reference import (
    EXACT,
    EXP_PROBE,
    LOW_DTYPES,
    PROBE,
    dtype_shown,
    example,
    momentum_steps,
    perceptron,
    relative_error,
    rounded,
)
from ampbridge_testing.regions import low_array
from ampbridge_testing.roles import needs
from ampbridge_testing.shared import RATE, Conformance

PRODUCTS = ("linear", "matmul")
"""Denied, a linear layer computes in float32 whatever it reads: its result shows what that was."""

# Several rows, or torch.compile would make one kernel of the product and the cast after it, and
# round nothing in between.
ONES = np.ones((3, 2), np.float32)
IDENTITY = np.eye(2, dtype=np.float32)
NOTHING = np.zeros(2, np.float32)
PROBING = np.diag(PROBE).astype(np.float32)
ONE_ROW = (np.zeros((1, 2), np.float32),)

low_dtypes = pytest.mark.parametrize("dtype", LOW_DTYPES)
levels = pytest.mark.parametrize("level", ["O1", "O2"])


def first_output(model: Model, x: Array) -> Array:
    """A loss."""
    return model(x)[0, 0]


def first_and_all(model: Model, x: Array) -> tuple[Array, Array]:
    """The same loss, and what the model returned."""
    y = model(x)
    return y[0, 0], y


def o2(dtype: str = "float16", **settings: Any) -> Policy:
    return Policy("O2", dtype, **settings)


class Layered(Conformance):
    """What the tests of layered models share."""

    # -- a model that shows in which precision it ran

    def probing(self, outputs: Callable[[Array], Any] | None = None) -> Model:
        """Its head multiplies by PROBE: ``shown`` tells how the head read it, and computed."""
        return self.harness.layered([IDENTITY, NOTHING, PROBING, NOTHING], outputs=outputs)

    def call(self, model: Model, x: NumpyArray = ONES) -> Any:
        return model(self.harness.array(x))

    def shown(self, model: Model, x: NumpyArray = ONES) -> str:
        """The dtype that PROBE has come through ``model`` in."""
        return self.shown_in(self.call(model, x))

    def shown_in(self, rows: Array, exact: NumpyArray = PROBE) -> str:
        """The dtype in which ``exact`` came to the first of ``rows``."""
        return dtype_shown(self.harness.numpy(rows)[0], exact)

    # -- a model to train

    def trainable(self, kind: str = "momentum", rate: float = RATE) -> tuple[Model, Optimizer]:
        model = self.harness.layered(example().weights)
        return model, self.harness.optimizer(model, kind, rate)

    def loss(self) -> LossFn:
        """``loss_fn(model, x, target, factor)``: an infinite factor makes infinite gradients."""
        h = self.harness

        def loss_fn(model: Model, x: Array, target: Array, factor: Array) -> Array:
            return h.mean_squared_error(model(x), target) * factor

        return loss_fn

    def step(self, model: Model, optimizer: Optimizer, **settings: Any) -> TrainStep:
        return train_step(self.loss(), model, optimizer, **settings)

    def weights(self, model: Model) -> list[NumpyArray]:
        """The values of the parameters of ``trainable``, in the suite's shapes."""
        return untransposed(self.values(model), example().weights)

    def outputs_and_gradients(self, model: Model) -> list[NumpyArray]:
        """Of a forward and a backward pass, by the framework alone."""
        h = self.harness
        batch = [h.array(v) for v in self.batch()]
        gradients = h.native_gradients(model, self.loss(), batch, lambda loss: loss)
        return [h.numpy(model(batch[0])), *map(h.numpy, gradients)]

    def layered_gradients(self, model: Model, policy: Policy) -> list[NumpyArray]:
        """By ``value_and_grad``, of a loss times 2**10, which is in their values."""
        _, gradients = value_and_grad(
            self.loss(), model, *self.batch(), policy=policy, scaler=GradScaler(2.0**10)
        )
        return [self.harness.numpy(g) for g in gradients]

    # -- a weight that moves by the same small amount each step

    def drifting(self, rate: float, kind: str = "sgd") -> tuple[Model, Optimizer]:
        """All weights 0 and the head's biases 1, of which the first has a gradient of exactly 1."""
        zeros = np.zeros((2, 2), np.float32)
        model = self.harness.layered([zeros, NOTHING, zeros, np.ones(2, np.float32)])
        return model, self.harness.optimizer(model, kind, rate)

    def drift(
        self, model: Model, optimizer: Optimizer, policy: Policy, steps: int = 1
    ) -> TrainStep:
        step = train_step(first_output, model, optimizer, policy=policy, scaler=None)
        for _ in range(steps):
            step(*ONE_ROW)
        return step

    def drifted(self, model: Model) -> float:
        """The bias that moves."""
        return float(self.values(model)[-1][0])


class LayersConformance(Layered):
    """Promises of ``Backend.layers``."""

    def test_layers_come_under_dotted_names_outer_before_inner(self) -> None:
        model = self.probing()
        layers = self.harness.backend.layers(model)
        names = [layer.name for layer in layers]
        assert names[0] == ""
        assert layers[0].layer is model
        assert {"hidden", "head"} <= set(names)
        assert len(set(names)) == len({id(layer.layer) for layer in layers}) == len(layers)

    def test_a_layer_tells_its_class_and_the_shapes_of_its_own_parameters(self) -> None:
        found = {layer.name: layer for layer in self.harness.backend.layers(self.trainable()[0])}
        assert found["head"].kind == self.harness.linear_kind
        shapes = sorted(found["head"].shapes.values(), key=len)
        assert [sorted(shape) for shape in shapes] == [[3], [3, 10]]
        assert found[""].shapes == {}


class O2Conformance(Layered):
    """Promises of a model decorated for O2, and of its training."""

    # -- what is low

    @low_dtypes
    def test_O2_reads_parameters_in_low_precision(self, dtype: str) -> None:
        model = decorate(self.probing(), policy=o2(dtype, deny=PRODUCTS))
        assert self.shown(model) == dtype

    @low_dtypes
    def test_O2_leaves_the_inputs_of_the_model_to_its_layers(self, dtype: str) -> None:
        """A kept layer gets them as they are, wherever it stands."""
        model = self.harness.layered([IDENTITY, NOTHING, IDENTITY, NOTHING])
        decorate(model, policy=o2(dtype, deny=PRODUCTS, keep=("hidden",)))
        assert self.shown(model, PROBE.reshape(1, 2).astype(np.float32)) == "float32"

    def test_O1_casts_neither(self) -> None:
        model = decorate(self.probing(), policy=Policy("O1", "float16", deny=PRODUCTS))
        assert self.shown(model) == "float32"
        model = self.harness.layered([IDENTITY, NOTHING, IDENTITY, NOTHING])
        decorate(model, policy=Policy("O1", "float16", deny=PRODUCTS))
        assert self.shown(model, PROBE.reshape(1, 2).astype(np.float32)) == "float32"

    @low_dtypes
    def test_O2_leaves_the_parameters_of_normalizations_in_float32(self, dtype: str) -> None:
        """With weights of zero and biases of PROBE, which the head hands on."""
        normalization = NOTHING, PROBE.astype(np.float32)
        model = self.harness.layered([IDENTITY, NOTHING, IDENTITY, NOTHING], normalization)
        decorate(model, policy=o2(dtype, deny=PRODUCTS))
        assert self.shown(model) == "float32"

    @low_dtypes
    def test_O2_is_the_reference_with_rounded_parameters(self, dtype: str) -> None:
        """With the products denied, and inputs that low layers may cast: they are rounded already."""
        given = example()
        x = rounded(given.x, dtype)
        normalization = [np.linspace(0.5, 1.5, 10), np.linspace(-0.25, 0.5, 10)]
        wide = [w.astype(np.float32) for w in normalization]
        model = self.harness.layered(given.weights, wide)
        decorate(model, policy=o2(dtype, deny=PRODUCTS))
        read = [rounded(w, dtype) for w in given.weights]
        expected = perceptron(read, x, wide)
        actual = self.harness.numpy(self.call(model, x))
        assert relative_error([actual], [expected]) < FLOAT32_ERROR
        exact = perceptron(given.weights, x, wide)
        assert relative_error([actual], [exact]) > FLOAT32_ERROR

    @low_dtypes
    def test_O2_outputs_are_within_the_low_dtype_s_error_and_show_it(self, dtype: str) -> None:
        given = example()
        model = decorate(self.harness.layered(given.weights), policy=o2(dtype))
        actual = self.harness.numpy(self.call(model, given.x))
        error = relative_error([actual], [perceptron(given.weights, given.x)])
        assert FLOAT32_ERROR < error < ERROR_BOUNDS[dtype]

    @low_dtypes
    def test_at_O2_a_denied_op_is_float32_and_an_unlisted_one_follows(self, dtype: str) -> None:
        h = self.harness

        def outputs(x: Array) -> Any:
            return {"exp": h.run("exp", x), "add": h.run("add", x, low_array(h, [1.0, 1.0]))}

        weights = [IDENTITY, NOTHING, IDENTITY, EXP_PROBE.astype(np.float32)]
        model = decorate(h.layered(weights, outputs=outputs), policy=o2(dtype))
        result = self.call(model, 0 * ONES)
        assert self.shown_in(result["exp"], np.exp(EXP_PROBE)) == "float32"
        assert self.shown_in(result["add"]) == dtype

    # -- where it holds

    @levels
    def test_a_decorated_model_runs_under_its_policy_wherever_it_is_called(
        self, level: str
    ) -> None:
        model = decorate(self.probing(), policy=Policy(level, "bfloat16"))  # type: ignore[arg-type]
        assert self.shown(model) == "bfloat16"
        with self.harness.backend.autocast(Policy("O1", "float16")):
            assert self.shown(model) == "bfloat16"

    @levels
    def test_a_region_around_a_decorated_model_changes_nothing(self, level: str) -> None:
        policy = Policy(level, "bfloat16")  # type: ignore[arg-type]
        model = decorate(self.harness.layered(example().weights), policy=policy)
        results = [self.call(model, example().x)]
        with autocast(policy, backend=self.harness.backend):
            results.append(self.call(model, example().x))
        assert same_bits(*([self.harness.numpy(r)] for r in results))

    def test_below_O2_train_step_s_own_decoration_acts_inside_of_the_step_alone(self) -> None:
        h, model = self.harness, self.probing()
        optimizer = h.optimizer(model, "sgd", 0.0)
        policy = Policy("O1", "bfloat16", keep=("head",), output_dtype="float16")

        before = self.call(model)
        step = train_step(first_and_all, model, optimizer, policy=policy, compile=False)
        assert self.shown_in(step(ONES).aux) == "float16"
        assert same_bits([h.numpy(self.call(model))], [h.numpy(before)])
        with h.backend.autocast(Policy("O0")):
            assert self.shown(model) == "float32"

    # -- gradients

    @low_dtypes
    def test_O2_gradients_are_within_the_low_dtype_s_error_and_show_it(self, dtype: str) -> None:
        model, policy = self.trainable()[0], o2(dtype)
        gradients = self.layered_gradients(decorate(model, policy=policy), policy)
        expected = [1024 * g for g in EXACT.gradients]
        actual = untransposed(gradients, expected)
        assert FLOAT32_ERROR < relative_error(actual, expected) < ERROR_BOUNDS[dtype]

    @low_dtypes
    def test_O2_gradients_are_float32_that_were_rounded(self, dtype: str) -> None:
        model, policy = self.trainable()[0], o2(dtype)
        gradients = self.layered_gradients(decorate(model, policy=policy), policy)
        assert [g.dtype.name for g in gradients] == ["float32"] * 4
        assert all(np.array_equal(g, rounded(g, dtype)) for g in gradients)

    def test_O2_micro_batches_are_summed_in_float32(self) -> None:
        """1 and 2**-12: the sum is neither float16 nor bfloat16."""
        h, policy = self.harness, o2("bfloat16")
        model = decorate(self.drifting(1.0)[0], policy=policy)

        total = None
        for factor in (1.0, 2.0**-12):
            _, _, total = h.backend.gradients(
                with_aux(first_output), model, ONE_ROW, policy, factor, total
            )
        assert total is not None
        assert h.numpy(total[-1])[0] == 1 + 2.0**-12

    def test_value_and_grad_at_O2_is_for_a_decorated_model(self) -> None:
        model, _ = self.trainable()
        with pytest.raises(CallOrderError, match=r"(?s)not decorated.*Hint: .*amp\.decorate"):
            self.layered_gradients(model, o2())
        decorate(model, policy=o2())
        with pytest.raises(CallOrderError, match=r"(?s)is decorated with.*Hint: "):
            self.layered_gradients(model, o2("bfloat16"))

    # -- master weights

    def test_200_updates_under_half_an_ulp_move_the_master_weights(self) -> None:
        model, optimizer = self.drifting(2.0**-12)
        self.drift(model, optimizer, o2("bfloat16"), 200)
        undecorate(model, optimizer)
        assert self.drifted(model) == pytest.approx(1 - 200 * 2.0**-12, rel=1e-6)

    def test_without_master_weights_updates_under_half_an_ulp_are_lost(self) -> None:
        model, optimizer = self.drifting(2.0**-12)
        self.drift(model, optimizer, o2("bfloat16", masters=None), 200)
        assert self.drifted(model) == 1.0
        undecorate(model, optimizer)
        assert self.drifted(model) == 1.0

    def test_without_master_weights_larger_updates_are_rounded(self) -> None:
        """Under 1 a bfloat16 ulp is 2**-8."""
        model, optimizer = self.drifting(2.0**-8 + 2.0**-11)
        self.drift(model, optimizer, o2("bfloat16", masters=None))
        undecorate(model, optimizer)
        assert self.drifted(model) == 1 - 2.0**-8

    def test_undecorate_ends_the_rounding_without_master_weights(self) -> None:
        model, optimizer = self.drifting(2.0**-12)
        self.drift(model, optimizer, o2("bfloat16", masters=None))
        undecorate(model, optimizer)
        self.drift(model, optimizer, Policy("O0"))
        assert self.drifted(model) == 1 - 2.0**-12

    def test_a_step_at_O2_shows_in_the_next_forward_pass(self) -> None:
        """The masters are written back: 1 - 2**-4 is exact in every dtype."""
        model, optimizer = self.drifting(2.0**-4)
        step = self.drift(model, optimizer, o2("bfloat16"))
        assert self.harness.numpy(self.call(model, 0 * ONES))[0].tolist() == [1 - 2.0**-4, 1.0]
        assert step(*ONE_ROW).loss == 1 - 2.0**-4

    def test_the_user_s_own_steps_at_O2_move_the_masters(self) -> None:
        h, (model, optimizer), policy = self.harness, self.drifting(2.0**-12), o2("bfloat16")
        decorate(model, optimizer, policy)

        scaler = GradScaler(2.0**10)
        for _ in range(8):
            _, gradients = value_and_grad(
                first_output, model, *ONE_ROW, policy=policy, scaler=scaler
            )
            assert scaler.step(optimizer, gradients)
            scaler.update()
        undecorate(model, optimizer)
        assert self.drifted(model) == 1 - 8 * 2.0**-12
        assert h.dtype_of(h.parameters(model)[-1]) == "float32"

    @pytest.mark.parametrize("unscale_first", [True, False])
    def test_a_loop_of_stored_gradients_at_O2_moves_the_masters(self, unscale_first: bool) -> None:
        h, scaler = self._storing(), GradScaler(2.0**10)
        model, optimizer = self.drifting(2.0**-12)
        decorate(model, optimizer, o2("bfloat16"))
        batch = [h.array(*ONE_ROW)]
        for _ in range(8):
            h.native_gradients(model, first_output, batch, scaler.scale)
            if unscale_first:
                scaler.unscale(optimizer)
            assert scaler.step(optimizer)
            scaler.update()
        undecorate(model, optimizer)
        assert self.drifted(model) == 1 - 8 * 2.0**-12

    @pytest.mark.parametrize("masters", ["float32", None])
    def test_what_is_clipped_in_place_at_O2_is_what_steps(self, masters: Any) -> None:
        """A gradient of 1, clipped to 2**-4 once it has been unscaled."""
        h, scaler = self._storing(), GradScaler(2.0**10)
        model, optimizer = self.drifting(1.0)
        decorate(model, optimizer, o2("bfloat16", masters=masters))
        batch = [h.array(*ONE_ROW)]
        h.native_gradients(model, first_output, batch, scaler.scale)
        scaler.unscale(optimizer)
        _, norm = h.backend.clip(h.backend.stored_gradients(optimizer), 2.0**-4)
        assert as_number(norm, h) == 1.0
        assert scaler.step(optimizer)
        undecorate(model, optimizer)
        assert self.drifted(model) == pytest.approx(1 - 2.0**-4, rel=1e-5)

    # -- weights that float16 does not hold

    @needs("largest_magnitudes")
    @pytest.mark.parametrize("value, shown", [(-70000.0, "70000"), (65520.0, "65520")])
    @pytest.mark.parametrize("masters", ["float32", None])
    def test_a_weight_beyond_float16_is_named_and_the_layer_to_keep(
        self, value: float, shown: str, masters: Any
    ) -> None:
        model, optimizer = self.with_head(value)
        policy = o2(masters=masters, keep=("hidden",))
        expected = (
            rf"(?s)float16 does not hold .*: head\.\w+ \({shown}\)\. .*65504.*"
            r"Hint: policy=amp\.Policy\(.*keep=\['head', 'hidden'\].*\); or policy='O2:bfloat16'"
        )
        with pytest.warns(AmpBridgeWarning, match=expected):
            decorate(model, optimizer, policy)

    @needs("largest_magnitudes")
    @pytest.mark.parametrize("value, shown", [(-(2.0**-25), "2.98023e-08"), (1e-10, "1e-10")])
    def test_weights_that_are_all_zero_in_float16_are_named(self, value: float, shown: str) -> None:
        expected = (
            rf"(?s)float16 does not hold .*: head\.\w+ \({shown}\)\. .* become zero.*"
            r"Hint: policy=amp\.Policy\(.*keep=\['head'\].*\); or policy='O2:bfloat16'"
        )
        with pytest.warns(AmpBridgeWarning, match=expected):
            decorate(self.with_small_head(value), policy=o2())

    @pytest.mark.parametrize(
        "value, policy",
        [
            (2.0**-25 * (1 + 2.0**-23), o2()),
            (0.0, o2()),
            (1e-10, o2("bfloat16")),
            (1e-10, o2(keep=("head",))),
        ],
    )
    def test_nothing_is_told_of_weights_that_do_not_become_zero(
        self, value: float, policy: Policy
    ) -> None:
        model = self.with_small_head(value)
        assert self.told_of_weights(lambda: decorate(model, policy=policy)) == []

    @needs("largest_magnitudes")
    @pytest.mark.parametrize("decorated", [False, True])
    def test_steps_tell_once_of_a_weight_beyond_float16(self, decorated: bool) -> None:
        """Or not at all, if ``decorate`` has, also where it did not know of the optimizer."""
        model, optimizer = self.with_head(70000.0)
        if decorated:
            assert len(self.told_of_weights(lambda: decorate(model, policy=o2()))) == 1
        step = self.step(model, optimizer, policy=o2(), compile=False)
        batch = ONES, ONES, np.float32(1)
        told = self.told_of_weights(lambda: [step(*batch), step(*batch)])
        assert len(told) == (0 if decorated else 1)

    @pytest.mark.parametrize(
        "value, policy",
        [
            (65519.0, o2()),
            (70000.0, o2("bfloat16")),
            (70000.0, o2(keep=("head",))),
            (70000.0, Policy("O1", "float16")),
            (math.inf, o2()),
        ],
    )
    def test_nothing_is_told_of_weights_that_fit_or_that_no_policy_helps(
        self, value: float, policy: Policy
    ) -> None:
        """The weights of the normalization, which stay float32, would not fit."""
        model = self.with_head(value, [np.full(2, 70000, np.float32), NOTHING])[0]
        assert self.told_of_weights(lambda: decorate(model, policy=policy)) == []

    @needs("largest_magnitudes")
    @pytest.mark.parametrize(
        "value, keep, says",
        [(1 + 2.0**-12, (), True), (1.5, (), False), (1 + 2.0**-12, ("head",), False)],
    )
    def test_digits_that_training_had_are_told_of_where_they_are_rounded(
        self, value: float, keep: tuple[str, ...], says: bool
    ) -> None:
        """The weights of the normalization stay float32."""
        normalization = [np.full(2, 1 + 2.0**-12, np.float32), NOTHING]
        model, optimizer = self.with_head(value, normalization)
        decorate(model, optimizer, o2("bfloat16"))
        low = o2("bfloat16", masters=None, keep=keep)
        told = self.told_of_weights(lambda: decorate(model, optimizer, low), "masters=None rounds")
        assert len(told) == says

    def with_head(
        self, value: float, normalization: Sequence[NumpyArray] | None = None
    ) -> tuple[Model, Optimizer]:
        """A model of which one weight of the head is ``value``."""
        head = np.diag([1, value]).astype(np.float32)
        model = self.harness.layered([IDENTITY, NOTHING, head, NOTHING], normalization)
        return model, self.harness.optimizer(model, "sgd", 0.0)

    def with_small_head(self, largest: float) -> Model:
        """A model whose head has weights up to ``largest``, and another of half of it."""
        head = np.float32(largest) * np.array([[1, 0.5], [0, -1]], np.float32)
        return self.harness.layered([IDENTITY, NOTHING, head, NOTHING], None)

    def told_of_weights(
        self, action: Callable[[], object], words: str = "float16 does not hold"
    ) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            action()
        return [text for each in caught if words in (text := str(each.message))]

    # -- training

    def test_train_step_at_O2_decorates_by_itself(self, compiled: bool) -> None:
        """One step of momentum from gradients in low precision, taken by float32 weights."""
        h, (model, optimizer), policy = self.harness, self.trainable(), o2("bfloat16")
        result = self.step(model, optimizer, policy=policy, compile=compiled)(*self.batch())
        assert result.loss == pytest.approx(EXACT.loss, rel=1e-2)
        present = h.backend.decoration(model, optimizer)
        assert present is not None
        assert present.policy == policy
        undecorate(model, optimizer)
        expected = momentum_steps(example().weights, [EXACT.gradients], RATE)
        moved = [a - w for a, w in zip(self.weights(model), example().weights, strict=True)]
        due = [e - w for e, w in zip(expected, example().weights, strict=True)]
        assert FLOAT32_ERROR < relative_error(moved, due) < ERROR_BOUNDS["bfloat16"]

    @pytest.mark.parametrize("kind, factor", [("momentum", math.inf), ("adam", math.nan)])
    def test_a_skipped_step_at_O2_leaves_every_bit(
        self, kind: str, factor: float, compiled: bool
    ) -> None:
        """Masters too: they are compared after ``undecorate``, with those of a run without it."""
        skipping, straight = (self.trained_at_O2(kind, f, compiled) for f in ([1, factor], [1]))
        assert same_bits(skipping, straight)

    def trained_at_O2(
        self, kind: str, factors: Sequence[float], compiled: bool
    ) -> list[NumpyArray]:
        """Low parameters, masters and slots after the steps, of which the finite ones are applied."""
        model, optimizer = self.trainable(kind)
        scaler = GradScaler(2.0**8)
        step = self.step(model, optimizer, policy=o2(), scaler=scaler, compile=compiled)
        assert [step(*self.batch(f)).applied for f in factors] == [
            math.isfinite(f) for f in factors
        ]
        low = self.values(model)
        undecorate(model, optimizer)
        return [*low, *self.values(model), *self.harness.slots(optimizer)]


class KeepConformance(Layered):
    """Promises of ``keep``: layers in float32, at O1 and O2."""

    @levels
    @pytest.mark.parametrize("entry", ["head", "he*", "?ead"])
    def test_a_layer_is_kept_by_its_name_or_a_pattern(self, level: str, entry: str) -> None:
        policy = Policy(level, "float16", keep=(entry,))  # type: ignore[arg-type]
        assert self.shown(decorate(self.probing(), policy=policy)) == "float32"

    @levels
    def test_layers_are_kept_by_their_class(self, level: str) -> None:
        """Both: PROBE passes the first, or it would be rounded there."""
        model = self.harness.layered([PROBING, NOTHING, IDENTITY, NOTHING])
        keep = (self.harness.linear_kind,)
        decorate(model, policy=Policy(level, "float16", keep=keep))  # type: ignore[arg-type]
        assert self.shown(model) == "float32"

    @levels
    @low_dtypes
    def test_the_other_layers_are_not_kept(self, level: str, dtype: str) -> None:
        policy = Policy(level, dtype, keep=("hidden",))  # type: ignore[arg-type]
        assert self.shown(decorate(self.probing(), policy=policy)) == dtype

    def test_a_kept_layer_s_gradients_are_not_rounded(self) -> None:
        model, policy = self.trainable()[0], o2(keep=("head",))
        gradients = self.layered_gradients(decorate(model, policy=policy), policy)
        are_rounded = [np.array_equal(g, rounded(g, "float16")) for g in gradients]
        assert are_rounded == [True, True, False, False]

    @levels
    def test_a_step_keeps_layers(self, level: str) -> None:
        h, model = self.harness, self.probing()
        optimizer = h.optimizer(model, "sgd", 0.0)

        policy = Policy(level, "bfloat16", keep=("head",))  # type: ignore[arg-type]
        step = train_step(first_and_all, model, optimizer, policy=policy, compile=False)
        assert self.shown_in(step(ONES).aux) == "float32"

    @levels
    def test_layers_below_a_kept_one_are_kept_wherever_they_are_called(self, level: str) -> None:
        """By a method of its own, say, and not by its call."""
        h, model = self.harness, self.probing()
        optimizer = h.optimizer(model, "sgd", 0.0)

        def loss_fn(model: Model, x: Array) -> Any:
            y = model.head(x)
            return y[0, 0], y

        policy = Policy(level, "bfloat16", keep=(type(model).__name__,))  # type: ignore[arg-type]
        step = train_step(loss_fn, model, optimizer, policy=policy, compile=False)
        assert self.shown_in(step(ONES).aux) == "float32"

    @pytest.mark.parametrize("entry, hint", [("haed", "head"), ("hidden.*", "hidden")])
    def test_an_entry_that_matches_nothing_is_refused_and_names_what_is_near(
        self, entry: str, hint: str
    ) -> None:
        h, model = self.harness, self.probing()
        optimizer = h.optimizer(model, "sgd", 0.0)
        before = h.details(model, optimizer)
        expected = rf"(?s){entry.replace('*', '[*]')}.*matches no layer.*Hint: .*'{hint}'"
        with pytest.raises(PolicyError, match=expected):
            decorate(model, optimizer, o2(keep=(entry,)))
        with pytest.raises(PolicyError, match=expected):
            train_step(self.loss(), model, optimizer, policy=Policy("O1", keep=(entry,)))
        assert h.details(model, optimizer) == before


class OutputConformance(Layered):
    """Promises of ``output_dtype``."""

    def containers(self, x: Array) -> Any:
        """``x`` four times, integers and float64 beside it."""
        h = self.harness
        whole, wide = h.array([1, 2], "int64"), h.array([1.0], "float64")
        return {"one": x, "more": [x, (x, whole), wide]}, x

    def floats(self, returned: Any) -> list[Array]:
        """The four of ``containers``."""
        (named, last), more = returned, returned[0]["more"]
        return [named["one"], more[0], more[1][0], last]

    @levels
    @pytest.mark.parametrize("dtype", ["float32", *LOW_DTYPES])
    def test_outputs_come_in_output_dtype(self, level: str, dtype: str) -> None:
        """From a kept head, so that PROBE is whole until then."""
        h = self.harness
        policy = Policy(level, "float16", keep=("head",), output_dtype=dtype)  # type: ignore[arg-type]
        returned = self.call(decorate(self.probing(self.containers), policy=policy))
        for value in self.floats(returned):
            assert self.shown_in(value) == dtype
            assert h.dtype_of(value) == ("float32" if h.simulated else dtype)

    @levels
    @low_dtypes
    def test_low_outputs_come_in_float32(self, level: str, dtype: str) -> None:
        """What is added to them inside of a region then is float32 as well."""
        h, policy = self.harness, Policy(level, dtype)  # type: ignore[arg-type]
        model = h.layered([IDENTITY, NOTHING, IDENTITY, NOTHING], outputs=self.containers)
        decorate(model, policy=policy)
        with h.backend.autocast(policy):
            small = low_array(h, list(EXP_PROBE))
            returned = self.call(model)
            sums = [h.run("add", value, small) for value in self.floats(returned)]
        assert [h.dtype_of(value) for value in self.floats(returned)] == ["float32"] * 4
        assert [self.shown_in(s) for s in sums] == ["float32"] * 4

    @levels
    def test_outputs_that_are_integers_or_float64_stay_so(self, level: str) -> None:
        h = self.harness
        policy = Policy(level, "float16", output_dtype="float16")  # type: ignore[arg-type]
        named, _ = self.call(decorate(self.probing(self.containers), policy=policy))
        assert h.dtype_of(named["more"][1][1]) == "int64"
        assert h.dtype_of(named["more"][2]) == "float64"

    @levels
    def test_the_loss_function_gets_outputs_in_float32(self, level: str) -> None:
        _, shown = self.shown_in_a_step(Policy(level, "bfloat16"))  # type: ignore[arg-type]
        assert shown == "float32"

    def test_a_step_keeps_layers_and_casts_outputs(self, compiled: bool) -> None:
        policy = o2("bfloat16", keep=("head",))
        assert self.shown_in_a_step(policy, compiled) == ("float32", "float32")

    def shown_in_a_step(self, policy: Policy, compiled: bool = False) -> tuple[str, str]:
        """Of a model that returns what its head gives, and a product of it.

        The dtype of the former; and that of the latter, to which something is added that it would
        lose if it were as low as the summand.
        """
        h, identity = self.harness, self.harness.array(IDENTITY)
        model = self.probing(lambda y: (y, h.run("matmul", y, identity)))
        optimizer = h.optimizer(model, "sgd", 0.0)

        def loss_fn(model: Model, x: Array, fine: Array) -> Any:
            y, product = model(x)
            total = h.run("add", product, h.run("matmul", fine, identity))
            return total[0, 0], (y, total)

        step = train_step(loss_fn, model, optimizer, policy=policy, compile=compiled)
        y, total = step(ONES, np.full((3, 2), 2.0**-16, np.float32)).aux
        exact = rounded(PROBE, policy.dtype) + 2.0**-16
        return self.shown_in(y), self.shown_in(total, exact)


class UndecorateConformance(Layered):
    """Promises of ``undecorate``, and of what stands while a model is decorated."""

    def built(self, kind: str = "momentum") -> tuple[Model, Optimizer]:
        """A model and an optimizer with slots: one step has been taken."""
        model, optimizer = self.trainable(kind)
        self.step(model, optimizer, policy="O0", compile=False)(*self.batch())
        self.outputs_and_gradients(model)
        return model, optimizer

    @contextmanager
    def _unchanged(self, model: Model, optimizer: Optimizer) -> Iterator[None]:
        """Check that a block changes no bit and no attribute."""
        details, values = self.harness.details(model, optimizer), self.values(model)
        yield
        assert self.harness.details(model, optimizer) == details
        assert same_bits(self.values(model), values)

    @levels
    @pytest.mark.parametrize("kind", ["momentum", "adam"])
    def test_undecorate_takes_back_every_bit_and_attribute(self, level: str, kind: str) -> None:
        h, (model, optimizer) = self.harness, self.built(kind)
        details = h.details(model, optimizer)
        values = [*self.values(model), *h.slots(optimizer), *self.outputs_and_gradients(model)]
        policy = Policy(level, "bfloat16", keep=("head",))  # type: ignore[arg-type]
        assert decorate(model, optimizer, policy) == (model, optimizer)
        assert h.details(model, optimizer) != details
        self.call(model, example().x)
        assert undecorate(model, optimizer) == (model, optimizer)
        assert h.details(model, optimizer) == details
        after = [*self.values(model), *h.slots(optimizer), *self.outputs_and_gradients(model)]
        assert same_bits(after, values)
        assert h.backend.decoration(model, optimizer) is None

    def test_undecorate_after_training_leaves_float32_as_it_was(self) -> None:
        h, (model, optimizer) = self.harness, self.built()
        details = h.details(model, optimizer)
        step = self.step(model, optimizer, policy=o2("bfloat16", keep=("head",)), compile=False)
        step(*self.batch())
        undecorate(model, optimizer)
        assert h.details(model, optimizer) == details
        assert [h.dtype_of(p) for p in h.parameters(model)] == ["float32"] * 4

    @needs(Saving)
    def test_undecorated_for_a_block_a_model_has_its_masters_and_then_goes_on(self) -> None:
        h, (model, optimizer) = self.harness, self.trainable()
        step = self.step(model, optimizer, policy=o2("bfloat16"), compile=False)
        step(*self.batch())
        masters = h.backend.read_weights(model)
        policy = o2("bfloat16", deny=PRODUCTS)
        probing = decorate(self.probing(), policy=policy)
        with undecorated(model, optimizer), undecorated(probing):
            inside = dict(zip(masters, self.values(model), strict=True))
            assert self.shown(probing) == "float32"
        assert same_bits(list(inside.values()), list(masters.values()))
        assert self.shown(probing) == "bfloat16"
        assert same_bits(list(h.backend.read_weights(model).values()), list(masters.values()))
        assert step(*self.batch()).applied

    def test_undecorate_of_what_is_not_decorated_changes_nothing(self) -> None:
        model, optimizer = self.built()
        with self._unchanged(model, optimizer):
            assert undecorate(model, optimizer) == (model, optimizer)
            assert undecorate(model) is model

    @levels
    def test_decorating_again_replaces_what_was(self, level: str) -> None:
        h, model = self.harness, self.probing()
        optimizer = h.optimizer(model, "sgd", 0.0)
        self.call(model)
        details = h.details(model, optimizer)
        shown = []
        for policy in (
            Policy("O2", "float16"),
            Policy("O2", "float16"),
            Policy("O2", "float16", keep=("head",)),
            Policy(level, "bfloat16"),  # type: ignore[arg-type]
        ):
            decorate(model, optimizer, policy)
            shown.append(self.shown(model))
        assert shown == ["float16", "float16", "float32", "bfloat16"]
        undecorate(model, optimizer)
        assert h.details(model, optimizer) == details
        assert self.shown(model) == "float32"

    def test_O0_takes_a_decoration_back(self) -> None:
        model = decorate(self.probing(), policy="O2")
        decorate(model, policy="O0")
        assert self.shown(model) == "float32"
        assert self.harness.backend.decoration(model, None) is None

    def test_a_refused_decoration_changes_nothing(self) -> None:
        model, optimizer = self.built()
        with self._unchanged(model, optimizer), pytest.raises(UnsupportedError, match="Hint: "):
            decorate(model, optimizer, o2(lists="native", execution="simulated"))

    def test_what_is_refused_with_another_optimizer_leaves_the_one_that_was(self) -> None:
        """Of weights that are kept in 16 bits, an update under half an ulp is still lost."""
        h, (model, optimizer) = self.harness, self.drifting(2.0**-12)
        other, policy = h.optimizer(model, "sgd", 2.0**-12), o2("bfloat16", masters=None)
        decorate(model, optimizer, policy)
        values = self.values(model)
        with pytest.raises(UnsupportedError, match="Hint: "):
            decorate(model, other, o2(lists="native", execution="simulated"))
        assert same_bits(self.values(model), values)
        present = h.backend.decoration(model, optimizer)
        assert present is not None
        assert present.policy == policy
        self.step_by_hand(model, optimizer, policy)
        assert self.drifted(model) == 1.0
        undecorate(model, optimizer)
        self.drift(model, optimizer, Policy("O0"))
        assert self.drifted(model) == 1 - 2.0**-12

    def test_several_optimizers_are_decorated_together(self) -> None:
        """Each loses an update under half an ulp, and none any longer after ``undecorate``."""
        h, (model, optimizer) = self.harness, self.drifting(2.0**-12)
        optimizers = [optimizer, h.optimizer(model, "sgd", 2.0**-12)]
        policy = o2("bfloat16", masters=None)
        decorate(model, optimizers, policy)
        for each in optimizers:
            assert h.backend.decoration(model, each) is not None
            self.step_by_hand(model, each, policy)
        assert self.drifted(model) == 1.0
        undecorate(model, optimizers)
        for each in optimizers:
            self.drift(model, each, Policy("O0"))
        assert self.drifted(model) == 1 - 2 * 2.0**-12

    def step_by_hand(self, model: Model, optimizer: Optimizer, policy: Policy) -> None:
        scaler = GradScaler()
        _, gradients = value_and_grad(first_output, model, *ONE_ROW, policy=policy, scaler=scaler)
        assert scaler.step(optimizer, gradients)
        scaler.update()

    @pytest.mark.parametrize("other", ["O0", "O1:bfloat16", "O2:bfloat16"])
    def test_another_step_is_refused_where_one_keeps_weights_in_16_bits(self, other: str) -> None:
        """Taking turns, they would round each other's weights. After ``undecorate`` the other may go on."""
        model, optimizer = self.trainable("sgd")
        policy = o2("bfloat16", masters=None)
        low, wide = (self.step(model, optimizer, policy=p, compile=False) for p in (policy, other))
        expected = r"(?s)train_step under .* decorated with Policy\(.*\.\nHint: .*undecorate"
        for first, second in ((low, wide), (wide, low)):
            if first is wide and other == "O0":
                continue  # which decorates nothing
            first(*self.batch())
            with self._unchanged(model, optimizer), pytest.raises(CallOrderError, match=expected):
                second(*self.batch())
            assert first(*self.batch()).applied
            undecorate(model, optimizer)
        assert wide(*self.batch()).applied

    def test_steps_of_several_policies_take_turns_and_nothing_is_rounded(self) -> None:
        model, optimizer = self.drifting(2.0**-12)
        for _ in range(2):
            for policy in (
                o2("bfloat16"),
                Policy("O0"),
                o2("bfloat16", keep=("hidden",)),
                Policy("O1", "bfloat16"),
            ):
                self.drift(model, optimizer, policy)
        undecorate(model, optimizer)
        assert self.drifted(model) == 1 - 8 * 2.0**-12

    def test_a_step_is_refused_once_the_user_has_decorated_otherwise(self) -> None:
        model, optimizer = self.built()
        step = self.step(model, optimizer, policy="O2:bfloat16", compile=False)
        step(*self.batch())
        decorate(model, optimizer, "O2:float16")
        with self._unchanged(model, optimizer), pytest.raises(CallOrderError, match="Hint: "):
            step(*self.batch())

    def test_a_model_with_a_decorated_part_is_refused(self) -> None:
        model, optimizer = self.built()
        layers = {layer.name: layer.layer for layer in self.harness.backend.layers(model)}
        decorate(layers["head"], policy="O2")
        words = r"(?s)decorated.*Hint: .*undecorate"
        with self._unchanged(model, optimizer), pytest.raises(UnsupportedError, match=words):
            decorate(model, optimizer, o2())
        undecorate(layers["head"])
        decorate(model, optimizer, o2())

    def test_below_O2_a_part_may_have_a_step_of_its_own(self) -> None:
        """As the discriminator of a GAN has: steps of the whole and of the part take turns."""
        h, model = self.harness, self.probing()
        head = {layer.name: layer.layer for layer in h.backend.layers(model)}["head"]
        trainings = [(trained, h.optimizer(trained, "sgd", 0.0)) for trained in (head, model)]

        def steps(*policies: str) -> list[TrainStep]:
            return [
                train_step(first_and_all, *training, policy=policy, compile=False)
                for training, policy in zip(trainings, policies, strict=True)
            ]

        for step in steps("O0", "O0"):
            step(ONES)
        details = [h.details(model, optimizer) for _, optimizer in trainings]
        shown = [self.shown_in(s(ONES).aux) for s in 2 * steps("O1:float16", "O1:bfloat16")]
        assert shown == ["float16", "bfloat16", "float16", "bfloat16"]
        for training in trainings:
            undecorate(*training)
        assert [h.details(model, optimizer) for _, optimizer in trainings] == details

    @pytest.mark.parametrize("keep", [(), ("head",)])
    def test_value_and_grad_at_O1_follows_its_policy(self, keep: tuple[str, ...]) -> None:
        model, policy = self.trainable()[0], Policy("O1", "bfloat16", keep=keep)
        gradients = self.layered_gradients(model, policy)
        are_rounded = [np.array_equal(g, rounded(g, "bfloat16")) for g in gradients]
        assert are_rounded == [True, True, not keep, not keep]

    def test_training_goes_on_after_undecorate_with_the_slots_it_had(self) -> None:
        """Four steps of momentum with gradients of exactly 1, the third and fourth at O0."""
        model, optimizer = self.drifting(2.0**-12, "momentum")
        self.drift(model, optimizer, o2("bfloat16"), 2)
        undecorate(model, optimizer)
        self.drift(model, optimizer, Policy("O0"), 2)
        one = np.ones(1)
        (expected,) = momentum_steps([one], [[one]] * 4, 2.0**-12)
        assert self.drifted(model) == pytest.approx(expected.item(), rel=1e-6)

    def test_decoration_tells_what_a_model_is_decorated_with(self) -> None:
        h, (model, optimizer) = self.harness, self.trainable()
        assert h.backend.decoration(model, optimizer) is None
        policy = o2(keep=("head",))
        decorate(model, optimizer, policy)
        present = h.backend.decoration(model, optimizer)
        assert present is not None
        assert (present.policy, present.standalone) == (policy, True)
        names = {id(layer.layer): layer.name for layer in h.backend.layers(model)}
        assert [names[id(layer)] for layer in present.kept] == ["head"]
        undecorate(model, optimizer)
        assert h.backend.decoration(model, optimizer) is None
