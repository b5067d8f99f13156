"""O2 and models that torch.distributed has wrapped or sharded, in a group of one process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from by_hand import ByHand, Net, batches, loss_fn, policy
from torch import nn, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

import ampbridge as amp
from ampbridge.errors import UnsupportedError
from ampbridge_torch.backend import TorchBackend
from ampbridge_torch.step import ranks

Backend = TorchBackend()

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")


@pytest.fixture(autouse=True, scope="module")
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()  # as in conftest.py
    dist.destroy_process_group()


def sgd(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, 0.1, momentum=0.9)


def assert_masters(model: nn.Module, optimizer: optim.Optimizer, by_hand: ByHand) -> None:
    amp.undecorate(model, optimizer)
    for parameter, expected in zip(model.parameters(), by_hand.masters, strict=True):
        assert torch.equal(parameter, expected)


@pytest.mark.parametrize("bucket_view", [False, True])
def test_a_decorated_model_in_distributed_data_parallel(bucket_view: bool, low: str) -> None:
    by_hand = ByHand(low, sgd, 64.0).train(6)
    model = Net()
    optimizer = sgd(model.parameters())
    amp.decorate(model, optimizer, policy(low))
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=bucket_view)
    scaler = amp.GradScaler(64.0)
    examples = list(batches(6))
    for x, y in examples[:3]:
        optimizer.zero_grad()
        scaler.scale(loss_fn(wrapped, x, y)).backward()
        scaler.unscale(optimizer)
        scaler.step(optimizer)
        scaler.update()
    step = amp.train_step(loss_fn, wrapped, optimizer, policy=policy(low), scaler=scaler)
    for x, y in examples[3:]:
        step(x, y)
    assert_masters(model, optimizer, by_hand)


def test_low_slots_in_distributed_data_parallel() -> None:
    chosen, kept = policy("bfloat16", slots="bfloat16"), []
    for wrapped in (False, True):
        model = Net()
        optimizer = sgd(model.parameters())
        amp.decorate(model, optimizer, chosen)
        trained = DistributedDataParallel(model) if wrapped else model
        step = amp.train_step(loss_fn, trained, optimizer, policy=chosen, accumulate=2, clip_norm=1)
        for x, y in batches(6):
            step(x, y)
        kept.append(optimizer.state[model.inner.weight]["momentum_buffer"])
    assert kept[0].dtype is torch.bfloat16
    assert torch.equal(*kept)


def test_parameters_in_distributed_data_parallel_are_not_cast(low: str) -> None:
    wrapped = DistributedDataParallel(Net())
    for model in (wrapped, torch.compile(wrapped, backend="eager")):
        with pytest.raises(UnsupportedError, match=r"Hint: amp.decorate\(model, optimizer\), then"):
            amp.decorate(model, None, policy(low))
    wrapped = DistributedDataParallel(amp.decorate(Net(), None, policy(low)))
    with pytest.raises(UnsupportedError, match=r"Hint: amp.undecorate\(model.module, optimizer\)"):
        amp.undecorate(wrapped)
    assert wrapped.module.inner.weight.dtype is getattr(torch, low)


def test_distributed_data_parallel_under_o1(low: str) -> None:
    chosen = amp.Policy("O1", low, keep=["inner"], execution="native")
    models: list[nn.Module] = [Net(), DistributedDataParallel(Net())]
    losses = []
    for model in models:
        step = amp.train_step(loss_fn, model, sgd(model.parameters()), policy=chosen)
        losses.append([step(x, y).loss for x, y in batches(3)])
    assert losses[0] == losses[1]
    assert Backend.decoration(models[1], None).policy == chosen


def sharded(**options: Any) -> nn.Module:
    model = Net()
    mesh = init_device_mesh("cpu", (1,))
    fully_shard(model.inner, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`:UserWarning")
def test_sharded_models_are_refused_at_o2(low: str) -> None:
    for model in (sharded(), FullyShardedDataParallel(Net(), device_id=torch.device("cpu"))):
        with pytest.raises(UnsupportedError, match="MixedPrecisionPolicy") as error:
            amp.decorate(model, sgd(model.parameters()), policy(low))
        assert "is sharded by FSDP" in str(error.value)
        assert Backend.decoration(model, None) is None


@pytest.mark.parametrize("masters", ["float32", "kahan", "stochastic"])
def test_a_model_that_is_sharded_at_o2_is_not_trained_without_masters(masters: str) -> None:
    """Neither in a loop by hand nor in a step; a pure bfloat16 model beside it is."""
    chosen = policy("bfloat16", masters=masters)
    model, pure = (nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)) for _ in range(2))
    amp.decorate(model, None, chosen)
    for each in (model, pure.bfloat16()):
        fully_shard(each, mesh=init_device_mesh("cpu", (1,)))
    x, y = next(batches(1))
    optimizer, its_optimizer = sgd(model.parameters()), sgd(pure.parameters())
    loss_fn(model, x, y).backward()
    loss_fn(pure, x.bfloat16(), y.bfloat16()).backward()
    before = [p.full_tensor().clone() for p in model.parameters()]
    with pytest.raises(UnsupportedError, match=r"is sharded by FSDP.*\nHint: fully_shard"):
        optimizer.step()
    its_optimizer.step()
    for found, expected in zip(model.parameters(), before, strict=True):
        assert torch.equal(found.full_tensor(), expected)
    step = amp.train_step(loss_fn, model, optimizer, policy=chosen)
    with pytest.raises(UnsupportedError, match="is sharded by FSDP"):
        step(x, y)


@pytest.mark.parametrize("mixed", [False, True])
def test_sharded_models_under_o1(mixed: bool, low: str) -> None:
    """With the policy that the refusal hints at, too."""
    chosen = amp.Policy("O1", low, keep=["norm"], execution="native")
    options = (
        MixedPrecisionPolicy(getattr(torch, low), torch.float32, output_dtype=torch.float32)
        if mixed
        else MixedPrecisionPolicy()
    )
    models = [Net(), sharded(mp_policy=options)]
    losses = []
    for model in models:
        step = amp.train_step(
            loss_fn, model, sgd(model.parameters()), policy=chosen, clip_norm=0.1, accumulate=2
        )
        losses.append([step(x, y).loss for x, y in batches(6)])
    assert losses[1] == pytest.approx(losses[0], rel=2e-2 if mixed else 1e-6)


def test_wrappers_of_parts_leave_no_mark_on_names() -> None:
    plain = Net()
    names = [weight.name for weight in Backend.weights(plain)]
    trained = Backend.parameter_names(plain)
    plain.inner = DistributedDataParallel(plain.inner)
    assert [weight.name for weight in Backend.weights(plain)] == names
    assert Backend.parameter_names(plain) == trained


def test_shards_of_shards_are_not_saved() -> None:
    """As FSDP2 makes them on top of tensor parallelism, of a private class below Shard."""

    class ShardOfShard(Shard):
        pass

    placed: Any = SimpleNamespace(placements=(ShardOfShard(0), Shard(0)))
    with pytest.raises(UnsupportedError, match=r"0\.weight is placed as .*shards of shards"):
        ranks.check_placements("0.weight", placed)
    ranks.check_placements("0.weight", SimpleNamespace(placements=(Replicate(), Shard(0))))


def test_a_flag_on_one_of_two_ranks_is_set_on_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank holds its part of a sharded flag; here the other one's is set."""
    mesh = init_device_mesh("cpu", (1,))
    flag = DTensor.from_local(torch.tensor(False), mesh, [Partial("max")])
    monkeypatch.setattr(DTensor, "full_tensor", lambda part: part.to_local() | torch.tensor(True))
    assert ranks.set_on_any(flag)
    assert not ranks.set_on_any(torch.tensor(False))


def test_the_mean_loss_of_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = DistributedDataParallel(Net())
    monkeypatch.setattr(dist, "all_reduce", lambda total, group: total.add_(5.0))
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    loss = torch.tensor(1.0)
    assert ranks.mean_loss(loss, model) == 3.0
    assert loss == 1.0


def test_slots_that_are_sharded_in_their_own_way_are_not_saved() -> None:
    model = sharded()
    optimizer = sgd(model.parameters())
    step = amp.train_step(loss_fn, model, optimizer, policy="O0")
    step(*next(batches(1)))
    Backend.read_optimizer(optimizer, model)
    slots = optimizer.state[model.inner.weight]
    slots["momentum_buffer"] = slots["momentum_buffer"].full_tensor()
    with pytest.raises(UnsupportedError, match="'momentum_buffer' is sharded in its own way"):
        Backend.read_optimizer(optimizer, model)


def test_an_optimizer_around_another_is_refused(low: str) -> None:
    model = Net()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, lr=0.1)
    with pytest.raises(UnsupportedError, match="steps another optimizer"):
        amp.decorate(model, optimizer, policy(low))
    assert model.inner.weight.dtype is torch.float32
