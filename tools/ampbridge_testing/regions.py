"""Promises of ``cast`` and ``autocast``: what is cast, what is not, and for whom."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ampbridge import Policy, autocast, register_op
from ampbridge.adapters.backend import Array
from ampbridge.errors import AmpBridgeWarning, ArgumentTypeError, PolicyError
from ampbridge_testing.harness import Harness
from ampbridge_testing.reference import EXP_PROBE, LOW_DTYPES, PROBE, dtype_shown, example
from ampbridge_testing.shared import Conformance

low_dtypes = pytest.mark.parametrize("dtype", LOW_DTYPES)


def matmul_dtype(harness: Harness) -> str:
    """The dtype in which a matmul of float32 arrays runs here and now."""
    product = harness.run("matmul", harness.array([[1.0, 1.0]]), harness.array(np.diag(PROBE)))
    return dtype_shown(harness.numpy(product), PROBE)


def low_array(harness: Harness, values: list[float]) -> Array:
    """A low-precision array with one row of ``values``, made by a matmul in the present region."""
    return harness.run("matmul", harness.array([values]), harness.array(np.eye(len(values))))


def exp_dtype(harness: Harness) -> str:
    """The dtype in which ``exp`` runs on what a matmul gave."""
    result = harness.run("exp", low_array(harness, list(EXP_PROBE)))
    return dtype_shown(harness.numpy(result), np.exp(EXP_PROBE))


def product(harness: Harness, a: Array, b: Array) -> Array:
    """A function that policies name by its path."""
    return harness.run("matmul", a, b)


@register_op
def exponential(harness: Harness, x: Array) -> Array:
    """A function that is registered."""
    return harness.run("exp", x)


_numbers = itertools.count()  # rules are made once for a policy
PRODUCT, EXPONENTIAL = f"{__name__}:product", f"{__name__}:exponential"


class CastConformance(Conformance):
    """Promises of ``Backend.cast``."""

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
    def test_cast_changes_the_dtype_and_keeps_exact_values(self, dtype: str) -> None:
        h = self.harness
        result = h.backend.cast(h.array([1.0, -2.5, 0.0]), dtype)
        assert h.simulated or h.dtype_of(result) == dtype
        assert h.numpy(result).astype("float64").tolist() == [1.0, -2.5, 0.0]

    @low_dtypes
    def test_cast_rounds_to_nearest_even(self, dtype: str) -> None:
        h = self.harness
        unit = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
        values = 1 + unit * np.array([0.25, 0.5, 0.75, 1.25, 1.5, 1.75])
        result = h.numpy(h.backend.cast(h.array(values), dtype)).astype("float64")
        assert result.tolist() == [1 + unit * up for up in (0, 0, 1, 1, 2, 2)]

    @low_dtypes
    def test_cast_back_to_float32(self, dtype: str) -> None:
        h = self.harness
        result = h.backend.cast(h.array([1.5, -0.25], dtype), "float32")
        assert h.dtype_of(result) == "float32"
        assert h.numpy(result).tolist() == [1.5, -0.25]

    @pytest.mark.parametrize("dtype", ["float64", "int64"])
    @pytest.mark.parametrize("to", ["float16", "float32"])
    def test_cast_leaves_float64_and_integers_alone(self, dtype: str, to: str) -> None:
        h = self.harness
        result = h.backend.cast(h.array([1, 2, 70000], dtype), to)
        assert h.dtype_of(result) == dtype
        assert h.numpy(result).tolist() == [1, 2, 70000]


class RegionConformance(Conformance):
    """Promises of ``Backend.autocast``."""

    @contextlib.contextmanager
    def region(self, *arguments: str, **settings: object) -> Iterator[None]:
        with self.harness.backend.autocast(Policy(*arguments, **settings)):  # type: ignore[arg-type]
            yield

    before_the_first_test: Mapping[str, object] = {}

    @pytest.fixture(autouse=True)
    def untouched(self) -> Mapping[str, object]:
        """The framework's state before the class's first test."""
        if not self.before_the_first_test:
            type(self).before_the_first_test = dict(self.harness.ambient())
        return self.before_the_first_test

    def state_of(self, names: Iterable[str]) -> Mapping[str, object]:
        """The present state, without what the framework has loaded since."""
        now = self.harness.ambient()
        return {name: now.get(name) for name in names}

    # -- what is cast

    @low_dtypes
    def test_an_allowed_op_runs_in_the_low_dtype(self, dtype: str) -> None:
        with self.region("O1", dtype):
            assert matmul_dtype(self.harness) == dtype

    @low_dtypes
    def test_an_allowed_op_returns_the_low_dtype(self, dtype: str) -> None:
        h = self.harness
        with self.region("O1", dtype):
            result = low_array(h, [1.0, 2.0])
        assert h.dtype_of(result) == ("float32" if h.simulated else dtype)

    @low_dtypes
    def test_a_denied_op_runs_in_float32_on_low_inputs(self, dtype: str) -> None:
        with self.region("O1", dtype):
            assert exp_dtype(self.harness) == "float32"

    # -- Python functions that are ops

    @low_dtypes
    def test_an_allowed_function_runs_low_as_a_whole(self, dtype: str) -> None:
        h = self.harness
        with self.region("O1", dtype, allow=[EXPONENTIAL]):
            result = exponential(h, h.array([EXP_PROBE]))
        assert dtype_shown(h.numpy(result), np.exp(EXP_PROBE)) == dtype
        assert h.simulated or h.dtype_of(result) == dtype

    @low_dtypes
    def test_a_denied_function_runs_in_float32_as_a_whole(self, dtype: str) -> None:
        h = self.harness
        ones, values = h.array([[1.0, 1.0]]), h.array(np.diag(PROBE))
        with self.region("O1", dtype, deny=[PRODUCT]):
            denied = product(h, ones, values)
        with self.region("O1", dtype):
            parts = product(h, ones, values)
        assert dtype_shown(h.numpy(denied), PROBE) == "float32"
        assert dtype_shown(h.numpy(parts), PROBE) == dtype

    def test_a_function_is_itself_again_afterwards(self) -> None:
        original = product
        with self.region("O1", deny=[PRODUCT]):
            assert product is not original
        assert product is original

    def test_a_function_that_does_not_exist_is_an_error(self) -> None:
        missing = f"{__name__}:prodoct"
        with (
            pytest.raises(PolicyError, match=f"Unknown op '{missing}'"),
            self.region(deny=[missing]),
        ):
            pass

    def test_a_rule_that_cannot_act_is_said(self) -> None:
        """Another framework's op may be listed, since one policy serves all; it is said once for each."""
        theirs = "tf" if self.harness.backend.name == "torch" else "torch"
        deny = [f"{theirs}:Op{next(_numbers)}"]
        with pytest.warns(AmpBridgeWarning, match="has no effect"), self.region("O1", deny=deny):
            pass

    @low_dtypes
    def test_a_promoting_op_takes_the_widest_input(self, dtype: str) -> None:
        h = self.harness
        with self.region("O1", dtype):
            result = h.run("atan2", low_array(h, [1.0, 1.0]), h.array([PROBE]))
        assert dtype_shown(h.numpy(result), np.arctan2(1.0, PROBE)) == "float32"

    @low_dtypes
    def test_an_unlisted_op_follows_low_inputs(self, dtype: str) -> None:
        h = self.harness
        with self.region("O1", dtype):
            result = h.run("add", low_array(h, [1.0, 1.0]), low_array(h, list(EXP_PROBE)))
        assert dtype_shown(h.numpy(result), PROBE) == dtype

    @low_dtypes
    def test_an_unlisted_op_of_mixed_inputs_takes_the_widest(self, dtype: str) -> None:
        h = self.harness
        with self.region("O1", dtype):
            result = h.run("add", low_array(h, [1.0, 1.0]), h.array([EXP_PROBE]))
        assert dtype_shown(h.numpy(result), PROBE) == "float32"

    @low_dtypes
    def test_a_custom_deny_is_honoured(self, dtype: str) -> None:
        with self.region("O1", dtype, deny=["matmul"]):
            assert matmul_dtype(self.harness) == "float32"

    @low_dtypes
    def test_a_custom_allow_is_honoured(self, dtype: str) -> None:
        with self.region("O1", dtype, allow=["exp"]):
            assert exp_dtype(self.harness) == dtype

    @low_dtypes
    def test_an_O2_region_casts_as_an_O1_region_does(self, dtype: str) -> None:
        h = self.harness
        with self.region("O2", dtype):
            total = h.run("add", low_array(h, [1.0, 1.0]), low_array(h, list(EXP_PROBE)))
            assert matmul_dtype(h) == dtype
            assert exp_dtype(h) == "float32"
        assert dtype_shown(h.numpy(total), PROBE) == dtype

    def test_two_policies_do_not_share_their_rules(self) -> None:
        shown = []
        for deny in ([], ["matmul"], []):
            with self.region("O1", "float16", deny=deny):
                shown.append(matmul_dtype(self.harness))
        assert shown == ["float16", "float32", "float16"]

    def test_float64_stays_float64(self) -> None:
        h = self.harness
        fine = 1 + 2.0**-40
        with self.region("O1", "float16"):
            result = h.run("matmul", h.array([[fine]], "float64"), h.array([[1.0]], "float64"))
        assert h.dtype_of(result) == "float64"
        assert h.numpy(result).item() == fine

    def test_integers_stay_integers(self) -> None:
        h = self.harness
        with self.region("O1", "float16"):
            result = h.run("add", h.array([70000], "int64"), h.array([1], "int64"))
        assert h.dtype_of(result) == "int64"
        assert h.numpy(result).item() == 70001

    def test_the_operands_keep_their_dtype(self) -> None:
        h = self.harness
        left, right = h.array([[1.0, 1.0]]), h.array(np.diag(PROBE))
        with self.region("O1", "float16"):
            h.run("matmul", left, right)
        assert (h.dtype_of(left), h.dtype_of(right)) == ("float32", "float32")
        assert dtype_shown(np.diag(h.numpy(right)), PROBE) == "float32"

    # -- level O0

    def test_O0_casts_nothing(self) -> None:
        with self.region("O0"):
            assert matmul_dtype(self.harness) == "float32"

    @low_dtypes
    def test_O0_inside_O1_is_full_float32(self, dtype: str) -> None:
        with self.region("O1", dtype), self.region("O0"):
            assert matmul_dtype(self.harness) == "float32"

    @low_dtypes
    def test_O0_inside_O1_takes_low_arrays_to_float32(self, dtype: str) -> None:
        h = self.harness
        with self.region("O1", dtype):
            ones, small = low_array(h, [1.0, 1.0]), low_array(h, list(EXP_PROBE))
            with self.region("O0"):
                result = h.run("add", ones, small)
        assert dtype_shown(h.numpy(result), PROBE) == "float32"

    def test_O1_inside_O0_casts(self) -> None:
        with self.region("O0"), self.region("O1", "float16"):
            assert matmul_dtype(self.harness) == "float16"

    # -- for how long

    def test_nothing_is_cast_outside_of_regions(self) -> None:
        assert matmul_dtype(self.harness) == "float32"
        with self.region("O1", "float16"):
            matmul_dtype(self.harness)
        assert matmul_dtype(self.harness) == "float32"

    def test_of_nested_regions_the_inner_one_counts(self) -> None:
        with self.region("O1", "float16"):
            with self.region("O1", "bfloat16"):
                assert matmul_dtype(self.harness) == "bfloat16"
            assert matmul_dtype(self.harness) == "float16"

    def test_an_inner_region_does_not_inherit_the_outer_lists(self) -> None:
        with self.region("O1", "float16", deny=["matmul"], allow=["exp"]):
            with self.region("O1", "float16"):
                assert matmul_dtype(self.harness) == "float16"
                assert exp_dtype(self.harness) == "float32"
            assert matmul_dtype(self.harness) == "float32"

    def test_a_region_may_be_entered_again(self) -> None:
        region = autocast("O1:float16", backend=self.harness.backend)
        seen = []
        for _ in range(3):
            with region:
                seen.append(matmul_dtype(self.harness))
            seen.append(matmul_dtype(self.harness))
        assert seen == ["float16", "float32"] * 3

    def test_a_region_may_be_entered_again_within_itself(self) -> None:
        h = self.harness
        region = autocast("O1:float16", backend=h.backend)
        seen = []
        with region:
            with self.region("O1", "bfloat16"):
                with region:
                    seen.append(matmul_dtype(h))
                seen.append(matmul_dtype(h))
            seen.append(matmul_dtype(h))
        assert seen == ["float16", "bfloat16", "float16"]
        assert matmul_dtype(h) == "float32"

    def test_a_region_may_be_entered_by_two_threads_at_once(
        self, untouched: Mapping[str, object]
    ) -> None:
        h = self.harness
        if not h.threads_apart:
            pytest.skip("threads may not be inside of regions at the same time here")
        region = autocast("O1:float16", backend=h.backend)
        entered, left = threading.Event(), threading.Event()
        seen = []

        def enter_second_and_leave_last() -> None:
            with region:
                entered.set()
                left.wait()
                seen.append(matmul_dtype(h))
            seen.append(matmul_dtype(h))

        other = threading.Thread(target=enter_second_and_leave_last)
        with region:
            other.start()
            entered.wait()
        try:
            assert matmul_dtype(h) == "float32"
        finally:
            left.set()
            other.join()
        assert seen == ["float16", "float32"]
        assert self.state_of(untouched) == untouched

    def test_a_region_decorates_a_function(self) -> None:
        h = self.harness

        @autocast("O1:float16", backend=h.backend)
        def descend(depth: int) -> list[str]:
            below = descend(depth - 1) if depth else []
            return [*below, matmul_dtype(h)]

        assert descend(3) == ["float16"] * 4
        assert matmul_dtype(h) == "float32"

    def test_a_region_decorates_a_generator(self) -> None:
        h = self.harness

        @autocast("O1:float16", backend=h.backend)
        def generate() -> Generator[str, str, str]:
            sent = yield matmul_dtype(h)
            try:
                yield sent + matmul_dtype(h)
            except KeyError:
                yield matmul_dtype(h)
            return matmul_dtype(h)

        generator = generate()
        seen = [next(generator), matmul_dtype(h)]
        seen += [generator.send("sent "), matmul_dtype(h)]
        seen += [generator.throw(KeyError()), matmul_dtype(h)]
        with pytest.raises(StopIteration) as end:
            next(generator)
        assert seen == ["float16", "float32", "sent float16", "float32", "float16", "float32"]
        assert end.value.value == "float16"
        assert matmul_dtype(h) == "float32"

    def test_a_region_decorates_coroutines_that_take_turns(self) -> None:
        h = self.harness

        async def work(turns: int) -> list[str]:
            seen = []
            for _ in range(turns):
                seen.append(matmul_dtype(h))
                await asyncio.sleep(0)
            return seen

        async def all_of_them() -> list[list[str]]:
            decorated = autocast("O1:float16", backend=h.backend)(work)
            other = autocast("O1:bfloat16", backend=h.backend)(work)
            return [*await asyncio.gather(decorated(3), other(2), decorated(1), work(3))]

        expected = [["float16"] * 3, ["bfloat16"] * 2, ["float16"], ["float32"] * 3]
        assert asyncio.run(all_of_them()) == expected
        assert matmul_dtype(h) == "float32"

    def test_a_region_decorates_an_asynchronous_generator(self) -> None:
        h = self.harness

        @autocast("O1:float16", backend=h.backend)
        async def generate() -> AsyncGenerator[str, str]:
            sent = yield matmul_dtype(h)
            await asyncio.sleep(0)
            try:
                yield sent + matmul_dtype(h)
            except KeyError:
                yield matmul_dtype(h)

        async def consume() -> list[str]:
            generator = generate()
            seen = [await anext(generator), matmul_dtype(h)]
            seen += [await generator.asend("sent "), matmul_dtype(h)]
            seen += [await generator.athrow(KeyError()), matmul_dtype(h)]
            return seen + [each async for each in generator]

        seen = ["float16", "float32", "sent float16", "float32", "float16", "float32"]
        assert asyncio.run(consume()) == seen

    def test_a_region_decorates_only_functions(self) -> None:
        h = self.harness
        region = autocast("O1:float16", backend=h.backend)
        model = h.model(example().weights)
        model.__name__ = "loss"  # as some losses that are models have
        for thing in (h.array([1.0]), model, float, 1.5):
            with pytest.raises(ArgumentTypeError, match=r"Hint: with amp\.autocast"):
                region(thing)  # type: ignore[type-var]

    def test_an_exception_leaves_the_region(self) -> None:
        with pytest.raises(KeyError), self.region("O1", "float16"):
            raise KeyError
        assert matmul_dtype(self.harness) == "float32"

    def test_an_exception_leaves_the_outer_region_intact(self) -> None:
        with self.region("O1", "bfloat16"):
            with pytest.raises(KeyError), self.region("O1", "float16"):
                raise KeyError
            assert matmul_dtype(self.harness) == "bfloat16"

    @pytest.mark.parametrize("error", [None, KeyError])
    def test_the_framework_is_left_as_it_was(
        self, untouched: Mapping[str, object], error: type[Exception] | None
    ) -> None:
        with contextlib.suppress(KeyError), self.region("O1", "float16"), self.region("O0"):
            matmul_dtype(self.harness)
            if error:
                raise error
        assert self.state_of(untouched) == untouched

    # -- for whom

    def test_other_threads_do_not_see_the_region(self) -> None:
        with self.region("O1", "float16"):
            assert in_thread(lambda: matmul_dtype(self.harness)) == "float32"

    def test_a_region_of_another_thread_is_not_seen(self) -> None:
        entered, leave = threading.Event(), threading.Event()

        def hold_a_region() -> None:
            with self.region("O1", "float16"):
                entered.set()
                leave.wait()

        holder = threading.Thread(target=hold_a_region)
        holder.start()
        entered.wait()
        try:
            assert matmul_dtype(self.harness) == "float32"
        finally:
            leave.set()
            holder.join()

    def test_eight_threads_each_follow_their_own_policy(
        self, untouched: Mapping[str, object]
    ) -> None:
        h = self.harness
        if not h.threads_apart:
            pytest.skip("threads may not be inside of regions at the same time here")
        policies = [
            Policy("O1", "float16"),
            Policy("O1", "bfloat16"),
            Policy("O0"),
            Policy("O1", "float16", deny=("matmul",)),
        ] * 2
        expected = ["float16", "bfloat16", "float32", "float32"] * 2
        seen: list[set[str]] = [set() for _ in policies]
        barrier = threading.Barrier(len(policies))

        def work(index: int) -> None:
            for _ in range(20):
                with h.backend.autocast(policies[index]):
                    barrier.wait()  # all are inside now
                    seen[index].add(matmul_dtype(h))
                    barrier.wait()
                seen[index].add("outside: " + matmul_dtype(h))  # while others still close theirs

        with ThreadPoolExecutor(len(policies)) as pool:
            list(pool.map(work, range(len(policies))))
        assert seen == [{dtype, "outside: float32"} for dtype in expected]
        assert self.state_of(untouched) == untouched


def in_thread(call: Callable[[], object]) -> object:
    """The result of ``call()`` in a new thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()
