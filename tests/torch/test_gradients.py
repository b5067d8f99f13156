"""Gradients and their values: against float64, beside other models, accumulated, with DDP."""

from __future__ import annotations

import copy
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ampbridge as amp
from ampbridge.errors import ArgumentError

TOLERANCE = {"float16": 5e-3, "bfloat16": 3e-2}


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x).mean(1))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 5))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 16, 5)
    )


MODELS = {
    "mlp": (mlp, (8, 16)),
    "conv": (convolutional, (8, 2, 6, 6)),
    "transformer": (Transformer, (8, 6, 16)),
}
DENIED = ["linear", "matmul", "mm", "bmm", "addmm", "conv2d", "scaled_dot_product_attention"]


def loss_fn(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def workload(name: str, device: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    make, shape = MODELS[name]
    return make().to(device), torch.randn(shape, device=device), torch.arange(8, device=device) % 5


def exact_gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    reference = copy.deepcopy(model).double()
    loss_fn(reference, x.double(), y).backward()
    return [p.grad for p in reference.parameters()]


def relative_error(found: Any, exact: list[torch.Tensor]) -> float:
    difference = sum((a.double() - b).square().sum() for a, b in zip(found, exact, strict=True))
    return float((difference / sum(b.square().sum() for b in exact)).sqrt())


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_float64_up_to_the_precision(
    name: str, low: str, device: str
) -> None:
    model, x, y = workload(name, device)
    exact = exact_gradients(model, x, y)
    loss, grads = amp.value_and_grad(loss_fn, model, x, y, policy=amp.Policy("O1", low))
    assert loss.dtype is torch.float32
    assert not loss.requires_grad
    assert all(grad.dtype is torch.float32 for grad in grads)
    assert 1e-5 < relative_error(grads, exact) < TOLERANCE[low]


@pytest.mark.parametrize("name", MODELS)
def test_denied_products_bring_float32_back(name: str, low: str, device: str) -> None:
    model, x, y = workload(name, device)
    exact = exact_gradients(model, x, y)
    policy = amp.Policy("O1", low, deny=DENIED)
    _, grads = amp.value_and_grad(loss_fn, model, x, y, policy=policy)
    assert relative_error(grads, exact) < 1e-5


@pytest.mark.skipif(
    torch.cuda.is_available() and find_spec("triton") is None, reason="on CUDA it needs Triton"
)
@pytest.mark.slow
def test_compiled_gradients_are_those_of_float64_too(device: str) -> None:
    model, x, y = workload("mlp", device)
    exact = exact_gradients(model, x, y)
    before = [p.detach().clone() for p in model.parameters()]
    for policy, bound in (("O1:bfloat16", 3e-2), (amp.Policy(deny=DENIED), 1e-5)):
        compiled = copy.deepcopy(model)
        step = amp.train_step(
            loss_fn,
            compiled,
            torch.optim.SGD(compiled.parameters(), lr=1.0),
            policy=policy,
            scaler=None if policy == "O1:bfloat16" else "auto",
            compile=True,
        )
        step(x, y)
        updates = [b - p.detach() for b, p in zip(before, compiled.parameters(), strict=True)]
        assert relative_error(updates, exact) < bound


def test_other_models_and_earlier_gradients_are_left_alone(device: str) -> None:
    generator, critic = nn.Linear(4, 4).to(device), nn.Linear(4, 1).to(device)
    earlier = torch.ones_like(generator.weight)
    generator.weight.grad = earlier
    x = torch.randn(3, 4, device=device)
    _, grads = amp.value_and_grad(lambda g, x: critic(g(x)).mean(), generator, x)
    assert [p.grad for p in critic.parameters()] == [None, None]
    assert generator.weight.grad is earlier
    assert torch.equal(earlier, torch.ones_like(earlier))
    assert generator.bias.grad is None
    assert len(grads) == 2


def test_a_backward_pass_that_raises_leaves_earlier_gradients(device: str) -> None:
    model = nn.Linear(4, 1).to(device)
    earlier = [torch.ones_like(p) for p in model.parameters()]
    for parameter, gradient in zip(model.parameters(), earlier, strict=True):
        parameter.grad = gradient

    def refuse(gradient: torch.Tensor) -> None:
        raise MemoryError

    def loss_fn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).sum()
        loss.register_hook(refuse)
        return loss

    with pytest.raises(MemoryError):
        amp.value_and_grad(loss_fn, model, torch.ones(3, 4, device=device))
    for parameter, gradient in zip(model.parameters(), earlier, strict=True):
        assert parameter.grad is gradient
        assert torch.equal(gradient, torch.ones_like(gradient))


def test_a_loss_that_reaches_no_parameter_is_refused(device: str) -> None:
    model, x = nn.Linear(2, 2).to(device), torch.randn(3, 2, device=device)
    message = (
        "The loss does not depend on any trainable parameter, or was detached.\n"
        "Hint: def loss_fn(model, x, y): return cross_entropy(model(x), y)"
    )
    with pytest.raises(ArgumentError) as error:
        amp.value_and_grad(lambda m, x: m(x).sum().detach(), model, x)
    assert str(error.value) == message


def test_a_model_without_trainable_parameters_is_refused(device: str) -> None:
    model = nn.Linear(2, 2).to(device).requires_grad_(False)
    message = (
        "There is nothing to train: all parameters are frozen, or there are none.\n"
        "Hint: layer.requires_grad_(True), for what is to be trained."
    )
    with pytest.raises(ArgumentError) as error:
        amp.value_and_grad(lambda m, x: m(x).sum(), model, np.ones((1, 2)))
    assert str(error.value) == message


@pytest.mark.parametrize("trains_before", [False, True])
def test_reentrant_checkpoints_are_refused(trains_before: bool, device: str) -> None:
    """``backward(inputs=...)`` would pass them by; torch says so only if more lies behind them."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(device)
    x = torch.randn(3, 2, device=device, requires_grad=True)

    def reentrant(model: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
        h = model[0](x) if trains_before else x
        return torch.utils.checkpoint.checkpoint(model[1], h, use_reentrant=True).sum()

    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        amp.value_and_grad(reentrant, model, x)


@pytest.mark.parametrize(
    "array, dtype",
    [
        (np.ones((2, 3)), torch.float32),
        (np.ones((2, 3), np.float32), torch.float32),
        (np.ones((2, 3), np.float16), torch.float16),
        (np.ones((2, 3), ml_dtypes.bfloat16), torch.bfloat16),
        (np.ones((2, 3), np.int64), torch.int64),
        (np.ones((2, 3), bool), torch.bool),
        (np.broadcast_to(np.float32(1), (2, 3)), torch.float32),
        (np.ones((2, 3), np.float32)[::-1], torch.float32),
        (np.ones((2, 6), ml_dtypes.bfloat16)[:, ::2], torch.bfloat16),
    ],
    ids=lambda value: str(getattr(value, "dtype", value)),
)
def test_numpy_batches(array: np.ndarray, dtype: torch.dtype, device: str) -> None:
    model = nn.Linear(3, 1).to(device)
    seen: list[torch.Tensor] = []

    def loss_fn(model: nn.Module, batch: dict[str, Any], flag: bool) -> torch.Tensor:
        seen.extend(batch["x"])
        assert flag is True
        return model(batch["x"][0].float()).sum()

    amp.value_and_grad(loss_fn, model, {"x": [array]}, True)
    assert seen[0].dtype is dtype
    assert seen[0].device.type == device
    assert bool((seen[0].float() == 1).all())


def test_a_float64_model_keeps_float64_batches(device: str) -> None:
    model = nn.Linear(3, 1).double().to(device)
    _, grads = amp.value_and_grad(lambda m, x: m(x).sum(), model, np.ones((2, 3)))
    assert grads[0].dtype is torch.float64


def test_accumulated_micro_batches_are_the_big_batch_in_low_precision(device: str) -> None:
    model, x, y = workload("mlp", device)
    twin = copy.deepcopy(model)
    for each, parts in ((model, 1), (twin, 4)):
        step = amp.train_step(
            loss_fn,
            each,
            torch.optim.SGD(each.parameters(), lr=1.0),
            policy="O1:bfloat16",
            accumulate=parts,
        )
        for part_x, part_y in zip(x.chunk(parts), y.chunk(parts), strict=True):
            result = step(part_x, part_y)
        assert result.applied
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    assert max(float((a - b).detach().abs().max()) for a, b in pairs) < 2e-2


@pytest.mark.parametrize("on_overflow", ["drop_step", "drop_microbatch"])
def test_layers_that_some_micro_batches_use_are_accumulated(on_overflow: Any, device: str) -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 1), "b": nn.Linear(3, 1)}).to(device)
    x = torch.randn(3, 4, 3, device=device)
    batches = list(zip(x, ("a", "b", "ab"), strict=True))

    def loss_fn(model: Any, x: torch.Tensor, names: str) -> torch.Tensor:
        return torch.stack([model[name](x).square().mean() for name in names]).sum()

    for x, names in batches:
        (loss_fn(model, x, names) / 3).backward()
    expected = [p.detach() - p.grad for p in model.parameters() if p.grad is not None]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.zero_grad()
    options: dict[str, Any] = {"accumulate": 3, "on_overflow": on_overflow, "compile": False}
    step = amp.train_step(loss_fn, model, optimizer, policy="O0", **options)
    for x, names in batches:
        step(x, names=names)
    torch.testing.assert_close(list(model.parameters()), expected)


@pytest.mark.usefixtures("process_group")
def test_gradients_of_a_distributed_model_are_reduced() -> None:
    """DistributedDataParallel hooks into ``backward``; here with one process, so it changes nothing.

    Its reducer raises at the second forward pass if the first backward pass went around it.
    """
    model = nn.Linear(3, 2)
    reduced: list[int] = []
    parallel = nn.parallel.DistributedDataParallel(model)

    def hook(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        reduced.append(bucket.index())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer() * 2)
        return future

    hook.__annotations__["bucket"] = torch.distributed.GradBucket  # torch compares the class
    hook.__annotations__["return"] = torch.futures.Future[torch.Tensor]
    parallel.register_comm_hook(None, hook)
    x = torch.randn(4, 3)
    _, alone = amp.value_and_grad(lambda m, x: m(x).sum(), model, x, policy="O0")
    for _ in range(2):
        _, grads = amp.value_and_grad(lambda m, x: m(x).sum(), parallel, x, policy="O0")
    assert reduced == [0, 0]
    assert all(torch.equal(a * 2, b) for a, b in zip(alone, grads, strict=True))


def masked_loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """As deberta of transformers: the number is of another dtype's range."""
    scores = F.linear(x, model.weight).masked_fill(x > 0, torch.finfo(torch.float32).min)
    return scores.softmax(-1).sum()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes are since Python 3.11")
def test_a_number_that_overflows_comes_with_a_hint(low: str) -> None:
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    policy = amp.Policy("O1", low, execution="native")
    step = amp.train_step(masked_loss, model, optimizer, policy=policy)
    with pytest.raises(RuntimeError, match="without overflow") as caught:
        step(x)
    assert [note[:47] for note in caught.value.__notes__] == [
        "Hint: Policy(..., deny=['masked_fill']), if the"
    ]
    policy = policy.replace(deny=["masked_fill"])
    assert amp.train_step(masked_loss, model, optimizer, policy=policy)(x).applied


class Normalized(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        self.eval()


def of_each_sample(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The norms of its gradients."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())

    def loss(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        given = parameters, buffers
        return torch.func.functional_call(model, given, (x[None],)).float().square().sum()

    grads = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    return torch.stack([g.float().flatten(1).norm(dim=1) for g in grads.values()])


def of_an_ensemble(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    stacked = torch.func.stack_module_state([model, copy.deepcopy(model)])  # type: ignore[list-item]
    return torch.func.vmap(lambda *state: torch.func.functional_call(model, state, (x,)))(*stacked)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes are since Python 3.11")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU alone has the simulation")
@pytest.mark.filterwarnings("ignore:A copy of a model at O2")
@pytest.mark.parametrize("around", [True, False], ids=["in a region", "decorated"])
@pytest.mark.parametrize(
    ("level", "mapped"), [("O1", of_each_sample), ("O2", of_each_sample), ("O2", of_an_ensemble)]
)
def test_what_autocast_does_not_reach_in_a_transform_comes_with_a_hint(
    level: str, mapped: Any, around: bool, low: str
) -> None:
    x, policy = torch.randn(6, 4), amp.Policy(level, low, execution="native")
    simulated = policy.replace(execution="simulated")

    def run(policy: amp.Policy) -> torch.Tensor:
        model = Normalized()
        if level == "O2" or not around:
            amp.decorate(model, None, policy)
        with amp.autocast(policy) if around else nullcontext():
            return mapped(model, x)

    with pytest.raises(RuntimeError, match=r"dtype|scalar type") as caught:
        run(policy)
    assert caught.value.__notes__ == [
        f"Hint: {simulated!r} casts each op inside of torch.func's transforms; torch's own autocast "
        "does not reach some of them there."
    ]
    exact = mapped(Normalized(), x)
    torch.testing.assert_close(run(simulated).float(), exact, rtol=0.05, atol=0.05)


def test_other_errors_come_as_they_are() -> None:
    model = nn.Linear(4, 4)
    step = amp.train_step(
        lambda model, x: model(x).mean(),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        policy="O1",
    )
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        step(torch.ones(3, 5))
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.usefixtures("process_group")
def test_gradients_in_buckets_of_a_distributed_model_are_accumulated() -> None:
    """With ``gradient_as_bucket_view`` each backward pass writes where the one before left its gradients."""
    torch.manual_seed(0)
    plain = nn.Linear(3, 2)
    parallel = nn.parallel.DistributedDataParallel(
        copy.deepcopy(plain), gradient_as_bucket_view=True
    )
    batches = torch.randn(6, 4, 3)
    losses = []
    for model in (plain, parallel):
        step = amp.train_step(
            lambda m, x: m(x).square().mean(),
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            policy="O0",
            accumulate=3,
        )
        losses.append([step(x).loss for x in batches])
    assert losses[0] == losses[1]
    pairs = zip(plain.parameters(), parallel.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_a_loss_of_one_number_is_a_scalar(shape: tuple[int, ...]) -> None:
    """As ``backward()`` has it; losses of snntorch and lightly have a dimension."""
    found = []
    for of_shape in ((), shape):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        step = amp.train_step(
            lambda m, x, of=of_shape: m(x).square().mean().reshape(of),
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            policy="O1:bfloat16",
        )
        losses = [step(torch.ones(4, 3)).loss for _ in range(3)]
        assert all(isinstance(loss, float) for loss in losses)
        found.append(losses)
    assert found[0] == found[1]
