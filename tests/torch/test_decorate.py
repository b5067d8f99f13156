"""Decorated models: what is cast around their calls and in them, and that it is all taken back."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import re
import warnings
import weakref
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from by_hand import ByHand, Net, batches, loss_fn, policy
from recorder import run_eager
from torch import Tensor, nn, optim
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils._pytree import tree_leaves

import ampbridge as amp
from ampbridge.adapters.backend import Decoration
from ampbridge.errors import UnsupportedError
from ampbridge.training.decorate import fit_to, for_steps
from ampbridge_torch import _private
from ampbridge_torch.backend import TorchBackend
from ampbridge_torch.model import model_calls

Backend = TorchBackend()

F32 = torch.float32
UNSCALED = amp.GradScaler(1.0, dynamic=False)


def o1(low: str, **changes: Any) -> amp.Policy:
    return amp.Policy("O1", low, execution="native", **changes)


class Everything(nn.Module):
    """Parameters and buffers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(6, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Linear(4, 4))
        self.norms = nn.ModuleList([nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.RMSNorm(4)])
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
        self.wide = nn.Parameter(torch.randn(4, dtype=torch.float64))
        self.register_buffer("table", torch.randn(4))
        self.register_buffer("scratch", torch.randn(4), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, index: Tensor) -> Tensor:
        x = self.body(self.embed(index)) + self.table * self.frozen
        for norm in self.norms:
            x = norm(x)
        return self.head(x)


INDEX = torch.tensor([0, 2, 3, 5])


def dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    return {
        name: tensor.dtype
        for name, tensor in (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(),
        )
    }


def shown(obj: Any) -> Any:
    """An object's attributes, down to those that decorating may touch; tensors by identity."""
    if isinstance(obj, nn.Module):
        return {name: shown(value) for name, value in vars(obj).items()}
    if isinstance(obj, optim.Optimizer):
        return {name: shown(value) for name, value in vars(obj).items() if name != "defaults"}
    if isinstance(obj, dict):
        return [(id(k) if isinstance(k, Tensor) else k, shown(v)) for k, v in obj.items()]
    if isinstance(obj, (list, tuple)):
        return [shown(item) for item in obj]
    if isinstance(obj, nn.UninitializedParameter):
        return id(obj)
    if isinstance(obj, Tensor):
        grad_dtype = obj.grad_dtype if obj.is_leaf else None
        return id(obj), obj.dtype, obj.data_ptr(), obj.requires_grad, grad_dtype
    return obj if isinstance(obj, (int, float, str, bool, type(None))) else id(obj)


def bits(model: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for t in (*model.parameters(), *model.buffers())]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.dtype is b.dtype
        assert torch.equal(a, b)


# -- there and back


@pytest.mark.parametrize("keep", [(), ("body",), ("body.0", "head"), ("Everything",)])
@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("with_options", [False, True])
def test_undecorating_leaves_no_trace(
    level: str, keep: tuple[str, ...], with_options: bool, low: str
) -> None:
    options = {"save_dtype": "float32", "master_grad": level == "O2"} if with_options else {}
    model = Everything()
    optimizer = optim.Adagrad(model.parameters())  # which has slots from the start
    before = shown((model, optimizer)), bits(model)
    chosen = amp.Policy(level, low, keep=keep, execution="native")
    assert amp.decorate(model, optimizer, chosen, **options) == (model, optimizer)
    assert shown((model, optimizer)) != before[0]
    present = Backend.decoration(model, optimizer)
    assert present.policy == chosen
    assert present.standalone
    model(INDEX)
    with torch.no_grad():
        model.body[1].reset_running_stats()
        model.count.zero_()
    amp.undecorate(model, optimizer)
    assert Backend.decoration(model, optimizer) is None
    assert shown((model, optimizer)) == before[0]
    assert_same(bits(model), before[1])
    amp.undecorate(model, optimizer)  # of what is not decorated: nothing
    assert shown((model, optimizer)) == before[0]


def test_a_run_through_all_levels_is_the_same_by_hand(low: str) -> None:
    """O0, O2, O0, O2 with one momentum, which stays float32."""

    def make(parameters: Any) -> optim.Optimizer:
        return optim.SGD(parameters, 0.1, momentum=0.9)

    by_hand = ByHand(low, make)
    low_weights = by_hand.weights
    model = Net()
    optimizer = make(model.parameters())
    plan = [(0, "O0"), (2, policy(low)), (4, "O0"), (6, policy(low))]
    step = amp.train_step(loss_fn, model, optimizer, policy=amp.Schedule(plan), scaler=UNSCALED)
    for index, (x, y) in enumerate(batches(8)):
        if index // 2 % 2 == 0:
            w1, b1, gamma, beta, w2, b2 = by_hand.masters
            hidden = F.layer_norm(F.linear(x, w1, b1), (8,), gamma, beta)
            loss = F.mse_loss(F.linear(F.relu(hidden), w2, b2), y)
            by_hand.step(list(torch.autograd.grad(loss, by_hand.masters)))
        else:
            by_hand.step(by_hand.gradients(x, y))
        step(x, y)
        assert model.inner.weight.dtype is (low_weights[0].dtype if index // 2 % 2 else F32)
    amp.undecorate(model, optimizer)
    assert_same([p.detach() for p in model.parameters()], by_hand.masters)
    slots = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
    expected = [by_hand.optimizer.state[p]["momentum_buffer"] for p in by_hand.masters]
    assert_same(slots, expected)


# -- parameters and buffers


def test_all_but_kept_layers_and_normalizations_is_low(low: str) -> None:
    dtype = getattr(torch, low)
    model = amp.decorate(Everything(), None, policy(low))
    expected = {
        "embed.weight": dtype,
        "head.weight": dtype,
        "frozen": dtype,
        "wide": torch.float64,
        "table": F32,
        "scratch": F32,
        "count": torch.int64,
        "body.1.num_batches_tracked": torch.int64,
    }
    for name, found in dtypes(model).items():
        is_norm = name.startswith(("norms", "body.1"))
        assert found is expected.get(name, F32 if is_norm else dtype), name


def test_what_is_shared_with_a_kept_layer_stays_float32(low: str) -> None:
    model = amp.decorate(Everything(), None, policy(low, keep=["head"]))
    assert model.embed.weight is model.head.weight
    assert model.embed.weight.dtype is F32
    assert model.frozen.dtype is getattr(torch, low)


def test_a_frozen_batch_norm_s_statistics_stay_finite_and_rotary_tables_exact(low: str) -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("running_mean", torch.full((4,), 1e5))
            self.register_buffer("inv_freq", 10000.0 ** -torch.linspace(0, 1, 32), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            angles = torch.arange(2048.0)[:, None] * self.inv_freq
            return self.linear(x) - self.running_mean + angles.cos()[-1, :4]

    model = Frozen()
    x = torch.randn(3, 4)
    expected = model(x).detach()
    amp.decorate(model, None, policy(low))
    assert torch.allclose(model(x), expected, atol=0.1, rtol=0.0)


def test_normalizations_of_others_are_told_by_name_and_vectors(low: str) -> None:
    class Holding(nn.Module):
        def __init__(self, *shape: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(shape))

    class LlamaRMSNorm(Holding): ...

    class ChannelNorm(Holding): ...

    class NormalizedLinear(Holding): ...

    class LayerScale(Holding): ...

    class Subclassed(nn.LayerNorm): ...

    dtype = getattr(torch, low)
    parts = {
        LlamaRMSNorm(4): F32,
        ChannelNorm(1, 4, 1, 1): F32,
        NormalizedLinear(4, 4): dtype,
        LayerScale(4): dtype,
        Subclassed((2, 4, 4)): F32,
    }
    amp.decorate(nn.ModuleList(parts), None, policy(low))
    assert {type(p).__name__: p.weight.dtype for p in parts} == {
        type(p).__name__: wanted for p, wanted in parts.items()
    }


def test_parts_of_a_normalization_decide_for_themselves(low: str) -> None:
    class AdaptiveNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))
            self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    model = amp.decorate(AdaptiveNorm(), None, policy(low))
    assert model.scale.dtype is model.norm.weight.dtype is F32
    assert model.linear.weight.dtype is getattr(torch, low)


# -- what really runs


def ran(model: nn.Module, *inputs: Any) -> list[tuple[str, frozenset[str]]]:
    """The matrix products of a call, forward, and the dtypes of their inputs."""
    calls = run_eager(model, inputs, nullcontext()).calls
    return [(op, dtypes) for op, dtypes in calls if op in ("addmm", "mm", "linear", "bmm")]


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_kept_layers_run_in_float32_with_all_below_them(level: str, low: str) -> None:
    model = nn.Sequential(
        nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 4)
    )
    chosen = amp.Policy(level, low, keep=["1"], execution="native")
    amp.decorate(model, None, chosen)
    assert [dtypes for _, dtypes in ran(model, torch.randn(2, 4))] == [
        {low},
        {"float32"},
        {"float32"},
        {low},
    ]
    heard = []
    model[1].register_forward_hook(
        lambda layer, args, out: heard.append((args[0].dtype, out.dtype))
    )
    model(torch.randn(2, 4))
    assert heard == [(F32, F32)]


def test_a_container_that_is_never_called_stands_for_its_layers(low: str) -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
            self.last = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.last(x)

    model = amp.decorate(Listed(), None, policy(low, keep=["layers"]))
    assert [dtypes for _, dtypes in ran(model, torch.randn(2, 4))] == [
        {"float32"},
        {"float32"},
        {low},
    ]


def test_a_kept_model_is_a_float32_model(low: str) -> None:
    x, _ = next(batches(1))
    model = amp.decorate(Net(), None, policy(low, keep=["Net"], output_dtype=low))
    output = model(x)
    assert output.dtype is getattr(torch, low)
    assert torch.equal(output, Net()(x).to(output.dtype))


def test_a_kept_layer_may_be_called_by_itself(low: str) -> None:
    model = amp.decorate(Net(), None, policy(low, keep=["outer"]))
    assert model.outer(torch.ones(1, 8, dtype=getattr(torch, low))).dtype is F32


class Encoder(nn.Module):
    """Used as ``encode`` says: by its call, by a method, or by a call of its own."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.scale = nn.Parameter(torch.ones(4, 4))
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(x)

    def encode(self, x: Tensor) -> Tensor:
        return self.inner(x) @ self.scale

    def half_of_it(self, x: Tensor) -> Tensor:
        return self.inner[0](x)


class WithItsOwnCall(Encoder):
    def __call__(self, *args: Any) -> Any:
        return self.forward(*args)


class Autoencoder(nn.Module):
    def __init__(self, encoder: nn.Module, method: str) -> None:
        super().__init__()
        self.vae, self.head, self.method = encoder, nn.Linear(4, 4), method

    def forward(self, x: Tensor) -> Tensor:
        return self.head(getattr(self.vae, self.method)(x))


WAYS = {
    "a call": (Encoder, "__call__", ""),
    "its own call": (WithItsOwnCall, "__call__", ""),
    "a method": (Encoder, "encode", "vae.scale"),
    "a method that calls layers": (Encoder, "half_of_it", ""),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_layers_below_a_kept_one_are_kept_whatever_calls_them(
    level: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a method reads by itself is not: the first step says so, and once."""
    monkeypatch.setattr(_private, "has_compiled", lambda: False)
    encoder, method, told = WAYS[way]
    model = Autoencoder(encoder(way), method)
    chosen = amp.Policy(level, "bfloat16", keep=["vae"], execution="native")
    optimizer = optim.SGD(model.parameters(), 0.1)
    step = amp.train_step(lambda model, x: model(x).float().sum(), model, optimizer, policy=chosen)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            step(torch.randn(2, 4))
    said = [str(each.message) for each in caught]
    assert len(said) == bool(told)
    assert all(f"parameters are used: {told}. " in each for each in said)
    with amp.autocast(chosen.replace(keep=())):
        products = [dtypes for _, dtypes in ran(model, torch.randn(2, 4))]
    kept = [{"float32"}] * (1 if method == "half_of_it" else 2)
    assert products[: len(kept)] == kept
    assert products[-1] == {"bfloat16"}


def test_of_compiled_code_nothing_is_said_about_kept_layers() -> None:
    model = Autoencoder(Encoder(""), "encode")
    step = amp.train_step(
        torch.compile(lambda model, x: model(x).float().sum(), backend="eager"),
        model,
        optim.SGD(model.parameters(), 0.1),
        policy=amp.Policy("O1", "bfloat16", keep=["vae"], execution="native"),
    )
    step(torch.randn(2, 4))


def test_torchs_fused_transformer_layers_do_not_run_past_kept_layers(low: str) -> None:
    """Of encoder layers in eval mode torch runs one kernel, which casts for itself."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    for chosen in (
        o1(low, lists="native", keep=["linear1"]),
        o1(low, keep=["linear1"]),
        policy(low, lists="native", keep=["linear1"]),
        policy(low, keep=["linear1"]),
    ):
        amp.decorate(encoder, None, chosen)
        with torch.no_grad():
            products = ran(encoder, x)
            assert [dtypes for _, dtypes in products[-2:]] == [{"float32"}, {low}]
        amp.undecorate(encoder)


def test_a_whole_transformer(low: str) -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True), 2
    )
    x = torch.randn(2, 3, 8)
    expected = model(x)
    for lists in ("torch", "native"):
        amp.decorate(model, None, policy(low, lists=lists))
        for mode in (True, False):
            model.train(mode)
            with torch.set_grad_enabled(mode):
                assert torch.allclose(model(x), expected, atol=0.05)
        amp.undecorate(model)


def test_recurrent_layers(low: str) -> None:
    torch.manual_seed(0)
    model = nn.LSTM(4, 4, 2)
    x = torch.randn(3, 2, 4)
    expected, _ = model(x)
    amp.decorate(model, None, policy(low).replace(execution="simulated"))  # a float16 LSTM
    output, state = model(x)
    assert output.dtype is state[0].dtype is F32
    assert torch.allclose(output, expected, atol=0.05)


# -- inputs and outputs

Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Output:
    logits: Tensor
    parts: Any
    note: str = "as it was"


class Echo(nn.Module):
    """Returns what it is given and remembers it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.seen = args, kwargs
        return args, kwargs


def test_outputs_are_cast_in_nested_containers_and_nothing_else_is(low: str) -> None:
    """Inputs are handed on as they are."""
    dtype = getattr(torch, low)
    x = torch.randn(3).to(dtype)
    model = amp.decorate(Echo(), None, policy(low))
    given: Any = (
        [x, (x.double(), x.long(), x.bool())],
        Pair(x, "text"),
        OrderedDict(a=x, b=None),
        {"deep": {"deeper": [x]}},
        Output(x, [x]),
    )
    args, kwargs = model(*given, named=x)
    for seen, floating in ((model.seen, dtype), ((args, kwargs), F32)):
        nested, pair, ordered, deep, output = seen[0]
        assert type(nested) is list
        assert nested[0].dtype is floating
        assert [t.dtype for t in nested[1]] == [torch.float64, torch.int64, torch.bool]
        assert type(pair) is Pair
        assert pair.first.dtype is floating
        assert pair.second == "text"
        assert type(ordered) is OrderedDict
        assert ordered["a"].dtype is floating
        assert ordered["b"] is None
        assert deep["deep"]["deeper"][0].dtype is floating
        assert type(output) is Output
        assert output.logits.dtype is output.parts[0].dtype is floating
        assert output.note == "as it was"
        assert seen[1]["named"].dtype is floating
    assert given[0][0] is x
    assert given[4].logits.dtype is dtype  # the caller's own is left alone


def test_packed_sequences(low: str) -> None:
    model = amp.decorate(nn.LSTM(4, 4), None, policy(low))
    output, _ = model(pack_padded_sequence(torch.randn(3, 2, 4), torch.tensor([3, 2])))
    assert type(output) is PackedSequence
    assert output.data.dtype is F32


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("output_dtype", ["float32", "float16", "bfloat16"])
def test_outputs_come_in_the_policys_dtype(level: str, output_dtype: str, low: str) -> None:
    chosen = amp.Policy(level, low, output_dtype=output_dtype, execution="native")
    model = amp.decorate(nn.Linear(4, 4), None, chosen)
    output = model(torch.randn(2, 4))
    assert output.dtype is getattr(torch, output_dtype)
    output.sum().backward()
    assert model.weight.grad.abs().sum() > 0


class Returning(nn.Module):
    """Makes what it returns of a low product."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(4, 4), make

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(self.layer(x))


def test_outputs_in_sets_and_deques_are_cast(low: str) -> None:
    for make in (
        lambda y: {y, (y, y)},
        lambda y: deque([y, [y]], maxlen=3),
        lambda y: frozenset([y]),
    ):
        model = amp.decorate(Returning(make), None, policy(low))
        found = model(torch.randn(2, 4))
        assert type(found) is type(make(torch.zeros(1)))
        assert {leaf.dtype for leaf in tree_leaves([list(found)])} == {F32}


def test_low_outputs_inside_of_objects_are_said_once_for_a_class(low: str) -> None:
    """Two levels deep, too."""

    class Prediction:
        def __init__(self, y: Any) -> None:
            self.inside = torch.distributions.Normal(
                y, y.float().exp().to(y.dtype), validate_args=False
            )

    model = amp.decorate(Returning(Prediction), None, policy(low))
    with pytest.warns(
        amp.AmpBridgeWarning, match="inside of a .*Prediction, which is no container"
    ):
        assert model(torch.randn(2, 4)).inside.loc.dtype is not F32
    model(torch.randn(2, 4))
    in_float32 = amp.decorate(Returning(lambda y: OwnCache(y.float())), None, policy(low))
    assert in_float32(torch.randn(2, 4)).y.dtype is F32
    of_keys = amp.decorate(Returning(OwnCache), None, policy(low))
    assert of_keys(torch.randn(2, 4)).y.dtype is not F32  # as it is read by the next call


class OwnCache:
    def __init__(self, y: torch.Tensor) -> None:
        self.y = y


# -- regions


@pytest.mark.parametrize("output_dtype", ["float32", "bfloat16"])
def test_native_lists_and_outputs_in_the_policys_dtype_are_the_native_loop(
    output_dtype: str,
) -> None:
    """Where the loss computes with several outputs, their dtype decides where it is rounded."""

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.other = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.one(x), self.other(x)

    def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        one, other = model(x)
        return ((one + other - y) ** 2).mean()

    (x, y), native, ours = next(batches(1)), TwoHeads(), TwoHeads()
    with torch.autocast("cpu", torch.bfloat16):
        expected = loss_fn(native, x, y)
    chosen = amp.Policy(
        "O1", "bfloat16", lists="native", output_dtype=output_dtype, execution="native"
    )
    step = amp.train_step(loss_fn, ours, optim.SGD(ours.parameters(), 0.1), policy=chosen)
    assert (step(x, y).loss == expected.item()) is (output_dtype == "bfloat16")


def test_a_steps_own_o1_decoration_acts_inside_of_regions_alone(low: str) -> None:
    chosen = o1(low, keep=["outer"], output_dtype=low)
    x, y = next(batches(1))
    model, plain = Net(), Net()
    step = amp.train_step(
        loss_fn, model, optim.SGD(model.parameters(), 0.0), policy=chosen, scaler=UNSCALED
    )
    step(x, y)
    assert Backend.decoration(model, None) == Decoration(chosen, [model.outer], standalone=False)
    assert torch.equal(model(x), plain(x))
    with amp.autocast("O0"):
        assert torch.equal(model(x), plain(x))
    with amp.autocast(o1(low)):
        assert model(x).dtype is getattr(torch, low)
        assert [dtypes for _, dtypes in ran(model, x)] == [{low}, {"float32"}]
        with ThreadPoolExecutor(1) as other:
            outside = other.submit(model, x).result()
    assert torch.equal(outside, plain(x))


def test_an_explicit_o1_decoration_acts_everywhere(low: str) -> None:
    x, _ = next(batches(1))
    model = amp.decorate(Net(), None, o1(low))
    assert [dtypes for _, dtypes in ran(model, x)] == [{low}] * 2
    with amp.autocast("O0"):
        assert [dtypes for _, dtypes in ran(model, x)] == [{low}] * 2
    assert not torch.is_autocast_enabled("cpu")


def test_a_region_that_is_open_already_is_not_opened_again(
    low: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    region_on = model_calls.region_on

    def counting(types: Any, opened_policy: amp.Policy) -> Any:
        opened.append(opened_policy)
        return region_on(types, opened_policy)

    monkeypatch.setattr(model_calls, "region_on", counting)
    chosen = policy(low, deny=["gelu"])
    x, _ = next(batches(1))
    model = amp.decorate(Net(), None, chosen)
    model(x)
    assert opened == [chosen]
    with amp.autocast(chosen):
        model(x)
        assert opened == [chosen]
        with amp.autocast(chosen.replace(deny=())):
            model(x)
        assert opened == [chosen] * 2
        with amp.autocast("O0"):
            model(x)
        assert opened == [chosen] * 3
    with torch.autocast("cpu", getattr(torch, low)):
        model(x)
    assert opened == [chosen] * 4
    opened.clear()
    native = policy(low, lists="native")  # which torch.autocast alone makes
    amp.decorate(model, None, native)
    with amp.autocast(native):
        model(x)
    assert not opened
    with amp.autocast(native.replace(dtype={"float16": "bfloat16"}.get(low, "float16"))):
        model(x)
    assert opened == [native]


def test_decorating_again_replaces_and_a_fitting_step_leaves_it(low: str) -> None:
    model = Net()
    optimizer = optim.SGD(model.parameters(), 0.1)
    amp.decorate(model, optimizer, o1(low))
    amp.decorate(model, optimizer, policy(low))
    assert Backend.decoration(model, optimizer).policy == policy(low)
    masters = [id(group["params"]) for group in optimizer.param_groups]
    call = vars(model)["forward"]
    fit_to(Backend, model, optimizer, for_steps(Backend, model, policy(low)))
    assert vars(model)["forward"] is call
    assert [id(group["params"]) for group in optimizer.param_groups] == masters
    amp.decorate(model, optimizer, "O0")
    assert Backend.decoration(model, optimizer) is None


@pytest.mark.filterwarnings("ignore:The weights were trained in float32")
def test_a_decoration_with_masters_is_one_with_that_optimizer(low: str) -> None:
    model = Net()
    first, second = (optim.SGD(model.parameters(), 0.1) for _ in range(2))
    amp.decorate(model, first, policy(low))
    assert Backend.decoration(model, None) is not None
    assert Backend.decoration(model, first) is not None
    assert Backend.decoration(model, second) is None
    without = policy(low, masters=None)
    amp.decorate(model, first, without)
    assert Backend.decoration(model, second).policy == without


# -- copies


@pytest.mark.parametrize("chosen", ["O1", "O2"])
@pytest.mark.parametrize("way", ["deepcopy", "torch.save"])
@pytest.mark.filterwarnings("ignore:A copy of a model at O2")
def test_copies_are_decorated_models_of_their_own(way: str, chosen: str, low: str) -> None:
    x, y = next(batches(1))
    level = amp.Policy(chosen, low, keep=["outer"], execution="native")
    model = Net()
    optimizer = optim.SGD(model.parameters(), 0.1)
    amp.decorate(model, optimizer, level, save_dtype="float32")
    for x, y in batches(2):
        loss_fn(model, x, y).backward()
        optimizer.step()
    if way == "deepcopy":
        copied = copy.deepcopy(model)
    else:
        stored = io.BytesIO()
        torch.save(model, stored)
        stored.seek(0)
        copied = torch.load(stored, weights_only=False)
    expected = model(x).detach()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    loss_fn(model, x, y).backward()
    optimizer.step()
    assert not torch.equal(model(x), expected)
    amp.undecorate(model, optimizer)
    assert Backend.decoration(copied, None).policy == level
    assert torch.equal(copied(x), expected)
    assert [d for _, d in ran(copied, x)] == [{low}, {"float32"}]
    its_optimizer = optim.SGD(copied.parameters(), 0.1)
    assert amp.decorate(copied, its_optimizer, level) == (copied, its_optimizer)
    amp.undecorate(copied, its_optimizer)
    assert shown(copied).keys() == shown(model).keys()
    assert "forward" not in vars(copied)
    assert all(torch.equal(value, weights[name]) for name, value in copied.state_dict().items())


@pytest.mark.filterwarnings("ignore:A copy of a model at O2")
def test_a_copy_has_what_was_written_to_the_weights(low: str) -> None:
    model = amp.decorate(Net(), None, policy(low))
    with torch.no_grad():
        model.inner.weight.fill_(3.0)
    copied = amp.undecorate(copy.deepcopy(model))
    assert torch.equal(copied.inner.weight, torch.full((8, 6), 3.0))


@pytest.mark.filterwarnings("ignore:A copy of a model at O2")
def test_an_optimizer_that_is_copied_with_its_model_goes_on(low: str) -> None:
    def make(parameters: Any) -> optim.Optimizer:
        return optim.Adam(parameters, 1e-2)

    by_hand = ByHand(low, make).train(4)
    model = Net()
    optimizer = make(model.parameters())
    step = amp.train_step(loss_fn, model, optimizer, policy=policy(low), scaler=UNSCALED)
    examples = list(batches(4))
    for example in examples[:2]:
        step(*example)
    model, optimizer = copy.deepcopy((model, optimizer))
    step = amp.train_step(loss_fn, model, optimizer, policy=policy(low), scaler=UNSCALED)
    for example in examples[2:]:
        step(*example)
    amp.undecorate(model, optimizer)
    assert_same([p.detach() for p in model.parameters()], by_hand.masters)


@pytest.mark.parametrize("keep", ["outer", "Net"])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_decorated_model_is_freed_with_its_last_reference(level: str, keep: str) -> None:
    model = Net()
    optimizer = optim.SGD(model.parameters(), 0.1)
    chosen = amp.Policy(level, "bfloat16", keep=[keep], execution="native")
    amp.decorate(model, optimizer, chosen)
    loss_fn(model, *next(batches(1))).backward()
    optimizer.step()
    gone = weakref.ref(model), weakref.ref(optimizer), weakref.ref(model.inner.weight)
    gc.collect()
    gc.disable()
    try:
        del model, optimizer
        if keep == "Net":  # its decoration lists it itself
            gc.collect()
        assert [reference() for reference in gone] == [None] * 3
    finally:
        gc.enable()


def test_trainers_see_the_models_own_signature(low: str) -> None:
    expected = inspect.signature(Net().forward)
    assert inspect.signature(amp.decorate(Net(), None, policy(low)).forward) == expected


# -- state dicts


def test_the_dtype_in_which_a_model_is_saved(low: str) -> None:
    model = Everything()
    exact = {name: value.clone() for name, value in model.state_dict().items()}
    amp.decorate(model, None, policy(low))
    saved = model.state_dict()
    assert saved["frozen"].dtype is getattr(torch, low)
    assert {name: value.dtype for name, value in saved.items()} == {
        name: dtype for name, dtype in dtypes(model).items() if name != "scratch"
    }
    amp.decorate(model, None, policy(low), save_dtype="float32")
    for name, value in model.state_dict().items():
        assert value.dtype is exact[name].dtype
        assert torch.equal(value, exact[name])
    assert torch.equal(model.body[0].state_dict()["weight"], exact["body.0.weight"])
    around = nn.Sequential(model)
    assert torch.equal(around.state_dict()["0.body.0.weight"], exact["body.0.weight"])
    assert model.state_dict(keep_vars=True)["frozen"] is model.frozen
    for save_dtype in ("float16", "bfloat16"):
        amp.decorate(model, None, policy(low), save_dtype=save_dtype)
        for name, value in model.state_dict().items():
            cast = name != "wide" and name in dict(model.named_parameters(remove_duplicate=False))
            assert torch.equal(
                value, exact[name].to(getattr(torch, save_dtype)) if cast else exact[name]
            )


def test_a_model_is_saved_in_another_dtype_at_o1_as_well(low: str) -> None:
    model = Net()
    exact = {name: value.clone() for name, value in model.state_dict().items()}
    amp.decorate(model, None, amp.Policy("O1", low), save_dtype=low)
    for name, value in model.state_dict().items():
        assert value.dtype is getattr(torch, low)
        assert torch.equal(value, exact[name].to(value.dtype))
    model.load_state_dict(exact, assign=True)  # there are no masters to miss it
    amp.undecorate(model)
    for name, value in model.state_dict().items():
        assert value.dtype is torch.float32
        assert torch.equal(value, exact[name])


@pytest.mark.parametrize("around", [False, True])
def test_loaded_weights_are_the_masters(around: bool, low: str) -> None:
    torch.manual_seed(1)
    exact = {name: torch.randn_like(value) for name, value in Net().state_dict().items()}
    model = Net()
    optimizer = optim.SGD(model.parameters(), 0.0)
    amp.decorate(model, optimizer, policy(low))
    if around:
        nn.ModuleDict({"it": model}).load_state_dict({f"it.{k}": v for k, v in exact.items()})
    else:
        model.load_state_dict(exact)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, exact[name].to(parameter.dtype))
    optimizer.step()
    amp.undecorate(model, optimizer)
    assert all(torch.equal(value, exact[name]) for name, value in model.state_dict().items())


def test_a_part_is_loaded_in_double_precision_and_in_low_precision(low: str) -> None:
    """The number is above half a unit of low precision, and in float32 at the half."""
    half = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[low]
    model = amp.decorate(Net(), None, policy(low))
    weight = torch.full((8, 6), 1 + half + 2.0**-40, dtype=torch.float64)
    bias = torch.full((8,), 0.1).to(getattr(torch, low))
    model.inner.load_state_dict({"weight": weight, "bias": bias})
    assert torch.equal(model.inner.weight.float(), torch.ones(8, 6))
    amp.undecorate(model)
    assert torch.equal(model.inner.weight, weight.float())
    assert torch.equal(model.inner.bias, bias.float())


def test_assigning_loads_are_refused(low: str) -> None:
    model = amp.decorate(Net(), None, policy(low))
    before = bits(model)
    with pytest.raises(UnsupportedError, match=r"Hint: model.load_state_dict\(state_dict\)"):
        model.load_state_dict(Net().state_dict(), assign=True)
    assert_same(bits(model), before)


# -- torch.compile


@pytest.mark.parametrize(("level", "keep"), [("O1", ["inner"]), ("O2", [])])
@pytest.mark.parametrize("first", ["decorate", "compile", "compile and run"])
@pytest.mark.slow
def test_compiled_models(first: str, level: str, keep: list[str]) -> None:
    x, y = next(batches(1))
    chosen = amp.Policy(level, "bfloat16", keep=keep, execution="native")
    expected = amp.decorate(Net(), None, chosen)(x)
    model = Net()
    if first == "decorate":
        amp.decorate(model, None, chosen)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    else:
        compiled = torch.compile(model, backend="aot_eager")
        if first == "compile and run":
            compiled(x)
        amp.decorate(compiled, None, chosen)
        assert Backend.decoration(compiled, None) is Backend.decoration(model, None)
    output = compiled(x)
    assert output.dtype is F32
    assert torch.equal(output, expected)
    loss_fn(compiled, x, y).backward()
    assert model.outer.weight.grad.dtype is model.outer.weight.dtype
    amp.undecorate(compiled)
    assert torch.equal(compiled(x), Net()(x))


@pytest.mark.slow
def test_a_schedule_is_compiled_once_for_each_policy() -> None:
    low = "bfloat16"
    policies = [amp.Policy("O0"), o1(low), o1(low, keep=["inner"]), policy(low)]
    order = [0, 1, 2, 3, 1, 0, 3, 2]
    plan = [(2 * index, policies[which]) for index, which in enumerate(order)]
    traced: list[None] = []

    @torch.compiler.assume_constant_result
    def note() -> None:
        traced.append(None)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            note()
        return loss_fn(model, x, y)

    x, y = next(batches(1))
    models = [Net(), Net()]
    steps = [
        amp.train_step(
            loss, model, optim.SGD(model.parameters(), 1e-3), policy=amp.Schedule(plan), compile=how
        )
        for model, how in zip(models, (True, False), strict=True)
    ]
    for _ in range(2 * len(order)):
        compiled, eager = (step(x, y) for step in steps)
        assert compiled.loss == pytest.approx(eager.loss, rel=1e-3)
        assert dtypes(models[0]) == dtypes(models[1])
    assert len(traced) == len(policies)


# -- what stands around models, and what is refused


def test_names_are_those_of_the_users_model(low: str) -> None:
    compiled = torch.compile(Net(), backend="eager")
    assert [layer.name for layer in Backend.layers(compiled)] == ["", "inner", "norm", "outer"]
    amp.decorate(compiled, None, policy(low, keep=["inner"]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(3)), "The parameter '0.weight' has no shape yet"),
        (
            lambda: nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3)),
            "The parameter '1.weight' has no shape yet",
        ),
        (lambda: torch.jit.script(nn.Linear(2, 2)), "is TorchScript, whose types are fixed"),
        (lambda: nn.DataParallel(nn.Linear(2, 2)), "calls copies of its module"),
        (
            lambda: nn.Sequential(amp.decorate(nn.Linear(2, 2), None, "O2:bfloat16")),
            "is decorated already: a Linear, with Policy",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_models_that_cannot_be_cast_are_refused(
    make: Callable[[], nn.Module], message: str, low: str
) -> None:
    model = make()
    before = shown(model)
    with pytest.raises(UnsupportedError, match=message) as error:
        amp.decorate(model, None, policy(low))
    assert "\nHint: " in str(error.value)
    assert shown(model) == before


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
@pytest.mark.usefixtures("process_group")
def test_a_replicated_model_keeps_the_dtypes_of_its_parameters(low: str) -> None:
    """Its buckets have those that the parameters had when it was wrapped."""
    model = Net()
    before = shown(model)
    replicated = nn.parallel.DistributedDataParallel(model)
    message = "The parameters of a model in DistributedDataParallel cannot change their dtype"
    for wrapped in (replicated, torch.compile(replicated, backend="eager")):
        with pytest.raises(UnsupportedError, match=message) as error:
            amp.decorate(wrapped, None, policy(low))
        assert "Hint: amp.decorate(model, optimizer), then Distributed" in str(error.value)
        assert shown(model) == before
    amp.decorate(model, None, policy(low))
    before = shown(model)
    replicated = nn.parallel.DistributedDataParallel(model)
    with pytest.raises(UnsupportedError, match=message) as error:
        amp.undecorate(replicated)
    assert "Hint: amp.undecorate(model.module, optimizer), then wrap it" in str(error.value)
    assert shown(model) == before


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_torchscript_runs_under_o1(low: str) -> None:
    x = torch.randn(3, 2)
    script = torch.jit.script(nn.Linear(2, 2))
    own = script(x)
    amp.decorate(script, None, o1(low, output_dtype=low))
    assert script(x).dtype is getattr(torch, low)
    amp.undecorate(script)
    assert torch.equal(script(x), own)


def test_a_projection_that_attention_never_calls_cannot_be_kept(low: str) -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 4)
    before = shown(layer)
    with pytest.raises(UnsupportedError, match=r"Hint: keep=\['self_attn'\]") as error:
        amp.decorate(layer, None, policy(low, keep=["self_attn.out_proj"]))
    assert "keep names 'self_attn.out_proj'" in str(error.value)
    assert shown(layer) == before
    amp.decorate(layer, None, policy(low, keep=["self_attn*"]))
    with pytest.raises(UnsupportedError, match=r"keep names 'out_proj'.*\n.*'MultiheadAttention'"):
        amp.decorate(nn.MultiheadAttention(4, 2), None, policy(low, keep=["out_proj"]))


def test_a_model_and_its_part_are_decorated_one_by_one_below_o2(low: str) -> None:
    other = {"float16": "bfloat16", "bfloat16": "float16"}[low]
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    before = shown(model)
    x = torch.randn(2, 4)
    of_part = o1(low, output_dtype=low)
    amp.decorate(model, None, o1(other, keep=["1"]))
    amp.decorate(model[1], None, of_part)
    assert [d for _, d in ran(model, x)] == [{other}, {"float32"}]  # which the whole keeps
    assert Backend.decoration(model[1], None).policy == of_part
    amp.undecorate(model)
    assert [d for _, d in ran(model, x)] == [{"float32"}, {low}]
    assert model(x).dtype is getattr(torch, low)
    amp.undecorate(model[1])
    assert shown(model) == before


def test_a_model_and_its_part_are_not_decorated_one_by_one_at_o2(low: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    amp.decorate(model, None, policy(low))
    with pytest.raises(UnsupportedError, match="a Sequential, with Policy"):
        amp.decorate(model[0], None, o1(low))
    amp.decorate(model, None, o1(low))
    with pytest.raises(UnsupportedError, match=r"Hint: amp\.undecorate it"):
        amp.decorate(model[0], None, policy(low))


def test_steps_of_a_model_and_of_its_part_take_turns(low: str) -> None:
    """In a step of the whole the part is a layer like others: neither kept nor cast behind."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    outputs: list[torch.dtype] = []
    model[0].register_forward_hook(lambda layer, args, output: outputs.append(output.dtype))

    def step_of(trained: nn.Module, chosen: amp.Policy) -> Callable[[Tensor], Any]:
        optimizer = optim.SGD(trained.parameters(), 0.0)
        return amp.train_step(
            lambda model, x: model(x).sum(), trained, optimizer, policy=chosen, scaler=UNSCALED
        )

    part = step_of(model[0], o1(low, keep=["Linear"]))
    whole = step_of(model, o1(low))
    for _ in range(2):
        part(torch.ones(2, 4))
        whole(torch.ones(2, 4))
    assert outputs == [F32, getattr(torch, low)] * 2


# -- weights that float16 does not hold


def test_weights_beyond_float16_are_told_once_each_frozen_ones_as_well() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)), nn.Linear(2, 2, device="meta"))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)
    model.register_parameter("nothing", nn.Parameter(torch.zeros(0)))  # has no largest value
    with torch.no_grad():
        model[0].weight[0, 0] = -1e5
        model[2].bias[1] = 7e4
    names = re.escape("0.weight (100000), 2.bias (70000). ")
    with pytest.warns(amp.AmpBridgeWarning, match=names + r"(?s:.*)keep=\['0', '2'\]"):
        amp.decorate(model)
