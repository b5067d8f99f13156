"""Promises of ``execution``: native or simulated, and the numerics of a simulation."""

from __future__ import annotations

import numpy as np
import pytest

from ampbridge import Policy, UnsupportedError, decorate
from ampbridge_testing.decorating import Layered, levels, low_dtypes
from ampbridge_testing.gradients import ERROR_BOUNDS, FLOAT32_ERROR
from ampbridge_testing.harness import Harness, untransposed
from ampbridge_testing.reference import EXACT, relative_error, rounded


class ExecutionConformance(Layered):
    """Promises of ``Backend.execution`` and of ``execution="simulated"``."""

    @levels
    @low_dtypes
    def test_execution_is_what_was_asked_for(self, level: str, dtype: str) -> None:
        backend, policy = self.harness.backend, Policy(level, dtype)  # type: ignore[arg-type]
        native, simulated = (policy.replace(execution=each) for each in ("native", "simulated"))
        if self.harness.simulates:
            assert backend.execution(simulated) == "simulated"
        else:
            x = self.harness.array(np.ones((2, 2), np.float32))
            with pytest.raises(UnsupportedError, match="Hint: "), backend.autocast(simulated):
                self.harness.run("matmul", x, x)
        if self.harness.has_kernels:
            assert backend.execution(native) == "native"
            assert backend.execution(policy) in ("native", "simulated")
            return
        assert backend.execution(policy) == "simulated"
        with pytest.raises(UnsupportedError, match="Hint: "):
            backend.execution(native)

    def simulating(self) -> Harness:
        """The harness, or the test is skipped."""
        if not self.harness.simulates:
            pytest.skip("this device casts natively, and refuses to simulate")
        return self.harness

    @low_dtypes
    def test_a_simulated_product_is_rounded_before_and_after(self, dtype: str) -> None:
        """Bit by bit: of two rounded numbers the float32 product is exact. Some overflow."""
        h, rng = self.simulating(), np.random.default_rng(0)
        left, right = (
            rng.normal(0.0, 1.0, shape) * 2.0 ** rng.integers(-14, 12, shape)
            for shape in ((40, 1), (1, 40))
        )
        with h.backend.autocast(Policy("O1", dtype, execution="simulated")):
            result = h.run(
                "matmul", h.array(left.astype(np.float32)), h.array(right.astype(np.float32))
            )
        with np.errstate(over="ignore"):
            products = rounded(left.astype(np.float32), dtype) * rounded(
                right.astype(np.float32), dtype
            )
            expected = rounded(products, dtype)
        assert np.array_equal(h.numpy(result).astype(np.float64), expected)

    @low_dtypes
    def test_a_simulated_op_that_follows_is_rounded_once(self, dtype: str) -> None:
        h, rng = self.simulating(), np.random.default_rng(1)
        terms = [rng.normal(0.0, 1.0, 200).astype(np.float32) for _ in range(2)]
        one = h.array([[1.0]])
        with h.backend.autocast(Policy("O1", dtype, execution="simulated")):
            low = [h.run("matmul", h.array(t[:, None]), one) for t in terms]
            result = h.run("add", *low)
        a, b = (rounded(t, dtype).astype(np.float32) for t in terms)
        assert np.array_equal(h.numpy(result)[:, 0].astype(np.float64), rounded(a + b, dtype))

    @low_dtypes
    def test_a_simulated_denied_op_is_float32(self, dtype: str) -> None:
        h, rng = self.simulating(), np.random.default_rng(2)
        x = rng.normal(0.0, 1.0, (20, 1)).astype(np.float32)
        with h.backend.autocast(Policy("O1", dtype, execution="simulated")):
            low = h.run("matmul", h.array(x), h.array([[1.0]]))
            result = h.numpy(h.run("exp", low))
        expected = np.exp(rounded(x, dtype))
        assert relative_error([result], [expected]) < FLOAT32_ERROR

    @low_dtypes
    def test_simulated_O2_gradients_are_rounded(self, dtype: str) -> None:
        self.simulating()
        model, policy = self.trainable()[0], Policy("O2", dtype, execution="simulated")
        gradients = self.layered_gradients(decorate(model, policy=policy), policy)
        expected = [1024 * g for g in EXACT.gradients]
        error = relative_error(untransposed(gradients, expected), expected)
        assert FLOAT32_ERROR < error < ERROR_BOUNDS[dtype]
        assert all(np.array_equal(g, rounded(g, dtype)) for g in gradients)
