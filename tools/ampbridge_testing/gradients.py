"""Promises of ``parameters``, ``gradients`` and ``stored_gradients``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ampbridge import ArgumentError, Policy, UnsupportedError
from ampbridge.adapters.backend import Array, LossFn, Model
from ampbridge_testing.harness import Harness, NumpyArray
from ampbridge_testing.reference import EXACT, Example, example, relative_error
from ampbridge_testing.regions import matmul_dtype
from ampbridge_testing.shared import Conformance

O0 = Policy("O0")

# Relative error of all gradients together against float64: some units in the last place of the dtype.
ERROR_BOUNDS = {"float16": 5e-3, "bfloat16": 3e-2}
FLOAT32_ERROR = 1e-5


def squared_error(harness: Harness) -> LossFn:
    """``loss_fn(model, x, target)``, the mean squared error alone."""

    def loss_fn(model: Model, x: Array, target: Array) -> Array:
        return harness.mean_squared_error(harness.forward(model, x), target)

    return loss_fn


def multiplied_error(harness: Harness) -> LossFn:
    """``loss_fn(model, x, target, factor)``: an infinite factor makes infinite gradients."""

    def loss_fn(model: Model, x: Array, target: Array, factor: Array) -> Array:
        return harness.mean_squared_error(harness.forward(model, x), target) * factor

    return loss_fn


def with_aux(loss_fn: LossFn) -> LossFn:
    """``loss_fn`` in the form that ``Backend.gradients`` takes: ``(loss, aux)``."""
    return lambda model, *batch: (loss_fn(model, *batch), None)


class GradientConformance(Conformance):
    """Promises of what differentiates."""

    def _differentiate(
        self,
        loss_fn: LossFn | None = None,
        *others: Array,
        policy: Policy = O0,
        factor: Any = None,
        total: Sequence[Array] | None = None,
    ) -> tuple[Array, Any, list[Any]]:
        """Loss, aux and native gradients of a new model: of the squared error, if nothing is said.

        The batch is the example's, and ``others``.
        """
        h, given = self.harness, example()
        loss_fn = loss_fn or with_aux(squared_error(h))
        batch = (given.x, given.target, *others)
        return h.backend.gradients(loss_fn, h.model(given.weights), batch, policy, factor, total)

    def gradients(
        self,
        given: Example,
        policy: Policy = O0,
        factor: Any = None,
        total: Sequence[Array] | None = None,
    ) -> list[NumpyArray]:
        """Of the squared error, on the host."""
        h = self.harness
        model, batch = h.model(given.weights), (given.x, given.target)
        loss_fn = with_aux(squared_error(h))
        _, _, grads = h.backend.gradients(loss_fn, model, batch, policy, factor, total)
        return [h.numpy(g) for g in grads]

    # -- values

    def test_parameters_of_a_model_come_in_order(self) -> None:
        h, given = self.harness, example()
        parameters = h.backend.parameters(h.model(given.weights))
        assert [h.numpy(p).tolist() for p in parameters] == [w.tolist() for w in given.weights]

    def test_parameters_of_an_optimizer_are_those_of_its_model(self) -> None:
        h = self.harness
        model = h.model(example().weights)
        parameters = h.backend.parameters(h.optimizer(model, "momentum", 0.1))
        assert [h.numpy(p).tolist() for p in parameters] == [
            h.numpy(p).tolist() for p in h.parameters(model)
        ]

    def test_O0_gradients_are_exact(self) -> None:
        assert relative_error(self.gradients(example()), EXACT.gradients) < FLOAT32_ERROR

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_O1_gradients_are_within_the_low_dtype_s_error(self, dtype: str) -> None:
        error = relative_error(self.gradients(example(), Policy("O1", dtype)), EXACT.gradients)
        assert error < ERROR_BOUNDS[dtype]

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_O1_gradients_show_the_low_dtype(self, dtype: str) -> None:
        error = relative_error(self.gradients(example(), Policy("O1", dtype)), EXACT.gradients)
        assert error > FLOAT32_ERROR

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_denied_products_give_exact_gradients(self, dtype: str) -> None:
        policy = Policy("O1", dtype, deny=("matmul", "linear"))
        assert relative_error(self.gradients(example(), policy), EXACT.gradients) < FLOAT32_ERROR

    def test_gradients_are_float32_like_their_parameters(self) -> None:
        _, _, grads = self._differentiate(policy=Policy("O1", "float16"))
        assert [self.harness.dtype_of(g) for g in grads] == ["float32"] * 4

    def test_the_factor_multiplies_the_gradients(self) -> None:
        expected = [8.0 * g for g in EXACT.gradients]
        assert relative_error(self.gradients(example(), factor=8.0), expected) < FLOAT32_ERROR

    def test_the_total_is_added_to(self) -> None:
        total = [self.harness.array(np.full(g.shape, 0.5, np.float32)) for g in EXACT.gradients]
        expected = [g + 0.5 for g in EXACT.gradients]
        assert relative_error(self.gradients(example(), total=total), expected) < FLOAT32_ERROR

    def test_the_factor_does_not_multiply_the_total(self) -> None:
        total = [self.harness.array(np.ones_like(w)) for w in example().weights]
        expected = [4.0 * g + 1.0 for g in EXACT.gradients]
        actual = self.gradients(example(), factor=4.0, total=total)
        assert relative_error(actual, expected) < FLOAT32_ERROR

    def test_a_parameter_that_the_loss_does_not_use_has_no_gradient(self) -> None:
        h = self.harness

        def loss_of_hidden(model: Model, x: Array, target: Array) -> tuple[Array, None]:
            return h.mean_squared_error(h.hidden(model, x), h.array(np.zeros((8, 10)))), None

        _, _, grads = self._differentiate(loss_of_hidden)
        assert [g is None for g in grads] == [False, False, True, True]

    def test_a_loss_that_depends_on_no_parameter_is_an_error(self) -> None:
        h, given = self.harness, example()

        def loss_of_inputs(model: Model, x: Array, target: Array) -> tuple[Array, None]:
            return h.mean_squared_error(h.array(np.asarray(given.x)), h.array(0.0 * given.x)), None

        total = [h.array(np.ones_like(w)) for w in given.weights]
        for before in (None, total):  # in a first micro-batch, and in a later one
            with pytest.raises(ArgumentError, match=r"The loss does not depend on any trainable"):
                self._differentiate(loss_of_inputs, total=before)

    def test_the_parameters_are_not_changed(self) -> None:
        h, given = self.harness, example()
        model = h.model(given.weights)
        loss_fn = with_aux(squared_error(h))
        h.backend.gradients(loss_fn, model, (given.x, given.target), O0, None, None)
        assert same_bits([h.numpy(p) for p in h.parameters(model)], given.weights)

    # -- loss, aux and batch

    @pytest.mark.parametrize("policy", [O0, Policy("O1", "float16")], ids=str)
    @pytest.mark.parametrize("factor", [None, 1024.0])
    def test_the_loss_comes_without_the_factor(self, policy: Policy, factor: float | None) -> None:
        loss, _, _ = self._differentiate(policy=policy, factor=factor)
        assert self.harness.numpy(loss).item() == pytest.approx(EXACT.loss, rel=5e-3)

    def test_the_loss_is_a_detached_float32_scalar(self) -> None:
        h = self.harness

        def low_loss(model: Model, x: Array, target: Array) -> tuple[Array, None]:
            return h.forward(model, x)[0, 0], None

        loss, _, _ = self._differentiate(low_loss, policy=Policy("O1", "float16"))
        assert h.dtype_of(loss) == "float32"
        assert h.numpy(loss).shape == ()
        assert not h.is_differentiable(loss)

    def test_aux_passes_through_untouched(self) -> None:
        h = self.harness
        aux = {"text": "kept", "numbers": [1, 2]}

        def loss_fn(model: Model, x: Array, target: Array) -> tuple[Array, object]:
            return h.mean_squared_error(h.forward(model, x), target), aux

        _, returned, _ = self._differentiate(loss_fn)
        assert returned == {"text": "kept", "numbers": [1, 2]}

    def test_native_batches_give_what_numpy_batches_give(self) -> None:
        h, given = self.harness, example()
        model, loss_fn = h.model(given.weights), with_aux(squared_error(h))
        native = (h.array(given.x), h.array(given.target))
        _, _, grads = h.backend.gradients(loss_fn, model, native, O0, None, None)
        assert same_bits([h.numpy(g) for g in grads], self.gradients(example()))

    def test_integer_batches_stay_integers(self) -> None:
        h = self.harness
        seen = []

        def loss_fn(model: Model, x: Array, target: Array, labels: Array) -> tuple[Array, None]:
            seen.append(h.dtype_of(labels))
            return h.mean_squared_error(h.forward(model, x), target), None

        self._differentiate(loss_fn, np.arange(8), policy=Policy("O1", "float16"))
        assert seen == ["int64"]

    # -- the region spans the forward pass, and only that

    def test_the_loss_function_runs_under_the_policy(self) -> None:
        assert self.matmul_dtypes_in_passes()[0] == "bfloat16"

    def test_the_backward_pass_runs_outside_of_the_region(self) -> None:
        assert self.matmul_dtypes_in_passes()[1] == "float32"

    def matmul_dtypes_in_passes(self) -> list[str]:
        h = self.harness
        seen: list[str] = []

        def loss_fn(model: Model, x: Array, target: Array) -> tuple[Array, None]:
            seen.append(matmul_dtype(h))
            prediction = h.on_backward(h.forward(model, x), lambda: seen.append(matmul_dtype(h)))
            return h.mean_squared_error(prediction, target), None

        self._differentiate(loss_fn, policy=Policy("O1", "bfloat16"))
        return seen

    def test_an_exception_in_the_loss_function_leaves_the_region(self) -> None:
        def failing(model: Model, *batch: Array) -> tuple[Array, None]:
            raise KeyError

        with pytest.raises(KeyError):
            self._differentiate(failing, policy=Policy("O1", "float16"))
        assert matmul_dtype(self.harness) == "float32"

    # -- where the framework keeps gradients

    def test_stored_gradients_are_those_of_the_last_backward_pass(self) -> None:
        h, given = self.harness, example()
        model, optimizer = self.new_training()
        batch = [h.array(given.x), h.array(given.target)]
        h.native_gradients(model, squared_error(h), batch, lambda loss: loss)
        if not h.stores_gradients:
            with pytest.raises(UnsupportedError, match="Hint: "):
                h.backend.stored_gradients(optimizer)
            return
        stored = [h.numpy(g) for g in h.backend.stored_gradients(optimizer)]
        assert relative_error(stored, EXACT.gradients) < FLOAT32_ERROR


def same_bits(actual: Sequence[NumpyArray], expected: Sequence[NumpyArray]) -> bool:
    """Whether the arrays are equal bit by bit, the sign of zero and NaNs included."""
    return [(a.dtype, a.shape, a.tobytes()) for a in actual] == [
        (e.dtype, e.shape, e.tobytes()) for e in expected
    ]
