"""Regions of this backend: every way into an op, threads, and what is left of the patches."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import re
import sys
import threading
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from autograd import tracer
from autograd.numpy import numpy_boxes, numpy_wrapper

import ampbridge as amp
from ampbridge import Policy, UnsupportedError
from ampbridge_numpy import _private, nn, optim
from ampbridge_numpy.autocast import casting
from ampbridge_numpy.backend import NumpyBackend

X = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
ALLOW_ALL = Policy(
    "O1", allow=["matmul", "add", "multiply", "exp", "sum", "pow", "transpose", "slice", "subtract"]
)

WAYS: dict[str, Callable[[Any], Any]] = {
    "function": lambda x: anp.matmul(x, X),
    "function of the wrapper module": lambda x: numpy_wrapper.matmul(x, X),
    "operator": lambda x: x @ X,
    "operator with a plain array on the left": lambda x: X @ x,
    "arithmetic with a plain array on the left": lambda x: X + x,
    "arithmetic with a number on the left": lambda x: 2 * x,
    "power": lambda x: x**2,
    "method": lambda x: x.sum(axis=0),
    "property": lambda x: x.T,
    "index": lambda x: x[1:],
    "NumPy's own function": lambda x: np.exp(x),
    "NumPy's own function of two": lambda x: np.add(X, x),
    "second name": lambda x: anp.pow(x, 2),
}


def dtype_under(policy: Policy, way: Callable[[Any], Any]) -> str:
    """Of the result on a traced array."""
    seen: list[str] = []

    def loss(x: Any) -> Any:
        with NumpyBackend().autocast(policy):
            seen.append(way(x).dtype.name)
        return anp.sum(x)

    autograd.grad(loss)(X)
    return seen[0]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_into_an_op_is_cast(way: str) -> None:
    assert dtype_under(ALLOW_ALL, WAYS[way]) == "float16"
    assert dtype_under(Policy("O0"), WAYS[way]) == "float32"


def patched_places() -> dict[str, dict[str, int]]:
    owners = (anp, anp.linalg, anp.fft, numpy_wrapper, numpy_boxes, numpy_boxes.ArrayBox, tracer)
    return {o.__name__: {k: id(v) for k, v in vars(o).items()} for o in owners}


def test_inside_the_functions_are_replaced_and_afterwards_they_are_the_originals() -> None:
    before = patched_places()
    with NumpyBackend().autocast(Policy("O1")):
        assert patched_places() != before
    assert patched_places() == before


def test_O0_replaces_nothing() -> None:
    before = patched_places()
    with NumpyBackend().autocast(Policy("O0")):
        assert patched_places() == before


def test_an_exception_in_the_loss_leaves_nothing_behind() -> None:
    def loss(model: nn.Module, x: np.ndarray) -> Any:
        model(x)
        raise KeyError

    before, model = patched_places(), nn.Linear(4, 1)
    with pytest.raises(KeyError):
        amp.value_and_grad(loss, model, X, policy="O1")
    assert patched_places() == before
    assert model(X).dtype == np.float32
    _, grads = amp.value_and_grad(lambda m, x: m(x).sum(), model, X, policy="O0")
    assert grads[1].tolist() == [4.0]


def test_the_backward_pass_may_run_inside_of_a_region_too() -> None:
    def loss(x: Any) -> Any:
        return anp.sum(anp.exp(x @ X))

    def region_of_forward(x: Any) -> Any:
        with NumpyBackend().autocast(Policy("O1")):
            return loss(x)

    with NumpyBackend().autocast(Policy("O1")):
        inside = autograd.grad(loss)(X)
    outside = autograd.grad(region_of_forward)(X)
    assert inside.dtype == np.float32
    np.testing.assert_allclose(inside, outside, rtol=5e-3, atol=5e-3)


def test_multi_head_attention_follows_the_rules_of_its_parts_and_may_be_denied() -> None:
    attention, x = nn.MultiHeadAttention(4, 2, rng=0), X[None]
    settings: list[tuple[dict[str, list[str]], str]] = [
        ({}, "float16"),
        ({"deny": ["linear"]}, "float32"),
        ({"deny": ["multi_head_attention"]}, "float32"),
    ]
    for lists, expected in settings:
        with NumpyBackend().autocast(Policy("O1", **lists)):  # type: ignore[arg-type]
            assert attention(x).dtype.name == expected
    with NumpyBackend().autocast(Policy("O1", deny=["multi_head_attention"])):
        denied = attention(x)
    np.testing.assert_array_equal(denied, attention(x))


def test_an_op_made_of_others_is_one_op() -> None:
    """Softmax allowed and exp denied: softmax's own exp does not count."""
    with NumpyBackend().autocast(Policy("O1", allow=["softmax"], deny=["exp"])):
        assert nn.softmax(X).dtype == np.float16


@pytest.mark.parametrize("lists", ["torch", "paddle", "tensorflow", "safe"])
def test_every_list_set_trains(lists: str) -> None:
    model = nn.Sequential(
        nn.Linear(4, 8, rng=0), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 1, rng=1)
    )
    step = amp.train_step(
        lambda m, x: nn.mse_loss(m(x), x[:, :1]),
        model,
        optim.AdamW(model.parameters(), lr=0.05),
        policy=Policy("O1", lists=lists),
    )
    losses = [step(X).loss for _ in range(30)]
    assert losses[-1] < losses[0] / 2


def test_full_float32_for_what_the_list_set_does_not_name() -> None:
    unlisted = Policy("O1", lists="tensorflow").op_list.unlisted
    low = X.astype(np.float16)
    with NumpyBackend().autocast(Policy("O1", lists="tensorflow")):
        # hypot stands in the op table and on none of the lists; fmax not even in the table.
        assert anp.fmax(low, low).dtype == (np.float32 if unlisted == "full" else np.float16)


# -- threads


def test_eight_threads_train_eight_models_under_their_own_policies() -> None:
    """Each must come out as it does alone, bit by bit: dtypes, weights and gradients of gradients."""
    settings = [
        Policy("O1"),
        Policy("O1", "bfloat16"),
        Policy("O0"),
        Policy("O1", deny=["linear"]),
        Policy("O1", lists="paddle"),
        Policy("O1", allow=["softmax", "sum"]),
        Policy("O1", "bfloat16", lists="safe"),
        Policy("O1", "bfloat16", deny=["conv2d", "linear"]),
    ]

    def train(policy: Policy) -> list[bytes]:
        model = nn.Sequential(nn.Linear(4, 16, rng=0), nn.ReLU(), nn.Linear(16, 1, rng=1))
        step = amp.train_step(
            penalized_loss, model, optim.SGD(model.parameters(), lr=0.01), policy=policy
        )
        results = [np.float32(step(X).loss) for _ in range(20)]
        return [x.tobytes() for x in (*model.parameters(), *results)]

    before = patched_places()
    alone = [train(policy) for policy in settings]
    together: list[Any] = [None] * len(settings)
    barrier = threading.Barrier(len(settings))

    def work(i: int) -> None:
        barrier.wait()
        together[i] = train(settings[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(settings))]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # let them interrupt each other often
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert together == alone
    assert patched_places() == before


def penalized_loss(model: nn.Module, x: np.ndarray) -> Any:
    """A loss that takes a gradient itself: autograd within autograd."""
    slope = autograd.elementwise_grad(lambda v: nn.linear(v, model.layers[0].weight) ** 2)(x)
    return nn.mse_loss(model(x), x[:, :1]) + 1e-3 * anp.sum(slope * slope)


def test_two_threads_may_read_one_model() -> None:
    """One takes gradients while the other looks at the weights."""
    model, started, looked = nn.Linear(4, 1), threading.Event(), threading.Event()
    seen: list[type] = []

    def loss(model: nn.Module, x: np.ndarray) -> Any:
        seen.append(type(model.weight))
        started.set()
        looked.wait()
        return model(x).sum()

    thread = threading.Thread(target=lambda: amp.value_and_grad(loss, model, X, policy="O1"))
    thread.start()
    started.wait()
    assert type(model.weight) is np.ndarray
    looked.set()
    thread.join()
    assert seen == [numpy_boxes.ArrayBox]


# -- what is refused


def loss_of_ones(model: nn.Module, x: np.ndarray) -> Any:
    return model(x).sum()


LINEAR = nn.Linear(4, 1)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: amp.value_and_grad(
                loss_of_ones, nn.Linear(4, 1), X, policy=Policy("O1", lists="native")
            ),
            "lists='native': NumPy has no autocast of its own.\n"
            "Hint: Policy('O1', 'float16', lists='torch')",
        ),
        (
            lambda: amp.train_step(
                loss_of_ones, LINEAR, optim.SGD(LINEAR.parameters(), lr=0.1), compile=True
            ),
            "compile=True with loss_of_ones: numpy runs op by op and has no compiler.\n"
            "Hint: amp.train_step(..., compile='auto') compiles where the framework can.",
        ),
        (
            lambda: amp.GradScaler().step(optim.SGD([X.copy()], lr=0.1)),
            "numpy keeps no gradients beside the parameters of SGD; they are values.\n"
            "Hint: loss, grads = amp.value_and_grad(loss_fn, model, x, y, scaler=scaler); "
            "scaler.step(optimizer, grads)",
        ),
    ],
)
def test_messages(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(amp.AmpBridgeError) as error:
        call()
    assert str(error.value) == message


# -- the graph of derivatives

LOW = X.astype(np.float16)
LABELS = np.array([0, 1, 2, 3])
ONE_NODE: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "matmul": (lambda x, w: x @ w, (X, X)),
    "matmul of low inputs": (lambda x, w: x @ w, (LOW, LOW)),
    "linear": (lambda x, w, b: nn.linear(x, w, b), (X, X, X[0])),
    "linear of low inputs": (lambda x, w, b: nn.linear(x, w, b), (LOW, X, X[0])),
    "relu": (lambda x: nn.relu(x), (LOW,)),
    "exp": (lambda x: anp.exp(x), (LOW,)),
    "index": (lambda x: x[1:], (LOW,)),
    "cross_entropy": (lambda x: nn.cross_entropy(x, LABELS), (LOW,)),
}


@pytest.mark.parametrize("name", ONE_NODE)
def test_a_cast_is_part_of_its_op_s_node(name: str) -> None:
    function, arrays = ONE_NODE[name]
    roots = [autograd.extend.VJPNode.new_root() for _ in arrays]
    traced = [tracer.new_box(a, 0, root) for a, root in zip(arrays, roots, strict=True)]
    with NumpyBackend().autocast(Policy("O1")):
        result = function(*traced)
    assert set(result._node.parents) == set(roots)


def test_an_op_may_return_an_array_that_it_was_not_given() -> None:
    def loss(captured: Any) -> Any:
        with NumpyBackend().autocast(Policy("O1")):
            return anp.sum(casting.op("exp")(lambda x: captured)(X) + 2 * captured)

    assert autograd.grad(loss)(X).tolist() == (3 * np.ones_like(X)).tolist()


def test_forward_mode_is_refused_and_not_wrong() -> None:
    node = autograd.core.JVPNode.new_root(X)
    with (
        NumpyBackend().autocast(Policy("O1")),
        pytest.raises(UnsupportedError, match=r"no derivative in forward mode.*\n.*autograd\.grad"),
    ):
        anp.matmul(tracer.new_box(X, 0, node), X)


# -- private names


@pytest.mark.parametrize("attribute", _private.TABLE)
def test_a_private_name_that_moved_is_named(
    attribute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, without = _private.TABLE[attribute]
    monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    if attribute == _private.OPTIONAL:
        assert _private.look_up(attribute) is None
        return
    expected = f"no {module}.{attribute}; without it {without}"
    with pytest.raises(UnsupportedError, match=re.escape(expected)):
        _private.look_up(attribute)


def test_every_private_name_is_there() -> None:
    for attribute, (module, _) in _private.TABLE.items():
        assert _private.look_up(attribute) is vars(importlib.import_module(module))[attribute]


# -- one region for many


def low() -> bool:
    return bool(anp.matmul(X, X).dtype == np.float16)


def test_tasks_share_a_region_and_leave_it_in_any_order() -> None:
    region = amp.autocast("O1:float16", backend="numpy")

    async def work(entered: asyncio.Event, leave: asyncio.Event) -> list[bool]:
        with region:
            entered.set()
            await leave.wait()
            inside = low()
        return [inside, low()]

    async def in_the_order_of_entering() -> list[list[bool]]:
        entered, leave = [asyncio.Event() for _ in "ab"], [asyncio.Event() for _ in "ab"]
        tasks = []
        for one, other in zip(entered, leave, strict=True):
            tasks.append(asyncio.create_task(work(one, other)))
            await one.wait()
        leave[0].set()
        first = await tasks[0]
        leave[1].set()
        return [first, await tasks[1]]

    assert asyncio.run(in_the_order_of_entering()) == [[True, False]] * 2
    assert not low()


def test_a_generator_inside_of_a_region_may_end_in_another_thread() -> None:
    region = amp.autocast("O1:float16", backend="numpy")

    def generate() -> Iterator[bool]:
        with region:
            yield low()

    generator = generate()
    assert next(generator)
    thread = threading.Thread(target=lambda: [*generator])
    thread.start()
    thread.join()
    assert not low()


def test_a_region_decorates_methods_of_each_kind_and_partial_functions() -> None:
    region = amp.autocast("O1:float16", backend="numpy")

    class Net:
        @region
        def method(self) -> list[bool]:
            return [low()]

        @region
        @classmethod
        def of_the_class(cls, more: bool) -> list[bool]:
            return [low(), more]

        @region
        @staticmethod
        def static(more: bool) -> list[bool]:
            return [low(), more]

    assert Net().method() == [True]
    assert Net().of_the_class(False) == Net().static(False) == [True, False]
    assert region(functools.partial(Net.static, False))() == [True, False]


def test_a_decorated_function_says_of_what_kind_it_is() -> None:
    @amp.autocast("O1", backend="numpy")
    async def generate() -> AsyncIterator[None]:
        """Documented."""
        yield

    assert inspect.isasyncgenfunction(generate)
    assert (generate.__name__, generate.__doc__) == ("generate", "Documented.")


def test_what_is_no_function_is_refused_with_the_code_to_write() -> None:
    with pytest.raises(amp.ArgumentTypeError) as error:
        amp.autocast("O1:bfloat16", backend="numpy")(nn.Linear(2, 2))  # type: ignore[type-var]
    assert str(error.value) == (
        "A region decorates a function, a generator or a coroutine, not a model "
        "(ampbridge_numpy.nn.Linear).\n"
        "Hint: with amp.autocast(Policy('O1', 'bfloat16')): y = model(x)"
    )
