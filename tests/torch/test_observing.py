"""What the lens sees on PyTorch, held against a recorder below autograd, autograd itself and NumPy."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from recorder import Recorder
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ampbridge as amp
from ampbridge import lens
from ampbridge.adapters.observation import OpCall, Operand
from ampbridge.workloads import of_backend
from ampbridge.workloads import weights as workload_weights
from ampbridge_lens.subject import Subject
from ampbridge_torch.backend import TorchBackend

BACKEND = TorchBackend()
workloads = of_backend("torch")


class Gradient(NamedTuple):
    """One that "arrived" at an output or "left" from an input."""

    op: str
    side: str
    place: int
    values: Tensor


class Seen:
    """An observer that copies all it is told."""

    def __init__(self) -> None:
        self.calls: list[OpCall] = []
        self.inputs: list[list[Tensor]] = []
        self.outputs: list[list[Tensor]] = []
        self.gradients: list[Gradient] = []

    def op_ran(self, call: OpCall, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> None:
        assert all(x.dtype == str(x.values.dtype).removeprefix("torch.") for x in inputs)
        assert not any(x.values.requires_grad for x in (*inputs, *outputs))
        self.calls.append(call)
        self.inputs.append([x.values.clone() for x in inputs])
        self.outputs.append([x.values.clone() for x in outputs])

    def gradient_arrived(self, call: OpCall, output: int, gradient: Operand) -> None:
        self.gradients.append(Gradient(call.op, "arrived", output, gradient.values.clone()))

    def gradient_left(self, call: OpCall, input: int, gradient: Operand) -> None:
        self.gradients.append(Gradient(call.op, "left", input, gradient.values.clone()))

    @property
    def ops(self) -> list[str]:
        return [call.op for call in self.calls]

    def left(self, op: str) -> dict[int, Tensor]:
        """What left from each input of the one call of an op."""
        found = [g for g in self.gradients if (g.op, g.side) == (op, "left")]
        assert len({g.place for g in found}) == len(found)
        return {g.place: g.values for g in found}


def observed(
    function: Callable[..., Any],
    *inputs: Any,
    policy: amp.Policy | None = None,
    model: nn.Module | None = None,
) -> tuple[Seen, Any]:
    """What was seen of ``function``, called in a region, and what it returned."""
    seen = Seen()
    owner = nn.Identity() if model is None else model
    with (
        amp.autocast(policy or amp.Policy("O0"), backend="torch"),
        BACKEND.observe(owner, seen, gradients=True),
    ):
        return seen, function(*inputs)


def native(low: str, **changes: Any) -> amp.Policy:
    return amp.Policy("O1", low, execution="native", **changes)


# -- the forward pass: held against the recorder

MODELS = {
    "mlp": (workloads.mlp, (4, 1, 8, 8)),
    "conv": (workloads.conv, (4, 1, 8, 8)),
    "transformer": (workloads.transformer, (4, 16)),
}
POLICIES = [
    amp.Policy("O0"),
    *(
        amp.Policy(level, dtype, lists=lists, execution=execution)
        for level in ("O1", "O2")
        for dtype in ("float16", "bfloat16")
        for lists in ("torch", "paddle", "tensorflow", "safe")
        for execution in ("native", "simulated")
    ),
    amp.Policy("O1", "bfloat16", lists="native"),
    amp.Policy("O1", "float16", allow=["layer_norm", "softmax"], deny=["linear", "conv2d"]),
]
kinds = pytest.mark.parametrize("kind", MODELS)


def workload(kind: str, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    make, shape = MODELS[kind]
    torch.manual_seed(4)
    x = torch.randint(256, shape) if kind == "transformer" else torch.rand(shape)
    model = make(workload_weights.make(kind, 0))
    return model.to(device), x.to(device), torch.tensor([3, 1, 4, 1]).to(device)


def is_refused(policy: amp.Policy, device: str) -> bool:
    return policy.execution == "simulated" and device == "cuda"


@kinds
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_the_census_is_what_the_recorder_sees(kind: str, policy: amp.Policy, device: str) -> None:
    if is_refused(policy, device):
        pytest.skip("CUDA has its kernels")
    model, x, y = workload(kind, device)
    recorder = Recorder()

    def recorded(model: nn.Module, x: Tensor, y: Tensor) -> Any:
        with recorder:
            return workloads.loss(model, x, y), None

    Subject(recorded, model).run((x, y), policy)
    census = lens.census(workloads.loss, model, x, y, policy=policy)
    found: Counter[tuple[str, str]] = Counter()
    for row in census.rows:
        for kernel, times in row.kernels:
            found[kernel.name.removeprefix("aten::"), kernel.dtype] += times
    assert found == Counter(recorder.firsts)
    assert sum(found.values()) >= 6


def test_the_ops_of_a_transformer() -> None:
    """As its layers are written, and as the lists have them."""
    model, x, y = workload("transformer", "cpu")
    rows = lens.census(workloads.loss, model, x, y, policy=native("bfloat16")).rows
    assert [(row.op, row.layer, row.calls, row.dtype) for row in rows] == [
        ("embedding", "embedding", 1, "float32"),
        ("layer_norm", "blocks.0.norm1", 1, "float32"),
        ("linear", "blocks.0.attention", 2, "bfloat16"),
        ("scaled_dot_product_attention", "blocks.0.attention", 1, "bfloat16"),
        ("add", "blocks.0", 2, "float32"),
        ("layer_norm", "blocks.0.norm2", 1, "float32"),
        ("linear", "blocks.0.feed_forward.0", 1, "bfloat16"),
        ("gelu", "blocks.0.feed_forward.1", 1, "bfloat16"),
        ("linear", "blocks.0.feed_forward.2", 1, "bfloat16"),
        ("mean", "", 1, "float32"),
        ("layer_norm", "norm", 1, "float32"),
        ("linear", "head", 1, "bfloat16"),
        ("cross_entropy", "", 1, "float32"),
    ]
    assert sum(row.share for row in rows if row.share is not None) == pytest.approx(1)


M = torch.rand(4, 4) + 0.5
IMAGE = torch.rand(1, 2, 4, 4)
SPELLINGS: dict[str, tuple[Callable[[Tensor], Any], Tensor, list[str]]] = {
    "operators": (lambda x: (2 / x - 1) ** 2, M, ["reciprocal", "subtract", "pow"]),
    "in place": (lambda x: x.clone().add_(1).relu_(), M, ["add", "relu"]),
    "in place, by operator": (lambda x: _plus_one(x.clone()), M, ["add"]),
    "in place, by argument": (lambda x: F.relu(x.clone(), inplace=True), M, ["relu"]),
    "picked rows": (lambda x: x[torch.tensor([0, 0])], M, ["gather_nd"]),
    "a mask": (lambda x: _masked(x.clone()), M, ["greater", "index_put"]),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), IMAGE, ["interpolate_nearest"]),
    "bilinear": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        IMAGE,
        ["interpolate_bilinear"],
    ),
    "constant": (lambda x: F.pad(x, (1, 1)), IMAGE, ["pad"]),
    "reflected": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), IMAGE, ["reflection_pad"]),
    "a method of Python's": (lambda x: x.norm(), M, ["norm"]),
    "a function of functions": (lambda x: F.normalize(x), M, ["normalize"]),
    "without a name in the table": (torch.special.i0, M, ["torch:special_i0"]),
    "of several kernels": (lambda x: torch.cov(x), M, ["torch:cov"]),
    "dropout": (lambda x: F.dropout(x, 0.5), M, ["dropout"]),
    "no dropout": (lambda x: F.dropout(x, 0.5, training=False), M, []),
    "views": (lambda x: x.view(2, 8).T[0].unsqueeze(0).expand(3, 2), M, []),
    "copies and casts": (lambda x: x.contiguous().clone().half().float().detach(), M, []),
    "allocations": (lambda x: x.new_zeros(3) is torch.zeros_like(x) is torch.rand(2), M, []),
    "questions": (lambda x: (x.shape, x.size(0), x.is_cuda, x.requires_grad), M, []),
    "integers": (lambda x: torch.arange(4) * 2, M, []),
    "a packet": (torch.ops.aten.tanh, M, ["tanh"]),
    "an overload": (torch.ops.aten.tanh.default, M, ["tanh"]),
    "mapped": (torch.vmap(lambda row: torch.tanh(row)), M, ["tanh"]),
}


def _plus_one(x: Tensor) -> Tensor:
    x += 1
    return x


def _masked(x: Tensor) -> Tensor:
    x[x > 1] = 0.0
    return x


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_op_by_any_spelling(spelling: str) -> None:
    run, x, expected = SPELLINGS[spelling]
    assert observed(run, x)[0].ops == expected


@pytest.mark.parametrize(
    "changes, expected", [({}, "bfloat16"), ({"deny": ["greater"]}, "float32")]
)
def test_a_simulated_question_has_the_dtype_of_its_rule(
    changes: dict[str, Any], expected: str
) -> None:
    """Whose answer is no number, so that nothing is rounded."""
    policy = amp.Policy("O1", "bfloat16", execution="simulated", **changes)
    seen, _ = observed(lambda x: x > 1, M.bfloat16(), policy=policy)
    assert [(call.op, call.dtype) for call in seen.calls] == [("greater", expected)]


def test_what_is_mapped_has_the_values_of_the_whole() -> None:
    seen, _ = observed(torch.vmap(lambda row: torch.tanh(row).sum()), M)
    values = [BACKEND.to_numpy(outputs[0]) for outputs in seen.outputs]
    assert np.array_equal(values[0], np.asarray(M.tanh()))
    assert [x.shape for x in values] == [(4, 4), (4,)]


def test_torchscript_is_seen_kernel_by_kernel() -> None:
    with pytest.warns(DeprecationWarning, match="trace"):
        traced = torch.jit.trace(lambda x: torch.tanh(x) * 2, M)
    assert observed(traced, M)[0].ops == ["tanh", "multiply"]


def test_a_scripted_layer_counts_as_the_one_that_calls_it() -> None:
    with pytest.warns(DeprecationWarning, match="script"):
        scripted = torch.jit.script(nn.Sequential(nn.Tanh()))
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(scripted))
    seen, _ = observed(model, M, model=model)
    assert [(call.op, call.layer) for call in seen.calls] == [("linear", "0"), ("tanh", "1")]


def test_attention_shows_its_parts_and_as_one_op_where_it_is_cast_as_one() -> None:
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    x = torch.rand(1, 3, 4)
    parts = ["linear", "scaled_dot_product_attention", "linear"]

    def run(x: Tensor) -> Any:
        return layer(x, x, x, need_weights=False)

    for policy in (amp.Policy("O0"), native("bfloat16"), native("bfloat16", deny=["softmax"])):
        assert observed(run, x, policy=policy)[0].ops == parts
    policy = native("bfloat16", deny=["multi_head_attention"])
    seen, _ = observed(run, x, policy=policy)
    assert [(call.op, call.dtype) for call in seen.calls] == [("multi_head_attention", "float32")]


def test_a_region_inside_is_seen_from_above() -> None:
    """With nothing but ``torch.autocast`` outside, whose regions have no mode."""
    outside = amp.Policy("O1", "bfloat16", lists="native")
    inside = native("bfloat16", deny=["linear"])

    def run(x: Tensor) -> Any:
        with amp.autocast(inside, backend="torch"):
            return F.linear(x, x)

    seen, _ = observed(run, M.bfloat16(), policy=outside)
    assert [(call.op, call.dtype) for call in seen.calls] == [("linear", "float32")]
    assert {x.dtype for x in seen.inputs[0]} == {torch.bfloat16}


def test_inputs_are_shown_as_they_were_handed_over() -> None:
    x, y = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 4.0])
    seen, _ = observed(lambda: x.add_(y).mul_(x))
    assert [[v.tolist() for v in inputs] for inputs in seen.inputs] == [
        [[1, -2], [3, 4]], [[4, 2], [4, 2]],
    ]  # fmt: skip
    assert [outputs[0].tolist() for outputs in seen.outputs] == [[4, 2], [16, 4]]


def test_a_view_that_is_written_to() -> None:
    x = torch.ones(2, 2)
    seen, _ = observed(lambda: x[0].mul_(3))
    assert seen.inputs[0][0].tolist() == [1, 1]
    assert x.tolist() == [[3, 3], [1, 1]]


# -- layers


class Twice(nn.Module):
    """One layer under two names, called twice, and a nested one; functions of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.again = self.shared
        self.block = nn.Sequential(nn.Sequential(nn.Tanh()))
        self.failing = nn.Sequential(_Fails())

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.again(self.shared(x)))
        try:
            self.failing(x)
        except KeyError:
            return torch.sigmoid(x)
        raise AssertionError


class _Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError


def test_layers_by_their_first_names_also_after_an_exception() -> None:
    model = Twice()
    seen, _ = observed(lambda: torch.exp(model(M)), model=model)
    assert [(call.op, call.layer) for call in seen.calls] == [
        ("linear", "shared"), ("linear", "shared"), ("tanh", "block.0.0"), ("sigmoid", ""), ("exp", ""),
    ]  # fmt: skip


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_kept_layers_and_decorated_models(level: str, device: str) -> None:
    model, x, y = workload("transformer", device)
    policy = amp.Policy(level, "bfloat16", execution="native", keep=["blocks.0.feed_forward"])
    rows = lens.census(workloads.loss, model, x, y, policy=policy).rows
    kept = {
        (row.op, row.dtype, row.rule)
        for row in rows
        if row.layer.startswith("blocks.0.feed_forward")
    }
    assert kept == {("linear", "float32", "kept layer"), ("gelu", "float32", "kept layer")}
    assert ("linear", "head", "bfloat16") in {(row.op, row.layer, row.dtype) for row in rows}


class Meeting(nn.Module):
    """Calls back in the midst of its forward pass."""

    def __init__(self, midst: Callable[[], None]) -> None:
        super().__init__()
        self.midst = midst

    def forward(self, x: Tensor) -> Tensor:
        x = x.tanh()
        self.midst()
        return x


def test_another_thread_in_the_same_model_is_not_seen() -> None:
    inside, done = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        done.wait()

    model = nn.Sequential(Meeting(wait))

    def run() -> None:
        thread = threading.Thread(target=model, args=(M,))
        thread.start()
        inside.wait()
        torch.exp(M)
        done.set()
        thread.join()

    seen, _ = observed(run, model=model)
    assert [(call.op, call.layer) for call in seen.calls] == [("exp", "")]


# -- gradients: held against autograd


class Differentiated(NamedTuple):
    """``run(*inputs)``, differentiable in all of its inputs."""

    run: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    op: str


def _of(op: str, run: Callable[..., Tensor], *shapes: Sequence[int]) -> Differentiated:
    generator = torch.Generator().manual_seed(11)
    return Differentiated(run, tuple(torch.rand(s, generator=generator) + 0.5 for s in shapes), op)


LABELS = torch.tensor([0, 3, 1, 2])
GRADIENTS = {
    "linear": _of("linear", F.linear, (3, 4), (5, 4), (5,)),
    "linear of three dimensions": _of("linear", F.linear, (2, 3, 4), (5, 4), (5,)),
    "matmul": _of("matmul", torch.matmul, (3, 4), (4, 2)),
    "conv2d": _of("conv2d", F.conv2d, (2, 3, 6, 6), (4, 3, 3, 3), (4,)),
    "multiply": _of("multiply", torch.mul, (3, 4), (4,)),
    "divide": _of("divide", torch.div, (3, 4), (3, 4)),
    "add in place": _of("add", lambda x, y: (x * 1).add_(y), (3, 4), (3, 4)),
    "softmax": _of("softmax", lambda x: F.softmax(x, -1), (3, 4)),
    "layer_norm": _of("layer_norm", lambda x, w, b: F.layer_norm(x, (4,), w, b), (3, 4), (4,), (4,)),
    "attention": _of(
        "scaled_dot_product_attention", F.scaled_dot_product_attention, *[(1, 2, 3, 4)] * 3
    ),
    "cross_entropy": _of("cross_entropy", lambda x: F.cross_entropy(x, LABELS), (4, 4)),
    "concat": _of("concat", lambda x, y: torch.cat([x, y]), (2, 3), (4, 3)),
    "embedding": _of("embedding", lambda w: F.embedding(LABELS[[0, 0, 1]], w), (4, 3)),
    "batch_norm": _of(
        "batch_norm",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        (4, 3), (3,), (3,),
    ),
    "einsum": _of("einsum", lambda x, y: torch.einsum("ij,jk->ik", x, y), (3, 4), (4, 2)),
    "normalize": _of("normalize", F.normalize, (3, 4)),
    "a sum of parts": _of("torch:cov", torch.cov, (3, 4)),
}  # fmt: skip
REGIONS = [
    amp.Policy("O0"),
    native("bfloat16"),
    amp.Policy("O1", "bfloat16", execution="simulated"),
]


@pytest.mark.parametrize("policy", REGIONS, ids=repr)
@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients_are_autograd_s(case: str, policy: amp.Policy) -> None:
    """Of leaves, and of what was computed from them, which autocast does not remember the casts of."""
    run, values, op = GRADIENTS[case]
    for computed in (False, True):
        leaves = [x.clone().requires_grad_() for x in values]

        def handed(leaves: Sequence[Tensor] = leaves, computed: bool = computed) -> list[Tensor]:
            return [leaf * 1 for leaf in leaves] if computed else list(leaves)

        plain_inputs = handed()
        with amp.autocast(policy, backend="torch"):
            plain = run(*plain_inputs)
        weight = torch.rand(plain.shape).to(plain.dtype)
        expected = torch.autograd.grad(plain, [plain, *plain_inputs], weight)
        seen, result = observed(run, *handed(), policy=policy)
        result.backward(weight)
        gradients = [g for g in seen.gradients if g.op == op]
        assert [(g.side, g.place) for g in gradients] == [
            ("arrived", 0), *(("left", place) for place in range(len(values))),
        ]  # fmt: skip
        for gradient, wanted in zip(gradients, expected, strict=True):
            assert torch.equal(gradient.values, wanted), (gradient, wanted)


def test_an_array_that_is_handed_over_twice() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    seen, result = observed(lambda: torch.addcmul(x, x * 1, x))
    result.sum().backward()
    assert {place: values.tolist() for place, values in seen.left("addcmul").items()} == {
        0: [1, 1], 1: [1, 2], 2: [1, 2],
    }  # fmt: skip


@pytest.mark.parametrize("execution", ["native", "simulated"])
def test_the_part_of_each_use_of_a_weight(execution: str) -> None:
    """Whose cast to low precision is one for both: autograd adds the parts before it is undone."""
    policy = amp.Policy("O1", "float16", execution=execution)
    weight = nn.Parameter(torch.rand(3, 4))
    first, second = torch.rand(2, 4), 100 * torch.rand(5, 4)

    def run(one: nn.Parameter, other: nn.Parameter) -> Tensor:
        return F.linear(first, one).sum() + F.linear(second, other).sum()

    alone = [nn.Parameter(weight.detach().clone()) for _ in range(2)]
    with amp.autocast(policy, backend="torch"):
        expected = torch.autograd.grad(run(*alone), alone)
    seen, result = observed(run, weight, weight, policy=policy)
    result.backward()
    left = [g.values for g in seen.gradients if (g.op, g.side, g.place) == ("linear", "left", 1)]
    assert [values.dtype for values in left] == [torch.float32] * 2
    assert torch.equal(left[1], expected[0])  # the last use comes first
    assert torch.equal(left[0], expected[1])


def test_the_parts_of_a_parameter_add_up_to_its_gradient() -> None:
    model = nn.Linear(4, 4)
    seen, result = observed(lambda: model(model(M)).square().sum(), model=model)
    result.backward()
    for place, parameter in ((1, model.weight), (2, model.bias)):
        parts = [g.values for g in seen.gradients if g.op == "linear" and g.side == "left"
                 and g.place == place]  # fmt: skip
        assert len(parts) == 2
        assert torch.equal(parts[0] + parts[1], parameter.grad)


@kinds
@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_gradients_that_leave_for_parameters_are_theirs(kind: str, level: str) -> None:
    """Each is used once in these models."""
    model, x, y = workload(kind, "cpu")
    seen = Seen()
    passed = Subject(workloads.loss, model).run((x, y), amp.Policy.parse(level), 2.0**8, seen)
    left = [g.values.float() for g in seen.gradients if g.side == "left"]
    for name, gradient in passed.gradients.items():
        of_its_shape = [v.numpy() for v in left if tuple(v.shape) == gradient.shape]
        assert any(np.array_equal(values, gradient) for values in of_its_shape), name


@pytest.mark.parametrize("execution", ["native", "simulated"])
def test_an_overflow_in_the_backward_pass_begins_where_it_leaves(execution: str) -> None:
    x = torch.full((4,), 1e-3, dtype=torch.float16, requires_grad=True)
    policy = amp.Policy("O1", "float16", execution=execution)
    seen, result = observed(lambda: torch.sqrt(x * 1) * 1.0, policy=policy)
    result.backward(torch.full((4,), 6e4, dtype=torch.float16))
    finite = [(g.op, g.side, bool(g.values.isfinite().all())) for g in seen.gradients]
    assert finite == [
        ("multiply", "arrived", True), ("multiply", "left", True), ("sqrt", "arrived", True),
        ("sqrt", "left", False), ("multiply", "arrived", False), ("multiply", "left", False),
    ]  # fmt: skip


def test_arrivals_at_all_outputs_come_before_what_leaves() -> None:
    layer = nn.LSTMCell(4, 4)
    seen, (h, c) = observed(lambda: layer(M), model=layer)
    (h.sum() + 3 * c.sum()).backward()
    of_cell = [(g.side, g.place) for g in seen.gradients if g.op == "lstm_cell"]
    assert of_cell == [("arrived", 0), ("arrived", 1), *(("left", place) for place in range(3, 7))]
    for place, parameter in zip(range(3, 7), layer.parameters(), strict=True):
        assert torch.equal(seen.left("lstm_cell")[place], parameter.grad)


def test_outputs_of_one_node_have_their_own_gradients() -> None:
    x = M.clone().requires_grad_()
    seen, (variance, mean) = observed(torch.var_mean, x)
    (3 * variance + 5 * mean).backward()
    arrived = [(g.place, g.values.item()) for g in seen.gradients if g.side == "arrived"]
    assert sorted(arrived) == [(0, 3), (1, 5)]
    assert torch.equal(seen.left("torch:var_mean")[0], x.grad)


def test_what_has_no_history_of_its_own_has_no_gradients() -> None:
    x = torch.ones(2, requires_grad=True)

    def run() -> Tensor:
        y = x * 2
        with torch.no_grad():
            y.add_(1)
        return y

    seen, result = observed(run)
    result.sum().backward()
    assert seen.ops == ["multiply", "add"]
    assert {g.op for g in seen.gradients} == {"multiply"}


def test_an_output_that_nothing_depends_on() -> None:
    layer = nn.LSTMCell(4, 4)
    seen, (h, _) = observed(lambda: layer(M), model=layer)
    h.sum().backward()
    assert [g.place for g in seen.gradients if g.side == "left"] == [3, 4, 5, 6]


def test_gradients_taken_in_the_forward_pass_are_not_those_of_the_backward_pass() -> None:
    x = torch.ones(2, requires_grad=True)

    def penalty() -> Tensor:
        y = x**3
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return gradient.sum() + y.sum()

    seen, result = observed(penalty)
    assert seen.gradients == []
    assert "torch:grad" not in seen.ops
    result.backward()
    arrived = [g for g in seen.gradients if (g.op, g.side) == ("pow", "arrived")]
    assert [g.values.tolist() for g in arrived] == [[1, 1]]
    assert x.grad.tolist() == [9, 9]  # 6 x + 3 x**2


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_not_seen_as_ops(reentrant: bool) -> None:
    model = nn.Linear(4, 4)
    x = M.clone().requires_grad_()
    policy = native("bfloat16")

    def run() -> Tensor:
        return checkpoint(lambda z: model(z).softmax(-1), x, use_reentrant=reentrant).square().sum()

    seen, result = observed(run, policy=policy, model=model)
    assert seen.ops == ["linear", "softmax", "square", "sum"]
    result.backward()
    assert seen.ops == ["linear", "softmax", "square", "sum"]
    found = model.weight.grad.clone()
    model.zero_grad()
    with amp.autocast(policy, backend="torch"):
        plain = run()
    plain.backward()
    assert torch.equal(found, model.weight.grad)
    if not reentrant:  # whose forward pass has no history
        assert torch.equal(seen.left("linear")[1], found)


# -- functions with a backward of the user's own


class Affine(torch.autograd.Function):
    """``a * n + b`` and ``b``, by kernels; its gradients are what they are."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, n: int, b: Tensor) -> tuple[Tensor, Tensor]:
        ctx.n = n
        return a * n + b, b.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, None, Tensor]:
        return g * ctx.n, None, g.sum(0) + h


class Steep(torch.autograd.Function):
    """The identity, with a gradient 1e6 times as large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 1e6


bound_before = Affine.apply


@pytest.mark.parametrize("apply", [lambda *args: Affine.apply(*args), bound_before])
def test_a_function_of_the_user_s_is_one_op(apply: Callable[..., Any]) -> None:
    x, b = M.clone().requires_grad_(), torch.ones(4, requires_grad=True)
    seen, (first, second) = observed(apply, x, 3, b)
    assert (seen.ops, len(seen.inputs[0])) == (["torch:Affine"], 2)
    assert [kernel.name for kernel in seen.calls[0].kernels] == ["aten::mul", "aten::add"]
    (first.sum() + 2 * second.sum()).backward()
    assert [(g.side, g.place) for g in seen.gradients] == [
        ("arrived", 0), ("arrived", 1), ("left", 0), ("left", 1),
    ]  # fmt: skip
    assert torch.equal(seen.gradients[2].values, torch.full((4, 4), 3.0))
    assert torch.equal(seen.gradients[3].values, torch.full((4,), 6.0))


def test_a_gradient_that_overflows_in_the_user_s_own_backward_is_located() -> None:
    model = nn.Sequential(nn.Linear(4, 4))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return Steep.apply(model(x).half()).float().sum()

    found = lens.locate(loss, model, M, policy=native("float16"), scale=1.0)
    assert (found.op, found.direction, found.kind) == ("torch:Steep", "backward", "overflow")


# -- nothing is changed by it


class Mixed(nn.Module):
    """Shared weights, noise, writing in place, views that are written to, a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.linear = nn.Linear(16, 16)
        self.drop = nn.Dropout(0.3)
        self.rnn = nn.GRU(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu_().flatten(2)
        x = self.drop(self.linear(self.linear(x)))
        x = x + 1
        x[0].mul_(2)
        x = x * x.sigmoid() + torch.where(x > 1, x, 0.5 * x)
        return self.rnn(x)[0].logsumexp(-1)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_no_bit_is_changed(policy: amp.Policy) -> None:
    torch.manual_seed(2)
    model, x = Mixed(), torch.rand(3, 1, 6, 6)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return model(x).float().sum()

    subject, seen = Subject(loss, model), Seen()
    plain = subject.run((x,), policy, 64.0)
    watched = subject.run((x,), policy, 64.0, seen)
    assert seen.gradients
    assert plain.loss == watched.loss
    for name, gradient in plain.gradients.items():
        np.testing.assert_array_equal(gradient, watched.gradients[name], err_msg=name)


def _modes() -> tuple[int, int, str]:
    return (
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch._dynamo.eval_frame._stance.stance,
    )


def _hooks(model: nn.Module) -> list[Any]:
    return [
        vars(module)[name] for module in model.modules() for name in vars(module) if "hook" in name
    ]


def test_an_exception_leaves_nothing_behind() -> None:
    before = _modes()
    model = nn.Sequential(nn.Linear(4, 4))

    def failing() -> None:
        model(torch.rand(2, 5))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        observed(failing, policy=native("bfloat16"), model=model)
    assert _modes() == before
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction)
    assert not any(_hooks(model))
    seen, _ = observed(lambda: torch.exp(model(M)), model=model)
    assert [call.layer for call in seen.calls] == ["0", ""]


def test_what_was_compiled_runs_eagerly_inside_and_compiled_again_afterwards() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: torch.tanh(x) * 2, backend=backend)
    layer = torch.compile(nn.Linear(4, 4), backend=backend)
    seen, _ = observed(lambda: compiled(layer(M)), model=layer)
    assert seen.ops == ["linear", "tanh", "multiply"]
    assert [call.layer for call in seen.calls] == ["", "", ""]
    assert graphs == []
    layer(M)
    compiled(M)
    assert len(graphs) == 2
    assert observed(lambda: compiled(layer(M)), model=layer)[0].ops == seen.ops


# -- ranges: held against NumPy on tensors that torch's own hooks show


ONE_OP = (nn.Linear, nn.GELU, nn.LayerNorm, nn.Conv2d, nn.BatchNorm2d, nn.Embedding)


def dumped(kind: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], nn.Module]:
    """Outputs of the layers that are one op, their gradients, and the model after a plain pass."""
    model, x, y = workload(kind, "cpu")
    outputs: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, ONE_OP):

            def keep(_: nn.Module, __: Any, output: Tensor, name: str = name) -> None:
                output.retain_grad()
                outputs[name] = output

            module.register_forward_hook(keep)
    workloads.loss(model, x, y).backward()
    return (
        {name: output.detach().numpy() for name, output in outputs.items()},
        {name: output.grad.numpy() for name, output in outputs.items()},
        model,
    )


def assert_as_numpy_has_it(found: lens.Exponents, values: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        low = values.astype(np.float16)
    magnitude, total = np.abs(values).astype(np.float64), values.size
    assert found.total == total
    assert found.largest == magnitude.max()
    assert found.overflowing == np.isinf(low).sum() / total
    assert found.flushed == ((low == 0) & (values != 0)).sum() / total
    assert found.subnormal == ((low != 0) & (magnitude < 2.0**-14)).sum() / total
    assert found.headroom is not None
    with np.errstate(over="ignore"):
        fits, bursts = (magnitude.max() * 2.0 ** (found.headroom + n) for n in (0, 1))
        assert np.isfinite(np.float16(fits))
        assert np.isinf(np.float16(bursts))


@kinds
@pytest.mark.parametrize("scale", [1.0, 2.0**16, 2.0**24])
def test_ranges_are_numpy_s_of_dumped_tensors(kind: str, scale: float) -> None:
    outputs, gradients, after = dumped(kind)
    model, x, y = workload(kind, "cpu")
    found = lens.ranges(workloads.loss, model, x, y, scale=scale)
    rows = {(row.kind, row.layer): row.values for row in found.rows if row.kind != "parameter"}
    assert len(outputs) >= 5
    for name, values in outputs.items():
        assert_as_numpy_has_it(rows["output", name], values)
        assert_as_numpy_has_it(rows["gradient", name], gradients[name] * np.float32(scale))
    of_parameters = {row.name: row.values for row in found.rows if row.kind == "parameter"}
    for name, parameter in after.named_parameters():
        assert_as_numpy_has_it(of_parameters[name], parameter.grad.numpy() * np.float32(scale))


@kinds
@pytest.mark.parametrize("execution", ["native", "simulated"])
def test_the_safe_scale_trains_and_twice_it_overflows(kind: str, execution: str) -> None:
    model, x, y = workload(kind, "cpu")
    policy = amp.Policy("O1", "float16", execution=execution)
    safe = lens.ranges(workloads.loss, model, x, y, policy=policy).safe_scale
    assert safe is not None
    for scale, is_finite in ((safe, True), (2 * safe, False)):
        scaler = amp.GradScaler(scale, max_scale=2.0**40)
        _, grads = amp.value_and_grad(workloads.loss, model, x, y, policy=policy, scaler=scaler)
        assert all(bool(g.isfinite().all()) for g in grads) is is_finite


# -- values and memory


def test_values_of_tensors_with_a_history_and_of_sparse_ones() -> None:
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    assert BACKEND.to_numpy(x * 2).tolist() == [2, 0]
    assert BACKEND.to_numpy(x.detach().to_sparse()).tolist() == [1, 0]


def test_peak_memory_of_known_allocations(device: str) -> None:
    if device == "cuda":
        pytest.skip("CUDA's allocator rounds; see the next test")
    held = [torch.ones(2**20)]

    def four_megabytes() -> None:
        held.clear()  # what was held before is none of it
        one = torch.ones(2**18)
        two = one + one
        del one
        four = torch.ones(2**19)
        del two
        torch.mul(four, 2)

    assert BACKEND.peak_memory(four_megabytes) == 2**22


def test_peak_memory_is_what_the_profiler_says_of_the_allocator() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)) for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.rand(32, 64)

    def step() -> None:
        with amp.autocast(native("bfloat16"), backend="torch"):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    peak = BACKEND.peak_memory(step)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    events = profile.profiler.kineto_results.events()
    allocated = np.cumsum([e.nbytes() for e in events if e.name() == "[memory]"])
    assert peak == pytest.approx(allocated.max(), rel=1e-3)
