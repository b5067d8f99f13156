"""torch.compile: the region outside and inside of the compiled function, and no stale graph."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import traced_graphs
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint

import ampbridge as amp
from ampbridge.errors import UnsupportedError
from ampbridge_torch import _private
from ampbridge_torch.model import rounding
from ampbridge_torch.step import compiling

BF16, F32 = torch.bfloat16, torch.float32
NATIVE = amp.Policy("O1", "bfloat16", execution="native")
POLICIES = [
    NATIVE,
    NATIVE.replace(deny=["linear"]),
    NATIVE.replace(allow=["softmax"]),
    NATIVE.replace(lists="native"),
    NATIVE.replace(lists="tensorflow"),
    NATIVE.replace(lists="paddle"),
    amp.Policy("O0"),
]
SIMULATED = NATIVE.replace(execution="simulated")


@pytest.fixture
def keeps_roundings() -> Iterator[None]:
    """What a user is advised to set for simulated functions."""
    config = importlib.import_module("torch._inductor.config")
    with config.patch(emulate_precision_casts=True), warnings.catch_warnings():
        if torch.__version__ < "2.13":  # which does not follow it on the CPU
            warnings.filterwarnings("ignore", "torch.compile leaves out roundings")
        yield


@pytest.fixture
def x(device: str) -> torch.Tensor:
    return torch.rand(4, 4, device=device)


def mixture(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = F.linear(x, x)
    return h, h.softmax(-1), h * 2, (2 - h) ** 2, h.unflatten(0, (2, 2)).sum()


class Counter:
    """A backend that runs the graph as it is and counts the graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, _: Any) -> Any:
        self.graphs += 1
        return graph


@pytest.mark.usefixtures("keeps_roundings")
@pytest.mark.slow
def test_policies_take_turns_and_no_graph_is_reused_for_another(x: torch.Tensor) -> None:
    policies = [*POLICIES, SIMULATED] if x.is_cpu else POLICIES
    counter = Counter()
    compiled = torch.compile(mixture, fullgraph=True, backend=counter)
    for _ in range(3):
        for policy in policies:
            with amp.autocast(policy, backend="torch"):
                expected, found = mixture(x), compiled(x)
            assert [t.dtype for t in found] == [t.dtype for t in expected], policy
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert counter.graphs <= len(policies)


def test_an_equal_policy_reuses_the_graph(x: torch.Tensor) -> None:
    counter = Counter()
    compiled = torch.compile(mixture, fullgraph=True, backend=counter)
    for _ in range(5):
        with amp.autocast(NATIVE.replace(deny=["linear"]), backend="torch"):
            compiled(x)
    assert counter.graphs == 1


@pytest.mark.usefixtures("keeps_roundings")
@pytest.mark.parametrize(
    "policy", [*POLICIES, SIMULATED, "O1:bfloat16", "bf16-mixed", "O0"], ids=repr
)
@pytest.mark.slow
def test_a_region_inside_of_the_compiled_function(
    policy: amp.Policy | str, x: torch.Tensor
) -> None:
    if policy is SIMULATED:
        x = x.cpu()  # alone

    def inside(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with amp.autocast(policy, backend="torch"):
            return mixture(x)

    expected, found = inside(x), torch.compile(inside, fullgraph=True, backend="eager")(x)
    assert [t.dtype for t in found] == [t.dtype for t in expected]


@pytest.mark.usefixtures("keeps_roundings")
@pytest.mark.parametrize("execution", ["native", "simulated"])
@pytest.mark.slow
def test_nested_regions_inside_of_the_compiled_function(x: torch.Tensor, execution: str) -> None:
    if execution == "simulated" and not x.is_cpu:
        pytest.skip("simulation is of the CPU")
    outer = NATIVE.replace(execution=execution)
    deny_linear = outer.replace(deny=["linear"])

    def nested(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with amp.autocast(outer, backend="torch"):
            a = F.linear(x, x)
            with amp.autocast("O0", backend="torch"):
                b = F.linear(a, a) + a
            with amp.autocast(deny_linear, backend="torch"):
                c = F.linear(a, a)
                d = c @ c
            return a, b, c, d, F.linear(x, x)

    found = torch.compile(nested, fullgraph=True, backend="eager")(x)
    assert [t.dtype for t in found] == [t.dtype for t in nested(x)] == [BF16, F32, F32, BF16, BF16]


@pytest.mark.parametrize(
    "policy",
    [
        NATIVE.replace(deny=["linear"]),
        pytest.param(NATIVE, marks=pytest.mark.slow),
        pytest.param(SIMULATED, marks=pytest.mark.slow),
    ],
    ids=repr,
)
@pytest.mark.usefixtures("keeps_roundings")
def test_a_region_that_is_made_once(policy: amp.Policy) -> None:
    region, x = amp.autocast(policy, backend="torch"), torch.ones(4, 4)

    def again(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inner = amp.autocast(policy, backend="torch")
        with inner:
            a = x @ x
        with inner, inner:
            return a, F.linear(x, x), mixture(x)[0]

    def outside(x: torch.Tensor) -> tuple[torch.Tensor, ...]:  # a break of the graph
        with region:
            return mixture(x)

    for function, whole in ((region(mixture), True), (again, True), (outside, False)):
        counter = Counter()
        compiled = torch.compile(function, fullgraph=whole, backend=counter)
        for _ in range(2):
            assert [t.dtype for t in compiled(x)] == [t.dtype for t in function(x)]
        assert counter.graphs == 1
    assert (x @ x).dtype is F32


policy_of_the_module = NATIVE


def test_another_policy_under_the_same_name_is_noticed(
    x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        with amp.autocast(policy_of_the_module, backend="torch"):
            return F.linear(x, x)

    compiled = torch.compile(inside, fullgraph=True, backend="eager")
    assert compiled(x).dtype is BF16
    monkeypatch.setitem(globals(), "policy_of_the_module", POLICIES[1])
    assert compiled(x).dtype is F32


def test_a_policy_made_inside_of_the_compiled_function_is_refused(x: torch.Tensor) -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        with amp.autocast(amp.Policy("O1", "bfloat16"), backend="torch"):
            return F.linear(x, x)

    with pytest.raises(Exception, match="Hint: make it outside") as error:
        torch.compile(inside, fullgraph=True, backend="eager")(x)
    assert UnsupportedError.__name__ in str(error.value)


def losses(
    model: nn.Module, policy: amp.Policy | str, compiled: bool, data: tuple[torch.Tensor, ...]
) -> tuple[list[float], list[torch.Tensor]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = amp.train_step(
        lambda model, x, y: F.cross_entropy(model(x), y),
        model,
        optimizer,
        policy=policy,
        compile=compiled,
        scaler=None,
    )
    return [step(*data).loss for _ in range(3)], [p.detach().clone() for p in model.parameters()]


def relative_error(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    difference = sum(
        (a.double() - b.double()).square().sum() for a, b in zip(found, exact, strict=True)
    )
    return float((difference / sum(b.double().square().sum() for b in exact)).sqrt())


inductor = pytest.mark.skipif(
    torch.cuda.is_available() and find_spec("triton") is None, reason="on CUDA it needs Triton"
)


@inductor
@pytest.mark.parametrize("policy", POLICIES[:4], ids=repr)
@pytest.mark.slow
def test_a_compiled_training_step_is_the_eager_one(policy: amp.Policy, device: str) -> None:
    """With Inductor; it fuses, so up to its rounding. Denied ops' gradients are float32, too."""
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 3))
    model.to(device)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    data = torch.randn(6, 8, device=device), torch.tensor([0, 1, 2, 0, 1, 2], device=device)
    eager, eager_parameters = losses(model, policy, False, data)
    model.load_state_dict(start)
    compiled, compiled_parameters = losses(model, policy, True, data)
    exact = policy.lists == "torch" and "linear" in policy.deny
    assert compiled == pytest.approx(eager, rel=1e-6 if exact else 1e-2)
    assert relative_error(compiled_parameters, eager_parameters) < (1e-6 if exact else 5e-3)


@pytest.mark.slow
@inductor
def test_the_setting_for_backward_passes_does_not_leak(device: str) -> None:
    config = pytest.importorskip("torch._functorch.config")
    if not hasattr(config, "backward_pass_autocast"):
        pytest.skip("this torch has no such setting")
    before = config.backward_pass_autocast
    model = nn.Linear(4, 2).to(device)
    data = torch.randn(3, 4, device=device), torch.tensor([0, 1, 0], device=device)
    losses(model, POLICIES[1], True, data)
    assert config.backward_pass_autocast == before


def test_compiling_under_lists_by_hand_warns_of_the_backward_pass(device: str) -> None:
    """Ours sets it; a user's own torch.compile computes denied ops' gradients in low precision."""
    weight = torch.rand(4, 4, device=device, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with amp.autocast(POLICIES[1], backend="torch"):
            torch.compile(lambda w: F.linear(w, w).sum(), backend="aot_eager")(weight)
    messages = [str(w.message) for w in caught if issubclass(w.category, amp.AmpBridgeWarning)]
    assert messages
    assert all("backward_pass_autocast = 'off'" in message for message in messages)


# -- whole steps


class Squared(torch.autograd.Function):
    """As a user writes one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Embedded(nn.Module):
    """Its embedding has sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words((x[:, 0] * 19).long()))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.BatchNorm1d(16), nn.Linear(16, 4))


def without_statistics() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def partly_frozen() -> nn.Module:
    model = mlp()
    model[0].weight.requires_grad_(False)
    model.unused = nn.Parameter(torch.ones(3))
    return model


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    return model


def hooked() -> nn.Module:
    """One parameter's gradient is zero, by a hook that a graph would leave out."""

    def without_gradient(weight: torch.Tensor) -> None:
        weight.grad.zero_()

    model = mlp()
    model[0].weight.register_post_accumulate_grad_hook(without_gradient)
    return model


class Recurrent(nn.Module):
    """Dynamo breaks its graph at an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x[:, None])[0][:, -1])


def with_a_hook_of_a_layer() -> nn.Module:
    """As profilers have: it looks at gradients."""
    model = mlp()
    model[3].register_full_backward_hook(lambda layer, inputs, outputs: (inputs[0],))
    return model


def plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def broken_in_two(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logits = model(x)
    torch._dynamo.graph_break()
    return F.cross_entropy(logits, y)


def recomputed(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(checkpoint(model, x, use_reentrant=False), y)


def with_a_function(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(Squared.apply(model(x)), y)


def with_a_gradient_penalty(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    logits = model(x)
    (gradient,) = torch.autograd.grad(logits.float().sum(), x, create_graph=True)
    return F.cross_entropy(logits, y) + gradient.pow(2).mean()


def with_aux(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, Any]:
    logits = model(x)
    return F.cross_entropy(logits, y), {"logits": [logits], "count": 3}


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


WHOLE: dict[str, tuple[Any, Any, Any]] = {
    "AdamW": (mlp, plain, torch.optim.AdamW),
    "SGD": (mlp, plain, sgd),
    "momentum": (mlp, plain, momentum),
    "RMSprop": (mlp, plain, torch.optim.RMSprop),
    "aux": (mlp, with_aux, sgd),
    "tied": (tied, plain, sgd),
    "frozen and unused": (partly_frozen, plain, sgd),
    "a custom function": (mlp, with_a_function, sgd),
}
LOSS_ALONE: dict[str, tuple[Any, Any, Any]] = {
    "an LSTM": (Recurrent, plain, sgd),
    "a layer's hook": (with_a_hook_of_a_layer, plain, sgd),
    "a hook": (hooked, plain, sgd),
    "sparse gradients": (Embedded, plain, sgd),
    "a graph break": (mlp, broken_in_two, sgd),
    "a checkpoint": (without_statistics, recomputed, sgd),
    "a checkpoint with statistics": (mlp, recomputed, sgd),
    "a gradient penalty": (mlp, with_a_gradient_penalty, sgd),
}


@pytest.fixture
def graphs_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fused; what is left is AdamW's bias correction, which a graph has in float32."""
    monkeypatch.setattr(_private, "inductor", lambda graph, inputs, keeps_roundings: graph)


def trained(case: tuple[Any, Any, Any], device: str, compiled: bool, **settings: Any) -> Any:
    """Weights, buffers and losses after some steps."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, loss_fn, optimizer = case
    model, x = make().to(device), torch.rand(16, 8, generator=torch.Generator().manual_seed(1))
    step = amp.train_step(
        loss_fn,
        model,
        optimizer(model.parameters()),
        **{"policy": NATIVE, "compile": compiled, **settings},
    )
    batch = x.to(device), (x[:, 0] * 3.99).long().to(device)
    losses = [torch.tensor(step(*batch).loss) for _ in range(6)]
    return [*model.state_dict().values(), *losses]


def _has_low_lstm() -> bool:
    """Whether oneDNN has a kernel for it here: on a CPU without AVX512 it has none."""
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            nn.LSTM(8, 16, batch_first=True)(torch.ones(16, 1, 8))
    except RuntimeError:
        return False
    return True


# Dynamo's own, at what it reads while it traces.
BY_DYNAMO = ("ignore:.*should not be instantiated", "ignore:The .grad attribute of a Tensor")


@pytest.mark.filterwarnings(*BY_DYNAMO)
@pytest.mark.usefixtures("graphs_as_they_are")
@pytest.mark.parametrize("name", [*WHOLE, *LOSS_ALONE])
def test_a_compiled_step_trains_as_the_eager_one(name: str, device: str) -> None:
    case = {**WHOLE, **LOSS_ALONE}[name]
    if name == "an LSTM" and device == "cpu" and not _has_low_lstm():
        pytest.skip("torch has no bfloat16 LSTM on this CPU")
    if name == "a checkpoint with statistics" and device != "cpu":
        # On a CPU the mode of the lists keeps it out of a whole graph.
        pytest.skip(
            "in a graph, torch updates a checkpoint's statistics once, and twice in eager code"
        )
    pairs = zip(trained(case, device, True), trained(case, device, False), strict=True)
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings(*BY_DYNAMO)
@pytest.mark.usefixtures("graphs_as_they_are")
@pytest.mark.parametrize("name", ["AdamW", "aux", "a custom function"])
def test_forward_and_backward_pass_are_one_graph(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a backward pass outside of the graph")

    monkeypatch.setattr(torch.Tensor, "backward", refused)
    monkeypatch.setattr(_private, "inductor", whole_graph)
    trained(WHOLE[name], device, True)


@pytest.mark.usefixtures("graphs_as_they_are")
@pytest.mark.parametrize(
    "choice",
    [
        {"masters": "kahan"},
        {"masters": "stochastic", "slots": "bfloat16"},
        {"masters": None, "slots": "bfloat16"},
    ],
    ids=str,
)
def test_a_compiled_step_rounds_masters_and_slots_as_the_eager_one(
    choice: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradients are one graph; the update is eager, in chunks."""
    policy = NATIVE.replace(level="O2", **choice)
    monkeypatch.setattr(rounding, "CHUNK", 1)
    eager = trained(WHOLE["AdamW"], device, False, policy=policy)
    monkeypatch.setattr(compiling, "_compiled_loss", lambda loss_fn: None)
    chunks, step = [], _private.step_without_hooks
    monkeypatch.setattr(
        _private, "step_without_hooks", lambda stepping: chunks.append(step(stepping))
    )
    compiled = trained(WHOLE["AdamW"], device, True, policy=policy)
    assert all(torch.equal(*pair) for pair in zip(compiled, eager, strict=True))
    assert len(chunks) > 6


@pytest.mark.filterwarnings(*BY_DYNAMO)
@pytest.mark.usefixtures("graphs_as_they_are")
def test_a_step_whose_graph_breaks_is_tried_as_a_whole_once(device: str) -> None:
    traced: list[None] = []

    @torch.compiler.assume_constant_result
    def note() -> None:
        traced.append(None)

    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        note()
        return broken_in_two(model, x, y)

    trained((mlp, loss, sgd), device, True)
    assert len(traced) < 6  # steps: as a whole, and its first part by itself


@pytest.mark.usefixtures("graphs_as_they_are")
def test_steps_of_more_kinds_than_dynamo_keeps_graphs_of(device: str) -> None:
    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor, kind: str) -> torch.Tensor:
        return plain(model, x, y) * len(kind)

    torch._dynamo.reset()
    x, y = torch.rand(16, 8, device=device), torch.arange(16, device=device) % 4
    with torch._dynamo.config.patch(recompile_limit=2):
        weights = []
        for compiled in (True, False):
            torch.manual_seed(0)
            model = mlp().to(device)
            step = amp.train_step(
                loss, model, sgd(model.parameters()), policy=NATIVE, compile=compiled
            )
            for kind in ("a", "ab", "abc", "abcd", "a", "abcd"):
                step(x, y, kind)
            weights.append(list(model.state_dict().values()))
    for found, expected in zip(*weights, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("graphs_as_they_are")
@pytest.mark.slow
def test_a_torch_that_traces_no_gradients_compiles_the_loss(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    name = _private.Name("torch._dynamo.config.not_there", "compile=True, a whole step", False)
    monkeypatch.setitem(_private.NAMES, "trace_autograd_ops", name)
    runs = [trained((mlp, plain, sgd), device, compiled) for compiled in (True, False)]
    for found, expected in zip(*runs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def whole_graph(graph: Any, inputs: Any, keeps_roundings: bool) -> Any:
    assert "cross_entropy" not in graph.code or "torch.autograd.grad" in graph.code
    return graph


@pytest.mark.usefixtures("graphs_as_they_are")
@pytest.mark.parametrize(
    "settings",
    [
        {"scaler": amp.GradScaler(2.0**10, growth_interval=2)},
        {"clip_norm": 0.1, "accumulate": 2},
    ],
    ids=["scaler", "accumulate"],
)
def test_settings_of_a_compiled_step(settings: Any, device: str) -> None:
    case = mlp, plain, torch.optim.AdamW
    runs = [trained(case, device, c, **copy.deepcopy(settings)) for c in (True, False)]
    for found, expected in zip(*runs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("graphs_as_they_are")
def test_a_schedule_of_learning_rates_is_not_compiled_each_step(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    graphs = []
    monkeypatch.setattr(_private, "inductor", lambda graph, *_: graphs.append(graph) or graph)
    model = mlp().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    step = amp.train_step(plain, model, optimizer, policy=NATIVE, scheduler=scheduler, compile=True)
    torch._dynamo.reset()
    x = torch.rand(16, 8, device=device)
    for _ in range(12):
        step(x, torch.zeros(16, dtype=torch.int64, device=device))
    assert len(graphs) <= 4


@pytest.mark.parametrize("waiting", ["pre_hook", "post_hook", "global_hook", "patched"])
def test_who_waits_for_an_update_hears_of_each(
    waiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph of an update has no hooks, and no function that somebody has put around it."""
    monkeypatch.setattr(_private, "inductor", traced_graphs.aot_eager)
    heard, model = [], mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    with ExitStack() as stack:
        hear = lambda *_: heard.append(1)  # noqa: E731
        match waiting:
            case "pre_hook":
                optimizer.register_step_pre_hook(hear)
            case "post_hook":
                optimizer.register_step_post_hook(hear)
            case "global_hook":
                handle = register_optimizer_step_post_hook(hear)
                stack.callback(handle.remove)
            case _:
                inner = optimizer.step
                monkeypatch.setattr(optimizer, "step", lambda: (hear(), inner()))
        step = amp.train_step(plain, model, optimizer, policy=NATIVE, compile=True)
        for _ in range(4):
            step(torch.rand(16, 8), torch.zeros(16, dtype=torch.int64))
    assert len(heard) == 4


@pytest.mark.parametrize("policy", ["O0", NATIVE.replace(level="O2", masters=None)], ids=str)
def test_the_update_is_a_graph_beside_the_masters_of_another_model(
    policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hooks that are called before all steps while there are masters, and before None's, are ours."""
    graphs = []
    monkeypatch.setattr(_private, "inductor", lambda graph, *_: graphs.append(graph) or graph)
    other, model = mlp(), mlp()
    amp.decorate(other, torch.optim.AdamW(other.parameters()), "O2:bfloat16")
    optimizer = torch.optim.AdamW(model.parameters())
    step = amp.train_step(plain, model, optimizer, policy=policy, compile=True)
    for _ in range(3):
        step(torch.rand(16, 8), torch.zeros(16, dtype=torch.int64))
    assert len(graphs) == 2  # gradients and update


@inductor
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"), [("AdamW", "gradients"), ("AdamW", "strides"), ("RMSprop", "dtype")]
)
def test_an_update_reads_the_memory_that_parameters_and_gradients_have_now(
    name: str, change: str, device: str
) -> None:
    """Dynamo guards on neither in an update, and Inductor's kernel would take memory for what it was."""

    def loss(model: nn.Module, x: torch.Tensor, transposed: bool) -> torch.Tensor:
        seen = model.weight.transpose(0, 1).contiguous() if transposed else model(x)
        return seen.square().mean()

    torch._dynamo.reset()
    models = [nn.Conv2d(3, 4, 3, bias=False).to(device) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    by_hand, optimizer = (WHOLE[name][2](model.parameters()) for model in models)
    step = amp.train_step(loss, models[1], optimizer, policy="O0", compile=True)
    x = torch.rand(2, 3, 8, 8, device=device)
    for place in range(6):
        if place == 3 and change != "gradients":
            to = (
                {"memory_format": torch.channels_last}
                if change == "strides"
                else {"dtype": torch.float64}
            )
            for model in models:
                model.to(**to)
        batch = x.to(models[0].weight.dtype), change == "gradients" and place >= 3
        by_hand.zero_grad()
        loss(models[0], *batch).backward()
        by_hand.step()
        step(*batch)
    for expected, found in zip(*map(nn.Module.parameters, models), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_scheduler_made_between_steps_knows_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch's scheduler warns where it is moved and has heard of no step."""
    monkeypatch.setattr(_private, "inductor", traced_graphs.aot_eager)
    model, batch = mlp(), (torch.rand(16, 8), torch.zeros(16, dtype=torch.int64))
    optimizer = torch.optim.AdamW(model.parameters())
    step = amp.train_step(plain, model, optimizer, policy=NATIVE, compile=True)
    step(*batch)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    step(*batch)
    scheduler.step()


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        ("SGD", {"momentum": 0.9}),
        ("RMSprop", {"foreach": True}),
        ("Adadelta", {}),
        ("Adam", {"foreach": True}),
        ("AdamW", {}),
    ],
    ids=str,
)
def test_a_schedule_makes_no_new_graph_of_the_update(
    optimizer: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dynamo would compile the update for each rate until its limit, and then run it as it is."""
    monkeypatch.setattr(_private, "inductor", traced_graphs.aot_eager)
    losses = {}
    for compiled in (False, True):
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        made = getattr(torch.optim, optimizer)(model.parameters(), 0.01, **settings)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(made, 20)
        step = amp.train_step(
            lambda m, x: m(x).square().mean(), model, made, scheduler=schedule, compile=compiled,
            policy=NATIVE,
        )  # fmt: skip
        losses[compiled] = [step(torch.ones(2, 8)).loss for _ in range(12)]
        group = made.param_groups[0]
        assert group["lr"] == schedule.get_last_lr()[0]
        assert type(group["lr"]) is float
        assert group["foreach"] is settings.get("foreach")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    assert losses[True] == pytest.approx(losses[False], rel=1e-6)
