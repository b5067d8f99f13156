"""``ampbridge.neutral`` on PyTorch, and the formulas of its suite compared with PyTorch in float64."""

import copy

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import neutral
from ampbridge_testing import NeutralConformance, import_or_skip
from ampbridge_testing import neutral as suite

torch = import_or_skip("torch")
import traced_graphs  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402

from ampbridge_torch import _private  # noqa: E402
from ampbridge_torch.testing import TorchHarness  # noqa: E402

CLASSES = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}


class TestNeutral(NeutralConformance):
    harness = TorchHarness()


@pytest.mark.parametrize("name", CLASSES)
def test_an_optimizer_is_torch_s_own(name):
    assert type(neutral.optimizer(name, neutral.mlp("torch", 6, [], 4), lr=0.1)) is CLASSES[name]


@pytest.mark.parametrize("case", suite.OPTIMIZERS)
def test_the_suite_s_optimizers_are_torch_s(case):
    name, settings = suite.OPTIMIZERS[case]
    start = [np.ones((6, 4)), np.full(4, 0.5)]
    parameters = [torch.nn.Parameter(torch.tensor(value)) for value in start]
    own = {"momentum": 0.9} if name == "sgd" else {}
    optimizer = CLASSES[name](parameters, lr=0.01, **{**own, **settings})
    scheduler = lr_scheduler.LambdaLR(optimizer, suite.falling)
    for x, y in suite.regression():
        optimizer.zero_grad()
        x, y = torch.tensor(x).double(), torch.tensor(y).double()
        F.mse_loss(x @ parameters[0] + parameters[1], y).backward()
        optimizer.step()
        scheduler.step()
    expected = suite.optimized(name, settings, start, suite.falling)
    for parameter, wanted in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), wanted, rtol=1e-10, atol=1e-12)


def theirs(kind, optimizer, steps=0, warmup=0, end=0.0):
    """The same schedule of torch's own schedulers; they do not define what comes after ``steps``."""
    left = steps - warmup
    rest = {
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, left, eta_min=0.5 * end),
        "linear": lambda: lr_scheduler.LinearLR(optimizer, 1.0, end, left),
        "constant": lambda: lr_scheduler.ConstantLR(optimizer, 1.0),
    }[kind]
    if not warmup:
        return rest()
    rising = lr_scheduler.LinearLR(optimizer, 1 / (warmup + 1), total_iters=warmup)
    return lr_scheduler.SequentialLR(optimizer, [rising, rest()], [warmup])


@pytest.mark.filterwarnings("ignore:.*optimizer.step\\(\\):UserWarning")
@pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")
@pytest.mark.parametrize("case", suite.SCHEDULES)
def test_schedules_are_torch_s(case):
    kind, settings = suite.SCHEDULES[case]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    twin = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    ours, other = neutral.schedule(kind, optimizer, **settings), theirs(kind, twin, **settings)
    for _ in range(settings.get("steps", 10)):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(twin.param_groups[0]["lr"], 1e-9)
        ours.step()
        other.step()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_cross_entropy_is_torch_s(axis):
    values, labels = suite.logits_and_labels((4, 3, 5), axis)
    moved = torch.tensor(values).double().movedim(axis, 1)
    expected = F.cross_entropy(moved, torch.tensor(labels)).item()
    assert suite.cross_entropy(np.moveaxis(values, axis, -1), labels) == pytest.approx(expected)


def test_groups_keep_the_ratio_of_their_rates():
    one, two = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    groups = [{"params": [one], "lr": 0.1}, {"params": [two], "lr": torch.tensor(0.4)}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    schedule = neutral.schedule("linear", optimizer, steps=4)
    held = optimizer.param_groups[1]["lr"]
    schedule.step()
    assert schedule.rates == pytest.approx([0.075, 0.3])
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.075, 0.3])
    assert optimizer.param_groups[1]["lr"] is held


def losses_and_graphs(loss_fn, **options):
    """The losses of some steps, and how many graphs and breaks Dynamo counted in them."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = neutral.mlp("torch", 6, [5], 4)
    optimizer = neutral.optimizer("adamw", model, lr=0.01)
    schedule = neutral.schedule("cosine", optimizer, steps=12)
    step = amp.train_step(loss_fn, model, optimizer, policy="O0", scheduler=schedule, **options)
    x = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    losses = [step(x, np.arange(8) % 4).loss for _ in range(12)]
    counted = torch._dynamo.utils.counters
    return losses, (counted["stats"]["unique_graphs"], sum(counted["graph_break"].values()))


@pytest.mark.slow
def test_a_compiled_step_has_its_loss_in_the_graph(monkeypatch):
    """As many graphs and breaks as with torch's own loss, at rates that change; the eager losses."""
    monkeypatch.setattr(_private, "inductor", traced_graphs.aot_eager)
    eager, _ = losses_and_graphs(suite.classify)
    losses, graphs = losses_and_graphs(suite.classify, compile=True)
    _, native = losses_and_graphs(lambda m, x, y: F.cross_entropy(m(x), y), compile=True)
    assert losses == pytest.approx(eager, rel=1e-5)
    assert graphs == native
    assert 2 <= graphs[0] <= 4  # none for each new rate


def test_labels_within_torch_func_are_not_read():
    logits, labels = torch.randn(3, 4), torch.tensor([0, 1, 2])
    each = torch.func.vmap(neutral.cross_entropy)(logits, labels)
    torch.testing.assert_close(each, F.cross_entropy(logits, labels, reduction="none"))


def test_a_copied_step_has_a_schedule_of_its_own():
    model = neutral.mlp("torch", 6, [], 4)
    optimizer = neutral.optimizer("sgd", model, lr=0.1)
    schedule = neutral.schedule("linear", optimizer, steps=10)
    step = amp.train_step(suite.regress, model, optimizer, policy="O0", scheduler=schedule)
    other = copy.deepcopy(step)
    x, y = suite.regression()[0]
    other(x, y)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    assert other.optimizer.param_groups[0]["lr"] == pytest.approx(0.09)


def test_a_scheduler_of_another_optimizer_is_refused():
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    optimizer, of_other = (torch.optim.SGD(m.parameters(), 0.1) for m in (model, other))
    options = {"model": model, "optimizer": optimizer, "loss_fn": lambda m, x: m(x).mean()}
    with pytest.raises(amp.ArgumentError, match="another optimizer than the step's") as caught:
        amp.train_step(**options, scheduler=lr_scheduler.StepLR(of_other, 1))
    assert str(caught.value).endswith(
        "Hint: scheduler=StepLR(optimizer, ...), with the step's optimizer"
    )
    amp.train_step(**options, scheduler=lr_scheduler.StepLR(optimizer, 1))(torch.ones(4, 3))
