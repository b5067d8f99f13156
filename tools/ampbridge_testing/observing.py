"""Promises of ``observe``, ``to_numpy`` and ``peak_memory``: what ``ampbridge_lens`` sees by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from ampbridge import Policy
from ampbridge.adapters.backend import Backend, Model
from ampbridge.adapters.observation import OpCall, Operand
from ampbridge.adapters.roles.observing import Observing
from ampbridge_lens.subject import Pass, Subject
from ampbridge_testing.decorating import PRODUCTS, Layered
from ampbridge_testing.gradients import ERROR_BOUNDS, same_bits
from ampbridge_testing.harness import NumpyArray
from ampbridge_testing.reference import LOW_DTYPES, example, joint_norm, reference
from ampbridge_testing.regions import in_thread
from ampbridge_testing.roles import skip_unless_claimed

SCALE = 2.0**10

levels = pytest.mark.parametrize("level", ["O0", "O1", "O2"])


class Event(NamedTuple):
    """A gradient that was seen: it "arrived" or it "left", at the output or input of that place."""

    call: OpCall
    side: str
    place: int
    values: NumpyArray
    dtype: str


class Seen:
    """An observer that copies all it is told."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.calls: list[OpCall] = []
        self.inputs: dict[int, list[tuple[NumpyArray, str]]] = {}
        self.outputs: dict[int, list[tuple[NumpyArray, str]]] = {}
        self.gradients: list[Event] = []

    def op_ran(self, call: OpCall, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> None:
        self.calls.append(call)
        self.inputs[call.number] = [self._copied(operand) for operand in inputs]
        self.outputs[call.number] = [self._copied(operand) for operand in outputs]

    def gradient_arrived(self, call: OpCall, output: int, gradient: Operand) -> None:
        self.gradients.append(Event(call, "arrived", output, *self._copied(gradient)))

    def gradient_left(self, call: OpCall, input: int, gradient: Operand) -> None:
        self.gradients.append(Event(call, "left", input, *self._copied(gradient)))

    def _copied(self, operand: Operand) -> tuple[NumpyArray, str]:
        return np.array(self._backend.to_numpy(operand.values)), operand.dtype

    def product(self, layer: str) -> OpCall:
        """The matrix product of a linear layer."""
        (found,) = [c for c in self.calls if c.layer == layer and c.op in PRODUCTS]
        return found

    def of(self, call: OpCall, side: str) -> list[Event]:
        """The gradients of one call on one side."""
        return [e for e in self.gradients if e.call.number == call.number and e.side == side]


class ObservingConformance(Layered):
    """Promises of ``Backend.observe``: every op and its gradients, and nothing changed by it."""

    @pytest.fixture(autouse=True)
    def _can_be_observed(self, request: pytest.FixtureRequest) -> None:
        if request.function.__name__.startswith("test_observe"):
            skip_unless_claimed(Observing, self.harness.backend)

    def observed(
        self, model: Model, policy: Policy, *, factor: float = 1.0, gradients: bool = True
    ) -> tuple[Seen, Pass]:
        """What one pass of the layered model showed, and what came out."""
        seen = Seen(self.harness.backend)
        subject = Subject(self.loss(), model)
        return seen, subject.run(self.batch(factor), policy, SCALE, seen, gradients=gradients)

    def unobserved(self, model: Model, policy: Policy) -> Pass:
        return Subject(self.loss(), model).run(self.batch(), policy, SCALE)

    # -- the forward pass

    @pytest.mark.parametrize("dtype", LOW_DTYPES)
    def test_observe_reports_ops_in_order_with_layer_and_dtype(self, dtype: str) -> None:
        seen, _ = self.observed(self.trainable()[0], Policy("O1", dtype))
        numbers = [call.number for call in seen.calls]
        assert numbers == sorted(set(numbers))
        hidden, head = seen.product("hidden"), seen.product("head")
        assert hidden.number < head.number
        assert (hidden.dtype, head.dtype) == (dtype, dtype)
        assert hidden.kernels
        losses = [c for c in seen.calls if c.layer == "" and c.number > head.number]
        assert {c.dtype for c in losses if c.op in ("mse_loss", "mean", "square")} <= {"float32"}

    def test_observe_shows_a_denied_op_in_float32(self) -> None:
        seen, _ = self.observed(self.trainable()[0], Policy("O1", "float16", deny=PRODUCTS))
        assert seen.product("hidden").dtype == seen.product("head").dtype == "float32"

    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_observe_shows_a_kept_layer_in_float32(self, level: str) -> None:
        policy = Policy.parse(level).replace(keep=["head"])
        seen, _ = self.observed(self.trainable()[0], policy)
        assert (seen.product("hidden").dtype, seen.product("head").dtype) == ("float16", "float32")

    def test_observe_shows_float32_at_O0(self) -> None:
        seen, _ = self.observed(self.trainable()[0], Policy("O0"))
        assert {call.dtype for call in seen.calls} == {"float32"}
        assert seen.product("head").op in PRODUCTS

    def test_observe_shows_what_was_handed_over_and_what_came_back(self) -> None:
        """In float32 an affine map of the inputs seen is the outputs seen, up to the bias."""
        seen, _ = self.observed(self.trainable()[0], Policy("O0"))
        call, given = seen.product("hidden"), example()
        (x, x_dtype), (weight, _), *bias = seen.inputs[call.number]
        np.testing.assert_array_equal(x, given.x)
        expected = given.x.astype(np.float64) @ given.weights[0].astype(np.float64)
        expected = expected + (given.weights[1] if bias else 0.0)
        ((outputs, outputs_dtype),) = seen.outputs[call.number]
        np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
        assert sorted(weight.shape) == [6, 10]
        assert (x_dtype, outputs_dtype) == ("float32", "float32")

    def test_observe_gives_outputs_the_dtype_that_they_have(self) -> None:
        seen, _ = self.observed(self.trainable()[0], Policy("O1", "float16"))
        call = seen.product("hidden")
        ((outputs, dtype),) = seen.outputs[call.number]
        assert dtype == "float16"
        np.testing.assert_array_equal(outputs, outputs.astype(np.float16).astype(np.float32))
        (_, before_the_cast), *_ = seen.inputs[call.number]
        assert before_the_cast == "float32"

    # -- the backward pass

    @levels
    def test_observe_shows_the_gradients_that_leave_for_the_parameters(self, level: str) -> None:
        """Of each weight there is one op, whose part is the whole; rounded as the parameter is."""
        model = self.trainable()[0]
        policy = Policy.parse(level)
        seen, passed = self.observed(model, policy)
        for layer, shape in (("hidden", (6, 10)), ("head", (3, 10))):
            left = seen.of(seen.product(layer), "left")
            (weight,) = [e for e in left if sorted(e.values.shape) == sorted(shape)]
            (expected,) = [g for g in passed.gradients.values() if sorted(g.shape) == sorted(shape)]
            found = weight.values if weight.values.shape == expected.shape else weight.values.T
            np.testing.assert_array_equal(found, expected)

    def test_observe_shows_gradients_close_to_float64s(self) -> None:
        given = example()
        exact = reference(given.weights, given.x, given.target)
        before = given.x.astype(np.float64) @ given.weights[0] + given.weights[1]
        prediction = np.maximum(before, 0) @ given.weights[2] + given.weights[3]
        of_output = 2.0 * (prediction - given.target) / given.target.size
        seen, passed = self.observed(self.trainable()[0], Policy("O1", "float16"))
        (arrived,) = seen.of(seen.product("head"), "arrived")
        error = joint_norm([arrived.values / SCALE - of_output]) / joint_norm([of_output])
        assert error < ERROR_BOUNDS["float16"]
        assert arrived.dtype == "float16"
        assert passed.loss == pytest.approx(exact.loss, rel=1e-2)

    def test_observe_shows_the_gradients_of_what_is_no_layer(self) -> None:
        seen, _ = self.observed(self.trainable()[0], Policy("O0"))
        (relu,) = [call for call in seen.calls if call.op == "relu"]
        (arrived,), (left,) = seen.of(relu, "arrived"), seen.of(relu, "left")
        ((activations, _),) = seen.outputs[relu.number]
        np.testing.assert_array_equal(left.values, np.where(activations > 0, arrived.values, 0))

    def test_observe_reports_arrivals_before_leavings_and_the_last_op_first(self) -> None:
        seen, _ = self.observed(self.trainable()[0], Policy("O1", "float16"))
        order = [
            (event.call.layer, event.side)
            for event in seen.gradients
            if event.call.op in PRODUCTS and event.call.layer in ("hidden", "head")
        ]
        assert list(dict.fromkeys(order)) == [
            ("head", "arrived"), ("head", "left"), ("hidden", "arrived"), ("hidden", "left"),
        ]  # fmt: skip

    def test_observe_shows_an_overflow_of_the_backward_pass(self) -> None:
        """Finite in float32, it becomes infinite on its way into float16: in the cast of the model's
        output, or in that of the loss's input."""
        seen, passed = self.observed(self.trainable()[0], Policy("O1", "float16"), factor=2.0**20)
        assert np.isfinite(passed.loss)
        assert not all(np.isfinite(g).all() for g in passed.gradients.values())
        first = next(e for e in seen.gradients if not np.isfinite(e.values).all())
        if first.side == "left":
            assert all(np.isfinite(e.values).all() for e in seen.of(first.call, "arrived"))
        assert first.dtype == "float16"
        assert np.isinf(first.values).any()

    def test_observe_without_gradients_reports_none(self) -> None:
        seen, _ = self.observed(self.trainable()[0], Policy("O1", "float16"), gradients=False)
        assert seen.calls
        assert seen.gradients == []

    # -- nothing is changed by it

    @levels
    def test_observe_changes_no_bit(self, level: str) -> None:
        policy = Policy.parse(level)
        model = self.trainable()[0]
        _, seen = self.observed(model, policy)
        plain = self.unobserved(model, policy)
        assert seen.loss == plain.loss
        assert list(seen.gradients) == list(plain.gradients)
        assert same_bits(list(seen.gradients.values()), list(plain.gradients.values()))

    @levels
    def test_observe_leaves_model_and_framework_as_they_were(self, level: str) -> None:
        policy = Policy.parse(level)
        policy = policy if level == "O0" else policy.replace(keep=["head"])
        model, optimizer = self.trainable()
        self.unobserved(model, policy)  # what a first run builds
        h = self.harness
        before = (h.ambient(), h.details(model, optimizer), self.values(model))
        self.observed(model, policy)
        after = (h.ambient(), h.details(model, optimizer), self.values(model))
        assert after[:2] == before[:2]
        assert same_bits(after[2], before[2])

    def test_observe_ends_with_an_exception(self) -> None:
        h, model = self.harness, self.trainable()[0]
        self.unobserved(model, Policy("O1", "float16"))
        before, seen = h.ambient(), Seen(h.backend)

        def failing(model: Model, x: Any, target: Any, factor: Any) -> Any:
            model(x)
            raise KeyError("on purpose")

        with pytest.raises(KeyError, match="on purpose"):
            Subject(failing, model).run(self.batch(), Policy("O1", "float16"), observer=seen)
        reported = len(seen.calls)
        assert h.ambient() == before
        self.unobserved(model, Policy("O1", "float16"))
        assert len(seen.calls) == reported > 0

    def test_observe_does_not_see_other_threads(self) -> None:
        h, model = self.harness, self.trainable()[0]
        one = h.array(np.ones((2, 2), np.float32))
        counts: list[int] = []

        def loss_fn(model: Model, x: Any, target: Any, factor: Any) -> Any:
            loss = h.mean_squared_error(model(x), target) * factor
            counts.append(len(seen.calls))
            in_thread(lambda: h.run("matmul", one, one))
            counts.append(len(seen.calls))
            return loss

        seen = Seen(h.backend)
        Subject(loss_fn, model).run(self.batch(), Policy("O1", "float16"), observer=seen)
        assert counts[0] == counts[1] > 0

    # -- values and memory

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
    def test_observed_values_come_as_float32(self, dtype: str) -> None:
        values = np.array([1.0, -0.5, 2.0**-9, 1024.0], np.float32)
        found = self.harness.backend.to_numpy(self.harness.array(values, dtype))
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, values)

    def test_observed_float64_stays_float64(self) -> None:
        values = np.array([1.0 + 2.0**-40])
        found = self.harness.backend.to_numpy(self.harness.array(values, "float64"))
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, values)

    def test_observed_peak_memory_is_that_of_what_was_held(self) -> None:
        """A megabyte that is held while another is made, or the framework does not tell."""
        h = self.harness

        def hold_two() -> None:
            first = h.array(np.zeros(2**18, np.float32))
            second = h.run("add", first, first)
            h.numpy(second)

        peak = h.backend.peak_memory(hold_two)
        assert peak is None or 2**20 <= peak <= 2**24
