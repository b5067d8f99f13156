"""What is observed equals what Paddle itself, the values and NumPy tell of the same pass."""

from __future__ import annotations

import math
import random
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.base import core
from paddle.jit.dy2static.program_translator import ProgramTranslator
from paddle_reference import bits, normal, rounded, trainable
from recorder import Recorder, counted

import ampbridge as amp
from ampbridge import lens
from ampbridge.adapters.observation import Kernel, OpCall, Operand
from ampbridge.workloads import digits, of_backend, weights
from ampbridge_lens.subject import Pass, Subject
from ampbridge_paddle import recompute
from ampbridge_paddle.autocast import casting, execution, rounding
from ampbridge_paddle.backend import PaddleBackend

workloads = of_backend("paddle")
WORKLOADS = ("mlp", "conv", "transformer")
POLICIES = {
    "O0": amp.Policy("O0"),
    **{
        f"{level} {dtype}": amp.Policy(level, dtype)
        for level in ("O1", "O2")
        for dtype in ("float16", "bfloat16")
    },
    "paddle": amp.Policy("O1", lists="paddle"),
    "tensorflow": amp.Policy("O1", "bfloat16", lists="tensorflow"),
    "safe": amp.Policy("O2", lists="safe"),
    "custom": amp.Policy("O1", deny=["gelu", "matmul"], allow=["softmax", "layer_norm", "mean"]),
}


@cache
def batch(workload: str) -> tuple[np.ndarray, np.ndarray]:
    training, _ = digits.load(workload)
    return next(iter(digits.batches(training, 32, 1, 2)))


def example(workload: str) -> tuple[paddle.nn.Layer, np.ndarray, np.ndarray]:
    return getattr(workloads, workload)(weights.make(workload, 2)), *batch(workload)


def recorded(
    model: Any, batch: Any, policy: amp.Policy, loss_fn: Any = workloads.loss
) -> tuple[Counter[Any], Counter[str]]:
    """What the recorder and Paddle itself count in two passes without ampbridge's lens."""
    recorder = Recorder(policy.dtype if policy.level != "O0" else "float32")

    def judged(model: Any, *batch: Any) -> Any:
        with recorder:
            return loss_fn(model, *batch)

    kernels: Counter[str] = Counter()

    def counting(model: Any, *batch: Any) -> Any:
        with counted() as found:
            loss = loss_fn(model, *batch)
        kernels.update(found)
        return loss

    if policy.level == "O2":
        amp.decorate(model, policy=policy)
    for loss in (judged, counting):
        amp.value_and_grad(loss, model, *batch, policy=policy, scaler=None)
    return recorder.calls, kernels


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
@pytest.mark.parametrize("workload", WORKLOADS)
def test_census_equals_the_recorder_op_by_op(
    workload: str, policy: amp.Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By casts: regions call nothing then that the model calls too, but for scale.
    monkeypatch.setattr(rounding, "_MANY", math.inf)
    if policy.level != "O0":
        assert policy.category("multiply") == "promote"  # the recorder's probe
    model, *batch = example(workload)
    census = lens.census(workloads.loss, model, *batch, policy=policy)
    judged, kernels = recorded(model, batch, policy)
    found = kernels_of(census)
    assert found == judged
    hidden = {"scale"} if policy.dtype == "float16" else set()  # by which regions round as well
    assert without(hidden, as_paddle_counts(found)) == without(hidden, kernels)


def kernels_of(census: lens.Census) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for row in census.rows:
        found.update({(kernel.name, row.dtype): times for kernel, times in row.kernels})
    return found


def as_paddle_counts(found: Counter[Any]) -> Counter[str]:
    """``linear`` calls two kernels on a CPU."""
    names: Counter[str] = Counter()
    for (name, _), times in found.items():
        names.update(dict.fromkeys(("matmul", "add") if name == "linear" else (name,), times))
    return names


def without(hidden: set[str], kernels: Counter[str]) -> Counter[str]:
    return Counter({name: times for name, times in kernels.items() if name not in hidden})


class Various(nn.Layer):
    """A convolution with its bias, an attention, numbers beside tensors, a function of several kernels."""

    def __init__(self) -> None:
        super().__init__()
        paddle.seed(1)
        self.conv = nn.Conv2D(1, 4, 3)
        self.head = nn.Linear(6, 3)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        x = (1.0 - self.conv(x)) * 2.0 + 0.3
        x = x[:, :, 1:] / 3.0
        x = F.scaled_dot_product_attention(x, x, x * 0.5)
        return self.head(x.tanh())


def test_census_equals_the_recorder_on_functions_and_operators() -> None:
    def loss(model: Any, x: Any, y: Any) -> Any:
        return F.mse_loss(model(x), y)

    batch = normal(2, 1, 8, 8), normal(2, 4, 5, 3)
    for policy in (amp.Policy("O0"), amp.Policy("O1"), amp.Policy("O1", deny=["linear", "conv2d"])):
        census = lens.census(loss, Various(), *batch, policy=policy)
        judged, kernels = recorded(Various(), batch, policy, loss)
        assert kernels_of(census) == judged
        hidden = {"scale"}
        found = as_paddle_counts(kernels_of(census))
        assert without(hidden, found) == without(hidden, kernels)
        assert [row.op for row in census.rows if row.layer == "conv"] == ["conv2d"]
        assert {row.op for row in census.rows} >= {"scaled_dot_product_attention", "mse_loss"}


# -- ranges equal NumPy's own on dumped tensors

SCALE = 2.0**10


class Dump:
    """Outputs and gradients of a float32 run without ampbridge, by Paddle's own hooks."""

    def __init__(self, workload: str) -> None:
        model, x, y = example(workload)
        self.outputs: dict[str, np.ndarray] = {}
        self.gradients: dict[str, np.ndarray] = {}
        for name, layer in model.named_sublayers():
            if not layer.sublayers():
                layer.register_forward_post_hook(self._dumping(name))
        workloads.loss(model, paddle.to_tensor(x), paddle.to_tensor(y)).backward()
        self.parameters = {
            name: p.grad.numpy() for name, p in model.named_parameters() if not p.stop_gradient
        }

    def _dumping(self, name: str) -> Any:
        def dump(layer: Any, inputs: Any, output: Any) -> None:
            self.outputs[name] = output.numpy()
            if not output.stop_gradient:
                output.register_hook(lambda grad: self.gradients.update({name: grad.numpy()}))

        return dump


def assert_range_is_that_of(values: np.ndarray, found: lens.Exponents) -> None:
    wide = np.abs(values.astype(np.float64))
    with np.errstate(over="ignore"):
        low = wide.astype(np.float16)
        doublings = [np.isfinite((wide * 2.0**n).astype(np.float16)).all() for n in range(-40, 160)]
    assert found.total == values.size
    assert found.largest == wide.max()
    assert found.overflowing == np.isinf(low).mean()
    assert found.flushed == ((low == 0) & (wide != 0)).mean()
    assert found.subnormal == ((low != 0) & (wide < 2.0**-14)).mean()
    assert found.headroom == doublings.index(False) - 41
    exponents = np.floor(np.log2(wide[wide != 0])).astype(int)
    assert {e: b.values for e, b in found.bins.items()} == Counter(exponents.tolist())


@pytest.mark.parametrize("workload", WORKLOADS)
def test_ranges_equal_numpy_s_on_dumped_tensors(workload: str) -> None:
    dump, (model, *batch) = Dump(workload), example(workload)
    ranges = lens.ranges(workloads.loss, model, *batch, scale=SCALE)
    compared = Counter()
    for row in ranges.rows:
        if row.kind == "parameter":
            values = dump.parameters[row.name] * np.float32(SCALE)
        elif row.kind == "output" and row.layer in dump.outputs:
            values = dump.outputs[row.layer]
        elif row.kind == "gradient" and row.layer in dump.gradients:
            values = dump.gradients[row.layer] * np.float32(SCALE)
        else:
            continue
        assert_range_is_that_of(values, row.values)
        compared[row.kind] += 1
    assert compared["parameter"] == len(dump.parameters)
    assert compared["output"] == len(dump.outputs)
    assert compared["gradient"] == len(dump.gradients)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_safe_scale_does_not_overflow_and_twice_it_does(workload: str) -> None:
    model, *batch = example(workload)
    safe = lens.ranges(workloads.loss, model, *batch).safe_scale

    def is_finite(scale: float) -> bool:
        scaler = amp.GradScaler(scale, max_scale=2.0**127)
        _, grads = amp.value_and_grad(workloads.loss, model, *batch, policy="O1", scaler=scaler)
        return all(bool(paddle.isfinite(grad).all()) for grad in grads)

    assert (is_finite(safe), is_finite(2 * safe)) == (True, False)


# -- gradients


class Seen:
    """An observer that copies all it is told, in order."""

    def __init__(self) -> None:
        self.calls: list[OpCall] = []
        self.inputs: dict[int, list[tuple[np.ndarray, str]]] = {}
        self.outputs: dict[int, list[tuple[np.ndarray, str]]] = {}
        self.gradients: list[tuple[str, int, int, np.ndarray, str]] = []

    def op_ran(self, call: OpCall, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> None:
        self.calls.append(call)
        self.inputs[call.number] = [copied(x) for x in inputs]
        self.outputs[call.number] = [copied(x) for x in outputs]

    def gradient_arrived(self, call: OpCall, output: int, gradient: Operand) -> None:
        self.gradients.append(("arrived", call.number, output, *copied(gradient)))

    def gradient_left(self, call: OpCall, input: int, gradient: Operand) -> None:
        self.gradients.append(("left", call.number, input, *copied(gradient)))

    @property
    def ops(self) -> list[tuple[str, str, str]]:
        return [(call.op, call.layer, call.dtype) for call in self.calls]

    def of(self, op: str, nth: int = 0) -> OpCall:
        return [call for call in self.calls if call.op == op][nth]

    def gradient(self, side: str, call: OpCall, place: int = 0) -> np.ndarray:
        """The one that was seen on that side of a call, at that place."""
        (found,) = [
            values
            for seen_side, number, seen_place, values, _ in self.gradients
            if (seen_side, number, seen_place) == (side, call.number, place)
        ]
        return found


def copied(x: Operand) -> tuple[np.ndarray, str]:
    return np.array(x.values.astype("float32").numpy()), x.dtype


def look(
    loss_fn: Any, model: Any, *batch: Any, policy: Any = "O0", scale: float = 1.0
) -> tuple[Seen, Pass]:
    """What one pass shows, whose bits are those of a pass that is not looked at."""
    seen, subject = Seen(), Subject(loss_fn, model)
    parsed = amp.Policy.parse(policy) if isinstance(policy, str) else policy
    found = subject.run(batch, parsed, scale, seen)
    plain = subject.run(batch, parsed, scale)
    np.testing.assert_array_equal(found.loss, plain.loss)
    assert list(found.gradients) == list(plain.gradients)
    for name, gradient in plain.gradients.items():
        assert bits(found.gradients[name]) == bits(gradient), name
    return seen, found


class Function(nn.Layer):
    """A model of weights by name, and a function of them."""

    def __init__(self, run: Any, **weights: np.ndarray) -> None:
        super().__init__()
        self.run = run
        for name, values in weights.items():
            initial = nn.initializer.Assign(values)
            parameter = self.create_parameter(values.shape, default_initializer=initial)
            self.add_parameter(name, parameter)

    def forward(self, *inputs: Any) -> Any:
        return self.run(self, *inputs)


def output_of(model: Any, *batch: Any) -> Any:
    return model(*batch)


def test_gradients_that_arrive_and_leave_are_paddle_s_own() -> None:
    """Each use of a value is cut off by a leaf of its own: its gradient is what that use adds."""
    x, w, v = normal(5, 4), normal(4, 4, seed=1) * 0.3, normal(5, 4, seed=2)

    def run(model: Any, x: Any) -> Any:
        h = paddle.matmul(x, model.w)
        return (paddle.exp(h) + h * model.v - paddle.matmul(h, model.w)).mean()

    seen, passed = look(output_of, Function(run, w=w, v=v), x)

    h = paddle.matmul(paddle.to_tensor(x), paddle.to_tensor(w))
    uses = [trainable(h.numpy()) for _ in range(3)]
    w1, w2, v1 = trainable(w), trainable(w), trainable(v)
    parts = [paddle.exp(uses[0]), uses[1] * v1, paddle.matmul(uses[2], w2)]
    loss = (parts[0] + parts[1] - parts[2]).mean()
    of_uses = paddle.grad(loss, [*uses, w2, v1, *parts], retain_graph=True)
    exp, product = seen.of("exp"), seen.of("multiply")
    first, second = seen.of("matmul", 0), seen.of("matmul", 1)
    arrived = seen.gradient("arrived", first)  # a sum, in whatever order
    np.testing.assert_allclose(arrived, sum(part.numpy() for part in of_uses[:3]), rtol=1e-6)
    again = paddle.matmul(paddle.to_tensor(x), w1)
    (of_w1,) = paddle.grad(again, [w1], [paddle.to_tensor(arrived)])

    expected = {
        ("left", exp, 0): of_uses[0],
        ("left", product, 0): of_uses[1],
        ("left", second, 0): of_uses[2],
        ("left", second, 1): of_uses[3],
        ("left", product, 1): of_uses[4],
        ("arrived", exp, 0): of_uses[5],
        ("arrived", product, 0): of_uses[6],
        ("arrived", second, 0): of_uses[7],
        ("left", first, 1): of_w1,
    }
    for (side, call, place), gradient in expected.items():
        assert bits(seen.gradient(side, call, place)) == bits(gradient), (side, call.op, place)
    added = seen.gradient("left", first, 1) + seen.gradient("left", second, 1)
    assert bits(added) == bits(passed.gradients["w"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gradient_leaves_rounded_to_what_it_leaves_for(dtype: str) -> None:
    """The second product's input is low already: in the simulation the op before rounds for it."""
    x, w, v = normal(3, 4), normal(4, 4, seed=1), normal(4, 4, seed=2)

    def run(model: Any, x: Any) -> Any:
        return paddle.matmul(paddle.matmul(x, model.w), model.v).astype("float32").sum()

    seen, _ = look(output_of, Function(run, w=w, v=v), x, policy=f"O1:{dtype}")
    arrived = seen.gradient("arrived", seen.of("matmul", 1))
    exact = arrived @ rounded(v, dtype).T
    left = seen.gradient("left", seen.of("matmul", 1), 0)
    assert not np.array_equal(exact, rounded(exact, dtype))
    assert bits(left) == bits(rounded(exact, dtype))
    assert bits(seen.gradient("arrived", seen.of("matmul", 0))) == bits(left)
    sides = {(side, number, place): found for side, number, place, _, found in seen.gradients}
    last = seen.of("matmul", 1).number
    assert sides["arrived", last, 0] == sides["left", last, 0] == dtype
    assert sides["left", last, 1] == "float32"  # of the parameter


def test_an_op_whose_backward_overflows_is_handed_finite_and_leaves_inf() -> None:
    x, w, v = normal(3, 4), normal(4, 4, seed=1), 3e3 * np.ones((4, 1), np.float32)

    def run(model: Any, x: Any) -> Any:
        return paddle.matmul(paddle.tanh(paddle.matmul(x, model.w)), model.v).sum()

    seen, _ = look(output_of, Function(run, w=w, v=v), x, policy="O1", scale=64.0)
    last = seen.of("matmul", 1)
    assert np.isfinite(seen.gradient("arrived", last)).all()
    assert np.isinf(seen.gradient("left", last, 0)).all()
    assert np.isfinite(seen.gradient("left", last, 1)).all()
    first_not_finite = next(g for g in seen.gradients if not np.isfinite(g[3]).all())
    assert first_not_finite[:3] == ("left", last.number, 0)


def random_model(seed: int) -> Function:
    """Forty ops over a few values, each used several times; moves and views among them."""
    choose = random.Random(seed)
    plan = [(choose.randrange(12), choose.randrange(8), choose.randrange(8)) for _ in range(40)]
    ops = [
        lambda a, b, w: a + b,
        lambda a, b, w: a * b * 0.3,
        lambda a, b, w: a @ w,
        lambda a, b, w: F.gelu(a),
        lambda a, b, w: F.softmax(a),
        lambda a, b, w: a.transpose([1, 0]).transpose([1, 0]),
        lambda a, b, w: paddle.concat([a[:, :4], b[:, 4:]], axis=1),
        lambda a, b, w: F.layer_norm(a, 8),
        lambda a, b, w: paddle.tanh(a) - b,
        lambda a, b, w: a[::2].sum(axis=0) + b,
        lambda a, b, w: paddle.exp(-(a * a)),
        lambda a, b, w: F.linear(a, w),
    ]

    def run(model: Any, x: Any) -> Any:
        found = [x, *(x @ w for w in model.parameters())] * 2
        for op, a, b in plan:
            found.append(ops[op](found[-1 - a], found[-1 - b], model.parameters()[a % 3]))
        return (sum(found) ** 2).mean()

    return Function(run, **{f"w{n}": normal(8, 8, seed=seed + n) for n in range(3)})


@pytest.mark.parametrize("policy", ["O0", "O1:float16", "O1:bfloat16", "O2:float16"])
def test_no_bit_is_changed(policy: str) -> None:
    """Gradients of several uses are added in the order in which they come."""
    for seed in range(6):
        look(output_of, random_model(seed), normal(8, 8, seed=seed), policy=policy, scale=8.0)


def test_a_low_parameter_is_shown_as_it_is_read() -> None:
    """Simulated O2 stores it in float32; its gradient is rounded as well."""
    model = nn.Linear(4, 2)
    stored = model.weight.numpy()
    seen, passed = look(lambda m, x: m(x).sum(), model, normal(3, 4), policy="O2", scale=0.3)
    (linear,) = [call for call in seen.calls if call.op == "linear"]
    assert [dtype for _, dtype in seen.inputs[linear.number]] == ["float32", "float16", "float16"]
    assert bits(seen.inputs[linear.number][1][0]) == bits(rounded(stored, "float16"))
    assert not np.array_equal(stored, rounded(stored, "float16"))
    assert bits(seen.gradient("left", linear, 1)) == bits(passed.gradients["weight"])


# -- layers


def test_layers_that_are_nested_shared_kept_and_called_twice() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(
        nn.Sequential(shared, nn.Tanh(), shared), nn.LayerNorm(4), nn.Sequential(shared)
    )
    policy = amp.Policy("O1", keep=["1", "0.1"])
    seen, _ = look(lambda m, x: m(x).sum(), model, normal(3, 4), policy=policy)
    low, wide = "float16", "float32"
    assert seen.ops == [
        ("linear", "0.0", low), ("tanh", "0.1", wide), ("linear", "0.0", low),
        ("layer_norm", "1", wide), ("linear", "0.0", low), ("sum", "", wide),
    ]  # fmt: skip
    rules = {(row.op, row.layer): row.rule for row in lens.census(
        lambda m, x: m(x).sum(), model, normal(3, 4), policy=policy).rows}  # fmt: skip
    assert rules["tanh", "0.1"] == "kept layer"


def test_a_layer_that_is_not_the_model_s_runs_where_it_is_called() -> None:
    foreign = nn.Linear(4, 4)
    model = nn.Sequential(nn.Linear(4, 4), Function(lambda m, x: foreign(x)))
    seen, _ = look(lambda m, x: foreign(m(x)).sum(), model, normal(3, 4))
    assert [call.layer for call in seen.calls] == ["0", "1", "", ""]


@pytest.mark.parametrize("policy", ["O0", "O1"])
def test_a_recurrent_cell_is_one_op_whose_parameters_are_inputs(policy: str) -> None:
    paddle.seed(3)
    model = nn.LSTMCell(4, 3)
    before = dict(model._parameters)

    def loss(model: Any, x: Any) -> Any:
        return model(x)[0].astype("float32").sum()

    seen, passed = look(loss, model, normal(2, 4), policy=policy)
    assert [op for op, _, _ in seen.ops if op != "sum"] == ["lstm_cell"]
    cell = seen.of("lstm_cell")
    assert cell.dtype == ("float16" if policy == "O1" else "float32")
    assert {kernel.name for kernel in cell.kernels} >= {"matmul", "sigmoid", "tanh"}
    assert [model._parameters[name] is p for name, p in before.items()] == [True] * 4
    shapes = [tuple(values.shape) for values, _ in seen.inputs[cell.number]]
    assert shapes == [(2, 4), *(tuple(p.shape) for p in before.values())]
    for place, name in enumerate(before, start=1):
        assert bits(seen.gradient("left", cell, place)) == bits(passed.gradients[name])


def test_a_recurrent_layer_goes_by_its_own_name() -> None:
    paddle.seed(3)
    seen, passed = look(lambda m, x: m(x)[0].sum(), nn.LSTM(4, 3), normal(2, 5, 4))
    lstm = seen.of("lstm")
    assert [kernel.name for kernel in lstm.kernels] == ["rnn"]
    left = [
        values for side, n, _, values, _ in seen.gradients if (side, n) == ("left", lstm.number)
    ]
    assert {bits(g) for g in passed.gradients.values()} <= {bits(values) for values in left}


def test_attention_shows_its_parts() -> None:
    paddle.seed(3)
    model = nn.MultiHeadAttention(8, 2)
    for policy, low in (("O0", "float32"), ("O1", "float16")):
        seen, _ = look(lambda m, x: m(x).sum(), model, normal(2, 5, 8), policy=policy)
        assert ("softmax", "", "float32") in seen.ops
        assert ("linear", "q_proj", low) in seen.ops
    denied = amp.Policy("O1", deny=["multi_head_attention"])
    seen, _ = look(lambda m, x: m(x).sum(), model, normal(2, 5, 8), policy=denied)
    assert seen.ops == [("multi_head_attention", "", "float32"), ("sum", "", "float32")]


# -- names

IMAGE, SERIES = normal(2, 4, 8, 8), normal(2, 4, 8)
NAMED: dict[str, tuple[Any, np.ndarray, list[str]]] = {
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), IMAGE, ["avg_pool2d"]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), IMAGE, ["max_pool2d"]),
    "AdaptiveAvgPool2D": (nn.AdaptiveAvgPool2D(1), IMAGE, ["adaptive_avg_pool2d"]),
    "conv1d": (nn.Conv1D(4, 3, 3), SERIES, ["conv1d"]),
    "conv2d with its bias": (nn.Conv2D(4, 3, 3), IMAGE, ["conv2d"]),
    "depthwise": (nn.Conv2D(4, 4, 3, groups=4), IMAGE, ["depthwise_conv2d"]),
    "mm": (lambda x: paddle.mm(x[0], x[1].T), SERIES, ["slice", "slice", "transpose", "mm"]),
    "x @ x": (lambda x: x @ x.transpose([0, 2, 1]), SERIES, ["transpose", "matmul"]),
    "-x": (lambda x: -x, SERIES, ["neg"]),
    "x + 1": (lambda x: x + 1.0, SERIES, ["add"]),
    "x > 0": (lambda x: paddle.where(x > 0, x, x), SERIES, ["greater", "where"]),
    "logaddexp": (lambda x: paddle.logaddexp(x, x), SERIES, ["logaddexp"]),
    "of no rule": (lambda x: paddle.heaviside(x, x), SERIES, ["paddle:heaviside"]),
    "a copy": (lambda x: x.detach().astype("float64").astype("float32") + x, SERIES, ["add"]),
    "in place": (lambda x: F.relu_(x * 2.0), SERIES, ["multiply", "relu"]),
}


@pytest.mark.parametrize("name", NAMED)
def test_ops_go_by_their_canonical_names(name: str) -> None:
    run, x, expected = NAMED[name]
    for policy in ("O0", "O1"):
        model = Function(None, w=np.ones(1, np.float32))
        seen, _ = look(lambda m, x: run(x * m.w).sum(), model, x, policy=policy)
        ops = [op for op, _, _ in seen.ops]
        assert ops[1:-1] == expected, (policy, ops)


# -- what a forward pass may do besides


def test_ops_in_place_have_their_gradients() -> None:
    """``x.add_(y)`` is ``x = x + y`` to the gradients, and ``x`` stays the same tensor."""
    x, w, b = normal(5, 4), normal(4, 4, seed=1), normal(5, 4, seed=2)

    def run(model: Any, x: Any) -> Any:
        h = paddle.matmul(x, model.w)
        same = F.relu_(h.add_(model.b))
        assert same is h
        return (h * h).sum()

    seen, passed = look(output_of, Function(run, w=w, b=b), x)
    h = paddle.matmul(paddle.to_tensor(x), paddle.to_tensor(w))
    total = trainable((h + paddle.to_tensor(b)).numpy())
    result = F.relu(total)
    of_total, of_result = paddle.grad((result * result).sum(), [total, result])
    assert [op for op, _, _ in seen.ops] == ["matmul", "add", "relu", "multiply", "sum"]
    added, relu = seen.of("add"), seen.of("relu")
    assert bits(seen.inputs[added.number][0][0]) == bits(h)  # before it was written to
    assert bits(seen.outputs[added.number][0][0]) == bits(total)
    assert bits(seen.gradient("arrived", relu)) == bits(of_result)
    for side, call, place in (
        ("left", relu, 0), ("arrived", added, 0), ("left", added, 0), ("left", added, 1),
        ("arrived", seen.of("matmul"), 0),
    ):  # fmt: skip
        assert bits(seen.gradient(side, call, place)) == bits(of_total), (side, call.op)
    assert bits(passed.gradients["b"]) == bits(of_total)


def test_a_leaf_that_is_written_to_is_refused_as_ever() -> None:
    model = Function(lambda m, x: m.w.add_(x).sum(), w=normal(3))
    with pytest.raises(ValueError, match="can't use inplace strategy"):
        Subject(output_of, model).run((normal(3),), amp.Policy("O0"), observer=Seen())


@pytest.mark.parametrize("policy", ["O0", "O1", "O2"])
@pytest.mark.parametrize("sparse", [False, True])
def test_embeddings(policy: str, sparse: bool) -> None:
    """Of a sparse one the gradient of the table is not reported; it is what it was."""
    paddle.seed(3)
    model = nn.Sequential(nn.Embedding(6, 4, sparse=sparse), nn.Linear(4, 2))
    rows = np.array([[1, 2], [5, 1]])
    seen, _ = look(lambda m, x: m(x).astype("float32").sum(), model, rows, policy=policy)
    lookup = seen.of("embedding")
    left = [g for g in seen.gradients if g[:2] == ("left", lookup.number)]
    assert len(left) == (0 if sparse else 1)
    assert lookup.dtype == ("float16" if policy == "O2" else "float32")
    assert np.abs(seen.gradient("arrived", lookup)).max() > 0


@pytest.mark.parametrize("policy", ["O0", "O1"])
def test_a_checkpointed_layer_is_seen_once_and_without_gradients(policy: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))

    def loss(model: Any, x: Any) -> Any:
        return recompute(model[1], model[0](x)).astype("float32").sum()

    seen, _ = look(loss, model, normal(3, 4), policy=policy)
    assert [layer for op, layer, _ in seen.ops if op == "linear"] == ["0", "1"]
    assert [g for g in seen.gradients if g[1] == seen.of("linear", 1).number] == []
    assert len([g for g in seen.gradients if g[1] == seen.of("linear", 0).number]) >= 2


def test_gradients_that_the_forward_pass_takes_are_not_those_of_the_loss() -> None:
    def penalized(model: Any, x: Any) -> Any:
        x.stop_gradient = False
        output = paddle.exp(paddle.matmul(x, model.w)).sum()
        (slope,) = paddle.grad(output, [x], create_graph=True)
        return output + (slope * slope).sum()

    seen, _ = look(penalized, Function(None, w=normal(4, 2)), normal(3, 4))
    exp = seen.of("exp")
    assert len([g for g in seen.gradients if g[:2] == ("arrived", exp.number)]) == 1


def test_backward_passes_written_in_python_are_no_ops_of_the_forward_pass() -> None:
    class Doubled(paddle.autograd.PyLayer):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2.0

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return paddle.exp(gradient) * 2.0

    def loss(model: Any, x: Any) -> Any:
        paddle.grad(Doubled.apply(model.w * 3.0).sum(), [model.w])
        return model.w.sum()

    seen, _ = look(loss, Function(None, w=normal(3)), normal(3))
    assert [op for op, _, _ in seen.ops] == ["multiply", "multiply", "sum", "sum"]


def test_float64_is_seen_as_such() -> None:
    w = normal(4, 2).astype(np.float64)
    paddle.set_default_dtype("float64")
    try:
        model = Function(lambda m, x: paddle.matmul(x, m.w).sum(), w=w)
    finally:
        paddle.set_default_dtype("float32")
    seen, _ = look(output_of, model, normal(3, 4).astype(np.float64), policy="O1")
    assert seen.ops == [("matmul", "", "float64"), ("sum", "", "float64")]


@pytest.mark.parametrize("full_graph", [True, False])
@pytest.mark.parametrize("policy", ["O0", "O1"])
def test_what_was_compiled_runs_eagerly(policy: str, full_graph: bool) -> None:
    translator = ProgramTranslator()
    compiled = paddle.jit.to_static(lambda x, w: paddle.tanh(x @ w), full_graph=full_graph)
    layer = paddle.jit.to_static(nn.Linear(4, 2), full_graph=full_graph)
    model = nn.Sequential(Function(lambda m, x: compiled(x, m.w), w=normal(4, 4)), layer)
    seen, subject = Seen(), Subject(lambda m, x: m(x).sum(), model)
    subject.run((normal(3, 4),), amp.Policy.parse(policy), observer=seen)
    low = "float16" if policy == "O1" else "float32"
    assert seen.ops == [
        ("matmul", "0", low), ("tanh", "0", low), ("linear", "1", low), ("sum", "", "float32"),
    ]  # fmt: skip
    assert translator.enable_to_static


@pytest.mark.parametrize("policy", ["O0", "O1"])
def test_nothing_is_left_behind(policy: str) -> None:
    """Also by an exception, and where regions open and close inside."""
    model = nn.Sequential(nn.Linear(4, 4), nn.LSTMCell(4, 2))

    def attributes() -> dict[tuple[int, str], Any]:
        modules = {
            id(m): m for n, m in sys.modules.items() if n.startswith(("paddle", "ampbridge"))
        }
        classes = [
            core.eager.Tensor,
            paddle.pir.Value,
            nn.Layer,
            nn.LSTMCell,
            nn.MultiHeadAttention,
        ]
        owners = [*modules.values(), *classes, ProgramTranslator()]
        return {
            (id(o), k): v
            for o in owners
            for k, v in list(vars(o).items())
            if callable(v) or v is True
        }

    def failing(model: Any, x: Any) -> Any:
        with amp.autocast("O1:bfloat16", "paddle"):
            h = paddle.matmul(model[0](x), model[0].weight)
        with amp.autocast("O0", "paddle"):
            h = paddle.exp(h)
        model[1](h)
        raise KeyError("on purpose")

    def run() -> Seen:
        seen = Seen()
        with pytest.raises(KeyError, match="on purpose"):
            Subject(failing, model).run((normal(3, 4),), amp.Policy.parse(policy), observer=seen)
        return seen

    run()  # modules that are imported late
    before = attributes()
    seen = run()
    after = attributes()
    assert [name for name in before if before[name] is not after.get(name)] == []
    outer = "float16" if policy == "O1" else "float32"
    assert [call.dtype for call in seen.calls] == ["bfloat16", "bfloat16", "float32", outer]
    paddle.exp(paddle.ones([2]))
    assert len(seen.calls) == 4


def test_two_threads_observe_their_own_models() -> None:
    """Forward passes; Paddle's own ``paddle.grad`` crashes in two threads at once (3.3.1)."""
    together, original = threading.Barrier(2), paddle._C_ops.matmul

    def run(layers: int) -> list[str]:
        model, seen = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers))), Seen()
        for _ in range(20):
            together.wait()
            with PaddleBackend().observe(model, seen, gradients=False):
                model(paddle.ones([3, 4])).sum()
        return [call.op for call in seen.calls]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, [1, 3]))
    assert found == [[*["linear"] * n, "sum"] * 20 for n in (1, 3)]
    assert paddle._C_ops.matmul is original


# -- on a GPU, as far as a CPU shows


def test_a_region_of_paddle_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole functions are one op by the rules of a native region, too; nobody waits for the device.

    Paddle's dispatcher, which casts below Python, does nothing here: all runs in float32.
    """
    monkeypatch.setattr(execution, "on_cpu", lambda: False)
    monkeypatch.setattr(casting, "_auto_cast", lambda lists: nullcontext())
    paddle.seed(3)
    model = nn.Sequential(nn.Conv1D(1, 2, 3), nn.Linear(6, 4), nn.LSTMCell(4, 3))

    def loss(model: Any, x: Any) -> Any:
        return F.mse_loss(model[2](model[1](model[0](x))[:, 0])[0], x[:, 0, :3])

    seen, _ = look(loss, model, normal(2, 1, 8), policy="O1")
    assert [(op, layer) for op, layer, _ in seen.ops if op != "slice"] == [
        ("conv1d", "0"), ("linear", "1"), ("lstm_cell", "2"), ("mse_loss", ""),
    ]  # fmt: skip
    assert {call.seconds for call in seen.calls} == {None}


def test_tensors_of_16_bits_are_told_by_their_storage() -> None:
    """A move is all that a CPU runs on them."""
    seen, model = Seen(), nn.Linear(2, 2)
    stored = paddle.to_tensor(normal(2, 3).astype(np.float16), stop_gradient=False)
    with PaddleBackend().observe(model, seen, gradients=True):
        moved = paddle.reshape(stored, [3, 2])
    moved.astype("float32").sum().backward()
    (call,) = seen.calls
    assert (call.op, call.dtype, call.kernels) == (
        "reshape", "float16", (Kernel("reshape", "float16"),),
    )  # fmt: skip
    assert [(side, dtype) for side, _, _, _, dtype in seen.gradients] == [
        ("arrived", "float16"), ("left", "float16"),
    ]  # fmt: skip


def test_the_views_that_ops_are_handed_are_not_cast() -> None:
    """With its level forced, Paddle's dispatcher takes every op of 16-bit tensors here to float32."""
    tracer, seen = paddle.base.framework._dygraph_tracer(), Seen()
    stored = paddle.to_tensor(normal(2, 3).astype(np.float16), stop_gradient=False)
    dtype, tracer._amp_dtype, tracer._amp_level = tracer._amp_dtype, "float16", core.AmpLevel.O1
    try:
        with PaddleBackend().observe(nn.Linear(2, 2), seen, gradients=True):
            output = paddle.exp(stored)
        assert tracer._amp_level == core.AmpLevel.O1
    finally:
        tracer._amp_dtype, tracer._amp_level = dtype, core.AmpLevel.O0
    (exp,) = seen.calls
    assert (exp.op, exp.dtype) == ("exp", "float32")
    # Backwards: the op, the dispatcher's cast of what it was handed, the view, the leaf.
    node, cast = output.grad_fn, output.grad_fn.next_functions[0]
    names = [node.name(), cast.name(), cast.next_functions[0].name()]
    assert names == ["ExpGradNode", "CastGradNode", "ViewShapeGradNode"]


# -- values and memory


def test_values_of_a_sparse_gradient_are_the_rows_that_it_has() -> None:
    table = trainable(normal(6, 4))
    rows = F.embedding(paddle.to_tensor([1, 3, 1]), table, sparse=True)
    (gradient,) = paddle.grad(rows.sum(), [table])
    found = PaddleBackend().to_numpy(gradient)
    assert sorted(found[:, 0]) == [1.0, 2.0]


def test_peak_memory_is_that_of_a_known_allocation() -> None:
    backend, megabyte = PaddleBackend(), 2**20
    held = paddle.zeros([2**18])  # held before and after: does not count

    def hold_three_and_let_go() -> None:
        first = held + 1.0
        second = first + held
        del first
        third = second + held
        del second, third

    assert backend.peak_memory(hold_three_and_let_go) == pytest.approx(2 * megabyte, rel=0.01)
    assert backend.peak_memory(lambda: None) == 0
