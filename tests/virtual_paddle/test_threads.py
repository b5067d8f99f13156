"""Paddle's op lists are the process's: a second thread is refused, and the first goes on as it was."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import paddle
import pytest
from interrupts import bytecodes, interrupt, without_locks

import ampbridge as amp

FOLLOWS = amp.Policy("O1", "bfloat16")
DENIES = amp.Policy("O1", "float16", deny=["matmul"])
NATIVE = amp.Policy("O1", "float16", lists="native")


def product() -> str:
    x = paddle.ones([2, 2])
    return str(paddle.matmul(x, x).dtype).removeprefix("paddle.")


def in_thread(call: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def enter(region: AbstractContextManager[Any]) -> None:
    region.__enter__()


def leave(region: AbstractContextManager[Any]) -> None:
    region.__exit__(None, None, None)


def test_paddle_s_own_regions_of_two_threads_disturb_each_other() -> None:
    """Why: the other thread's list holds here."""
    other = paddle.amp.auto_cast(custom_black_list={"matmul_v2", "matmul"}, dtype="float16")
    with ThreadPoolExecutor(1) as pool, paddle.amp.auto_cast(dtype="float16"):
        assert product() == "float16"
        pool.submit(enter, other).result()
        assert product() == "float32"
        pool.submit(leave, other).result()


def test_nor_may_their_lists_be_the_same() -> None:
    """Whoever leaves first takes the lists along."""
    first, second = (paddle.amp.auto_cast(dtype="float16") for _ in range(2))
    enter(first)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(enter, second).result()
        leave(first)
        assert pool.submit(product).result() == "float32"
        pool.submit(leave, second).result()


@pytest.mark.parametrize("theirs", [FOLLOWS, DENIES, NATIVE], ids=str)
@pytest.mark.parametrize("ours", [FOLLOWS, DENIES, NATIVE], ids=str)
def test_a_second_thread_is_refused(ours: amp.Policy, theirs: amp.Policy) -> None:
    def product_in_theirs() -> str:
        with amp.autocast(theirs, "paddle"):
            return product()

    expected = r"(?s)Another thread is inside .* virtual_gpu:0 .*Hint: lock = threading\.Lock\(\)"
    with amp.autocast(ours, "paddle"):
        before = product()
        with pytest.raises(amp.UnsupportedError, match=expected):
            in_thread(product_in_theirs)
        assert product() == before
    assert in_thread(product_in_theirs) == ("float32" if theirs == DENIES else theirs.dtype)


def test_float32_and_nested_regions_are_nobody_s_business() -> None:
    def product_at_O0() -> str:
        with amp.autocast("O0", "paddle"):
            return product()

    with amp.autocast(FOLLOWS, "paddle"), amp.autocast(DENIES, "paddle"):
        assert in_thread(product_at_O0) == "float32"
        with amp.autocast(FOLLOWS, "paddle"):
            assert product() == "bfloat16"


def test_an_interrupt_shuts_no_other_thread_out() -> None:
    def product_inside() -> str:
        with amp.autocast(FOLLOWS, "paddle"):
            return product()

    with without_locks():
        points = bytecodes(product_inside)
        for point in points:
            interrupt(product_inside, point)
    assert points
    assert in_thread(product_inside) == "bfloat16"
