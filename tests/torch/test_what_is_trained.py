"""What the optimizer holds beside the model, held against loops by hand; batches as libraries make them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.nn.parallel import DistributedDataParallel
from written_loops import Way, losses_of

import ampbridge as amp

CLASSES = 5


class ArcFace(nn.Module):
    """Deng et al. 2019, as its authors write it: the classes' centres are weights of the loss."""

    def __init__(self, features: int, scale: float = 8.0, margin: float = 0.3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(CLASSES, features))
        nn.init.xavier_uniform_(self.weight)
        self.scale, self.cos, self.sin = scale, math.cos(margin), math.sin(margin)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        cosine = F.linear(F.normalize(embeddings), F.normalize(self.weight))
        sine = torch.sqrt((1.0 - cosine**2).clamp(1e-6, 1.0))
        one_hot = F.one_hot(labels, CLASSES)
        logits = one_hot * (cosine * self.cos - sine * self.sin) + (1 - one_hot) * cosine
        return F.cross_entropy(logits * self.scale, labels)


class Temperature(nn.Module):
    """CLIP's: one number that the logits are multiplied by."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(embeddings * self.log_scale.exp(), labels % embeddings.shape[1])


def made(criterion: Callable[[int], nn.Module]) -> tuple[nn.Module, nn.Module, optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))
    loss = criterion(8)
    return model, loss, optim.AdamW([*model.parameters(), *loss.parameters()], 0.01)


def batches(count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield (
            rng.standard_normal((16, 12)).astype(np.float32),
            rng.integers(0, CLASSES, 16),
        )


def values(*modules: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for module in modules for p in module.parameters()]


@pytest.mark.parametrize("criterion", [ArcFace, Temperature])
def test_a_criterion_s_weights_are_trained_as_by_a_plain_loop(criterion: Any) -> None:
    model, loss, optimizer = made(criterion)
    for x, labels in batches(5):
        optimizer.zero_grad()
        loss(model(torch.from_numpy(x)), torch.from_numpy(labels)).backward()
        optimizer.step()
    expected = values(model, loss)

    model, loss, optimizer = made(criterion)
    step = amp.train_step(lambda m, x, y: loss(m(x), y), model, optimizer, policy="O0")
    for x, labels in batches(5):
        step(x, labels)
    for actual, wanted in zip(values(model, loss), expected, strict=True):
        assert torch.equal(actual, wanted)
    assert all(p.grad is None for p in [*model.parameters(), *loss.parameters()])


@pytest.mark.parametrize("policy", ["O1:bfloat16", "O1:float16", "O2:bfloat16"])
def test_they_move_at_every_level_and_stay_float32(policy: str) -> None:
    model, loss, optimizer = made(ArcFace)
    before = values(loss)[0]
    step = amp.train_step(lambda m, x, y: loss(m(x), y), model, optimizer, policy=policy)
    losses = [step(x, labels).loss for x, labels in list(batches(2)) * 10]
    assert losses[-1] < losses[0]
    assert loss.weight.dtype is torch.float32
    assert not torch.equal(loss.weight, before)


def test_a_group_that_is_added_later_is_trained_from_then_on() -> None:
    model, loss, _ = made(ArcFace)
    optimizer = optim.SGD(model.parameters(), 0.1)
    step = amp.train_step(lambda m, x, y: loss(m(x), y), model, optimizer, policy="O0")
    before = values(loss)[0]
    (first, second) = batches(2)
    step(*first)
    assert torch.equal(loss.weight, before)
    optimizer.add_param_group({"params": loss.parameters()})
    step(*second)
    assert not torch.equal(loss.weight, before)


def test_what_is_frozen_and_what_the_optimizer_lacks_stays() -> None:
    model, loss, _ = made(ArcFace)
    loss.weight.requires_grad_(False)
    optimizer = optim.SGD([*model[0].parameters(), loss.weight], 0.1)
    step = amp.train_step(lambda m, x, y: loss(m(x), y), model, optimizer, policy="O1:bfloat16")
    before = values(model[0], model[3], loss)
    step(*next(batches(1)))
    same = [
        torch.equal(a, b) for a, b in zip(values(model[0], model[3], loss), before, strict=True)
    ]
    assert same == [False, False, True, True, True]


@pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")
@pytest.mark.usefixtures("process_group")
def test_a_part_of_a_model_whose_ranks_wait_for_every_gradient() -> None:
    """DistributedDataParallel refuses the next pass where a gradient of the last never came."""
    model, loss, _ = made(ArcFace)
    wrapped = DistributedDataParallel(model)
    optimizer = optim.SGD([*model[3].parameters(), *loss.parameters()], 0.1)
    step = amp.train_step(lambda m, x, y: loss(m(x), y), wrapped, optimizer, policy="O0")
    before = values(model[0], model[3])
    for x, labels in batches(3):
        assert step(x, labels).applied
    pairs = zip(values(model[0], model[3]), before, strict=True)
    assert [torch.equal(a, b) for a, b in pairs] == [True, True, False, False]
    assert all(p.grad is None for p in model.parameters())


# -- batches and results


class Tagger(nn.Module):
    """Takes what a tokenizer makes, as transformers' models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        weights = attention_mask.unsqueeze(-1).float()
        hidden = (self.embedding(input_ids) * weights).sum(1) / weights.sum(1)
        return self.head(hidden)


def encoding() -> Any:
    transformers = pytest.importorskip("transformers")
    rng = np.random.default_rng(0)
    return transformers.BatchEncoding(
        {"input_ids": rng.integers(0, 20, (4, 6)), "attention_mask": np.ones((4, 6), np.int64)}
    )


def test_a_tokenizer_s_arrays_whole_and_as_keywords() -> None:
    torch.manual_seed(0)
    batch, labels = encoding(), np.array([0, 1, 2, 0])

    def whole(model: nn.Module, batch: Any, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(**batch), labels)

    def keywords(model: nn.Module, labels: Tensor, **inputs: Tensor) -> Tensor:
        return F.cross_entropy(model(**inputs), labels)

    results = []
    for loss_fn, call in (
        (whole, lambda step: step(batch, labels)),
        (keywords, lambda step: step(**batch, labels=labels)),
    ):
        torch.manual_seed(0)
        model = Tagger()
        step = amp.train_step(loss_fn, model, optim.SGD(model.parameters(), 0.1), policy="O0")
        results.append([call(step).loss, *values(model)])
    native = F.cross_entropy(
        model_of_seed()(**batch.convert_to_tensors("pt")), torch.tensor(labels)
    )
    assert results[0][0] == results[1][0] == pytest.approx(native.item())
    assert all(torch.equal(a, b) for a, b in zip(results[0][1:], results[1][1:], strict=True))


def model_of_seed() -> Tagger:
    torch.manual_seed(0)
    return Tagger()


# -- what is refused


def test_a_sharpness_aware_optimizer_is_refused_when_the_step_is_made() -> None:
    po = pytest.importorskip("pytorch_optimizer")
    model = nn.Linear(4, 2)
    sam = po.SAM(list(model.parameters()), optim.SGD, lr=0.1)
    with pytest.raises(amp.UnsupportedError, match="SAM evaluates the loss several times a step"):
        amp.train_step(lambda m, x: m(x).sum(), model, sam)


class Sharpness(optim.Optimizer):
    """Sharpness-aware minimization as it is published: https://github.com/davda54/sam."""

    def __init__(self, parameters: Any, base: Any, rho: float = 0.05, **options: Any) -> None:
        super().__init__(parameters, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)

    def _weights(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def first_step(self) -> None:
        norm = torch.stack([p.grad.norm() for p in self._weights()]).norm()
        for p in self._weights():
            self.state[p]["before"] = p.clone()
            p.add_(p.grad * (self.param_groups[0]["rho"] / norm))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for p in self._weights():
            p.copy_(self.state[p]["before"])
        self.base_optimizer.step()
        self.zero_grad()


def test_the_hint_for_a_sharpness_aware_optimizer_trains_in_float16() -> None:
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    losses: dict[str, list[float]] = {"O0": [], "O1:float16": []}
    for policy, found in losses.items():
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = Sharpness(model.parameters(), optim.SGD, lr=0.1)
        with pytest.raises(amp.UnsupportedError, match=r"In float16, .*optimizer\.base_optimizer"):
            amp.train_step(lambda m, x: m(x).sum(), model, optimizer)
        scaler = amp.GradScaler(enabled=policy != "O0")
        base = optimizer.base_optimizer
        for _ in range(4):
            for step in (optimizer.first_step, optimizer.second_step):
                with amp.autocast(policy, "torch"):
                    loss = F.mse_loss(model(x), y)
                scaler.scale(loss).backward()
                scaler.unscale(base)
                if not scaler.found_inf(base):
                    step()
                scaler.update()
                found.append(loss.item())
    assert losses["O1:float16"] == pytest.approx(losses["O0"], rel=1e-2)
    assert losses["O0"][-1] < losses["O0"][0]


def test_a_plateau_scheduler_is_refused_when_the_step_is_made() -> None:
    model = nn.Linear(4, 2)
    optimizer = optim.SGD(model.parameters(), 0.1)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(amp.ArgumentTypeError, match="ReduceLROnPlateau needs metrics"):
        amp.train_step(lambda m, x: m(x).sum(), model, optimizer, scheduler=scheduler)


@pytest.mark.parametrize(
    "made",
    [
        lambda o: optim.lr_scheduler.StepLR(o, 3),
        lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, 99),
        lambda o: optim.lr_scheduler.SequentialLR(
            o, [optim.lr_scheduler.LinearLR(o), optim.lr_scheduler.StepLR(o, 3)], [2]
        ),
    ],
)
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_scheduler_that_the_loop_moves_too_is_warned_of(made: Any, by_hand: bool) -> None:
    model = nn.Linear(4, 2)
    optimizer = optim.SGD(model.parameters(), 0.1)
    scheduler = made(optimizer)
    step = amp.train_step(
        lambda m, x: m(x).sum(), model, optimizer, policy="O0", scheduler=scheduler
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", amp.AmpBridgeWarning)
        for _ in range(5):
            step(torch.ones(2, 4))
            if by_hand:
                scheduler.step()
    assert len([each for each in caught if "moves twice" in str(each.message)]) == by_hand


@pytest.mark.parametrize("kind", [nn.CrossEntropyLoss, nn.MSELoss])
def test_a_loss_module_is_refused_with_the_function_to_write(kind: Any) -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(amp.ArgumentTypeError, match=r"return criterion\(model\(x\), y\)"):
        amp.train_step(kind(), model, optim.SGD(model.parameters(), 0.1))


def test_a_scheduler_in_the_place_of_the_optimizer_is_refused() -> None:
    model = nn.Linear(4, 2)
    scheduler = optim.lr_scheduler.StepLR(optim.SGD(model.parameters(), 0.1), 1)
    text = (
        r"not a scheduler \(torch\.optim\.lr_scheduler\.StepLR\)\.\nHint: .*scheduler=scheduler\)"
    )
    with pytest.raises(amp.ArgumentTypeError, match=text):
        amp.train_step(lambda m, x: m(x).sum(), model, scheduler)


@pytest.mark.parametrize("policy", ["O0", "O1", "O2:bfloat16"])
def test_a_loss_that_calls_backward_is_refused(policy: str) -> None:
    """As a loop by hand has it."""

    def loss_fn(model: Any, x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().mean()
        loss.backward()
        return loss

    model = nn.Linear(12, 4)
    step = amp.train_step(loss_fn, model, optim.SGD(model.parameters(), 0.1), policy=policy)
    with pytest.raises(amp.errors.CallOrderError, match=r"(?s)called loss\.backward\(\).*Hint: "):
        step(torch.randn(3, 12))


class WithStatistic(nn.Module):
    """Keeps a running maximum in a frozen parameter, as quantizers do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.peak = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        self.peak.copy_(0.9 * self.peak + 0.1 * y.abs().max())
        return y


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's
@pytest.mark.parametrize("way", ["by hand", "train_step"])
def test_a_frozen_parameter_that_the_model_writes_to_is_not_trained(way: Way) -> None:
    """From its first call on it asks for a gradient. Torch's own loop steps over it."""

    def loss_fn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    def found(way: Way) -> list[tuple[float, float]]:
        torch.manual_seed(0)
        model = WithStatistic()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = losses_of(way, loss_fn, model, optimizer, optimizer.zero_grad, torch.ones(8, 4))
        return [(loss, model.peak.item()) for loss in losses]

    assert found(way) == found("native")
